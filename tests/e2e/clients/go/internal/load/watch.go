package load

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"e2e-clients/internal/report"
)

// stampKey holds the microseconds since the process began, on its monotonic clock, at which an update was sent.
const stampKey = "sent_us"

// watch measures from before an update is sent to after a watch has decoded its event: the way there is part of it, so
// a comparison of two ways of watching gives --writer-server the same way in both.
func (p *Plan) watch(ctx context.Context, config *rest.Config) (report.Fields, error) {
	client, err := p.client(config)
	if err != nil {
		return nil, err
	}
	writer, err := p.writer(config)
	if err != nil {
		return nil, err
	}
	if err := p.ensure(ctx, writer); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	streams, err := p.openWatches(ctx, client)
	if err != nil {
		return nil, err
	}
	var tasks sync.WaitGroup
	each := make([]outcome, len(streams))
	last := make(chan struct{}, len(streams))
	finished := p.updates()
	for i, stream := range streams {
		tasks.Go(func() {
			each[i] = delays(stream, began, finished)
			last <- struct{}{}
		})
	}
	all := outcome{}
	sent, err := p.update(ctx, writer, began)
	if err != nil {
		return nil, err
	}
	timeout := time.After(10 * time.Second)
	for range streams {
		select {
		case <-last:
		case <-timeout:
			// Whoever has not seen the last update by now has lost it.
			cancel()
		}
	}
	for _, stream := range streams {
		stream.Stop()
	}
	tasks.Wait()
	for _, one := range each {
		all.merge(one)
	}
	all.took = time.Since(began)
	fields := all.fields()
	fields["watchers"], fields["updates"], fields["missed"] = p.watchers, sent, sent*p.watchers-len(all.samples)
	return fields, nil
}

func (p *Plan) updates() int {
	return max(1, int(p.seconds*p.rate))
}

func (p *Plan) writer(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	if p.writerServer != "" {
		config.Host = p.writerServer
	}
	if p.writerCA != "" {
		config.CAFile, config.CAData = p.writerCA, nil
	}
	// A dialer of its own gives it a connection of its own: client-go shares connections among equal configurations.
	config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	return p.client(config)
}

func (p *Plan) openWatches(ctx context.Context, client *rest.RESTClient) ([]watch.Interface, error) {
	// The list's position, not the object's, which may be older than what the API server can resume from.
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + p.name}
	var list corev1.ConfigMapList
	if err := client.Get().Namespace(p.Namespace).Resource("configmaps").VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(&list); err != nil {
		return nil, err
	}
	if len(list.Items) != 1 {
		return nil, fmt.Errorf("%d ConfigMaps %s/%s are visible, want 1: nothing to watch", len(list.Items), p.Namespace, p.name)
	}
	options.Watch, options.ResourceVersion = true, list.ResourceVersion
	var streams []watch.Interface
	for range p.watchers {
		stream, err := client.Get().Namespace(p.Namespace).Resource("configmaps").VersionedParams(&options, scheme.ParameterCodec).Watch(ctx)
		if err != nil {
			return nil, err
		}
		streams = append(streams, stream)
	}
	return streams, nil
}

// update sends the updates at an even pace, whether or not the watches keep up, and returns their number.
func (p *Plan) update(ctx context.Context, client *rest.RESTClient, began time.Time) (int, error) {
	pace := time.NewTicker(time.Duration(float64(time.Second) / p.rate))
	defer pace.Stop()
	total := p.updates()
	for number := range total {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return number, ctx.Err()
		}
		patch := fmt.Sprintf(`{"data":{%q:"%d","number":"%d"}}`, stampKey, time.Since(began).Microseconds(), number+1)
		if err := client.Patch(types.MergePatchType).Namespace(p.Namespace).Resource("configmaps").Name(p.name).Body([]byte(patch)).Do(ctx).Error(); err != nil {
			return number, fmt.Errorf("update %d: %w", number, err)
		}
	}
	return total, nil
}

// delays reads a watch until it has seen update number finished, or ended.
func delays(stream watch.Interface, began time.Time, finished int) outcome {
	var seen outcome
	for event := range stream.ResultChan() {
		now := time.Since(began)
		object, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			seen.add(0, apierrors.FromObject(event.Object))
			return seen
		}
		sent, err := strconv.ParseInt(object.Data[stampKey], 10, 64)
		seen.add(now-time.Duration(sent)*time.Microsecond, err)
		if object.Data["number"] == strconv.Itoa(finished) {
			return seen
		}
	}
	return seen
}
