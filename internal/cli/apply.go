package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) applyCommand() *cobra.Command {
	var takeOver string
	var onlyBarrier bool
	cmd := &cobra.Command{
		Use:   "apply -f FILE",
		Short: "Migrate behind the barrier, run the backfills, activate them, and say whether the gate is open",
		Long: `Migrate behind one exclusive lock, raise the fence, run the declared backfills to their activation, and read the serve gate.

Run it again at any time: what is done is agreed with, what is under way goes on where it stopped. It ends with 0 when the
gate of the file's version is open, and with 3 when it is not, because a checkpoint is left to a program of your own. What passes is waited for until --timeout (4). A right that
the role lacks does not pass by itself: it is told at once, with 4 too.

A file with spec.suspend begins nothing, as in a cluster: no barrier, no backfill, no activation. What the gate says is read and answered all the same.`,
		Example: "  syncbarrier apply -f clinic.yaml --database postgres://app@db/clinic\n  syncbarrier apply -f clinic.yaml --database sqlite:clinic.db --timeout 10m",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if takeOver != "" && strings.Count(takeOver, "/") != 2 {
				return usagef("--take-over is not <cluster>/<namespace>/<name>; where the command line is the owner the cluster is empty: /default/clinic")
			}
			ctx, s, end, err := p.open(cmd.Context(), need{file: true, create: true, connections: 4, waits: lockOnly})
			if err != nil {
				return err
			}
			defer end()
			s.target.TakeOver = takeOver
			return p.apply(ctx, s, onlyBarrier)
		},
	}
	cmd.Flags().StringVar(&takeOver, "take-over", "", "take the database schema over from this owner: <cluster>/<namespace>/<name>")
	cmd.Flags().BoolVar(&onlyBarrier, "barrier-only", false, "stop after the barrier; syncbarrier backfill does the rest")
	return cmd
}

type applyOutput struct {
	Reason      string                  `json:"reason"`
	Message     string                  `json:"message"`
	Outcome     storage.DecisionOutcome `json:"outcome"`
	Stored      int64                   `json:"storedVersion"`
	Version     int64                   `json:"version"`
	Checkpoints []string                `json:"checkpoints"`
	LockWaitMS  int64                   `json:"lockWaitMilliseconds"`
	LockHoldMS  int64                   `json:"lockHoldMilliseconds"`
	Open        bool                    `json:"open"`
	Writable    bool                    `json:"writable"`
	Warnings    []string                `json:"warnings,omitempty"`
}

func (p *Program) apply(ctx context.Context, s *session, onlyBarrier bool) error {
	if s.suspended() {
		return p.applySuspended(ctx, s)
	}
	if err := p.checkStandalone(ctx, s); err != nil {
		return err
	}
	result, err := p.applyBarrier(ctx, s)
	if err != nil {
		return err
	}
	if err := p.declareLater(ctx, s); err != nil {
		return err
	}
	if !onlyBarrier {
		if err := p.runBackfills(ctx, s); err != nil {
			return err
		}
	}
	gate, err := s.store.ReadServeGate(ctx, s.target.Version)
	if err != nil {
		return err
	}
	verdict := gate.Verdict()
	out := applyOutput{
		Reason: string(verdict.Reason), Message: verdict.Message, Outcome: result.Outcome, Stored: gate.StoredVersion, Version: s.target.Version,
		Checkpoints: result.Declared, LockWaitMS: result.LockWait.Milliseconds(), LockHoldMS: result.LockHold.Milliseconds(),
		Open: verdict.Open, Writable: verdict.Writable, Warnings: result.Warnings,
	}
	err = p.print(out, func(w io.Writer) { writeGate(w, s.target.Owner.Name, s.target.Version, verdict) })
	if err == nil && !verdict.Open && !onlyBarrier {
		return reported{exitGateClosed}
	}
	return err
}

// suspendedNote says what a suspended file means to apply.
const suspendedNote = "spec.suspend is true: apply begins no barrier, no backfill and no activation; take it out of the file to go on"

// applySuspended changes nothing, and answers by the gate as any other apply.
func (p *Program) applySuspended(ctx context.Context, s *session) error {
	gate, err := s.store.ReadServeGate(ctx, s.target.Version)
	if err != nil {
		return err
	}
	verdict := gate.Verdict()
	out := applyOutput{
		Reason: string(verdict.Reason), Message: verdict.Message, Stored: gate.StoredVersion, Version: s.target.Version,
		Checkpoints: []string{}, Open: verdict.Open, Writable: verdict.Writable, Warnings: []string{suspendedNote},
	}
	if !verdict.Open { // as its condition Ready would say
		out.Reason, out.Message = v1alpha1.ReasonSuspended, suspendedNote+". "+verdict.Message
	}
	p.say("note: %s", suspendedNote)
	err = p.print(out, func(w io.Writer) { writeGate(w, s.target.Owner.Name, s.target.Version, verdict) })
	if err == nil && !verdict.Open {
		return reported{exitGateClosed}
	}
	return err
}

