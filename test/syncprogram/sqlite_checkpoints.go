package syncprogram

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"
)

// number reads one number, nil if there is no row.
func (s *sqlite) number(ctx context.Context, query string, arguments ...any) (*int64, error) {
	var number sql.NullInt64
	err := s.conn.QueryRowContext(ctx, query, arguments...).Scan(&number)
	if errors.Is(err, sql.ErrNoRows) || err == nil && !number.Valid {
		return nil, nil
	}
	return &number.Int64, err
}

func (s *sqlite) open(ctx context.Context, version int64) ([]Declaration, error) {
	rows, err := s.conn.QueryContext(ctx, `
		SELECT partition, name
		  FROM sync_backfill_checkpoints
		 WHERE schema_version=? AND state<>'activated'`, version)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var open []Declaration
	for rows.Next() {
		var d Declaration
		if err := rows.Scan(&d.Partition, &d.Name); err != nil {
			return nil, err
		}
		open = append(open, d)
	}
	return open, rows.Err()
}

// install inserts the declared row and raises the fence, in the transaction that is open.
func (s *sqlite) install(ctx context.Context, partition, name string, version int64) error {
	if _, err := s.conn.ExecContext(ctx, `
		INSERT INTO sync_backfill_checkpoints(
		  partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms)
		VALUES (?,?,?,'declared',0,0,0,?)
		ON CONFLICT(partition, name) DO NOTHING`, partition, name, version, time.Now().UnixMilli()); err != nil {
		return err
	}
	_, err := s.conn.ExecContext(ctx, `
		INSERT INTO sync_writer_fence(partition, required_writer_version)
		VALUES (?,?)
		ON CONFLICT(partition) DO UPDATE SET
		  required_writer_version=max(sync_writer_fence.required_writer_version, excluded.required_writer_version)`, partition, version)
	return err
}

const sqliteCheckpointColumns = `partition, name, schema_version, state, watermark, owner_epoch, observed_rows`

func (s *sqlite) checkpoint(row interface{ Scan(...any) error }) (c Checkpoint, err error) {
	err = row.Scan(&c.Partition, &c.Name, &c.SchemaVersion, &c.State, &c.Watermark, &c.OwnerEpoch, &c.ObservedRows)
	if errors.Is(err, sql.ErrNoRows) {
		return Checkpoint{}, ErrCheckpointNotDeclared
	}
	return c, err
}

func (s *sqlite) DeclareCheckpoint(ctx context.Context, partition, name string, version int64) (c Checkpoint, err error) {
	err = s.serialize(ctx, func() error {
		return s.immediate(ctx, func() error {
			if err := s.install(ctx, partition, name, version); err != nil {
				return err
			}
			c, err = s.checkpoint(s.conn.QueryRowContext(ctx,
				`SELECT `+sqliteCheckpointColumns+` FROM sync_backfill_checkpoints WHERE partition=? AND name=?`, partition, name))
			return err
		})
	})
	return c, err
}

func (s *sqlite) ClaimCheckpoint(ctx context.Context, partition, name string, version int64) (c Checkpoint, err error) {
	err = s.serialize(ctx, func() error {
		c, err = s.checkpoint(s.conn.QueryRowContext(ctx, `
			UPDATE sync_backfill_checkpoints
			   SET owner_epoch=owner_epoch+1,
			       state=CASE WHEN state='declared' THEN 'backfilling' ELSE state END,
			       schema_version=?, updated_at_ms=?
			 WHERE partition=? AND name=? AND state<>'activated'
			RETURNING `+sqliteCheckpointColumns, version, time.Now().UnixMilli(), partition, name))
		return err
	})
	return c, err
}

func (s *sqlite) ReadCheckpoints(ctx context.Context, partition string) (all []Checkpoint, err error) {
	err = s.serialize(ctx, func() error {
		rows, err := s.conn.QueryContext(ctx,
			`SELECT `+sqliteCheckpointColumns+` FROM sync_backfill_checkpoints WHERE partition=? ORDER BY name`, partition)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			c, err := s.checkpoint(rows)
			if err != nil {
				return err
			}
			all = append(all, c)
		}
		return rows.Err()
	})
	return all, err
}

