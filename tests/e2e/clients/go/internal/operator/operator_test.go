package operator

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func ask(t *testing.T, handler http.Handler, method, path, body string) (int, map[string]any) {
	t.Helper()
	answer := httptest.NewRecorder()
	handler.ServeHTTP(answer, httptest.NewRequest(method, path, strings.NewReader(body)))
	fields := map[string]any{}
	if answer.Code == http.StatusOK {
		if err := json.Unmarshal(answer.Body.Bytes(), &fields); err != nil {
			t.Fatal(err)
		}
	}
	return answer.Code, fields
}

func TestReviewsAreAllowedByTheirUID(t *testing.T) {
	handler := new(Operator).handler()
	code, answer := ask(t, handler, "POST", "/validate", `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u-1","object":{"a":1}}}`)
	response, _ := answer["response"].(map[string]any)
	if code != http.StatusOK || answer["kind"] != "AdmissionReview" || response["uid"] != "u-1" || response["allowed"] != true {
		t.Errorf("%d %v", code, answer)
	}
	for _, body := range []string{"", "{}", "no"} {
		for _, path := range []string{"/validate", "/convert"} {
			if code, _ := ask(t, handler, "POST", path, body); code != http.StatusBadRequest {
				t.Errorf("%s %q: %d", path, body, code)
			}
		}
	}
}

func TestObjectsAreConvertedAndCountedOnce(t *testing.T) {
	handler := new(Operator).handler()
	const body = `{"kind":"ConversionReview","apiVersion":"apiextensions.k8s.io/v1","request":{"uid":"u-1","desiredAPIVersion":"g/v2",
		"objects":[{"kind":"K","apiVersion":"g/v1","spec":{"a":1}}]}}`
	for range 2 {
		code, answer := ask(t, handler, "POST", "/convert", body)
		response, _ := answer["response"].(map[string]any)
		objects, _ := response["convertedObjects"].([]any)
		if code != http.StatusOK || response["uid"] != "u-1" || len(objects) != 1 {
			t.Fatalf("%d %v", code, answer)
		}
		if object := objects[0].(map[string]any); object["apiVersion"] != "g/v2" || object["spec"] == nil {
			t.Errorf("%v", object)
		}
	}
	_, first := ask(t, handler, "GET", "/conversions?of=1", "")
	_, both := ask(t, handler, "GET", "/conversions?of=2", "")
	if first["count"] != 2.0 || both["count"] != 2.0 || first["took_us"].(float64) > both["took_us"].(float64) {
		t.Errorf("%v, %v", first, both)
	}
	if _, more := ask(t, handler, "GET", "/conversions?of=3", ""); more["took_us"] != nil {
		t.Errorf("%v", more)
	}
	handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("DELETE", "/conversions", nil))
	if _, seen := ask(t, handler, "GET", "/conversions?of=1", ""); seen["count"] != 0.0 || seen["took_us"] != nil {
		t.Errorf("%v", seen)
	}
}
