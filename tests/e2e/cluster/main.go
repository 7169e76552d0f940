// Command kube is a whole Kubernetes cluster in one file: the first argument
// names the component, the rest is that component's own command line.
//
// One link step instead of seven saves minutes of build time and a gigabyte of
// disk, and every component of a test runs the same version by construction.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubeapiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kubecontrollermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubescheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

// A component gets its own command line, its name first, and returns the exit code.
type component func(args []string) int

var components = map[string]component{
	"etcd":                    func(args []string) int { etcdmain.Main(args); return 0 },
	"etcd-compact":            compact,
	"kube-apiserver":          command(kubeapiserver.NewAPIServerCommand),
	"kube-controller-manager": command(kubecontrollermanager.NewControllerManagerCommand),
	"kube-proxy":              command(kubeproxy.NewProxyCommand),
	"kube-scheduler":          command(func() *cobra.Command { return kubescheduler.NewSchedulerCommand() }),
	"kubectl":                 command(kubectl.NewDefaultKubectlCommand),
	"kubelet":                 command(func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) }),
}

func main() {
	names := strings.Join(slices.Sorted(maps.Keys(components)), " | ")
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kube COMPONENT [ARGUMENT]...\ncomponents:", names)
		os.Exit(64)
	}
	run, known := components[os.Args[1]]
	if !known {
		fmt.Fprintf(os.Stderr, "kube: no component %q; there are %s\n", os.Args[1], names)
		os.Exit(64)
	}
	os.Exit(run(os.Args[1:]))
}

// command runs a cobra command on os.Args, which is where the components that
// read it directly (kubectl's plugin look-up) expect their own name.
func command(build func() *cobra.Command) component {
	return func(args []string) int {
		os.Args = args
		return cli.Run(build())
	}
}

// compact drops the history of an etcd before a revision: etcd-compact ENDPOINT REVISION.
// It makes "resourceVersion too old" happen now instead of after five minutes.
func compact(args []string) int {
	if err := compactAt(args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "etcd-compact:", err)
		return 1
	}
	return 0
}

func compactAt(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("want ENDPOINT REVISION, got %d arguments", len(args))
	}
	revision, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return fmt.Errorf("revision %q is not a whole number", args[1])
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: args[:1], DialTimeout: 5 * time.Second})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, err = client.Compact(ctx, revision, clientv3.WithCompactPhysical())
	return err
}
