package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

const insertCommit = `
	WITH seq AS (
	  INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ($1, 1)
	      ON CONFLICT (partition) DO UPDATE SET max_commit_seq = sync_partitions.max_commit_seq + 1
	  RETURNING max_commit_seq)
	INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
	SELECT $1, max_commit_seq, 'c', max_commit_seq::text, 'a', 0, $2 FROM seq`

// fenced is a version that shuts older writers out.
func fenced(version int64, timeout time.Duration) storage.Target {
	wanted := target(version, plainTodos(titleNorm))
	wanted.MinWriterVersion = &version
	wanted.Lock.TimeoutMilliseconds = int(timeout.Milliseconds())
	return wanted
}

func refusal(t *testing.T, err error) *storage.Error {
	t.Helper()
	var refused *storage.Error
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a *storage.Error", err)
	}
	return refused
}

// An idle writer holds the log for longer than any attempt waits. Others must hardly notice that a barrier is waiting.
func TestWaitingForALockDoesNotFreezeTheTable(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(fenced(5, 0))
	const timeout = 400 * time.Millisecond
	idle := db.connect()
	db.execOn(idle, "SET application_name = 'idle writer'")
	tx, err := idle.Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, insertCommit, "idle", 5); err != nil {
		t.Fatal(err)
	}

	stop, slow, writes := make(chan struct{}), 0, 0
	var writers sync.WaitGroup
	other := db.connect()
	writers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			began := time.Now()
			if _, err := other.Exec(db.ctx, insertCommit, "busy", 6); err != nil {
				t.Errorf("a writer of the current version failed: %v", err)
				return
			}
			writes++
			if time.Since(began) > timeout+timeout/4 {
				slow++
			}
		}
	})

	for attempt := 1; attempt <= 3; attempt++ {
		began := time.Now()
		_, err := db.store.EnsureSchema(db.ctx, fenced(6, timeout), storage.Attempt{Number: attempt})
		took := time.Since(began)
		wantRefusal(t, err, storage.CodeLockTimeout, "sync_commits", "idle writer", fmt.Sprint(idle.PgConn().PID()))
		if strings.Contains(err.Error(), "INSERT") {
			t.Errorf("the error repeats a query: %v", err)
		}
		if refused := refusal(t, err); refused.Table != "sync_commits" {
			t.Errorf("table %q", refused.Table)
		}
		if took > timeout+time.Second {
			t.Errorf("attempt %d took %s", attempt, took)
		}
	}
	close(stop)
	writers.Wait()
	if writes < 20 || slow > writes/5 {
		t.Errorf("%d writes, %d of them slow", writes, slow)
	}
	db.wantText("5", "SELECT schema_version FROM sync_schema_meta")

	if err := tx.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	result, err := db.store.EnsureSchema(db.ctx, fenced(6, timeout), storage.Attempt{Number: 4})
	if err != nil || result.Outcome != storage.Migrate {
		t.Fatalf("%+v, %v", result, err)
	}
	db.wantText("4", "SELECT attempts FROM sync_barrier_history WHERE version = 6")
}

func TestATransactionThatIsOpenForLongIsNotQueuedFor(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(fenced(5, 0))
	idle := db.connect()
	tx, err := idle.Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, insertCommit, "idle", 5); err != nil {
		t.Fatal(err)
	}
	const timeout = 200 * time.Millisecond
	db.eventually("the transaction is older than the lock timeout", func() bool {
		return db.text("SELECT clock_timestamp() - xact_start > interval '300 ms' FROM pg_stat_activity WHERE pid = $1", int64(idle.PgConn().PID())) == "true"
	})

	queued := make(chan bool, 1)
	watched, stopWatching := context.WithCancel(db.ctx)
	watcher := db.connect()
	go func() {
		seen := false
		for watched.Err() == nil {
			var waiting int
			if err := watcher.QueryRow(db.ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'sync_commits'::regclass").Scan(&waiting); err != nil {
				break
			}
			seen = seen || waiting > 0
		}
		queued <- seen
	}()
	_, err = db.once(fenced(6, timeout))
	wantRefusal(t, err, storage.CodeLockTimeout, "open for long", "sync_commits")
	stopWatching()
	if <-queued {
		t.Error("the barrier stood in the lock queue")
	}

	t.Run("it is waited for outside the queue", func(t *testing.T) {
		long := fenced(6, 20*time.Second)
		// For this timeout the transaction is young, so it is queued for; for a short one it would be refused.
		done := make(chan error, 1)
		go func() {
			_, err := db.once(long)
			done <- err
		}()
		db.eventually("the barrier waits", func() bool { return db.waiting("sync_commits") })
		if err := tx.Commit(db.ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Errorf("after the transaction ended: %v", err)
		}
	})
}

