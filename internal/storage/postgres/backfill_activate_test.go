package postgres

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestAnActivationThatIsRefusedItsLocksLosesNothingAndEndsLater(t *testing.T) {
	db := todosDB(t, 100, "a")
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.write("a", 2, "UPDATE todos SET title = 'CHANGED' WHERE id = 2")
	state := func() string {
		return db.text(`SELECT jsonb_build_array((SELECT jsonb_agg(c) FROM sync_backfill_checkpoints c),
			(SELECT jsonb_agg(p ORDER BY kind, range_no) FROM sync_backfill_progress p), (SELECT title_norm FROM todos WHERE id = 2))`)
	}
	before := state()
	holders := map[string]string{
		"the partition":   "SELECT FROM sync_partitions WHERE partition = 'a' FOR UPDATE",
		"a row of it":     "SELECT FROM todos WHERE id = 2 FOR UPDATE",
		"the checkpoint":  "SELECT FROM sync_backfill_checkpoints FOR UPDATE",
		"the whole table": "LOCK TABLE todos IN SHARE MODE",
	}
	for name, sql := range holders {
		holder, err := db.connect().Begin(db.ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := holder.Exec(db.ctx, sql); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a"})
		if storage.CodeOf(err) != storage.CodeLockTimeout {
			t.Errorf("%s is held: %+v, %v, want %s", name, report, err, storage.CodeLockTimeout)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s is held: the attempt took %s", name, took)
		}
		if after := state(); after != before {
			t.Errorf("%s is held: the attempt left something:\n%s\n%s", name, before, after)
		}
		if err := holder.Rollback(db.ctx); err != nil {
			t.Fatal(err)
		}
	}
	db.mustActivate(claim, "a")
	db.wantText("0", wrong+" AND tenant = 'a'")
	if report := db.mustActivate(claim, "a"); report.Rest != 0 {
		t.Errorf("asked again: %+v", report)
	}
}

func TestAnActivationIsRefusedForItsReason(t *testing.T) {
	t.Run("ranges that are not scanned", func(t *testing.T) {
		db := todosDB(t, 100, "a")
		_, err := db.store.Activate(db.ctx, db.mustClaim(false), storage.Activation{Partition: "a"})
		wantRefusal(t, err, storage.CodeScanIncomplete, "norm", `"a"`, "0 of 1")
	})
	t.Run("a fence that is too low", func(t *testing.T) {
		db := todosDB(t, 100, "a")
		claim := db.mustClaim(false)
		db.scan(claim, db.mustLeases(claim))
		db.exec(`ALTER TABLE sync_writer_fence DISABLE TRIGGER ALL; UPDATE sync_writer_fence SET required_writer_version = 1;
			ALTER TABLE sync_writer_fence ENABLE TRIGGER ALL`)
		_, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a"})
		wantRefusal(t, err, storage.CodeCheckpointFenceMissing, "norm", `"a"`)
	})
	t.Run("rows that the verify query finds wrong", func(t *testing.T) {
		checkpoint := normCheckpoint("norm", 2, "a")
		checkpoint.Verify = []storage.Verify{{Name: "no-bad-ones", Query: "SELECT id FROM todos WHERE title_norm LIKE 'bad%'"}}
		db := newBackfillDB(t, todosSQL(100), checkpoint, plainTodos(titleNorm))
		claim := db.mustClaim(false)
		db.scan(claim, db.mustLeases(claim))
		db.write("a", 2, "UPDATE todos SET title = 'BAD' WHERE id = 2")
		_, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a"})
		wantRefusal(t, err, storage.CodeVerificationFailed, "norm", "no-bad-ones", "1 wrong", "keys 2")
		if err := db.store.VerifyRow(db.ctx, claim, "a"); err != nil {
			t.Errorf("what is still to be done counts as wrong: %v", err)
		}
		db.catchUp(claim, "a")
		wantRefusal(t, db.store.VerifyRow(db.ctx, claim, "a"), storage.CodeVerificationFailed, "no-bad-ones", "keys 2")
		db.exec("UPDATE todos SET title_norm = 'bad in another partition' WHERE id = 3")
		db.write("a", 2, "UPDATE todos SET title = 'Good' WHERE id = 2")
		db.catchUp(claim, "a")
		if err := db.store.VerifyRow(db.ctx, claim, "a"); err != nil {
			t.Errorf("a wrong row of another partition counts: %v", err)
		}
		db.mustActivate(claim, "a")
	})
	t.Run("more left than it may fill under the locks", func(t *testing.T) {
		db := todosDB(t, 100, "a")
		claim := db.mustClaim(false)
		db.scan(claim, db.mustLeases(claim))
		for id := int64(2); id <= 12; id += 2 {
			db.write("a", id, "UPDATE todos SET title = 'CHANGED' WHERE id = $1", id)
		}
		report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a", MaxRest: 5})
		if err != nil || report.Outcome != storage.OutcomeChanged || report.Rest == 0 {
			t.Errorf("got %+v, %v, want %s", report, err, storage.OutcomeChanged)
		}
		report, err = db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a", MaxRest: 6})
		if err != nil || report.Outcome != storage.OutcomeActivated || report.Rest != 6 {
			t.Errorf("got %+v, %v, want %s with 6 rows", report, err, storage.OutcomeActivated)
		}
	})
	t.Run("what the hook finds", func(t *testing.T) {
		db := todosDB(t, 100, "a")
		claim := db.mustClaim(false)
		db.scan(claim, db.mustLeases(claim))
		found := errors.New("found by the hook")
		_, err := db.store.Activate(db.ctx, claim, storage.Activation{
			Partition: "a", BeforeCommit: func(context.Context, storage.Querier) error { return found }})
		if !errors.Is(err, found) {
			t.Errorf("got %v, want the hook's error", err)
		}
		db.wantText("backfilling", "SELECT state FROM sync_backfill_checkpoints")
		db.mustActivate(claim, "a")
	})
}

// What no log shows: the pass proves nothing any more, by tail and by activation, until it begins again.
func TestAPassThatProvesNothingBeginsAgain(t *testing.T) {
	cases := map[string]struct {
		spoil   func(db *backfillDB)
		says    string
		counted bool // only counting the log shows it, which a look at the progress does not do for all rows
		tables  bool // the tables themselves show it, so a scan does not even begin
	}{
		"pruned log": {func(db *backfillDB) {
			db.write("a", 2, "UPDATE todos SET title = 'PRUNED' WHERE id = 2")
			db.exec("UPDATE sync_partitions SET horizon_seq = max_commit_seq WHERE partition = 'a'; DELETE FROM sync_changes; DELETE FROM sync_commits")
		}, "pruned", false, false},
		"log rows deleted without a horizon": {func(db *backfillDB) {
			db.write("a", 2, "UPDATE todos SET title = 'DELETED' WHERE id = 2")
			db.exec("DELETE FROM sync_changes; DELETE FROM sync_commits")
		}, "there are 0", true, false},
		"another log epoch": {func(db *backfillDB) {
			if err := db.store.RotateLogEpoch(db.ctx, storage.AllPartitions); err != nil {
				db.t.Fatal(err)
			}
		}, "log epoch", false, false},
		"a log that ends before the position": {func(db *backfillDB) {
			db.exec(`ALTER TABLE sync_partitions DISABLE TRIGGER ALL; UPDATE sync_partitions SET max_commit_seq = 0; ALTER TABLE sync_partitions ENABLE TRIGGER ALL;
				DELETE FROM sync_changes; DELETE FROM sync_commits`)
		}, "ends at 0", false, false},
		"truncated source": {func(db *backfillDB) { db.exec("SET syncbarrier.writer_version = 2; TRUNCATE todos") }, "todos", false, true},
		"rewritten source": {func(db *backfillDB) {
			db.exec("ALTER TABLE todos ALTER COLUMN title TYPE varchar(200) USING title || '!'")
		}, "todos", false, true},
		"type of a source column": {func(db *backfillDB) { db.exec("ALTER TABLE todos ALTER COLUMN title TYPE varchar") }, "title", false, true},
		"a key that may be NULL": {func(db *backfillDB) {
			db.exec("ALTER TABLE todos DROP CONSTRAINT todos_pkey; ALTER TABLE todos ALTER COLUMN id DROP NOT NULL; ALTER TABLE todos ADD UNIQUE (id)")
		}, "id", false, true},
		"copied into another cluster": {func(db *backfillDB) {
			db.exec(`UPDATE sync_backfill_progress SET facts = jsonb_set(facts::jsonb, '{systemIdentifier}', '"7"')::text WHERE kind = 'claim'`)
		}, "copy", false, true},
	}
	for name, c := range cases {
		for _, partition := range []string{"a", "*"} {
			t.Run(name+", row "+partition, func(t *testing.T) {
				t.Parallel()
				var listed []string
				rows := ""
				if partition != "*" {
					listed, rows = []string{partition}, " AND tenant = 'a'"
				}
				db := todosDB(t, 100, listed...)
				db.write("a", 4, "UPDATE todos SET title = 'EARLIER' WHERE id = 4")
				claim := db.mustClaim(false)
				db.scan(claim, db.mustLeases(claim))
				c.spoil(db)
				batch, err := db.store.TailBatch(db.ctx, claim, partition, 100)
				if err != nil || !strings.Contains(batch.Unverifiable, c.says) || batch.Rows != 0 {
					t.Errorf("the tail gives %+v, %v, want unverifiable with %q", batch, err, c.says)
				}
				report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: partition})
				if err != nil || report.Outcome != storage.OutcomeUnverifiable || !strings.Contains(report.Reason, c.says) {
					t.Errorf("the activation gives %+v, %v, want unverifiable with %q", report, err, c.says)
				}
				progress, err := db.store.ReadProgress(db.ctx, db.name)
				switch {
				case err != nil || len(progress.Behind) != 1:
					t.Errorf("the progress shows %+v, %v, want one row", progress.Behind, err)
				case !c.counted && (progress.Unverifiable != 1 || progress.Behind[0].Verdict != storage.Unverifiable):
					t.Errorf("the progress shows %d unverifiable rows and %+v, want one", progress.Unverifiable, progress.Behind)
				case c.counted && partition != "*" && progress.Behind[0].Verdict != storage.Unverifiable:
					t.Errorf("the progress shows %+v, want it to be unverifiable", progress.Behind)
				}
				later := db.mustClaim(false) // a claim alone mends nothing
				if c.tables {
					db.exec("UPDATE sync_backfill_progress SET done = false WHERE kind = 'range'")
					batch, err := db.store.ScanBatch(db.ctx, later, db.mustLeases(later)[0])
					if err != nil || !strings.Contains(batch.Unverifiable, c.says) || batch.Rows != 0 {
						t.Errorf("a scan that begins gives %+v, %v, want unverifiable with %q", batch, err, c.says)
					}
				}
				if batch, err = db.store.TailBatch(db.ctx, later, partition, 100); err != nil || batch.Unverifiable == "" {
					t.Errorf("after a claim the tail gives %+v, %v", batch, err)
				}
				db.complete(db.mustClaim(true))
				db.wantText("0", wrong+rows)
				if progress, err = db.store.ReadProgress(db.ctx, db.name); err != nil || progress.Restarts != 1 || progress.Activated != 1 {
					t.Errorf("after the pass began again the progress is %+v, %v", progress, err)
				}
			})
		}
	}
}

