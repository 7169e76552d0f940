package load

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"e2e-clients/internal/report"
)

func (p *Plan) get(ctx context.Context, config *rest.Config) (report.Fields, error) {
	client, err := p.client(config)
	if err != nil {
		return nil, err
	}
	if err := p.ensure(ctx, client); err != nil {
		return nil, err
	}
	call := func(ctx context.Context, _ int) error {
		var object corev1.ConfigMap
		return client.Get().Namespace(p.Namespace).Resource("configmaps").Name(p.name).Do(ctx).Into(&object)
	}
	for range p.warmup {
		if err := call(ctx, 0); err != nil {
			return nil, fmt.Errorf("warm-up: %w", err)
		}
	}
	all := p.closedLoop(ctx, p.workers, call)
	fields := all.fields()
	fields["workers"] = p.workers
	return fields, nil
}

// list prints the bytes of the bodies too, after gzip was undone, and the items when it decodes.
func (p *Plan) list(ctx context.Context, config *rest.Config) (report.Fields, error) {
	client, err := p.client(config)
	if err != nil {
		return nil, err
	}
	var bytes, items, pages atomic.Int64
	call := func(ctx context.Context, _ int) error {
		options := metav1.ListOptions{LabelSelector: p.selector, Limit: p.pageSize}
		for {
			page, size, err := p.page(ctx, client, options)
			if err != nil {
				return err
			}
			bytes.Add(size)
			items.Add(int64(len(page.Items)))
			pages.Add(1)
			if options.Continue = page.Continue; options.Continue == "" {
				return nil
			}
		}
	}
	for range p.warmup {
		if err := call(ctx, 0); err != nil {
			return nil, fmt.Errorf("warm-up: %w", err)
		}
	}
	bytes.Store(0)
	items.Store(0)
	pages.Store(0)
	all := p.closedLoop(ctx, 1, call)
	fields := all.fields()
	fields["bytes"], fields["pages"] = bytes.Load(), pages.Load()
	if p.decode || p.pageSize > 0 {
		fields["items"] = items.Load()
	}
	return fields, nil
}

// page reads one page, which stays empty when nothing needs it decoded.
func (p *Plan) page(ctx context.Context, client *rest.RESTClient, options metav1.ListOptions) (*corev1.ConfigMapList, int64, error) {
	var page corev1.ConfigMapList
	request := client.Get().Namespace(p.Namespace).Resource("configmaps").VersionedParams(&options, scheme.ParameterCodec)
	if !p.decode && p.pageSize == 0 {
		body, err := request.Stream(ctx)
		if err != nil {
			return nil, 0, err
		}
		defer body.Close()
		size, err := io.Copy(io.Discard, body)
		return &page, size, err
	}
	result := request.Do(ctx)
	body, err := result.Raw()
	if err != nil {
		return nil, 0, err
	}
	return &page, int64(len(body)), result.Into(&page)
}

func (p *Plan) fill(ctx context.Context, config *rest.Config) (report.Fields, error) {
	client, err := p.client(config)
	if err != nil {
		return nil, err
	}
	all := p.closedLoop(ctx, p.workers, func(ctx context.Context, number int) error {
		return p.create(ctx, client, fmt.Sprintf("%s-%05d", p.name, number), map[string]string{"data": noise(number, p.bytes)})
	})
	return all.fields(), nil
}

// noise is text that gzip makes little of, the same for the same number: what a list costs must not depend on luck.
func noise(number, length int) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	random := rand.New(rand.NewPCG(uint64(number), 0))
	text := make([]byte, length)
	for i := range text {
		text[i] = alphabet[random.IntN(len(alphabet))]
	}
	return string(text)
}

// churn has a new TCP and TLS connection for every request, and ends it in good order after the answer.
func (p *Plan) churn(ctx context.Context, config *rest.Config) (report.Fields, error) {
	client, err := p.client(config)
	if err != nil {
		return nil, err
	}
	if err := p.ensure(ctx, client); err != nil {
		return nil, err
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	url := client.Get().Namespace(p.Namespace).Resource("configmaps").Name(p.name).URL().String()
	var second atomic.Int64
	all := p.closedLoop(ctx, p.workers, func(ctx context.Context, _ int) error {
		http2, err := connectOnce(ctx, config, tlsConfig.Clone(), url)
		if http2 {
			second.Add(1)
		}
		return err
	})
	fields := all.fields()
	fields["workers"], fields["http2"] = p.workers, second.Load()
	return fields, nil
}

// connectOnce tells whether the answer came by HTTP/2. client-go keeps connections in a cache, hence a transport of our
// own; credentials and user agent are client-go's.
func connectOnce(ctx context.Context, config *rest.Config, tlsConfig *tls.Config, url string) (http2 bool, err error) {
	transport := &http.Transport{
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: 10 * time.Second,
		ForceAttemptHTTP2:   len(config.NextProtos) == 0,
		DialContext:         (&net.Dialer{Timeout: 10 * time.Second}).DialContext,
	}
	defer transport.CloseIdleConnections()
	wrapped, err := rest.HTTPWrappersForConfig(config, transport)
	if err != nil {
		return false, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false, err
	}
	answer, err := wrapped.RoundTrip(request)
	if err != nil {
		return false, err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return false, err
	}
	if answer.StatusCode != http.StatusOK {
		return false, errors.New(answer.Status)
	}
	return answer.ProtoMajor == 2, nil
}

// ensure creates the ConfigMap --name where it is absent.
func (p *Plan) ensure(ctx context.Context, client *rest.RESTClient) error {
	err := p.create(ctx, client, p.name, map[string]string{"data": "0"})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func (p *Plan) create(ctx context.Context, client *rest.RESTClient, name string, data map[string]string) error {
	own, err := labels.ConvertSelectorToLabelsMap(p.labels)
	if err != nil {
		return fmt.Errorf("--labels %q: want k=v,k=v: %w", p.labels, err)
	}
	object := corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: own}, Data: data}
	return client.Post().Namespace(p.Namespace).Resource("configmaps").Body(&object).Do(ctx).Error()
}
