package postgres

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func backendOf(t testing.TB, ctx context.Context, tx pgx.Tx) int {
	t.Helper()
	var pid int
	if err := tx.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pid); err != nil {
		t.Fatal(err)
	}
	return pid
}

func TestATransactionCommitsOrLeavesNothing(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run("CREATE TABLE t(i integer)")
	store := openStore(t, Config{URL: dsn})
	insert := func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
		return err
	}
	if err := store.inTx(testContext(t), "insert", txOptions{}, insert); err != nil {
		t.Fatal(err)
	}
	mine := errors.New("mine")
	err := store.inTx(testContext(t), "insert and fail", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(insert(ctx, tx), mine)
	})
	if !errors.Is(err, mine) {
		t.Errorf("the error %v lost its cause", err)
	}
	refusal := storage.Refuse(storage.CodeConflict, "no")
	err = store.inTx(testContext(t), "insert and refuse", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return errors.Join(insert(ctx, tx), refusal)
	})
	expectCode(t, err, storage.CodeConflict)
	expectCode(t, store.inTx(testContext(t), "insert read only", txOptions{readOnly: true}, insert), storage.CodeReadOnly)
	if n := value[int64](admin, "SELECT count(*) FROM t"); n != 1 {
		t.Errorf("%d rows, want 1", n)
	}
}

func TestErrorsOfTheServerGetTheirCodes(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run("CREATE TABLE t(i integer PRIMARY KEY DEFERRABLE INITIALLY DEFERRED); INSERT INTO t VALUES (1)")
	blocker := connect(t, dsn)
	blocker.run("BEGIN; LOCK TABLE t")
	store := openStore(t, Config{URL: dsn})
	raised := func(message, detail string) string {
		return "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = 'P0001', MESSAGE = '" + message + "', DETAIL = '" + detail + "'; END $$"
	}
	state := func(code string) string {
		return "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '" + code + "', MESSAGE = 'made up'; END $$"
	}
	cases := []struct {
		name, sql string
		code      storage.Code
	}{
		{"lock timeout", "LOCK TABLE t", storage.CodeLockTimeout},
		{"NOWAIT", "LOCK TABLE t NOWAIT", storage.CodeLockTimeout},
		{"statement timeout", "SELECT pg_sleep(30)", storage.CodeCancelled},
		{"deadlock", state("40P01"), storage.CodeDeadlock},
		{"serialization", state("40001"), storage.CodeSerialization},
		{"ours", raised("sync.storage.fence_guard", "table x"), storage.CodeFenceGuard},
		{"another program's", raised("fence_guard", ""), storage.CodeInternal},
		{"syntax", "SELEC", storage.CodeInternal},
		{"no privilege", "SET ROLE pg_read_all_data; SELECT pg_reload_conf()", storage.CodeRightMissing},
		{"shut down", state("57P01"), storage.CodeConnectionLost},
		{"too many connections", state("53300"), storage.CodeConnectionLost},
		{"authentication", state("28P01"), storage.CodeAuthenticationFailed},
		{"connection", state("08006"), storage.CodeConnectionLost},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			o := txOptions{lockTimeout: 50 * time.Millisecond, statementTimeout: 200 * time.Millisecond}
			err := store.inTx(testContext(t), "try", o, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, c.sql)
				return err
			})
			expectCode(t, err, c.code)
			if !strings.HasPrefix(err.Error(), "try") {
				t.Errorf("error %q does not say what was being done", err)
			}
		})
	}
	blocker.run("ROLLBACK")
	t.Run("at COMMIT", func(t *testing.T) {
		err := store.inTx(testContext(t), "try", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
			return err
		})
		expectCode(t, err, storage.CodeInternal)
		if err != nil && !strings.Contains(err.Error(), "23505") {
			t.Errorf("error %v", err)
		}
	})
}

