package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
)

func configMap(version string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
		Namespace: "demo", Name: "a", UID: "u1", ResourceVersion: version, Labels: map[string]string{"team": "x"},
	}}
}

func lines(t *testing.T, out *bytes.Buffer) []Line {
	t.Helper()
	var all []Line
	decoder := json.NewDecoder(out)
	for decoder.More() {
		var line Line
		if err := decoder.Decode(&line); err != nil {
			t.Fatal(err)
		}
		all = append(all, line)
	}
	return all
}

func TestInformerRecordsEveryVersion(t *testing.T) {
	var out bytes.Buffer
	recorder := New(&out, clientgoscheme.Scheme, "pod-0")
	handlers, err := recorder.Informer(&corev1.ConfigMap{})
	if err != nil {
		t.Fatal(err)
	}
	handlers.OnAdd(configMap("1"), true)
	handlers.OnAdd(configMap("2"), false)
	handlers.OnUpdate(configMap("2"), configMap("3"))
	handlers.OnUpdate(configMap("3"), configMap("3"))
	handlers.OnDelete(configMap("4"))
	handlers.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "demo/a", Obj: configMap("5")})

	want := []struct{ event, version string }{
		{"initial", "1"}, {"add", "2"}, {"update", "3"}, {"relist", "3"}, {"delete", "4"}, {"missed-delete", "5"},
	}
	got := lines(t, &out)
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d", len(got), len(want))
	}
	for i, line := range got {
		if line.Event != want[i].event || line.Version != want[i].version {
			t.Errorf("line %d: %s %s, want %s %s", i, line.Event, line.Version, want[i].event, want[i].version)
		}
		if line.Record != Read || line.GVK != "/v1, Kind=ConfigMap" || line.UID != "u1" || line.Pod != "pod-0" || line.Labels["team"] != "x" {
			t.Errorf("line %d: %+v", i, line)
		}
	}
}

type broken struct{ calls int }

func (b *broken) Write([]byte) (int, error) {
	b.calls++
	return 0, errors.New("disk full")
}

func TestFailureToWriteIsKept(t *testing.T) {
	out := &broken{}
	recorder := New(out, clientgoscheme.Scheme, "pod-0")
	recorder.now = func() time.Time { return time.Unix(0, 0) }
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	recorder.Wrote(gvk, configMap("1"), "apply")
	recorder.Wrote(gvk, configMap("2"), "apply")
	if recorder.Err() == nil || out.calls != 1 {
		t.Fatalf("error %v after %d calls", recorder.Err(), out.calls)
	}
}
