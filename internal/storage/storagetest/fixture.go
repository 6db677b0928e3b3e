package storagetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// testTimeout bounds one test: a wait without end fails by its name.
const testTimeout = 2 * time.Minute

// fixture is a database with a Store and a program beside it. Its methods fail the test if they cannot do what they say.
type fixture struct {
	*testing.T
	ctx     context.Context
	open    Opener
	db      Database
	store   storage.Store
	program Connection
}

func newFixture(t *testing.T, open Opener) *fixture {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	db := open(t)
	return &fixture{T: t, ctx: ctx, open: open, db: db, store: db.OpenStore(t), program: db.Connect(t)}
}

// must fails the test at once.
func (f *fixture) must(err error, doing string) {
	f.Helper()
	if err != nil {
		f.Fatalf("%s: %v", doing, err)
	}
}

// wantCode checks the stable code of an error.
func (f *fixture) wantCode(err error, code storage.Code) {
	f.Helper()
	if got := storage.CodeOf(err); got != code {
		f.Fatalf("got code %q, want %q (error: %v)", got, code, err)
	}
}

// wantMessage checks that an error names what a person needs.
func (f *fixture) wantMessage(err error, parts ...string) {
	f.Helper()
	if err == nil {
		f.Fatalf("no error, want one that names %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			f.Errorf("the error %q does not name %q", err, part)
		}
	}
}

