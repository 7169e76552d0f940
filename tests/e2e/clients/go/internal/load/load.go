// Package load makes requests at an API server as Kubernetes clients do, and measures.
package load

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"e2e-clients/internal/figures"
	"e2e-clients/internal/report"
	"e2e-clients/internal/resource"
)

// Plan is what to do and how often. Every mode prints one load event, and fails when any request did.
type Plan struct {
	Namespace string
	Encoding  resource.Encoding

	mode     string
	name     string
	workers  int
	count    int
	seconds  float64
	warmup   int
	selector string
	// Of mode list.
	pageSize int64
	decode   bool
	// Of mode watch.
	watchers     int
	rate         float64
	writerServer string
	writerCA     string
	besideServer string
	besideCA     string
	whole        bool
	// Of mode fill.
	bytes  int
	labels string
	// Of mode leases.
	rings int
	reviews
}

// Bind declares the flags.
func (p *Plan) Bind(fs *flag.FlagSet) {
	fs.StringVar(&p.mode, "mode", "get", `get: workers get the ConfigMap --name, each its next when it has the last
list: one list of the namespace's ConfigMaps after another
watch: update the ConfigMap --name with the time in it, and measure when watches see it
churn: connect, get the ConfigMap --name, disconnect
review: send admission reviews of ConfigMaps to the webhook at --server, /validate
paced: the same, --rate of them a second for --seconds
fill: create --count ConfigMaps, --name-00000 and on
leases: the Leases of --workers pods in --rings rings, each watched by all of its ring and renewed`)
	fs.StringVar(&p.name, "name", "load", "name of the ConfigMap; modes get, watch and churn create it where it is absent")
	fs.IntVar(&p.workers, "workers", 1, "how many do it at once (get, churn, review, fill, leases)")
	fs.IntVar(&p.count, "count", 0, "how often in all; 0: until --seconds are over (watch, paced: always --seconds)")
	fs.Float64Var(&p.seconds, "seconds", 10, "how long, when there is no --count")
	fs.IntVar(&p.warmup, "warmup", 0, "requests before the measured ones (get, list, review, paced)")
	fs.StringVar(&p.selector, "selector", "", "label selector (list)")
	fs.Int64Var(&p.pageSize, "page-size", 0, "limit of a page; 0: one page (list)")
	fs.BoolVar(&p.decode, "decode", false, "decode the answers rather than count their bytes (list)")
	fs.IntVar(&p.watchers, "watchers", 1, "how many watches (watch)")
	fs.Float64Var(&p.rate, "rate", 50, "updates or reviews a second (watch, paced)")
	fs.StringVar(&p.writerServer, "writer-server", "", "URL for the updates, when they take another way than the watches (watch)")
	fs.StringVar(&p.writerCA, "writer-ca", "", "file with the CA certificates for --writer-server (watch)")
	fs.StringVar(&p.besideServer, "beside-server", "", "URL of another way that has as many watches of the same updates (watch)")
	fs.StringVar(&p.besideCA, "beside-ca", "", "file with the CA certificates for --beside-server (watch)")
	fs.BoolVar(&p.whole, "whole", false, "watch all ConfigMaps of the namespace, not one (watch)")
	fs.IntVar(&p.bytes, "bytes", 2048, "size of the data of each ConfigMap, or of each claim (fill, review, paced, leases)")
	fs.IntVar(&p.rings, "rings", 1, "how many rings, each in a namespace (leases)")
	fs.StringVar(&p.labels, "labels", "", "labels of what is created, k=v,k=v")
	p.reviews.bind(fs)
}

// Run does it.
func (p *Plan) Run(ctx context.Context, config *rest.Config, out *report.Reporter) error {
	modes := map[string]func(context.Context, *rest.Config) (report.Fields, error){
		"get": p.get, "list": p.list, "watch": p.watch, "churn": p.churn, "fill": p.fill,
		"review": p.review, "paced": p.paced,
		"leases": func(ctx context.Context, config *rest.Config) (report.Fields, error) {
			return p.leases(ctx, config, out)
		},
	}
	mode, ok := modes[p.mode]
	if !ok {
		return fmt.Errorf("--mode %q: want get, list, watch, churn, fill, review, paced or leases", p.mode)
	}
	if p.workers < 1 || p.watchers < 1 || p.rate <= 0 {
		return errors.New("--workers, --watchers and --rate: want at least one")
	}
	if p.mode == "fill" && p.count < 1 {
		return errors.New("--count: want at least one to fill with")
	}
	fields, err := mode(ctx, config)
	if err != nil {
		return err
	}
	fields["mode"] = p.mode
	out.Event("load", fields)
	if failed, ok := fields["errors"].(int); ok && failed > 0 {
		return fmt.Errorf("%d requests failed, the first: %v", failed, fields["first_error"])
	}
	return nil
}

// outcome of many calls.
type outcome struct {
	samples []time.Duration
	errors  int
	first   error
	took    time.Duration
}

func (o *outcome) add(took time.Duration, err error) {
	if err == nil {
		o.samples = append(o.samples, took)
		return
	}
	o.errors++
	if o.first == nil {
		o.first = err
	}
}

func (o *outcome) merge(other outcome) {
	o.samples = append(o.samples, other.samples...)
	o.errors += other.errors
	if o.first == nil {
		o.first = other.first
	}
}

func (o *outcome) fields() report.Fields {
	fields := report.Fields{
		"requests":   len(o.samples),
		"errors":     o.errors,
		"seconds":    o.took.Seconds(),
		"per_second": float64(len(o.samples)) / o.took.Seconds(),
		"latency":    figures.Summarize(o.samples),
	}
	if o.first != nil {
		fields["first_error"] = o.first.Error()
	}
	return fields
}

// closedLoop has workers make call after call, --count in all or for --seconds; call gets the number of the call.
func (p *Plan) closedLoop(ctx context.Context, workers int, call func(context.Context, int) error) outcome {
	started := time.Now()
	until := started.Add(time.Duration(p.seconds * float64(time.Second)))
	var next atomic.Int64
	more := func() (int, bool) {
		number := int(next.Add(1)) - 1
		if p.count > 0 {
			return number, number < p.count && ctx.Err() == nil
		}
		return number, time.Now().Before(until) && ctx.Err() == nil
	}
	var tasks sync.WaitGroup
	each := make([]outcome, workers)
	for worker := range workers {
		tasks.Go(func() {
			for number, ok := more(); ok; number, ok = more() {
				began := time.Now()
				err := call(ctx, number)
				each[worker].add(time.Since(began), err)
			}
		})
	}
	tasks.Wait()
	all := outcome{took: time.Since(started)}
	for _, one := range each {
		all.merge(one)
	}
	return all
}

func (p *Plan) client(config *rest.Config) (*rest.RESTClient, error) {
	return resource.RESTClient(config, corev1.SchemeGroupVersion, p.Encoding)
}
