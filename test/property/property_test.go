package property

import (
	"context"
	"database/sql"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/storage/sqlite"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// How much is tried where the command line does not say (-rapid.checks, -rapid.steps): so much that it stays well below a minute.
const (
	defaultChecks = "20"
	defaultSteps  = "50"
	stepTimeout   = 20 * time.Second
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": defaultChecks, "rapid.steps": defaultSteps, "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// bench makes databases for one check after the other: a schema of the server, a file of the folder.
type bench struct {
	t      *testing.T
	url    string
	admin  *pgx.Conn
	folder string
	number atomic.Int64
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, url: testdb.Postgres(t), folder: t.TempDir()}
	var err error
	if b.admin, err = pgx.Connect(t.Context(), b.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), stepTimeout)
		defer cancel()
		_ = b.admin.Close(ctx) // the test is over
	})
	return b
}

// backends opens a fresh database of each product.
func (b *bench) backends(ctx context.Context, t *rapid.T) []*backend {
	name := fmt.Sprintf("check_%d", b.number.Add(1))
	if _, err := b.admin.Exec(ctx, "CREATE SCHEMA "+name); err != nil {
		t.Fatalf("create a schema: %v", err)
	}
	server, err := postgres.Open(ctx, postgres.Config{URL: b.url, Schema: name, Queries: []storage.RegisteredQuery{titles}})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(server.Close)
	file, err := sqlite.Open(ctx, sqlite.Config{Path: filepath.Join(b.folder, name), Create: true, Queries: []storage.RegisteredQuery{titles}})
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(file.Close)
	return []*backend{
		{name: "postgres", store: server, filled: func(column string) ([]string, error) {
			rows, err := b.admin.Query(ctx, fmt.Sprintf("SELECT id::text FROM %s.todos WHERE %s = lower(title) ORDER BY todos.id", name, column))
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[string])
		}},
		{name: "sqlite", store: file, filled: func(column string) ([]string, error) {
			return filledInFile(ctx, filepath.Join(b.folder, name), column)
		}},
	}
}

func filledInFile(ctx context.Context, path, column string) (ids []string, err error) {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, fmt.Sprintf("SELECT CAST(id AS TEXT) FROM todos WHERE %s = lower(title) ORDER BY todos.id", column))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	return ids, rows.Err()
}

func TestBothBackendsAnswerAsTheModelDoes(t *testing.T) {
	b := newBench(t)
	rapid.Check(t, func(t *rapid.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		m := &machine{t: t, ctx: ctx, model: newModel(), backends: b.backends(ctx, t)}
		m.Gate(t)
		for m.model.version == 0 {
			m.EnsureSchema(t)
		}
		t.Repeat(rapid.StateMachineActions(m))
		m.t = t
		m.sameData()
	})
}

// Check runs after every step: the checkpoints of all three are the same.
func (m *machine) Check(t *rapid.T) {
	want := m.model.describe()
	for _, b := range m.backends {
		rows, err := b.store.ReadCheckpoints(m.ctx, storage.AllPartitions)
		if err != nil {
			t.Fatalf("%s: read the checkpoints: %v", b.name, err)
		}
		if got := describe(rows); got != want {
			t.Fatalf("%s has the checkpoints %q, the model %q", b.name, got, want)
		}
	}
}

// sameData compares rows and derived columns, and that what is activated is filled.
func (m *machine) sameData() {
	for name, c := range m.model.checkpoints {
		if !c.sql {
			continue
		}
		want := []string{}
		for _, id := range m.model.todosOf(storage.AllPartitions) {
			if m.model.todos[id].filled[name] {
				want = append(want, fmt.Sprint(id))
			}
		}
		for _, b := range m.backends {
			got, err := b.filled(columnOf(name))
			if err != nil {
				m.t.Fatalf("%s: read what is filled: %v", b.name, err)
			}
			if !slices.Equal(got, want) {
				m.t.Fatalf("%s has filled %v for %s, the model %v", b.name, got, name, want)
			}
		}
	}
}
