package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// defaultMaxRest is the largest rest that is applied under the lock where the caller names none.
const defaultMaxRest = 10_000

// Activate makes one attempt to activate a row, in one transaction that holds the file's write lock: nobody writes meanwhile, so the log as it
// is read here is all there is. Rest applied and verified, proof, flip, ownership, COMMIT.
//
// Errors: CodeLockTimeout: try again after a pause; CodeScanIncomplete; CodeVerificationFailed; CodeCheckpointFenceMissing; CodeInvalidSpec for
// rows whose key is NULL.
func (s *Store) Activate(ctx context.Context, claim storage.Claim, activation storage.Activation) (report storage.ActivationReport, err error) {
	what := fmt.Sprintf("activate checkpoint %q in partition %q", claim.Name, activation.Partition)
	var begun time.Time
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) (err error) {
		begun = time.Now()
		report, err = activate(ctx, tx, claim, activation)
		return err
	})
	if !begun.IsZero() {
		report.Held = time.Since(begun)
	}
	switch {
	case err == nil:
		return report, nil
	case storage.CodeOf(err) == storage.CodeOwnershipLost:
		return storage.ActivationReport{Outcome: storage.OutcomeLost, Held: report.Held}, nil
	default:
		return storage.ActivationReport{Held: report.Held}, err
	}
}

// activate is the attempt. It writes nothing unless the outcome is OutcomeActivated.
func activate(ctx context.Context, tx *sql.Conn, claim storage.Claim, activation storage.Activation) (report storage.ActivationReport, err error) {
	w, row, err := openWork(ctx, tx, claim, activation.Partition)
	if err != nil {
		return report, err
	}
	if row.State == storage.Activated {
		return storage.ActivationReport{Outcome: storage.OutcomeActivated}, nil
	}
	if err := checkFenceOf(ctx, tx, row.CheckpointRow); err != nil {
		return report, err
	}
	if err := w.checkScanned(ctx, row); err != nil {
		return report, err
	}
	reason, err := w.changedSince(ctx, row)
	var found []behind
	if err == nil && reason == "" {
		found, reason, err = w.readBehind(ctx, row, 0)
	}
	if err != nil || reason != "" {
		return storage.ActivationReport{Outcome: storage.OutcomeUnverifiable, Reason: reason}, err
	}
	if report, err = w.applyRest(ctx, row, found, activation); err != nil || report.Outcome != storage.OutcomeActivated {
		return report, firstError(err, w.dropRelations(ctx))
	}
	for _, b := range found {
		if err := w.movePosition(ctx, row, b, b.last); err != nil {
			return report, err
		}
	}
	if err := w.dropRelations(ctx); err != nil {
		return report, err
	}
	if err := flip(ctx, tx, row.CheckpointRow); err != nil {
		return report, err
	}
	if activation.BeforeCommit != nil {
		if err := activation.BeforeCommit(ctx, insideQuerier{tx}); err != nil {
			return report, err
		}
	}
	return report, checkOwner(ctx, tx, claim, row.Partition, storage.Activated)
}

// checkFenceOf refuses to activate without the fence: what is proven now would be undone by old writers.
func checkFenceOf(ctx context.Context, q querier, row storage.CheckpointRow) error {
	var all, required sql.NullInt64
	err := q.QueryRowContext(ctx, `
		SELECT (SELECT required_writer_version FROM main.sync_writer_fence WHERE partition = '*'),
		       (SELECT max(required_writer_version) FROM main.sync_writer_fence WHERE partition IN ('*', ?1))`,
		row.Partition).Scan(&all, &required)
	if err != nil {
		return translate(err, "read sync_writer_fence")
	}
	if !all.Valid || required.Int64 < row.Version {
		return storage.Refuse(storage.CodeCheckpointFenceMissing, "checkpoint %q, partition %q: the fence requires writer version %d, it must require %d at least",
			row.Name, row.Partition, required.Int64, row.Version)
	}
	return nil
}

// checkScanned refuses to activate a row with a range that is not scanned to its end.
func (w *work) checkScanned(ctx context.Context, row owned) error {
	var ranges, open int64
	err := w.tx.QueryRowContext(ctx, `
		SELECT count(*), coalesce(sum(done = 0), 0)
		  FROM main.sync_backfill_progress
		 WHERE checkpoint = ?1
		   AND kind = 'range'
		   AND partition = ?2`, row.Name, row.Partition).Scan(&ranges, &open)
	if err != nil {
		return translate(err, "read the ranges")
	}
	if ranges == 0 || open > 0 {
		return storage.Refuse(storage.CodeScanIncomplete, "checkpoint %q, partition %q: %d of %d ranges are not scanned to their end",
			row.Name, row.Partition, open, ranges)
	}
	return nil
}

