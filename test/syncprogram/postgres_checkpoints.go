package syncprogram

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
)

func postgresOpen(ctx context.Context, q queryable, version int64) ([]Declaration, error) {
	rows, err := q.Query(ctx, `
		SELECT partition, name
		  FROM sync_backfill_checkpoints
		 WHERE schema_version=$1 AND state<>'activated'`, version)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Declaration, err error) {
		err = row.Scan(&d.Partition, &d.Name)
		return d, err
	})
}

// postgresInstall inserts the declared row and raises the fence, on the caller's transaction.
func postgresInstall(ctx context.Context, q queryable, partition, name string, version int64) error {
	if _, err := q.Exec(ctx, `
		INSERT INTO sync_backfill_checkpoints(
		  partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms)
		VALUES ($1,$2,$3,'declared',0,0,0,$4)
		ON CONFLICT (partition, name) DO NOTHING`, partition, name, version, time.Now().UnixMilli()); err != nil {
		return err
	}
	_, err := q.Exec(ctx, `
		INSERT INTO sync_writer_fence(partition, required_writer_version)
		VALUES ($1,$2)
		ON CONFLICT (partition) DO UPDATE SET
		  required_writer_version=GREATEST(sync_writer_fence.required_writer_version, EXCLUDED.required_writer_version)`, partition, version)
	return err
}

func (p *postgres) DeclareCheckpoint(ctx context.Context, partition, name string, version int64) (c Checkpoint, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if err := postgresInstall(ctx, tx, partition, name, version); err != nil {
			return err
		}
		c, err = postgresCheckpoint(tx.QueryRow(ctx, `
			SELECT partition, name, schema_version, state, watermark, owner_epoch, observed_rows
			  FROM sync_backfill_checkpoints WHERE partition=$1 AND name=$2`, partition, name))
		return err
	})
	return c, err
}

func postgresCheckpoint(row pgx.Row) (c Checkpoint, err error) {
	err = row.Scan(&c.Partition, &c.Name, &c.SchemaVersion, &c.State, &c.Watermark, &c.OwnerEpoch, &c.ObservedRows)
	if errors.Is(err, pgx.ErrNoRows) {
		return Checkpoint{}, ErrCheckpointNotDeclared
	}
	return c, err
}

func (p *postgres) ClaimCheckpoint(ctx context.Context, partition, name string, version int64) (Checkpoint, error) {
	return postgresCheckpoint(p.pool.QueryRow(ctx, `
		UPDATE sync_backfill_checkpoints
		   SET owner_epoch=owner_epoch+1,
		       state=CASE WHEN state='declared' THEN 'backfilling' ELSE state END,
		       schema_version=$1, updated_at_ms=$2
		 WHERE partition=$3 AND name=$4 AND state<>'activated'
		RETURNING partition, name, schema_version, state, watermark, owner_epoch, observed_rows`,
		version, time.Now().UnixMilli(), partition, name))
}

func (p *postgres) ReadCheckpoints(ctx context.Context, partition string) ([]Checkpoint, error) {
	rows, err := p.pool.Query(ctx, `
		SELECT partition, name, schema_version, state, watermark, owner_epoch, observed_rows
		  FROM sync_backfill_checkpoints WHERE partition=$1 ORDER BY name`, partition)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Checkpoint, error) { return postgresCheckpoint(row) })
}

func (p *postgres) AdvanceCheckpoint(ctx context.Context, partition, name string, ownerEpoch, watermark, observedRows int64) (bool, error) {
	return postgresAdvance(ctx, p.pool, partition, name, ownerEpoch, watermark, observedRows)
}

func postgresAdvance(ctx context.Context, q queryable, partition, name string, ownerEpoch, watermark, observedRows int64) (bool, error) {
	rows, err := q.Query(ctx, `
		UPDATE sync_backfill_checkpoints
		   SET watermark=$1, observed_rows=$2, updated_at_ms=$3
		 WHERE partition=$4 AND name=$5 AND owner_epoch=$6
		RETURNING name`, watermark, observedRows, time.Now().UnixMilli(), partition, name, ownerEpoch)
	if err != nil {
		return false, err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return len(names) == 1, err
}

func (p *postgres) ActivateCheckpoint(ctx context.Context, partition, name string, ownerEpoch, watermark int64, sources []string) (outcome string, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if err := postgresLock(ctx, tx, partition); err != nil {
			return err
		}
		fence, err := postgresNumber(ctx, tx, `SELECT required_writer_version FROM sync_writer_fence WHERE partition=$1`, partition)
		if err != nil {
			return err
		}
		version, err := postgresNumber(ctx, tx, `SELECT schema_version FROM sync_backfill_checkpoints WHERE partition=$1 AND name=$2`, partition, name)
		if err != nil {
			return err
		}
		if fence == nil || version == nil || *fence < *version {
			return ErrCheckpointFenceMissing
		}
		coverage, err := postgresCoverage(ctx, tx, partition, sources, watermark)
		if err != nil || coverage != Clean {
			outcome = map[string]string{Changed: Stale, Unverifiable: Unverifiable}[coverage]
			return err
		}
		rows, err := tx.Query(ctx, `
			UPDATE sync_backfill_checkpoints
			   SET state='activated', watermark=$1, updated_at_ms=$2
			 WHERE partition=$3 AND name=$4 AND owner_epoch=$5 AND state<>'activated'
			RETURNING partition`, watermark, time.Now().UnixMilli(), partition, name, ownerEpoch)
		if err != nil {
			return err
		}
		updated, err := pgx.CollectRows(rows, pgx.RowTo[string])
		outcome = Stale
		if len(updated) == 1 {
			outcome = Activated
		}
		return err
	})
	return outcome, err
}

