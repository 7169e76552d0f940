// Command cert-manager runs the controllers of cert-manager that need no other service: those of certificates and their
// requests, and the self-signed and CA issuers. It takes the arguments of the chart, and elects as the released program
// does. (The released program is a module that no proxy serves.)
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/clusterissuers"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
)

// lock is the name that the released program gives it.
const lock = "cert-manager-controller"

const workers = 5

func main() {
	locks := "kube-system"
	options := controller.ContextOptions{KubernetesAPIQPS: 20, KubernetesAPIBurst: 50}
	options.ClusterResourceNamespace = "kube-system"
	options.CertificateRequestMinimumBackoffDuration = time.Hour
	options.CertificateRequestMaximumBackoffDuration = 32 * time.Hour
	for _, argument := range os.Args[1:] {
		name, value, _ := strings.Cut(strings.TrimLeft(argument, "-"), "=")
		switch name {
		case "leader-election-namespace":
			locks = value
		case "cluster-resource-namespace":
			options.ClusterResourceNamespace = value
		default:
			// For controllers that do not run here.
			log.Printf("unused: %s", argument)
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx, options, locks); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, options controller.ContextOptions, locks string) error {
	factory, err := controller.NewContextFactory(ctx, options)
	if err != nil {
		return err
	}
	root, err := factory.Build()
	if err != nil {
		return err
	}
	identity, err := os.Hostname()
	if err != nil {
		return err
	}
	held, err := resourcelock.NewFromKubeconfig(resourcelock.LeasesResourceLock, locks, lock,
		resourcelock.ResourceLockConfig{Identity: identity + "-external-cert-manager-controller"}, root.RESTConfig, 40*time.Second)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            held,
		LeaseDuration:   60 * time.Second,
		RenewDeadline:   40 * time.Second,
		RetryPeriod:     15 * time.Second,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { failed <- lead(ctx, factory, root) },
			OnStoppedLeading: func() { log.Print("leads no more") },
		},
	})
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func lead(ctx context.Context, factory *controller.ContextFactory, root *controller.Context) error {
	var running sync.WaitGroup
	for name, construct := range controller.Known() {
		built, err := construct(factory)
		if err != nil {
			return err
		}
		running.Go(func() {
			if err := built.Run(workers, ctx); err != nil {
				log.Printf("%s: %v", name, err)
			}
		})
	}
	root.SharedInformerFactory.Start(ctx.Done())
	root.KubeSharedInformerFactory.Start(ctx.Done())
	root.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	running.Wait()
	return nil
}
