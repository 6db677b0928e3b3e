package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// barrierDB is a database for tests of barriers: a store, and a session of a person who looks at what it did.
type barrierDB struct {
	t     testing.TB
	ctx   context.Context
	url   string
	store *Store
	conn  *pgx.Conn
}

func newBarrierDB(t testing.TB, config ...Config) *barrierDB {
	t.Helper()
	var c Config
	if len(config) > 0 {
		c = config[0]
	}
	if c.URL == "" {
		c.URL = testdb.Postgres(t)
	}
	db := &barrierDB{t: t, ctx: testContext(t), url: c.URL}
	db.conn = db.connect()
	if c.Schema != "" {
		db.exec("CREATE SCHEMA IF NOT EXISTS " + quoteIdentifier(c.Schema))
	}
	db.store = openStore(t, c)
	return db
}

// connect opens another session.
func (db *barrierDB) connect() *pgx.Conn {
	db.t.Helper()
	return db.connectTo(db.url)
}

func (db *barrierDB) connectTo(url string) *pgx.Conn {
	db.t.Helper()
	conn, err := pgx.Connect(db.ctx, url)
	if err != nil {
		db.t.Fatalf("connect: %v", err)
	}
	db.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(db.ctx)) })
	return conn
}

func (db *barrierDB) exec(sql string, arguments ...any) {
	db.t.Helper()
	db.execOn(db.conn, sql, arguments...)
}

func (db *barrierDB) execOn(conn *pgx.Conn, sql string, arguments ...any) {
	db.t.Helper()
	if _, err := conn.Exec(db.ctx, sql, arguments...); err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
}

// text reads one value as text, "" for NULL.
func (db *barrierDB) text(sql string, arguments ...any) string {
	db.t.Helper()
	var value *string
	if err := db.conn.QueryRow(db.ctx, "SELECT ("+sql+")::text", arguments...).Scan(&value); err != nil {
		db.t.Fatalf("%s: %v", sql, err)
	}
	if value == nil {
		return ""
	}
	return *value
}

func (db *barrierDB) wantText(want, sql string, arguments ...any) {
	db.t.Helper()
	if got := db.text(sql, arguments...); got != want {
		db.t.Errorf("%s: got %q, want %q", sql, got, want)
	}
}

// apply makes attempts as the engine does, without its pauses, until one is not refused by what passes by itself.
func (db *barrierDB) apply(target storage.Target) (storage.BarrierResult, error) {
	return applyOn(db.ctx, db.store, target)
}

func applyOn(ctx context.Context, store *Store, target storage.Target) (storage.BarrierResult, error) {
	attempt := storage.Attempt{Number: 1}
	for {
		result, err := store.EnsureSchema(ctx, target, attempt)
		if !storage.ClassOf(err).Retryable() || ctx.Err() != nil {
			return result, err
		}
		attempt = storage.Attempt{Number: attempt.Number + 1}
		var refused *storage.Error
		if errors.As(err, &refused) {
			attempt.First = refused.Table
		}
	}
}

func (db *barrierDB) mustApply(target storage.Target) storage.BarrierResult {
	db.t.Helper()
	result, err := db.apply(target)
	if err != nil {
		db.t.Fatalf("apply version %d: %v", target.Version, err)
	}
	return result
}

// once makes one attempt.
func (db *barrierDB) once(target storage.Target) (storage.BarrierResult, error) {
	return db.store.EnsureSchema(db.ctx, target, storage.Attempt{Number: 1})
}

// refuses expects an attempt to fail with a code and a message that has all these words.
func (db *barrierDB) refuses(target storage.Target, code storage.Code, words ...string) {
	db.t.Helper()
	_, err := db.once(target)
	wantRefusal(db.t, err, code, words...)
}

func wantRefusal(t testing.TB, err error, code storage.Code, words ...string) {
	t.Helper()
	if storage.CodeOf(err) != code {
		t.Fatalf("got %v, want code %s", err, code)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error %q does not say %q", err, word)
		}
	}
}

// eventually waits until a condition holds that another session brings about.
func (db *barrierDB) eventually(what string, holds func() bool) {
	db.t.Helper()
	eventually(db.t, what, holds)
}

func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(30 * time.Second)
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("did not happen within 30 s: %s", what)
		case <-ticker.C:
		}
	}
}

// waiting says whether a session waits for a lock on the table.
func (db *barrierDB) waiting(table string) bool {
	db.t.Helper()
	return db.text(`SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = to_regclass($1)`, table) != "0"
}

// Declarations that many tests use.

func plainTodos(extra ...storage.Column) storage.Table {
	columns := []storage.Column{{Name: "id", Type: storage.TypeInteger}, {Name: "tenant", Type: storage.TypeString}, {Name: "title", Type: storage.TypeString}}
	return storage.Table{
		Name: "todos", Layout: storage.Plain, Columns: append(columns, extra...), PrimaryKey: []string{"id"},
		Partition: storage.Partition{Column: "tenant"},
	}
}

var titleNorm = storage.Column{Name: "title_norm", Type: storage.TypeString, Nullable: true}

func syncularNotes(columns int) storage.Table {
	all := []storage.Column{
		{Name: "title", Type: storage.TypeString}, {Name: "size", Type: storage.TypeInteger}, {Name: "done", Type: storage.TypeBoolean, Nullable: true},
	}
	for i := len(all); i < columns; i++ {
		all = append(all, storage.Column{Name: "extra" + string(rune('a'+i)), Type: storage.TypeString, Nullable: true})
	}
	return storage.Table{Name: "notes", Layout: storage.Syncular, Materialize: true, Columns: all[:columns]}
}

// normCheckpoint fills title_norm of todos.
func normCheckpoint(name string, version int64, partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: name, Version: version, Partitions: partitions,
		Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog, Columns: []string{"title"}}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{"title_norm": "lower(title)"}}},
		Verify:   []storage.Verify{{Name: "none-missing", Query: "SELECT id FROM todos WHERE title_norm IS NULL"}},
	}
}

var clinic = storage.Owner{Namespace: "default", Name: "clinic"}

func target(version int64, tables ...storage.Table) storage.Target {
	return storage.Target{Version: version, Tables: tables, Owner: clinic}
}
