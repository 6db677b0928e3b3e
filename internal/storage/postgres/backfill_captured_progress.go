package postgres

import (
	"context"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// sharpenCaptured finds out for the rows shown whether the captured log has changes that are not applied, and whether it still answers.
func (r *progressReader) sharpenCaptured(ctx context.Context) error {
	r.captured = map[string]bool{}
	plan, err := r.capturedPlan(ctx)
	if err != nil || plan == nil {
		return err
	}
	for i, row := range r.progress.Behind {
		if row.State != storage.Backfilling || row.Verdict == storage.Unverifiable {
			continue
		}
		verdict, err := r.capturedVerdict(ctx, plan, row)
		if err != nil {
			return err
		}
		switch verdict {
		case storage.Unverifiable:
			r.progress.Behind[i].Verdict = verdict
			r.unread++
		case storage.Changed:
			r.progress.Behind[i].Verdict = verdict
			r.captured[row.Partition] = true
		}
	}
	return nil
}

// capturedPlan is the plan of a checkpoint with captured sources, nil for any other.
func (r *progressReader) capturedPlan(ctx context.Context) (*backfillPlan, error) {
	definition := r.progress.Definition
	switch {
	case definition.Hash == "" || !captures(definition.Checkpoint):
		return nil, nil
	case !definition.Checkpoint.Backfill.External():
		return r.plan, nil
	}
	plan, err := r.store.readExternalPlan(ctx, r, definition)
	if storage.CodeOf(err) == storage.CodeLayoutMismatch {
		return nil, nil // a table is gone
	}
	return plan, err
}

func (r *progressReader) capturedVerdict(ctx context.Context, plan *backfillPlan, row storage.BehindRow) (storage.Verdict, error) {
	if plan.definition.Checkpoint.Backfill.External() && plan.allCaptured() {
		coverage, err := r.store.capturedCoverage(ctx, r, plan.captureRules(), plan.bareOf(row.Partition), row.Watermark, row.Watermark)
		return coverage.Verdict, err
	}
	b := &batchTx{Tx: r.Tx, store: r.store, plan: plan, claim: storage.Claim{Name: r.name}, row: storage.CheckpointRow{Partition: row.Partition}}
	position, reason, err := b.readPosition(ctx)
	if err != nil || reason != "" {
		return storage.Unverifiable, err
	}
	log, err := b.readCapturedLog(ctx, position, allVisible, 1)
	switch {
	case err != nil || log.reason != "":
		return storage.Unverifiable, err
	case len(log.changes) > 0:
		return storage.Changed, nil
	}
	return storage.Clean, nil
}