func TestAPreparedTransactionIsNamedAsTheBlocker(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(fenced(5, 0))
	db.exec("BEGIN")
	db.exec(insertCommit, "p", 5)
	db.exec("PREPARE TRANSACTION 'barrier-left-behind'")
	for attempt := 1; attempt <= 2; attempt++ {
		_, err := db.store.EnsureSchema(db.ctx, fenced(6, 150*time.Millisecond), storage.Attempt{Number: attempt})
		wantRefusal(t, err, storage.CodeLockTimeout, `prepared transaction "barrier-left-behind"`)
		if storage.ClassOf(err) != storage.ClassLockTimeout || !storage.ClassOf(err).Retryable() {
			t.Errorf("class %s", storage.ClassOf(err))
		}
	}
	db.wantText("1", "SELECT count(*) FROM pg_prepared_xacts WHERE database = current_database()")
	db.exec("ROLLBACK PREPARED 'barrier-left-behind'")
	if _, err := db.once(fenced(6, 0)); err != nil {
		t.Errorf("after it was rolled back: %v", err)
	}
}

func TestAVacuumIsNamedAsTheBlocker(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(fenced(5, 0))
	db.exec("INSERT INTO sync_partitions(partition) VALUES ('p')")
	db.exec(`INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		SELECT 'p', n, 'c', n::text, 'a', 0, 5 FROM generate_series(1, 60000) n`)
	vacuum := db.connect()
	db.execOn(vacuum, "SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
	ctx, cancel := context.WithCancel(db.ctx)
	vacuumed := make(chan struct{})
	go func() {
		defer close(vacuumed)
		_, _ = vacuum.Exec(ctx, "VACUUM (FREEZE, DISABLE_PAGE_SKIPPING) sync_commits") // it is cancelled
	}()
	db.eventually("the vacuum holds the table", func() bool {
		return db.text("SELECT count(*) FROM pg_stat_progress_vacuum WHERE relid = 'sync_commits'::regclass") == "1"
	})
	_, err := db.once(fenced(6, 150*time.Millisecond))
	wantRefusal(t, err, storage.CodeLockTimeout, "vacuum pid", "sync_commits")
	db.wantText("1", "SELECT count(*) FROM pg_stat_progress_vacuum WHERE relid = 'sync_commits'::regclass") // it was left alone
	cancel()
	<-vacuumed
	db.mustApply(fenced(6, 0))
}

// A writer that has read the log goes on to write it while a barrier wants to change it. A barrier that took a weaker lock first and a
// stronger one later would make the writer a deadlock victim.
func TestALockIsTakenAtOnceInItsStrongestMode(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(fenced(5, 0))
	writer := db.connect()
	tx, err := writer.Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "SELECT count(*) FROM sync_commits"); err != nil {
		t.Fatal(err)
	}
	wanted := fenced(6, 10*time.Second)
	wanted.Migrations = []storage.Migration{{Version: 6, SQL: "ALTER TABLE sync_commits ADD COLUMN note text"}}
	done := make(chan error, 1)
	go func() {
		_, err := db.once(wanted)
		done <- err
	}()
	db.eventually("the barrier waits", func() bool { return db.waiting("sync_commits") })
	if _, err := tx.Exec(db.ctx, insertCommit, "p", 5); err != nil {
		t.Fatalf("the writer's insert: %v", err)
	}
	if err := tx.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatalf("the barrier: %v", err)
	}
	db.wantText("5", "SELECT writer_version FROM sync_commits")
	_, err = db.conn.Exec(db.ctx, insertCommit, "p", 5)
	if err == nil || !strings.Contains(err.Error(), string(storage.CodeWriterFenceRejected)) {
		t.Errorf("an old writer after the barrier: %v", err)
	}
}

