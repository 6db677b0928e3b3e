package postgres

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// countedTodos counts how often each row is filled.
const countedTodos = `
	CREATE TABLE todos(id bigint PRIMARY KEY, tenant text NOT NULL, title text NOT NULL, filled bigint NOT NULL DEFAULT 0);
	INSERT INTO todos SELECT n, 'a', 'Title ' || n FROM generate_series(1, 300) AS n;
	ANALYZE todos`

var filledColumn = storage.Column{Name: "filled", Type: storage.TypeInteger}

// countingCheckpoint adds one to each row it fills.
func countingCheckpoint(partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "count", Version: 2, Partitions: partitions, Settings: storage.Settings{BatchRows: 100},
		Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog, Columns: []string{"title"}}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{"filled": "filled + 1"}}},
	}
}

// freezer holds a worker at the end of a statement that changed todos: the rows are changed, and neither cursor nor ownership
// were looked at yet.
type freezer struct{ db *barrierDB }

func (db *barrierDB) freezeWorkers() freezer {
	db.t.Helper()
	db.exec(`
		CREATE TABLE frozen(yes boolean NOT NULL);
		INSERT INTO frozen VALUES (true);
		CREATE FUNCTION hold_worker() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			WHILE (SELECT yes FROM frozen) LOOP
				PERFORM pg_sleep(0.005);
			END LOOP;
			RETURN NULL;
		END $$;
		CREATE TRIGGER hold_worker AFTER UPDATE ON todos FOR EACH STATEMENT
		WHEN (current_setting('application_name') = 'worker') EXECUTE FUNCTION hold_worker()`)
	// A test that fails while a worker stands still must not leave it so.
	db.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if _, err := db.conn.Exec(ctx, "UPDATE frozen SET yes = false"); err != nil {
			db.t.Logf("resume the workers: %v", err)
		}
	})
	return freezer{db}
}

// wait returns once a worker stands still.
func (f freezer) wait() {
	f.db.t.Helper()
	f.db.eventually("a worker stands still", func() bool {
		return f.db.text(`SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'worker' AND wait_event = 'PgSleep'`) != "0"
	})
}

func (f freezer) resume() {
	f.db.t.Helper()
	f.db.exec("UPDATE frozen SET yes = false")
}

// workerStore is the store of a worker, by its own name in pg_stat_activity.
func (db *barrierDB) workerStore() *Store {
	db.t.Helper()
	return openStore(db.t, Config{URL: db.url, ApplicationName: "worker"})
}

type batchResult struct {
	batch storage.Batch
	err   error
}

// inBackground runs a step of a worker.
func inBackground(step func() (storage.Batch, error)) <-chan batchResult {
	done := make(chan batchResult, 1)
	go func() {
		batch, err := step()
		done <- batchResult{batch, err}
	}()
	return done
}

func wantLost(t testing.TB, err error) {
	t.Helper()
	if storage.CodeOf(err) != storage.CodeOwnershipLost {
		t.Fatalf("got %v, want %s", err, storage.CodeOwnershipLost)
	}
}

