package postgres

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestAFreshCatalogIsIntact(t *testing.T) {
	store, dsn := newCatalog(t)
	report, err := store.CheckFence(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if !report.Intact() || report.MinWriterVersion != 0 || report.GotIn != 0 {
		t.Errorf("report %+v", report)
	}
	admin := connect(t, dsn)
	if n := value[int64](admin, "SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'"); n != 0 {
		t.Errorf("the row for all says %d, want 0", n)
	}
	owner := value[string](admin, "SELECT protocol || '/' || cluster || '/' || namespace || '/' || name FROM sync_barrier_owner")
	if owner != fmt.Sprintf("%d///", storage.CatalogProtocol) {
		t.Errorf("the owner row is %s", owner)
	}
	if system := value[bool](admin, "SELECT system_identifier = (SELECT system_identifier::text FROM pg_control_system()) FROM sync_barrier_owner"); !system {
		t.Error("the system identifier was not noted")
	}
	if valid := value[bool](admin, "SELECT indisvalid FROM pg_index WHERE indexrelid = 'syncbarrier_changes_by_table'::regclass"); !valid {
		t.Error("the index for coverage questions is not valid")
	}
}

func TestEveryColumnThatCountsCanCountPastInt32(t *testing.T) {
	_, dsn := newCatalog(t)
	admin := connect(t, dsn)
	for _, column := range []string{
		"sync_partitions.max_commit_seq", "sync_partitions.horizon_seq", "sync_commits.commit_seq", "sync_commits.writer_version",
		"sync_changes.commit_seq", "sync_backfill_checkpoints.watermark", "sync_backfill_checkpoints.owner_epoch",
		"sync_backfill_progress.owner_epoch", "sync_backfill_progress.lease_epoch", "sync_backfill_progress.position",
	} {
		table, name, _ := strings.Cut(column, ".")
		kind := value[string](admin, "SELECT data_type FROM information_schema.columns WHERE table_schema = 'public' AND table_name = $1 AND column_name = $2", table, name)
		if kind != "bigint" {
			t.Errorf("%s is %s", column, kind)
		}
	}
	if limit := value[string](admin, "SELECT maximum_value FROM information_schema.sequences WHERE sequence_name = 'syncbarrier_refused'"); limit != "9223372036854775807" {
		t.Errorf("the sequence ends at %s", limit)
	}
}

func TestTheCatalogIsInstalledWithItsTransactionOrNotAtAll(t *testing.T) {
	dsn := testdb.Postgres(t)
	store := openStore(t, Config{URL: dsn})
	err := store.inTx(testContext(t), "fail", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if err := store.ensureCatalog(ctx, tx); err != nil {
			return err
		}
		return storage.Refuse(storage.CodeInvalidSpec, "no")
	})
	expectCode(t, err, storage.CodeInvalidSpec)
	if n := value[int64](connect(t, dsn), "SELECT count(*) FROM pg_class WHERE relname LIKE 'sync%'"); n != 0 {
		t.Errorf("%d relations were left behind", n)
	}
}

