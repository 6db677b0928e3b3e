package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// protocolDDL is what a program of Syncular's server protocol runs at each start before its own fence.
const protocolDDL = `
CREATE TABLE IF NOT EXISTS sync_partitions(partition TEXT PRIMARY KEY, max_commit_seq BIGINT NOT NULL DEFAULT 0, horizon_seq BIGINT NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS sync_partition_registry(partition TEXT PRIMARY KEY, log_epoch TEXT NOT NULL, epoch_required BOOLEAN NOT NULL DEFAULT FALSE,
  last_authenticated_at_ms BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS sync_commits(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, client_id TEXT NOT NULL, client_commit_id TEXT NOT NULL,
  actor_id TEXT NOT NULL, created_at_ms BIGINT NOT NULL, writer_version BIGINT, PRIMARY KEY(partition, commit_seq));
CREATE INDEX IF NOT EXISTS sync_commits_by_time ON sync_commits(partition, created_at_ms);
CREATE TABLE IF NOT EXISTS sync_changes(partition TEXT NOT NULL, commit_seq BIGINT NOT NULL, idx INTEGER NOT NULL, tbl TEXT NOT NULL, row_id TEXT NOT NULL,
  op SMALLINT NOT NULL, row_version BIGINT, scopes JSONB NOT NULL, payload BYTEA, PRIMARY KEY(partition, commit_seq, idx));
CREATE INDEX IF NOT EXISTS sync_changes_by_table ON sync_changes(partition, commit_seq, tbl, idx);
CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints(partition TEXT NOT NULL, name TEXT NOT NULL, schema_version INTEGER NOT NULL,
  state TEXT NOT NULL CHECK(state IN ('declared','backfilling','activated')), watermark BIGINT NOT NULL DEFAULT 0, owner_epoch BIGINT NOT NULL DEFAULT 0,
  observed_rows BIGINT NOT NULL DEFAULT 0, updated_at_ms BIGINT NOT NULL, PRIMARY KEY(partition, name));
CREATE TABLE IF NOT EXISTS sync_writer_fence(partition TEXT PRIMARY KEY, required_writer_version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS sync_schema_meta(id INTEGER PRIMARY KEY CHECK (id = 1), schema_version BIGINT NOT NULL, layouts TEXT NOT NULL DEFAULT '{}')`

// protocolStart are the statements that follow, each in a transaction of its own.
var protocolStart = []string{
	`ALTER TABLE sync_commits ADD COLUMN IF NOT EXISTS writer_version BIGINT`,
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

// startProgram does what the program does at each start.
func startProgram(s *session) {
	s.t.Helper()
	for _, statement := range strings.Split(protocolDDL, ";\n") {
		s.run(statement)
	}
	for _, statement := range protocolStart {
		s.run(statement)
	}
}

func TestAProgramOfTheProtocolStartsBesideUs(t *testing.T) {
	for _, first := range []string{"ours", "theirs"} {
		t.Run("the database is "+first, func(t *testing.T) {
			dsn := testdb.Postgres(t)
			program := connect(t, dsn)
			store := openStore(t, Config{URL: dsn})
			if first == "theirs" {
				startProgram(program)
				if err := program.append("p", nil); err != nil {
					t.Fatal(err)
				}
			}
			installCatalog(t, store)
			raise(t, store, forAll(6))
			for range 2 {
				startProgram(program)
				expectFenced(t, program.append("p", 5))
				expectFenced(t, program.append(fmt.Sprintf("new%p", t), 5))
				if err := program.append("p", 6); err != nil {
					t.Errorf("a right version: %v", err)
				}
			}
			report, err := store.CheckFence(testContext(t))
			if err != nil || !report.Intact() {
				t.Errorf("report %+v, error %v", report, err)
			}
		})
	}
}

// TestAnOlderProgramsLogGetsTheColumn: version 0.22 had no writer_version, no checkpoints and no fence.
func TestAnOlderProgramsLogGetsTheColumn(t *testing.T) {
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	program.run(strings.ReplaceAll(strings.Split(protocolDDL, "CREATE TABLE IF NOT EXISTS sync_backfill_checkpoints")[0], "writer_version BIGINT, ", ""))
	const insert = "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms) VALUES ('p', %d, 'c', 'c', 'a', 0)"
	program.run(fmt.Sprintf(insert, 1))
	store := openStore(t, Config{URL: dsn})
	installCatalog(t, store)
	program.run(fmt.Sprintf(insert, 2))
	raise(t, store, forAll(1))
	expectFenced(t, program.try(fmt.Sprintf(insert, 3)))
}

// TestNoCommitBelowTheFenceLandsWhileItIsInstalledAndReplaced: writers old and new write without a pause, while our catalog is installed,
// reinstalled as over another release, repaired and raised. What was stored after a raise has its version; and no writer gets an error
// but the fence's.
func TestNoCommitBelowTheFenceLandsWhileItIsInstalledAndReplaced(t *testing.T) {
	hammer(t, false)
}

// TestProgramsThatStartOverAndOverChangeNothing is the same with programs that drop and create their own trigger all the time. Their
// DROP TRIGGER can deadlock with writers by itself.
func TestProgramsThatStartOverAndOverChangeNothing(t *testing.T) {
	hammer(t, true)
}

func hammer(t *testing.T, restarts bool) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	startProgram(admin)
	store := openStore(t, Config{URL: dsn})
	ctx, stop := context.WithCancel(testContext(t))
	var programs sync.WaitGroup
	defer programs.Wait()
	defer stop()
	h := &hammering{t: t, restarts: restarts}
	for i := range 4 {
		writer := connect(t, dsn)
		programs.Go(func() { h.write(ctx, writer, i) })
	}
	if restarts {
		program := connect(t, dsn)
		programs.Go(func() { h.restart(ctx, program) })
	}
	for round := int64(1); round <= 25; round++ {
		h.retry(func() error { return tryInstall(testContext(t), store) })
		h.retry(func() error { return tryRaise(testContext(t), store, forAll(round)) })
		h.fence.Store(round)
		switch round % 3 {
		case 0: // the next installation replaces everything
			admin.run("COMMENT ON FUNCTION syncbarrier_fence() IS 'Installed by Syncbarrier, revision other, body other'")
		case 1:
			h.retry(func() error { _, err := store.RepairFence(testContext(t)); return err })
		}
	}
	stop()
	programs.Wait()
	if h.stored.Load() == 0 || h.refused.Load() == 0 {
		t.Errorf("%d commits stored and %d refused: the test did not test", h.stored.Load(), h.refused.Load())
	}
}