func TestAColumnAddedBesideTheSourcesSpoilsNothing(t *testing.T) {
	db := todosDB(t, 100)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.exec(`ALTER TABLE todos ADD COLUMN note text; ALTER TABLE todos ADD COLUMN size int DEFAULT 3; CREATE INDEX ON todos (title);
		ALTER TABLE todos ALTER COLUMN title SET DEFAULT 'x', ALTER COLUMN title DROP NOT NULL`)
	db.exec("VACUUM todos")
	db.catchUp(claim, "*")
	db.mustActivate(claim, "*")
}

func TestOneRowForTenThousandPartitions(t *testing.T) {
	db := newBackfillDB(t, `
		CREATE TABLE todos(id bigint PRIMARY KEY, tenant text NOT NULL, title text NOT NULL, title_norm text);
		INSERT INTO todos SELECT n, 'tenant ' || n % 10000, 'Title ' || n, NULL FROM generate_series(1, 20000) AS n;
		ANALYZE todos`, normCheckpoint("norm", 2), plainTodos(titleNorm))
	db.exec(`
		INSERT INTO sync_partitions SELECT 'tenant ' || n, 3 FROM generate_series(0, 9999) AS n;
		INSERT INTO sync_commits SELECT 'tenant ' || n, seq, 'c', seq::text, 'a', 0, 2 FROM generate_series(0, 9999) AS n, generate_series(1, 3) AS seq;
		ANALYZE sync_partitions, sync_commits`)
	began := time.Now()
	claim := db.mustClaim(false)
	t.Logf("claimed in %s", time.Since(began))
	db.wantText("10000", "SELECT count(*) FROM sync_backfill_progress WHERE kind = 'position' AND position = 3")
	db.scan(claim, db.mustLeases(claim))
	// Every partition has a change: more than one batch reads.
	db.exec(`
		UPDATE todos SET title = upper(title) WHERE id <= 10000;
		UPDATE sync_partitions SET max_commit_seq = 4;
		INSERT INTO sync_commits SELECT partition, 4, 'c', '4', 'a', 0, 2 FROM sync_partitions;
		INSERT INTO sync_changes SELECT tenant, 4, 0, 'todos', id::text, 1, NULL, '{}' FROM todos WHERE id <= 10000`)
	w := db.begin(db.conn, "a new one")
	w.exec("INSERT INTO todos VALUES (99999, 'a new one', 'NEW')")
	w.log("todos", "99999")
	w.commit()
	began = time.Now()
	db.catchUp(claim, "*")
	t.Logf("caught up in %s", time.Since(began))
	db.wantText("0", wrong)
	for id := int64(1); id <= 20; id++ {
		tenant := db.text("SELECT tenant FROM todos WHERE id = $1", id)
		db.write(tenant, id, "UPDATE todos SET title = 'LAST' WHERE id = $1", id)
	}
	report := db.mustActivate(claim, "*")
	t.Logf("activated with %d rows under the locks, held %s", report.Rest, report.Held)
	if report.Rest != 20 {
		t.Errorf("the activation filled %d rows, want 20", report.Rest)
	}
	db.wantText("0", wrong)
	db.wantText("activated", "SELECT state FROM sync_backfill_checkpoints")
	db.wantText("0", "SELECT count(*) FROM sync_backfill_progress WHERE kind = 'proof'")
}

