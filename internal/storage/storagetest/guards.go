package storagetest

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// The guards keep promise I2 against any program, so each of these tests is a program that knows nothing of us.

func runGuards(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"the marker never goes down", guardMarker},
		{"layouts of a version are not written over at the same version", guardLayouts},
		{"the fence never goes down", guardFence},
		{"horizon and last number keep the larger", guardPartition},
		{"an owner epoch, a version or a state that would go back is skipped", guardCheckpointBack},
		{"a watermark goes down only with a new epoch", guardWatermark},
		{"nobody activates a checkpoint of ours without the proof", guardProof},
		{"a checkpoint that another program declared is that program's to activate", guardForeign},
		{"a definition stays as it is, apart from its settings", guardDefinition},
		{"an activated row does not change", guardActivated},
		{"nothing of it is deleted", guardDelete},
	})
}

// refused runs a statement that the database must refuse with a code.
func (f *fixture) refused(code storage.Code, sql string, arguments ...any) {
	f.Helper()
	_, err := f.program.Exec(f.ctx, sql, arguments...)
	f.wantRaised(err, code)
}

// skipped runs an update that must change nothing and be no error, as a compare-and-swap that fails.
func (f *fixture) skipped(sql string, arguments ...any) {
	f.Helper()
	same(f, "rows affected by "+sql, f.exec(sql, arguments...), 0)
}

func guardMarker(f *fixture) {
	f.apply(version1())
	f.apply(version2())
	const upsert = `INSERT INTO sync_schema_meta (id, schema_version, layouts) VALUES (1, $1, '{}')
		ON CONFLICT (id) DO UPDATE SET schema_version = excluded.schema_version, layouts = excluded.layouts`
	f.refused(storage.CodeMarkerGuard, upsert, 1)
	f.refused(storage.CodeMarkerGuard, "UPDATE sync_schema_meta SET schema_version = 0")
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta"), 2)
	f.exec(upsert, 3)
	same(f, "marker after another program raised it", f.number("SELECT schema_version FROM sync_schema_meta"), 3)
}

func guardLayouts(f *fixture) {
	f.apply(version1())
	before := f.text("SELECT layouts FROM sync_schema_meta")
	f.exec("UPDATE sync_schema_meta SET schema_version = 1, layouts = '{}'")
	same(f, "layouts", f.text("SELECT layouts FROM sync_schema_meta"), before)
}

func guardFence(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	f.refused(storage.CodeFenceGuard, "UPDATE sync_writer_fence SET required_writer_version = 1 WHERE partition = '*'")
	f.refused(storage.CodeFenceGuard, `INSERT INTO sync_writer_fence (partition, required_writer_version) VALUES ('*', 1)
		ON CONFLICT (partition) DO UPDATE SET required_writer_version = excluded.required_writer_version`)
	f.exec("INSERT INTO sync_writer_fence (partition, required_writer_version) VALUES ('b', 5)")
	f.refused(storage.CodeFenceGuard, "UPDATE sync_writer_fence SET required_writer_version = 4 WHERE partition = 'b'")
	f.wantCode(f.oldWriter("b", 4), storage.CodeWriterFenceRejected)
	f.must(f.oldWriter("b", 5), "write as version 5")
	f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
}

func guardPartition(f *fixture) {
	f.apply(version1())
	for i := range int64(5) {
		f.write("a", 1, i, "x")
	}
	f.exec("UPDATE sync_partitions SET horizon_seq = 3 WHERE partition = 'a'")
	f.exec("UPDATE sync_partitions SET horizon_seq = 2 WHERE partition = 'a'")
	same(f, "horizon", f.number("SELECT horizon_seq FROM sync_partitions WHERE partition = 'a'"), 3)
	f.exec("UPDATE sync_partitions SET max_commit_seq = 1, horizon_seq = 4 WHERE partition = 'a'")
	same(f, "horizon", f.number("SELECT horizon_seq FROM sync_partitions WHERE partition = 'a'"), 4)
	same(f, "last number", f.number("SELECT max_commit_seq FROM sync_partitions WHERE partition = 'a'"), 5)
	same(f, "the next number", f.write("a", 1, 9, "x"), 6)
}

func guardCheckpointBack(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	claim, err := f.store.ClaimCheckpoint(f.ctx, "a", "letters")
	f.must(err, "claim")
	f.skipped("UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch - 1")
	f.skipped("UPDATE sync_backfill_checkpoints SET schema_version = schema_version - 1")
	f.skipped("UPDATE sync_backfill_checkpoints SET schema_version = schema_version + 1")
	f.skipped("UPDATE sync_backfill_checkpoints SET state = 'declared'")
	f.skipped("UPDATE sync_backfill_checkpoints SET name = 'another'")
	row := f.checkpoint("a", "letters")
	same(f, "owner epoch", row.OwnerEpoch, claim.Rows[0].OwnerEpoch)
	same(f, "version", row.Version, 2)
	same(f, "state", row.State, storage.Backfilling)
}

