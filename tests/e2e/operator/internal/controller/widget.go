// Package controller reconciles Widgets.
package controller

import (
	"context"
	"fmt"
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	demo "demo.example.com/operator/api/v1alpha1"
	"demo.example.com/operator/internal/record"
)

const (
	fieldOwner = client.FieldOwner("demo-operator")
	sizeKey    = "size"
)

var (
	widgetKind    = demo.GroupVersion.WithKind("Widget")
	configMapKind = corev1.SchemeGroupVersion.WithKind("ConfigMap")
)

// Widgets keeps for every Widget a ConfigMap NAME-data with the Widget's labels and size, and says so in its status.
type Widgets struct {
	client.Client
	Records *record.Recorder
	// Pod is the name that goes to status.handledBy.
	Pod string
}

// SetupWithManager has the manager run the reconciler, and records what the informers it uses read.
func (r *Widgets) SetupWithManager(ctx context.Context, mgr ctrl.Manager) error {
	for _, obj := range []client.Object{&demo.Widget{}, &corev1.ConfigMap{}} {
		handlers, err := r.Records.Informer(obj)
		if err != nil {
			return err
		}
		informer, err := mgr.GetCache().GetInformer(ctx, obj)
		if err != nil {
			return fmt.Errorf("informer of %T: %w", obj, err)
		}
		if _, err := informer.AddEventHandler(handlers); err != nil {
			return fmt.Errorf("informer of %T: %w", obj, err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).For(&demo.Widget{}).Owns(&corev1.ConfigMap{}).Complete(r)
}

// Reconcile brings one Widget's ConfigMap and status to what its spec says.
func (r *Widgets) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var widget demo.Widget
	if err := r.Get(ctx, req.NamespacedName, &widget); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !widget.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	if err := r.applyConfigMap(ctx, &widget); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{}, r.updateStatus(ctx, &widget)
}

func (r *Widgets) applyConfigMap(ctx context.Context, widget *demo.Widget) error {
	name := types.NamespacedName{Namespace: widget.Namespace, Name: widget.Name + "-data"}
	var current corev1.ConfigMap
	err := r.Get(ctx, name, &current)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get ConfigMap %s: %w", name, err)
	}
	if err == nil && upToDate(&current, widget, r.Scheme()) {
		return nil
	}
	desired := configMapFor(widget, name.Name)
	if err := r.Apply(ctx, desired, fieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply ConfigMap %s: %w", name, err)
	}
	r.Records.Wrote(configMapKind, applied(desired), "apply")
	return nil
}

func (r *Widgets) updateStatus(ctx context.Context, widget *demo.Widget) error {
	status := demo.WidgetStatus{
		ObservedGeneration: widget.Generation,
		HandledBy:          r.Pod,
		Size:               widget.Spec.Size,
	}
	if widget.Status == status {
		return nil
	}
	widget.Status = status
	err := r.Status().Update(ctx, widget)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		// The cache is behind; the event that brings it up to date brings the Widget here again.
		return nil
	}
	if err != nil {
		return fmt.Errorf("update status: %w", err)
	}
	r.Records.Wrote(widgetKind, widget, "update-status")
	return nil
}

func configMapFor(widget *demo.Widget, name string) *corev1ac.ConfigMapApplyConfiguration {
	return corev1ac.ConfigMap(name, widget.Namespace).
		WithLabels(widget.Labels).
		WithData(data(widget)).
		WithOwnerReferences(metav1ac.OwnerReference().
			WithAPIVersion(demo.GroupVersion.String()).
			WithKind(widgetKind.Kind).
			WithName(widget.Name).
			WithUID(widget.UID).
			WithController(true).
			WithBlockOwnerDeletion(true))
}

func upToDate(current *corev1.ConfigMap, widget *demo.Widget, scheme *runtime.Scheme) bool {
	owned, err := controllerutil.HasOwnerReference(current.OwnerReferences, widget, scheme)
	return err == nil && owned && metav1.IsControlledBy(current, widget) &&
		maps.Equal(current.Labels, widget.Labels) && maps.Equal(current.Data, data(widget))
}

func data(widget *demo.Widget) map[string]string {
	return map[string]string{sizeKey: strconv.Itoa(int(widget.Spec.Size))}
}

// applied is the metadata that the API server answered an apply with.
func applied(configuration *corev1ac.ConfigMapApplyConfiguration) *corev1.ConfigMap {
	var out corev1.ConfigMap
	out.Name, out.Namespace, out.Labels = *configuration.Name, *configuration.Namespace, configuration.Labels
	if configuration.UID != nil {
		out.UID = *configuration.UID
	}
	if configuration.ResourceVersion != nil {
		out.ResourceVersion = *configuration.ResourceVersion
	}
	return &out
}
