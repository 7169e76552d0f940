package load

import (
	"context"
	"fmt"
	"net"
	"slices"
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
// a comparison of two ways of watching gives --writer-server the same way in both. With --beside-server both ways see
// the very same updates.
func (p *Plan) watch(ctx context.Context, config *rest.Config) (report.Fields, error) {
	writer, err := p.client(elsewhere(config, p.writerServer, p.writerCA))
	if err != nil {
		return nil, err
	}
	if err := p.ensure(ctx, writer); err != nil {
		return nil, err
	}
	configs := []*rest.Config{config}
	if p.besideServer != "" {
		configs = append(configs, elsewhere(config, p.besideServer, p.besideCA))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	var streams []watch.Interface
	for _, config := range configs {
		client, err := p.client(config)
		if err != nil {
			return nil, err
		}
		opened, err := p.openWatches(ctx, client)
		if err != nil {
			return nil, err
		}
		streams = append(streams, opened...)
	}
	each, sent, err := p.follow(ctx, cancel, streams, writer, began)
	if err != nil {
		return nil, err
	}
	var all, beside outcome
	for _, one := range each[:p.watchers] {
		all.merge(one)
	}
	for _, one := range each[p.watchers:] {
		beside.merge(one)
	}
	all.took, beside.took = time.Since(began), time.Since(began)
	all.errors += beside.errors
	if all.first == nil {
		all.first = beside.first
	}
	fields := all.fields()
	fields["watchers"], fields["updates"], fields["missed"] = p.watchers, sent, sent*p.watchers-len(all.samples)
	if p.besideServer != "" {
		fields["beside"], fields["missed_beside"] = beside.fields(), sent*p.watchers-len(beside.samples)
	}
	return fields, nil
}

// follow sends the updates and reads the watches, and returns what each saw and the number of updates.
func (p *Plan) follow(
	ctx context.Context, cancel context.CancelFunc, streams []watch.Interface, writer *rest.RESTClient, began time.Time,
) ([]outcome, int, error) {
	var tasks sync.WaitGroup
	each := make([]outcome, len(streams))
	last := make(chan struct{}, len(streams))
	finished := p.updates()
	for i, stream := range streams {
		tasks.Go(func() {
			each[i] = p.delays(stream, began, finished)
			last <- struct{}{}
		})
	}
	sent, err := p.update(ctx, writer, began)
	if err != nil {
		return nil, sent, err
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
	return each, sent, nil
}

func (p *Plan) updates() int {
	return max(1, int(p.seconds*p.rate))
}

// elsewhere is the same configuration for another way, where one is named.
func elsewhere(config *rest.Config, server, ca string) *rest.Config {
	config = rest.CopyConfig(config)
	if server != "" {
		config.Host = server
	}
	if ca != "" {
		config.CAFile, config.CAData = ca, nil
	}
	// A dialer of its own gives it a connection of its own: client-go shares connections among equal configurations.
	config.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	return config
}

func (p *Plan) openWatches(ctx context.Context, client *rest.RESTClient) ([]watch.Interface, error) {
	// The list's position, not the object's, which may be older than what the API server can resume from.
	options := metav1.ListOptions{FieldSelector: "metadata.name=" + p.name}
	if p.whole {
		options = metav1.ListOptions{}
	}
	var list corev1.ConfigMapList
	if err := client.Get().Namespace(p.Namespace).Resource("configmaps").VersionedParams(&options, scheme.ParameterCodec).Do(ctx).Into(&list); err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(list.Items, func(item corev1.ConfigMap) bool { return item.Name == p.name }) {
		return nil, fmt.Errorf("of %d ConfigMaps none is %s/%s: nothing to watch", len(list.Items), p.Namespace, p.name)
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
func (p *Plan) delays(stream watch.Interface, began time.Time, finished int) outcome {
	var seen outcome
	for event := range stream.ResultChan() {
		now := time.Since(began)
		object, ok := event.Object.(*corev1.ConfigMap)
		if !ok {
			seen.add(0, apierrors.FromObject(event.Object))
			return seen
		}
		if p.whole && object.Name != p.name {
			continue
		}
		sent, err := strconv.ParseInt(object.Data[stampKey], 10, 64)
		seen.add(now-time.Duration(sent)*time.Microsecond, err)
		if object.Data["number"] == strconv.Itoa(finished) {
			return seen
		}
	}
	return seen
}