// The ownership check is the last statement of a batch. Were it ahead of the writes, the claim below would have to wait for the frozen
// worker, or its batch would stay: each row would be counted twice.
func TestAWorkerFrozenBehindItsWritesLeavesNothingOnceItIsTakenOver(t *testing.T) {
	takeOver := map[string]func(db *backfillDB, claim storage.Claim) error{
		"by another claim": func(db *backfillDB, _ storage.Claim) error {
			_, err := db.store.ClaimAll(db.ctx, db.name, false)
			return err
		},
		"by a pass that begins again": func(db *backfillDB, _ storage.Claim) error {
			_, err := db.store.ClaimAll(db.ctx, db.name, true)
			return err
		},
		"by a claim of the row alone": func(db *backfillDB, claim storage.Claim) error {
			_, err := db.store.ClaimCheckpoint(db.ctx, claim.Rows[0].Partition, db.name)
			return err
		},
		"by a restarted worker of the same claim": func(db *backfillDB, claim storage.Claim) error {
			_, err := db.store.TakeRanges(db.ctx, claim, 0, 1)
			return err
		},
	}
	for _, form := range []string{"quick", "careful", "tail", "leftovers"} {
		for how, take := range takeOver {
			switch {
			case how == "by a restarted worker of the same claim" && (form == "tail" || form == "leftovers"):
				continue // a lease is for the scan
			case how == "by a pass that begins again" && form == "leftovers":
				continue // a new pass deletes the leftovers, which the frozen worker holds: the claim is refused in bounded time
			}
			t.Run(form+" "+how, func(t *testing.T) {
				t.Parallel()
				checkpoint := countingCheckpoint("a")
				if form == "careful" {
					checkpoint.Backfill.Update.Set["filled"] = "(SELECT filled + 1)"
				}
				db := newBackfillDB(t, countedTodos, checkpoint, plainTodos(filledColumn))
				claim := db.mustClaim(false)
				lease := db.mustLeases(claim)[0]
				worker := db.workerStore()
				step := func() (storage.Batch, error) { return worker.ScanBatch(db.ctx, claim, lease) }
				switch form {
				case "tail":
					db.write("a", 1, "UPDATE todos SET title = 'changed' WHERE id = 1")
					step = func() (storage.Batch, error) { return worker.TailBatch(db.ctx, claim, "a", 100) }
				case "leftovers":
					db.exec(`INSERT INTO sync_backfill_leftovers VALUES ('count', 'a', '1')`)
					step = func() (storage.Batch, error) { return worker.RetryLeftovers(db.ctx, claim, "a", 100) }
				}
				freezer := db.freezeWorkers()
				frozen := inBackground(step)
				freezer.wait()
				if err := take(db, claim); err != nil {
					t.Fatalf("take over from the frozen worker: %v", err)
				}
				freezer.resume()
				result := <-frozen
				wantLost(t, result.err)
				db.wantText("0", "SELECT sum(filled) FROM todos")
				db.wantText("0", "SELECT sum(rows_done) FROM sync_backfill_progress WHERE kind = 'range'")

				newest := db.mustClaim(false)
				db.complete(newest)
				db.wantText("0", "SELECT count(*) FROM todos WHERE filled NOT IN (1, 2)")
				most := map[string]string{"quick": "300", "careful": "300", "tail": "301", "leftovers": "301"}
				if how == "by a pass that begins again" {
					most["tail"], most["leftovers"] = "300", "300"
				}
				db.wantText(most[form], "SELECT sum(filled) FROM todos")
			})
		}
	}
}

func TestALostClaimChangesNothingByAnyMethod(t *testing.T) {
	db := newBackfillDB(t, countedTodos, countingCheckpoint("a"), plainTodos(filledColumn))
	older := db.mustClaim(false)
	lease := db.mustLeases(older)[0]
	db.write("a", 1, "UPDATE todos SET title = 'changed' WHERE id = 1")
	db.exec(`INSERT INTO sync_backfill_leftovers VALUES ('count', 'a', '2')`)
	newer := db.mustClaim(false)
	state := func() string {
		return db.text(`SELECT jsonb_build_array(
			(SELECT sum(filled) FROM todos), (SELECT jsonb_agg(p ORDER BY kind, range_no) FROM sync_backfill_progress p),
			(SELECT jsonb_agg(c) FROM sync_backfill_checkpoints c), (SELECT jsonb_agg(l) FROM sync_backfill_leftovers l))`)
	}
	before := state()
	_, err := db.store.ScanBatch(db.ctx, older, lease)
	wantLost(t, err)
	_, err = db.store.TailBatch(db.ctx, older, "a", 100)
	wantLost(t, err)
	_, err = db.store.RetryLeftovers(db.ctx, older, "a", 100)
	wantLost(t, err)
	_, err = db.store.TakeRanges(db.ctx, older, 0, 1)
	wantLost(t, err)
	_, err = db.store.ReadClaim(db.ctx, db.name, older.Token)
	wantLost(t, err)
	report, err := db.store.Activate(db.ctx, older, storage.Activation{Partition: "a"})
	if err != nil || report.Outcome != storage.OutcomeLost {
		t.Errorf("the lost claim activates: %+v, %v", report, err)
	}
	if err := db.store.RecordError(db.ctx, older, "too late"); err != nil {
		t.Errorf("record an error: %v", err)
	}
	if after := state(); after != before {
		t.Errorf("a lost claim changed something:\n%s\n%s", before, after)
	}
	db.complete(newer)
}

