package postgres

import (
	"fmt"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// Behind a pooler in transaction mode a server's connection goes from one client to the next: nothing that a barrier or the user's SQL sets in
// the session may still be there, and nothing that a barrier needs may be.
func TestABarrierBehindATransactionPoolerLeavesNothingOnItsConnections(t *testing.T) {
	direct := testdb.Postgres(t)
	pooler := testdb.PgBouncer(t, direct)
	db := newBarrierDB(t, Config{URL: direct})
	store := openStore(t, Config{URL: pooler, Pooler: PoolerTransaction})
	app := db.connectTo(pooler + "&default_query_exec_mode=exec")
	const look = `SELECT current_setting('lock_timeout') || ' ' || current_setting('statement_timeout') || ' ' || current_setting('search_path') || ' ' || current_setting('role') || ' ' ||
		(SELECT count(*) FROM pg_prepared_statements WHERE from_sql) || ' ' || coalesce(to_regclass('pg_temp.temporary')::text, 'none')`
	var before string
	if err := app.QueryRow(db.ctx, look).Scan(&before); err != nil {
		t.Fatal(err)
	}

	sql := `SET statement_timeout = 0; SET lock_timeout = '77s'; SELECT set_config('search_path', '', false); SELECT pg_advisory_lock(4711);
		CREATE TEMP TABLE temporary(i int); PREPARE mine AS SELECT 1;`
	first := withSQL(6, sql+"CREATE TABLE public.six(i int)")
	first.Tables = []storage.Table{plainTodos(titleNorm)}
	first.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6)}
	if _, err := applyOn(db.ctx, store, first); err != nil {
		t.Fatal(err)
	}
	second := withSQL(7, sql+"CREATE TABLE public.seven(i int)")
	second.Tables, second.Checkpoints = first.Tables, first.Checkpoints

	holder, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(db.ctx, "LOCK TABLE sync_schema_meta IN ROW SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	second.Lock.TimeoutMilliseconds = 200
	_, err = store.EnsureSchema(db.ctx, second, storage.Attempt{Number: 1})
	wantRefusal(t, err, storage.CodeLockTimeout, "sync_schema_meta")
	if err := holder.Rollback(db.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := applyOn(db.ctx, store, second); err != nil {
		t.Fatal(err)
	}

	db.wantText("0", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())")
	for range 20 { // the pooler hands out any of its connections
		var after string
		if err := app.QueryRow(db.ctx, look).Scan(&after); err != nil {
			t.Fatal(err)
		}
		if after != before {
			t.Fatalf("a client of the pooler sees %q, before %q", after, before)
		}
	}
}

func TestABarrierByTheSimpleProtocol(t *testing.T) {
	db := newBarrierDB(t, Config{URL: testdb.Postgres(t), SimpleProtocol: true})
	first := withSQL(6, "CREATE TABLE six(i int)")
	first.Tables = []storage.Table{plainTodos(storage.Column{Name: "price", SQLType: "numeric(12,2)", Nullable: true}), syncularNotes(3)}
	db.mustApply(first)
	db.exec(`INSERT INTO notes(_sync_partition, _sync_row_id, title, size, _sync_server_version, _sync_scopes, _sync_payload) VALUES ('p', '1', 't', 1, 1, '{}', '\x03aa')`)
	second := target(7, plainTodos(storage.Column{Name: "price", SQLType: "numeric(12,2)", Nullable: true}, titleNorm), syncularNotes(9))
	second.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 7)}
	if _, err := db.store.Plan(db.ctx, second); err != nil {
		t.Error(err)
	}
	db.mustApply(second)
	db.wantText(`\xfb01aa`, "SELECT _sync_payload FROM notes")
	if status, err := db.store.Status(db.ctx); err != nil || status.StoredVersion != 7 || len(status.Checkpoints) != 1 {
		t.Errorf("%+v, %v", status, err)
	}
}

func TestABarrierOnItsOnlyConnection(t *testing.T) {
	db := newBarrierDB(t, Config{URL: testdb.Postgres(t), MaxConnections: 1})
	began := time.Now()
	wanted := withSQL(6, "SELECT pg_sleep(0.2)")
	wanted.Tables = []storage.Table{plainTodos(titleNorm)}
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6)}
	db.mustApply(wanted)
	if took := time.Since(began); took > 8*time.Second {
		t.Errorf("it took %s: something waited for a second connection", took)
	}
}