// Writers take two tables in one order, barriers in another, 50 times over: nobody of the program may become a deadlock victim. A barrier
// waits for a table that it could not foresee for less than deadlock_timeout, which is the server's own here: with a shorter one a busy
// machine alone could make a step that long.
func TestTablesTakenInAnotherOrderDeadlockNobody(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE TABLE a(i int PRIMARY KEY, n int)")
	db.exec("CREATE TABLE b(i int PRIMARY KEY, n int)")
	db.exec("INSERT INTO a VALUES (1, 0)")
	db.exec("INSERT INTO b VALUES (1, 0)")
	db.mustApply(target(1))

	ctx, stop := context.WithCancel(db.ctx)
	var writers sync.WaitGroup
	for range 3 {
		conn := db.connect()
		writers.Go(func() {
			for ctx.Err() == nil {
				err := pgx.BeginFunc(db.ctx, conn, func(tx pgx.Tx) error {
					if _, err := tx.Exec(db.ctx, "UPDATE b SET n = n + 1"); err != nil {
						return err
					}
					_, err := tx.Exec(db.ctx, "UPDATE a SET n = n + 1")
					return err
				})
				if err != nil {
					t.Errorf("a writer: %v", err)
					return
				}
			}
		})
	}
	for round := int64(2); round <= 51; round++ {
		// Half of the rounds name the second table only at run time, where its lock cannot be foreseen.
		sql := "ALTER TABLE a ADD COLUMN c%[1]d int; ALTER TABLE b ADD COLUMN c%[1]d int"
		if round%2 == 0 {
			sql = "ALTER TABLE a ADD COLUMN c%[1]d int; DO $$ BEGIN EXECUTE 'ALTER TABLE ' || chr(98) || ' ADD COLUMN c%[1]d int'; END $$"
		}
		wanted := withSQL(round, fmt.Sprintf(sql, round))
		wanted.Lock.TimeoutMilliseconds = 10_000 // a wait of so long would show as a deadlock
		db.mustApply(wanted)
	}
	stop()
	writers.Wait()
	db.wantText("52", "SELECT count(*) FROM pg_attribute WHERE attrelid = 'b'::regclass AND attnum > 0")
	db.wantText("0", "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
}

// SQL switches its lock timeout off and needs, unforeseen, a table of a writer who waits for the barrier already. Whoever looks first ends such
// a deadlock, and as the victim the writer would lose its transaction.
func TestAWaitForAWriterWhoWaitsForTheBarrierEndsBeforeTheWriterLooks(t *testing.T) {
	server := testdb.PostgresServer(t, testdb.ServerOptions{Settings: map[string]string{"deadlock_timeout": "20s"}})
	db := newBarrierDB(t, Config{URL: server.Database(t)})
	db.exec("CREATE TABLE a(i int)")
	db.exec("CREATE TABLE b(i int)")
	db.mustApply(target(5))
	writer := db.connect()
	tx, err := writer.Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "INSERT INTO b VALUES (1)"); err != nil {
		t.Fatal(err)
	}
	wanted := withSQL(6, `
		ALTER TABLE a ADD COLUMN n int;
		SET lock_timeout = 0;
		DO $$ BEGIN
			WHILE NOT EXISTS (SELECT FROM pg_locks WHERE relation = 'a'::regclass AND NOT granted) LOOP PERFORM pg_sleep(0.01); END LOOP;
			EXECUTE 'ALTER TABLE ' || chr(98) || ' ADD COLUMN n int';
		END $$`)
	wanted.Lock.TimeoutMilliseconds = 60_000
	done := make(chan error, 1)
	go func() {
		_, err := db.once(wanted)
		done <- err
	}()
	db.eventually("the barrier has table a", func() bool {
		return db.text("SELECT count(*) FROM pg_locks WHERE relation = 'a'::regclass AND mode = 'AccessExclusiveLock' AND granted") == "1"
	})
	if _, err := tx.Exec(db.ctx, "INSERT INTO a VALUES (1)"); err != nil {
		t.Fatalf("the writer's second insert: %v", err)
	}
	if err := tx.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, <-done, storage.CodeLockTimeout, "needs table b")
	db.wantText("0", "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
	db.wantText("5", "SELECT schema_version FROM sync_schema_meta")
}

