package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// readHistory reads the history of barriers, by version.
func (s *Store) readHistory(ctx context.Context, q querier) ([]storage.HistoryRow, error) {
	rows, err := q.Query(ctx, s.sql(`
		SELECT version, content_hash, state, entries, plain_layouts, min_writer_version, min_reader_version,
		       applied_at_ms, lock_wait_ms, lock_hold_ms, attempts, raised
		  FROM {schema}.sync_barrier_history
		 ORDER BY version`))
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	history, err := pgx.CollectRows(rows, scanHistoryRow)
	if err != nil {
		return nil, fmt.Errorf("read the history: %w", err)
	}
	return history, nil
}

func scanHistoryRow(row pgx.CollectableRow) (storage.HistoryRow, error) {
	var h storage.HistoryRow
	var entries, layouts, raised string
	var appliedAt, wait, hold int64
	err := row.Scan(&h.Version, &h.ContentHash, &h.State, &entries, &layouts, &h.MinWriterVersion, &h.MinReaderVersion,
		&appliedAt, &wait, &hold, &h.Attempts, &raised)
	if err != nil {
		return h, err
	}
	h.AppliedAt = time.UnixMilli(appliedAt).UTC()
	h.LockWait, h.LockHold = time.Duration(wait)*time.Millisecond, time.Duration(hold)*time.Millisecond
	what := fmt.Sprintf("the history row of version %d", h.Version)
	if err := decodeJSON(entries, what, &h.Entries); err != nil {
		return h, err
	}
	if err := decodeJSON(layouts, what, &h.PlainLayouts); err != nil {
		return h, err
	}
	return h, decodeJSON(raised, what, &h.Raised)
}

// writeHistory writes one row for each version passed.
func (s *Store) writeHistory(ctx context.Context, tx pgx.Tx, passed []storage.HistoryRow) error {
	for _, row := range passed {
		entries, err := json.Marshal(row.Entries)
		if err != nil {
			return fmt.Errorf("encode the history of version %d: %w", row.Version, err)
		}
		layouts, err := json.Marshal(row.PlainLayouts)
		if err != nil {
			return fmt.Errorf("encode the history of version %d: %w", row.Version, err)
		}
		raised, err := json.Marshal(row.Raised)
		if err != nil {
			return fmt.Errorf("encode the history of version %d: %w", row.Version, err)
		}
		_, err = tx.Exec(ctx, s.sql(`
			INSERT INTO {schema}.sync_barrier_history(
			  version, content_hash, state, entries, plain_layouts, min_writer_version, min_reader_version,
			  applied_at_ms, lock_wait_ms, lock_hold_ms, attempts, raised)
			VALUES ($1::bigint, $2::text, $3::text, $4::text, $5::text, $6::bigint, $7::bigint,
			        `+nowMS+`, $8::bigint, $9::bigint, $10::integer, $11::text)`),
			row.Version, row.ContentHash, row.State, string(entries), string(layouts), row.MinWriterVersion, row.MinReaderVersion,
			row.LockWait.Milliseconds(), row.LockHold.Milliseconds(), row.Attempts, string(raised))
		if err != nil {
			return fmt.Errorf("write the history of version %d: %w", row.Version, err)
		}
	}
	return nil
}
