package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// What the triggers do not see, or what happened to them or to their log, makes a pass prove nothing: for the tail and for the activation alike.
// The next pass is right.
func TestAPassOverCapturedSourcesThatProvesNothingIsUnverifiable(t *testing.T) {
	for name, test := range map[string]struct {
		statements []string
		tail       bool // the tail finds it as well
	}{
		"a TRUNCATE":                 {[]string{`TRUNCATE todos`}, true},
		"a rewrite":                  {[]string{`ALTER TABLE todos ALTER title TYPE varchar(99) USING title || '!'`}, true},
		"a trigger switched off":     {[]string{`ALTER TABLE todos DISABLE TRIGGER syncbarrier_capture_update`}, true},
		"a trigger off and on again": {[]string{`ALTER TABLE todos DISABLE TRIGGER ALL`, `UPDATE todos SET title = 'unseen'`, `ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_update`, `ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_insert`, `ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_delete`, `ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_capture_truncate`, `ALTER TABLE todos ENABLE ALWAYS TRIGGER syncbarrier_fence_source`, `ALTER TABLE todos ENABLE REPLICA TRIGGER syncbarrier_fence_row`, `ALTER TABLE todos ENABLE REPLICA TRIGGER syncbarrier_capture_row`}, true},
		"a trigger dropped":          {[]string{`DROP TRIGGER syncbarrier_capture_delete ON todos`}, true},
		"another system identifier":  {[]string{`UPDATE sync_backfill_progress SET facts = (facts::jsonb || '{"systemIdentifier": "1"}')::text WHERE kind = 'claim'`}, true},
		"numbers that begin anew":    {[]string{`UPDATE sync_backfill_progress SET position = 4000000000000 WHERE kind = 'position'`}, true},
		"a snapshot of the future":   {[]string{`UPDATE sync_backfill_progress SET facts = '{"applied": "5000000000000:5000000000000:"}' WHERE kind = 'position'`}, true},
		"a log pruned by force":      {[]string{`UPDATE todos SET title = 'pruned'`, `UPDATE sync_partitions SET horizon_seq = (SELECT max(commit_seq) FROM sync_changes) WHERE starts_with(partition, 'capture:')`, `DELETE FROM sync_changes`}, true},
		"a function that does less":  {[]string{`CREATE OR REPLACE FUNCTION syncbarrier_capture_todos() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'`}, false},
	} {
		for _, partition := range []string{storage.AllPartitions, storage.DefaultPartition} {
			t.Run(name+", row "+partition, func(t *testing.T) {
				t.Parallel()
				var listed []string
				if partition != storage.AllPartitions {
					listed = []string{partition}
				}
				db, _ := newTailedDB(t, 100, inOne, listed...)
				claim := db.mustClaim(false)
				db.scan(claim, db.mustLeases(claim))
				for _, statement := range test.statements {
					db.exec(`SET syncbarrier.writer_version = 2`)
					db.exec(statement)
				}
				report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: partition})
				if err != nil || report.Outcome != storage.OutcomeUnverifiable || report.Reason == "" {
					t.Errorf("Activate: %+v, %v", report, err)
				}
				batch, err := db.store.TailBatch(db.ctx, claim, partition, 10)
				if test.tail && (err != nil || batch.Unverifiable == "") {
					t.Errorf("TailBatch: %+v, %v", batch, err)
				}
				if _, err := db.store.RepairFence(db.ctx); err != nil {
					t.Fatal(err)
				}
				db.exec(`INSERT INTO todos VALUES (777, 'a', 'After all') ON CONFLICT (id) DO NOTHING`)
				db.eventually("no transaction of the server is as old as what was pruned", func() bool {
					return db.text(`SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > max(horizon_seq) FROM sync_partitions`) == "true"
				})
				db.complete(db.mustClaim(true))
				db.wantText("0", wrong)
			})
		}
	}
}

// A prune on request does not take what an open checkpoint needs, unless it is forced; then the pass begins again.
func TestTheCapturedLogIsPrunedOnRequestOnlyBehindOpenCheckpoints(t *testing.T) {
	db, program := newTailedDB(t, 100, inOne)
	const key = "capture:todos/"
	claim := db.mustClaim(false)
	program.run(`UPDATE todos SET title = 'x'`)
	last := value[int64](program, `SELECT max(commit_seq) FROM sync_changes`)
	db.eventually("no transaction of the server is older", func() bool {
		return value[bool](program, `SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > $1`, last)
	})
	_, err := db.store.Prune(db.ctx, key, last, false)
	wantRefusal(t, err, storage.CodePruneRefused, "norm", key)
	db.wantText("100", `SELECT count(*) FROM sync_changes`)
	horizon, err := db.store.Prune(db.ctx, key, last+1_000_000, true)
	if err != nil || horizon < last || horizon > last+1000 {
		t.Errorf("horizon %d, %v; want it to be about %d", horizon, err, last)
	}
	db.wantText("0", `SELECT count(*) FROM sync_changes`)
	batch, err := db.store.TailBatch(db.ctx, claim, "*", 10)
	if err != nil || batch.Unverifiable == "" {
		t.Errorf("TailBatch: %+v, %v", batch, err)
	}
	db.complete(db.mustClaim(true))
	db.wantText("0", wrong)
}

// What a row has applied goes, as far as no other row needs it; what another checkpoint needs stays.
func TestTheCapturedLogGoesAsItIsApplied(t *testing.T) {
	db, program := newTailedDB(t, 100, byTenant, "a", "b")
	claim := db.mustClaim(false)
	program.run(`UPDATE todos SET title = 'x'`)
	program.run(`INSERT INTO todos VALUES (500, 'c', 'of nobody')`)
	left := func(tenant string) string {
		return db.text(`SELECT count(*) FROM sync_changes WHERE partition = 'capture:todos/=' || $1`, tenant)
	}
	db.eventually("the log of a is applied and pruned", func() bool {
		db.catchUp(claim, "a")
		return left("a") == "0"
	})
	if left("b") != "50" || left("c") != "1" {
		t.Errorf("%s changes of b and %s of c are left, want 50 and 1", left("b"), left("c"))
	}
	db.wantText("3", `SELECT count(*) FROM sync_partitions WHERE starts_with(partition, 'capture:todos/=')`)
	progress, err := db.store.ReadProgress(db.ctx, "norm")
	if err != nil || len(progress.Behind) != 2 {
		t.Fatalf("%+v, %v", progress, err)
	}
	for _, row := range progress.Behind {
		want := map[string]storage.Verdict{"a": storage.Clean, "b": storage.Changed}[row.Partition]
		if row.Verdict != want {
			t.Errorf("row %s is %s, want %s", row.Partition, row.Verdict, want)
		}
	}
}
