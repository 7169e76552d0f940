package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"e2e-clients/internal/arrival"
	"e2e-clients/internal/report"
	"e2e-clients/internal/resource"
)

// observed is an object as the events show it.
type observed struct {
	UID       string            `json:"uid"`
	Version   string            `json:"rv"`
	Namespace string            `json:"ns"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels"`
	// Data and Digest are there with --content: the object's data, else its spec, and a digest of all of it but its type.
	Data   any    `json:"data,omitempty"`
	Digest string `json:"digest,omitempty"`
}

type informerRun struct {
	report        *report.Reporter
	counts        counter
	selector      string
	fieldSelector string
	shardSelector string
	wire          bool
	content       bool
	arrivals      *arrival.Clock
}

// informer prints: list, watch (each request), added, updated, deleted, missed-delete, watch-error, synced, with --wire each
// answer's head, each event of the stream and each object of a list; on SIGUSR1 or a line of standard input: store; at the end: summary.
func informer(p *program, fs *flag.FlagSet) func(context.Context) error {
	run := &informerRun{report: p.report}
	target := fs.String("resource", "v1/configmaps", "group/version/resource")
	watchList := fs.Bool("watchlist", true, "stream the initial list (KEP-3157)")
	asMetadata := fs.Bool("metadata", false, "ask for PartialObjectMetadata")
	all := fs.Bool("all-namespaces", false, "all namespaces")
	fs.StringVar(&run.selector, "selector", "", "label selector")
	fs.StringVar(&run.fieldSelector, "field-selector", "", "field selector")
	fs.StringVar(&run.shardSelector, "shard-selector", "", "shard selector (KEP-5866)")
	asUnstructured := fs.Bool("dynamic", false, "use the dynamic client, also for what client-go has a type for")
	fs.BoolVar(&run.wire, "wire", false, "print the events of the watch streams, bookmarks and errors too")
	fs.BoolVar(&run.content, "content", false, "print what the objects hold, and a digest of them")
	arrivals := fs.Bool("arrivals", false, "print when the kernel had received what an event came in, at the latest")
	return func(ctx context.Context) error {
		if !*watchList {
			// Read by client-go when the first informer starts.
			if err := os.Setenv("KUBE_FEATURE_WatchListClient", "false"); err != nil {
				return err
			}
		}
		gvr, err := resource.ParseGVR(*target)
		if err != nil {
			return err
		}
		config, err := p.Config()
		if err != nil {
			return err
		}
		if *arrivals {
			run.arrivals = &arrival.Clock{}
			config.Dial = run.arrivals.Dial
		}
		if run.wire {
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return heads{next, p.report} })
		}
		encoding, namespace := p.encoding(), p.namespace
		if *asMetadata {
			encoding = resource.Metadata
		}
		if *asUnstructured {
			encoding = resource.Unstructured
		}
		if *all {
			namespace = ""
		}
		collection, err := resource.Open(config, gvr, namespace, encoding)
		if err != nil {
			return err
		}
		return run.until(ctx, p, collection)
	}
}

func (r *informerRun) until(ctx context.Context, p *program, collection *resource.Collection) error {
	informer := cache.NewSharedIndexInformer(r.observe(collection), collection.Example, 0, cache.Indexers{})
	if _, err := informer.AddEventHandler(r.handlers()); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(r.watchError); err != nil {
		return err
	}
	ctx, cancel := p.untilStdinEnds(ctx, func() { r.printStore(informer.GetStore()) })
	defer cancel()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	defer signal.Stop(signals)

	var tasks sync.WaitGroup
	tasks.Go(func() { informer.RunWithContext(ctx) })
	tasks.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
			r.report.Event("synced", report.Fields{"objects": len(informer.GetStore().ListKeys())})
		}
	})
	for ctx.Err() == nil {
		select {
		case <-signals:
			r.printStore(informer.GetStore())
		case <-ctx.Done():
		}
	}
	tasks.Wait()
	r.report.Event("summary", r.summary())
	return nil
}

// heads tells of the heads of answers.
type heads struct {
	next   http.RoundTripper
	report *report.Reporter
}

func (h heads) RoundTrip(request *http.Request) (*http.Response, error) {
	answer, err := h.next.RoundTrip(request)
	if err == nil {
		h.report.Event("answer", report.Fields{"status": answer.StatusCode, "contentType": answer.Header.Get("Content-Type")})
	}
	return answer, err
}

