package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"

	"e2e-clients/internal/report"
)

// shownBytes of a stream are printed; of the rest there are the length and the SHA-256.
const shownBytes = 4096

// pod is the flags that name a container and the way to it.
type pod struct {
	name, container, transport string
}

func (t *pod) bind(fs *flag.FlagSet) {
	fs.StringVar(&t.name, "pod", "", "name of the pod")
	fs.StringVar(&t.container, "container", "", "name of the container; the pod's default when empty")
	fs.StringVar(&t.transport, "transport", "websocket", "spdy or websocket")
}

func (t *pod) url(p *program, subresource string, options *corev1.PodExecOptions) (*url.URL, *rest.Config, error) {
	config, err := p.Config()
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, nil, err
	}
	request := client.CoreV1().RESTClient().Post().Namespace(p.namespace).Resource("pods").Name(t.name).SubResource(subresource)
	if options != nil {
		request = request.VersionedParams(options, scheme.ParameterCodec)
	}
	return request.URL(), config, nil
}

// execute prints one exec event; its exit code is the program's only in "exitCode".
func execute(p *program, fs *flag.FlagSet) func(context.Context) error {
	var target pod
	target.bind(fs)
	withStdin := fs.Bool("stdin", false, "send standard input")
	tty := fs.Bool("tty", false, "ask for a terminal")
	return func(ctx context.Context) error {
		url, config, err := target.url(p, "exec", &corev1.PodExecOptions{
			Container: target.container, Command: fs.Args(), Stdin: *withStdin, Stdout: true, Stderr: !*tty, TTY: *tty,
		})
		if err != nil {
			return err
		}
		executor, err := target.executor(config, url)
		if err != nil {
			return err
		}
		stdout, stderr := newCapture(), newCapture()
		options := remotecommand.StreamOptions{Stdout: stdout, Tty: *tty}
		if !*tty {
			options.Stderr = stderr
		}
		if *withStdin {
			options.Stdin = p.stdin
		}
		err = executor.StreamWithContext(ctx, options)
		code := 0
		if exit := (exec.CodeExitError{}); errors.As(err, &exit) {
			code, err = exit.Code, nil
		}
		if err != nil {
			return fmt.Errorf("exec over %s: %w", target.transport, err)
		}
		p.report.Event("exec", report.Fields{
			"transport": target.transport, "exitCode": code, "stdout": stdout.fields(), "stderr": stderr.fields(),
		})
		return nil
	}
}

func (t *pod) executor(config *rest.Config, url *url.URL) (remotecommand.Executor, error) {
	switch t.transport {
	case "spdy":
		return remotecommand.NewSPDYExecutor(config, http.MethodPost, url)
	case "websocket":
		// GET, as kubectl does it: RFC 6455 has no other method.
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	}
	return nil, fmt.Errorf("--transport %q: want spdy or websocket", t.transport)
}

// portForward prints ready with the local ports, and holds until standard input ends.
func portForward(p *program, fs *flag.FlagSet) func(context.Context) error {
	var target pod
	target.bind(fs)
	return func(ctx context.Context) error {
		if fs.NArg() == 0 {
			return errors.New("no port: want REMOTE, or LOCAL:REMOTE, with 0 for a free local port, after the flags")
		}
		url, config, err := target.url(p, "portforward", nil)
		if err != nil {
			return err
		}
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return err
		}
		dialer := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url)
		switch target.transport {
		case "spdy":
		case "websocket":
			if dialer, err = portforward.NewSPDYOverWebsocketDialer(url, config); err != nil {
				return err
			}
		default:
			return fmt.Errorf("--transport %q: want spdy or websocket", target.transport)
		}
		ctx, cancel := p.untilStdinEnds(ctx, func() {})
		defer cancel()
		ready := make(chan struct{})
		forwarder, err := portforward.New(dialer, fs.Args(), ctx.Done(), ready, io.Discard, io.Discard)
		if err != nil {
			return err
		}
		go func() {
			<-ready
			if ports, err := forwarder.GetPorts(); err == nil {
				p.report.Event("ready", report.Fields{"transport": target.transport, "ports": portFields(ports)})
			}
		}()
		return forwarder.ForwardPorts()
	}
}

func portFields(ports []portforward.ForwardedPort) []report.Fields {
	var all []report.Fields
	for _, port := range ports {
		all = append(all, report.Fields{"local": port.Local, "remote": port.Remote})
	}
	return all
}

// logs prints an open event when the answer begins, line events, and an end event; following ends with standard input.
func logs(p *program, fs *flag.FlagSet) func(context.Context) error {
	var target pod
	target.bind(fs)
	follow := fs.Bool("f", false, "follow")
	tail := fs.Int64("tail", -1, "only so many of the last lines")
	return func(ctx context.Context) error {
		config, err := p.Config()
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		options := corev1.PodLogOptions{Container: target.container, Follow: *follow}
		if *tail >= 0 {
			options.TailLines = tail
		}
		if *follow {
			var cancel context.CancelFunc
			ctx, cancel = p.untilStdinEnds(ctx, func() {})
			defer cancel()
		}
		stream, err := client.CoreV1().Pods(p.namespace).GetLogs(target.name, &options).Stream(ctx)
		if err != nil {
			return err
		}
		defer stream.Close()
		p.report.Event("open", report.Fields{"pod": target.name})
		lines, count := bufio.NewScanner(stream), 0
		for ; lines.Scan(); count++ {
			p.report.Event("line", report.Fields{"text": lines.Text()})
		}
		if err := lines.Err(); err != nil && ctx.Err() == nil {
			return err
		}
		p.report.Event("end", report.Fields{"lines": count})
		return nil
	}
}

// capture keeps the beginning of a stream, its length and its SHA-256.
type capture struct {
	head   []byte
	length int
	hash   hash.Hash
}

func newCapture() *capture {
	return &capture{hash: sha256.New()}
}

func (c *capture) Write(data []byte) (int, error) {
	c.length += len(data)
	c.head = append(c.head, data[:min(len(data), shownBytes-len(c.head))]...)
	return c.hash.Write(data)
}

func (c *capture) fields() report.Fields {
	return report.Fields{"text": string(c.head), "bytes": c.length, "sha256": fmt.Sprintf("%x", c.hash.Sum(nil))}
}
