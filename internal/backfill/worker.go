package backfill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// worker is one run of one share.
type worker struct {
	*Runner
	claim storage.Claim
	share Share
	pace  *pacer
	rows  int64
	// leftovers are those of the row whose log was read last.
	leftovers int64
	// tailed is when the log was read last while the scan went on.
	tailed time.Time
}

// run reads like the protocol: take the ranges, scan them, then bring each row that this worker touched to activation.
func (w *worker) run(ctx context.Context) error {
	var leases []storage.Lease
	err := w.persist(ctx, w.claim.Name, func() (err error) {
		leases, err = w.Store.TakeRanges(ctx, w.claim, w.share.Index, w.share.Of)
		return err
	})
	if err != nil {
		return err
	}
	if err := w.shareTheRate(ctx); err != nil {
		return err
	}
	touched := map[string]bool{}
	for _, lease := range leases {
		touched[lease.Partition] = true
		if err := w.scan(ctx, lease); err != nil {
			return err
		}
	}
	for _, row := range w.claim.Rows {
		if touched[row.Partition] {
			if err := w.finish(ctx, row.Partition); err != nil {
				return err
			}
		}
	}
	return nil
}

// shareTheRate divides the rate limit by the workers that have something to scan: with fewer ranges than workers the others have
// nothing to do, and their share would be lost.
func (w *worker) shareTheRate(ctx context.Context) error {
	return w.persist(ctx, w.claim.Name, func() error {
		progress, err := w.Store.ReadProgress(ctx, w.claim.Name)
		if err == nil {
			w.pace.workers = max(1, min(w.share.Of, progress.RangesTotal-progress.RangesDone))
		}
		return err
	})
}

// scan goes over one key range.
func (w *worker) scan(ctx context.Context, lease storage.Lease) error {
	for !lease.Done {
		batch, err := w.scanBatch(ctx, lease)
		if err != nil {
			return err
		}
		if batch.Unverifiable != "" {
			return w.unverifiable(lease.Partition, batch.Unverifiable)
		}
		w.rows += batch.Rows
		w.report(Event{Kind: EventScanned, Checkpoint: w.claim.Name, Partition: lease.Partition, Rows: w.rows})
		lease.Done = batch.Done
		if err := w.yield(ctx, batch); err != nil {
			return err
		}
		if err := w.tailMeanwhile(ctx, lease.Partition); err != nil {
			return err
		}
		if batch.Rows == 0 && batch.Skipped > 0 && !batch.Done {
			// Too many rows are held by the program to go on: give those another try before reading further.
			if _, err := w.retryLeftovers(ctx, lease.Partition); err != nil {
				return err
			}
		}
	}
	return nil
}

// tailMeanwhileEvery is how often the log is read during a scan.
const tailMeanwhileEvery = 5 * time.Second

// tailMeanwhile reads some of the log now and then while a scan goes on. What is applied of a captured log can be pruned, so it does not grow
// with the time that the scan takes; and a pass that proves nothing any more ends early.
func (w *worker) tailMeanwhile(ctx context.Context, partition string) error {
	now := w.time().Now()
	if w.tailed.IsZero() {
		w.tailed = now
	}
	if now.Sub(w.tailed) < tailMeanwhileEvery {
		return nil
	}
	for range tailMeanwhileBatches {
		done, err := w.tail(ctx, partition)
		if err != nil {
			return err
		}
		if done {
			break
		}
	}
	w.tailed = w.time().Now()
	return nil
}

// tailMeanwhileBatches is how many batches of the log come between two of the scan at most.
const tailMeanwhileBatches = 10

// tail does one batch of the log. done says that nothing more was there.
func (w *worker) tail(ctx context.Context, partition string) (done bool, err error) {
	batch, err := w.tailBatch(ctx, partition)
	if err != nil {
		return false, err
	}
	if batch.Unverifiable != "" {
		return false, w.unverifiable(partition, batch.Unverifiable)
	}
	w.rows += batch.Rows
	w.leftovers = batch.Leftovers
	w.report(Event{Kind: EventTailed, Checkpoint: w.claim.Name, Partition: partition, Rows: w.rows})
	return batch.Done, w.yield(ctx, batch)
}

// scanBatch does one batch. Where the user's SQL fails it looks for the row it fails on: it halves the batch until the
// error names one key. The rows before that one are kept.
func (w *worker) scanBatch(ctx context.Context, lease storage.Lease) (storage.Batch, error) {
	batch, err := w.tryScan(ctx, lease)
	for limit := storage.DefaultBatchRows; storage.ClassOf(err) == storage.ClassInvalidSQL && lease.Limit != 1; limit /= 2 {
		lease.Limit = max(1, limit)
		batch, err = w.scanTwice(ctx, lease)
	}
	return batch, err
}

