package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// testContext ends well before the time limit of a test run, so that a wait without end fails by name.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// newFile is the path of a database file that does not exist yet.
func newFile(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "app.db")
}

// openStore opens a Store on a file, which it makes if there is none.
func openStore(t testing.TB, path string) *Store {
	t.Helper()
	return openWith(t, Config{Path: path, Create: true})
}

func openWith(t testing.TB, config Config) *Store {
	t.Helper()
	store, err := Open(testContext(t), config)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(store.Close)
	return store
}

// program is another program with the file open: a pool of its own, with the driver's defaults and no function of ours.
type program struct {
	t  testing.TB
	db *sql.DB
}

func openProgram(t testing.TB, path string) program {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path+"?_busy_timeout=30000")
	if err != nil {
		t.Fatalf("open as a program: %v", err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return program{t: t, db: db}
}

func (p program) exec(statement string, arguments ...any) {
	p.t.Helper()
	if _, err := p.db.ExecContext(testContext(p.t), statement, arguments...); err != nil {
		p.t.Fatalf("%s: %v", statement, err)
	}
}

// refused runs a statement that must fail with this text in its error.
func (p program) refused(want, statement string, arguments ...any) {
	p.t.Helper()
	_, err := p.db.ExecContext(testContext(p.t), statement, arguments...)
	if err == nil || !strings.Contains(err.Error(), want) {
		p.t.Errorf("%s: got %v, want an error with %q", statement, err, want)
	}
}

func (p program) number(query string, arguments ...any) int64 {
	p.t.Helper()
	var number int64
	if err := p.db.QueryRowContext(testContext(p.t), query, arguments...).Scan(&number); err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	return number
}

func (p program) text(query string, arguments ...any) string {
	p.t.Helper()
	var text sql.NullString
	if err := p.db.QueryRowContext(testContext(p.t), query, arguments...).Scan(&text); err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	return text.String
}

// commit is how the sync protocol appends to the log, with a writer version of any type.
const commitSQL = `
	INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
	VALUES (?, ?, 'client', ?, 'actor', 0, ?)`

func (p program) commit(partition string, seq int64, version any) error {
	p.t.Helper()
	_, err := p.db.ExecContext(testContext(p.t), commitSQL, partition, seq, fmt.Sprint(seq), version)
	return err
}

// dump is everything in the file, schema and rows, in an order of its own: two dumps are equal if the databases are.
func (p program) dump() string {
	p.t.Helper()
	var all strings.Builder
	var tables []string
	for _, row := range p.rows("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_master ORDER BY type, name") {
		fmt.Fprintf(&all, "%s %s on %s: %s\n", row...)
		if row[0] == "table" {
			tables = append(tables, fmt.Sprint(row[1]))
		}
	}
	for _, table := range tables {
		fmt.Fprintf(&all, "%s: %v\n", table, p.rows("SELECT * FROM "+quoteIdentifier(table)+" ORDER BY 1"))
	}
	return all.String()
}

func (p program) rows(query string, arguments ...any) [][]any {
	p.t.Helper()
	rows, err := p.db.QueryContext(testContext(p.t), query, arguments...)
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	all, err := scanAll(rows)
	if err != nil {
		p.t.Fatalf("%s: %v", query, err)
	}
	return all
}

// The clinic of these tests.
var clinicOwner = storage.Owner{Namespace: "default", Name: "clinic"}

func todosTable(more ...storage.Column) storage.Table {
	return storage.Table{
		Name: "todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
		Columns: append([]storage.Column{
			{Name: "id", Type: storage.TypeInteger},
			{Name: "tenant", Type: storage.TypeString},
			{Name: "title", Type: storage.TypeString},
		}, more...),
	}
}

func notesTable(more ...storage.Column) storage.Table {
	return storage.Table{
		Name: "notes", Layout: storage.Syncular, Materialize: true,
		Columns: append([]storage.Column{{Name: "title", Type: storage.TypeString}}, more...),
	}
}

func nullableColumn(name string, columnType storage.ColumnType) storage.Column {
	return storage.Column{Name: name, Type: columnType, Nullable: true}
}

// version6 is where most of these tests begin; version7 adds a column, a backfill of all partitions and with it the fence.
func version6() storage.Target {
	return storage.Target{Version: 6, Tables: []storage.Table{todosTable(), notesTable()}, Owner: clinicOwner}
}

func version7() storage.Target {
	return storage.Target{
		Version: 7, Owner: clinicOwner,
		Tables: []storage.Table{todosTable(nullableColumn("title_norm", storage.TypeString)), notesTable()},
		Checkpoints: []storage.Checkpoint{{
			Name: "title-norm", Version: 7,
			Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
			Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{"title_norm": "lower(title)"}}},
		}},
	}
}

// withSQL gives a target the SQL of its own version.
func withSQL(target storage.Target, text string) storage.Target {
	target.Migrations = []storage.Migration{{Version: target.Version, SQL: text}}
	return target
}

func apply(t testing.TB, store *Store, target storage.Target) storage.BarrierResult {
	t.Helper()
	result, err := store.EnsureSchema(testContext(t), target, storage.Attempt{Number: 1})
	if err != nil {
		t.Fatalf("bring to version %d: %v", target.Version, err)
	}
	return result
}

// refusal applies a target that must be refused with this code, and gives the error.
func refusal(t testing.TB, store *Store, target storage.Target, code storage.Code) error {
	t.Helper()
	_, err := store.EnsureSchema(testContext(t), target, storage.Attempt{Number: 1})
	if got := storage.CodeOf(err); got != code {
		t.Errorf("bring to version %d: got code %q (%v), want %q", target.Version, got, err, code)
	}
	return err
}

// refuse is refusal with texts that the error must have.
func refuse(t testing.TB, store *Store, target storage.Target, code storage.Code, parts ...string) {
	t.Helper()
	wantText(t, refusal(t, store, target, code), parts...)
}

func wantCode(t testing.TB, err error, code storage.Code) {
	t.Helper()
	if got := storage.CodeOf(err); got != code {
		t.Errorf("got code %q (%v), want %q", got, err, code)
	}
}

func wantText(t testing.TB, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("got no error, want one with %q", parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error %q lacks %q", err, part)
		}
	}
}

func same[T comparable](t testing.TB, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// waitUntil asks again and again until something holds, and fails after a minute.
func waitUntil(t testing.TB, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(testContext(t), time.Minute)
	defer cancel()
	for !holds() {
		if err := sleep(ctx, time.Millisecond); err != nil {
			t.Fatalf("waited too long until %s", what)
		}
	}
}

// exists says whether there is a file.
func exists(t testing.TB, path string) bool {
	t.Helper()
	_, err := os.Stat(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("look for %s: %v", path, err)
	}
	return err == nil
}

// contextOfChild is the context of a child process, whose time is bounded by the test that started it.
func contextOfChild() context.Context { return context.Background() }

func asStorageError(err error, into **storage.Error) bool { return errors.As(err, into) }
