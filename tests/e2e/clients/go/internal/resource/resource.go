// Package resource lists and watches any resource as the usual clients of its kind do: what client-go has a type for
// by a typed client in protobuf or JSON, custom resources by the dynamic client.
package resource

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Encoding is how bodies are asked for.
type Encoding string

const (
	Protobuf Encoding = "protobuf"
	JSON     Encoding = "json"
	// Metadata is PartialObjectMetadata in protobuf.
	Metadata Encoding = "metadata"
	// Unstructured is what the dynamic client asks for.
	Unstructured Encoding = "unstructured"
)

// Configure sets what a typed client sends and accepts, as the Kubernetes components do.
func (e Encoding) Configure(config *rest.Config) {
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	if e != JSON && e != Unstructured {
		config.ContentType = runtime.ContentTypeProtobuf
		config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	}
}

// ParseGVR reads group/version/resource, or version/resource of the core group.
func ParseGVR(text string) (schema.GroupVersionResource, error) {
	parts := strings.Split(text, "/")
	if len(parts) == 2 {
		parts = append([]string{""}, parts...)
	}
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return schema.GroupVersionResource{}, fmt.Errorf("--resource %q: want group/version/resource or version/resource, such as apps/v1/deployments or v1/configmaps", text)
	}
	return schema.GroupVersionResource{Group: parts[0], Version: parts[1], Resource: parts[2]}, nil
}

// Collection is one resource, in one namespace or, when it is empty, in all.
type Collection struct {
	cache.ListWatch
	// Example is an empty object of the type that List and Watch give.
	Example runtime.Object
}

// Open returns the collection; nothing is sent yet.
func Open(config *rest.Config, gvr schema.GroupVersionResource, namespace string, encoding Encoding) (*Collection, error) {
	if encoding == Metadata {
		client, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, err
		}
		r := client.Resource(gvr).Namespace(namespace)
		return collection(&metav1.PartialObjectMetadata{}, asObject(r.List), r.Watch), nil
	}
	if kind, ok := knownKind(gvr); ok && encoding != Unstructured {
		return openTyped(config, gvr, kind, namespace, encoding)
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r := client.Resource(gvr).Namespace(namespace)
	return collection(&unstructured.Unstructured{}, asObject(r.List), r.Watch), nil
}

func openTyped(config *rest.Config, gvr schema.GroupVersionResource, kind, namespace string, encoding Encoding) (*Collection, error) {
	example, err := scheme.Scheme.New(gvr.GroupVersion().WithKind(kind))
	if err != nil {
		return nil, err
	}
	client, err := RESTClient(config, gvr.GroupVersion(), encoding)
	if err != nil {
		return nil, err
	}
	list := func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(gvr.Resource).
			VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Get()
	}
	watch := func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
		options.Watch = true
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(gvr.Resource).
			VersionedParams(&options, scheme.ParameterCodec).Watch(ctx)
	}
	return collection(example, list, watch), nil
}

// RESTClient returns what a typed client of one group and version is made of.
func RESTClient(config *rest.Config, gv schema.GroupVersion, encoding Encoding) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.GroupVersion, config.APIPath = &gv, "/apis"
	if gv.Group == "" {
		config.APIPath = "/api"
	}
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	encoding.Configure(config)
	return rest.RESTClientFor(config)
}

// knownKind is the kind that client-go's scheme has for a resource.
func knownKind(gvr schema.GroupVersionResource) (string, bool) {
	for kind := range scheme.Scheme.KnownTypes(gvr.GroupVersion()) {
		if plural, _ := meta.UnsafeGuessKindToResource(gvr.GroupVersion().WithKind(kind)); plural == gvr {
			return kind, true
		}
	}
	return "", false
}

func collection(example runtime.Object, list cache.ListWithContextFunc, watch cache.WatchFuncWithContext) *Collection {
	return &Collection{Example: example, ListWatch: cache.ListWatch{ListWithContextFunc: list, WatchFuncWithContext: watch}}
}

func asObject[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) cache.ListWithContextFunc {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}
}
