// Package operator serves the webhooks of a controller, as controller-runtime does, with hardly any work behind them.
package operator

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"e2e-clients/internal/report"
)

// Operator is where to serve and what it has seen.
type Operator struct {
	listen string
	cert   string
	key    string

	mu sync.Mutex
	// When the first conversion since the last reset began, and how long after that each ended.
	began time.Time
	ends  []time.Duration
}

// conversion is a ConversionReview of apiextensions.k8s.io.
type conversion struct {
	metav1.TypeMeta `json:",inline"`
	Request         *conversionRequest  `json:"request,omitempty"`
	Response        *conversionResponse `json:"response,omitempty"`
}

type conversionRequest struct {
	UID     types.UID              `json:"uid"`
	Desired string                 `json:"desiredAPIVersion"`
	Objects []runtime.RawExtension `json:"objects"`
}

type conversionResponse struct {
	UID       types.UID              `json:"uid"`
	Converted []runtime.RawExtension `json:"convertedObjects"`
	Result    metav1.Status          `json:"result"`
}

// Bind declares the flags.
func (o *Operator) Bind(fs *flag.FlagSet) {
	fs.StringVar(&o.listen, "listen", "127.0.0.1:9443", "address to serve at")
	fs.StringVar(&o.cert, "cert", "", "file of the certificate")
	fs.StringVar(&o.key, "key", "", "file of its key")
}

// Run serves until the context ends; it prints one open event.
func (o *Operator) Run(ctx context.Context, out *report.Reporter) error {
	listener, err := net.Listen("tcp", o.listen)
	if err != nil {
		return err
	}
	server := http.Server{Handler: o.handler(), IdleTimeout: 90 * time.Second}
	context.AfterFunc(ctx, func() { _ = server.Close() })
	out.Event("open", report.Fields{"address": listener.Addr().String()})
	if err := server.ServeTLS(listener, o.cert, o.key); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (o *Operator) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /validate", validate)
	mux.HandleFunc("POST /convert", o.convert)
	mux.HandleFunc("GET /conversions", o.conversions)
	mux.HandleFunc("DELETE /conversions", func(http.ResponseWriter, *http.Request) { o.reset() })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	return mux
}

// validate allows everything.
func validate(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("no admission review: %v", err), http.StatusBadRequest)
		return
	}
	reply(w, admissionv1.AdmissionReview{
		TypeMeta: review.TypeMeta,
		Response: &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true},
	})
}

// convert gives objects another version: nothing else differs.
func (o *Operator) convert(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	var review conversion
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("no conversion review: %v", err), http.StatusBadRequest)
		return
	}
	response := conversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
	for _, raw := range review.Request.Objects {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		object.SetAPIVersion(review.Request.Desired)
		response.Converted = append(response.Converted, runtime.RawExtension{Object: &object})
	}
	reply(w, conversion{TypeMeta: review.TypeMeta, Response: &response})
	o.count(began)
}

func (o *Operator) count(began time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ends) == 0 {
		o.began = began
	}
	o.ends = append(o.ends, time.Since(o.began))
}

// conversions tells how many there were since the last reset, and how long the first ?of= of them took.
func (o *Operator) conversions(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	answer := map[string]any{"count": len(o.ends)}
	if of, err := strconv.Atoi(r.URL.Query().Get("of")); err == nil && 0 < of && of <= len(o.ends) {
		answer["took_us"] = o.ends[of-1].Microseconds()
	}
	reply(w, answer)
}

func (o *Operator) reset() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ends = nil
}

func reply(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	// Who asked went away: there is nobody left to tell.
	_ = json.NewEncoder(w).Encode(answer)
}
