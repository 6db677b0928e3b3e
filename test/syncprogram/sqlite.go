package syncprogram

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

// sqliteBusyTimeout bounds the wait for another process's write lock.
const sqliteBusyTimeout = 20 * time.Second

// OpenSQLite starts a process on a SQLite file. As in the protocol all its statements share one connection, and everybody who opens
// a transaction waits until the one before has ended.
func OpenSQLite(ctx context.Context, path string, options Options) (Process, error) {
	name := fmt.Sprintf("file:%s?_pragma=busy_timeout(%d)", (&url.URL{Path: path}).EscapedPath(), sqliteBusyTimeout.Milliseconds())
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &sqlite{Options: options, db: db, conn: conn, turn: make(chan struct{}, 1)}, nil
}

type sqlite struct {
	Options
	db   *sql.DB
	conn *sql.Conn
	turn chan struct{} // holds a token while somebody uses the connection
}

func (s *sqlite) Close() {
	_ = s.conn.Close()
	_ = s.db.Close()
}

// serialize runs one piece of work on the shared connection.
func (s *sqlite) serialize(ctx context.Context, work func() error) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	return work()
}

func (s *sqlite) take(ctx context.Context) error {
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *sqlite) give() { <-s.turn }

// immediate runs work in BEGIN IMMEDIATE on the shared connection, whose turn the caller has.
func (s *sqlite) immediate(ctx context.Context, work func() error) error {
	if _, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return err
	}
	err := work()
	if err == nil {
		_, err = s.conn.ExecContext(ctx, "COMMIT")
	}
	if err != nil {
		_, _ = s.conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK") // it may have been rolled back already
	}
	return err
}

const sqliteTables = `
CREATE TABLE IF NOT EXISTS sync_partitions(
  partition TEXT PRIMARY KEY,
  max_commit_seq INTEGER NOT NULL DEFAULT 0,
  horizon_seq INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS sync_partition_registry(
  partition TEXT PRIMARY KEY,
  log_epoch TEXT NOT NULL,
  epoch_required INTEGER NOT NULL DEFAULT 0,
  last_authenticated_at_ms INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS sync_row_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL, value TEXT NOT NULL, row_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, row_id)
);
CREATE TABLE IF NOT EXISTS sync_commits(
  partition TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, commit_seq)
);
CREATE INDEX IF NOT EXISTS sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE IF NOT EXISTS sync_changes(
  partition TEXT NOT NULL, commit_seq INTEGER NOT NULL, idx INTEGER NOT NULL,
  tbl TEXT NOT NULL, row_id TEXT NOT NULL, op INTEGER NOT NULL,
  row_version INTEGER, scopes TEXT NOT NULL, payload BLOB,
  PRIMARY KEY(partition, commit_seq, idx)
);
CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE IF NOT EXISTS sync_change_scopes(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, var TEXT NOT NULL, value TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  PRIMARY KEY(partition, tbl, var, value, commit_seq)
);
CREATE TABLE IF NOT EXISTS sync_push_results(
  partition TEXT NOT NULL, client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL, result TEXT NOT NULL,
  PRIMARY KEY(partition, client_id, client_commit_id)
);
CREATE TABLE IF NOT EXISTS sync_clients(
  partition TEXT NOT NULL, client_id TEXT NOT NULL, actor_id TEXT NOT NULL,
  cursor INTEGER NOT NULL, subscriptions TEXT NOT NULL, updated_at_ms INTEGER NOT NULL,
  wire_version INTEGER NOT NULL DEFAULT 1,
  PRIMARY KEY(partition, client_id)
);
CREATE TABLE IF NOT EXISTS sync_blob_refs(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, blob_id TEXT NOT NULL,
  PRIMARY KEY(partition, tbl, row_id, blob_id)
);
CREATE INDEX IF NOT EXISTS sync_blob_refs_by_blob ON sync_blob_refs(partition, blob_id);
CREATE TABLE IF NOT EXISTS sync_tombstones(
  partition TEXT NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL, commit_seq INTEGER NOT NULL,
  PRIMARY KEY(partition, tbl, row_id)
)`