// scanTwice covers what a batch of twice the size failed on; if it passes now, the row was changed meanwhile.
func (w *worker) scanTwice(ctx context.Context, lease storage.Lease) (storage.Batch, error) {
	first, err := w.tryScan(ctx, lease)
	if err != nil || first.Done {
		return first, err
	}
	second, err := w.tryScan(ctx, lease)
	second.Rows += first.Rows
	return second, err
}

func (w *worker) tryScan(ctx context.Context, lease storage.Lease) (batch storage.Batch, err error) {
	err = w.persistBatch(ctx, func() (err error) {
		batch, err = w.Store.ScanBatch(ctx, w.claim, lease)
		return err
	})
	return batch, err
}

// persistBatch is persist for a batch, which holds the rows that it fills. One that its time limit ends would do so again at once, and keep their
// writers out for nearly all of the time: it is rested from, and given up after some.
func (w *worker) persistBatch(ctx context.Context, step func() error) error {
	ended := 0
	return w.persist(ctx, w.claim.Name, func() error {
		started := w.time().Now()
		err := step()
		if storage.ClassOf(err) != storage.ClassCancelled || ctx.Err() != nil {
			ended = 0
			return err
		}
		if ended++; ended == endedBound {
			return tooLong(err, "make batchRows smaller, or the backfill's SQL faster, and retry")
		}
		pause := dutyFactor * w.time().Now().Sub(started)
		w.report(Event{Kind: EventWaiting, Checkpoint: w.claim.Name, Rows: w.rows, Err: err, Pause: pause})
		if over := w.time().Sleep(ctx, pause); over != nil {
			return fmt.Errorf("%w (last: %w)", over, err)
		}
		return err
	})
}

// finish brings one checkpoint row from scanned to activated. It returns nil without activating if other workers still
// scan ranges of the row: whoever ends the last one activates it.
func (w *worker) finish(ctx context.Context, partition string) error {
	attempt := newAttempts(w.Runner)
	for {
		if err := w.catchUp(ctx, partition); err != nil {
			return err
		}
		if !attempt.verified {
			err := w.persist(ctx, w.claim.Name, func() error { return w.Store.VerifyRow(ctx, w.claim, partition) })
			if err != nil {
				return err
			}
			attempt.verified = true
			continue // it took its time: the log has grown
		}
		started := w.time().Now()
		report, err := w.Store.Activate(ctx, w.claim, attempt.next(partition))
		switch {
		case storage.CodeOf(err) == storage.CodeScanIncomplete:
			return nil
		case err != nil && !storage.ClassOf(err).Retryable():
			return err
		case err == nil && report.Outcome == storage.OutcomeActivated:
			w.report(Event{Kind: EventActivated, Checkpoint: w.claim.Name, Partition: partition, Rows: w.rows, Rest: report.Rest})
			return nil
		case err == nil && report.Outcome == storage.OutcomeLost:
			return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q, partition %q: another claim owns it now", w.claim.Name, partition)
		case err == nil && report.Outcome == storage.OutcomeUnverifiable:
			return w.unverifiable(partition, report.Reason)
		}
		if err := attempt.failed(ctx, w, partition, report, w.time().Now().Sub(started), err); err != nil {
			return err
		}
	}
}

func (w *worker) unverifiable(partition, reason string) error {
	return storage.Refuse(storage.CodeUnverifiable, "checkpoint %q, partition %q: %s", w.claim.Name, partition, reason)
}

// catchUp reads the log until a batch finds nothing more, and tries the leftovers once.
func (w *worker) catchUp(ctx context.Context, partition string) error {
	for rounds := 0; rounds < catchUpRounds; rounds++ {
		done, err := w.tail(ctx, partition)
		if err != nil {
			return err
		}
		if !done {
			continue
		}
		if w.leftovers > 0 {
			_, err = w.retryLeftovers(ctx, partition)
		}
		return err
	}
	return nil
}

// catchUpRounds bounds one catching up under a load that never rests; what is left then is activation's to take.
const catchUpRounds = 1000

// tailLimit is how many logged changes one tail batch takes.
const tailLimit = 5000

func (w *worker) tailBatch(ctx context.Context, partition string) (batch storage.Batch, err error) {
	err = w.persistBatch(ctx, func() (err error) {
		batch, err = w.Store.TailBatch(ctx, w.claim, partition, tailLimit)
		return err
	})
	return batch, err
}

