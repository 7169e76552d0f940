// Package report prints what a program sees as JSON lines on standard output, one event a line.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"
)

// Fields is what an event says beside its name and its time.
type Fields map[string]any

// Reporter prints events; it may be used by many goroutines.
type Reporter struct {
	now func() time.Time
	mu  sync.Mutex
	out io.Writer
}

// Time is how times are printed: RFC 3339 with nanoseconds, in UTC.
func Time(at time.Time) string {
	return at.UTC().Format(time.RFC3339Nano)
}

// New returns a reporter that prints to out.
func New(out io.Writer) *Reporter {
	return &Reporter{now: time.Now, out: out}
}

// Event prints {"event": name, "time": RFC 3339 with nanoseconds, …fields}; the two are not for fields to set.
func (r *Reporter) Event(name string, fields Fields) {
	line := Fields{}
	for key, value := range fields {
		line[key] = value
	}
	line["event"], line["time"] = name, Time(r.now())
	text, err := json.Marshal(line)
	if err != nil {
		text = fmt.Appendf(nil, `{"event":"error","error":%q}`, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// Who reads the lines went away: there is nobody left to tell.
	_, _ = r.out.Write(append(text, '\n'))
}