// A batch of another worker that has checked its ownership, but is not committed, may still add to the leftovers. The activation holds the
// checkpoint row before it reads them.
func TestAnActivationWaitsForABatchThatIsBeingCommitted(t *testing.T) {
	db := todosDB(t, 100, "a")
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.exec("UPDATE todos SET title_norm = 'stale' WHERE id = 2")
	other, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{ // what the end of a tail batch does that met row 2 while somebody held it
		"INSERT INTO sync_backfill_leftovers VALUES ('norm', 'a', '2')",
		"SELECT FROM sync_backfill_checkpoints WHERE name = 'norm' FOR SHARE",
	} {
		if _, err := other.Exec(db.ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error, 1)
	var report storage.ActivationReport
	go func() {
		var err error
		report, err = again(db.ctx, func() (storage.ActivationReport, error) {
			return db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a"})
		})
		done <- err
	}()
	db.eventually("the activation waits for the checkpoint row, or ends", func() bool {
		return len(done) > 0 || db.text(`SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE NOT granted AND locktype = 'transactionid' AND datname = current_database()`) != "0"
	})
	if err := other.Commit(db.ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || report.Outcome != storage.OutcomeActivated {
		t.Fatalf("activate: %+v, %v", report, err)
	}
	db.wantText("0", wrong+" AND tenant = 'a'")
}

func TestAWorkerWhoseRowAnotherWorkerActivatedHasNothingLeftToDo(t *testing.T) {
	db := todosDB(t, 100, "a")
	claim := db.mustClaim(false)
	leases := db.mustLeases(claim)
	db.scan(claim, leases)
	db.mustActivate(claim, "a")
	for name, step := range map[string]func() (storage.Batch, error){
		"scan":      func() (storage.Batch, error) { return db.store.ScanBatch(db.ctx, claim, leases[0]) },
		"tail":      func() (storage.Batch, error) { return db.store.TailBatch(db.ctx, claim, "a", 10) },
		"leftovers": func() (storage.Batch, error) { return db.store.RetryLeftovers(db.ctx, claim, "a", 10) },
	} {
		if batch, err := step(); err != nil || !batch.Done || batch.Rows != 0 {
			t.Errorf("%s: %+v, %v, want nothing to do", name, batch, err)
		}
	}
	if claim, err := db.store.ReadClaim(db.ctx, db.name, claim.Token); err != nil || len(claim.Rows) != 0 {
		t.Errorf("the claim reads %+v, %v, want no rows", claim, err)
	}
	if claim := db.mustClaim(true); len(claim.Rows) != 0 {
		t.Errorf("a claim of an activated checkpoint has the rows %v", claim.Rows)
	}
	db.wantText("activated", "SELECT state FROM sync_backfill_checkpoints")
}

func TestAnActivationThatFailsSaysHowLongItHeldItsLocks(t *testing.T) {
	checkpoint := normCheckpoint("norm", 2, "a")
	checkpoint.Verify = []storage.Verify{{Name: "slow", Query: "SELECT t.id FROM todos t, pg_sleep(0.3)"}}
	db := newBackfillDB(t, todosSQL(10), checkpoint, plainTodos(titleNorm))
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	db.write("a", 2, "UPDATE todos SET title = 'CHANGED' WHERE id = 2")
	report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a"})
	wantRefusal(t, err, storage.CodeVerificationFailed, "slow")
	if report.Held < 300*time.Millisecond {
		t.Errorf("the check alone took 300ms under the locks, and they are said to have been held for %s", report.Held)
	}
}
