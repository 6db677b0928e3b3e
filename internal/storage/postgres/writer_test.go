package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestWhatAProgramsStatementLeavesInTheSessionEndsWithItsTransaction(t *testing.T) {
	db := queryDB(t, Config{MaxConnections: 1})
	pid := func() string {
		tx, err := db.store.Begin(db.ctx, "a", 1)
		if err != nil {
			t.Fatalf("begin: %v", err)
		}
		defer func() { _ = tx.Rollback(db.ctx) }()
		for _, statement := range []string{
			"SET search_path = nowhere", "SET role = pg_monitor", "SET lock_timeout = 0", "CREATE TEMP TABLE sync_partitions(x int)",
		} {
			if _, err := tx.Exec(db.ctx, statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
		}
		if err := tx.Commit(db.ctx); err != nil {
			t.Fatalf("commit: %v", err)
		}
		return db.text(`SELECT string_agg(pid::text, ',') FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'syncbarrier'`)
	}
	first := pid()
	tx, err := db.store.Begin(db.ctx, "a", 1)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	if seq, err := tx.AppendCommit(db.ctx, storage.Commit{}); err != nil || seq != 1 {
		t.Fatalf("append on the same connection: %d, %v", seq, err)
	}
	if err := tx.Commit(db.ctx); err != nil {
		t.Fatalf("commit: %v", err)
	}
	db.wantText("1", "SELECT max_commit_seq FROM sync_partitions")
	if second := pid(); second != first {
		t.Errorf("the session is %s, was %s: it was to be used again", second, first)
	}
}

func TestAStatementCannotBeTwoOrEndTheTransaction(t *testing.T) {
	for name, config := range map[string]Config{"cached": {}, "simple protocol": {SimpleProtocol: true}, "pooled": {Pooler: PoolerTransaction}} {
		t.Run(name, func(t *testing.T) {
			db := queryDB(t, config)
			tx, err := db.store.Begin(db.ctx, "a", 1)
			if err != nil {
				t.Fatalf("begin: %v", err)
			}
			_, err = tx.Exec(db.ctx, "DELETE FROM todos; COMMIT")
			expectCode(t, err, storage.CodeInvalidSQL)
			if err := tx.Rollback(db.ctx); err != nil {
				t.Fatalf("roll back: %v", err)
			}
			db.wantText("3", "SELECT count(*) FROM todos")

			tx, err = db.store.Begin(db.ctx, "a", 1)
			if err != nil {
				t.Fatalf("begin: %v", err)
			}
			_, err = tx.Exec(db.ctx, "COMMIT")
			expectCode(t, err, storage.CodeNotTransactional)
			_, err = tx.AppendCommit(db.ctx, storage.Commit{})
			expectCode(t, err, storage.CodeNotTransactional)
			expectCode(t, tx.Commit(db.ctx), storage.CodeNotTransactional)
			db.wantText("0", "SELECT count(*) FROM sync_commits")
		})
	}
}

func TestAWriterWhosePlanWentStaleIsToldToBeginAgain(t *testing.T) {
	table := syncularNotes(2)
	db := newBarrierDB(t, Config{MaxConnections: 1})
	db.mustApply(target(1, table))
	read := func() error {
		tx, err := db.store.Begin(db.ctx, "a", 1)
		if err != nil {
			return err
		}
		_, _, err = tx.GetRow(db.ctx, table, "1")
		_ = tx.Rollback(db.ctx)
		return err
	}
	if err := read(); err != nil {
		t.Fatalf("read: %v", err)
	}
	db.exec(`ALTER TABLE notes ALTER COLUMN size TYPE integer`)
	if err := read(); err != nil && storage.CodeOf(err) != storage.CodeSerialization {
		t.Errorf("the first read after a change: %v, want it to be told to begin again", err)
	}
	if err := read(); err != nil {
		t.Errorf("the read after that: %v", err)
	}
}

// A writer that stands still in its transaction is ended by the server, and its locks with it.
func TestAWriterWithoutAClientKeepsItsPartitionForABoundedTime(t *testing.T) {
	t.Parallel()
	db := queryDB(t, Config{})
	tx, err := db.store.Begin(db.ctx, "a", 1)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	defer func() { _ = tx.Rollback(db.ctx) }()
	if err := tx.LockPartition(db.ctx); err != nil {
		t.Fatalf("lock: %v", err)
	}
	other := connect(t, db.url)
	if err := other.append("a", 1); err != nil { // waits for the server's ten seconds
		t.Fatalf("append behind a writer that stands still: %v", err)
	}
	_, err = tx.AppendCommit(db.ctx, storage.Commit{})
	expectCode(t, err, storage.CodeConnectionLost)
}
