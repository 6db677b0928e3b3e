package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// activationStatement bounds a statement that runs under the locks.
	activationStatement = 10 * time.Second
	// defaultMaxRest is how many rows are filled under the locks if the caller does not say.
	defaultMaxRest = 10_000
)

// Activate makes one bounded attempt to activate a row. With a log of its program's own the partition comes first: that waits for every
// transaction that has a number of it, and keeps the next from taking one. With captured sources the rows that are known to be left come
// first. Then what is still to be done is read again, filled,
// verified, and the row flips. All waits together stay below half of deadlock_timeout, so the program's deadlock detector never
// finds us. An attempt that fails leaves nothing.
//
// The row '*' takes all partitions at once, of captured sources their tables. Tables locks the source tables first, for programs that change
// rows before they take their partition.
//
// OutcomeChanged: more is left than MaxRest, with Rest saying how much was seen. Errors: CodeLockTimeout, to try again after a pause;
// CodeScanIncomplete; CodeVerificationFailed; CodeCheckpointFenceMissing; CodeInvalidSQL.
func (s *Store) Activate(ctx context.Context, claim storage.Claim, wanted storage.Activation) (storage.ActivationReport, error) {
	row, ok := claim.Row(wanted.Partition)
	if !ok {
		return storage.ActivationReport{Outcome: storage.OutcomeLost}, nil
	}
	plan, err := s.plan(ctx, claim)
	if storage.CodeOf(err) == storage.CodeOwnershipLost {
		return storage.ActivationReport{Outcome: storage.OutcomeLost}, nil
	}
	if err != nil {
		return storage.ActivationReport{}, err
	}
	if wanted.MaxRest <= 0 {
		wanted.MaxRest = defaultMaxRest
	}
	var a *activation
	what := fmt.Sprintf("activate checkpoint %q, partition %q", claim.Name, wanted.Partition)
	err = s.inTx(ctx, what, txOptions{statementTimeout: activationStatement}, func(ctx context.Context, tx pgx.Tx) error {
		a = &activation{Activation: wanted, batchTx: &batchTx{Tx: tx, store: s, plan: plan, claim: claim, row: row}}
		return a.run(ctx)
	})
	var held time.Duration
	if a != nil && !a.firstLock.IsZero() {
		held = time.Since(a.firstLock)
	}
	var ended activationEnded
	switch {
	case errors.As(err, &ended):
		a.report = storage.ActivationReport(ended)
	case err != nil && a != nil && a.locksTables():
		// By now it is no writer among many, which are gone again before anybody could read their names.
		return storage.ActivationReport{Held: held}, s.explainWanted(ctx, fencedMeanwhile(err, what), shareRowExclusive, 0)
	case err != nil:
		return storage.ActivationReport{Held: held}, fencedMeanwhile(err, what)
	}
	a.report.Held = held
	if a.report.Outcome == storage.OutcomeActivated {
		return a.report, s.settleCapture(ctx, plan, wanted.Partition)
	}
	return a.report, nil
}

// activation is an attempt under way.
type activation struct {
	*batchTx
	storage.Activation
	facts     string
	deadline  time.Time     // of all waits together
	each      time.Duration // bound of one wait
	firstLock time.Time
	report    storage.ActivationReport
}

// activationEnded rolls an attempt back with an outcome.
type activationEnded storage.ActivationReport

func (activationEnded) Error() string { return "the attempt to activate ended" }

func (a *activation) run(ctx context.Context) error {
	if len(a.plan.definition.Checkpoint.Verify) > 0 {
		closeConnection(ctx)
	}
	if err := a.prepare(ctx); err != nil {
		return err
	}
	if err := a.lock(ctx); err != nil {
		return err
	}
	rest, err := a.readTheRest(ctx)
	if err != nil {
		return err
	}
	if err := a.fill(ctx, rest.keys); err != nil {
		return err
	}
	owner := storage.Ownership{Partition: a.partition(), Name: a.claim.Name, OwnerEpoch: a.row.OwnerEpoch, Token: a.claim.Token}
	flipped, err := a.store.flip(ctx, a.Tx, owner, rest.last)
	if err != nil {
		return err
	}
	if !flipped {
		return activationEnded{Outcome: storage.OutcomeLost}
	}
	if err := a.endCaptures(ctx); err != nil {
		return err
	}
	a.report = storage.ActivationReport{Outcome: storage.OutcomeActivated, Rest: int64(len(rest.keys))}
	if a.BeforeCommit != nil {
		if err := a.BeforeCommit(ctx, txReader{a.Tx}); err != nil {
			return err
		}
	}
	return a.checkToken(ctx)
}

