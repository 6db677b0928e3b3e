package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// RepairFence puts fence and guards back in one transaction under the write lock, and counts the commits that got in below the fence. What
// it counted is told once: from then on the log counts from where it stands. Findings are what it found, those included that a person must
// mend. CodeFenceBroken without a catalog, CodeNewerCatalog, CodeLockTimeout.
func (s *Store) RepairFence(ctx context.Context) (report storage.FenceReport, err error) {
	err = s.inTx(ctx, "repair the fence of "+s.path, true, func(ctx context.Context, tx *sql.Conn) error {
		report, err = s.fenceReport(ctx, tx)
		if err != nil || report.Intact() {
			return err
		}
		report.Repaired, err = s.repair(ctx, tx, report)
		if err != nil {
			return err
		}
		report.MinWriterVersion, _, err = readFence(ctx, tx)
		if storage.CodeOf(err) == storage.CodeFenceBroken { // that is among the findings
			return nil
		}
		return err
	})
	return report, err
}

func (s *Store) repair(ctx context.Context, tx *sql.Conn, report storage.FenceReport) ([]string, error) {
	objects, err := readObjects(ctx, tx)
	if err != nil {
		return nil, err
	}
	// The row goes first: with the triggers in place and no row, everything would be refused.
	repaired, err := repairFenceRow(ctx, tx, objects)
	if err != nil {
		return nil, err
	}
	installed, err := installTriggers(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, name := range installed {
		repaired = append(repaired, "trigger "+name)
	}
	if report.GotIn > 0 {
		if err := noteRepair(ctx, tx, objects); err != nil {
			return nil, err
		}
		repaired = append(repaired, fmt.Sprintf("%d commits counted", report.GotIn))
	}
	return repaired, nil
}

// repairFenceRow raises the fence for all to what it was raised to before. A row that holds no number is for a person to mend.
func repairFenceRow(ctx context.Context, q querier, objects schemaObjects) ([]string, error) {
	history, err := readHistory(ctx, q, objects)
	if err != nil {
		return nil, err
	}
	minimum, exists, err := readFence(ctx, q)
	wanted := highestFence(history)
	switch {
	case storage.CodeOf(err) == storage.CodeFenceBroken:
		return nil, nil
	case err != nil:
		return nil, err
	case exists && minimum >= wanted:
		return nil, nil
	}
	if _, err := raiseFence(ctx, q, map[string]int64{storage.AllPartitions: wanted}); err != nil {
		return nil, err
	}
	return []string{"row '*' of sync_writer_fence"}, nil
}

// noteRepair moves the positions from which commits below the fence are counted to where the log stands now.
func noteRepair(ctx context.Context, q querier, objects schemaObjects) error {
	raise, _, err := lastRaise(ctx, q, objects)
	if err != nil {
		return err
	}
	positions := map[string]int64{}
	if err := recordPositions(ctx, q, storage.AllPartitions, positions); err != nil {
		return err
	}
	text, err := json.Marshal(positions)
	if err != nil {
		return fmt.Errorf("encode the positions of the log: %w", err)
	}
	_, err = q.ExecContext(ctx, `
		UPDATE sync_barrier_history
		SET raised = ?
		WHERE version = ?`, string(text), raise.Version)
	return translate(err, "note the repair in the history")
}