// observe reports the requests of the reflector, which is otherwise left alone.
func (r *informerRun) observe(collection *resource.Collection) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			r.narrow(&options)
			r.counts.add("lists")
			list, err := collection.ListWithContextFunc(ctx, options)
			fields := report.Fields{"from": options.ResourceVersion, "limit": options.Limit, "continue": options.Continue != ""}
			if err != nil {
				fields["error"] = err.Error()
			} else if answer, err := meta.ListAccessor(list); err == nil {
				fields["rv"], fields["items"] = answer.GetResourceVersion(), meta.LenList(list)
				if r.wire {
					fields["match"], fields["objects"] = options.ResourceVersionMatch, r.listed(list)
				}
			}
			r.report.Event("list", fields)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			r.narrow(&options)
			initial := options.SendInitialEvents != nil && *options.SendInitialEvents
			r.counts.add("watches")
			if initial {
				r.counts.add("watchLists")
			}
			fields := report.Fields{"from": options.ResourceVersion, "initialEvents": initial}
			stream, err := collection.WatchFuncWithContext(ctx, options)
			if err != nil {
				fields["error"] = err.Error()
			}
			r.report.Event("watch", fields)
			if err != nil || !r.wire {
				return stream, err
			}
			return watch.Filter(stream, func(event watch.Event) (watch.Event, bool) {
				// What client-go makes of our own end was on no wire.
				if ctx.Err() == nil {
					fields := wireFields(event)
					if object, err := meta.Accessor(event.Object); err == nil {
						fields["object"] = r.shown(object)
					}
					r.report.Event("wire", fields)
				}
				return event, true
			}), nil
		},
	}
}

func (r *informerRun) narrow(options *metav1.ListOptions) {
	options.LabelSelector, options.FieldSelector, options.ShardSelector = r.selector, r.fieldSelector, r.shardSelector
}

func (r *informerRun) listed(list runtime.Object) []observed {
	objects := []observed{}
	// Every list that client-go decodes has items.
	_ = meta.EachListItem(list, func(item runtime.Object) error {
		if object, err := meta.Accessor(item); err == nil {
			objects = append(objects, r.shown(object))
		}
		return nil
	})
	return objects
}

func wireFields(event watch.Event) report.Fields {
	fields := report.Fields{"type": event.Type}
	if status, ok := event.Object.(*metav1.Status); ok {
		fields["code"], fields["reason"], fields["message"] = status.Code, status.Reason, status.Message
	} else if object, err := meta.Accessor(event.Object); err == nil {
		fields["object"] = observe(object)
		fields["initialEventsEnd"] = object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
	}
	return fields
}

func (r *informerRun) handlers() cache.ResourceEventHandlerDetailedFuncs {
	tell := func(event string, obj any) {
		if object, err := meta.Accessor(obj); err == nil {
			r.counts.add(event)
			fields := report.Fields{"object": r.shown(object)}
			if r.arrivals != nil {
				fields["received"] = report.Time(r.arrivals.Last())
			}
			r.report.Event(event, fields)
		}
	}
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    func(obj any, _ bool) { tell("added", obj) },
		UpdateFunc: func(_, after any) { tell("updated", after) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				tell("missed-delete", unknown.Obj)
			} else {
				tell("deleted", obj)
			}
		},
	}
}

func (r *informerRun) watchError(ctx context.Context, reflector *cache.Reflector, err error) {
	r.counts.add("watchErrors")
	fields := report.Fields{"error": err.Error()}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		fields["code"], fields["reason"] = status.Status().Code, status.Status().Reason
	}
	r.report.Event("watch-error", fields)
	cache.DefaultWatchErrorHandler(ctx, reflector, err)
}

func (r *informerRun) printStore(store cache.Store) {
	objects := []observed{}
	for _, obj := range store.List() {
		if object, err := meta.Accessor(obj); err == nil {
			objects = append(objects, r.shown(object))
		}
	}
	slices.SortFunc(objects, func(a, b observed) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	fields := r.summary()
	fields["objects"] = objects
	r.report.Event("store", fields)
}

func (r *informerRun) summary() report.Fields {
	fields := report.Fields{}
	for _, name := range []string{"lists", "watches", "watchLists", "watchErrors", "added", "updated", "deleted", "missed-delete"} {
		fields["count_"+strings.ReplaceAll(name, "-", "_")] = r.counts.of(name)
	}
	return fields
}

func observe(object metav1.Object) observed {
	return observed{
		UID:       string(object.GetUID()),
		Version:   object.GetResourceVersion(),
		Namespace: object.GetNamespace(),
		Name:      object.GetName(),
		Labels:    object.GetLabels(),
	}
}

// shown is observe, with what the object holds if that was asked for.
func (r *informerRun) shown(object metav1.Object) observed {
	shown := observe(object)
	if !r.content {
		return shown
	}
	text, err := json.Marshal(object)
	if err != nil {
		r.report.Event("error", report.Fields{"error": err.Error()})
		return shown
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		r.report.Event("error", report.Fields{"error": err.Error()})
		return shown
	}
	// Not every client leaves the type where it was.
	delete(fields, "kind")
	delete(fields, "apiVersion")
	if shown.Data = fields["data"]; shown.Data == nil {
		shown.Data = fields["spec"]
	}
	// Marshalled again, the keys are in order.
	if text, err = json.Marshal(fields); err == nil {
		sum := sha256.Sum256(text)
		shown.Digest = hex.EncodeToString(sum[:8])
	}
	return shown
}
