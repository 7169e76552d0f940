package resource

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestParseGVR(t *testing.T) {
	for text, want := range map[string]schema.GroupVersionResource{
		"v1/configmaps":                     {Version: "v1", Resource: "configmaps"},
		"/v1/configmaps":                    {Version: "v1", Resource: "configmaps"},
		"apps/v1/deployments":               {Group: "apps", Version: "v1", Resource: "deployments"},
		"demo.example.com/v1alpha1/widgets": {Group: "demo.example.com", Version: "v1alpha1", Resource: "widgets"},
	} {
		if got, err := ParseGVR(text); err != nil || got != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "configmaps", "v1/", "/", "a//b", "a/b/c/d"} {
		if got, err := ParseGVR(text); err == nil {
			t.Errorf("%q passed as %v", text, got)
		}
	}
}

func TestKnownKind(t *testing.T) {
	for text, want := range map[string]string{
		"v1/configmaps": "ConfigMap", "v1/endpoints": "Endpoints", "networking.k8s.io/v1/ingresses": "Ingress",
		"coordination.k8s.io/v1/leases": "Lease", "demo.example.com/v1alpha1/widgets": "",
	} {
		gvr, err := ParseGVR(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, known := knownKind(gvr); got != want || known != (want != "") {
			t.Errorf("%s: %q, %v", text, got, known)
		}
	}
}
