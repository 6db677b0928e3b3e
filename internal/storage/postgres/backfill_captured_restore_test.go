package postgres

import (
	"os/exec"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// A dump that is restored into another server has a log whose numbers are of a time to come there, its horizons too. The pass that was under
// way proves nothing; the next one is right, and what programs change meanwhile is neither missed nor pruned before it is applied.
func TestAPassFromARestoredDumpBeginsAgainAndIsRight(t *testing.T) {
	db, program := newTailedDB(t, 100, byTenant)
	claim := db.mustClaim(false)
	db.scan(claim, db.mustLeases(claim))
	program.run(`UPDATE todos SET title = 'Before'`)
	db.eventually("some of the log is pruned", func() bool {
		db.catchUp(claim, "*")
		return db.text(`SELECT max(horizon_seq) > 0 FROM sync_partitions`) == "true"
	})
	program.run(`UPDATE todos SET title = 'In the dump' WHERE id < 20`)

	server := testdb.PostgresServer(t, testdb.ServerOptions{})
	copied := &backfillDB{barrierDB: newBarrierDB(t, Config{URL: server.Database(t)}), name: db.name}
	dump := exec.CommandContext(db.ctx, testdb.Program(t, "pg_dump"), "--no-owner", db.url)
	restore := exec.CommandContext(db.ctx, testdb.Program(t, "psql"), "-q", "-v", "ON_ERROR_STOP=1", copied.url)
	var err error
	if restore.Stdin, err = dump.StdoutPipe(); err != nil {
		t.Fatal(err)
	}
	if err := dump.Start(); err != nil {
		t.Fatal(err)
	}
	if output, err := restore.CombinedOutput(); err != nil {
		t.Fatalf("restore: %v\n%s", err, output)
	}
	if err := dump.Wait(); err != nil {
		t.Fatalf("dump: %v", err)
	}

	batch, err := copied.store.TailBatch(db.ctx, claim, "*", 10)
	if err != nil || batch.Unverifiable == "" {
		t.Errorf("TailBatch: %+v, %v", batch, err)
	}
	report, err := copied.store.Activate(db.ctx, claim, storage.Activation{Partition: "*"})
	if err != nil || report.Outcome != storage.OutcomeUnverifiable {
		t.Errorf("Activate: %+v, %v", report, err)
	}

	again := copied.mustClaim(true)
	there := connect(t, copied.url)
	there.run(`SET syncbarrier.writer_version = 2`)
	there.run(`UPDATE todos SET title = 'There' WHERE id > 90`)
	copied.scan(again, copied.mustLeases(again))
	there.run(`UPDATE todos SET title = 'After the scan' WHERE id > 95`)
	copied.catchUp(again, "*")
	copied.wantText("0", wrong)
	there.run(`UPDATE todos SET title = 'At last' WHERE id > 98`)
	if report := copied.mustActivate(again, "*"); report.Rest != 2 {
		t.Errorf("the activation filled %d rows, want the two that were changed last", report.Rest)
	}
	copied.wantText("0", wrong)
}
