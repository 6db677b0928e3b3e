package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// ActivateCheckpoint flips one row of a checkpoint that a program of the user's own fills, if the log shows no source change above the
// watermark given. Of a checkpoint that is filled by SQL all ranges must be scanned, and its own position counts.
//
// A row '*' has a position for each partition, noted at its claim; a change above one of them is OutcomeChanged, and only a new claim
// that begins again gets past it. The watermark of the caller cannot stand for many logs at once.
//
// Errors: CodeCheckpointFenceMissing, CodeScanIncomplete, CodeCheckpointDefinitionMissing, CodeCheckpointNotDeclared. Asked again after
// success: OutcomeActivated.
func (s *Store) ActivateCheckpoint(ctx context.Context, owner storage.Ownership, watermark int64) (outcome storage.Outcome, err error) {
	if watermark < 0 {
		return "", storage.Refuse(storage.CodeInvalidSpec, "watermark %d is below 0", watermark)
	}
	what := fmt.Sprintf("activate checkpoint %q in partition %q", owner.Name, owner.Partition)
	err = s.inTx(ctx, what, true, func(ctx context.Context, tx *sql.Conn) error {
		outcome, err = activateExternal(ctx, tx, owner, watermark)
		return err
	})
	if storage.CodeOf(err) == storage.CodeOwnershipLost {
		return storage.OutcomeLost, nil
	}
	if err != nil {
		return "", err
	}
	return outcome, nil
}

func activateExternal(ctx context.Context, tx *sql.Conn, owner storage.Ownership, watermark int64) (storage.Outcome, error) {
	definition, err := definitionIn(ctx, tx, owner.Name)
	if err != nil {
		return "", err
	}
	activated, err := isActivated(ctx, tx, owner)
	if err != nil || activated {
		return storage.OutcomeActivated, err
	}
	claim := storage.Claim{
		Name: owner.Name, Version: definition.Version, Token: owner.Token,
		Rows: []storage.CheckpointRow{{Partition: owner.Partition, Name: owner.Name, OwnerEpoch: owner.OwnerEpoch}},
	}
	row, err := readOwned(ctx, tx, claim, owner.Partition)
	if err != nil {
		return "", err
	}
	w := &work{tx: tx, definition: definition}
	if !definition.Checkpoint.Backfill.External() {
		if err := w.checkScanned(ctx, row); err != nil {
			return "", err
		}
		if err := w.checkLeftovers(ctx, row); err != nil {
			return "", err
		}
		watermark = row.Watermark // the tail's own position, not the caller's word
	}
	if err := checkFenceOf(ctx, tx, row.CheckpointRow); err != nil {
		return "", err
	}
	verdict, err := w.coverageAbove(ctx, row, watermark)
	if err != nil || verdict != storage.Clean {
		return outcomeOf[verdict], err
	}
	if row.Partition != storage.AllPartitions {
		if err := w.movePosition(ctx, row, behind{}, watermark); err != nil {
			return "", err
		}
	}
	if err := flip(ctx, tx, row.CheckpointRow); err != nil {
		return "", err
	}
	return storage.OutcomeActivated, checkOwner(ctx, tx, claim, row.Partition, storage.Activated)
}

// checkLeftovers: a key that was left over is not scanned.
func (w *work) checkLeftovers(ctx context.Context, row owned) error {
	left, err := w.countLeftovers(ctx, row)
	if err == nil && left > 0 {
		err = storage.Refuse(storage.CodeScanIncomplete, "checkpoint %q, partition %q: %d keys are left over", row.Name, row.Partition, left)
	}
	return err
}

var outcomeOf = map[storage.Verdict]storage.Outcome{
	storage.Changed: storage.OutcomeChanged, storage.Unverifiable: storage.OutcomeUnverifiable,
}

// isActivated says whether a row is activated already, by whomever. CodeCheckpointNotDeclared if there is none.
func isActivated(ctx context.Context, q querier, owner storage.Ownership) (bool, error) {
	var state storage.State
	err := q.QueryRowContext(ctx, `
		SELECT state
		  FROM main.sync_backfill_checkpoints
		 WHERE partition = ?1
		   AND name = ?2`, owner.Partition, owner.Name).Scan(&state)
	if noRows(err) {
		return false, storage.Refuse(storage.CodeCheckpointNotDeclared, "no checkpoint %q is declared in partition %q", owner.Name, owner.Partition)
	}
	return state == storage.Activated, err
}

// coverageAbove judges whether the log shows source changes that the row does not cover: of a listed row above the watermark given, of a
// row '*' above the position of each partition. The log has to be whole from where the pass began: a commit that vanished before a
// program read it is missing, though its watermark has passed the number.
func (w *work) coverageAbove(ctx context.Context, row owned, watermark int64) (storage.Verdict, error) {
	reason, err := w.changedSince(ctx, row)
	if err != nil || reason != "" {
		return storage.Unverifiable, err
	}
	found, reason, err := w.readBehind(ctx, row, 0)
	if err != nil || reason != "" {
		return storage.Unverifiable, err
	}
	for _, b := range found {
		seq, whole := b.position, b.position
		if row.Partition != storage.AllPartitions {
			seq, whole = watermark, row.facts.Position
		}
		coverage, err := coverageIn(ctx, w.tx, b.partition, sourceTables(w.definition), seq, whole)
		if err != nil || coverage.Verdict != storage.Clean {
			return coverage.Verdict, err
		}
	}
	return storage.Clean, nil
}
