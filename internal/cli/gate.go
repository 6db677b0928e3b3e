package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// gateEvery is how often a waiting gate is read.
const gateEvery = 250 * time.Millisecond

// lastReadBound bounds the read that is shown, which happens after a wait has used --timeout up.
const lastReadBound = 5 * time.Second

func (p *Program) gateCommand() *cobra.Command {
	var version int64
	var wait bool
	cmd := &cobra.Command{
		Use:   "gate --version N",
		Short: "May a program of version N serve? Exit 0: open; 3: closed, and why",
		Long: `Says whether a program of version N may serve, by one read of the database. Exit code 0: it may. 3: it may not, and why: the database is
at a lower version, a checkpoint of a version up to N is not activated, or the program is too old to read what is there. An error is never a yes.

"Reads only" beside an open gate: the fence refuses the writes of that version. With --wait it is asked until the gate is open; 4: --timeout
ended first.`,
		Example: "  syncbarrier gate --version 7 --database postgres://app@db/clinic\n  syncbarrier gate --version 7 --wait --timeout 6h --database-file /etc/clinic/uri",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n := need{connections: 1}
			if wait {
				n.waits = []storage.Class{storage.ClassLockTimeout, storage.ClassConnectionLost, storage.ClassThrottled}
			}
			ctx, s, end, err := p.open(cmd.Context(), n)
			if err != nil {
				return err
			}
			defer end()
			if version == 0 && s.file != nil {
				version = s.target.Version
			}
			if version < 1 || version > 2147483647 {
				return usagef("--version N is needed: 1 to 2147483647, the version that the program was built for")
			}
			return p.gate(ctx, s, version, wait)
		},
	}
	cmd.Flags().Int64Var(&version, "version", 0, "the version that the program was built for (default: the file's)")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until the gate is open, or --timeout ends")
	return cmd
}

type gateOutput struct {
	Reason        string                      `json:"reason"`
	Message       string                      `json:"message"`
	Open          bool                        `json:"open"`
	Writable      bool                        `json:"writable"`
	StoredVersion int64                       `json:"storedVersion"`
	Version       int64                       `json:"version"`
	Pending       []storage.PendingCheckpoint `json:"pending,omitempty"`
}

func (p *Program) gate(ctx context.Context, s *session, version int64, wait bool) error {
	owner := s.gateOwner()
	if wait {
		engine := &barrier.Engine{Store: s.store, Clock: p.Clock}
		verdict, err := engine.WaitForGate(ctx, version, gateEvery, func(gate storage.ServeGate) storage.GateVerdict {
			return gate.VerdictFor(owner)
		})
		if err != nil && (!errors.Is(err, context.DeadlineExceeded) || verdict.Reason == "") {
			return err
		}
		if err != nil {
			p.say("gave up waiting after %s (--timeout)", p.flags.timeout)
		}
	}
	// Printed from a read of its own, so that what is shown is what was read.
	readCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastReadBound)
	defer cancel()
	gate, err := s.store.ReadServeGate(readCtx, version)
	if err != nil {
		return err
	}
	verdict := gate.VerdictFor(owner)
	out := gateOutput{
		Reason: string(verdict.Reason), Message: verdict.Message, Open: verdict.Open, Writable: verdict.Writable,
		StoredVersion: gate.StoredVersion, Version: version, Pending: gate.Pending,
	}
	name := ""
	if s.file != nil {
		name = s.target.Owner.Name
	}
	if err := p.print(out, func(w io.Writer) { writeGate(w, name, version, verdict) }); err != nil {
		return err
	}
	switch {
	case verdict.Open:
		return nil
	case wait:
		return reported{exitGaveUp}
	default:
		return reported{exitGateClosed}
	}
}

// gateOwner is whose gate is asked for: that of the file's SyncSchema, in whatever cluster it is, and in the namespace that the file names; without
// a file anybody's.
func (s *session) gateOwner() storage.Owner {
	if s.file == nil {
		return storage.Owner{}
	}
	return storage.Owner{Namespace: s.file.Namespace, Name: s.file.Schema.Name}
}

func writeGate(w io.Writer, name string, version int64, verdict storage.GateVerdict) {
	subject := fmt.Sprintf("version %d", version)
	if name != "" {
		subject = fmt.Sprintf("%s version %d", name, version)
	}
	if verdict.Open {
		writeLine(w, "gate open: %s%s", subject, readOnly(verdict))
		return
	}
	writeLine(w, "gate closed: %s: %s: %s", subject, verdict.Reason, verdict.Message)
}

func readOnly(verdict storage.GateVerdict) string {
	if verdict.Writable {
		return ""
	}
	return " (reads only: the fence refuses its writes)"
}