// postgresNumber reads one number, nil if there is no row.
func postgresNumber(ctx context.Context, q queryable, sql string, arguments ...any) (*int64, error) {
	var number *int64
	err := q.QueryRow(ctx, sql, arguments...).Scan(&number)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	return number, err
}

func numberOrZero(number *int64) int64 {
	if number == nil {
		return 0
	}
	return *number
}

func (p *postgres) HasSourceChangesAbove(ctx context.Context, partition string, tables []string, seq int64) (string, error) {
	return postgresCoverage(ctx, p.pool, partition, tables, seq)
}

// postgresCoverage reads the horizon before the log, in two statements.
func postgresCoverage(ctx context.Context, q queryable, partition string, tables []string, seq int64) (string, error) {
	horizon, err := postgresNumber(ctx, q, `SELECT horizon_seq FROM sync_partitions WHERE partition=$1`, partition)
	if err != nil || len(tables) == 0 {
		return Clean, err
	}
	hit, err := postgresNumber(ctx, q, `
		SELECT 1 AS hit FROM sync_changes
		 WHERE partition=$1 AND tbl = ANY($2) AND commit_seq>$3 LIMIT 1`, partition, tables, seq)
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

func (p *postgres) SourceCoverageSeq(ctx context.Context, partition string, tables []string) (int64, error) {
	if len(tables) == 0 {
		return 0, nil
	}
	seq, err := postgresNumber(ctx, p.pool, `SELECT max(commit_seq) AS seq FROM sync_changes WHERE partition=$1 AND tbl = ANY($2)`, partition, tables)
	return numberOrZero(seq), err
}

func (p *postgres) ReadServeGate(ctx context.Context, partition string) (Gate, error) {
	return postgresGate(ctx, p.pool, partition, p.Schema.Version)
}

// postgresGate is three reads.
func postgresGate(ctx context.Context, q queryable, partition string, running int64) (gate Gate, err error) {
	stored, err := postgresNumber(ctx, q, `SELECT schema_version FROM sync_schema_meta WHERE id=1`)
	if err != nil {
		return gate, err
	}
	gate.StoredSchemaVersion = numberOrZero(stored)
	err = q.QueryRow(ctx, `SELECT log_epoch FROM sync_partition_registry WHERE partition=$1`, partition).Scan(&gate.LogEpoch)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return gate, err
	}
	gate.Pending, err = postgresOpen(ctx, q, running)
	return gate, err
}

func (p *postgres) Query(ctx context.Context, partition, sql string) (rows [][]any, maxCommitSeq int64, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY`); err != nil {
			return err
		}
		gate, err := postgresGate(ctx, tx, partition, p.Schema.Version)
		if err != nil {
			return err
		}
		if refused := gate.refusal(p.Schema.Version); refused != nil {
			return refused
		}
		rows, maxCommitSeq, err = postgresAuthoritative(ctx, tx, partition, sql)
		return err
	})
	return rows, maxCommitSeq, err
}

func postgresAuthoritative(ctx context.Context, q queryable, partition, sql string) ([][]any, int64, error) {
	found, err := q.Query(ctx, sql, partition)
	if err != nil {
		return nil, 0, err
	}
	rows, err := pgx.CollectRows(found, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	if err != nil {
		return nil, 0, err
	}
	seq, err := postgresNumber(ctx, q, `SELECT max_commit_seq FROM sync_partitions WHERE partition=$1`, partition)
	return rows, numberOrZero(seq), err
}

func (p *postgres) SetHorizonSeq(ctx context.Context, partition string, seq int64) error {
	_, err := p.pool.Exec(ctx, `
		INSERT INTO sync_partitions(partition, horizon_seq) VALUES ($1,$2)
		ON CONFLICT (partition) DO UPDATE SET horizon_seq=EXCLUDED.horizon_seq`, partition, seq)
	return err
}

func (p *postgres) Prune(ctx context.Context, partition string, seq int64) error {
	for _, statement := range []string{
		`DELETE FROM sync_commits WHERE partition=$1 AND commit_seq<=$2`,
		`DELETE FROM sync_changes WHERE partition=$1 AND commit_seq<=$2`,
		`DELETE FROM sync_change_scopes WHERE partition=$1 AND commit_seq<=$2`,
	} {
		if _, err := p.pool.Exec(ctx, statement, partition, seq); err != nil {
			return err
		}
	}
	return nil
}

func (p *postgres) TouchPartition(ctx context.Context, partition, logEpoch string) error {
	_, err := p.pool.Exec(ctx, `
		INSERT INTO sync_partition_registry(partition, log_epoch, last_authenticated_at_ms) VALUES ($1,$2,$3)
		ON CONFLICT (partition) DO UPDATE SET last_authenticated_at_ms=EXCLUDED.last_authenticated_at_ms`, partition, logEpoch, time.Now().UnixMilli())
	return err
}
