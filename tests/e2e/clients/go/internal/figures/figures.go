// Package figures sums up measured durations.
package figures

import (
	"slices"
	"time"
)

// Summary of durations, in microseconds.
type Summary struct {
	Count int     `json:"count"`
	Min   float64 `json:"min_us"`
	P50   float64 `json:"p50_us"`
	P90   float64 `json:"p90_us"`
	P99   float64 `json:"p99_us"`
	Max   float64 `json:"max_us"`
	Mean  float64 `json:"mean_us"`
}

// Summarize sorts the samples in place. Percentiles are by nearest rank: each is a sample that was measured.
func Summarize(samples []time.Duration) Summary {
	if len(samples) == 0 {
		return Summary{}
	}
	slices.Sort(samples)
	var sum time.Duration
	for _, sample := range samples {
		sum += sample
	}
	return Summary{
		Count: len(samples),
		Min:   microseconds(samples[0]),
		P50:   microseconds(rank(samples, 50)),
		P90:   microseconds(rank(samples, 90)),
		P99:   microseconds(rank(samples, 99)),
		Max:   microseconds(samples[len(samples)-1]),
		Mean:  microseconds(sum) / float64(len(samples)),
	}
}

// rank is the smallest sample that percent of all samples do not exceed; samples is sorted and not empty.
func rank(samples []time.Duration, percent int) time.Duration {
	return samples[(len(samples)*percent+99)/100-1]
}

func microseconds(d time.Duration) float64 {
	return float64(d) / float64(time.Microsecond)
}
