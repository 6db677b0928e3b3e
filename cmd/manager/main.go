package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

const explanation = `The operator of Syncbarrier.

It migrates the databases that SyncSchemas name, each behind one exclusive lock, has the backfills of a version run as Jobs, and shows
in status whether programs of that version may serve. The database is the truth: the operator may be stopped at any moment, in the
middle of a migration too, and goes on when it is back.

Of several replicas one works, the holder of a lease. A replica that loses the lease cancels what it does in databases, which roll it
back, and ends with exit code 1; so does one that cannot start. SIGTERM and SIGINT end it with 0.

With --webhook-bind-address every replica serves the webhook of config/webhook: it gives pods that ask for it the serve gate, and has plans
approved by those who may.

Probes are at /healthz and /readyz, metrics at /metrics. The environment gives POD_NAME and POD_NAMESPACE, the manager's own pod, from
which the image of the workers is read.`

// version is set by the linker, see VERSION in the Makefile.
var version = "development"

func main() {
	if err := command().Execute(); err != nil {
		if !errors.Is(err, errLogged) {
			fmt.Fprintln(os.Stderr, "manager:", err)
		}
		os.Exit(1)
	}
}

// errLogged ends the program after its error was logged, in the form that the log has.
var errLogged = errors.New("the error is in the log")

// command is the program's one verb.
func command() *cobra.Command {
	o := options{podName: os.Getenv("POD_NAME"), podNamespace: os.Getenv("POD_NAMESPACE")}
	root := &cobra.Command{
		Use:   "manager",
		Short: "The operator of Syncbarrier",
		Long:  explanation,
		Example: "  manager                                        in a pod, for all namespaces\n" +
			"  manager --namespaces=shop                      for one namespace\n" +
			"  manager --leader-elect=false --worker-image=I  on your machine, for the cluster of your kubeconfig",
		Version:       version,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.leaderNamespace == "" {
				o.leaderNamespace = o.podNamespace
			}
			if err := o.check(); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, syscall.SIGINT)
			defer stop()
			logger := newLogger(os.Stderr, &o)
			useLogger(logger)
			logger.Info("the manager begins", "version", version)
			if err := run(ctx, &o); err != nil {
				logger.Error(err, "the manager ends")
				return errLogged
			}
			return nil
		},
	}
	o.register(root.Flags())
	root.SetContext(context.Background())
	return root
}
