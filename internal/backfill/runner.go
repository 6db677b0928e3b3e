// Package backfill runs a declared backfill to its activation: scan, tail, verify, activate (docs/design.md section 6). It
// holds the loops and no SQL; every step is one transaction of a Store, whose last statement checks that this worker still
// owns what it works on. So a worker can be killed, frozen or replaced at any moment: what it had committed stands, what it
// had not is gone, and whoever owns the work now goes on at the cursor.
package backfill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Runner does the share of one worker.
type Runner struct {
	Store storage.Store
	Clock clock.Clock // nil means the real one
	// Report, if set, is told what happens, from the goroutine that runs.
	Report func(Event)
	// BeforeCommit, if set, runs inside each activation's transaction with all its locks held (storage.Activation).
	BeforeCommit func(ctx context.Context, q storage.Querier) error
}

// Share is the part of a claim that one worker does: the ranges r with r mod Of = Index.
type Share struct {
	Index int
	Of    int
}

// Event is something worth showing.
type Event struct {
	Kind       EventKind
	Checkpoint string
	Partition  string
	Rows       int64 // rows this worker has applied so far
	Rest       int64 // activation: rows applied under the locks
	Pause      time.Duration
	Err        error
}

// EventKind says what happened.
type EventKind string

// The kinds.
const (
	EventScanned    EventKind = "scanned"    // a batch of the scan
	EventTailed     EventKind = "tailed"     // a batch of the log
	EventActivated  EventKind = "activated"  // a checkpoint row
	EventWaiting    EventKind = "waiting"    // something that passes; Err and Pause say what and how long
	EventRestarting EventKind = "restarting" // the log could not answer; the pass begins again
)

// maxRestarts is how often a pass begins again because the log could not answer, before a person has to look.
const maxRestarts = 3

// RunAll claims a checkpoint and does all of it with so many workers as its settings say. A pass that turns out unverifiable is
// started again under a new claim, three times at most.
//
// Errors: CodeCheckpointNotDeclared, CodeCheckpointDefinitionMissing, CodeOwnershipLost (somebody else claimed it), CodeVerificationFailed,
// CodeInvalidSQL (naming the key), CodeNotConverging, CodeUnverifiable, or the context's.
func (r *Runner) RunAll(ctx context.Context, name string) error {
	restart := false
	for {
		err := r.claimAndRun(ctx, name, restart)
		if storage.ClassOf(err) != storage.ClassUnverifiable {
			return err
		}
		progress, readErr := r.Store.ReadProgress(ctx, name)
		if readErr != nil {
			return readErr
		}
		if progress.Restarts >= maxRestarts {
			return err
		}
		r.report(Event{Kind: EventRestarting, Checkpoint: name, Err: err})
		restart = true
	}
}

func (r *Runner) claimAndRun(ctx context.Context, name string, restart bool) error {
	var claim storage.Claim
	var parallelism int
	err := r.persist(ctx, name, func() error {
		progress, err := r.Store.ReadProgress(ctx, name)
		if err != nil {
			return err
		}
		parallelism = progress.Settings.WithDefaults().Parallelism
		claim, err = r.Store.ClaimAll(ctx, name, restart)
		return err
	})
	if err != nil {
		return err
	}
	return r.inParallel(ctx, claim, parallelism)
}

// inParallel runs all shares of a claim and returns the first failure, after every worker has ended.
func (r *Runner) inParallel(ctx context.Context, claim storage.Claim, workers int) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	results := make(chan error, workers)
	shared := &Runner{Store: r.Store, Clock: r.Clock, Report: serialised(r.Report), BeforeCommit: r.BeforeCommit}
	for index := range workers {
		go func() { results <- shared.Run(ctx, claim, Share{Index: index, Of: workers}) }()
	}
	var first error
	for range workers {
		if err := <-results; err != nil && first == nil {
			first = err
			stop(err)
		}
	}
	return first
}

// Run does one share of a claim: it returns nil once the ranges of the share are scanned and every row that this worker had
// to activate is activated. Errors as RunAll; an unverifiable pass is returned, not restarted, since a claim with several
// workers is restarted by whoever made it.
func (r *Runner) Run(ctx context.Context, claim storage.Claim, share Share) error {
	if len(claim.Rows) == 0 {
		return nil
	}
	w := &worker{Runner: r, claim: claim, share: share, pace: newPacer(r.time(), share.Of)}
	err := w.run(ctx)
	if err != nil && storage.ClassOf(err) != storage.ClassOwnershipLost && ctx.Err() == nil {
		// Kept for status; that the record fails as well must not hide the failure itself.
		_ = r.Store.RecordError(ctx, claim, err.Error())
	}
	return err
}

func (r *Runner) time() clock.Clock { return clock.Or(r.Clock) }

func (r *Runner) report(event Event) {
	if r.Report != nil {
		r.Report(event)
	}
}

// serialised lets several workers report to one function.
func serialised(report func(Event)) func(Event) {
	if report == nil {
		return nil
	}
	gate := make(chan struct{}, 1)
	return func(event Event) {
		gate <- struct{}{}
		defer func() { <-gate }()
		report(event)
	}
}

// Bounds of the pause before something that passes is tried again.
const (
	shortestPause = 50 * time.Millisecond
	longestPause  = 10 * time.Second
	// dutyFactor: a pause is at least so many times what a step held rows of the program.
	dutyFactor = 4
	// endedBound: a step that is ended by its time limit so many times running is a person's to look at.
	endedBound = 5
)

// persist repeats a step until it succeeds, fails for good, or ctx ends. An unreachable database is waited out here, inside
// the worker: it must not use up the retries of a Job.
func (r *Runner) persist(ctx context.Context, name string, step func() error) error {
	for try := 0; ; try++ {
		err := step()
		if err == nil || !storage.ClassOf(err).Retryable() {
			return err
		}
		pause := min(longestPause, shortestPause<<min(try, 10))
		pause += time.Duration(rand.Float64() * float64(pause) / 2)
		r.report(Event{Kind: EventWaiting, Checkpoint: name, Err: err, Pause: pause})
		if ended := r.time().Sleep(ctx, pause); ended != nil {
			return fmt.Errorf("%w (last: %w)", ended, err)
		}
	}
}

// tooLong is what a step ends with that its time limit ended again and again.
func tooLong(err error, hint string) error {
	return (&storage.Error{
		Code: storage.CodeNotConverging, Err: err, Message: fmt.Sprintf("ended by its time limit %d times running", endedBound),
	}).WithHint("%s", hint)
}
