package load

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"e2e-clients/internal/report"
	"e2e-clients/internal/resource"
)

const (
	ringLabel = "ctrlmesh.kusionstack.io/ring"
	// renewal is the time after which the proxy of a pod renews its Lease.
	renewal = 10 * time.Second
)

// ring is what the pods of one ring share.
type ring struct {
	namespace string
	// events counts what their watches have shown.
	events atomic.Int64
}

// leases has --workers pods in --rings rings, of as many namespaces, named --namespace and a number. As the proxies of pods that
// wait for nobody, each on a connection of its own has listed the Leases of its ring, watches its own and renews it, which holds
// --bytes. Prints open when all watch; what follows until the end is a steady state.
func (p *Plan) leases(ctx context.Context, config *rest.Config, out *report.Reporter) (report.Fields, error) {
	if p.rings < 1 || p.workers < p.rings {
		return nil, errors.New("--rings: want at least one, and --workers as many")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	rings := make([]ring, p.rings)
	for number := range rings {
		rings[number].namespace = fmt.Sprintf("%s-%d", p.Namespace, number)
	}
	began := time.Now()
	var opened, ended sync.WaitGroup
	each := make([]outcome, p.workers)
	// All are open before the first is renewed.
	begin := make(chan time.Time)
	for number := range p.workers {
		opened.Add(1)
		ended.Go(func() {
			pod := podLease{plan: p, ring: &rings[number%p.rings], name: fmt.Sprintf("ctrlmesh-%08d-0000-4000-8000-000000000000", number)}
			err := pod.open(ctx, config)
			opened.Done()
			from := <-begin
			if err != nil {
				each[number].add(0, err)
				return
			}
			// Pods start at any time.
			phase := renewal * time.Duration(number) / time.Duration(p.workers)
			pod.renew(ctx, from.Add(phase), from.Add(time.Duration(p.seconds*float64(time.Second))), &each[number])
		})
	}
	opened.Wait()
	before := shown(rings)
	out.Event("open", report.Fields{"leases": p.workers, "seconds": time.Since(began).Seconds()})
	from := time.Now()
	for range p.workers {
		begin <- from
	}
	ended.Wait()
	all := outcome{took: time.Since(from)}
	for _, one := range each {
		all.merge(one)
	}
	fields := all.fields()
	fields["events"] = shown(rings) - before
	return fields, nil
}

func shown(rings []ring) int64 {
	var sum int64
	for number := range rings {
		sum += rings[number].events.Load()
	}
	return sum
}

// podLease is the Lease of one pod.
type podLease struct {
	plan   *Plan
	ring   *ring
	name   string
	client *rest.RESTClient
}

// open creates the Lease, lists those of its ring and watches its own.
func (l *podLease) open(ctx context.Context, config *rest.Config) error {
	// Proxies speak JSON.
	client, err := resource.RESTClient(elsewhere(config, "", ""), coordinationv1.SchemeGroupVersion, resource.JSON)
	if err != nil {
		return err
	}
	l.client = client
	created := client.Post().Namespace(l.ring.namespace).Resource("leases").Body(l.object()).Do(ctx)
	var lease coordinationv1.Lease
	if err := created.Into(&lease); err != nil {
		return err
	}
	options := metav1.ListOptions{LabelSelector: ringLabel + "=bench"}
	if err := l.get(&options).Do(ctx).Error(); err != nil {
		return err
	}
	options = metav1.ListOptions{
		LabelSelector: options.LabelSelector, FieldSelector: "metadata.name=" + l.name, Watch: true, AllowWatchBookmarks: true,
		ResourceVersion: lease.ResourceVersion, TimeoutSeconds: ptr.To[int64](290),
	}
	body, err := l.get(&options).Stream(ctx)
	if err != nil {
		return err
	}
	go func() {
		defer body.Close()
		// Its end is that of the measurement.
		_, _ = io.Copy(l.ring, body)
	}()
	return nil
}

func (l *podLease) get(options *metav1.ListOptions) *rest.Request {
	return l.client.Get().Namespace(l.ring.namespace).Resource("leases").VersionedParams(options, scheme.ParameterCodec)
}

// Write counts the events in a part of a watch, each of which is a line.
func (r *ring) Write(part []byte) (int, error) {
	r.events.Add(int64(bytes.Count(part, []byte("\n"))))
	return len(part), nil
}

func (l *podLease) object() *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Name: l.name, Namespace: l.ring.namespace, Labels: map[string]string{ringLabel: "bench"},
			Annotations: map[string]string{"ctrlmesh.kusionstack.io/claim": noise(0, l.plan.bytes)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &l.name, RenewTime: &metav1.MicroTime{Time: time.Now()}},
	}
}

// renew writes the whole Lease at its time, and each renewal later, until the end.
func (l *podLease) renew(ctx context.Context, at, end time.Time, seen *outcome) {
	for ; at.Before(end); at = at.Add(renewal) {
		select {
		case <-time.After(time.Until(at)):
		case <-ctx.Done():
			return
		}
		body, err := json.Marshal(l.object())
		began := time.Now()
		if err == nil {
			err = l.client.Patch(types.MergePatchType).Namespace(l.ring.namespace).Resource("leases").Name(l.name).Body(body).Do(ctx).Error()
		}
		seen.add(time.Since(began), err)
	}
}
