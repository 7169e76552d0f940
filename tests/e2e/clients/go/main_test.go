package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	for _, args := range [][]string{{}, {"no-such"}, {"verbs", "--no-such"}} {
		if code := run(args); code != 2 {
			t.Errorf("%v: exit code %d", args, code)
		}
	}
	for name := range subcommands {
		if !strings.Contains(usage, "  "+name+" ") {
			t.Errorf("%s is not in the usage", name)
		}
	}
}

func TestStandardInputEndsTheContext(t *testing.T) {
	lines := make(chan struct{}, 2)
	p := program{stdin: strings.NewReader("\n\n")}
	ctx, cancel := p.untilStdinEnds(t.Context(), func() { lines <- struct{}{} })
	defer cancel()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("still there")
	}
	if len(lines) != 2 || ctx.Err() != context.Canceled {
		t.Errorf("%d lines, %v", len(lines), ctx.Err())
	}
}

func TestCaptureKeepsTheBeginning(t *testing.T) {
	c := newCapture()
	for range 3 {
		if n, err := c.Write([]byte(strings.Repeat("a", 3000))); n != 3000 || err != nil {
			t.Fatal(n, err)
		}
	}
	fields := c.fields()
	if fields["bytes"] != 9000 || len(fields["text"].(string)) != shownBytes {
		t.Errorf("%v bytes, %d shown", fields["bytes"], len(fields["text"].(string)))
	}
}
