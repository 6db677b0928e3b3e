package sqlite

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func beginWriter(t testing.TB, store *Store, partition string, version int64) storage.Tx {
	t.Helper()
	tx, err := store.Begin(testContext(t), partition, version)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// A program's statement must not end the transaction it is part of, nor leave the connection changed for whoever uses it next.
func TestProgramStatementsStayInsideTheirTransaction(t *testing.T) {
	path := newFile(t)
	store, program := openWith(t, Config{Path: path, Create: true, MaxConnections: 1}), openProgram(t, path)
	apply(t, store, version6())
	for statement, code := range map[string]storage.Code{
		"COMMIT":                            storage.CodeNotTransactional,
		"ROLLBACK":                          storage.CodeNotTransactional,
		"BEGIN":                             storage.CodeNotTransactional,
		"END -- of it":                      storage.CodeNotTransactional,
		"SAVEPOINT mine":                    storage.CodeNotTransactional,
		"RELEASE syncbarrier_push":          storage.CodeNotTransactional,
		"ROLLBACK TO syncbarrier_push":      storage.CodeNotTransactional,
		"ATTACH ':memory:' AS other":        storage.CodeNotTransactional,
		"PRAGMA foreign_keys = 0":           storage.CodeInvalidSpec,
		"SELECT 1; COMMIT":                  storage.CodeNotTransactional,
		"VACUUM":                            storage.CodeNotTransactional,
		"INSERT INTO nowhere VALUES (1)":    storage.CodeInvalidSQL,
		"INSERT INTO todos(id) VALUES (NU)": storage.CodeInvalidSQL,
		"DELETE FROM sync_writer_fence":     storage.CodeFenceGuard,
	} {
		tx := beginWriter(t, store, "a", 6)
		if _, err := tx.AppendCommit(testContext(t), storage.Commit{ClientID: "c"}); err != nil {
			t.Fatal(err)
		}
		if err := tx.Savepoint(testContext(t)); err != nil {
			t.Fatal(err)
		}
		_, err := tx.Exec(testContext(t), statement)
		if got := storage.CodeOf(err); got != code {
			t.Errorf("%s: got code %q (%v), want %q", statement, got, err, code)
		}
		if err := tx.Commit(testContext(t)); storage.CodeOf(err) != code {
			t.Errorf("%s: the commit of a transaction that failed gives %v", statement, err)
		}
		same(t, "commits after "+statement, program.number("SELECT count(*) FROM sync_commits"), 0)
	}
	tx := beginWriter(t, store, "a", 6)
	if _, err := tx.Exec(testContext(t), "CREATE TEMPORARY TABLE sync_partitions(partition, max_commit_seq)"); err != nil {
		t.Fatal(err)
	}
	if _, err := tx.AppendCommit(testContext(t), storage.Commit{ClientID: "c"}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(testContext(t)); err != nil {
		t.Fatal(err)
	}
	same(t, "commits beside a temporary table of that name", program.number("SELECT max_commit_seq FROM sync_partitions"), 1)
	next := beginWriter(t, store, "a", 6)
	if _, err := next.Exec(testContext(t), "SELECT 1 FROM temp.sync_partitions"); storage.CodeOf(err) != storage.CodeInvalidSQL {
		t.Errorf("the next transaction meets the temporary table of the one before: %v", err)
	}
}

func TestRefusedWriterIsToldItsVersionAndTheOneRequired(t *testing.T) {
	path := newFile(t)
	store, program := openStore(t, path), openProgram(t, path)
	apply(t, store, version6())
	apply(t, store, version7())
	tx := beginWriter(t, store, "it's", 6)
	_, err := tx.AppendCommit(testContext(t), storage.Commit{ClientID: "c"})
	wantCode(t, err, storage.CodeWriterFenceRejected)
	wantText(t, err, "sync_commits", "'it''s'", "writer version 6, required 7")
	if err := tx.Rollback(testContext(t)); err != nil {
		t.Fatal(err)
	}
	same(t, "partitions", program.number("SELECT count(*) FROM sync_partitions"), 0)
}

// A partition's numbers are dense: what was rolled back leaves no hole.
func TestNumberOfARolledBackCommitIsGivenOutAgain(t *testing.T) {
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	for _, end := range []func(tx storage.Tx) error{
		func(tx storage.Tx) error { return tx.Rollback(testContext(t)) },
		func(tx storage.Tx) error { return tx.Commit(testContext(t)) },
		func(tx storage.Tx) error { return tx.Rollback(testContext(t)) },
	} {
		tx := beginWriter(t, store, "a", 6)
		if _, err := tx.AppendCommit(testContext(t), storage.Commit{ClientID: "c"}); err != nil {
			t.Fatal(err)
		}
		if err := end(tx); err != nil {
			t.Fatal(err)
		}
	}
	tx := beginWriter(t, store, "a", 6)
	seq, err := tx.AppendCommit(testContext(t), storage.Commit{ClientID: "c"})
	same(t, "number", seq, 2)
	same(t, "error", err, nil)
}

func TestCommitWithManyChangesIsWrittenWholeAndInOrder(t *testing.T) {
	path := newFile(t)
	store, program := openStore(t, path), openProgram(t, path)
	apply(t, store, version6())
	tx := beginWriter(t, store, "a", 6)
	commit := storage.Commit{ClientID: "c"}
	for i := range 3*changesPerStatement + 1 {
		commit.Changes = append(commit.Changes, storage.Change{Table: "todos", RowID: fmt.Sprint(i), Op: storage.OpUpsert})
	}
	if _, err := tx.AppendCommit(testContext(t), commit); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(testContext(t)); err != nil {
		t.Fatal(err)
	}
	same(t, "changes", program.number("SELECT count(*) FROM sync_changes"), int64(len(commit.Changes)))
	same(t, "changes in order", program.number("SELECT count(*) FROM sync_changes WHERE row_id = CAST(idx AS TEXT) AND scopes = '{}' AND payload IS NULL"), int64(len(commit.Changes)))
}

// A transaction that a program forgot must not keep everybody from writing for ever.
func TestForgottenWriterLetsGoByItself(t *testing.T) {
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	const idle = 300 * time.Millisecond
	forgotten, err := store.beginWriter(testContext(t), "a", 6, idle)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for time.Since(begun) < 2*idle { // busy for longer than it may be idle
		if err := forgotten.LockPartition(testContext(t)); err != nil {
			t.Fatalf("a transaction that is busy: %v", err)
		}
	}
	if _, err := forgotten.AppendCommit(testContext(t), storage.Commit{ClientID: "c"}); err != nil {
		t.Fatal(err)
	}
	tx := beginWriter(t, store, "a", 6) // within its own bound of 5 s
	seq, err := tx.AppendCommit(testContext(t), storage.Commit{ClientID: "c"})
	same(t, "number after what was forgotten", seq, 1)
	same(t, "error", err, nil)
	err = forgotten.LockPartition(testContext(t))
	wantCode(t, err, storage.CodeConnectionLost)
	wantText(t, err, `"a"`, idle.String())
	wantCode(t, forgotten.Commit(testContext(t)), storage.CodeConnectionLost)
	same(t, "rollback", forgotten.Rollback(testContext(t)), nil)
}
