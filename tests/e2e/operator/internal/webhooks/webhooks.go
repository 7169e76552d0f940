// Package webhooks serves the operator's webhooks: mutating, validating and conversion.
//
// Every answer says which pod gave it, so that the API server's audit log does too.
package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	// CreatedBy is the annotation by which the mutating webhook names its pod in a new object.
	CreatedBy = "demo.example.com/created-by"
	// ConvertedBy is the annotation by which the conversion webhook names its pod.
	ConvertedBy = "demo.example.com/converted-by"
	// Needs is the annotation that names a ConfigMap of the same namespace that an object refers to.
	Needs = "demo.example.com/needs"

	// syncLimit is how long a review waits for the first list of an informer.
	syncLimit = 5 * time.Second
)

// Cache is what the operator's informers hold.
type Cache interface {
	client.Reader
	WaitForCacheSync(ctx context.Context) bool
}

// Webhooks answers reviews in the name of a pod.
type Webhooks struct {
	Pod string
	// References is where validation looks up what an object needs; nil turns that off.
	References Cache
}

// Register has the server serve /mutate, /validate, /convert, and /healthz, which says ok.
func (w *Webhooks) Register(server webhook.Server) {
	server.Register("/mutate", &admission.Webhook{Handler: admission.HandlerFunc(w.mutate)})
	server.Register("/validate", &admission.Webhook{Handler: admission.HandlerFunc(w.validate)})
	server.Register("/convert", http.HandlerFunc(w.convert))
	server.Register("/healthz", http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(out, "ok")
	}))
}

// mutate notes the pod in new objects. A subresource has no annotations of its own.
func (w *Webhooks) mutate(_ context.Context, req admission.Request) admission.Response {
	if req.Operation != admissionv1.Create || req.SubResource != "" {
		return w.signed(req, admission.Allowed(""))
	}
	var object unstructured.Unstructured
	if err := object.UnmarshalJSON(req.Object.Raw); err != nil {
		return w.signed(req, admission.Errored(http.StatusBadRequest, err))
	}
	annotate(&object, CreatedBy, w.Pod)
	current, err := object.MarshalJSON()
	if err != nil {
		return w.signed(req, admission.Errored(http.StatusInternalServerError, err))
	}
	return w.signed(req, admission.PatchResponseFromRaw(req.Object.Raw, current))
}

// validate denies objects that need a ConfigMap which the informer does not hold.
func (w *Webhooks) validate(ctx context.Context, req admission.Request) admission.Response {
	if w.References == nil || len(req.Object.Raw) == 0 || req.SubResource != "" {
		return w.signed(req, admission.Allowed(""))
	}
	var object metav1.PartialObjectMetadata
	if err := json.Unmarshal(req.Object.Raw, &object); err != nil {
		return w.signed(req, admission.Errored(http.StatusBadRequest, err))
	}
	needed := object.Annotations[Needs]
	if needed == "" {
		return w.signed(req, admission.Allowed(""))
	}
	return w.signed(req, w.lookUp(ctx, client.ObjectKey{Namespace: req.Namespace, Name: needed}))
}

func (w *Webhooks) lookUp(ctx context.Context, key client.ObjectKey) admission.Response {
	ctx, cancel := context.WithTimeout(ctx, syncLimit)
	defer cancel()
	if !w.References.WaitForCacheSync(ctx) {
		return admission.Errored(http.StatusServiceUnavailable, fmt.Errorf("%s has no ConfigMaps yet", w.Pod))
	}
	err := w.References.Get(ctx, key, &corev1.ConfigMap{})
	switch {
	case apierrors.IsNotFound(err):
		return admission.Denied(fmt.Sprintf("it needs ConfigMap %s, which %s does not know", key, w.Pod))
	case err != nil:
		return admission.Errored(http.StatusInternalServerError, err)
	default:
		return admission.Allowed("")
	}
}

// signed names the pod under the key pod. The reviews of one deletecollection share an audit entry:
// they have no name, and each has a key of its own, pod.UID.
func (w *Webhooks) signed(req admission.Request, response admission.Response) admission.Response {
	key := "pod"
	if req.Operation == admissionv1.Delete && req.Name == "" {
		var object metav1.PartialObjectMetadata
		if err := json.Unmarshal(req.OldObject.Raw, &object); err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		key += "." + string(object.UID)
	}
	response.AuditAnnotations = map[string]string{key: w.Pod}
	return response
}

// convert gives objects another version: nothing else differs.
func (w *Webhooks) convert(out http.ResponseWriter, in *http.Request) {
	var review apiextensionsv1.ConversionReview
	if err := json.NewDecoder(in.Body).Decode(&review); err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	if review.Request == nil {
		http.Error(out, "a conversion review has a request", http.StatusBadRequest)
		return
	}
	review.Response = w.converted(review.Request)
	review.Request = nil
	out.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(out).Encode(review); err != nil {
		// The client has gone: nobody is left to tell.
		return
	}
}

func (w *Webhooks) converted(request *apiextensionsv1.ConversionRequest) *apiextensionsv1.ConversionResponse {
	response := apiextensionsv1.ConversionResponse{UID: request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range request.Objects {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
			response.ConvertedObjects = nil
			break
		}
		object.SetAPIVersion(request.DesiredAPIVersion)
		annotate(&object, ConvertedBy, w.Pod)
		response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: &object})
	}
	return &response
}

func annotate(object *unstructured.Unstructured, key, value string) {
	annotations := object.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	object.SetAnnotations(annotations)
}
