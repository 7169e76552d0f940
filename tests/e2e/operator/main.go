// Command demo-operator keeps a ConfigMap for every Widget.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	demo "demo.example.com/operator/api/v1alpha1"
	"demo.example.com/operator/internal/controller"
	"demo.example.com/operator/internal/record"
	"demo.example.com/operator/internal/webhooks"
)

type options struct {
	metricsAddress string
	probeAddress   string
	recordFile     string
	leaderElect    bool
	leaderID       string
	leaseDuration  time.Duration
	renewDeadline  time.Duration
	retryPeriod    time.Duration
	webhooks       webhookOptions
	log            zap.Options
}

type webhookOptions struct {
	port       int
	certDir    string
	references bool
	after      string
}

func main() {
	opts, err := parse(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		os.Exit(2)
	}
	ctrl.SetLogger(zap.New(zap.UseFlagOptions(&opts.log)))
	if err := run(ctrl.SetupSignalHandler(), opts); err != nil {
		ctrl.Log.Error(err, "demo-operator ends")
		os.Exit(1)
	}
}

func parse(args []string, usage io.Writer) (options, error) {
	var o options
	fs := flag.NewFlagSet("demo-operator", flag.ContinueOnError)
	fs.SetOutput(usage)
	fs.StringVar(&o.metricsAddress, "metrics-bind-address", ":8080", "address of /metrics; 0 turns it off")
	fs.StringVar(&o.probeAddress, "health-probe-bind-address", ":8081", "address of /healthz and /readyz; 0 turns it off")
	fs.StringVar(&o.recordFile, "record", "-", "file to append a JSON line to for each object version read or written; - is standard output")
	fs.BoolVar(&o.leaderElect, "leader-elect", true, "reconcile only while holding the lease")
	fs.StringVar(&o.leaderID, "leader-election-id", "demo-operator", "name of the lease, in the namespace of the pod")
	fs.DurationVar(&o.leaseDuration, "leader-election-lease-duration", 15*time.Second, "how long others wait before they take the lease over")
	fs.DurationVar(&o.renewDeadline, "leader-election-renew-deadline", 10*time.Second, "how long the leader tries to renew before it gives up")
	fs.DurationVar(&o.retryPeriod, "leader-election-retry-period", 2*time.Second, "how long to wait between tries")
	fs.IntVar(&o.webhooks.port, "webhook-port", 0, "port of /mutate, /validate, /convert and /healthz; 0 turns them off")
	fs.StringVar(&o.webhooks.certDir, "webhook-cert-dir", "", "directory of tls.crt and tls.key; empty is the default of controller-runtime")
	fs.BoolVar(&o.webhooks.references, "webhook-references", false, "deny objects that need, by annotation, a ConfigMap that the informer does not hold")
	fs.StringVar(&o.webhooks.after, "webhook-after", "", "file without which the webhooks do not listen")
	o.log.BindFlags(fs)
	return o, fs.Parse(args)
}

func run(ctx context.Context, o options) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	// What ctrl.GetConfig sets as well: the API server's own fairness limits the clients.
	config.QPS = -1
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), demo.AddToScheme(scheme)); err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		WebhookServer:                 o.webhooks.server(),
		Scheme:                        scheme,
		Metrics:                       metricsserver.Options{BindAddress: o.metricsAddress},
		HealthProbeBindAddress:        o.probeAddress,
		LeaderElection:                o.leaderElect,
		LeaderElectionID:              o.leaderID,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &o.leaseDuration,
		RenewDeadline:                 &o.renewDeadline,
		RetryPeriod:                   &o.retryPeriod,
	})
	if err != nil {
		return err
	}
	pod, err := podName()
	if err != nil {
		return err
	}
	out, err := openRecord(o.recordFile)
	if err != nil {
		return err
	}
	defer out.Close()
	records := record.New(out, scheme, pod)
	widgets := controller.Widgets{Client: mgr.GetClient(), Records: records, Pod: pod}
	if err := widgets.SetupWithManager(ctx, mgr); err != nil {
		return err
	}
	if err := errors.Join(mgr.AddHealthzCheck("ping", healthz.Ping), mgr.AddReadyzCheck("ping", healthz.Ping)); err != nil {
		return err
	}
	if err := o.webhooks.register(mgr, pod); err != nil {
		return err
	}
	return errors.Join(mgr.Start(ctx), records.Err())
}

// server is nil if the webhooks are turned off: the manager then starts none.
func (o webhookOptions) server() webhook.Server {
	if o.port == 0 {
		return nil
	}
	server := webhook.NewServer(webhook.Options{Port: o.port, CertDir: o.certDir})
	if o.after == "" {
		return server
	}
	return webhooks.Late{Server: server, File: o.after}
}

func (o webhookOptions) register(mgr ctrl.Manager, pod string) error {
	if o.port == 0 {
		return nil
	}
	hooks := webhooks.Webhooks{Pod: pod}
	if o.references {
		hooks.References = mgr.GetCache()
	}
	server := mgr.GetWebhookServer()
	hooks.Register(server)
	return mgr.AddReadyzCheck("webhooks", server.StartedChecker())
}

func podName() (string, error) {
	if name := os.Getenv("POD_NAME"); name != "" {
		return name, nil
	}
	return os.Hostname()
}

func openRecord(path string) (*os.File, error) {
	if path == "-" {
		return os.Stdout, nil
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("--record: %w", err)
	}
	return file, nil
}
