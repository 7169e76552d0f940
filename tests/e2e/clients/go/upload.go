package main

import (
	"context"
	"flag"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"e2e-clients/internal/report"
)

const megabyte = 1_000_000

// upload creates a ConfigMap of 1 MB, reads it again, and prints: uploaded, with what was read.
func upload(p *program, fs *flag.FlagSet) func(context.Context) error {
	name := fs.String("name", "large", "name of the ConfigMap")
	team := fs.String("team", "", "its label team")
	return func(ctx context.Context) error {
		config, err := p.typedConfig()
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		maps := client.CoreV1().ConfigMaps(p.namespace)
		large := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: *name, Labels: map[string]string{"team": *team}},
			Data:       map[string]string{"large": strings.Repeat("x", megabyte)},
		}
		if _, err := maps.Create(ctx, large, metav1.CreateOptions{}); err != nil {
			return err
		}
		stored, err := maps.Get(ctx, *name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.report.Event("uploaded", report.Fields{"bytes": len(stored.Data["large"])})
		return nil
	}
}