// applyRest applies and verifies what the log shows above the positions, and leftovers. More than the largest rest is left to the tail.
func (w *work) applyRest(ctx context.Context, row owned, found []behind, activation storage.Activation) (report storage.ActivationReport, err error) {
	limit := int64(activation.MaxRest)
	if limit <= 0 {
		limit = defaultMaxRest
	}
	if err := w.makeRelations(ctx); err != nil {
		return report, err
	}
	var changes int64
	for _, b := range found {
		if changes > limit {
			break
		}
		upTo, all, err := w.stretchOf(ctx, b, limit-changes)
		if err != nil {
			return report, err
		}
		if !all {
			changes = limit + 1
			break
		}
		more, reason, err := w.collectChanges(ctx, b, upTo)
		if err != nil || reason != "" {
			return storage.ActivationReport{Outcome: storage.OutcomeUnverifiable, Reason: reason}, err
		}
		changes += more
	}
	left, err := w.collectLeftovers(ctx, row, 0)
	if err != nil {
		return report, err
	}
	if changes += int64(len(left)); changes > limit {
		return storage.ActivationReport{Outcome: storage.OutcomeChanged, Rest: changes}, nil
	}
	report = storage.ActivationReport{Outcome: storage.OutcomeActivated}
	if report.Rest, err = w.applyKeys(ctx); err != nil {
		return report, err
	}
	for _, verify := range w.definition.Checkpoint.Verify {
		if err := w.verify(ctx, verify, w.ofKeys(verify)); err != nil {
			return report, err
		}
	}
	return report, w.checkNullKey(ctx)
}

// flip marks a row as activated. The guard on the table lets that pass only where our proof stands, which goes again with the same
// transaction.
func flip(ctx context.Context, tx *sql.Conn, row storage.CheckpointRow) error {
	what := fmt.Sprintf("activate checkpoint %q in partition %q", row.Name, row.Partition)
	_, err := tx.ExecContext(ctx, `
		INSERT INTO main.sync_backfill_progress(checkpoint, kind, partition, owner_epoch, updated_at_ms)
		VALUES (?1, 'proof', ?2, ?3, ?4)
		ON CONFLICT (checkpoint, kind, partition, range_no) DO UPDATE
		   SET owner_epoch = excluded.owner_epoch`, row.Name, row.Partition, row.OwnerEpoch, nowMillis())
	if err != nil {
		return translate(err, what)
	}
	flipped, err := affected(tx.ExecContext(ctx, `
		UPDATE main.sync_backfill_checkpoints
		   SET state = 'activated',
		       observed_rows = max(observed_rows, coalesce((
		         SELECT sum(rows_done)
		           FROM main.sync_backfill_progress
		          WHERE checkpoint = ?2
		            AND kind = 'range'
		            AND partition = ?1), 0)),
		       updated_at_ms = ?4
		 WHERE partition = ?1
		   AND name = ?2
		   AND owner_epoch = ?3
		   AND state = 'backfilling'`, row.Partition, row.Name, row.OwnerEpoch, nowMillis()))
	if err != nil {
		return translate(err, what)
	}
	if flipped != 1 {
		return ownershipLost(row.Name, row.Partition)
	}
	for _, statement := range []string{
		`DELETE FROM main.sync_backfill_progress WHERE checkpoint = ?1 AND kind = 'proof' AND partition = ?2`,
		`DELETE FROM main.sync_backfill_leftovers WHERE checkpoint = ?1 AND partition = ?2`,
	} {
		if _, err := tx.ExecContext(ctx, statement, row.Name, row.Partition); err != nil {
			return translate(err, what)
		}
	}
	return nil
}

// insideQuerier reads inside a transaction of ours.
type insideQuerier struct{ tx *sql.Conn }

// Query implements storage.Querier.
func (q insideQuerier) Query(ctx context.Context, text string, arguments ...any) ([][]any, error) {
	rows, err := q.tx.QueryContext(ctx, text, arguments...)
	if err != nil {
		return nil, fmt.Errorf("query inside an activation: %w", err)
	}
	_, values, err := collectResult(rows)
	return values, err
}
