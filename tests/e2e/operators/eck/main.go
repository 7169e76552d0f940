// ECK's operator, from its own packages. Its images are on a registry that tests cannot reach.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/elastic/cloud-on-k8s/v3/cmd/manager"
)

func main() {
	root := &cobra.Command{Use: "elastic-operator", SilenceUsage: true}
	root.AddCommand(manager.Command())
	if err := root.Execute(); err != nil {
		os.Exit(1)
	}
}