// applyBarrier makes attempts and tells about those that have to wait.
func (p *Program) applyBarrier(ctx context.Context, s *session) (storage.BarrierResult, error) {
	engine := &barrier.Engine{Store: s.store, Clock: p.Clock, Report: func(w barrier.Waiting) {
		p.say("attempt %d: %s: %v; trying again in %s", w.Attempt, storage.ClassOf(w.Err), w.Err, w.Pause.Round(100_000_000))
	}}
	result, err := engine.Apply(ctx, s.target)
	if storage.CodeOf(err) == storage.CodeRightMissing {
		return result, fmt.Errorf("the role lacks a right; grant it and run apply again (syncbarrier plan notes the rights it knows to be missing): %w", err)
	}
	if err != nil {
		return result, err
	}
	switch result.Outcome {
	case storage.Agreed:
		p.say("barrier: version %d is applied already", result.Version)
	case storage.Adopt:
		p.say("barrier: version %d was there, brought by another program; recorded", result.Version)
	default:
		p.say("barrier: version %d -> %d in one transaction, lock waited for %s, held %s", result.Stored, result.Version,
			result.LockWait.Round(1_000_000), result.LockHold.Round(1_000_000))
	}
	for _, warning := range result.Warnings {
		p.say("note: %s", warning)
	}
	return result, nil
}

// declareLater declares standalone checkpoints that came after their version's barrier, and passes live settings on.
func (p *Program) declareLater(ctx context.Context, s *session) error {
	status, err := s.store.Status(ctx)
	if err != nil {
		return err
	}
	stored := map[string]storage.CheckpointProgress{}
	for _, c := range status.Checkpoints {
		stored[c.Definition.Name] = c
	}
	for _, c := range s.target.Checkpoints {
		progress, known := stored[c.Name]
		switch {
		case c.Standalone && !known:
			if _, err := s.store.DeclareCheckpoint(ctx, c, s.target.Tables); err != nil {
				return fmt.Errorf("declare standalone checkpoint %q: %w", c.Name, err)
			}
		case known && progress.Definition.Hash != "" && progress.Settings != c.Settings:
			if err := s.store.WriteSettings(ctx, c.Name, c.Settings); err != nil {
				return fmt.Errorf("settings of checkpoint %q: %w", c.Name, err)
			}
		}
	}
	return nil
}

// runBackfills runs every checkpoint that is not activated and that we have the SQL of, lowest version first.
func (p *Program) runBackfills(ctx context.Context, s *session) error {
	status, err := s.store.Status(ctx)
	if err != nil {
		return err
	}
	open := slices.DeleteFunc(status.Checkpoints, func(c storage.CheckpointProgress) bool { return c.Activated == c.Total })
	slices.SortStableFunc(open, func(a, b storage.CheckpointProgress) int {
		return cmp.Or(cmp.Compare(a.Definition.Version, b.Definition.Version), cmp.Compare(a.Definition.Name, b.Definition.Name))
	})
	for _, checkpoint := range open {
		name := checkpoint.Definition.Name
		if checkpoint.Definition.Hash == "" {
			p.say("backfill %s: declared by another program, which has to activate it", legible.Name(name))
			continue
		}
		if checkpoint.Definition.Checkpoint.Backfill.External() {
			p.say("backfill %s: left to your own program (syncbarrier checkpoint claim, advance, activate)", legible.Name(name))
			continue
		}
		if err := p.finishBackfill(ctx, s, name); err != nil {
			return err
		}
	}
	return nil
}

// finishBackfill brings a checkpoint to its activation, whoever does the work. An apply that runs at the same time may claim it: then its
// progress is watched, and only if it stands still for a while is the work claimed back. Claiming is safe at any time; the pause only
// keeps two of us from taking it from each other in turn.
func (p *Program) finishBackfill(ctx context.Context, s *session, name string) error {
	for {
		err := p.runBackfill(ctx, s, name, func(r *backfill.Runner) error { return r.RunAll(ctx, name) })
		if storage.ClassOf(err) != storage.ClassOwnershipLost {
			return err
		}
		p.say("backfill %s: another process has claimed it; waiting for its activation", legible.Name(name))
		activated, err := p.watch(ctx, s, name)
		if err != nil || activated {
			return err
		}
	}
}

const (
	watchEvery = 500 * time.Millisecond
	// standsStill: a worker that moves nothing for so long is taken over from.
	standsStill = 30 * time.Second
)

// watch waits until a checkpoint is activated (true), or its progress stands still (false).
func (p *Program) watch(ctx context.Context, s *session, name string) (activated bool, err error) {
	last, moved := "", p.Clock.Now()
	for {
		progress, err := s.store.ReadProgress(ctx, name)
		switch {
		case err != nil && !storage.ClassOf(err).Retryable():
			return false, err
		case err == nil && progress.Activated == progress.Total:
			return true, nil
		case err == nil:
			now := fmt.Sprint(progress.RowsDone, progress.RangesDone, progress.Activated, progress.ClaimToken)
			if now != last {
				last, moved = now, p.Clock.Now()
			}
		}
		if p.Clock.Now().Sub(moved) > standsStill {
			return false, nil
		}
		if err := p.Clock.Sleep(ctx, watchEvery); err != nil {
			return false, err
		}
	}
}