func TestUserSQLGetsCodesOfItsOwn(t *testing.T) {
	dsn := testdb.Postgres(t)
	store := openStore(t, Config{URL: dsn})
	const secret = "hunter2"
	cases := []struct {
		name, sql string
		code      storage.Code
	}{
		{"syntax", "SELEC", storage.CodeInvalidSQL},
		{"no table", "SELECT FROM nothing", storage.CodeInvalidSQL},
		{"no schema", "CREATE TABLE nothing.x()", storage.CodeInvalidSQL},
		{"bad value", "SELECT 'hunter2'::integer", storage.CodeInvalidSQL},
		{"division", "SELECT 1/0", storage.CodeInvalidSQL},
		{"not null", "CREATE TEMP TABLE x(a text NOT NULL, b text); INSERT INTO x VALUES (NULL, 'hunter2')", storage.CodeInvalidSQL},
		{"unique", "CREATE TEMP TABLE x(a text UNIQUE); INSERT INTO x VALUES ('hunter2'), ('hunter2')", storage.CodeInvalidSQL},
		{"raised", "DO $$ BEGIN RAISE 'no'; END $$", storage.CodeInvalidSQL},
		{"commit", "DO $$ BEGIN EXECUTE 'COMMIT'; END $$", storage.CodeNotTransactional},
		{"commit in a block", "DO $$ BEGIN COMMIT; END $$", storage.CodeNotTransactional},
		{"savepoint", "DO $$ BEGIN EXECUTE 'SAVEPOINT s'; END $$", storage.CodeNotTransactional},
		{"concurrently", "CREATE INDEX CONCURRENTLY ON pg_temp.x(a)", storage.CodeNotTransactional},
		{"vacuum", "DO $$ BEGIN EXECUTE 'VACUUM'; END $$", storage.CodeNotTransactional},
		{"a guard's refusal", "DO $$ BEGIN RAISE EXCEPTION USING MESSAGE = 'sync.storage.marker_guard', ERRCODE = 'P0001'; END $$", storage.CodeInvalidSQL},
		{"timeout", "SELECT pg_sleep(30)", storage.CodeCancelled},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			err := store.inTx(testContext(t), "try", txOptions{statementTimeout: 300 * time.Millisecond}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, c.sql)
				return translateUserSQL(err, "run it")
			})
			expectCode(t, err, c.code)
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("error %v holds row data", err)
			}
		})
	}
}

func TestACancelledContextRollsBackWithinTwoSeconds(t *testing.T) {
	for _, mode := range []Config{{}, {SimpleProtocol: true}} {
		dsn := testdb.Postgres(t)
		watcher := connect(t, dsn)
		watcher.run("CREATE TABLE t(i integer)")
		mode.URL = dsn
		store := openStore(t, mode)
		ctx, cancel := context.WithCancel(testContext(t))
		done := make(chan error, 1)
		go func() {
			done <- store.inTx(ctx, "sleep", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
				_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1); SELECT pg_sleep(60)")
				return err
			})
		}()
		waitFor(t, watcher, "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()")
		started := time.Now()
		cancel()
		expectCode(t, <-done, storage.CodeCancelled)
		if took := time.Since(started); took > rollbackTimeout {
			t.Errorf("it took %s", took)
		}
		waitFor(t, watcher, "SELECT count(*) = 0 FROM pg_stat_activity WHERE state <> 'idle' AND datname = current_database() AND pid <> pg_backend_pid()")
		if n := value[int64](watcher, "SELECT count(*) FROM t"); n != 0 {
			t.Errorf("%d rows were left", n)
		}
		if _, err := store.Identity(testContext(t)); err != nil {
			t.Errorf("the store is of no use afterwards: %v", err)
		}
	}
}

// waitFor returns once a query answers true.
func waitFor(t testing.TB, watcher *session, query string) {
	t.Helper()
	ctx := testContext(t)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !value[bool](watcher, query) {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("never true: %s", query)
		}
	}
}

func TestAContextThatEndsBeforeCOMMITCommitsNothing(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run("CREATE TABLE t(i integer)")
	store := openStore(t, Config{URL: dsn})
	ctx, cancel := context.WithCancel(testContext(t))
	err := store.inTx(ctx, "insert", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO t VALUES (1)")
		cancel()
		return err
	})
	expectCode(t, err, storage.CodeCancelled)
	if n := value[int64](admin, "SELECT count(*) FROM t"); n != 0 {
		t.Errorf("%d rows were left", n)
	}
}

func TestAKilledSessionIsALostConnection(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	store := openStore(t, Config{URL: dsn})
	err := store.inTx(testContext(t), "work", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		admin.run("SELECT pg_terminate_backend($1::integer, 10000)", backendOf(t, ctx, tx))
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
	expectCode(t, err, storage.CodeConnectionLost)
}

// TestTheLocksOfALostClientGoAway: the client is gone without a word in the middle of a long statement, and sends no request to cancel it
// either, which the driver would do.
func TestTheLocksOfALostClientGoAway(t *testing.T) {
	dsn := testdb.Postgres(t)
	watcher := connect(t, dsn)
	watcher.run("CREATE TABLE t()")
	store := openStore(t, Config{URL: dsn})
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	var socket net.Conn
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if socket != nil {
			return nil, errors.New("the client is gone")
		}
		var err error
		socket, err = dial(ctx, network, address)
		return socket, err
	}
	lost, err := pgx.ConnectConfig(testContext(t), config)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := lost.Exec(testContext(t), store.beginSQL(txOptions{})+"; LOCK TABLE t; SELECT pg_sleep(60)")
		done <- err
	}()
	waitFor(t, watcher, "SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 't'::regclass)")
	if err := socket.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err == nil {
		t.Error("the statement ended well")
	}
	started := time.Now()
	waitFor(t, watcher, "SELECT NOT EXISTS (SELECT FROM pg_locks WHERE relation = 't'::regclass)")
	if took := time.Since(started); took > 3*connectionCheck {
		t.Errorf("it took %s", took)
	}
}

