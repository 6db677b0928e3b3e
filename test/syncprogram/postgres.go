package syncprogram

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// OpenPostgres starts a process on a PostgreSQL database. It has done nothing yet.
func OpenPostgres(ctx context.Context, url string, options Options) (Process, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, err
	}
	return &postgres{Options: options, pool: pool}, nil
}

type postgres struct {
	Options
	pool *pgxpool.Pool
}

func (p *postgres) Close() { p.pool.Close() }

// queryable is the pool, or the connection of a transaction.
type queryable interface {
	Exec(ctx context.Context, sql string, arguments ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, arguments ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, arguments ...any) pgx.Row
}

const postgresTables = `
CREATE TABLE IF NOT EXISTS sync_partitions(
  partition TEXT PRIMARY KEY,
  max_commit_seq BIGINT NOT NULL DEFAULT 0,
  horizon_seq BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sync_partition_registry(
  partition TEXT PRIMARY KEY,
  log_epoch TEXT NOT NULL,
  epoch_required BOOLEAN NOT NULL DEFAULT FALSE,
  last_authenticated_at_ms BIGINT NOT NULL
);
CREATE TABLE IF NOT EXISTS sync_row_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL, value TEXT NOT NULL, row_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, row_id)
);
CREATE TABLE IF NOT EXISTS sync_commits(
  partition TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, commit_seq)
);
CREATE INDEX IF NOT EXISTS sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE IF NOT EXISTS sync_changes(
  partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL,
  tbl TEXT NOT NULL, row_id TEXT NOT NULL, op SMALLINT NOT NULL,
  row_version BIGINT, scopes JSONB NOT NULL, payload BYTEA,
  PRIMARY KEY(partition, commit_seq, idx)
);
CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE IF NOT EXISTS sync_change_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL, value TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, commit_seq)
);
CREATE TABLE IF NOT EXISTS sync_push_results(
  partition TEXT NOT NULL, client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL, result JSONB NOT NULL,
  PRIMARY KEY(partition, client_id, client_commit_id)
);
CREATE TABLE IF NOT EXISTS sync_clients(
  partition TEXT NOT NULL, client_id TEXT NOT NULL, actor_id TEXT NOT NULL,
  cursor BIGINT NOT NULL, subscriptions JSONB NOT NULL, updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, client_id)
);
ALTER TABLE sync_clients ADD COLUMN IF NOT EXISTS wire_version INTEGER NOT NULL DEFAULT 1;
CREATE TABLE IF NOT EXISTS sync_blob_refs(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, blob_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id, blob_id)
);
CREATE INDEX IF NOT EXISTS sync_blob_refs_by_blob ON sync_blob_refs(partition, blob_id);
CREATE TABLE IF NOT EXISTS sync_tombstones(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, commit_seq BIGINT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id)
)`

const postgresBarrierTables = `
CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(
  partition TEXT NOT NULL, name TEXT NOT NULL,
  schema_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('declared','backfilling','activated')),
  watermark BIGINT NOT NULL DEFAULT 0,
  owner_epoch BIGINT NOT NULL DEFAULT 0,
  observed_rows BIGINT NOT NULL DEFAULT 0,
  updated_at_ms BIGINT NOT NULL,
  PRIMARY KEY(partition, name)
);
CREATE TABLE IF NOT EXISTS sync_writer_fence(
  partition TEXT PRIMARY KEY,
  required_writer_version INTEGER NOT NULL
);
ALTER TABLE sync_commits ADD COLUMN IF NOT EXISTS writer_version BIGINT`

// The three statements of the trigger hold semicolons and run one by one, in transactions of their own.
var postgresTrigger = []string{
	`CREATE OR REPLACE FUNCTION syncular_writer_fence()
RETURNS trigger AS $$
BEGIN
  IF EXISTS (
    SELECT 1 FROM sync_writer_fence
     WHERE partition = NEW.partition
       AND (NEW.writer_version IS NULL
            OR NEW.writer_version < required_writer_version)
  ) THEN
    RAISE EXCEPTION 'sync.storage.writer_fence_rejected';
  END IF;
  RETURN NEW;
END;
$$ LANGUAGE plpgsql`,
	`DROP TRIGGER IF EXISTS sync_commits_writer_fence ON sync_commits`,
	`CREATE TRIGGER sync_commits_writer_fence
BEFORE INSERT ON sync_commits
FOR EACH ROW EXECUTE FUNCTION syncular_writer_fence()`,
}