func (s *sqlite) AdvanceCheckpoint(ctx context.Context, partition, name string, ownerEpoch, watermark, observedRows int64) (moved bool, err error) {
	err = s.serialize(ctx, func() error {
		moved, err = s.advance(ctx, partition, name, ownerEpoch, watermark, observedRows)
		return err
	})
	return moved, err
}

func (s *sqlite) advance(ctx context.Context, partition, name string, ownerEpoch, watermark, observedRows int64) (bool, error) {
	return s.swapped(ctx, `
		UPDATE sync_backfill_checkpoints
		   SET watermark=?, observed_rows=?, updated_at_ms=?
		 WHERE partition=? AND name=? AND owner_epoch=?`, watermark, observedRows, time.Now().UnixMilli(), partition, name, ownerEpoch)
}

// swapped says whether a compare-and-swap changed its one row.
func (s *sqlite) swapped(ctx context.Context, statement string, arguments ...any) (bool, error) {
	result, err := s.conn.ExecContext(ctx, statement, arguments...)
	if err != nil {
		return false, err
	}
	changes, err := result.RowsAffected()
	return changes == 1, err
}

func (s *sqlite) ActivateCheckpoint(ctx context.Context, partition, name string, ownerEpoch, watermark int64, sources []string) (outcome string, err error) {
	err = s.serialize(ctx, func() error {
		return s.immediate(ctx, func() error {
			outcome, err = s.activate(ctx, partition, name, ownerEpoch, watermark, sources)
			return err
		})
	})
	return outcome, err
}

func (s *sqlite) activate(ctx context.Context, partition, name string, ownerEpoch, watermark int64, sources []string) (string, error) {
	fence, err := s.number(ctx, `SELECT required_writer_version FROM sync_writer_fence WHERE partition=?`, partition)
	if err != nil {
		return "", err
	}
	version, err := s.number(ctx, `SELECT schema_version FROM sync_backfill_checkpoints WHERE partition=? AND name=?`, partition, name)
	if err != nil {
		return "", err
	}
	if fence == nil || version == nil || *fence < *version {
		return "", ErrCheckpointFenceMissing
	}
	switch coverage, err := s.coverage(ctx, partition, sources, watermark); {
	case err != nil:
		return "", err
	case coverage == Changed:
		return Stale, nil
	case coverage == Unverifiable:
		return Unverifiable, nil
	}
	updated, err := s.swapped(ctx, `
		UPDATE sync_backfill_checkpoints
		   SET state='activated', watermark=?, updated_at_ms=?
		 WHERE partition=? AND name=? AND owner_epoch=? AND state<>'activated'`, watermark, time.Now().UnixMilli(), partition, name, ownerEpoch)
	if err != nil || !updated {
		return Stale, err
	}
	return Activated, nil
}

func (s *sqlite) HasSourceChangesAbove(ctx context.Context, partition string, tables []string, seq int64) (verdict string, err error) {
	err = s.serialize(ctx, func() error {
		verdict, err = s.coverage(ctx, partition, tables, seq)
		return err
	})
	return verdict, err
}

func tableList(tables []string, before ...any) (string, []any) {
	arguments := before
	for _, table := range tables {
		arguments = append(arguments, table)
	}
	return strings.TrimSuffix(strings.Repeat("?,", len(tables)), ","), arguments
}

// coverage reads the horizon before the log.
func (s *sqlite) coverage(ctx context.Context, partition string, tables []string, seq int64) (string, error) {
	horizon, err := s.number(ctx, `SELECT horizon_seq FROM sync_partitions WHERE partition=?`, partition)
	if err != nil || len(tables) == 0 {
		return Clean, err
	}
	places, arguments := tableList(tables, partition)
	hit, err := s.number(ctx, `SELECT 1 AS hit FROM sync_changes WHERE partition=? AND tbl IN (`+places+`) AND commit_seq>? LIMIT 1`,
		append(arguments, seq)...)
	switch {
	case err != nil:
		return "", err
	case hit != nil:
		return Changed, nil
	case numberOrZero(horizon) > seq:
		return Unverifiable, nil
	}
	return Clean, nil
}