const sqliteBarrierTables = `
CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(
  partition TEXT NOT NULL, name TEXT NOT NULL,
  schema_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('declared','backfilling','activated')),
  watermark INTEGER NOT NULL DEFAULT 0,
  owner_epoch INTEGER NOT NULL DEFAULT 0,
  observed_rows INTEGER NOT NULL DEFAULT 0,
  updated_at_ms INTEGER NOT NULL,
  PRIMARY KEY(partition, name)
);
CREATE TABLE IF NOT EXISTS sync_writer_fence(
  partition TEXT PRIMARY KEY,
  required_writer_version INTEGER NOT NULL
)`

const sqliteTrigger = `CREATE TRIGGER IF NOT EXISTS sync_commits_writer_fence
BEFORE INSERT ON sync_commits
FOR EACH ROW
WHEN EXISTS (
  SELECT 1 FROM sync_writer_fence
   WHERE partition = NEW.partition
     AND (NEW.writer_version IS NULL
          OR NEW.writer_version < required_writer_version)
)
BEGIN
  SELECT RAISE(ABORT, 'sync.storage.writer_fence_rejected');
END`

const sqliteMeta = `CREATE TABLE IF NOT EXISTS sync_schema_meta(
  id INTEGER PRIMARY KEY CHECK (id = 1),
  schema_version INTEGER NOT NULL,
  layouts TEXT NOT NULL DEFAULT '{}'
)`

// migrate makes the protocol's own tables, statement by statement, each committed by itself.
func (s *sqlite) migrate(ctx context.Context) error {
	statements := strings.Split(sqliteTables, ";")
	if s.Age == Newer {
		statements = append(statements, strings.Split(sqliteBarrierTables, ";")...)
	}
	if err := s.execAll(ctx, statements...); err != nil || s.Age == Older {
		return err
	}
	columns, err := s.columns(ctx, "sync_commits")
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(columns, func(c physicalColumn) bool { return c.name == "writer_version" }) {
		if err := s.execAll(ctx, `ALTER TABLE sync_commits ADD COLUMN writer_version INTEGER`); err != nil {
			return err
		}
	}
	return s.execAll(ctx, sqliteTrigger)
}

func (s *sqlite) execAll(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := s.conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// columns reads the physical columns of a table; none: there is no such table.
func (s *sqlite) columns(ctx context.Context, table string) ([]physicalColumn, error) {
	rows, err := s.conn.QueryContext(ctx, fmt.Sprintf("PRAGMA table_info(%s)", quote(table)))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var columns []physicalColumn
	for rows.Next() {
		var c physicalColumn
		var place int
		var fallback any
		if err := rows.Scan(&place, &c.name, &c.kind, &c.notNull, &fallback, &c.key); err != nil {
			return nil, err
		}
		columns = append(columns, c)
	}
	return columns, rows.Err()
}

func (s *sqlite) EnsureSchema(ctx context.Context, checkpoints ...Declaration) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if err := s.migrate(ctx); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	if s.Age == Newer {
		open, err := s.open(ctx, s.Schema.Version)
		if err != nil {
			return err
		}
		if undeclared(open, checkpoints) {
			return ErrCheckpointIncomplete
		}
	}
	if err := s.execAll(ctx, sqliteMeta); err != nil {
		return err
	}
	var stored int64
	var text string
	err := s.conn.QueryRowContext(ctx, `SELECT schema_version, layouts FROM sync_schema_meta WHERE id=1`).Scan(&stored, &text)
	fresh := errors.Is(err, sql.ErrNoRows)
	if err != nil && !fresh {
		return err
	}
	if s.MarkerRead != nil {
		if err := s.MarkerRead(ctx); err != nil {
			return err
		}
	}
	switch {
	case !fresh && stored > s.Schema.Version:
		return fmt.Errorf("%w: %d > %d", ErrStoredNewer, stored, s.Schema.Version)
	case !fresh && stored == s.Schema.Version:
		return s.agree(ctx, text)
	}
	return s.bump(ctx, text, checkpoints)
}

func (s *sqlite) agree(ctx context.Context, text string) error {
	if err := s.Schema.assertStored(text); err != nil {
		return err
	}
	for _, t := range s.Schema.Tables {
		columns, err := s.columns(ctx, t.Name)
		if err != nil {
			return err
		}
		if err := t.assertPhysical(sqliteDialect, columns); err != nil {
			return err
		}
	}
	return nil
}

