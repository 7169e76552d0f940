package load

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// webhook allows every second review, or refuses all, and keeps what it was asked.
type webhook struct {
	refuses bool
	mu      sync.Mutex
	asked   []admissionv1.AdmissionReview
}

func (h *webhook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.ProtoMajor != 1 || r.URL.Path != "/validate" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = append(h.asked, review)
	if h.refuses {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintf(w, `{"response":{"uid":%q,"allowed":%t}}`, review.Request.UID, len(h.asked)%2 == 1)
}

func serve(t *testing.T, handler http.Handler) *rest.Config {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	config := rest.Config{Host: server.URL}
	config.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return &config
}

func TestReviewsAreThoseOfTheAPIServerByTurns(t *testing.T) {
	for _, mode := range []string{"review", "paced"} {
		hook := &webhook{}
		config := serve(t, hook)
		plan := Plan{workers: 1, count: 4, rate: 1000, seconds: 0.004, bytes: 700, reviews: reviews{teams: "blue,green"}}
		run := map[string]func() (any, error){
			"review": func() (any, error) { fields, err := plan.review(t.Context(), config); return fields["errors"], err },
			"paced":  func() (any, error) { fields, err := plan.paced(t.Context(), config); return fields["errors"], err },
		}[mode]
		if failed, err := run(); err != nil || failed != 2 || len(hook.asked) != 4 {
			t.Fatalf("%s: %v failed of %d, %v", mode, failed, len(hook.asked), err)
		}
		teams := map[string]int{}
		for _, review := range hook.asked {
			for _, raw := range [][]byte{review.Request.Object.Raw, review.Request.OldObject.Raw} {
				var object corev1.ConfigMap
				if err := json.Unmarshal(raw, &object); err != nil || len(object.Data["settings"]) != 700 {
					t.Fatal(err, object)
				}
				teams[object.Labels["team"]]++
			}
		}
		if teams["blue"] != 4 || teams["green"] != 4 || hook.asked[0].Request.Operation != "UPDATE" {
			t.Errorf("%s: %v", mode, teams)
		}
	}
}

func TestARefusalIsAFailureUnlessItMayBe(t *testing.T) {
	config := serve(t, &webhook{refuses: true})
	for _, may := range []bool{false, true} {
		plan := Plan{workers: 2, count: 4, reviews: reviews{teams: "blue", creates: true, escapes: 3, mayRefuse: may}}
		fields, err := plan.review(t.Context(), config)
		if err != nil || (fields["errors"] == 0) != may || (fields["refused"] == int64(4)) != may {
			t.Errorf("%v, %v", fields, err)
		}
	}
}

func TestALargeCreationHasNoStoredObject(t *testing.T) {
	plan := Plan{bytes: 10, reviews: reviews{creates: true, escapes: 3}}
	pieces := plan.reviewBody("blue")("u-1")
	body := string(pieces[0]) + string(pieces[1]) + string(pieces[2])
	if !json.Valid([]byte(body)) || !strings.Contains(body, `\u003c\u003c\u003c"`) || !strings.Contains(body, `"oldObject":null`) ||
		!strings.Contains(body, `"uid":"u-1"`) || !strings.Contains(body, `"CreateOptions"`) {
		t.Error(body)
	}
}