type hammering struct {
	t        *testing.T
	restarts bool
	fence    atomic.Int64 // the minimum that is committed for certain
	stored   atomic.Int64
	refused  atomic.Int64
}

// write appends until ctx ends, to its own partition and to new ones, mostly with a version that is too old for certain.
func (h *hammering) write(ctx context.Context, writer *session, i int) {
	for n := 0; ctx.Err() == nil; n++ {
		before := h.fence.Load()
		version := before - 1
		if n%4 == 0 {
			version = before + 100
		}
		partition := fmt.Sprintf("p%d", i)
		if n%3 == 0 {
			partition = fmt.Sprintf("new%d-%d", i, n)
		}
		_, err := writer.conn.Exec(ctx, appendSQL, partition, version)
		switch {
		case err == nil && before >= 1 && version < before:
			h.t.Errorf("a commit of version %d was stored although %d was required before it began", version, before)
			return
		case err == nil:
			h.stored.Add(1)
		case messageOf(err) == "sync.storage.writer_fence_rejected":
			h.refused.Add(1)
		case ctx.Err() == nil && !h.passing(err):
			h.t.Errorf("a writer got %v", err)
			return
		}
	}
}

func (h *hammering) restart(ctx context.Context, program *session) {
	for ctx.Err() == nil {
		for _, statement := range protocolStart {
			if _, err := program.conn.Exec(ctx, statement); err != nil && ctx.Err() == nil && !h.passing(err) {
				h.t.Errorf("a starting program got %v", err)
				return
			}
		}
	}
}

// passing says whether an error passes by itself and is none of our making: a deadlock among the programs that drop and create triggers.
func (h *hammering) passing(err error) bool { return h.restarts && sqlState(err) == "40P01" }

// retry tries again what a lock kept from happening, as the engine does, until the test's time is over.
func (h *hammering) retry(attempt func() error) {
	h.t.Helper()
	ctx := testContext(h.t)
	for {
		err := attempt()
		if err == nil {
			return
		}
		if !h.passing(err) && storage.CodeOf(err) != storage.CodeLockTimeout || ctx.Err() != nil {
			h.t.Fatal(err)
		}
	}
}

// TestTheProtocolsOwnTriggerIsLeftAlone: installing, checking and removing do not touch it.
func TestTheProtocolsOwnTriggerIsLeftAlone(t *testing.T) {
	dsn := testdb.Postgres(t)
	program := connect(t, dsn)
	startProgram(program)
	const look = `SELECT t.oid || ' ' || t.tgenabled::text || ' ' || p.oid || md5(p.prosrc) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE tgname = 'sync_commits_writer_fence'`
	before := value[string](program, look)
	store := openStore(t, Config{URL: dsn})
	installCatalog(t, store)
	if _, err := store.RepairFence(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Remove(testContext(t), true); err != nil {
		t.Fatal(err)
	}
	if after := value[string](program, look); after != before {
		t.Errorf("it was %s and is %s", before, after)
	}
}

// TestAStartOfTheProgramWaitsForAnInstallation: its DROP TRIGGER comes in the middle of our transaction.
func TestAStartOfTheProgramWaitsForAnInstallation(t *testing.T) {
	dsn := testdb.Postgres(t)
	watcher, program := connect(t, dsn), connect(t, dsn)
	startProgram(program)
	store := openStore(t, Config{URL: dsn})
	done := make(chan error, 1)
	err := store.inTx(testContext(t), "install", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		if err := store.ensureCatalog(ctx, tx); err != nil {
			return err
		}
		go func() { done <- program.try(protocolStart[2]) }()
		waitBlocked(t, watcher, program.pid())
		_, err := store.raiseFence(ctx, tx, forAll(6))
		return err
	})
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	program.run(protocolStart[3])
	expectFenced(t, program.append("p", 5))
}

