// Package record writes down every object version that the operator reads or writes, one JSON line each.
package record

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
)

// Direction tells whether a version came from the API server or went there.
type Direction string

const (
	// Read is a version that entered an informer.
	Read Direction = "read"
	// Write is a version that the API server made of a write of ours.
	Write Direction = "write"
)

// Line is one record. Its first field tells it from a log line.
type Line struct {
	Record Direction `json:"record"`
	// GVK is "group/version, Kind=kind"; the core group is empty.
	GVK       string            `json:"gvk"`
	Namespace string            `json:"ns"`
	Name      string            `json:"name"`
	UID       string            `json:"uid"`
	Version   string            `json:"rv"`
	Labels    map[string]string `json:"labels"`
	Pod       string            `json:"pod"`
	// Event is add, initial (an add of the first list), update, relist (the version known already, once more),
	// delete or missed-delete (Version is then the last known) of a read, and the verb of a write.
	Event string    `json:"event"`
	Time  time.Time `json:"time"`
}

// Recorder appends lines to one writer; it may be used by many goroutines.
type Recorder struct {
	scheme *runtime.Scheme
	pod    string
	now    func() time.Time

	mu  sync.Mutex
	out io.Writer
	err error
}

// New returns a recorder that signs with the name of the pod and learns kinds from the scheme.
func New(out io.Writer, scheme *runtime.Scheme, pod string) *Recorder {
	return &Recorder{scheme: scheme, pod: pod, now: time.Now, out: out}
}

// Informer returns the handlers that record what an informer of obj's kind reads.
func (r *Recorder) Informer(obj client.Object) (toolscache.ResourceEventHandlerDetailedFuncs, error) {
	gvk, err := apiutil.GVKForObject(obj, r.scheme)
	if err != nil {
		return toolscache.ResourceEventHandlerDetailedFuncs{}, fmt.Errorf("record: %w", err)
	}
	read := func(obj any, event string) {
		if object, ok := obj.(client.Object); ok {
			r.append(Read, gvk, object, event)
		}
	}
	return toolscache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, initial bool) {
			if initial {
				read(obj, "initial")
			} else {
				read(obj, "add")
			}
		},
		UpdateFunc: func(before, after any) { read(after, updateEvent(before, after)) },
		DeleteFunc: func(obj any) {
			if unknown, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				read(unknown.Obj, "missed-delete")
			} else {
				read(obj, "delete")
			}
		},
	}, nil
}

// Wrote records a version that the API server answered a write of ours with.
func (r *Recorder) Wrote(gvk schema.GroupVersionKind, obj client.Object, verb string) {
	r.append(Write, gvk, obj, verb)
}

// Err is the first failure to write, after which nothing more is recorded.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

func (r *Recorder) append(record Direction, gvk schema.GroupVersionKind, obj client.Object, event string) {
	line, err := json.Marshal(Line{
		Record:    record,
		GVK:       gvk.String(),
		Namespace: obj.GetNamespace(),
		Name:      obj.GetName(),
		UID:       string(obj.GetUID()),
		Version:   obj.GetResourceVersion(),
		Labels:    obj.GetLabels(),
		Pod:       r.pod,
		Event:     event,
		Time:      r.now().UTC(),
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err != nil {
		return
	}
	if err == nil {
		// One call a line, so that lines of several writers to the same pipe do not mix.
		_, err = r.out.Write(append(line, '\n'))
	}
	r.err = err
}

func updateEvent(before, after any) string {
	old, ok := before.(client.Object)
	if !ok {
		return "update"
	}
	if current, ok := after.(client.Object); ok && old.GetResourceVersion() == current.GetResourceVersion() {
		return "relist"
	}
	return "update"
}
