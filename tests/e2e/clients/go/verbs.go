package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"

	"e2e-clients/internal/report"
)

// runLabel marks the objects of one run, so that lists and deletecollection touch no others.
const runLabel = "e2e-verbs"

type verbRun struct {
	report *report.Reporter
	client typedcorev1.ConfigMapInterface
	code   atomic.Int64
	prefix string
	labels labels.Set
	failed int
}

// verbs prints one verb event per call, in a fixed order, whatever the calls before it gave: verb, code (of HTTP; 0: no
// answer), reason and error when it failed, rv, items.
func verbs(p *program, fs *flag.FlagSet) func(context.Context) error {
	run := &verbRun{report: p.report}
	fs.StringVar(&run.prefix, "name", "verbs", "beginning of the names of the ConfigMaps, and value of their label "+runLabel)
	own := fs.String("labels", "", "labels for the ConfigMaps, k=v,k=v")
	return func(ctx context.Context) error {
		var err error
		if run.labels, err = labels.ConvertSelectorToLabelsMap(*own); err != nil {
			return fmt.Errorf("--labels %q: want k=v,k=v: %w", *own, err)
		}
		run.labels = labels.Merge(run.labels, labels.Set{runLabel: run.prefix})
		config, err := p.typedConfig()
		if err != nil {
			return err
		}
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(request *http.Request) (*http.Response, error) {
				answer, err := next.RoundTrip(request)
				if answer != nil {
					run.code.Store(int64(answer.StatusCode))
				}
				return answer, err
			})
		})
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		run.client = client.CoreV1().ConfigMaps(p.namespace)
		run.objects(ctx)
		run.collections(ctx)
		if run.failed > 0 {
			return fmt.Errorf("%d verbs failed", run.failed)
		}
		return nil
	}
}

func (r *verbRun) objects(ctx context.Context) {
	name := r.prefix + "-0"
	r.object("create", func() (*corev1.ConfigMap, error) {
		return r.client.Create(ctx, r.configMap(0), metav1.CreateOptions{})
	})
	r.object("get", func() (*corev1.ConfigMap, error) { return r.client.Get(ctx, name, metav1.GetOptions{}) })
	r.object("update", func() (*corev1.ConfigMap, error) {
		changed := r.configMap(0)
		changed.Data["update"] = "1"
		return r.client.Update(ctx, changed, metav1.UpdateOptions{})
	})
	r.patch(ctx, "patch-json", types.JSONPatchType, name, `[{"op":"add","path":"/data/json","value":"1"}]`)
	r.patch(ctx, "patch-merge", types.MergePatchType, name, `{"data":{"merge":"1"}}`)
	r.patch(ctx, "patch-strategic", types.StrategicMergePatchType, name, `{"data":{"strategic":"1"}}`)
	r.patch(ctx, "patch-apply", types.ApplyPatchType, name,
		fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"apply":"1"}}`, name))
}

func (r *verbRun) collections(ctx context.Context) {
	selector := metav1.ListOptions{LabelSelector: runLabel + "=" + r.prefix}
	for i := 1; i <= 3; i++ {
		r.object("create", func() (*corev1.ConfigMap, error) {
			return r.client.Create(ctx, r.configMap(i), metav1.CreateOptions{})
		})
	}
	r.list(ctx, "list", selector)
	page := selector
	page.Limit = 3
	page.Continue = r.list(ctx, "list-page-1", page)
	r.list(ctx, "list-page-2", page)
	r.call("delete", func() (report.Fields, error) {
		return nil, r.client.Delete(ctx, r.prefix+"-3", metav1.DeleteOptions{})
	})
	r.call("deletecollection", func() (report.Fields, error) {
		return nil, r.client.DeleteCollection(ctx, metav1.DeleteOptions{}, selector)
	})
	r.list(ctx, "list-after", selector)
}

func (r *verbRun) configMap(number int) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", r.prefix, number), Labels: r.labels},
		Data:       map[string]string{"create": "1"},
	}
}

func (r *verbRun) patch(ctx context.Context, verb string, kind types.PatchType, name, body string) {
	options := metav1.PatchOptions{}
	if kind == types.ApplyPatchType {
		options.FieldManager = "e2e-verbs"
	}
	r.object(verb, func() (*corev1.ConfigMap, error) {
		return r.client.Patch(ctx, name, kind, []byte(body), options)
	})
}

func (r *verbRun) object(verb string, call func() (*corev1.ConfigMap, error)) {
	r.call(verb, func() (report.Fields, error) {
		object, err := call()
		if err != nil {
			return nil, err
		}
		return report.Fields{"object": observe(object), "data": object.Data}, nil
	})
}

// list returns the token to continue with.
func (r *verbRun) list(ctx context.Context, verb string, options metav1.ListOptions) string {
	var token string
	r.call(verb, func() (report.Fields, error) {
		list, err := r.client.List(ctx, options)
		if err != nil {
			return nil, err
		}
		token = list.Continue
		names := []string{}
		for _, item := range list.Items {
			names = append(names, item.Name)
		}
		return report.Fields{"rv": list.ResourceVersion, "items": names, "more": token != ""}, nil
	})
	return token
}

func (r *verbRun) call(verb string, call func() (report.Fields, error)) {
	r.code.Store(0)
	fields, err := call()
	if fields == nil {
		fields = report.Fields{}
	}
	fields["verb"], fields["code"] = verb, r.code.Load()
	if err != nil {
		r.failed++
		fields["error"], fields["reason"] = err.Error(), apierrors.ReasonForError(err)
	}
	r.report.Event("verb", fields)
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) {
	return f(request)
}