const postgresMeta = `CREATE TABLE IF NOT EXISTS sync_schema_meta(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  schema_version BIGINT NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}'
)`

// migrate makes the protocol's own tables, statement by statement, each committed by itself.
func (p *postgres) migrate(ctx context.Context) error {
	statements := strings.Split(postgresTables, ";")
	if p.Age == Newer {
		statements = append(statements, strings.Split(postgresBarrierTables, ";")...)
		statements = append(statements, postgresTrigger...)
	}
	for _, statement := range statements {
		if _, err := p.pool.Exec(ctx, statement); err != nil {
			return fmt.Errorf("migrate: %w", err)
		}
	}
	return nil
}

func (p *postgres) EnsureSchema(ctx context.Context, checkpoints ...Declaration) error {
	if err := p.migrate(ctx); err != nil {
		return err
	}
	if p.Age == Newer {
		open, err := postgresOpen(ctx, p.pool, p.Schema.Version)
		if err != nil {
			return err
		}
		if undeclared(open, checkpoints) {
			return ErrCheckpointIncomplete
		}
	}
	if _, err := p.pool.Exec(ctx, postgresMeta); err != nil {
		return err
	}
	var stored int64
	var text string
	err := p.pool.QueryRow(ctx, `SELECT schema_version, layouts FROM sync_schema_meta WHERE id=1`).Scan(&stored, &text)
	fresh := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !fresh {
		return err
	}
	if p.MarkerRead != nil {
		if err := p.MarkerRead(ctx); err != nil {
			return err
		}
	}
	switch {
	case !fresh && stored > p.Schema.Version:
		return fmt.Errorf("%w: %d > %d", ErrStoredNewer, stored, p.Schema.Version)
	case !fresh && stored == p.Schema.Version:
		return p.agree(ctx, text)
	}
	return p.bump(ctx, text, checkpoints)
}

// agree checks a database of the same version: layouts, then the physical columns of every table.
func (p *postgres) agree(ctx context.Context, text string) error {
	if err := p.Schema.assertStored(text); err != nil {
		return err
	}
	for _, t := range p.Schema.Tables {
		rows, err := p.pool.Query(ctx, `
			SELECT attribute.attname,
			       format_type(attribute.atttypid, attribute.atttypmod),
			       attribute.attnotnull,
			       COALESCE((SELECT key.position::int
			                   FROM pg_index pk, unnest(pk.indkey::int2[]) WITH ORDINALITY AS key(attnum, position)
			                  WHERE pk.indrelid = attribute.attrelid AND pk.indisprimary AND key.attnum = attribute.attnum), 0)
			  FROM pg_attribute attribute
			 WHERE attribute.attrelid = to_regclass($1)
			   AND attribute.attnum > 0 AND NOT attribute.attisdropped`, t.Name)
		if err != nil {
			return err
		}
		columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c physicalColumn, err error) {
			err = row.Scan(&c.name, &c.kind, &c.notNull, &c.key)
			return c, err
		})
		if err != nil {
			return err
		}
		if err := t.assertPhysical(postgresDialect, columns); err != nil {
			return err
		}
	}
	return nil
}

// bump migrates from layouts that were read before the lock.
func (p *postgres) bump(ctx context.Context, text string, checkpoints []Declaration) error {
	old, err := parseLayouts(text)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		if p.Age == Newer {
			if _, err := tx.Exec(ctx, `LOCK TABLE sync_partitions IN EXCLUSIVE MODE`); err != nil {
				return err
			}
		}
		columns, indexes, err := p.introspect(ctx, tx)
		if err != nil {
			return err
		}
		for _, name := range p.Schema.retired(old) {
			if _, err := tx.Exec(ctx, `DELETE FROM sync_row_scopes WHERE tbl=$1`, name); err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, "DROP TABLE IF EXISTS "+quote(name)); err != nil {
				return err
			}
		}
		for _, statement := range p.Schema.schemaDDL(postgresDialect, columns, indexes) {
			if _, err := tx.Exec(ctx, statement); err != nil {
				return fmt.Errorf("%s: %w", statement, err)
			}
		}
		for _, t := range p.Schema.Tables {
			if err := p.rewrite(ctx, tx, t, old[t.Name], columns[t.Name]); err != nil {
				return err
			}
		}
		return p.moveMarker(ctx, tx, checkpoints)
	})
}