// Epochs come again after a restore: the token does not.
func TestAClaimFromBeforeARestoreIsRefusedAlthoughItsEpochComesAgain(t *testing.T) {
	db := newBackfillDB(t, countedTodos, countingCheckpoint("a"), plainTodos(filledColumn))
	db.mustClaim(false) // epoch 1
	copied := db.text("SELECT current_database()") + "_restored"
	db.store.Close()
	admin := connect(t, testdb.Postgres(t))
	_ = db.conn.Close(db.ctx) // a template must have no sessions
	admin.run(fmt.Sprintf("CREATE DATABASE %s TEMPLATE %s", quoteIdentifier(copied), quoteIdentifier(strings.TrimSuffix(copied, "_restored"))))
	t.Cleanup(func() { admin.run("DROP DATABASE " + quoteIdentifier(copied) + " WITH (FORCE)") })

	db.store, db.conn = openStore(t, Config{URL: db.url}), db.connect()
	frozen := db.mustClaim(false) // epoch 2, in the timeline that is given up
	lease := db.mustLeases(frozen)[0]

	restoredURL := strings.Replace(db.url, "/"+strings.TrimSuffix(copied, "_restored"), "/"+copied, 1)
	restored := &backfillDB{barrierDB: &barrierDB{t: t, ctx: db.ctx, url: restoredURL}, name: db.name}
	restored.store, restored.conn = openStore(t, Config{URL: restoredURL}), restored.connect()
	owner := restored.mustClaim(false) // epoch 2 again
	if owner.Rows[0].OwnerEpoch != frozen.Rows[0].OwnerEpoch {
		t.Fatalf("the epochs are %d and %d, and should be equal for this test", owner.Rows[0].OwnerEpoch, frozen.Rows[0].OwnerEpoch)
	}
	restored.mustLeases(owner)
	_, err := restored.store.ScanBatch(db.ctx, frozen, lease)
	wantLost(t, err)
	_, err = restored.store.TailBatch(db.ctx, frozen, "a", 10)
	wantLost(t, err)
	report, err := restored.store.Activate(db.ctx, frozen, storage.Activation{Partition: "a"})
	if err != nil || report.Outcome != storage.OutcomeLost {
		t.Errorf("the frozen worker activates: %+v, %v", report, err)
	}
	restored.complete(owner)
	restored.wantText("300", "SELECT sum(filled) FROM todos")
	_ = restored.conn.Close(db.ctx)
	restored.store.Close()
}

func TestAWorkerFrozenBeforeAnAbandonIsRefusedWhenTheNameIsGone(t *testing.T) {
	db := newBackfillDB(t, countedTodos, countingCheckpoint("a"), plainTodos(filledColumn))
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	worker := db.workerStore()
	freezer := db.freezeWorkers()
	frozen := inBackground(func() (storage.Batch, error) { return worker.ScanBatch(db.ctx, claim, lease) })
	freezer.wait()
	if _, err := db.store.AbandonCheckpoint(db.ctx, db.name, 2, "alice", "a mistake"); err != nil {
		t.Fatalf("abandon: %v", err)
	}
	freezer.resume()
	wantLost(t, (<-frozen).err)
	db.wantText("0", "SELECT sum(filled) FROM todos")
}