func TestEightInstallersAgree(t *testing.T) {
	dsn := testdb.Postgres(t)
	var installers sync.WaitGroup
	for range 8 {
		store := openStore(t, Config{URL: dsn})
		installers.Go(func() {
			err := store.inTx(testContext(t), "install", txOptions{lockTimeout: 30 * time.Second}, func(ctx context.Context, tx pgx.Tx) error {
				return store.ensureCatalog(ctx, tx)
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	installers.Wait()
}

func TestInstallingWithoutSuperuser(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	owner := testdb.Role(t, dsn, "owner")
	admin.run("GRANT CREATE ON SCHEMA public TO " + quoteIdentifier(testdb.RoleName(t, owner)))
	store := openStore(t, Config{URL: owner})
	installCatalog(t, store)
	raise(t, store, forAll(6))
	report, err := store.CheckFence(testContext(t))
	if err != nil || !report.Intact() {
		t.Errorf("report %+v, error %v", report, err)
	}
	writer := connect(t, grantWriter(t, dsn, "writer"))
	expectFenced(t, writer.append("p", 5))
	if err := writer.append("p", 6); err != nil {
		t.Errorf("a right version: %v", err)
	}
}

func TestInstallingWithoutTheRightSaysSo(t *testing.T) {
	dsn := testdb.Postgres(t)
	startProgram(connect(t, dsn)) // the tables belong to another role
	store := openStore(t, Config{URL: testdb.Role(t, dsn, "nobody")})
	err := tryInstall(testContext(t), store)
	expectCode(t, err, storage.CodeRightMissing)
	if !strings.Contains(err.Error(), "grant the right") {
		t.Errorf("error %v", err)
	}
}

func TestDefaultPrivilegesDoNotOpenTheFunctions(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	role := quoteIdentifier(testdb.RoleName(t, testdb.Role(t, dsn, "app")))
	admin.run("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT EXECUTE ON FUNCTIONS TO " + role)
	store := openStore(t, Config{URL: dsn})
	installCatalog(t, store)
	report, err := store.CheckFence(testContext(t))
	if err != nil || !report.Intact() {
		t.Errorf("report %+v, error %v", report, err)
	}
}

func TestTablesOfAnotherKindAreRefused(t *testing.T) {
	cases := []struct{ name, setup, want string }{
		{"text for a number", "CREATE TABLE sync_partitions(partition text PRIMARY KEY, max_commit_seq text, horizon_seq bigint)",
			"table public.sync_partitions: column max_commit_seq is of type text, needed is bigint or integer or smallint"},
		{"numeric for a number", "CREATE TABLE sync_commits(partition text, commit_seq numeric, client_id text, client_commit_id text, actor_id text, created_at_ms bigint)",
			"column commit_seq is of type numeric"},
		{"integer for text", "CREATE TABLE sync_partition_registry(partition integer, log_epoch text, epoch_required boolean, last_authenticated_at_ms bigint)", "table public.sync_partition_registry: column partition is of type integer, needed is text or character varying"},
		{"layouts as jsonb", "CREATE TABLE sync_schema_meta(id integer PRIMARY KEY, schema_version bigint, layouts jsonb)", "column layouts is of type jsonb"},
		{"a column is missing", "CREATE TABLE sync_schema_meta(id integer PRIMARY KEY, schema_version bigint)", "table public.sync_schema_meta has no column layouts"},
		{"a view", "CREATE VIEW sync_writer_fence AS SELECT 'p'::text AS partition, 1 AS required_writer_version", "public.sync_writer_fence is a view, a table is needed"},
		{"a partitioned fence", "CREATE TABLE sync_writer_fence(partition text PRIMARY KEY, required_writer_version integer) PARTITION BY LIST (partition)", "is a partitioned table"},
		{"no key", "CREATE TABLE sync_writer_fence(partition text, required_writer_version integer)", "has no unique key (partition)"},
		{"a partial key", "CREATE TABLE sync_writer_fence(partition text, required_writer_version integer); CREATE UNIQUE INDEX ON sync_writer_fence(partition) WHERE partition > ''", "has no unique key (partition)"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			dsn := testdb.Postgres(t)
			admin := connect(t, dsn)
			admin.run(c.setup)
			err := tryInstall(testContext(t), openStore(t, Config{URL: dsn}))
			expectCode(t, err, storage.CodeLayoutMismatch)
			if err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			if value[bool](admin, "SELECT to_regclass('sync_barrier_owner') IS NOT NULL") {
				t.Error("something was installed")
			}
		})
	}
}

func TestNarrowerTypesOfTheSameFamilyAreAccepted(t *testing.T) {
	dsn := testdb.Postgres(t)
	connect(t, dsn).run(`CREATE TABLE sync_partitions(partition varchar(80) PRIMARY KEY, max_commit_seq integer NOT NULL DEFAULT 0, horizon_seq bigint NOT NULL DEFAULT 0, note text)`)
	store := openStore(t, Config{URL: dsn})
	installCatalog(t, store)
	raise(t, store, map[string]int64{"p": 6})
	expectFenced(t, connect(t, dsn).append("p", 5))
}

func TestReservedKeysInUseAreRefused(t *testing.T) {
	for _, statement := range []string{
		"INSERT INTO sync_partitions(partition) VALUES ('*')",
		"INSERT INTO sync_partitions(partition) VALUES ('capture:todos/')",
		"INSERT INTO sync_partition_registry VALUES ('capture:', 'e', false, 0)",
		"INSERT INTO sync_writer_fence VALUES ('*', 6)",
		"INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms) VALUES ('*', 'c', 6, 'declared', 0)",
	} {
		t.Run(statement, func(t *testing.T) {
			dsn := testdb.Postgres(t)
			program := connect(t, dsn)
			startProgram(program)
			program.run(statement)
			err := tryInstall(testContext(t), openStore(t, Config{URL: dsn}))
			expectCode(t, err, storage.CodeInvalidSpec)
			if err != nil && !strings.Contains(err.Error(), "reserved") {
				t.Errorf("error %v", err)
			}
		})
	}
}

func TestNamesThatMeanOtherTablesAreRefused(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run("CREATE SCHEMA first; CREATE TABLE first.sync_commits(x integer)")
	admin.run(fmt.Sprintf("ALTER DATABASE %s SET search_path = first, public", quoteIdentifier(value[string](admin, "SELECT current_database()"))))
	store := openStore(t, Config{URL: dsn})
	err := tryInstall(testContext(t), store)
	expectCode(t, err, storage.CodeInvalidSpec)
	if err != nil && !strings.Contains(err.Error(), "first.sync_commits") {
		t.Errorf("error %v does not name the other table", err)
	}
	// A schema that is on nobody's path is for programs that name it.
	admin.run("CREATE SCHEMA apart")
	installCatalog(t, openStore(t, Config{URL: dsn, Schema: "apart"}))
	admin.run("DROP TABLE first.sync_commits")
	installCatalog(t, store)
	// Later, when everything is in place, it is still refused.
	admin.run("CREATE TABLE first.sync_changes(x integer)")
	expectCode(t, tryInstall(testContext(t), store), storage.CodeInvalidSpec)
}

func TestANewerCatalogIsLeftAlone(t *testing.T) {
	store, dsn := newCatalog(t)
	admin := connect(t, dsn)
	admin.run("UPDATE sync_barrier_owner SET protocol = protocol + 1")
	before := value[string](admin, catalogState)
	expectCode(t, tryInstall(testContext(t), store), storage.CodeNewerCatalog)
	_, err := store.CheckFence(testContext(t))
	expectCode(t, err, storage.CodeNewerCatalog)
	_, err = store.RepairFence(testContext(t))
	expectCode(t, err, storage.CodeNewerCatalog)
	_, err = store.Remove(testContext(t), true)
	expectCode(t, err, storage.CodeNewerCatalog)
	if after := value[string](admin, catalogState); after != before {
		t.Error("a newer catalog was changed")
	}
}

// TestAnotherReleasesCatalogIsIntactAndUpgraded: what another release installed differs from ours and is not weakened by that.
func TestAnotherReleasesCatalogIsIntactAndUpgraded(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, map[string]int64{"p": 7, storage.AllPartitions: 6})
	admin := connect(t, dsn)
	asOfOtherRelease(t, store, admin)
	report, err := store.CheckFence(testContext(t))
	if err != nil || !report.Intact() {
		t.Errorf("before the upgrade: report %+v, error %v", report, err)
	}
	installCatalog(t, store)
	for _, function := range declaredFunctions {
		body := value[string](admin, "SELECT prosrc FROM pg_proc WHERE proname = $1", function.name)
		if body != store.sql(function.body) {
			t.Errorf("%s was not upgraded", function.name)
		}
	}
	report, err = store.CheckFence(testContext(t))
	if err != nil || !report.Intact() || report.MinWriterVersion != 6 {
		t.Errorf("after the upgrade: report %+v, error %v", report, err)
	}
	expectFenced(t, admin.append("p", 6))
	expectFenced(t, admin.append("q", 5))
}

// asOfOtherRelease makes the catalog what another release would have left: other bodies, noted as its own, and one guard less.
func asOfOtherRelease(t *testing.T, store *Store, admin *session) {
	t.Helper()
	for _, function := range declaredFunctions {
		body := "-- another release\n" + store.sql(function.body)
		admin.run(store.sql(function.sql, "body", quoteLiteral(body)))
		admin.run(fmt.Sprintf("COMMENT ON FUNCTION %s() IS %s", function.name, quoteLiteral(revisionComment+"0123456789abcdef"+bodyComment+revisionOf(body))))
	}
	admin.run("DROP TRIGGER syncbarrier_guard_commits ON sync_commits")
}

func TestABodyThatSomebodyChangedIsFoundInAnotherReleasesCatalogToo(t *testing.T) {
	store, dsn := newCatalog(t)
	admin := connect(t, dsn)
	asOfOtherRelease(t, store, admin)
	admin.run("CREATE OR REPLACE FUNCTION syncbarrier_fence() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET row_security = off AS 'BEGIN RETURN NULL; END'")
	expectFinding(t, store, "has another body", true)
}

func TestAWeakenedFenceIsNotMendedInSilence(t *testing.T) {
	store, dsn := newCatalog(t)
	connect(t, dsn).run("ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence")
	installCatalog(t, store)
	expectFinding(t, store, "is disabled", true)
	err := store.inTx(testContext(t), "barrier", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return store.requireFence(ctx, tx)
	})
	expectCode(t, err, storage.CodeFenceBroken)
}

func TestATableThatIsGoneIsNotMadeAgain(t *testing.T) {
	store, dsn := newCatalog(t)
	admin := connect(t, dsn)
	admin.run("DROP TABLE sync_backfill_definitions")
	err := tryInstall(testContext(t), store)
	expectCode(t, err, storage.CodeFenceBroken)
	expectFinding(t, store, "sync_backfill_definitions is missing", false)
	report, err := store.RepairFence(testContext(t))
	if err != nil || report.Intact() {
		t.Errorf("report %+v, error %v", report, err)
	}
}

func TestAnIndexThatIsGoneIsMadeAgain(t *testing.T) {
	store, dsn := newCatalog(t)
	admin := connect(t, dsn)
	admin.run("DROP INDEX syncbarrier_checkpoints_open")
	installCatalog(t, store)
	if !value[bool](admin, "SELECT to_regclass('syncbarrier_checkpoints_open') IS NOT NULL") {
		t.Error("the index is still missing")
	}
}

// TestAnInstallationGivesUpOnALockAndNamesTheTable: only the first lock is waited for.
func TestAnInstallationGivesUpOnALockAndNamesTheTable(t *testing.T) {
	for table, waits := range map[string]bool{"sync_partitions": true, "sync_commits": false, "sync_writer_fence": false} {
		t.Run(table, func(t *testing.T) {
			dsn := testdb.Postgres(t)
			program := connect(t, dsn)
			startProgram(program)
			program.run("BEGIN")
			program.run("LOCK TABLE " + table + " IN ROW EXCLUSIVE MODE")
			store := openStore(t, Config{URL: dsn})
			const timeout = 300 * time.Millisecond
			started := time.Now()
			err := store.inTx(testContext(t), "install", txOptions{lockTimeout: timeout}, func(ctx context.Context, tx pgx.Tx) error {
				return store.ensureCatalog(ctx, tx)
			})
			waited := time.Since(started) >= timeout
			expectCode(t, err, storage.CodeLockTimeout)
			if refused := asError(t, err); refused.Table != table || waited != waits {
				t.Errorf("table %q, waited %v; want %q, %v", refused.Table, waited, table, waits)
			}
		})
	}
}
