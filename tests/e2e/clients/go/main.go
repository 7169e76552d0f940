// Command clients drives an API server as unmodified Kubernetes clients do, and prints what it sees as JSON lines.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"k8s.io/client-go/rest"

	"e2e-clients/internal/connect"
	"e2e-clients/internal/family"
	"e2e-clients/internal/load"
	"e2e-clients/internal/operator"
	"e2e-clients/internal/report"
	"e2e-clients/internal/resource"
)

const usage = `usage: clients SUBCOMMAND [flags]

  informer     keep a client-go informer and print what it is told
  elect        take part in a leader election on a Lease
  exec         run a command in a pod
  portforward  forward a local port to a pod
  logs         print a container's log
  watches      hold many watches on one client
  verbs        try every verb on ConfigMaps
  upload       create a ConfigMap of 1 MB
  load         measure
  operator     serve the webhooks of a controller
  family       keep a Secret for each ConfigMap

clients SUBCOMMAND --help lists the flags. Exit codes: 0 done, 1 failed (the last line is an error event), 2 usage.
`

// program is what every subcommand works with.
type program struct {
	connect.Flags
	namespace string
	json      bool
	noStdin   bool
	report    *report.Reporter
	stdin     io.Reader
}

// subcommand declares its flags on fs and returns what runs after they were parsed.
type subcommand func(p *program, fs *flag.FlagSet) func(ctx context.Context) error

var subcommands = map[string]subcommand{
	"informer":    informer,
	"elect":       elect,
	"exec":        execute,
	"portforward": portForward,
	"logs":        logs,
	"watches":     watches,
	"verbs":       verbs,
	"upload":      upload,
	"load":        measure,
	"operator":    operate,
	"family":      keepFamilies,
}

func main() {
	os.Exit(run(os.Args[1:]))
}

func run(args []string) int {
	if len(args) == 0 || subcommands[args[0]] == nil {
		fmt.Fprint(os.Stderr, usage)
		return 2
	}
	p := program{report: report.New(os.Stdout), stdin: os.Stdin}
	fs := flag.NewFlagSet("clients "+args[0], flag.ContinueOnError)
	p.Bind(fs)
	fs.StringVar(&p.namespace, "namespace", "default", "namespace")
	fs.BoolVar(&p.json, "json", false, "ask for JSON where there is protobuf")
	fs.Bool("protobuf", true, "ask for protobuf where there is any (the default)")
	fs.BoolVar(&p.noStdin, "no-stdin", false, "run until SIGTERM, whatever standard input does")
	work := subcommands[args[0]](&p, fs)
	if err := fs.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := work(ctx); err != nil {
		p.report.Event("error", report.Fields{"error": err.Error()})
		return 1
	}
	return 0
}

func (p *program) encoding() resource.Encoding {
	if p.json {
		return resource.JSON
	}
	return resource.Protobuf
}

// typedConfig is the configuration of a typed client in the encoding asked for.
func (p *program) typedConfig() (*rest.Config, error) {
	config, err := p.Config()
	if err != nil {
		return nil, err
	}
	p.encoding().Configure(config)
	return config, nil
}

// untilStdinEnds returns a context that ends with standard input too, unless --no-stdin; each line of it calls onLine.
// The function that it returns as well ends the context. The reader ends with the program: a read cannot be cut short.
func (p *program) untilStdinEnds(ctx context.Context, onLine func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if p.noStdin {
		return ctx, cancel
	}
	go func() {
		defer cancel()
		for lines := bufio.NewScanner(p.stdin); lines.Scan(); {
			onLine()
		}
	}()
	return ctx, cancel
}

// counter counts by name; it may be used by many goroutines.
type counter struct {
	mu     sync.Mutex
	counts map[string]int
}

func (c *counter) add(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.counts == nil {
		c.counts = map[string]int{}
	}
	c.counts[name]++
}

func (c *counter) of(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts[name]
}

func measure(p *program, fs *flag.FlagSet) func(context.Context) error {
	var plan load.Plan
	plan.Bind(fs)
	return func(ctx context.Context) error {
		config, err := p.Config()
		if err != nil {
			return err
		}
		plan.Namespace, plan.Encoding = p.namespace, p.encoding()
		return plan.Run(ctx, config, p.report)
	}
}

func operate(p *program, fs *flag.FlagSet) func(context.Context) error {
	var server operator.Operator
	server.Bind(fs)
	return func(ctx context.Context) error { return server.Run(ctx, p.report) }
}

func keepFamilies(p *program, fs *flag.FlagSet) func(context.Context) error {
	var operator family.Operator
	operator.Bind(fs)
	return func(ctx context.Context) error {
		config, err := p.typedConfig()
		if err != nil {
			return err
		}
		config.QPS = -1
		return operator.Run(ctx, config, p.report)
	}
}