func (p *postgres) moveMarker(ctx context.Context, tx pgx.Tx, checkpoints []Declaration) error {
	text, err := p.Schema.layouts().encode()
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `
		INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, $1, $2)
		ON CONFLICT (id) DO UPDATE
		   SET schema_version=EXCLUDED.schema_version, layouts=EXCLUDED.layouts`, p.Schema.Version, text); err != nil {
		return err
	}
	for _, d := range checkpoints {
		if err := postgresInstall(ctx, tx, d.Partition, d.Name, d.SchemaVersion); err != nil {
			return err
		}
	}
	return nil
}

// introspect reads columns and indexes of the schema's tables as they are now. Indexes of constraints are nobody's.
func (p *postgres) introspect(ctx context.Context, q queryable) (columns, indexes map[string][]string, err error) {
	columns, indexes = map[string][]string{}, map[string][]string{}
	for _, t := range p.Schema.Tables {
		rows, err := q.Query(ctx, `
			SELECT column_name::text
			  FROM information_schema.columns
			 WHERE table_schema = current_schema() AND table_name = $1`, t.Name)
		if err != nil {
			return nil, nil, err
		}
		if columns[t.Name], err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return nil, nil, err
		}
		if len(columns[t.Name]) == 0 {
			columns[t.Name] = nil
		}
		rows, err = q.Query(ctx, `
			SELECT i.indexrelid::regclass::text
			  FROM pg_index i
			 WHERE i.indrelid = to_regclass($1)
			   AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)`, quote(t.Name))
		if err != nil {
			return nil, nil, err
		}
		if indexes[t.Name], err = pgx.CollectRows(rows, pgx.RowTo[string]); err != nil {
			return nil, nil, err
		}
	}
	return columns, indexes, nil
}

// rewritePage is how many rows of a table are rewritten at a time.
const rewritePage = 500

// rewrite encodes the stored rows of a table anew, page by page in key order.
func (p *postgres) rewrite(ctx context.Context, tx pgx.Tx, t Table, old []Column, before []string) error {
	migrate, fill, err := t.rewritePlan(old, before)
	if err != nil || !migrate && !fill {
		return err
	}
	update := rewriteSQL(t, postgresDialect)
	var partition, rowID string
	for {
		rows, err := tx.Query(ctx, fmt.Sprintf(`
			SELECT %[2]s, %[3]s, %[4]s
			  FROM %[1]s
			 WHERE (%[2]s, %[3]s) > ($1, $2)
			 ORDER BY %[2]s, %[3]s
			 LIMIT $3`, quote(t.Name), quote(partitionColumn), quote(rowIDColumn), quote(payloadColumn)), partition, rowID, rewritePage)
		if err != nil {
			return err
		}
		page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[storedPayload])
		if err != nil || len(page) == 0 {
			return err
		}
		for _, row := range page {
			values, err := t.rewritten(postgresDialect, row, old, migrate)
			if err != nil {
				return err
			}
			if _, err := tx.Exec(ctx, update, values...); err != nil {
				return err
			}
			partition, rowID = row.Partition, row.RowID
		}
	}
}

type storedPayload struct {
	Partition string
	RowID     string
	Payload   []byte
}

// rewritten are the values of rewriteSQL's placeholders for one row.
func (t Table) rewritten(d dialect, row storedPayload, old []Column, migrate bool) ([]any, error) {
	payload := row.Payload
	if migrate {
		var err error
		if payload, err = t.migratePayload(old, payload); err != nil {
			return nil, err
		}
	}
	values, err := t.boundValues(d, payload)
	if err != nil {
		return nil, err
	}
	return append(values, payload, row.Partition, row.RowID), nil
}

func rewriteSQL(t Table, d dialect) string {
	var sets []string
	place := 0
	next := func() string { place++; return d.placeholder(place) }
	if t.Materialize {
		for _, c := range t.Columns {
			sets = append(sets, quote(c.Name)+"="+next())
		}
	}
	sets = append(sets, quote(payloadColumn)+"="+next())
	return fmt.Sprintf("UPDATE %s SET %s WHERE %s=%s AND %s=%s",
		quote(t.Name), strings.Join(sets, ", "), quote(partitionColumn), next(), quote(rowIDColumn), next())
}
