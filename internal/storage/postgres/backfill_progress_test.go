package postgres

import (
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestProgressShowsTheTenThatAreFurthestBehind(t *testing.T) {
	partitions := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
	db := todosDB(t, 100, partitions...)
	claim := db.mustClaim(false)
	leases := db.mustLeases(claim)
	if len(leases) != len(partitions) {
		t.Fatalf("%d ranges for %d small partitions", len(leases), len(partitions))
	}
	db.scan(claim, leases[:3])
	db.mustActivate(claim, "c")
	for i, partition := range partitions {
		if partition == "c" {
			continue
		}
		for range i {
			db.write(partition, 1, "SELECT $1::int", 1)
		}
	}
	db.exec("INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms) VALUES ('new', 'norm', 2, 'declared', 0)")
	progress, err := db.store.ReadProgress(db.ctx, db.name)
	if err != nil {
		t.Fatal(err)
	}
	if progress.Total != 13 || progress.Declared != 1 || progress.Backfilling != 11 || progress.Activated != 1 || progress.Unverifiable != 0 {
		t.Errorf("the rows are counted wrong: %+v", progress)
	}
	if progress.RangesTotal != 12 || progress.RangesDone != 3 || progress.RowsDone != 100 || progress.RowsEstimated != 100 {
		t.Errorf("the work is counted wrong: ranges %d of %d, rows %d of %d", progress.RangesDone, progress.RangesTotal, progress.RowsDone, progress.RowsEstimated)
	}
	var order []string
	for _, row := range progress.Behind {
		order = append(order, row.Partition+":"+string(row.Verdict))
	}
	want := "new: l:changed k:changed j:changed i:changed h:changed g:changed f:changed e:changed d:changed"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("behind are %s, want %s", got, want)
	}
	if progress.ClaimToken != claim.Token || progress.LastError != "" || progress.Restarts != 0 {
		t.Errorf("the claim is shown wrong: %+v", progress)
	}
}

func TestProgressTellsChangesOfSourcesFromOthers(t *testing.T) {
	db := todosDB(t, 100, "a")
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	verdict := func() storage.Verdict {
		t.Helper()
		progress, err := db.store.ReadProgress(db.ctx, db.name)
		if err != nil || len(progress.Behind) != 1 {
			t.Fatalf("got %+v, %v", progress, err)
		}
		return progress.Behind[0].Verdict
	}
	if got := verdict(); got != storage.Clean {
		t.Errorf("without commits: %s", got)
	}
	w := db.begin(db.conn, "a")
	w.log("another table", "1")
	w.commit()
	if got := verdict(); got != storage.Clean {
		t.Errorf("with a commit of another table: %s", got)
	}
	db.write("a", 2, "SELECT $1::int", 2)
	if got := verdict(); got != storage.Changed {
		t.Errorf("with a commit of the source: %s", got)
	}
}

func TestProgressOfATableThatIsGone(t *testing.T) {
	db := todosDB(t, 100)
	db.mustClaim(false)
	db.exec("DROP TABLE todos")
	progress, err := db.store.ReadProgress(db.ctx, db.name)
	if err != nil || progress.Total != 1 || progress.Definition.Hash == "" {
		t.Errorf("got %+v, %v", progress, err)
	}
	_, err = db.store.ClaimAll(db.ctx, db.name, true)
	wantRefusal(t, err, storage.CodeLayoutMismatch, "todos")
}

func TestTheLastErrorOfAClaimIsKeptAndCut(t *testing.T) {
	db := todosDB(t, 10)
	claim := db.mustClaim(false)
	if err := db.store.RecordError(db.ctx, claim, "zero \x00 and half a rune \xff"+strings.Repeat("ä", 10_000)); err != nil {
		t.Fatal(err)
	}
	progress, err := db.store.ReadProgress(db.ctx, db.name)
	if err != nil || !strings.HasPrefix(progress.LastError, "zero  and half a rune ää") || len(progress.LastError) > errorBytes {
		t.Errorf("kept is %.60q of %d bytes, %v", progress.LastError, len(progress.LastError), err)
	}
}

func TestTheLastErrorIsGoneOnceItsRowIsActivated(t *testing.T) {
	db := todosDB(t, 10)
	claim := db.mustClaim(false)
	if err := db.store.RecordError(db.ctx, claim, "the disk is full"); err != nil {
		t.Fatal(err)
	}
	if progress, err := db.store.ReadProgress(db.ctx, db.name); err != nil || progress.LastError != "the disk is full" {
		t.Fatalf("before: %q, %v", progress.LastError, err)
	}
	db.complete(claim)
	progress, err := db.store.ReadProgress(db.ctx, db.name)
	if err != nil || progress.LastError != "" || progress.Activated != 1 {
		t.Errorf("after: %+v, %v", progress, err)
	}
}

func TestReplicationLagIsThatOfTheSlowestStandby(t *testing.T) {
	primary := testdb.PostgresServer(t, testdb.ServerOptions{})
	url := primary.Database(t)
	store := openStore(t, Config{URL: url})
	lag := func() time.Duration {
		t.Helper()
		lag, err := store.ReplicationLag(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		return lag
	}
	if got := lag(); got != 0 {
		t.Errorf("without a standby the lag is %s", got)
	}
	standby := primary.Standby(t)
	program := connect(t, url)
	program.run("CREATE TABLE t(n int)")
	paused := connect(t, standby.DSN("postgres"))
	paused.run("SELECT pg_wal_replay_pause()")
	eventually(t, "the standby that stopped replaying is seen to be behind", func() bool {
		program.run("INSERT INTO t VALUES (1)")
		return lag() > 500*time.Millisecond
	})
	paused.run("SELECT pg_wal_replay_resume()")
	eventually(t, "the standby has caught up", func() bool {
		program.run("INSERT INTO t VALUES (1)")
		return lag() < 500*time.Millisecond
	})

	blind := openStore(t, Config{URL: testdb.Role(t, url, "blind")})
	_, err := blind.ReplicationLag(testContext(t))
	wantRefusal(t, err, storage.CodeRightMissing, "pg_monitor")
}

func TestTheRowsOfATableThatWasNeverAnalyzedAreNotGuessed(t *testing.T) {
	setup := strings.Replace(todosSQL(20), "ANALYZE todos", "ALTER TABLE todos SET (autovacuum_enabled = off)", 1)
	db := newBackfillDB(t, setup, normCheckpoint("norm", 2), plainTodos(titleNorm))
	// A session tells the server what it wrote when it has been idle for a while.
	db.eventually("the server to have counted the rows", func() bool {
		return db.text("SELECT pg_catalog.pg_stat_get_live_tuples('todos'::regclass)") == "20"
	})
	estimated := func() int64 {
		progress, err := db.store.ReadProgress(db.ctx, db.name)
		if err != nil {
			t.Fatal(err)
		}
		return progress.RowsEstimated
	}
	if got := estimated(); got != 20 {
		t.Errorf("before the first claim there are about %d rows, want 20", got)
	}
	claim := db.mustClaim(false)
	db.mustLeases(claim)
	if got := estimated(); got != 20 {
		t.Errorf("the pass goes over about %d rows, want 20", got)
	}
	db.exec("DELETE FROM todos WHERE id > 15")
	db.complete(claim)
	if got := estimated(); got != 15 {
		t.Errorf("once all is activated it was about %d rows, want the 15 that were done", got)
	}
}
