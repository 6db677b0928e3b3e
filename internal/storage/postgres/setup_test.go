package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// testContext ends well before the time limit of a test run, so that a wait without end fails by name.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func openStore(t testing.TB, config Config) *Store {
	t.Helper()
	if config.WriterSample == 0 {
		config.WriterSample = 300 * time.Millisecond
	}
	store, err := Open(testContext(t), config)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(store.Close)
	return store
}

// newCatalog gives a database with a catalog, its store and its URL.
func newCatalog(t testing.TB) (*Store, string) {
	t.Helper()
	url := testdb.Postgres(t)
	store := openStore(t, Config{URL: url})
	installCatalog(t, store)
	return store, url
}

// installCatalog does what a barrier does first.
func installCatalog(t testing.TB, store *Store) {
	t.Helper()
	if err := tryInstall(testContext(t), store); err != nil {
		t.Fatalf("install the catalog: %v", err)
	}
}

func tryInstall(ctx context.Context, store *Store) error {
	return store.inTx(ctx, "install", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return store.ensureCatalog(ctx, tx)
	})
}

// raise raises the fence as a barrier does.
func raise(t testing.TB, store *Store, raise map[string]int64) {
	t.Helper()
	if err := tryRaise(testContext(t), store, raise); err != nil {
		t.Fatalf("raise the fence: %v", err)
	}
}

func tryRaise(ctx context.Context, store *Store, raise map[string]int64) error {
	return store.inTx(ctx, "raise", txOptions{lockTimeout: 20 * time.Second}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := store.raiseFence(ctx, tx, raise)
		return err
	})
}

func forAll(minimum int64) map[string]int64 {
	return map[string]int64{storage.AllPartitions: minimum}
}

// session is one connection of a program beside us.
type session struct {
	t    testing.TB
	conn *pgx.Conn
}

func connect(t testing.TB, url string) *session {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = conn.Close(ctx) // a test may have broken it
	})
	return &session{t: t, conn: conn}
}

// try runs a statement and returns its error.
func (s *session) try(sql string, arguments ...any) error {
	s.t.Helper()
	_, err := s.conn.Exec(testContext(s.t), sql, arguments...)
	return err
}

// run runs a statement that must succeed.
func (s *session) run(sql string, arguments ...any) {
	s.t.Helper()
	if err := s.try(sql, arguments...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *session) pid() int { return int(s.conn.PgConn().PID()) }

// value reads one value.
func value[T any](s *session, sql string, arguments ...any) T {
	s.t.Helper()
	var v T
	if err := s.conn.QueryRow(testContext(s.t), sql, arguments...).Scan(&v); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// appendSQL is the statement with which a program of the sync protocol appends: it allocates the number and inserts the commit.
const appendSQL = `
	WITH allocated AS (
		INSERT INTO sync_partitions(partition, max_commit_seq)
		VALUES ($1, 1)
		    ON CONFLICT (partition) DO UPDATE SET max_commit_seq = sync_partitions.max_commit_seq + 1
		RETURNING max_commit_seq
	)
	INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
	SELECT $1, max_commit_seq, 'client', 'c' || max_commit_seq, 'actor', 0, $2
	  FROM allocated
	RETURNING commit_seq`

// insertSQL inserts a commit without allocating its number.
const insertSQL = `
	INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
	VALUES ($1, $3, 'client', 'c', 'actor', 0, $2)`

// append writes a commit with a writer version, nil for none.
func (s *session) append(partition string, version any) error {
	s.t.Helper()
	_, err := s.conn.Exec(testContext(s.t), appendSQL, partition, version)
	return err
}

// stateOf is the SQLSTATE of the server's error.
func stateOf(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// messageOf is the message of the server's error, which programs compare with codes.
func messageOf(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Message
	}
	return ""
}

func detailOf(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Detail
	}
	return ""
}

// expectFenced fails unless the fence refused.
func expectFenced(t testing.TB, err error) {
	t.Helper()
	if messageOf(err) != string(storage.CodeWriterFenceRejected) {
		t.Errorf("got %v, want a refusal by the fence", err)
	}
}

// expectGuarded fails unless a guard refused with the code.
func expectGuarded(t testing.TB, err error, code storage.Code) {
	t.Helper()
	if messageOf(err) != string(code) {
		t.Errorf("got %v, want %s", err, code)
	}
}

// expectCode fails unless the error has the code.
func expectCode(t testing.TB, err error, code storage.Code) {
	t.Helper()
	if storage.CodeOf(err) != code {
		t.Errorf("got %v, want %s", err, code)
	}
}

func asJSON(t testing.TB, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// asError gives the *storage.Error in the chain.
func asError(t testing.TB, err error) *storage.Error {
	t.Helper()
	var e *storage.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *storage.Error", err)
	}
	return e
}

// waitLimit bounds the wait for another session to get somewhere.
const waitLimit = 30 * time.Second

// waitBlocked returns once a session waits for a lock that another holds.
func waitBlocked(t testing.TB, watcher *session, pid int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(testContext(t), waitLimit)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		var blocked bool
		err := watcher.conn.QueryRow(ctx, `SELECT cardinality(pg_blocking_pids($1::integer)) > 0`, pid).Scan(&blocked)
		if err != nil {
			t.Fatalf("look who is blocked: %v", err)
		}
		if blocked {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("session %d does not wait for anybody", pid)
		}
	}
}

// waitAnyBlocked returns once some session of this database whose query has the text waits for a lock.
func waitAnyBlocked(t testing.TB, watcher *session, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(testContext(t), waitLimit)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for {
		var blocked bool
		err := watcher.conn.QueryRow(ctx, `
			SELECT EXISTS (
				SELECT
				  FROM pg_stat_activity
				 WHERE datname = current_database()
				   AND pid <> pg_backend_pid()
				   AND wait_event_type = 'Lock'
				   AND strpos(query, $1::text) > 0)`, text).Scan(&blocked)
		if err != nil {
			t.Fatalf("look who is blocked: %v", err)
		}
		if blocked {
			return
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			t.Fatalf("no session waits in a statement with %q", text)
		}
	}
}