func (s *sqlite) SourceCoverageSeq(ctx context.Context, partition string, tables []string) (seq int64, err error) {
	if len(tables) == 0 {
		return 0, nil
	}
	err = s.serialize(ctx, func() error {
		places, arguments := tableList(tables, partition)
		newest, err := s.number(ctx, `SELECT max(commit_seq) AS seq FROM sync_changes WHERE partition=? AND tbl IN (`+places+`)`, arguments...)
		seq = numberOrZero(newest)
		return err
	})
	return seq, err
}

func (s *sqlite) ReadServeGate(ctx context.Context, partition string) (gate Gate, err error) {
	err = s.serialize(ctx, func() error {
		gate, err = s.gate(ctx, partition)
		return err
	})
	return gate, err
}

// gate is three reads.
func (s *sqlite) gate(ctx context.Context, partition string) (gate Gate, err error) {
	stored, err := s.number(ctx, `SELECT schema_version FROM sync_schema_meta WHERE id=1`)
	if err != nil {
		return gate, err
	}
	gate.StoredSchemaVersion = numberOrZero(stored)
	epochs, err := s.texts(ctx, `SELECT log_epoch FROM sync_partition_registry WHERE partition=?`, partition)
	if err != nil {
		return gate, err
	}
	if len(epochs) == 1 {
		gate.LogEpoch = epochs[0]
	}
	gate.Pending, err = s.open(ctx, s.Schema.Version)
	return gate, err
}

func (s *sqlite) Query(ctx context.Context, partition, query string) (rows [][]any, maxCommitSeq int64, err error) {
	err = s.serialize(ctx, func() error {
		if err := s.execAll(ctx, "BEGIN"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.execAll(context.WithoutCancel(ctx), "COMMIT")) }()
		gate, err := s.gate(ctx, partition)
		if err != nil {
			return err
		}
		if refused := gate.refusal(s.Schema.Version); refused != nil {
			return refused
		}
		rows, maxCommitSeq, err = s.authoritative(ctx, partition, query)
		return err
	})
	return rows, maxCommitSeq, err
}

func (s *sqlite) authoritative(ctx context.Context, partition, query string) ([][]any, int64, error) {
	found, err := s.conn.QueryContext(ctx, strings.ReplaceAll(query, "$1", "?1"), partition)
	if err != nil {
		return nil, 0, err
	}
	rows, err := collect(found)
	if err != nil {
		return nil, 0, err
	}
	seq, err := s.number(ctx, `SELECT max_commit_seq FROM sync_partitions WHERE partition=?`, partition)
	return rows, numberOrZero(seq), err
}

func collect(found *sql.Rows) ([][]any, error) {
	defer found.Close()
	columns, err := found.Columns()
	if err != nil {
		return nil, err
	}
	var rows [][]any
	for found.Next() {
		row, places := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			places[i] = &row[i]
		}
		if err := found.Scan(places...); err != nil {
			return nil, err
		}
		rows = append(rows, row)
	}
	return rows, found.Err()
}

func (s *sqlite) SetHorizonSeq(ctx context.Context, partition string, seq int64) error {
	return s.serialize(ctx, func() error {
		_, err := s.conn.ExecContext(ctx, `
			INSERT INTO sync_partitions(partition, horizon_seq) VALUES (?,?)
			ON CONFLICT(partition) DO UPDATE SET horizon_seq=excluded.horizon_seq`, partition, seq)
		return err
	})
}

func (s *sqlite) Prune(ctx context.Context, partition string, seq int64) error {
	return s.serialize(ctx, func() error {
		for _, table := range []string{"sync_commits", "sync_changes", "sync_change_scopes"} {
			if _, err := s.conn.ExecContext(ctx, "DELETE FROM "+table+" WHERE partition=? AND commit_seq<=?", partition, seq); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *sqlite) TouchPartition(ctx context.Context, partition, logEpoch string) error {
	return s.serialize(ctx, func() error {
		_, err := s.conn.ExecContext(ctx, `
			INSERT INTO sync_partition_registry(partition, log_epoch, last_authenticated_at_ms) VALUES (?,?,?)
			ON CONFLICT(partition) DO UPDATE SET last_authenticated_at_ms=excluded.last_authenticated_at_ms`,
			partition, logEpoch, time.Now().UnixMilli())
		return err
	})
}