func (w *worker) retryLeftovers(ctx context.Context, partition string) (batch storage.Batch, err error) {
	err = w.persistBatch(ctx, func() (err error) {
		batch, err = w.Store.RetryLeftovers(ctx, w.claim, partition, tailLimit)
		return err
	})
	w.rows += batch.Rows
	return batch, err
}

// yield lets the limits of the live settings take effect after a batch: pause, rate, replication lag.
func (w *worker) yield(ctx context.Context, batch storage.Batch) error {
	settings := batch.Settings
	for settings.Paused {
		w.report(Event{Kind: EventWaiting, Checkpoint: w.claim.Name, Err: errPaused, Pause: pausePoll})
		if err := w.time().Sleep(ctx, pausePoll); err != nil {
			return err
		}
		progress, err := w.Store.ReadProgress(ctx, w.claim.Name)
		if err != nil && !storage.ClassOf(err).Retryable() {
			return err
		}
		if err == nil {
			settings = progress.Settings
		}
	}
	if err := w.pace.wait(ctx, batch.Rows, settings.MaxRowsPerSecond); err != nil {
		return err
	}
	return w.waitForStandbys(ctx, settings.MaxReplicationLagSeconds)
}

var errPaused = fmt.Errorf("paused by its settings")

// pausePoll is how often a paused worker, or one that waits for standbys, looks again.
const pausePoll = time.Second

func (w *worker) waitForStandbys(ctx context.Context, maxSeconds int) error {
	if maxSeconds <= 0 || !w.pace.lagIsDue() {
		return nil
	}
	for {
		var lag time.Duration
		err := w.persist(ctx, w.claim.Name, func() (err error) {
			lag, err = w.Store.ReplicationLag(ctx)
			return err
		})
		if err != nil || lag <= time.Duration(maxSeconds)*time.Second {
			return err
		}
		waiting := fmt.Errorf("standbys are %s behind, at most %ds are allowed", lag.Round(time.Second), maxSeconds)
		w.report(Event{Kind: EventWaiting, Checkpoint: w.claim.Name, Err: waiting, Pause: pausePoll})
		if err := w.time().Sleep(ctx, pausePoll); err != nil {
			return err
		}
	}
}

// attempts counts the tries to activate one row.
type attempts struct {
	*Runner
	count    int
	refused  int // attempts that failed, by a lock that was not had as a rule
	ended    int // attempts running that their time limit ended
	maxRest  int
	verified bool
}

// Bounds of activation.
const (
	// lastResortAfter: so many attempts without the locks, and the source tables are locked instead of rows.
	lastResortAfter = 20
	// attemptsBound: beyond it the backfill does not converge and a person has to look.
	attemptsBound = 500
	firstMaxRest  = 1000
	lastMaxRest   = 100_000
)

func newAttempts(r *Runner) *attempts { return &attempts{Runner: r, maxRest: firstMaxRest} }

func (a *attempts) next(partition string) storage.Activation {
	a.count++
	return storage.Activation{Partition: partition, Tables: a.refused >= lastResortAfter, MaxRest: a.maxRest, BeforeCommit: a.BeforeCommit}
}

// failed pauses before the next attempt, or gives up. A rest that was too large may be larger the next time: so it ends under
// constant load too. Writers have at least four fifths of the time for themselves, whatever an attempt failed for; one that its time limit ends
// under the locks, as by a check that reads the whole table, is given up after some.
func (a *attempts) failed(ctx context.Context, w *worker, partition string, report storage.ActivationReport, took time.Duration, err error) error {
	if a.count >= attemptsBound {
		return &storage.Error{Code: storage.CodeNotConverging, Err: err,
			Message: fmt.Sprintf("checkpoint %q, partition %q is not activated after %d attempts; the last left %d changes", w.claim.Name, partition, a.count, report.Rest)}
	}
	if err == nil {
		a.maxRest = min(lastMaxRest, a.maxRest*2)
		return nil
	}
	held := report.Held
	switch class := storage.ClassOf(err); {
	case class == storage.ClassLockTimeout:
		held = max(held, took) // writers queue behind whoever waits
	case class == storage.ClassCancelled && held > 0 && ctx.Err() == nil:
		if a.ended++; a.ended == endedBound {
			return tooLong(err, "it runs under locks, where each statement has some seconds: help it to find the rows by their keys, as by an index, and retry")
		}
	default:
		a.ended = 0
	}
	a.refused++
	pause := min(2*time.Second, shortestPause<<min(a.refused, 6))
	pause += time.Duration(rand.Float64() * float64(pause))
	pause = max(pause, dutyFactor*held)
	a.report(Event{Kind: EventWaiting, Checkpoint: w.claim.Name, Partition: partition, Err: err, Pause: pause})
	return a.time().Sleep(ctx, pause)
}
