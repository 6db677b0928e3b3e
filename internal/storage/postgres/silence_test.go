package postgres

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// shortMargin is used where something is silent on purpose.
const shortMargin = 300 * time.Millisecond

func TestAServerThatDoesNotAnswerIsLostOnceTheStatementsTimeIsOver(t *testing.T) {
	t.Parallel()
	way := testdb.NewWay(t, testdb.Postgres(t))
	store := openStore(t, Config{URL: way.URL})
	store.silenceMargin = shortMargin
	const allowed = time.Second
	var asked time.Time
	err := store.inTx(testContext(t), "work", txOptions{statementTimeout: allowed}, func(ctx context.Context, tx pgx.Tx) error {
		way.Freeze()
		asked = time.Now()
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
	expectCode(t, err, storage.CodeConnectionLost)
	if !isSilent(err) {
		t.Errorf("the error %v does not say that nobody answered", err)
	}
	way.Thaw()
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
	way := testdb.NewWay(t, testdb.Postgres(t))
	store := openStore(t, Config{URL: way.URL})
	store.silenceMargin = shortMargin
	err := store.inTx(testContext(t), "work", txOptions{statementTimeout: time.Second}, func(context.Context, pgx.Tx) error {
		way.Freeze()
		return nil
	})
	expectCode(t, err, storage.CodeCommitUnknown)
}

// The server answers neither the read nor the request to cancel it, when the caller's time is over.
func TestACallersDeadlineOnASilentServerIsALostConnection(t *testing.T) {
	t.Parallel()
	way := testdb.NewWay(t, testdb.Postgres(t))
	store := openStore(t, Config{URL: way.URL, MaxConnections: 1})
	var one int
	read := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(testContext(t), timeout)
		defer cancel()
		return store.readOnce(ctx, "read", scanRow(&one), "SELECT 1")
	}
	if err := read(time.Minute); err != nil {
		t.Fatal(err)
	}
	way.Freeze()
	expectCode(t, read(100*time.Millisecond), storage.CodeConnectionLost)
	way.Thaw()
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

// answering is a server that answers the first byte of each connection but the first, if it answers at all, and what is sent to answer on that.
func answering(t *testing.T, signs bool, answer <-chan byte) *boundedConn {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	stop := make(chan struct{})
	serve := func(client net.Conn, first bool) {
		defer func() { _ = client.Close() }()
		switch {
		case first:
			select {
			case b := <-answer:
				_, _ = client.Write([]byte{b}) // who asked may have left
			case <-stop:
			}
		case signs:
			_, _ = client.Write([]byte{'N'}) // the same
		default:
			<-stop
		}
	}
	all.Go(func() {
		for first := true; ; first = false {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { serve(client, first) })
		}
	})
	conn, err := dial(testContext(t), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = conn.Close(), listener.Close() // there is nothing to lose
		close(stop)
		all.Wait()
	})
	return &boundedConn{Conn: conn, every: 50 * time.Millisecond, patience: 2 * time.Second}
}

func TestALongStatementIsWaitedForWhileItsServerAnswersOthers(t *testing.T) {
	t.Parallel()
	answer := make(chan byte)
	alive := answering(t, true, answer)
	alive.allow(time.Minute)
	time.AfterFunc(2*time.Second, func() { answer <- 'Z' }) // three signs of life would have been missed
	got := make([]byte, 1)
	if _, err := alive.Read(got); err != nil || got[0] != 'Z' {
		t.Errorf("the late answer of a server that lives: %q, %v", got, err)
	}
	frozen := answering(t, false, nil)
	frozen.allow(time.Minute)
	started := time.Now()
	_, err := frozen.Read(got)
	if !isSilent(err) || time.Since(started) > time.Minute/2 {
		t.Errorf("after %v of one that is frozen: %v", time.Since(started), err)
	}
}