// A worker frozen between its ownership check and its COMMIT holds the checkpoint row. Who takes over waits for it, but not for ever.
func TestAClaimIsRefusedInBoundedTimeWhileABatchIsBeingCommitted(t *testing.T) {
	db := newBackfillDB(t, countedTodos, countingCheckpoint("a"), plainTodos(filledColumn))
	claim := db.mustClaim(false)
	worker, err := db.connect().Begin(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := worker.Exec(db.ctx, "SELECT FROM sync_backfill_checkpoints FOR SHARE"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = db.store.ClaimAll(db.ctx, db.name, false)
	if took := time.Since(began); storage.CodeOf(err) != storage.CodeLockTimeout || took > 10*time.Second {
		t.Errorf("got %v after %s, want %s", err, took, storage.CodeLockTimeout)
	}
	if err := worker.Rollback(db.ctx); err != nil {
		t.Fatal(err)
	}
	if later := db.mustClaim(false); later.Rows[0].OwnerEpoch != claim.Rows[0].OwnerEpoch+1 {
		t.Errorf("the refused claim raised the epoch: %d after %d", later.Rows[0].OwnerEpoch, claim.Rows[0].OwnerEpoch)
	}
}

func TestAHundredClaimsAtOnceHaveAHundredEpochsAndTokens(t *testing.T) {
	db := newBackfillDB(t, countedTodos, countingCheckpoint("a"), plainTodos(filledColumn))
	const claimers = 8
	const each = 13
	claims := make(chan storage.Claim, claimers*each)
	failures := make(chan error, claimers)
	for range claimers {
		store := openStore(t, Config{URL: db.url, MaxConnections: 1})
		go func() {
			for range each {
				claim, err := again(db.ctx, func() (storage.Claim, error) { return store.ClaimAll(db.ctx, db.name, false) })
				if err != nil {
					failures <- err
					return
				}
				claims <- claim
			}
			failures <- nil
		}()
	}
	for range claimers {
		if err := <-failures; err != nil {
			t.Fatal(err)
		}
	}
	close(claims)
	epochs, tokens := map[int64]bool{}, map[string]bool{}
	for claim := range claims {
		epochs[claim.Rows[0].OwnerEpoch] = true
		tokens[claim.Token] = true
	}
	if len(epochs) != claimers*each || len(tokens) != claimers*each {
		t.Errorf("%d claims have %d epochs and %d tokens", claimers*each, len(epochs), len(tokens))
	}
}

func TestAWorkerWhoseSessionIsEndedResumesAtItsCursor(t *testing.T) {
	db := newBackfillDB(t, countedTodos, countingCheckpoint("a"), plainTodos(filledColumn))
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	worker := db.workerStore()
	if _, err := worker.ScanBatch(db.ctx, claim, lease); err != nil {
		t.Fatal(err)
	}
	// Between two batches.
	db.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'worker'`)
	_, err := again(db.ctx, func() (storage.Batch, error) { return worker.ScanBatch(db.ctx, claim, lease) })
	if err != nil {
		t.Fatalf("the batch after a session was ended: %v", err)
	}
	// Inside one, the last.
	freezer := db.freezeWorkers()
	frozen := inBackground(func() (storage.Batch, error) { return worker.ScanBatch(db.ctx, claim, lease) })
	freezer.wait()
	db.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'worker'`)
	if result := <-frozen; storage.CodeOf(result.err) != storage.CodeConnectionLost {
		t.Errorf("got %+v, %v, want %s", result.batch, result.err, storage.CodeConnectionLost)
	}
	db.wantText("200", "SELECT sum(filled) FROM todos")
	report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a"})
	if storage.CodeOf(err) != storage.CodeScanIncomplete {
		t.Errorf("with the last batch missing: %+v, %v, want %s", report, err, storage.CodeScanIncomplete)
	}
	freezer.resume()
	restarted, err := db.store.ReadClaim(db.ctx, db.name, claim.Token)
	if err != nil {
		t.Fatalf("the restarted worker reads its claim: %v", err)
	}
	db.complete(restarted)
	db.wantText("300", "SELECT sum(filled) FROM todos")
	db.wantText("0", "SELECT count(*) FROM todos WHERE filled <> 1")
}

func TestATransactionIsRunAgainWhenATableChangedItsColumns(t *testing.T) {
	db := todosDB(t, 3000)
	claim := db.mustClaim(false)
	lease := db.mustLeases(claim)[0]
	for batch := 0; ; batch++ {
		result, err := db.store.ScanBatch(db.ctx, claim, lease)
		if err != nil {
			t.Fatalf("batch %d after ALTER TABLE: %v", batch, err)
		}
		if result.Done {
			break
		}
		db.exec(fmt.Sprintf("ALTER TABLE todos ADD COLUMN extra%d text", batch))
	}
	db.exec("ALTER TABLE todos DROP COLUMN extra0; ALTER TABLE todos ALTER COLUMN extra1 SET DEFAULT 'x'")
	db.catchUp(claim, storage.AllPartitions)
	db.mustActivate(claim, storage.AllPartitions)
	db.wantText("0", wrong)
}

func TestRangesAreSharedByRemainderAndTakenBack(t *testing.T) {
	db := todosDB(t, 400_000)
	claim := db.mustClaim(false)
	seen := map[int]int{}
	for index := range 3 {
		leases, err := db.store.TakeRanges(db.ctx, claim, index, 3)
		if err != nil {
			t.Fatal(err)
		}
		for _, lease := range leases {
			seen[lease.Range]++
			if lease.Range%3 != index || lease.Epoch != 1 {
				t.Errorf("share %d of 3 got range %d with lease epoch %d", index, lease.Range, lease.Epoch)
			}
		}
	}
	if len(seen) < 6 || len(seen) > 10 {
		t.Errorf("400,000 rows are cut into %d ranges, want about 8", len(seen))
	}
	old := db.mustLeases(claim)
	renewed := db.mustLeases(claim)
	_, err := db.store.ScanBatch(db.ctx, claim, old[0])
	wantLost(t, err)
	if _, err := db.store.ScanBatch(db.ctx, claim, renewed[0]); err != nil {
		t.Errorf("the newest lease is refused: %v", err)
	}
	for _, share := range [][2]int{{0, 0}, {-1, 2}, {2, 2}} {
		_, err := db.store.TakeRanges(db.ctx, claim, share[0], share[1])
		if storage.CodeOf(err) != storage.CodeInvalidSpec {
			t.Errorf("share %v: got %v, want %s", share, err, storage.CodeInvalidSpec)
		}
	}
}