// A role that may create in the schema and nothing else brings a database from nothing to its second version.
func TestABarrierNeedsNoSuperuser(t *testing.T) {
	direct := testdb.Postgres(t)
	owner := testdb.Role(t, direct, "owner")
	db := newBarrierDB(t, Config{URL: direct})
	db.exec("GRANT CREATE, USAGE ON SCHEMA public TO " + quoteIdentifier(testdb.RoleName(t, owner)))
	store := openStore(t, Config{URL: owner})
	first := withSQL(6, "CREATE TABLE six(i int)")
	first.Tables = []storage.Table{plainTodos(), syncularNotes(3)}
	if _, err := applyOn(db.ctx, store, first); err != nil {
		t.Fatal(err)
	}
	second := withSQL(7, "SET LOCAL lock_timeout = 0; ALTER TABLE six ADD COLUMN j int")
	second.Tables = []storage.Table{plainTodos(titleNorm), syncularNotes(9)}
	second.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 7)}
	second.Lock.TimeoutMilliseconds = 200

	holder := db.connect()
	tx, err := holder.Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "SELECT FROM six"); err != nil {
		t.Fatal(err)
	}
	_, err = store.EnsureSchema(db.ctx, second, storage.Attempt{Number: 1})
	wantRefusal(t, err, storage.CodeLockTimeout, "six", fmt.Sprint(holder.PgConn().PID()))
	if err := tx.Rollback(db.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := applyOn(db.ctx, store, second); err != nil {
		t.Fatal(err)
	}
	if status, err := store.Status(db.ctx); err != nil || status.StoredVersion != 7 {
		t.Errorf("%+v, %v", status, err)
	}
}

// What was planned before the locks does not decide: where other locks are needed under them, the attempt ends.
func TestAPlanThatIsOutOfDateUnderTheLocksIsMadeAgain(t *testing.T) {
	db := newBarrierDB(t)
	indexed := syncularNotes(3)
	indexed.Indexes = []storage.Index{{Name: "by_title", Columns: []string{"title"}}}
	db.mustApply(target(6, plainTodos(), indexed))
	wanted := target(7, plainTodos(titleNorm), indexed)
	wanted.Lock.TimeoutMilliseconds = 20000

	tx, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "LOCK TABLE sync_partitions IN EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := db.once(wanted)
		done <- err
	}()
	db.eventually("the barrier waits", func() bool { return db.waiting("sync_partitions") })
	if _, err := tx.Exec(db.ctx, "DROP INDEX sync_ix_by_title"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, <-done, storage.CodeSerialization, "changed between plan and lock")
	db.wantText("6", "SELECT schema_version FROM sync_schema_meta")
	db.mustApply(wanted)
	db.wantText("sync_ix_by_title", "SELECT to_regclass('sync_ix_by_title')")
}

// Of a version that two programs bring at once, and a higher one, each is carried out once and in order.
func TestMigratorsOfFollowingVersions(t *testing.T) {
	db := newBarrierDB(t)
	all := []storage.Migration{{Version: 1, SQL: "CREATE TABLE ran(version int)"}}
	for version := int64(2); version <= 5; version++ {
		all = append(all, storage.Migration{Version: version, SQL: fmt.Sprintf("INSERT INTO ran VALUES (%d)", version)})
	}
	type outcome struct {
		version int64
		err     error
	}
	outcomes := make(chan outcome)
	for _, version := range []int64{1, 2, 2, 3, 4, 5, 5} {
		store := openStore(t, Config{URL: db.url})
		go func() {
			wanted := target(version)
			wanted.Migrations = all
			_, err := applyOn(db.ctx, store, wanted)
			outcomes <- outcome{version, err}
		}()
	}
	for range 7 {
		got := <-outcomes
		if got.err != nil && (storage.CodeOf(got.err) != storage.CodeVersionRegression || got.version == 5) {
			t.Errorf("version %d: %v", got.version, got.err)
		}
	}
	db.wantText("2 3 4 5", "SELECT string_agg(version::text, ' ' ORDER BY ctid) FROM ran")
	db.wantText("5", "SELECT schema_version FROM sync_schema_meta")
	db.wantText("1", "SELECT count(DISTINCT version) FROM sync_barrier_history WHERE version = 5")
}

// After a failover the pool still holds connections to a server that takes no writes any more.
func TestAServerThatTakesNoWritesForAWhileIsWaitedOut(t *testing.T) {
	server := testdb.PostgresServer(t, testdb.ServerOptions{})
	db := newBarrierDB(t, Config{URL: server.Database(t)})
	db.mustApply(target(5, plainTodos()))
	set := func(value string) {
		t.Helper()
		db.exec("ALTER SYSTEM SET default_transaction_read_only = " + value)
		db.exec("SELECT pg_reload_conf()")
		db.eventually("the server has read its settings", func() bool {
			return db.text("SELECT setting FROM pg_settings WHERE name = 'default_transaction_read_only'") == value
		})
	}
	set("on")
	_, err := db.once(target(6, plainTodos(titleNorm)))
	wantRefusal(t, err, storage.CodeReadOnly)
	if !storage.ClassOf(err).Retryable() {
		t.Error("it is not tried again")
	}
	db.wantText("5", "SELECT schema_version FROM sync_schema_meta")
	set("off")
	if _, err := db.once(target(6, plainTodos(titleNorm))); err != nil {
		t.Errorf("once it takes writes again: %v", err)
	}
}