// SQL needs a table that its text does not name. The refusal names it all the same, and the next attempt waits for it first.
func TestATableNamedAtRunTimeIsFoundAndWaitedForFirst(t *testing.T) {
	db := newBarrierDB(t)
	db.exec("CREATE TABLE hidden(i int)")
	db.mustApply(target(5))
	reader := db.connect()
	tx, err := reader.Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "SELECT count(*) FROM hidden"); err != nil {
		t.Fatal(err)
	}
	for name, sql := range map[string]string{
		"":                                   "DO $$ BEGIN EXECUTE 'ALTER TABLE hid' || 'den ADD COLUMN n int'; END $$",
		"with the lock timeout switched off": "SET lock_timeout = 0; DO $$ BEGIN EXECUTE 'ALTER TABLE hid' || 'den ADD COLUMN n int'; END $$",
	} {
		t.Run("refused"+name, func(t *testing.T) {
			wanted := withSQL(6, sql)
			wanted.Lock.TimeoutMilliseconds = 500
			began := time.Now()
			_, err := db.once(wanted)
			wantRefusal(t, err, storage.CodeLockTimeout, "hidden", fmt.Sprint(reader.PgConn().PID()))
			if refused := refusal(t, err); refused.Table != "hidden" {
				t.Errorf("table %q", refused.Table)
			}
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
	wanted := withSQL(6, "DO $$ BEGIN EXECUTE 'ALTER TABLE hid' || 'den ADD COLUMN n int'; END $$")
	wanted.Lock.TimeoutMilliseconds = 20000
	done := make(chan error, 1)
	go func() {
		_, err := db.store.EnsureSchema(db.ctx, wanted, storage.Attempt{Number: 2, First: "hidden"})
		done <- err
	}()
	db.eventually("the barrier waits for the table", func() bool { return db.waiting("hidden") })
	db.wantText("", `SELECT string_agg(relation::regclass::text, ' ') FROM pg_locks
		WHERE granted AND mode = 'ExclusiveLock' AND locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`) // and holds nothing
	if err := tx.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	db.wantText("2", "SELECT count(*) FROM pg_attribute WHERE attrelid = 'hidden'::regclass AND attnum > 0")
}

func TestOnlyTheFirstLockIsWaitedFor(t *testing.T) {
	db := newBarrierDB(t)
	wanted := func(version int64) storage.Target {
		w := target(version, plainTodos(titleNorm), syncularNotes(3))
		w.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 6)}
		w.Lock.TimeoutMilliseconds = 5000
		if version == 5 {
			w.Tables[0] = plainTodos()
			w.Checkpoints = nil
		}
		return w
	}
	db.mustApply(wanted(5))
	reader := db.connect()
	tx, err := reader.Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(db.ctx, "SELECT count(*) FROM todos"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = db.once(wanted(6))
	if took := time.Since(began); took > 4*time.Second {
		t.Errorf("the refusal took %s: the second lock was waited for", took)
	}
	wantRefusal(t, err, storage.CodeLockTimeout, "todos", "ACCESS EXCLUSIVE", fmt.Sprint(reader.PgConn().PID()))
	next := storage.Attempt{Number: 2, First: refusal(t, err).Table}
	done := make(chan error, 1)
	go func() {
		_, err := db.store.EnsureSchema(db.ctx, wanted(6), next)
		done <- err
	}()
	db.eventually("the next attempt waits for that table first", func() bool { return db.waiting("todos") })
	if _, err := db.conn.Exec(db.ctx, insertCommit, "p", 5); err != nil {
		t.Errorf("a writer of the log is held up: %v", err)
	}
	if err := tx.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// V holds the second table for long, W holds the third and asks for the first. A barrier that held the first and waited for the second would
// make W a deadlock victim: W began to wait before the barrier did, so W looks for the deadlock first.
func TestAWriterIsNotTheVictimOfABarrierThatMeetsAnother(t *testing.T) {
	server := testdb.PostgresServer(t, testdb.ServerOptions{Settings: map[string]string{"deadlock_timeout": "50ms"}})
	db := newBarrierDB(t, Config{URL: server.Database(t)})
	for _, table := range []string{"la", "lb", "lc"} {
		db.exec("CREATE TABLE " + table + "(i int PRIMARY KEY, n int)")
		db.exec("INSERT INTO " + table + " VALUES (1, 0)")
	}
	db.mustApply(target(1))
	v, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Exec(db.ctx, "UPDATE lb SET n = 1"); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(db.ctx)
	var writer sync.WaitGroup
	w := db.connect()
	writes := 0
	writer.Go(func() {
		for ctx.Err() == nil {
			err := pgx.BeginFunc(db.ctx, w, func(tx pgx.Tx) error {
				if _, err := tx.Exec(db.ctx, "UPDATE lc SET n = n + 1"); err != nil {
					return err
				}
				_, err := tx.Exec(db.ctx, "UPDATE la SET n = n + 1")
				return err
			})
			if err != nil {
				t.Errorf("W: %v", err)
				return
			}
			writes++
		}
	})
	wanted := withSQL(2, "ALTER TABLE la ADD COLUMN c int; ALTER TABLE lb ADD COLUMN c int; ALTER TABLE lc ADD COLUMN c int")
	wanted.Lock.TimeoutMilliseconds = 60000 // V's transaction counts as young, so it is not waited for outside
	refused := 0
	for range 10 {
		_, err := db.once(wanted)
		wantRefusal(t, err, storage.CodeLockTimeout)
		if refusal(t, err).Table == "lb" {
			refused++
		}
	}
	stop()
	writer.Wait()
	if refused == 0 || writes == 0 {
		t.Errorf("lb was refused %d times, W wrote %d times", refused, writes)
	}
	if err := v.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	db.mustApply(wanted)
	db.wantText("0", "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
}

func TestOnlyThoseWhoKeepUsFromALockAreNamed(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(fenced(5, 0))
	reader, writer := db.connect(), db.connect()
	for _, statement := range []string{"BEGIN", "SELECT count(*) FROM sync_commits"} {
		db.execOn(reader, statement)
	}
	db.execOn(writer, "BEGIN")
	db.execOn(writer, insertCommit, "p", 5)
	_, err := db.once(fenced(6, 100*time.Millisecond))
	blocked := refusal(t, err).Blocked
	if len(blocked) != 1 || blocked[0].PID != int(writer.PgConn().PID()) || blocked[0].Kind != "session" || blocked[0].User != "postgres" || blocked[0].Table != "sync_commits" {
		t.Errorf("blocked by %+v, want the writer alone", blocked)
	}
	db.execOn(writer, "ROLLBACK")
	db.mustApply(fenced(6, 0)) // the reader is in nobody's way
	db.execOn(reader, "ROLLBACK")
}