func same[T comparable](f *fixture, what string, got, want T) {
	f.Helper()
	if got != want {
		f.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// exec runs a statement of another program.
func (f *fixture) exec(sql string, arguments ...any) int64 {
	f.Helper()
	affected, err := f.program.Exec(f.ctx, sql, arguments...)
	f.must(err, sql)
	return affected
}

// number reads one number as another program does.
func (f *fixture) number(sql string, arguments ...any) int64 {
	f.Helper()
	rows, err := f.program.Query(f.ctx, sql, arguments...)
	f.must(err, sql)
	if len(rows) != 1 || len(rows[0]) != 1 {
		f.Fatalf("%s: got %v, want one number", sql, rows)
	}
	switch n := rows[0][0].(type) {
	case int64:
		return n
	case int32:
		return int64(n)
	case int16:
		return int64(n)
	case nil:
		return 0
	}
	f.Fatalf("%s: got a %T, want a number", sql, rows[0][0])
	return 0
}

// text reads one text as another program does.
func (f *fixture) text(sql string, arguments ...any) string {
	f.Helper()
	rows, err := f.program.Query(f.ctx, sql, arguments...)
	f.must(err, sql)
	if len(rows) != 1 || len(rows[0]) != 1 {
		f.Fatalf("%s: got %d rows, want one text", sql, len(rows))
	}
	text, ok := rows[0][0].(string)
	if !ok {
		f.Fatalf("%s: got a %T, want a text", sql, rows[0][0])
	}
	return text
}

// vandalise changes a table of ours as somebody does who switches its guards off first. Fence and guards of that table are gone
// afterwards.
func (f *fixture) vandalise(table, sql string, arguments ...any) {
	f.Helper()
	if f.db.Dialect == storage.PostgreSQL {
		f.exec("ALTER TABLE " + table + " DISABLE TRIGGER USER")
	} else {
		rows, err := f.program.Query(f.ctx, "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = $1", table)
		f.must(err, "list triggers")
		for _, row := range rows {
			f.exec(fmt.Sprintf("DROP TRIGGER %q", row[0]))
		}
	}
	f.exec(sql, arguments...)
}

// apply makes barrier attempts until one is not merely late, as the engine does: other processes of the test may hold locks.
func (f *fixture) apply(target storage.Target) storage.BarrierResult {
	f.Helper()
	result, err := applyWith(f.ctx, f.store, target)
	f.must(err, fmt.Sprintf("apply version %d", target.Version))
	return result
}

// lastVersion is the newest version in the history.
func (f *fixture) lastVersion() storage.HistoryRow {
	f.Helper()
	status, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	if len(status.History) == 0 {
		f.Fatal("the history is empty")
	}
	return status.History[len(status.History)-1]
}

// refuse makes one attempt that has to fail.
func (f *fixture) refuse(target storage.Target, code storage.Code) error {
	f.Helper()
	_, err := f.store.EnsureSchema(f.ctx, target, storage.Attempt{Number: 1})
	f.wantCode(err, code)
	return err
}

// maxAttempts bounds how often a retryable failure is tried again. Pauses are the locks' own timeouts.
const maxAttempts = 200

func applyWith(ctx context.Context, store storage.Store, target storage.Target) (storage.BarrierResult, error) {
	var first string
	for number := 1; ; number++ {
		result, err := store.EnsureSchema(ctx, target, storage.Attempt{Number: number, First: first})
		if err == nil || !storage.ClassOf(err).Retryable() || storage.ClassOf(err) == storage.ClassPreviousVersionOpen || number == maxAttempts {
			return result, err
		}
		first = ""
		var refusal *storage.Error
		if errors.As(err, &refusal) {
			first = refusal.Table
		}
	}
}

// retry repeats a step of a test while it fails with a class that passes by itself.
func retry(ctx context.Context, step func() error) error {
	for try := 1; ; try++ {
		err := step()
		if err == nil || !storage.ClassOf(err).Retryable() || try == maxAttempts || ctx.Err() != nil {
			return err
		}
	}
}

// write puts a todo into a partition as a program of the given version does: row and commit in one transaction. It returns the commit.
func (f *fixture) write(partition string, version, id int64, title string) int64 {
	f.Helper()
	seq, err := writeTodo(f.ctx, f.store, partition, version, id, title)
	f.must(err, "write a todo")
	return seq
}

func writeTodo(ctx context.Context, store storage.Store, partition string, version, id int64, title string) (seq int64, err error) {
	tx, err := store.Begin(ctx, partition, version)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, tx.Rollback(ctx)) }()
	if err := tx.LockPartition(ctx); err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO todos (id, tenant, title) VALUES ($1, $2, $3)
		ON CONFLICT (id) DO UPDATE SET title = excluded.title`, id, partition, title)
	if err != nil {
		return 0, err
	}
	if seq, err = tx.AppendCommit(ctx, commitOf("todos", fmt.Sprint(id), storage.OpUpsert)); err != nil {
		return 0, err
	}
	return seq, tx.Commit(ctx)
}

// remove deletes a todo and logs it.
func (f *fixture) remove(partition string, version, id int64) {
	f.Helper()
	tx, err := f.store.Begin(f.ctx, partition, version)
	f.must(err, "begin")
	defer func() { f.must(tx.Rollback(f.ctx), "roll back") }()
	f.must(tx.LockPartition(f.ctx), "lock the partition")
	_, err = tx.Exec(f.ctx, `DELETE FROM todos WHERE id = $1`, id)
	f.must(err, "delete a todo")
	_, err = tx.AppendCommit(f.ctx, commitOf("todos", fmt.Sprint(id), storage.OpDelete))
	f.must(err, "append a commit")
	f.must(tx.Commit(f.ctx), "commit")
}

// log appends a commit of a version that changes nothing but the log.
func (f *fixture) log(partition string, version int64, table string) int64 {
	f.Helper()
	tx, err := f.store.Begin(f.ctx, partition, version)
	f.must(err, "begin")
	defer func() { f.must(tx.Rollback(f.ctx), "roll back") }()
	seq, err := tx.AppendCommit(f.ctx, commitOf(table, "1", storage.OpUpsert))
	f.must(err, "append a commit")
	f.must(tx.Commit(f.ctx), "commit")
	return seq
}

func commitOf(table, rowID string, op storage.Op) storage.Commit {
	return storage.Commit{
		ClientID: "client", ClientCommitID: "commit", ActorID: "actor",
		Changes: []storage.Change{{Table: table, RowID: rowID, Op: op}},
	}
}

// another makes a fixture on a fresh database for a subtest.
func (f *fixture) another(t *testing.T) *fixture {
	t.Helper()
	return newFixture(t, f.open)
}
