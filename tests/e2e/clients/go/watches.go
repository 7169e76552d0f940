package main

import (
	"context"
	"flag"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"e2e-clients/internal/report"
	"e2e-clients/internal/resource"
)

const probeTimeout = 10 * time.Second

type watchSet struct {
	report  *report.Reporter
	options metav1.ListOptions
	started time.Time

	mu     sync.Mutex
	counts map[int]map[watch.EventType]int
	open   int
	want   int
	wire   bool
}

// watches prints: open (all have their first event, a bookmark at the latest), ended (one watch, with the reason of its
// ERROR event), counts (at the end, and on a line of standard input unless that asks for a probe), probe, with --wire each
// event.
func watches(p *program, fs *flag.FlagSet) func(context.Context) error {
	set := &watchSet{report: p.report, counts: map[int]map[watch.EventType]int{}}
	fs.IntVar(&set.want, "count", 10, "how many watches")
	target := fs.String("resource", "v1/configmaps", "group/version/resource")
	fs.StringVar(&set.options.LabelSelector, "selector", "", "label selector")
	fs.StringVar(&set.options.FieldSelector, "field-selector", "", "field selector")
	fs.StringVar(&set.options.ResourceVersion, "from", "", "resourceVersion to resume from, without initial events")
	fs.BoolVar(&set.wire, "wire", false, "print each event")
	unread := fs.Bool("unread", false, "do not read the answers beyond their heads (built-in resources only)")
	probe := fs.String("probe", "", "ConfigMap to get by the same connection, at each line of standard input")
	return func(ctx context.Context) error {
		gvr, err := resource.ParseGVR(*target)
		if err != nil {
			return err
		}
		config, err := p.Config()
		if err != nil {
			return err
		}
		collection, err := resource.Open(config, gvr, p.namespace, p.encoding())
		if err != nil {
			return err
		}
		set.options.Watch, set.options.AllowWatchBookmarks = true, true
		if set.options.ResourceVersion == "" {
			set.options.SendInitialEvents, set.options.ResourceVersionMatch = ptr.To(true), metav1.ResourceVersionMatchNotOlderThan
		}
		client, err := resource.RESTClient(config, gvr.GroupVersion(), p.encoding())
		if err != nil {
			return err
		}
		one := func(ctx context.Context, id int) error { return set.read(ctx, id, collection) }
		if *unread {
			one = func(ctx context.Context, id int) error {
				body, err := client.Get().Namespace(p.namespace).Resource(gvr.Resource).
					VersionedParams(&set.options, scheme.ParameterCodec).Stream(ctx)
				if err != nil {
					return err
				}
				return set.leaveUnread(ctx, id, body)
			}
		}
		onLine := set.printCounts
		if *probe != "" {
			onLine = func() { set.probe(ctx, client, p.namespace, *probe) }
		}
		ctx, cancel := p.untilStdinEnds(ctx, onLine)
		defer cancel()
		set.run(ctx, one)
		return nil
	}
}

func (s *watchSet) run(ctx context.Context, one func(context.Context, int) error) {
	s.started = time.Now()
	var tasks sync.WaitGroup
	for id := range s.want {
		tasks.Go(func() {
			if err := one(ctx, id); ctx.Err() == nil {
				s.report.Event("ended", ended(id, err))
			}
		})
	}
	tasks.Wait()
	s.printCounts()
}

func (s *watchSet) read(ctx context.Context, id int, collection *resource.Collection) error {
	stream, err := collection.WatchWithContext(ctx, s.options)
	if err != nil {
		return err
	}
	defer stream.Stop()
	for event := range stream.ResultChan() {
		if ctx.Err() != nil {
			// What client-go makes of our own end was on no wire.
			return nil
		}
		s.count(id, event.Type)
		if s.wire {
			fields := wireFields(event)
			fields["watch"] = id
			s.report.Event("wire", fields)
		}
		if event.Type == watch.Error {
			return apierrors.FromObject(event.Object)
		}
	}
	return nil
}

func (s *watchSet) leaveUnread(ctx context.Context, id int, body io.Closer) error {
	defer body.Close()
	s.count(id, "HEAD")
	<-ctx.Done()
	return nil
}

// probe prints how long a get takes beside the watches; it gives up after probeTimeout.
func (s *watchSet) probe(ctx context.Context, client *rest.RESTClient, namespace, name string) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	began := time.Now()
	err := client.Get().AbsPath("/api/v1/namespaces", namespace, "configmaps", name).Do(ctx).Error()
	fields := report.Fields{"seconds": time.Since(began).Seconds()}
	if err != nil {
		fields["error"] = err.Error()
	}
	s.report.Event("probe", fields)
}

func (s *watchSet) count(id int, event watch.EventType) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[id] == nil {
		s.counts[id] = map[watch.EventType]int{}
		if s.open++; s.open == s.want {
			s.report.Event("open", report.Fields{"watches": s.want, "seconds": time.Since(s.started).Seconds()})
		}
	}
	s.counts[id][event]++
}

func (s *watchSet) printCounts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	total := map[watch.EventType]int{}
	each := make([]map[watch.EventType]int, s.want)
	for id := range each {
		each[id] = s.counts[id]
		for event, count := range s.counts[id] {
			total[event] += count
		}
	}
	s.report.Event("counts", report.Fields{"watches": each, "total": total})
}

func ended(id int, err error) report.Fields {
	fields := report.Fields{"watch": id}
	if err != nil {
		fields["error"], fields["reason"] = err.Error(), apierrors.ReasonForError(err)
	}
	return fields
}
