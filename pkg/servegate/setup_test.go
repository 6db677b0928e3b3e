package servegate

import (
	"context"
	"database/sql"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/storage/sqlite"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// gate is what the gates of all transactions have in common.
type gate interface {
	Check(ctx context.Context) (Answer, error)
	Handler() http.Handler
}

// clinic is a database of a clinic, with the Store that brings it from version to version.
type clinic struct {
	t     *testing.T
	ctx   context.Context
	store storage.Store
	// db is a program's own connection, with every right.
	db *sql.DB
	// schema holds the catalog; empty: the usual one.
	schema string
	// gate makes a gate in the way of the test.
	gate func(Options) (gate, error)
}

// ways are the ways in which an application reaches its database.
var ways = map[string]func(*testing.T) clinic{
	"a pgx pool":                             onPool,
	"database/sql with PostgreSQL":           onPostgres,
	"database/sql with SQLite":               onSQLite,
	"a pgx pool in another schema":           onPoolInSchema,
	"a pgx pool behind a transaction pooler": onPgBouncer,
}

func onPool(t *testing.T) clinic {
	url := testdb.Postgres(t)
	return openClinic(t, url, "", newPool(t, url))
}

func onPoolInSchema(t *testing.T) clinic {
	url := testdb.Postgres(t)
	db := openDB(t, "pgx", url)
	mustExec(t, db, `CREATE SCHEMA "ward ""7"""`)
	return openClinic(t, url, `ward "7"`, newPool(t, url))
}

func onPgBouncer(t *testing.T) clinic {
	url := testdb.Postgres(t)
	config := poolConfig(t, testdb.PgBouncer(t, url))
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	return openClinic(t, url, "", poolWith(t, config))
}

func openClinic(t *testing.T, url, schema string, pool *pgxpool.Pool) clinic {
	t.Helper()
	c := clinic{t: t, ctx: testContext(t), db: openDB(t, "pgx", url), schema: schema}
	store, err := postgres.Open(c.ctx, postgres.Config{URL: url, Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	c.store = store
	c.gate = func(o Options) (gate, error) {
		o.Schema = schema
		return ForPool(pool, o)
	}
	return c
}

func onPostgres(t *testing.T) clinic {
	url := testdb.Postgres(t)
	c := openClinic(t, url, "", newPool(t, url))
	db := openDB(t, "pgx", url)
	c.gate = func(o Options) (gate, error) { return ForDB(db, PostgreSQL, o) }
	return c
}

func onSQLite(t *testing.T) clinic {
	path := filepath.Join(t.TempDir(), "clinic.db")
	c := clinic{t: t, ctx: testContext(t)}
	store, err := sqlite.Open(c.ctx, sqlite.Config{Path: path, Create: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	c.store, c.db = store, openDB(t, "sqlite", path+"?_pragma=busy_timeout(10000)&_txlock=immediate")
	c.gate = func(o Options) (gate, error) { return ForDB(c.db, SQLite, o) }
	return c
}

func openDB(t *testing.T, driver, address string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() }) // the database goes anyway
	return db
}

func newPool(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	return poolWith(t, poolConfig(t, url))
}

func poolConfig(t *testing.T, url string) *pgxpool.Config {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func poolWith(t *testing.T, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func mustExec(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(testContext(t), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// target is the clinic at a version: from 7 on patients have a name to search by, which somebody fills.
func target(version int64) storage.Target {
	patients := storage.Table{
		Name: "patients", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "ward"},
		Columns: []storage.Column{
			{Name: "id", Type: storage.TypeInteger}, {Name: "ward", Type: storage.TypeString}, {Name: "name", Type: storage.TypeString},
		},
	}
	made := storage.Target{Version: version, Owner: storage.Owner{Namespace: "shop", Name: "clinic"}}
	if version >= 7 {
		fence := int64(7)
		made.MinWriterVersion = &fence
		patients.Columns = append(patients.Columns, storage.Column{Name: "name_search", Type: storage.TypeString, Nullable: true})
		made.Checkpoints = []storage.Checkpoint{{
			Name: "name-search", Version: 7, Partitions: []string{"north"},
			Sources:  []storage.Source{{Table: "patients", Changes: storage.CommitLog}},
			Backfill: storage.Backfill{Job: true},
		}}
	}
	made.Tables = []storage.Table{patients}
	return made
}

// migrate brings the database to a version, behind its barrier.
func (c clinic) migrate(version int64) {
	c.t.Helper()
	if _, err := c.store.EnsureSchema(c.ctx, target(version), storage.Attempt{Number: 1}); err != nil {
		c.t.Fatalf("migrate to %d: %v", version, err)
	}
}

// table names a table of the catalog for the program's own connection.
func (c clinic) table(name string) string {
	if c.schema == "" {
		return name
	}
	return pgx.Identifier{c.schema, name}.Sanitize()
}

// activate proves the checkpoint of version 7.
func (c clinic) activate() {
	c.t.Helper()
	claim, err := c.store.ClaimCheckpoint(c.ctx, "north", "name-search")
	if err != nil {
		c.t.Fatal(err)
	}
	row, _ := claim.Row("north")
	position, err := c.store.MaxCommitSeq(c.ctx, "north")
	if err != nil {
		c.t.Fatal(err)
	}
	owner := storage.Ownership{Partition: "north", Name: claim.Name, OwnerEpoch: row.OwnerEpoch, Token: claim.Token}
	outcome, err := c.store.ActivateCheckpoint(c.ctx, owner, position)
	if err != nil || outcome != storage.OutcomeActivated {
		c.t.Fatalf("activate: %s, %v", outcome, err)
	}
}

// serving brings the database to version 7, with its gate open.
func (c clinic) serving() {
	c.t.Helper()
	c.migrate(6)
	c.migrate(7)
	c.activate()
}

func (c clinic) newGate(o Options) gate {
	c.t.Helper()
	made, err := c.gate(o)
	if err != nil {
		c.t.Fatal(err)
	}
	return made
}

// want checks what a gate of a version says, and that only GateOpen is open.
func (c clinic) want(o Options, reason Reason) Answer {
	c.t.Helper()
	answer, err := c.newGate(o).Check(c.ctx)
	if (err != nil) != (reason == Unreachable) {
		c.t.Fatalf("the gate of version %d cannot be read: %v", o.Version, err)
	}
	if answer.Reason != reason || answer.Open != (reason == GateOpen) || answer.Message == "" {
		c.t.Fatalf("the gate of version %d is %+v, want %s", o.Version, answer, reason)
	}
	return answer
}
