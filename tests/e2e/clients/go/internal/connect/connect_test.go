package connect

import (
	"os"
	"path/filepath"
	"testing"
)

const kubeconfig = `{apiVersion: v1, kind: Config, current-context: x,
clusters: [{name: c, cluster: {server: "https://one:6443", certificate-authority-data: Y2E=}}],
users: [{name: u, user: {client-certificate-data: Y2VydA==, client-key-data: a2V5}}],
contexts: [{name: x, context: {cluster: c, user: u}}]}`

func TestFlagsOverrideKubeconfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(file, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	flags := Flags{Kubeconfig: file}
	config, err := flags.Config()
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://one:6443" || string(config.CAData) != "ca" || string(config.CertData) != "cert" || config.QPS != -1 {
		t.Errorf("%+v", config)
	}

	flags = Flags{Kubeconfig: file, Server: "https://two", CA: "/ca", TokenFile: "/token", TLSServerName: "kubernetes", HTTP1: true, NoCompression: true}
	config, err = flags.Config()
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://two" || config.CAFile != "/ca" || config.CAData != nil || config.CertData != nil || config.KeyData != nil ||
		config.BearerTokenFile != "/token" || config.ServerName != "kubernetes" || len(config.NextProtos) != 1 || !config.DisableCompression || config.QPS != -1 {
		t.Errorf("%+v", config)
	}
}

func TestServerAloneIsEnough(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if config, err := (&Flags{Server: "https://two"}).Config(); err != nil || config.Host != "https://two" {
		t.Errorf("%+v, %v", config, err)
	}
	if _, err := (&Flags{}).Config(); err == nil {
		t.Error("no server at all, and no error")
	}
}
