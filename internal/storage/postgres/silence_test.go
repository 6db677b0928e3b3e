package postgres

import (
	"context"
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