// TestTheProtocolsCallsWork: declare, claim, advance and activate of a program's own checkpoint, on our database.
func TestTheProtocolsCallsWork(t *testing.T) {
	store, dsn := newCatalog(t)
	program := connect(t, dsn)
	startProgram(program)
	program.run(`INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 6, '{}') ON CONFLICT (id) DO UPDATE SET schema_version = EXCLUDED.schema_version, layouts = EXCLUDED.layouts`)
	for range 2 {
		program.run(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, watermark, owner_epoch, observed_rows, updated_at_ms)
			VALUES ('p', 'c', 6, 'declared', 0, 0, 0, 1) ON CONFLICT (partition, name) DO NOTHING`)
		program.run(`INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES ('p', 6) ON CONFLICT (partition) DO UPDATE
			SET required_writer_version = GREATEST(sync_writer_fence.required_writer_version, EXCLUDED.required_writer_version)`)
	}
	expectFenced(t, program.append("p", 5))
	if err := program.append("p", 6); err != nil {
		t.Fatal(err)
	}
	epoch := value[int64](program, `UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch + 1,
		state = CASE WHEN state = 'declared' THEN 'backfilling' ELSE state END, schema_version = 6, updated_at_ms = 2
		WHERE partition = 'p' AND name = 'c' AND state <> 'activated' RETURNING owner_epoch`)
	const advance = `WITH moved AS (UPDATE sync_backfill_checkpoints SET watermark = $1, observed_rows = $2, updated_at_ms = 3
		WHERE partition = 'p' AND name = 'c' AND owner_epoch = $3 RETURNING name) SELECT count(*) FROM moved`
	const activate = `WITH flipped AS (UPDATE sync_backfill_checkpoints SET state = 'activated', watermark = $1, updated_at_ms = 4
		WHERE partition = 'p' AND name = 'c' AND owner_epoch = $2 AND state <> 'activated' RETURNING partition) SELECT count(*) FROM flipped`
	steps := []struct {
		name      string
		sql       string
		arguments []any
		want      int64
	}{
		{"advance", advance, []any{1, 10, epoch}, 1},
		{"advance of another owner", advance, []any{2, 10, epoch - 1}, 0},
		{"advance downwards", advance, []any{0, 10, epoch}, 0},
		{"activate", activate, []any{1, epoch}, 1},
		{"advance after activation", advance, []any{5, 10, epoch}, 0},
		{"activate again", activate, []any{1, epoch}, 0},
	}
	for _, step := range steps {
		if n := value[int64](program, step.sql, step.arguments...); n != step.want {
			t.Errorf("%s changed %d rows, want %d", step.name, n, step.want)
		}
	}
	report, err := store.CheckFence(testContext(t))
	if err != nil || !report.Intact() {
		t.Errorf("report %+v, error %v", report, err)
	}
}

// TestStartersDoNotQueue: where everything is in place, a starter takes no lock that an open writer's transaction would keep it from.
func TestStartersDoNotQueue(t *testing.T) {
	store, dsn := newCatalog(t)
	writer := connect(t, dsn)
	writer.run("BEGIN")
	if err := writer.append("p", 1); err != nil {
		t.Fatal(err)
	}
	writer.run("LOCK TABLE sync_commits, sync_partitions, sync_changes, sync_schema_meta, sync_writer_fence, sync_backfill_checkpoints IN SHARE ROW EXCLUSIVE MODE")
	before := value[string](writer, catalogState)
	for range 8 {
		err := store.inTx(testContext(t), "start", txOptions{lockTimeout: 50 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx) error {
			return store.ensureCatalog(ctx, tx)
		})
		if err != nil {
			t.Errorf("a starter: %v", err)
		}
	}
	if after := value[string](writer, catalogState); after != before {
		t.Errorf("system catalogs were rewritten")
	}
}

// catalogState changes when a function, trigger or table of ours is rewritten, even with the same content.
const catalogState = `
	SELECT md5(string_agg(line, ',' ORDER BY line))
	  FROM (
		SELECT 'f' || oid || xmin FROM pg_proc WHERE proname LIKE 'syncbarrier%'
		UNION ALL
		SELECT 't' || oid || xmin FROM pg_trigger WHERE tgname LIKE 'syncbarrier%'
		UNION ALL
		SELECT 'c' || c.oid || c.xmin FROM pg_class c WHERE relnamespace = 'public'::regnamespace
		UNION ALL
		SELECT 'r' || xmin || ctid FROM sync_barrier_owner
		UNION ALL
		SELECT 'w' || xmin || ctid FROM sync_writer_fence
	       ) AS lines(line)`
