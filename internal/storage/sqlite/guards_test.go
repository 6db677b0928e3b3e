package sqlite

import (
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	markerGuard     = string(storage.CodeMarkerGuard)
	fenceGuard      = string(storage.CodeFenceGuard)
	partitionGuard  = string(storage.CodePartitionGuard)
	checkpointGuard = string(storage.CodeCheckpointGuard)
)

// guardedFile is a file at version 7 with one checkpoint that has a definition and is being backfilled, one that another program declared,
// and one partition.
func guardedFile(t testing.TB) (*Store, program) {
	t.Helper()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, version7())
	p := openProgram(t, path)
	p.exec("INSERT INTO sync_partitions VALUES ('p', 100, 50)")
	p.exec("UPDATE sync_backfill_checkpoints SET state = 'backfilling', owner_epoch = 3, watermark = 40 WHERE name = 'title-norm'")
	p.exec(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, watermark, owner_epoch, updated_at_ms)
		VALUES ('p', 'foreign', 7, 'backfilling', 40, 3, 0)`)
	return store, p
}

func TestTheMarkerNeverGoesDownOrAway(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	layouts := p.text("SELECT layouts FROM sync_schema_meta")
	for _, statement := range []string{
		"UPDATE sync_schema_meta SET schema_version = 6",
		"UPDATE OR IGNORE sync_schema_meta SET schema_version = 6",
		"UPDATE OR REPLACE sync_schema_meta SET schema_version = 6",
		"UPDATE sync_schema_meta SET schema_version = 'eight'",
		"UPDATE sync_schema_meta SET schema_version = 7.5",
		"UPDATE sync_schema_meta SET schema_version = NULL",
		"DELETE FROM sync_schema_meta",
		"DELETE FROM sync_schema_meta WHERE id = 1",
		"INSERT OR REPLACE INTO sync_schema_meta VALUES (1, 6, '{}')",
		"REPLACE INTO sync_schema_meta VALUES (1, 7, '{}')",
		"INSERT OR REPLACE INTO sync_schema_meta VALUES (1, 'x', '{}')",
		// What a program of the sync protocol does that read the marker before it waited for the lock:
		`INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 6, '{"old":[]}')
			ON CONFLICT(id) DO UPDATE SET schema_version = excluded.schema_version, layouts = excluded.layouts`,
	} {
		p.refused(markerGuard, statement)
	}
	p.exec("UPDATE sync_schema_meta SET layouts = '{}'")
	p.exec(`INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 7, '{"same":[]}')
		ON CONFLICT(id) DO UPDATE SET schema_version = excluded.schema_version, layouts = excluded.layouts`)
	p.exec("INSERT OR IGNORE INTO sync_schema_meta VALUES (1, 1, '{}')")
	p.exec("INSERT INTO sync_schema_meta VALUES (1, 1, '{}') ON CONFLICT DO NOTHING")
	same(t, "version", p.number("SELECT schema_version FROM sync_schema_meta"), 7)
	same(t, "layouts", p.text("SELECT layouts FROM sync_schema_meta"), layouts)
	p.exec(`INSERT INTO sync_schema_meta(id, schema_version, layouts) VALUES (1, 8, '{"new":[]}')
		ON CONFLICT(id) DO UPDATE SET schema_version = excluded.schema_version, layouts = excluded.layouts`)
	same(t, "layouts of the next version", p.text("SELECT layouts FROM sync_schema_meta"), `{"new":[]}`)
}

func TestTheFenceNeverGoesDownOrAway(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	p.exec("INSERT INTO sync_writer_fence VALUES ('q', 9)")
	same(t, "the partition of a fence has a row", p.number("SELECT count(*) FROM sync_partitions WHERE partition = 'q'"), 1)
	for _, statement := range []string{
		"UPDATE sync_writer_fence SET required_writer_version = 1",
		"UPDATE sync_writer_fence SET required_writer_version = required_writer_version - 1 WHERE partition = 'q'",
		"UPDATE OR REPLACE sync_writer_fence SET partition = '*' WHERE partition = 'q'",
		"UPDATE sync_writer_fence SET partition = 'r' WHERE partition = 'q'",
		"UPDATE sync_writer_fence SET required_writer_version = 'many'",
		"UPDATE sync_writer_fence SET required_writer_version = NULL",
		"DELETE FROM sync_writer_fence",
		"DELETE FROM sync_writer_fence WHERE partition = 'q'",
		"INSERT OR REPLACE INTO sync_writer_fence VALUES ('*', 6)",
		"REPLACE INTO sync_writer_fence VALUES ('q', 8)",
		"INSERT INTO sync_writer_fence VALUES ('r', 'x')",
		"INSERT INTO sync_writer_fence VALUES ('r', -1)",
		"INSERT INTO sync_writer_fence VALUES (x'70', 9)",
		"INSERT INTO sync_writer_fence VALUES ('q', 3) ON CONFLICT(partition) DO UPDATE SET required_writer_version = excluded.required_writer_version",
	} {
		p.refused(fenceGuard, statement)
	}
	// How the sync protocol raises a fence: never down, and so never refused.
	for _, version := range []int{3, 9, 12} {
		p.exec(`INSERT INTO sync_writer_fence(partition, required_writer_version) VALUES ('q', ?)
			ON CONFLICT(partition) DO UPDATE SET required_writer_version = max(sync_writer_fence.required_writer_version, excluded.required_writer_version)`,
			version)
	}
	p.exec("INSERT OR IGNORE INTO sync_writer_fence VALUES ('q', 1)")
	p.exec("REPLACE INTO sync_writer_fence VALUES ('q', 13)")
	same(t, "fences", p.text("SELECT group_concat(partition || required_writer_version) FROM (SELECT * FROM sync_writer_fence ORDER BY 1)"), "*7,q13")
}

func TestPositionAndHorizonKeepTheLargerValue(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"UPDATE sync_partitions SET max_commit_seq = 10, horizon_seq = 5",
		"UPDATE OR REPLACE sync_partitions SET horizon_seq = 0",
		"INSERT OR REPLACE INTO sync_partitions VALUES ('p', 10, 5)",
		"REPLACE INTO sync_partitions(partition) VALUES ('p')",
		"INSERT OR IGNORE INTO sync_partitions(partition) VALUES ('p')",
		"INSERT INTO sync_partitions(partition) VALUES ('p') ON CONFLICT DO NOTHING",
		`INSERT INTO sync_partitions(partition, horizon_seq) VALUES ('p', 20)
			ON CONFLICT(partition) DO UPDATE SET horizon_seq = excluded.horizon_seq`,
	} {
		t.Run(statement, func(t *testing.T) {
			t.Parallel()
			_, p := guardedFile(t)
			p.exec(statement)
			same(t, "partition", fmt.Sprint(p.rows("SELECT * FROM sync_partitions")), "[[p 100 50]]")
			// One value up and the other down: each keeps the larger.
			p.exec("UPDATE sync_partitions SET max_commit_seq = 101, horizon_seq = 1")
			same(t, "partition", fmt.Sprint(p.rows("SELECT * FROM sync_partitions")), "[[p 101 50]]")
			p.exec("REPLACE INTO sync_partitions VALUES ('p', 1, 60)")
			same(t, "partition", fmt.Sprint(p.rows("SELECT * FROM sync_partitions")), "[[p 101 60]]")
			// How a program allocates a number in one statement.
			same(t, "the next number", p.number(`INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ('p', 1)
				ON CONFLICT(partition) DO UPDATE SET max_commit_seq = max_commit_seq + 1 RETURNING max_commit_seq`), 102)
		})
	}
}

func TestNoPartitionGoesAwayOrChangesItsKey(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	for _, statement := range []string{
		"DELETE FROM sync_partitions",
		"DELETE FROM sync_partitions WHERE partition = 'p'",
		"UPDATE sync_partitions SET partition = 'q'",
		"UPDATE sync_partitions SET max_commit_seq = 'x'",
		"UPDATE sync_partitions SET horizon_seq = x'00'",
		"INSERT INTO sync_partitions VALUES ('q', 'x', 0)",
	} {
		p.refused(partitionGuard, statement)
	}
}

func TestAChangeThatTakesSomethingBackFromACheckpointIsSkipped(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	before := fmt.Sprint(p.rows("SELECT * FROM sync_backfill_checkpoints ORDER BY name"))
	for _, statement := range []string{
		"UPDATE sync_backfill_checkpoints SET owner_epoch = 2",
		"UPDATE sync_backfill_checkpoints SET owner_epoch = 'x'",
		"UPDATE sync_backfill_checkpoints SET schema_version = 6",
		"UPDATE sync_backfill_checkpoints SET watermark = 39",
		"UPDATE sync_backfill_checkpoints SET watermark = 'x'",
		"UPDATE sync_backfill_checkpoints SET state = 'declared'",
		"UPDATE OR REPLACE sync_backfill_checkpoints SET name = 'title-norm', partition = '*' WHERE name = 'foreign'",
		"UPDATE sync_backfill_checkpoints SET partition = 'q' WHERE name = 'foreign'",
		"UPDATE sync_backfill_checkpoints SET schema_version = 8 WHERE name = 'title-norm'",
		"UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE name = 'title-norm'",
		"UPDATE OR IGNORE sync_backfill_checkpoints SET state = 'activated', owner_epoch = 9 WHERE name = 'title-norm'",
	} {
		result, err := p.db.ExecContext(testContext(t), statement)
		if err != nil {
			t.Errorf("%s: %v, want it skipped", statement, err)
			continue
		}
		if changed, _ := result.RowsAffected(); changed != 0 {
			t.Errorf("%s: changed %d rows, want none, so that a compare-and-swap answers false", statement, changed)
		}
	}
	same(t, "checkpoints", fmt.Sprint(p.rows("SELECT * FROM sync_backfill_checkpoints ORDER BY name")), before)
}

func TestACheckpointMovesForward(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	advance := "UPDATE sync_backfill_checkpoints SET watermark = 41 WHERE name = 'title-norm' AND owner_epoch = 3"
	watermark := "SELECT watermark FROM sync_backfill_checkpoints WHERE name = 'title-norm'"
	p.exec(advance)
	same(t, "a watermark without a claim of ours", p.number(watermark), 40)
	p.exec(`INSERT INTO sync_backfill_progress(checkpoint, kind, partition, owner_epoch, updated_at_ms) VALUES ('title-norm', 'claim', '*', 3, 0)`)
	p.exec(advance)
	same(t, "a watermark under a claim of ours", p.number(watermark), 41)
	p.exec("UPDATE sync_backfill_checkpoints SET owner_epoch = 4, watermark = 0 WHERE name = 'title-norm'")
	same(t, "a new claim may start lower", p.number(watermark), 0)
	// A checkpoint without a definition is its own program's to move and to activate, and then it is done.
	p.exec("UPDATE sync_backfill_checkpoints SET schema_version = 8 WHERE name = 'foreign'")
	p.exec("UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE name = 'foreign'")
	p.exec("UPDATE sync_backfill_checkpoints SET watermark = 99, owner_epoch = 9 WHERE name = 'foreign'")
	same(t, "activated", fmt.Sprint(p.rows("SELECT schema_version, state, watermark, owner_epoch FROM sync_backfill_checkpoints WHERE name = 'foreign'")),
		"[[8 activated 40 3]]")
}

func TestACheckpointIsActivatedOnlyBesideItsProof(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	proof := func(partition string, epoch int) {
		p.exec(`INSERT INTO sync_backfill_progress(checkpoint, kind, partition, owner_epoch, updated_at_ms)
			VALUES ('title-norm', 'proof', ?, ?, 0)`, partition, epoch)
	}
	activate := "UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE name = 'title-norm'"
	state := "SELECT state FROM sync_backfill_checkpoints WHERE name = 'title-norm'"
	proof("other", 3)
	p.exec(activate)
	same(t, "state beside another partition's proof", p.text(state), "backfilling")
	proof("*", 2)
	p.exec(activate)
	same(t, "state beside another claim's proof", p.text(state), "backfilling")
	p.exec("DELETE FROM sync_backfill_progress")
	proof("*", 3)
	p.exec(activate)
	same(t, "state beside its proof", p.text(state), "activated")
}

func TestACheckpointIsNotReplacedDeletedOrBornActivated(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	insert := `INTO sync_backfill_checkpoints(partition, name, schema_version, state, watermark, owner_epoch, updated_at_ms) VALUES `
	for _, statement := range []string{
		"DELETE FROM sync_backfill_checkpoints",
		"DELETE FROM sync_backfill_checkpoints WHERE name = 'title-norm'",
		"INSERT OR REPLACE " + insert + "('*', 'title-norm', 7, 'declared', 0, 0, 0)",
		"REPLACE " + insert + "('p', 'foreign', 7, 'activated', 0, 0, 0)",
		"INSERT " + insert + "('p', 'title-norm', 7, 'activated', 0, 0, 0)",
		"INSERT " + insert + "('p', 'more', 7, 'done', 0, 0, 0)",
		"INSERT " + insert + "('p', 'more', 7, 'declared', 0, 'x', 0)",
	} {
		p.refused(checkpointGuard, statement)
	}
	// How the sync protocol declares: a row that is there stays.
	p.exec("INSERT " + insert + "('*', 'title-norm', 7, 'declared', 0, 0, 0) ON CONFLICT(partition, name) DO NOTHING")
	p.exec("INSERT " + insert + "('p', 'more', 7, 'declared', 0, 0, 0)")
	same(t, "rows", p.number("SELECT count(*) FROM sync_backfill_checkpoints"), 3)
}

func TestADefinitionIsNotChangedReplacedOrDeleted(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	before := fmt.Sprint(p.rows("SELECT rowid, * FROM sync_backfill_definitions"))
	insert := "INTO sync_backfill_definitions(rowid, name, version, hash, definition, settings) SELECT "
	for _, statement := range []string{
		"DELETE FROM sync_backfill_definitions",
		"DELETE FROM sync_backfill_definitions WHERE name = 'title-norm'",
		"UPDATE sync_backfill_definitions SET name = 'another'",
		"UPDATE OR REPLACE sync_backfill_definitions SET name = 'another'",
		"UPDATE sync_backfill_definitions SET version = 6",
		"UPDATE sync_backfill_definitions SET hash = ''",
		"UPDATE OR IGNORE sync_backfill_definitions SET definition = '{}'",
		"UPDATE sync_backfill_definitions SET rowid = rowid + 1",
		"REPLACE INTO sync_backfill_definitions SELECT name, version, hash, '{}', settings FROM sync_backfill_definitions",
		"INSERT OR REPLACE INTO sync_backfill_definitions SELECT * FROM sync_backfill_definitions",
		"INSERT OR REPLACE " + insert + "rowid, 'another', version, hash, definition, settings FROM sync_backfill_definitions",
		`INSERT INTO sync_backfill_definitions SELECT name, version, '', definition, settings FROM sync_backfill_definitions WHERE true
			ON CONFLICT(name) DO UPDATE SET hash = excluded.hash`,
	} {
		p.refused(checkpointGuard, statement)
	}
	p.exec("INSERT INTO sync_backfill_definitions SELECT * FROM sync_backfill_definitions WHERE true ON CONFLICT DO NOTHING")
	same(t, "definitions", fmt.Sprint(p.rows("SELECT rowid, * FROM sync_backfill_definitions")), before)
	p.exec("UPDATE sync_backfill_definitions SET settings = '{\"batchRows\":7}'")
	p.exec("UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE name = 'title-norm'")
	same(t, "state", p.text("SELECT state FROM sync_backfill_checkpoints WHERE name = 'title-norm'"), "backfilling")
	p.exec("INSERT INTO sync_backfill_definitions VALUES ('another', 7, '', '{}', '{}')")
	same(t, "definitions", p.number("SELECT count(*) FROM sync_backfill_definitions"), 2)
}

func TestAnAbandonedCheckpointGoesAndItsEpochsAreNotUsedAgain(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	p.exec(`INSERT INTO sync_backfill_progress(checkpoint, kind, partition, owner_epoch, updated_at_ms)
		VALUES ('foreign', 'abandoned', '*', 0, 0), ('foreign', 'floor', 'p', 3, 0), ('title-norm', 'floor', '*', 8, 0)`)
	p.exec("DELETE FROM sync_backfill_checkpoints WHERE name = 'foreign'")
	insert := `INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, owner_epoch, updated_at_ms) VALUES `
	p.exec(insert + "('p', 'foreign', 7, 'declared', 1, 0)")
	p.exec(insert + "('q', 'title-norm', 7, 'declared', 0, 0)")
	p.exec(insert + "('q', 'foreign', 7, 'declared', 5, 0)")
	same(t, "epochs", fmt.Sprint(p.rows("SELECT name, partition, owner_epoch FROM sync_backfill_checkpoints ORDER BY name, partition")),
		"[[foreign p 3] [foreign q 5] [title-norm * 3] [title-norm q 8]]")
}

func TestTheLogOfACapturedPartitionGoesOnlyUpToItsHorizon(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	for _, partition := range []string{"capture:todos/=a", "plain"} {
		p.exec("INSERT INTO sync_partitions VALUES (?, 0, 1)", partition)
		for seq := int64(1); seq <= 2; seq++ {
			if err := p.commit(partition, seq, 7); err != nil {
				t.Fatal(err)
			}
			p.exec("INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes) VALUES (?, ?, 0, 'todos', '1', 1, '{}')", partition, seq)
		}
	}
	for _, table := range []string{"sync_commits", "sync_changes"} {
		p.refused(partitionGuard, "DELETE FROM "+table)
		p.exec("DELETE FROM " + table + " WHERE commit_seq = 1")
		p.exec("DELETE FROM " + table + " WHERE partition = 'plain'")
		same(t, table, p.number("SELECT count(*) FROM "+table), 1)
	}
}

func TestGuardsHoldWithRecursiveTriggersToo(t *testing.T) {
	t.Parallel()
	_, p := guardedFile(t)
	p.db.SetMaxOpenConns(1)
	p.exec("PRAGMA recursive_triggers = ON")
	p.refused(markerGuard, "REPLACE INTO sync_schema_meta VALUES (1, 6, '{}')")
	p.refused(fenceGuard, "REPLACE INTO sync_writer_fence VALUES ('*', 6)")
	p.refused(checkpointGuard, `REPLACE INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
		VALUES ('*', 'title-norm', 7, 'declared', 0)`)
	p.exec("UPDATE sync_partitions SET max_commit_seq = 1, horizon_seq = 1")
	same(t, "partition", fmt.Sprint(p.rows("SELECT * FROM sync_partitions")), "[[p 100 50]]")
}
