package load

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

func TestClosedLoopMakesCountCalls(t *testing.T) {
	plan := Plan{count: 100}
	var calls, together, most atomic.Int64
	all := plan.closedLoop(t.Context(), 7, func(_ context.Context, number int) error {
		calls.Add(1)
		if now := together.Add(1); now > most.Load() {
			most.Store(now)
		}
		defer together.Add(-1)
		if number == 3 || number == 99 {
			return errors.New("no")
		}
		return nil
	})
	if calls.Load() != 100 || len(all.samples) != 98 || all.errors != 2 || all.first == nil || most.Load() > 7 {
		t.Errorf("%d calls, %d samples, %d errors, %d at once", calls.Load(), len(all.samples), all.errors, most.Load())
	}
}

func TestClosedLoopEndsWithItsContextAndTime(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	plan := Plan{seconds: 3600}
	all := plan.closedLoop(ctx, 2, func(context.Context, int) error {
		cancel()
		return nil
	})
	if len(all.samples) == 0 || len(all.samples) > 2 {
		t.Errorf("%d calls", len(all.samples))
	}
	plan.seconds = 0
	if all := plan.closedLoop(t.Context(), 2, func(context.Context, int) error { return nil }); len(all.samples) != 0 {
		t.Errorf("%d calls in no time", len(all.samples))
	}
}

func TestDelaysEndAtTheLastUpdate(t *testing.T) {
	stream := watch.NewFakeWithChanSize(4, false)
	began := time.Now().Add(-time.Second)
	for number := 1; number <= 3; number++ {
		stream.Modify(&corev1.ConfigMap{Data: map[string]string{"number": strconv.Itoa(number), stampKey: "400000"}})
	}
	seen := (&Plan{}).delays(stream, began, 2)
	if len(seen.samples) != 2 || seen.errors != 0 {
		t.Fatalf("%+v", seen)
	}
	if took := seen.samples[0]; took < 600*time.Millisecond || took > 30*time.Second {
		t.Errorf("delay %v of an update sent 0.6 s ago", took)
	}

	stream = watch.NewFakeWithChanSize(2, false)
	for _, name := range []string{"another", "mine"} {
		object := corev1.ConfigMap{Data: map[string]string{"number": "1", stampKey: "0"}}
		object.Name = name
		stream.Modify(&object)
	}
	if seen := (&Plan{whole: true, name: "mine"}).delays(stream, began, 1); len(seen.samples) != 1 {
		t.Errorf("%+v", seen)
	}

	stream = watch.NewFakeWithChanSize(1, false)
	stream.Error(&metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonExpired, Code: http.StatusGone})
	if seen := (&Plan{}).delays(stream, began, 2); seen.errors != 1 || len(seen.samples) != 0 {
		t.Errorf("%+v", seen)
	}
}

func TestChurnConnectsEveryTime(t *testing.T) {
	var connections atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	server.StartTLS()
	defer server.Close()
	config := &rest.Config{Host: server.URL, BearerToken: "secret"}
	config.Insecure = true
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if http2, err := connectOnce(t.Context(), config, tlsConfig.Clone(), server.URL); err != nil || !http2 {
			t.Errorf("HTTP/2 %v, %v", http2, err)
		}
	}
	if connections.Load() != 3 {
		t.Errorf("%d connections", connections.Load())
	}
}

func TestNoiseIsItsOwnAndHardToCompress(t *testing.T) {
	if noise(1, 2048) != noise(1, 2048) || noise(1, 2048) == noise(2, 2048) || len(noise(1, 5)) != 5 {
		t.Error("noise is not a function of number and length")
	}
	var packed bytes.Buffer
	writer := gzip.NewWriter(&packed)
	if _, err := writer.Write([]byte(noise(1, 2048))); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if packed.Len() < 1400 {
		t.Errorf("2048 bytes became %d", packed.Len())
	}
}
