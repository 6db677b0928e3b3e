package postgres

import (
	"context"
	"net"
	"net/url"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// shortMargin is used where something is silent on purpose.
const shortMargin = 300 * time.Millisecond

// freezeBackend stops the server process of a transaction, which the system goes on answering for, as it does for one on a disk that hangs.
func freezeBackend(t *testing.T, ctx context.Context, tx pgx.Tx) {
	t.Helper()
	pid := backendOf(t, ctx, tx)
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatalf("stop backend %d: %v", pid, err)
	}
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) }) // without it the database could not be dropped
}

func TestAServerThatDoesNotAnswerIsLostOnceTheStatementsTimeIsOver(t *testing.T) {
	t.Parallel()
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	store.silenceMargin = shortMargin
	const allowed = time.Second
	var asked time.Time
	err := store.inTx(testContext(t), "work", txOptions{statementTimeout: allowed}, func(ctx context.Context, tx pgx.Tx) error {
		freezeBackend(t, ctx, tx)
		asked = time.Now()
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
	expectCode(t, err, storage.CodeConnectionLost)
	if !isSilent(err) {
		t.Errorf("the error %v does not say that nobody answered", err)
	}
	if took := time.Since(asked); took < allowed || took > 30*time.Second {
		t.Errorf("it took %s, the server may take %s for the statement", took, allowed)
	}
	var one int
	if err := store.readOnce(testContext(t), "read", scanRow(&one), "SELECT 1"); err != nil {
		t.Errorf("the next connection: %v", err)
	}
}

func TestACommitThatIsNotAnsweredIsUnknown(t *testing.T) {
	t.Parallel()
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	store.silenceMargin = shortMargin
	err := store.inTx(testContext(t), "work", txOptions{statementTimeout: time.Second}, func(ctx context.Context, tx pgx.Tx) error {
		freezeBackend(t, ctx, tx)
		return nil
	})
	expectCode(t, err, storage.CodeCommitUnknown)
}

// The server answers neither the read nor the request to cancel it, when the caller's time is over.
func TestACallersDeadlineOnASilentServerIsALostConnection(t *testing.T) {
	t.Parallel()
	sink := newSink(t, testdb.Postgres(t))
	store := openStore(t, Config{URL: sink.url, MaxConnections: 1})
	var one int
	read := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(testContext(t), timeout)
		defer cancel()
		return store.readOnce(ctx, "read", scanRow(&one), "SELECT 1")
	}
	if err := read(time.Minute); err != nil {
		t.Fatal(err)
	}
	sink.freeze()
	expectCode(t, read(100*time.Millisecond), storage.CodeConnectionLost)
	sink.thaw()
	if err := read(time.Minute); err != nil {
		t.Errorf("it answers again: %v", err)
	}
}

// What the server allows a statement is what it may take, and in a pipeline each may.
func TestLongStatementsAreNotCutShort(t *testing.T) {
	t.Parallel()
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	store.silenceMargin = shortMargin
	o := txOptions{statementTimeout: 4 * time.Second}
	sleep := step{what: "sleep", sql: "SELECT pg_sleep(1.6)"}
	err := store.inTx(testContext(t), "work", o, func(ctx context.Context, tx pgx.Tx) error {
		return send(ctx, tx, sleep, sleep, sleep) // answered together, after 4.8 s
	})
	if err != nil {
		t.Error(err)
	}
}

// sink is a way to a server that can be told to swallow what is sent through it: it accepts, reads and never answers.
type sink struct {
	url      string
	listener net.Listener
	server   string
	passing  sync.RWMutex // held for reading while bytes are passed on, and for writing while frozen

	mu    sync.Mutex
	conns []net.Conn
}

func newSink(t *testing.T, database string) *sink {
	t.Helper()
	through, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{listener: listener, server: through.Host}
	through.Host = listener.Addr().String()
	s.url = through.String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { s.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // there is nothing to lose
		s.closeAll()
		all.Wait()
	})
	return s
}

func (s *sink) freeze() { s.passing.Lock() }
func (s *sink) thaw()   { s.passing.Unlock() }

func (s *sink) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.conns {
		_ = conn.Close() // that is what it is for
	}
}

func (s *sink) serve(client net.Conn) {
	server, err := net.Dial("tcp", s.server)
	if err != nil {
		_ = client.Close() // the server is gone
		return
	}
	s.mu.Lock()
	s.conns = append(s.conns, client, server)
	s.mu.Unlock()
	var back sync.WaitGroup
	back.Go(func() { s.pass(server, client) })
	s.pass(client, server)
	back.Wait()
}

// pass copies until a side ends, and ends the other then.
func (s *sink) pass(from, to net.Conn) {
	defer func() { _ = to.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		s.passing.RLock()
		_, err = to.Write(buffer[:n])
		s.passing.RUnlock()
		if err != nil {
			return
		}
	}
}
