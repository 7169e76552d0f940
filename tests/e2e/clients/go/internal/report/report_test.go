package report

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"
	"time"
)

func TestEventIsOneLine(t *testing.T) {
	var out bytes.Buffer
	reporter := New(&out)
	reporter.now = func() time.Time { return time.Unix(1, 5).UTC() }
	reporter.Event("synced", Fields{"objects": 3, "text": "a\nb", "event": "other"})
	if got, want := out.String(), `{"event":"synced","objects":3,"text":"a\nb","time":"1970-01-01T00:00:01.000000005Z"}`+"\n"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

func TestUnprintableFieldIsAnError(t *testing.T) {
	var out bytes.Buffer
	New(&out).Event("x", Fields{"value": math.NaN()})
	var line map[string]string
	if err := json.Unmarshal(out.Bytes(), &line); err != nil || line["event"] != "error" {
		t.Errorf("%s: %v", out.String(), err)
	}
}