// bump migrates from what was read before BEGIN IMMEDIATE: marker, layouts, columns and indexes.
func (s *sqlite) bump(ctx context.Context, text string, checkpoints []Declaration) error {
	old, err := parseLayouts(text)
	if err != nil {
		return err
	}
	columns, indexes, err := s.introspect(ctx)
	if err != nil {
		return err
	}
	return s.immediate(ctx, func() error {
		for _, name := range s.Schema.retired(old) {
			for _, table := range []string{"sync_row_scopes", "sync_blob_refs"} {
				if _, err := s.conn.ExecContext(ctx, "DELETE FROM "+table+" WHERE tbl=?", name); err != nil {
					return err
				}
			}
			if err := s.execAll(ctx, "DROP TABLE IF EXISTS "+quote(name)); err != nil {
				return err
			}
		}
		if err := s.execAll(ctx, s.Schema.schemaDDL(sqliteDialect, columns, indexes)...); err != nil {
			return err
		}
		for _, t := range s.Schema.Tables {
			if err := s.rewrite(ctx, t, old[t.Name], columns[t.Name]); err != nil {
				return err
			}
		}
		layouts, err := s.Schema.layouts().encode()
		if err != nil {
			return err
		}
		if _, err := s.conn.ExecContext(ctx, `
			INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, ?, ?)
			ON CONFLICT(id) DO UPDATE SET schema_version=excluded.schema_version, layouts=excluded.layouts`, s.Schema.Version, layouts); err != nil {
			return err
		}
		for _, d := range checkpoints {
			if err := s.install(ctx, d.Partition, d.Name, d.SchemaVersion); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *sqlite) introspect(ctx context.Context) (columns, indexes map[string][]string, err error) {
	columns, indexes = map[string][]string{}, map[string][]string{}
	for _, t := range s.Schema.Tables {
		physical, err := s.columns(ctx, t.Name)
		if err != nil {
			return nil, nil, err
		}
		for _, c := range physical {
			columns[t.Name] = append(columns[t.Name], c.name)
		}
		// Indexes that CREATE INDEX made have its text; those of constraints have none.
		found, err := s.texts(ctx, `SELECT name FROM sqlite_master WHERE type='index' AND tbl_name=? AND sql IS NOT NULL`, t.Name)
		if err != nil {
			return nil, nil, err
		}
		indexes[t.Name] = found
	}
	return columns, indexes, nil
}

func (s *sqlite) texts(ctx context.Context, query string, arguments ...any) ([]string, error) {
	rows, err := s.conn.QueryContext(ctx, query, arguments...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var texts []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	return texts, rows.Err()
}

func (s *sqlite) rewrite(ctx context.Context, t Table, old []Column, before []string) error {
	migrate, fill, err := t.rewritePlan(old, before)
	if err != nil || !migrate && !fill {
		return err
	}
	update := rewriteSQL(t, sqliteDialect)
	var last storedPayload
	for {
		page, err := s.page(ctx, t, last)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, row := range page {
			values, err := t.rewritten(sqliteDialect, row, old, migrate)
			if err != nil {
				return err
			}
			if _, err := s.conn.ExecContext(ctx, update, values...); err != nil {
				return err
			}
			last = row
		}
	}
}

func (s *sqlite) page(ctx context.Context, t Table, after storedPayload) ([]storedPayload, error) {
	rows, err := s.conn.QueryContext(ctx, fmt.Sprintf(`
		SELECT %[2]s, %[3]s, %[4]s
		  FROM %[1]s
		 WHERE (%[2]s, %[3]s) > (?, ?)
		 ORDER BY %[2]s, %[3]s
		 LIMIT ?`, quote(t.Name), quote(partitionColumn), quote(rowIDColumn), quote(payloadColumn)), after.Partition, after.RowID, rewritePage)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var page []storedPayload
	for rows.Next() {
		var row storedPayload
		if err := rows.Scan(&row.Partition, &row.RowID, &row.Payload); err != nil {
			return nil, err
		}
		page = append(page, row)
	}
	return page, rows.Err()
}