// stateSQL is what an attempt decides on. $1 checkpoint, $2 partition.
const stateSQL = `
SELECT c.state, c.owner_epoch, coalesce(k.claim_token, ''), c.watermark, coalesce(k.facts, '{}'), c.schema_version,
       (SELECT count(*)
          FROM {schema}.sync_backfill_progress r
         WHERE r.checkpoint = c.name
           AND r.kind = 'range'
           AND r.partition = c.partition
           AND r.done),
       (SELECT count(*)
          FROM {schema}.sync_backfill_progress r
         WHERE r.checkpoint = c.name
           AND r.kind = 'range'
           AND r.partition = c.partition)
  FROM {schema}.sync_backfill_checkpoints c
  LEFT JOIN {schema}.sync_backfill_progress k
    ON k.checkpoint = c.name
   AND k.kind = 'claim'
   AND k.partition = c.partition
   AND k.range_no = 0
 WHERE c.name = $1::text
   AND c.partition = $2::text`

// prepare sets the bounds, and finds out without a lock whether an attempt makes sense.
func (a *activation) prepare(ctx context.Context) error {
	err := send(ctx, a.Tx, step{
		what: "set the limits", sql: a.store.sql(limitsSQL),
		arguments: []any{milliseconds(batchWait), a.plan.path, a.plan.definition.Version},
	})
	if err != nil {
		return err
	}
	if err := a.judge(ctx, ""); err != nil {
		return err
	}
	if err := a.checkCapture(ctx); err != nil {
		return err
	}
	return a.bound(ctx)
}

// bound begins the time in which the locks have to be had.
func (a *activation) bound(ctx context.Context) error {
	var deadlockTimeout int64
	err := send(ctx, a.Tx, step{
		what: "read deadlock_timeout", rows: scanRow(&deadlockTimeout),
		sql: "SELECT (extract(epoch FROM current_setting('deadlock_timeout')::interval) * 1000)::bigint",
	})
	a.each = time.Duration(deadlockTimeout) * time.Millisecond / 4
	a.deadline = time.Now().Add(2 * a.each)
	return err
}

// judge reads the state of the row and decides whether to go on.
func (a *activation) judge(ctx context.Context, lock string) error {
	var state storage.State
	var epoch, version, done, ranges int64
	var token string
	err := a.QueryRow(ctx, a.store.sql(stateSQL)+lock, a.claim.Name, a.partition()).
		Scan(&state, &epoch, &token, &a.position, &a.facts, &version, &done, &ranges)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return activationEnded{Outcome: storage.OutcomeLost}
	case err != nil:
		return fmt.Errorf("read the checkpoint row: %w", err)
	case state == storage.Activated:
		return activationEnded{Outcome: storage.OutcomeActivated}
	case epoch != a.row.OwnerEpoch || token != a.claim.Token:
		return activationEnded{Outcome: storage.OutcomeLost}
	case ranges == 0 || done < ranges:
		return storage.Refuse(storage.CodeScanIncomplete, "checkpoint %q, partition %q: %d of %d key ranges are scanned to their end",
			a.claim.Name, a.partition(), done, ranges)
	}
	return a.store.requireFenceFor(ctx, a.Tx, a.claim.Name, a.partition(), version)
}

// lock takes the locks of the attempt, each wait and all of them together bounded.
func (a *activation) lock(ctx context.Context) error {
	locks := []func(context.Context) error{a.lockPartitions, a.lockSources}
	switch {
	case a.locksTables() && len(a.plan.loggedTables()) > 0:
		locks = []func(context.Context) error{a.lockTables, a.lockPartitions}
	case a.locksTables():
		locks = []func(context.Context) error{a.lockTables}
	case a.plan.allCaptured():
		locks = []func(context.Context) error{a.lockSources, a.lockKnownRest, a.lockCaptured}
	case a.plan.captures():
		locks = []func(context.Context) error{a.lockSources, a.lockPartitions, a.lockKnownRest, a.lockCaptured}
	}
	for _, lock := range locks {
		if err := lock(ctx); err != nil {
			return err
		}
	}
	if err := a.wait(ctx); err != nil {
		return err
	}
	// The row is held from before its position and leftovers are read: a batch of another worker that has checked its ownership, but is
	// not committed, could otherwise add to them after we looked. Batches take it after their rows; we, holding it, do not wait for rows
	// longer than the bound, so neither waits for the other for ever.
	return a.judge(ctx, "\n   FOR UPDATE OF c")
}

// lockPartitions waits for every transaction that has a number of the partition, and keeps others from taking one until COMMIT. What
// such a transaction changed then stands in the log that is read next, or it comes after the activation.
func (a *activation) lockPartitions(ctx context.Context) error {
	if a.partition() == storage.AllPartitions {
		return a.lockOne(ctx, "sync_partitions", a.store.sql("LOCK TABLE {schema}.sync_partitions IN EXCLUSIVE MODE"))
	}
	err := a.lockOne(ctx, "sync_partitions", a.store.sql(`
		INSERT INTO {schema}.sync_partitions(partition)
		VALUES ($1::text)
		    ON CONFLICT (partition) DO NOTHING`), a.partition())
	if err != nil {
		return err
	}
	return a.lockOne(ctx, "sync_partitions", a.store.sql(`
		SELECT
		  FROM {schema}.sync_partitions
		 WHERE partition = $1::text
		   FOR UPDATE`), a.partition())
}