func TestAConnectionLostDuringCOMMITIsUnknown(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	store := openStore(t, Config{URL: dsn})
	err := store.inTx(testContext(t), "work", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		admin.run("SELECT pg_terminate_backend($1::integer, 10000)", backendOf(t, ctx, tx))
		return nil
	})
	expectCode(t, err, storage.CodeCommitUnknown)
}

func TestAStalePlanIsRunAgainFromTheBeginning(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run("CREATE TABLE t(i integer)")
	store := openStore(t, Config{URL: dsn, MaxConnections: 1})
	runs := 0
	work := func(ctx context.Context, tx pgx.Tx) error {
		runs++
		if _, err := tx.Exec(ctx, "INSERT INTO t(i) VALUES ($1::integer)", runs); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT * FROM t WHERE i >= $1::integer", 0)
		if err != nil {
			return translate(err, "read")
		}
		rows.Close()
		return translate(rows.Err(), "read")
	}
	if err := store.inTx(testContext(t), "first", txOptions{}, work); err != nil {
		t.Fatal(err)
	}
	admin.run("ALTER TABLE t ADD COLUMN j integer")
	if err := store.inTx(testContext(t), "second", txOptions{}, work); err != nil {
		t.Fatal(err)
	}
	if rows := value[string](admin, "SELECT string_agg(i::text, ',' ORDER BY i) FROM t"); runs != 3 || rows != "1,3" {
		t.Errorf("%d runs left the rows %s, want 3 runs and 1,3", runs, rows)
	}
}

func TestAConnectionThatRanUserSQLIsEnded(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t), MaxConnections: 1})
	for _, fail := range []bool{false, true} {
		var before, after int
		err := store.inTx(testContext(t), "user SQL", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			closeConnection(ctx)
			before = backendOf(t, ctx, tx)
			_, err := tx.Exec(ctx, "SET lock_timeout = '7s'; LISTEN x")
			if fail {
				return errors.Join(err, errors.New("fail"))
			}
			return err
		})
		if (err != nil) != fail {
			t.Fatal(err)
		}
		err = store.inTx(testContext(t), "next", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
			after = backendOf(t, ctx, tx)
			return nil
		})
		if err != nil || before == after {
			t.Errorf("sessions %d and %d, error %v", before, after, err)
		}
	}
}

// TestALocalSettingEndsWithItsTransaction: two transactions after each other on the same connection.
func TestALocalSettingEndsWithItsTransaction(t *testing.T) {
	dsn := testdb.Postgres(t)
	store := openStore(t, Config{URL: dsn, MaxConnections: 1})
	var first, second int
	var timeout string
	err := store.inTx(testContext(t), "first", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		first = backendOf(t, ctx, tx)
		_, err := tx.Exec(ctx, "SET LOCAL work_mem = '64kB'")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	err = store.inTx(testContext(t), "second", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		second = backendOf(t, ctx, tx)
		return tx.QueryRow(ctx, "SELECT current_setting('work_mem')").Scan(&timeout)
	})
	if err != nil || first != second || timeout == "64kB" {
		t.Errorf("sessions %d and %d, work_mem %s, error %v", first, second, timeout, err)
	}
}

func TestAllConnectionsBusyIsBounded(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t), MaxConnections: 1})
	held, err := store.acquire(testContext(t), "hold")
	if err != nil {
		t.Fatal(err)
	}
	defer store.release(testContext(t), held, false)
	store.acquireTimeout = 100 * time.Millisecond
	_, err = store.Identity(testContext(t))
	expectCode(t, err, storage.CodeConnectionsBusy)
	if err != nil && !strings.Contains(err.Error(), "none of the 1 connections") {
		t.Errorf("error %v", err)
	}
}

func TestAStandbyIsReadOnly(t *testing.T) {
	server := testdb.PostgresServer(t, testdb.ServerOptions{})
	standby := server.Standby(t)
	store := openStore(t, Config{URL: standby.DSN("postgres")})
	expectCode(t, tryInstall(testContext(t), store), storage.CodeReadOnly)
	if _, err := store.Identity(testContext(t)); err != nil {
		t.Errorf("reading: %v", err)
	}
	standby.Promote()
	installCatalog(t, store) // on connections made anew
}

// TestAServerThatWasSetReadOnly: what was refused gives its connection up, and goes through once the setting is gone.
func TestAServerThatWasSetReadOnly(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	database := quoteIdentifier(value[string](admin, "SELECT current_database()"))
	admin.run("ALTER DATABASE " + database + " SET default_transaction_read_only = on")
	store := openStore(t, Config{URL: dsn, MaxConnections: 1})
	expectCode(t, tryInstall(testContext(t), store), storage.CodeReadOnly)
	admin.run("ALTER DATABASE " + database + " RESET default_transaction_read_only")
	installCatalog(t, store) // in a new session: the old one keeps its setting
}
