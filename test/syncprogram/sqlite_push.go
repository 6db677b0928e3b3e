package syncprogram

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Begin waits for its turn on the shared connection and takes SQLite's write lock.
func (s *sqlite) Begin(ctx context.Context, partition string) (Transaction, error) {
	if err := s.take(ctx); err != nil {
		return nil, err
	}
	if _, err := s.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		s.give()
		return nil, err
	}
	return &sqlitePush{process: s, partition: partition, open: true}, nil
}

type sqlitePush struct {
	process   *sqlite
	partition string
	open      bool
}

func (t *sqlitePush) exec(ctx context.Context, statement string, arguments ...any) error {
	if !t.open {
		return errors.New("transaction already finished")
	}
	_, err := t.process.conn.ExecContext(ctx, statement, arguments...)
	return err
}

// LockPartition has nothing to lock: BEGIN IMMEDIATE owns the file's write lock.
func (t *sqlitePush) LockPartition(ctx context.Context) error {
	return t.exec(ctx, "SAVEPOINT syncular_push_apply")
}

func (t *sqlitePush) UpsertRow(ctx context.Context, name string, row Row) error {
	table, err := t.process.Schema.table(name)
	if err != nil {
		return err
	}
	values, err := table.boundValues(sqliteDialect, row.Payload)
	if err != nil {
		return err
	}
	names := table.columnNames()
	statement := fmt.Sprintf("INSERT OR REPLACE INTO %s (%s) VALUES (%s)", quote(table.Name), quoteAll(names),
		strings.TrimSuffix(strings.Repeat("?,", len(names)), ","))
	arguments := append([]any{t.partition, row.RowID}, values...)
	if err := t.exec(ctx, statement, append(arguments, row.ServerVersion, row.Scopes, row.Payload)...); err != nil {
		return err
	}
	scopes := map[string]string{}
	if err := json.Unmarshal([]byte(row.Scopes), &scopes); err != nil {
		return err
	}
	if err := t.exec(ctx, `DELETE FROM sync_row_scopes WHERE partition=? AND tbl=? AND row_id=?`, t.partition, name, row.RowID); err != nil {
		return err
	}
	for variable, value := range scopes {
		if err := t.exec(ctx, `INSERT OR IGNORE INTO sync_row_scopes(partition, tbl, var, value, row_id) VALUES (?,?,?,?,?)`,
			t.partition, name, variable, value, row.RowID); err != nil {
			return err
		}
	}
	return nil
}

func (t *sqlitePush) GetRow(ctx context.Context, table, rowID string) (row Row, ok bool, err error) {
	err = t.process.conn.QueryRowContext(ctx, selectRowSQL(table, "?", "?"), t.partition, rowID).
		Scan(&row.RowID, &row.ServerVersion, &row.Scopes, &row.Payload)
	if errors.Is(err, sql.ErrNoRows) {
		return Row{}, false, nil
	}
	return row, err == nil, err
}

func (t *sqlitePush) DeleteRow(ctx context.Context, table, rowID string) error {
	statement := fmt.Sprintf("DELETE FROM %s WHERE %s=? AND %s=?", quote(table), quote(partitionColumn), quote(rowIDColumn))
	if err := t.exec(ctx, statement, t.partition, rowID); err != nil {
		return err
	}
	for _, statement := range []string{
		`DELETE FROM sync_row_scopes WHERE partition=? AND tbl=? AND row_id=?`,
		`DELETE FROM sync_blob_refs WHERE partition=? AND tbl=? AND row_id=?`,
	} {
		if err := t.exec(ctx, statement, t.partition, table, rowID); err != nil {
			return err
		}
	}
	return nil
}

