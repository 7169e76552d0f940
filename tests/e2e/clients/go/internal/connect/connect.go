// Package connect makes client-go's configuration from the flags that every subcommand has.
package connect

import (
	"errors"
	"flag"
	"fmt"
	"os"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Flags choose the API server and the credentials. Without any of them the configuration is $KUBECONFIG, or that of a pod.
type Flags struct {
	Kubeconfig    string
	Server        string
	CA            string
	TokenFile     string
	TLSServerName string
	HTTP1         bool
	NoCompression bool
}

// Bind declares the flags.
func (f *Flags) Bind(fs *flag.FlagSet) {
	fs.StringVar(&f.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "kubeconfig file; a pod's own configuration when empty")
	fs.StringVar(&f.Server, "server", "", "URL of the API server, instead of the configured one")
	fs.StringVar(&f.CA, "ca", "", "file with the CA certificates to trust, instead of the configured ones")
	fs.StringVar(&f.TokenFile, "token-file", "", "file with the bearer token, instead of the configured credentials")
	fs.StringVar(&f.TLSServerName, "tls-server-name", "", "name to ask for and to verify, instead of the server's")
	fs.BoolVar(&f.HTTP1, "http1", false, "speak HTTP/1.1 only")
	fs.BoolVar(&f.NoCompression, "no-compression", false, "do not ask for gzip")
}

// Config returns the configuration: client-go's defaults, without its client-side rate limit.
func (f *Flags) Config() (*rest.Config, error) {
	config, err := f.base()
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	config.DisableCompression = f.NoCompression
	if f.Server != "" {
		config.Host = f.Server
	}
	if f.CA != "" {
		config.CAFile, config.CAData, config.Insecure = f.CA, nil, false
	}
	if f.TokenFile != "" {
		config = rest.AnonymousClientConfig(config)
		config.BearerTokenFile = f.TokenFile
	}
	if f.TLSServerName != "" {
		config.ServerName = f.TLSServerName
	}
	if f.HTTP1 {
		config.NextProtos = []string{"http/1.1"}
	}
	return config, nil
}

func (f *Flags) base() (*rest.Config, error) {
	if f.Kubeconfig != "" {
		config, err := clientcmd.BuildConfigFromFlags("", f.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", f.Kubeconfig, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) && f.Server != "" {
		return &rest.Config{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("no --kubeconfig, no --server: %w", err)
	}
	return config, nil
}
