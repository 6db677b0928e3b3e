package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// readHistory gives the versions whose barriers committed, in order; none without a catalog.
func readHistory(ctx context.Context, q querier, objects schemaObjects) ([]storage.HistoryRow, error) {
	if !objects.isTable("sync_barrier_history") {
		return nil, nil
	}
	rows, err := q.QueryContext(ctx, `
		SELECT version, content_hash, state, entries, plain_layouts, min_writer_version, min_reader_version,
		       applied_at_ms, lock_wait_ms, lock_hold_ms, attempts, raised
		FROM sync_barrier_history
		ORDER BY version`)
	if err != nil {
		return nil, translate(err, "read the history")
	}
	defer func() { _ = rows.Close() }()
	var history []storage.HistoryRow
	for rows.Next() {
		row, err := scanHistory(rows.Scan)
		if err != nil {
			return nil, err
		}
		history = append(history, row)
	}
	return history, translate(rows.Err(), "read the history")
}

func scanHistory(scan func(...any) error) (storage.HistoryRow, error) {
	var row storage.HistoryRow
	var entries, layouts, raised string
	var applied, wait, hold int64
	if err := scan(&row.Version, &row.ContentHash, &row.State, &entries, &layouts, &row.MinWriterVersion, &row.MinReaderVersion,
		&applied, &wait, &hold, &row.Attempts, &raised); err != nil {
		return row, translate(err, "read the history")
	}
	row.AppliedAt = time.UnixMilli(applied)
	row.LockWait, row.LockHold = time.Duration(wait)*time.Millisecond, time.Duration(hold)*time.Millisecond
	for _, column := range []struct {
		name string
		text string
		into any
	}{{"entries", entries, &row.Entries}, {"plain_layouts", layouts, &row.PlainLayouts}, {"raised", raised, &row.Raised}} {
		if err := json.Unmarshal([]byte(column.text), column.into); err != nil {
			return row, &storage.Error{
				Code:    storage.CodeContentDrift,
				Message: fmt.Sprintf("sync_barrier_history: %s of version %d is not what this program wrote", column.name, row.Version),
				Err:     err,
			}
		}
	}
	return row, nil
}

// writeHistory records a version. The row of a version that is there already stays: what was applied does not change.
func writeHistory(ctx context.Context, q querier, row storage.HistoryRow) error {
	texts := make([]string, 3)
	for i, value := range []any{row.Entries, row.PlainLayouts, row.Raised} {
		text, err := json.Marshal(value)
		if err != nil {
			return fmt.Errorf("encode the history of version %d: %w", row.Version, err)
		}
		texts[i] = string(text)
	}
	_, err := q.ExecContext(ctx, `
		INSERT INTO sync_barrier_history(
		  version, content_hash, state, entries, plain_layouts, min_writer_version, min_reader_version,
		  applied_at_ms, lock_wait_ms, lock_hold_ms, attempts, raised)
		VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT(version) DO NOTHING`,
		row.Version, row.ContentHash, row.State, texts[0], texts[1], row.MinWriterVersion, row.MinReaderVersion,
		row.AppliedAt.UnixMilli(), row.LockWait.Milliseconds(), row.LockHold.Milliseconds(), row.Attempts, texts[2])
	return translate(err, fmt.Sprintf("record version %d in the history", row.Version))
}
