package sqlite

import (
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// largeTodos has many todos: those of tenant a lie close together, those of b are few and far between.
func largeTodos(t testing.TB, rows int, partitions ...string) *backfillTest {
	t.Helper()
	return newBackfill(t, []string{
		"CREATE TABLE todos(id INTEGER PRIMARY KEY, tenant TEXT, title TEXT)",
		manyRows("todos", "id, tenant, title", "n * 10, CASE WHEN n % 5000 = 4999 THEN 'b' ELSE 'a' END, 'x'", rows),
		"INSERT INTO todos(id, title) VALUES (-1, 'of no tenant')",
	}, []storage.Table{todosTable(nullableColumn("filled", storage.TypeInteger))}, counting("todos", partitions...))
}

func TestLargeTableIsCutIntoRangesThatCoverEveryKeyOnce(t *testing.T) {
	const rows = 130_000
	b := largeTodos(t, rows)
	b.begin()
	leases := b.take(0, 1)
	same(t, "ranges", len(leases), 3)
	same(t, "ranges of the second of two workers", len(b.take(1, 2)), 1)
	b.write("p", "todos", []string{"5"}, "INSERT INTO todos(id, tenant, title) VALUES (5, 'a', 'x'), (99999999, 'a', 'x')") // as a program does meanwhile
	if err := b.store.WriteSettings(testContext(t), "fill", storage.Settings{BatchRows: 10_000}); err != nil {
		t.Fatal(err)
	}
	_, scanned := b.scan()
	same(t, "rows scanned", scanned, rows+3)
	same(t, "rows filled once", b.program.number("SELECT count(*) FROM todos WHERE filled = 1"), rows+3)
	progress, err := b.store.ReadProgress(testContext(t), "fill")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "estimated rows", progress.RowsEstimated, rows+3) // not fewer than were done
	same(t, "rows done", progress.RowsDone, rows+3)
	same(t, "ranges done", progress.RangesDone, 3)
}

// A partition whose rows lie far apart is scanned in batches that look at a bounded number of rows, since the program waits meanwhile.
func TestSparsePartitionIsScannedInBoundedBatches(t *testing.T) {
	const rows = 60_000
	b := largeTodos(t, rows, "a", "b")
	if err := b.store.WriteSettings(testContext(t), "fill", storage.Settings{BatchRows: 1000}); err != nil {
		t.Fatal(err)
	}
	b.begin()
	counts, batches := map[string]int64{}, 0
	for _, lease := range b.take(0, 1) {
		for !lease.Done {
			batch, err := b.store.ScanBatch(testContext(t), b.claim, lease)
			if err != nil {
				t.Fatal(err)
			}
			counts[lease.Partition] += batch.Rows
			lease.Done = batch.Done
			if lease.Partition == "b" {
				batches++
			}
		}
	}
	same(t, "rows of a", counts["a"], rows-rows/5000)
	same(t, "rows of b", counts["b"], rows/5000)
	same(t, "batches of b", batches, rows/(scanWindow*1000)+1)
	same(t, "rows filled once", b.program.number("SELECT count(*) FROM todos WHERE filled = 1"), rows)
	same(t, "rows of no tenant that were filled", b.program.number("SELECT count(*) FROM todos WHERE tenant IS NULL AND filled IS NOT NULL"), 0)
	for _, partition := range []string{"a", "b"} {
		same(t, "outcome of "+partition, b.activate(partition).Outcome, storage.OutcomeActivated)
	}
}

// A partition key is exact, also where the column that holds it compares without regard to case.
func TestPartitionIsTheExactTextOfItsColumn(t *testing.T) {
	b := newBackfill(t, []string{
		"CREATE TABLE todos(id INTEGER PRIMARY KEY, tenant TEXT COLLATE NOCASE, title TEXT)",
		"INSERT INTO todos(id, tenant) VALUES (1, 'a'), (2, 'A'), (3, 'a '), (4, NULL), (5, 'a')",
	}, []storage.Table{todosTable(nullableColumn("filled", storage.TypeInteger))}, counting("todos", "a"))
	b.begin()
	_, rows := b.finish("a")
	same(t, "rows", rows, 2)
	same(t, "filled", b.program.text("SELECT group_concat(id) FROM todos WHERE filled = 1"), "1,5")
}

func TestSyncularPartitionIsOneStretchOfTheKey(t *testing.T) {
	table := storage.Table{Name: "notes", Layout: storage.Syncular, Columns: []storage.Column{{Name: "title", Type: storage.TypeString, Nullable: true}}}
	checkpoint := counting("notes", "b", "a")
	checkpoint.Backfill = storage.Backfill{Statement: &storage.Statement{
		Table: "notes", Apply: "INSERT INTO seen SELECT _sync_partition, _sync_row_id FROM batch",
	}}
	checkpoint.Verify, checkpoint.Version = nil, 2
	b := &backfillTest{TB: t, path: newFile(t)}
	b.store, b.program = openStore(t, b.path), openProgram(t, b.path)
	target := storage.Target{Version: 1, Tables: []storage.Table{table}, Owner: clinicOwner}
	apply(t, b.store, target)
	b.program.exec("CREATE TABLE seen(p, r)")
	b.program.exec(manyRows("notes", "_sync_partition, _sync_row_id, _sync_server_version, _sync_scopes, _sync_payload",
		"CASE n % 4 WHEN 0 THEN 'a' WHEN 1 THEN 'b' WHEN 2 THEN 'a ' ELSE 'A' END, n, 1, '{}', x'01'", 400))
	target.Version, target.Checkpoints = 2, []storage.Checkpoint{checkpoint}
	apply(t, b.store, target)
	if err := b.store.WriteSettings(testContext(t), "fill", storage.Settings{BatchRows: 30}); err != nil {
		t.Fatal(err)
	}
	b.begin()
	_, rows := b.scan()
	same(t, "rows", rows, 200)
	same(t, "rows seen", b.program.number("SELECT count(DISTINCT r) FROM seen WHERE p IN ('a', 'b')"), 200)
	b.writeAs(2, "b", "notes", []string{"1", "gone"}, "")
	same(t, "rows of the tail of b", b.tail("b"), 1)
	same(t, "seen again", b.program.number("SELECT count(*) FROM seen WHERE p = 'b' AND r = '1'"), 2)
	same(t, "outcome of a", b.activate("a").Outcome, storage.OutcomeActivated)
	same(t, "outcome of b", b.activate("b").Outcome, storage.OutcomeActivated)
}

func TestShareOfNobodyIsRefused(t *testing.T) {
	b := todosBackfill(t, 4)
	b.begin()
	for _, share := range [][2]int{{0, 0}, {-1, 2}, {2, 2}, {1, -1}} {
		_, err := b.store.TakeRanges(testContext(t), b.claim, share[0], share[1])
		wantCode(t, err, storage.CodeInvalidSpec)
		wantText(t, err, fmt.Sprint(share[0]))
	}
}
