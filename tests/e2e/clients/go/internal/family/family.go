// Package family is an operator that keeps a child for each parent, as many operators do: it creates what is
// missing, and deletes what lacks a parent.
package family

import (
	"context"
	"flag"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"e2e-clients/internal/report"
)

// The label of parents and children, and that of a child with its parent's name.
const (
	roleLabel   = "family.example.com/role"
	parentLabel = "family.example.com/parent"
)

// Styles: children are found by their owner or by a label, and those with generated names by their owner, as a
// ReplicaSet's pods are.
const (
	ByOwner     = "owner"
	ByLabel     = "label"
	ByGenerated = "generated"
)

// Operator keeps a Secret for each ConfigMap with the role parent.
type Operator struct {
	style  string
	client kubernetes.Interface
	report *report.Reporter

	parents  listers.ConfigMapLister
	children listers.SecretLister
	queue    workqueue.TypedRateLimitingInterface[key]

	mu sync.Mutex
	// The uids of children that it has created and not been shown yet, by parent.
	expected map[key]string
}

// key is the namespace and name of a parent.
type key struct{ namespace, name string }

// Bind declares its flags.
func (o *Operator) Bind(fs *flag.FlagSet) {
	fs.StringVar(&o.style, "style", ByOwner, "how it finds children: by owner, label, or generated names")
}

// Run works until ctx ends, and prints: ready, created, deleted, refused (with the code).
func (o *Operator) Run(ctx context.Context, config *rest.Config, report *report.Reporter) error {
	if o.style != ByOwner && o.style != ByLabel && o.style != ByGenerated {
		return fmt.Errorf("--style %q is not %s, %s or %s", o.style, ByOwner, ByLabel, ByGenerated)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	o.client, o.report, o.expected = client, report, map[key]string{}
	o.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](5*time.Millisecond, time.Second))
	defer o.queue.ShutDown()
	// One informer for both kinds would list with one selector.
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.LabelSelector = roleLabel
	}))
	o.parents = factory.Core().V1().ConfigMaps().Lister()
	o.children = factory.Core().V1().Secrets().Lister()
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().ConfigMaps().Informer(), factory.Core().V1().Secrets().Informer()} {
		if _, err := informer.AddEventHandler(o.handler()); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	o.report.Event("ready", nil)
	go func() {
		<-ctx.Done()
		o.queue.ShutDown()
	}()
	for o.next(ctx) {
	}
	return nil
}

func (o *Operator) handler() cache.ResourceEventHandler {
	enqueue := func(object any) {
		if gone, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = gone.Obj
		}
		switch it := object.(type) {
		case *corev1.ConfigMap:
			o.queue.Add(key{it.Namespace, it.Name})
		case *corev1.Secret:
			o.queue.Add(key{it.Namespace, o.parentOf(it)})
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object any) { enqueue(object) },
		DeleteFunc: enqueue,
	}
}

// parentOf is the name of a child's parent.
func (o *Operator) parentOf(child *corev1.Secret) string {
	if o.style == ByLabel {
		return child.Labels[parentLabel]
	}
	if owner := metav1.GetControllerOf(child); owner != nil {
		return owner.Name
	}
	return ""
}

func (o *Operator) next(ctx context.Context) bool {
	of, ends := o.queue.Get()
	if ends {
		return false
	}
	defer o.queue.Done(of)
	if err := o.reconcile(ctx, of); err != nil {
		o.report.Event("refused", report.Fields{"parent": of.name, "namespace": of.namespace, "code": code(err), "error": err.Error()})
		o.queue.AddRateLimited(of)
		return true
	}
	o.queue.Forget(of)
	return true
}

func code(err error) int32 {
	if status, ok := err.(apierrors.APIStatus); ok {
		return status.Status().Code
	}
	return 0
}

func (o *Operator) reconcile(ctx context.Context, of key) error {
	parent, err := o.parents.ConfigMaps(of.namespace).Get(of.name)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	children, err := o.childrenOf(of)
	if err != nil {
		return err
	}
	if parent == nil {
		for _, child := range children {
			if err := o.delete(ctx, child); err != nil {
				return err
			}
		}
		return nil
	}
	if len(children) > 0 || o.isExpected(of) {
		return nil
	}
	return o.create(ctx, of, parent)
}

func (o *Operator) childrenOf(of key) ([]*corev1.Secret, error) {
	all, err := o.children.Secrets(of.namespace).List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var children []*corev1.Secret
	for _, child := range all {
		if o.parentOf(child) == of.name {
			children = append(children, child)
			o.shown(of, string(child.UID))
		}
	}
	return children, nil
}

func (o *Operator) delete(ctx context.Context, child *corev1.Secret) error {
	err := o.client.CoreV1().Secrets(child.Namespace).Delete(ctx, child.Name, *metav1.NewPreconditionDeleteOptions(string(child.UID)))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		o.report.Event("deleted", report.Fields{"name": child.Name, "namespace": child.Namespace})
	}
	return err
}

func (o *Operator) create(ctx context.Context, of key, parent *corev1.ConfigMap) error {
	child := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: of.namespace,
		Name:      of.name,
		Labels:    map[string]string{roleLabel: "child", parentLabel: of.name},
	}}
	if o.style != ByLabel {
		child.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(parent, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	}
	if o.style == ByGenerated {
		child.Name, child.GenerateName = "", of.name+"-"
	}
	created, err := o.client.CoreV1().Secrets(of.namespace).Create(ctx, child, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	o.mu.Lock()
	o.expected[of] = string(created.UID)
	o.mu.Unlock()
	o.report.Event("created", report.Fields{"name": created.Name, "namespace": of.namespace})
	return nil
}

// isExpected tells whether a child was created that the cache does not have yet.
func (o *Operator) isExpected(of key) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	_, is := o.expected[of]
	return is
}

func (o *Operator) shown(of key, uid string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.expected[of] == uid {
		delete(o.expected, of)
	}
}
