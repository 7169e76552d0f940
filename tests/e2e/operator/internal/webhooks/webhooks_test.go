package webhooks

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

type synced struct{ client.Reader }

func (synced) WaitForCacheSync(context.Context) bool { return true }

// serve has pod-0 answer, which looks references up in these objects.
func serve(t *testing.T, objects ...client.Object) *httptest.Server {
	t.Helper()
	held := fake.NewClientBuilder().WithObjects(objects...).Build()
	server := webhook.NewServer(webhook.Options{})
	hooks := Webhooks{Pod: "pod-0", References: synced{held}}
	hooks.Register(server)
	running := httptest.NewServer(server.WebhookMux())
	t.Cleanup(running.Close)
	return running
}

func post(t *testing.T, server *httptest.Server, path string, in, out any) {
	t.Helper()
	body, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.Post(server.URL+path, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("%s answered %s", path, answer.Status)
	}
	if err := json.NewDecoder(answer.Body).Decode(out); err != nil {
		t.Fatal(err)
	}
}

func configMap(uid types.UID, needs string) runtime.RawExtension {
	object := corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "a", UID: uid},
	}
	if needs != "" {
		object.Annotations = map[string]string{Needs: needs}
	}
	return runtime.RawExtension{Object: &object}
}

func review(t *testing.T, server *httptest.Server, path string, request admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	t.Helper()
	request.UID, request.Namespace = "r1", "demo"
	in := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request:  &request,
	}
	var out admissionv1.AdmissionReview
	post(t, server, path, in, &out)
	if out.Response == nil || out.Response.UID != "r1" {
		t.Fatalf("response %+v", out.Response)
	}
	return out.Response
}

func TestEveryAnswerNamesItsPod(t *testing.T) {
	server := serve(t)
	for _, path := range []string{"/mutate", "/validate"} {
		for name, c := range map[string]struct {
			request admissionv1.AdmissionRequest
			key     string
		}{
			"create":              {admissionv1.AdmissionRequest{Operation: admissionv1.Create, Name: "a", Object: configMap("", "")}, "pod"},
			"create, no name":     {admissionv1.AdmissionRequest{Operation: admissionv1.Create, Object: configMap("", "")}, "pod"},
			"update":              {admissionv1.AdmissionRequest{Operation: admissionv1.Update, Name: "a", Object: configMap("u1", ""), OldObject: configMap("u1", "")}, "pod"},
			"delete":              {admissionv1.AdmissionRequest{Operation: admissionv1.Delete, Name: "a", OldObject: configMap("u1", "")}, "pod"},
			"deletecollection":    {admissionv1.AdmissionRequest{Operation: admissionv1.Delete, OldObject: configMap("u1", "")}, "pod.u1"},
			"connect":             {admissionv1.AdmissionRequest{Operation: admissionv1.Connect, Name: "a", SubResource: "exec"}, "pod"},
			"another subresource": {admissionv1.AdmissionRequest{Operation: admissionv1.Create, Name: "a", SubResource: "eviction", Object: configMap("", "")}, "pod"},
		} {
			answer := review(t, server, path, c.request)
			if !answer.Allowed || len(answer.AuditAnnotations) != 1 || answer.AuditAnnotations[c.key] != "pod-0" {
				t.Errorf("%s of a %s: %+v", path, name, answer)
			}
			isCreate := path == "/mutate" && c.request.Operation == admissionv1.Create && c.request.SubResource == ""
			if (len(answer.Patch) > 0) != isCreate {
				t.Errorf("%s of a %s patches %s", path, name, answer.Patch)
			}
			if isCreate && !strings.Contains(string(answer.Patch), "pod-0") {
				t.Errorf("%s of a %s patches %s", path, name, answer.Patch)
			}
		}
	}
}

func TestNeedIsLookedUp(t *testing.T) {
	held := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "demo", Name: "held"}}
	elsewhere := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "elsewhere"}}
	server := serve(t, held, elsewhere)
	for needs, allowed := range map[string]bool{"": true, "held": true, "absent": false, "elsewhere": false} {
		for _, operation := range []admissionv1.Operation{admissionv1.Create, admissionv1.Update} {
			request := admissionv1.AdmissionRequest{Operation: operation, Name: "a", Object: configMap("", needs)}
			answer := review(t, server, "/validate", request)
			if answer.Allowed != allowed || answer.AuditAnnotations["pod"] != "pod-0" {
				t.Errorf("%s of what needs %q: %+v", operation, needs, answer)
			}
			if !allowed && !strings.Contains(answer.Result.Message, "demo/"+needs) {
				t.Errorf("%q is refused by %q", needs, answer.Result.Message)
			}
		}
	}
}

func TestConversionChangesTheVersionAlone(t *testing.T) {
	server := serve(t)
	object := `{"apiVersion":"demo.example.com/v1alpha1","kind":"Gadget","metadata":{"name":"a"},"spec":{"size":3}}`
	in := apiextensionsv1.ConversionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "ConversionReview"},
		Request: &apiextensionsv1.ConversionRequest{
			UID:               "r1",
			DesiredAPIVersion: "demo.example.com/v1beta1",
			Objects:           []runtime.RawExtension{{Raw: []byte(object)}, {Raw: []byte(object)}},
		},
	}
	var out apiextensionsv1.ConversionReview
	post(t, server, "/convert", in, &out)
	if out.Response.UID != "r1" || out.Response.Result.Status != metav1.StatusSuccess || len(out.Response.ConvertedObjects) != 2 {
		t.Fatalf("%+v", out.Response)
	}
	want := `{"apiVersion":"demo.example.com/v1beta1","kind":"Gadget",` +
		`"metadata":{"annotations":{"demo.example.com/converted-by":"pod-0"},"name":"a"},"spec":{"size":3}}`
	for _, got := range out.Response.ConvertedObjects {
		if strings.TrimSpace(string(got.Raw)) != want {
			t.Errorf("%s", got.Raw)
		}
	}
}

func TestHealthIsOnTheSamePort(t *testing.T) {
	answer, err := http.Get(serve(t).URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || string(text) != "ok" {
		t.Errorf("%q, %v", text, err)
	}
}

type started struct {
	webhook.Server
	done chan struct{}
}

func (s started) Start(context.Context) error {
	close(s.done)
	return nil
}

func TestLateServerWaitsForItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "open")
	ended, end := context.WithCancel(t.Context())
	end()
	never := started{done: make(chan struct{})}
	if err := (Late{Server: never, File: file}).Start(ended); err != nil {
		t.Error(err)
	}
	select {
	case <-never.done:
		t.Error("it listens without its file")
	default:
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	server := started{done: make(chan struct{})}
	if err := (Late{Server: server, File: file}).Start(t.Context()); err != nil {
		t.Error(err)
	}
	<-server.done
}