// lockOne runs a statement that may wait for a lock on a table or its rows.
func (a *activation) lockOne(ctx context.Context, table, sql string, arguments ...any) error {
	if err := a.wait(ctx); err != nil {
		return err
	}
	if _, err := a.Exec(ctx, sql, arguments...); err != nil {
		return a.refused(table, err)
	}
	if a.firstLock.IsZero() {
		a.firstLock = time.Now()
	}
	return nil
}

// wait bounds the next wait.
func (a *activation) wait(ctx context.Context) error {
	left := min(a.each, time.Until(a.deadline))
	if left <= 0 {
		return storage.Refuse(storage.CodeLockTimeout, "activate checkpoint %q, partition %q: the locks were not had in time", a.claim.Name, a.partition())
	}
	_, err := a.Exec(ctx, "SELECT set_config('lock_timeout', $1::bigint::text, true)", milliseconds(left))
	if err != nil {
		return fmt.Errorf("bound the next wait: %w", err)
	}
	return nil
}

// refused names the table of a lock that was not had.
func (a *activation) refused(table string, err error) error {
	if sqlState(err) != stateLockTimeout {
		return fmt.Errorf("lock %s: %w", table, err)
	}
	return &storage.Error{
		Code: storage.CodeLockTimeout, Table: table, Err: withoutDetail(err),
		Message: fmt.Sprintf("activate checkpoint %q, partition %q: lock %s", a.claim.Name, a.partition(), table),
	}
}

// readTheRest reads, under the locks, what is still to be done, and whether the pass proves anything.
func (a *activation) readTheRest(ctx context.Context) (rest, error) {
	reason, err := a.store.checkFacts(ctx, a.Tx, a.plan, a.facts)
	if err != nil {
		return rest{}, err
	}
	var found rest
	if reason == "" {
		if found, err = a.readRest(ctx, a.facts, a.MaxRest); err != nil {
			return found, err
		}
		reason = found.reason
	}
	switch {
	case reason != "":
		return found, activationEnded{Outcome: storage.OutcomeUnverifiable, Reason: reason}
	case !found.complete:
		return found, activationEnded{Outcome: storage.OutcomeChanged, Rest: int64(len(found.keys))}
	}
	return found, nil
}

// fill fills the rows of the rest and verifies them.
func (a *activation) fill(ctx context.Context, keys [][]string) error {
	if len(keys) == 0 {
		return nil
	}
	table := a.plan.table.declared.Name
	if err := a.wait(ctx); err != nil {
		return err
	}
	sorted, err := a.lockKeys(ctx, keys, a.lockForRest())
	switch {
	case err != nil:
		return a.refused(table, err)
	case len(sorted.held) > 0:
		return storage.Refuse(storage.CodeLockTimeout, "activate checkpoint %q, partition %q: %d rows of table %q appeared while their locks were taken",
			a.claim.Name, a.partition(), len(sorted.held), table)
	}
	if err := a.apply(ctx, sorted); err != nil {
		return err
	}
	for _, verify := range a.plan.definition.Checkpoint.Verify {
		if err := a.verify(ctx, verify, a.among(keys)); err != nil {
			return err
		}
	}
	return nil
}

// checkToken is the ownership check, last of all. The row is ours since its lock, so it fails only if something went round the lock.
func (a *activation) checkToken(ctx context.Context) error {
	var ours bool
	err := a.QueryRow(ctx, a.store.sql(`
		SELECT EXISTS (
		  SELECT
		    FROM {schema}.sync_backfill_checkpoints c
		    JOIN {schema}.sync_backfill_progress k
		      ON k.checkpoint = c.name
		     AND k.kind = 'claim'
		     AND k.partition = c.partition
		     AND k.range_no = 0
		   WHERE c.name = $1::text
		     AND c.partition = $2::text
		     AND c.owner_epoch = $3::bigint
		     AND k.owner_epoch = c.owner_epoch
		     AND k.claim_token = $4::text)`), a.claim.Name, a.partition(), a.row.OwnerEpoch, a.claim.Token).Scan(&ours)
	if err != nil {
		return fmt.Errorf("check the ownership: %w", err)
	}
	if !ours {
		return activationEnded{Outcome: storage.OutcomeLost}
	}
	return nil
}

// txReader reads inside a transaction.
type txReader struct{ tx pgx.Tx }

// Query gives the rows of a statement as Go values.
func (r txReader) Query(ctx context.Context, sql string, arguments ...any) ([][]any, error) {
	rows, err := r.tx.Query(ctx, sql, arguments...)
	if err != nil {
		return nil, err
	}
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.TrimSpace(sql), err)
	}
	return found, nil
}
