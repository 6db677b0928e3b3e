package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// restored puts checkpoint and claim back to how they stood at an earlier claim, as a restore does: epochs come again, tokens do not.
func (db *backfillDB) restored(earlier storage.Claim) {
	db.t.Helper()
	db.exec("ALTER TABLE sync_backfill_checkpoints DISABLE TRIGGER USER")
	for _, row := range earlier.Rows {
		db.exec(`UPDATE sync_backfill_checkpoints SET owner_epoch = $2, state = 'backfilling', watermark = 0 WHERE partition = $1`, row.Partition, row.OwnerEpoch)
		db.exec(`UPDATE sync_backfill_progress SET owner_epoch = $2, claim_token = $3 WHERE kind = 'claim' AND partition = $1`,
			row.Partition, row.OwnerEpoch, earlier.Token)
	}
	db.exec(`
		DO $$ BEGIN
			EXECUTE (SELECT string_agg(format('ALTER TABLE sync_backfill_checkpoints ENABLE ALWAYS TRIGGER %I', tgname), ';')
			           FROM pg_trigger WHERE tgrelid = 'sync_backfill_checkpoints'::regclass AND NOT tgisinternal);
		END $$`)
}

// Worker A holds epoch 4 when the database goes back to epoch 2. Two claims later the new owner holds epoch 4 too; only the token tells
// the two apart.
func TestAfterARestoreAnEpochThatComesAgainIsNotTheSameClaim(t *testing.T) {
	db := todosDB(t, 20, "a")
	first := db.mustClaim(false)
	second := db.mustClaim(false)
	db.mustClaim(false)
	frozen := db.mustClaim(false)
	frozenLease := db.mustLeases(frozen)[0]

	db.restored(second)
	db.mustClaim(false)
	current := db.mustClaim(false)
	if current.Rows[0].OwnerEpoch != frozen.Rows[0].OwnerEpoch {
		t.Fatalf("the epochs are %d and %d, want them to come again", current.Rows[0].OwnerEpoch, frozen.Rows[0].OwnerEpoch)
	}
	for name, claim := range map[string]storage.Claim{"frozen": frozen, "first": first} {
		owner := storage.Ownership{Partition: "a", Name: "norm", OwnerEpoch: claim.Rows[0].OwnerEpoch, Token: claim.Token}
		moved, err := db.store.AdvanceCheckpoint(db.ctx, storage.Advance{Ownership: owner, Watermark: 100})
		if err != nil || moved {
			t.Errorf("%s: the worker of before advances: %t, %v", name, moved, err)
		}
		if outcome, err := db.store.ActivateCheckpoint(db.ctx, owner, 0); err != nil || outcome != storage.OutcomeLost {
			t.Errorf("%s: the worker of before activates: %v, %v", name, outcome, err)
		}
		_, err = db.store.TailBatch(db.ctx, claim, "a", 10)
		expectCode(t, err, storage.CodeOwnershipLost)
		_, err = db.store.TakeRanges(db.ctx, claim, 0, 1)
		expectCode(t, err, storage.CodeOwnershipLost)
	}
	_, err := db.store.ScanBatch(db.ctx, frozen, frozenLease)
	expectCode(t, err, storage.CodeOwnershipLost)
	db.wantText("0", "SELECT count(*) FROM todos WHERE title_norm IS NOT NULL")
	db.complete(current)
	db.wantText("0", wrong+" AND tenant = 'a'")
}

// A restore gives the log another epoch, or the cluster another identifier: what a pass noted before it proves nothing.
func TestAPassThatBeganBeforeARestoreIsUnverifiable(t *testing.T) {
	for name, restore := range map[string]string{
		"another log epoch":         `UPDATE sync_partition_registry SET log_epoch = 'of the copy'`,
		"another system identifier": `UPDATE sync_backfill_progress SET facts = (facts::jsonb || '{"systemIdentifier": "1"}')::text WHERE kind = 'claim'`,
		"a log that is shorter":     `UPDATE sync_backfill_checkpoints SET watermark = 50`,
	} {
		t.Run(name, func(t *testing.T) {
			db := todosDB(t, 10, "a")
			db.write("a", 2, "UPDATE todos SET title = 'x' WHERE id = 2")
			claim := db.mustClaim(false)
			db.scan(claim, db.mustLeases(claim))
			db.exec(restore)
			owner := storage.Ownership{Partition: "a", Name: "norm", OwnerEpoch: claim.Rows[0].OwnerEpoch, Token: claim.Token}
			outcome, err := db.store.ActivateCheckpoint(db.ctx, owner, 1)
			if err != nil || outcome != storage.OutcomeUnverifiable {
				t.Errorf("ActivateCheckpoint: %v, %v", outcome, err)
			}
			report, err := db.store.Activate(db.ctx, claim, storage.Activation{Partition: "a"})
			if err != nil || report.Outcome != storage.OutcomeUnverifiable {
				t.Errorf("Activate: %+v, %v", report, err)
			}
			batch, err := db.store.TailBatch(db.ctx, claim, "a", 10)
			if err != nil || batch.Unverifiable == "" {
				t.Errorf("TailBatch: %+v, %v", batch, err)
			}
			db.wantGate(2, storage.GateBackfilling)
			db.complete(db.mustClaim(true))
			db.wantText("0", wrong+" AND tenant = 'a'")
		})
	}
}
