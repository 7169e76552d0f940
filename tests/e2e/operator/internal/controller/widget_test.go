package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	demo "demo.example.com/operator/api/v1alpha1"
	"demo.example.com/operator/internal/record"
)

type bench struct {
	*testing.T
	widgets Widgets
	records bytes.Buffer
}

func newBench(t *testing.T, objects ...client.Object) *bench {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	if err := demo.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t}
	b.widgets = Widgets{
		Client:  fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).WithStatusSubresource(&demo.Widget{}).Build(),
		Records: record.New(&b.records, scheme, "pod-0"),
		Pod:     "pod-0",
	}
	return b
}

// reconcile runs one reconciliation of demo/a and returns what it recorded.
func (b *bench) reconcile() []record.Line {
	b.Helper()
	b.records.Reset()
	if _, err := b.widgets.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "demo", Name: "a"}}); err != nil {
		b.Fatal(err)
	}
	var all []record.Line
	for decoder := json.NewDecoder(&b.records); decoder.More(); {
		var line record.Line
		if err := decoder.Decode(&line); err != nil {
			b.Fatal(err)
		}
		all = append(all, line)
	}
	return all
}

func (b *bench) get(name string, obj client.Object) {
	b.Helper()
	if err := b.widgets.Get(context.Background(), client.ObjectKey{Namespace: "demo", Name: name}, obj); err != nil {
		b.Fatal(err)
	}
}

func widget() *demo.Widget {
	return &demo.Widget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "a", UID: "u1", Generation: 1, Labels: map[string]string{"team": "x"}},
		Spec:       demo.WidgetSpec{Size: 3},
	}
}

func TestWidgetGetsConfigMapAndStatus(t *testing.T) {
	b := newBench(t, widget())
	written := b.reconcile()

	var data corev1.ConfigMap
	b.get("a-data", &data)
	if data.Data["size"] != "3" || data.Labels["team"] != "x" || len(data.OwnerReferences) != 1 || data.OwnerReferences[0].UID != "u1" {
		t.Errorf("ConfigMap %+v", data)
	}
	var current demo.Widget
	b.get("a", &current)
	if want := (demo.WidgetStatus{ObservedGeneration: 1, HandledBy: "pod-0", Size: 3}); current.Status != want {
		t.Errorf("status %+v, want %+v", current.Status, want)
	}
	if len(written) != 2 || written[0].Event != "apply" || written[0].Version != data.ResourceVersion ||
		written[1].Event != "update-status" || written[1].Version != current.ResourceVersion {
		t.Errorf("records %+v", written)
	}
	if again := b.reconcile(); len(again) != 0 {
		t.Errorf("nothing changed, but it wrote %+v", again)
	}
}

func TestConfigMapFollowsTheWidget(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*demo.Widget)
		labels map[string]string
		size   string
	}{
		"labels": {func(w *demo.Widget) { w.Labels = map[string]string{"color": "red"} }, map[string]string{"color": "red"}, "3"},
		"size":   {func(w *demo.Widget) { w.Spec.Size = 4 }, map[string]string{"team": "x"}, "4"},
	} {
		b := newBench(t, widget())
		b.reconcile()
		var current demo.Widget
		b.get("a", &current)
		c.change(&current)
		if err := b.widgets.Update(context.Background(), &current); err != nil {
			t.Fatal(err)
		}
		b.reconcile()

		var data corev1.ConfigMap
		b.get("a-data", &data)
		if data.Data["size"] != c.size || !maps.Equal(data.Labels, c.labels) {
			t.Errorf("%s: ConfigMap %v %v", name, data.Labels, data.Data)
		}
	}
}

func TestOtherPodTakesOver(t *testing.T) {
	b := newBench(t, widget())
	b.reconcile()
	b.widgets.Pod = "pod-1"
	b.reconcile()
	var current demo.Widget
	b.get("a", &current)
	if current.Status.HandledBy != "pod-1" {
		t.Errorf("handled by %q", current.Status.HandledBy)
	}
}

func TestStatusAnswerDecidesTheOutcome(t *testing.T) {
	widgets := schema.GroupResource{Group: demo.GroupVersion.Group, Resource: "widgets"}
	for name, c := range map[string]struct {
		answer error
		fails  bool
	}{
		"conflict": {apierrors.NewConflict(widgets, "a", errors.New("changed")), false},
		"deleted":  {apierrors.NewNotFound(widgets, "a"), false},
		"refused":  {apierrors.NewForbidden(widgets, "a", errors.New("no")), true},
	} {
		b := newBench(t, widget())
		b.widgets.Client = interceptor.NewClient(b.widgets.Client.(client.WithWatch), interceptor.Funcs{
			SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
				return c.answer
			},
		})
		_, err := b.widgets.Reconcile(context.Background(), ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "demo", Name: "a"}})
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
		}
		if bytes.Contains(b.records.Bytes(), []byte("update-status")) {
			t.Errorf("%s: recorded as written", name)
		}
	}
}

func TestDeletedWidgetIsLeftAlone(t *testing.T) {
	gone := widget()
	now := metav1.Now()
	gone.DeletionTimestamp, gone.Finalizers = &now, []string{"example.com/wait"}
	for name, b := range map[string]*bench{"absent": newBench(t), "terminating": newBench(t, gone)} {
		if written := b.reconcile(); len(written) != 0 {
			t.Errorf("%s: wrote %+v", name, written)
		}
	}
}