func guardWatermark(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	_, err := f.store.ClaimCheckpoint(f.ctx, "a", "letters")
	f.must(err, "claim")
	f.exec("UPDATE sync_backfill_checkpoints SET watermark = 7")
	f.skipped("UPDATE sync_backfill_checkpoints SET watermark = 6")
	same(f, "rows affected with a new epoch", f.exec("UPDATE sync_backfill_checkpoints SET watermark = 6, owner_epoch = owner_epoch + 1"), 1)
	same(f, "watermark", f.checkpoint("a", "letters").Watermark, 6)
}

func guardProof(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	claim, err := f.store.ClaimCheckpoint(f.ctx, "a", "letters")
	f.must(err, "claim")
	f.skipped(`UPDATE sync_backfill_checkpoints SET state = 'activated', watermark = $1 WHERE partition = 'a' AND name = 'letters' AND owner_epoch = $2
		AND state <> 'activated'`, 0, claim.Rows[0].OwnerEpoch)
	same(f, "state", f.checkpoint("a", "letters").State, storage.Backfilling)
	f.wantGate(2, storage.GateBackfilling)
	f.refused(storage.CodeCheckpointGuard, `INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms)
		VALUES ('b', 'letters', 2, 'activated', 0)`)
}

func guardDefinition(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	for _, change := range []string{
		"DELETE FROM sync_backfill_definitions",
		"UPDATE sync_backfill_definitions SET name = 'another'",
		"UPDATE sync_backfill_definitions SET version = 1",
		"UPDATE sync_backfill_definitions SET hash = ''",
		"UPDATE sync_backfill_definitions SET definition = '{}'",
	} {
		f.refused(storage.CodeCheckpointGuard, change)
	}
	same(f, "definitions whose settings change", f.exec("UPDATE sync_backfill_definitions SET settings = '{}' WHERE name = 'letters'"), 1)
	f.skipped("UPDATE sync_backfill_checkpoints SET state = 'activated'")
	f.wantGate(2, storage.GateBackfilling)
	_, err := f.store.AbandonCheckpoint(f.ctx, "letters", 2, "a person", "it is not needed")
	f.must(err, "abandon")
	same(f, "definitions after the abandon", f.number("SELECT count(*) FROM sync_backfill_definitions"), 0)
}

func guardForeign(f *fixture) {
	f.apply(version1())
	f.exec(`INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms) VALUES ('a', 'theirs', 1, 'declared', 0)`)
	f.wantGate(1, storage.GateBackfilling)
	_, err := f.store.ReadDefinition(f.ctx, "theirs")
	f.wantCode(err, storage.CodeCheckpointDefinitionMissing)
	same(f, "rows claimed by its own program", f.exec("UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch + 1, state = 'backfilling' WHERE name = 'theirs'"), 1)
	same(f, "rows activated by its own program", f.exec("UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE name = 'theirs'"), 1)
	f.wantGate(1, storage.GateOpen)
}

func guardActivated(f *fixture) {
	f.activated()
	before := f.checkpoint("a", "letters")
	f.skipped("UPDATE sync_backfill_checkpoints SET watermark = watermark + 1")
	f.skipped("UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch + 1")
	f.skipped("UPDATE sync_backfill_checkpoints SET state = 'backfilling'")
	f.skipped("UPDATE sync_backfill_checkpoints SET observed_rows = 1000")
	same(f, "row", f.checkpoint("a", "letters"), before)
}

func guardDelete(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2, "a")))
	f.refused(storage.CodeMarkerGuard, "DELETE FROM sync_schema_meta")
	f.refused(storage.CodeFenceGuard, "DELETE FROM sync_writer_fence")
	f.refused(storage.CodePartitionGuard, "DELETE FROM sync_partitions")
	f.refused(storage.CodeCheckpointGuard, "DELETE FROM sync_backfill_checkpoints")
	if f.db.Dialect == storage.PostgreSQL { // SQLite knows no TRUNCATE
		f.refused(storage.CodeMarkerGuard, "TRUNCATE sync_schema_meta")
		f.refused(storage.CodeFenceGuard, "TRUNCATE sync_writer_fence")
		f.refused(storage.CodePartitionGuard, "TRUNCATE sync_partitions")
		f.refused(storage.CodeCheckpointGuard, "TRUNCATE sync_backfill_checkpoints")
	}
	same(f, "partitions", f.number("SELECT count(*) FROM sync_partitions WHERE partition = 'a'"), 1)
}
