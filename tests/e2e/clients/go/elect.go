package main

import (
	"context"
	"errors"
	"flag"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"e2e-clients/internal/report"
)

// elect prints: created, renewed, released, refused (each write of the lock), acquired, leader (any identity), lost.
func elect(p *program, fs *flag.FlagSet) func(context.Context) error {
	host, _ := os.Hostname()
	lock := fs.String("lock", "elect", "name of the Lease")
	identity := fs.String("identity", host, "name to be known by")
	seconds := fs.Float64("seconds", 10, "how long to take part")
	lease := fs.Duration("lease-duration", 3*time.Second, "how long others wait before they take over")
	renew := fs.Duration("renew-deadline", 2*time.Second, "how long to try to renew before giving up")
	retry := fs.Duration("retry-period", 500*time.Millisecond, "how long to wait between tries")
	release := fs.Bool("release", true, "give the Lease up at the end")
	return func(ctx context.Context) error {
		config, err := p.typedConfig()
		if err != nil {
			return err
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		lease0, err := resourcelock.New(resourcelock.LeasesResourceLock, p.namespace, *lock, client.CoreV1(), client.CoordinationV1(),
			resourcelock.ResourceLockConfig{Identity: *identity})
		if err != nil {
			return err
		}
		var acquired atomic.Bool
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock:            reportedLock{lease0, p.report},
			LeaseDuration:   *lease,
			RenewDeadline:   *renew,
			RetryPeriod:     *retry,
			ReleaseOnCancel: *release,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(context.Context) {
					acquired.Store(true)
					p.report.Event("acquired", report.Fields{"identity": *identity})
				},
				OnStoppedLeading: func() { p.report.Event("lost", report.Fields{"identity": *identity, "told": ctx.Err() != nil}) },
				OnNewLeader:      func(leader string) { p.report.Event("leader", report.Fields{"identity": leader}) },
			},
		})
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(*seconds*float64(time.Second)))
		defer cancel()
		for ctx.Err() == nil {
			elector.Run(ctx)
		}
		if !acquired.Load() {
			return errors.New("never acquired the lease")
		}
		return nil
	}
}

// reportedLock tells of the writes of the lock that it is.
type reportedLock struct {
	resourcelock.Interface
	report *report.Reporter
}

func (l reportedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Create(ctx, record)
	l.tell("created", record, err)
	return err
}

func (l reportedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.Interface.Update(ctx, record)
	if record.HolderIdentity == "" {
		l.tell("released", record, err)
	} else {
		l.tell("renewed", record, err)
	}
	return err
}

func (l reportedLock) tell(event string, record resourcelock.LeaderElectionRecord, err error) {
	fields := report.Fields{"holder": record.HolderIdentity, "transitions": record.LeaderTransitions}
	if err != nil {
		fields["wanted"], fields["error"] = event, err.Error()
		event = "refused"
	}
	l.report.Event(event, fields)
}
