package figures

import (
	"testing"
	"time"
)

func TestSummarize(t *testing.T) {
	var hundred []time.Duration
	for i := 100; i >= 1; i-- {
		hundred = append(hundred, time.Duration(i)*time.Microsecond)
	}
	for name, c := range map[string]struct {
		samples []time.Duration
		want    Summary
	}{
		"none":    {nil, Summary{}},
		"one":     {[]time.Duration{1500}, Summary{1, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5}},
		"two":     {[]time.Duration{3000, 1000}, Summary{2, 1, 1, 3, 3, 3, 2}},
		"hundred": {hundred, Summary{100, 1, 50, 90, 99, 100, 50.5}},
	} {
		if got := Summarize(c.samples); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