// AppendCommit allocates the next number in three statements; the write lock keeps them together.
func (t *sqlitePush) AppendCommit(ctx context.Context, c Commit) (int64, error) {
	if err := t.exec(ctx, `INSERT OR IGNORE INTO sync_partitions(partition) VALUES (?)`, t.partition); err != nil {
		return 0, err
	}
	position, err := t.process.number(ctx, `SELECT max_commit_seq FROM sync_partitions WHERE partition=?`, t.partition)
	if err != nil {
		return 0, err
	}
	seq := numberOrZero(position) + 1
	if err := t.exec(ctx, `UPDATE sync_partitions SET max_commit_seq=? WHERE partition=?`, seq, t.partition); err != nil {
		return 0, err
	}
	columns := "partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms"
	places := "?,?,?,?,?,?"
	arguments := []any{t.partition, seq, c.ClientID, c.ClientCommitID, c.ActorID, c.CreatedAtMs}
	if t.process.Age == Newer {
		columns, places, arguments = columns+", writer_version", places+",?", append(arguments, t.process.Schema.Version)
	}
	if err := t.exec(ctx, "INSERT INTO sync_commits("+columns+") VALUES ("+places+")", arguments...); err != nil {
		return 0, err
	}
	for i, change := range c.Changes {
		if err := t.appendChange(ctx, seq, i, change); err != nil {
			return 0, err
		}
	}
	return seq, nil
}

func (t *sqlitePush) appendChange(ctx context.Context, seq int64, i int, change Change) error {
	scopes, err := json.Marshal(change.Scopes)
	if err != nil {
		return err
	}
	if change.Scopes == nil {
		scopes = []byte("{}")
	}
	if err := t.exec(ctx, `
		INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
		VALUES (?,?,?,?,?,?,?,?,?)`, t.partition, seq, i, change.Table, change.RowID, change.op(), change.RowVersion, string(scopes), change.Payload); err != nil {
		return err
	}
	if change.Delete {
		if err := t.exec(ctx, `
			INSERT INTO sync_tombstones(partition, tbl, row_id, commit_seq) VALUES (?,?,?,?)
			ON CONFLICT(partition, tbl, row_id) DO UPDATE SET commit_seq=excluded.commit_seq`, t.partition, change.Table, change.RowID, seq); err != nil {
			return err
		}
	}
	for variable, value := range change.Scopes {
		if err := t.exec(ctx, `INSERT OR IGNORE INTO sync_change_scopes(partition, tbl, var, value, commit_seq) VALUES (?,?,?,?,?)`,
			t.partition, change.Table, variable, value, seq); err != nil {
			return err
		}
	}
	return nil
}

func (t *sqlitePush) PutPushResult(ctx context.Context, clientID, clientCommitID, result string) error {
	return t.exec(ctx, `INSERT OR REPLACE INTO sync_push_results(partition, client_id, client_commit_id, result) VALUES (?,?,?,?)`,
		t.partition, clientID, clientCommitID, result)
}

func (t *sqlitePush) AdvanceCheckpoint(ctx context.Context, name string, ownerEpoch, watermark, observedRows int64) (bool, error) {
	return t.process.advance(ctx, t.partition, name, ownerEpoch, watermark, observedRows)
}

func (t *sqlitePush) ReadServeGate(ctx context.Context) (Gate, error) {
	return t.process.gate(ctx, t.partition)
}

func (t *sqlitePush) Query(ctx context.Context, query string) ([][]any, int64, error) {
	return t.process.authoritative(ctx, t.partition, query)
}

func (t *sqlitePush) Reject(ctx context.Context, clientID, clientCommitID, result string) error {
	if err := t.exec(ctx, "ROLLBACK TO SAVEPOINT syncular_push_apply"); err != nil {
		return err
	}
	if err := t.PutPushResult(ctx, clientID, clientCommitID, result); err != nil {
		return err
	}
	return t.Commit(ctx)
}

func (t *sqlitePush) Commit(ctx context.Context) error {
	if err := t.exec(ctx, "COMMIT"); err != nil {
		return err
	}
	t.end()
	return nil
}

// Rollback after Commit does nothing.
func (t *sqlitePush) Rollback(ctx context.Context) {
	if t.open {
		_ = t.exec(context.WithoutCancel(ctx), "ROLLBACK") // RAISE(ROLLBACK) or a full disk may have rolled back already
		t.end()
	}
}

func (t *sqlitePush) end() {
	t.open = false
	t.process.give()
}
