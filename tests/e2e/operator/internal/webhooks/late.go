package webhooks

import (
	"context"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

const lookAgain = 50 * time.Millisecond

// Late is a server that does not listen before a file is there: an operator that starts slowly.
type Late struct {
	webhook.Server
	File string
}

// Start waits for the file and serves.
func (l Late) Start(ctx context.Context) error {
	isThere := func(context.Context) (bool, error) {
		_, err := os.Stat(l.File)
		return err == nil, nil
	}
	if err := wait.PollUntilContextCancel(ctx, lookAgain, true, isThere); err != nil {
		// Told to end before it listened.
		return nil
	}
	return l.Server.Start(ctx)
}
