package storagetest

import (
	"fmt"
	"slices"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runScan(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a scan fills every row, in batches of the size the settings say", scanFills},
		{"a scan of listed partitions touches their rows only", scanListed},
		{"a statement derives another table", scanStatement},
		{"an empty table is done at once", scanEmpty},
		{"workers share the ranges, each range has one owner", scanShares},
		{"a lease that was taken again leaves no write behind", scanLostLease},
		{"a claim that was taken again leaves no write behind", scanLostClaim},
		{"an abandoned checkpoint leaves no write behind", scanAbandoned},
		{"a restarted worker goes on at the cursor", scanResumes},
		{"a later claim keeps what was scanned, a restart does not", scanReclaim},
		{"keys of every kind are gone over once and in full", scanKeys},
		{"the SQL of a backfill that fails names the key when asked for one row", scanNamesKey},
		{"settings are read again with every batch", scanSettings},
		{"a row that the program holds is passed over and comes again", scanHeldRow},
		{"Syncular rows are gone over by partition and row", scanSyncular},
	})
}

func (f *fixture) wantLost(err error) {
	f.Helper()
	f.wantCode(err, storage.CodeOwnershipLost)
}

// filling brings the database to version 2 with rows in partition a and b and a declared title-norm, ten rows a batch.
func (f *fixture) filling(rows int64, partitions ...string) {
	f.Helper()
	f.apply(version1())
	f.fill("a", 1, rows)
	f.fill("b", 1_000_000, rows)
	f.apply(version2(titleNorm(2, partitions...)))
	f.must(f.store.WriteSettings(f.ctx, "title-norm", storage.Settings{BatchRows: 10}), "change the settings")
}

func scanFills(f *fixture) {
	f.filling(35)
	claim := f.claimAll("title-norm")
	var rows, batches int64
	for _, lease := range f.take(claim, 0, 1) {
		for !lease.Done {
			batch, err := f.store.ScanBatch(f.ctx, claim, lease)
			f.must(err, "scan a batch")
			if batch.Rows > 10 {
				f.Errorf("a batch had %d rows, want 10 at most", batch.Rows)
			}
			rows, batches, lease.Done = rows+batch.Rows, batches+1, batch.Done
		}
	}
	same(f, "rows", rows, 70)
	if batches < 7 {
		f.Errorf("%d batches of 10 rows did 70", batches)
	}
	f.derived()
	for _, lease := range f.take(claim, 0, 1) {
		same(f, "done", lease.Done, true)
	}
}

func scanListed(f *fixture) {
	f.filling(15, "a")
	claim := f.claimAll("title-norm")
	same(f, "rows", f.scan(claim), 15)
	same(f, "filled in a", f.number("SELECT count(*) FROM todos WHERE tenant = 'a' AND title_norm IS NOT NULL"), 15)
	same(f, "filled in b", f.number("SELECT count(*) FROM todos WHERE tenant = 'b' AND title_norm IS NOT NULL"), 0)
}

// version2Words is version 2 with the table words and a checkpoint that derives it.
func version2Words(partitions ...string) storage.Target {
	target := version2(todoWords(2, partitions...))
	target.Tables = append(target.Tables, words())
	return target
}

func scanStatement(f *fixture) {
	f.apply(version1())
	f.fill("a", 1, 25)
	f.apply(version2Words())
	f.must(f.store.WriteSettings(f.ctx, "todo-words", storage.Settings{BatchRows: 7}), "change the settings")
	claim := f.claimAll("todo-words")
	same(f, "rows", f.scan(claim), 25)
	f.derivedWords()
	same(f, "outcome", f.finish(claim, "*").Outcome, storage.OutcomeActivated)
}

func scanEmpty(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	claim := f.claimAll("title-norm")
	same(f, "rows", f.scan(claim), 0)
	same(f, "outcome", f.finish(claim, "*").Outcome, storage.OutcomeActivated)
	f.wantGate(2, storage.GateOpen)
}

func scanShares(f *fixture) {
	f.filling(5, "a", "b")
	claim := f.claimAll("title-norm")
	all := map[int]bool{}
	for _, lease := range f.take(claim, 0, 1) {
		all[lease.Range] = true
	}
	shared := map[int]bool{}
	for index := range 3 {
		for _, lease := range f.take(claim, index, 3) {
			if shared[lease.Range] || lease.Range%3 != index {
				f.Errorf("range %d is in the share %d of 3", lease.Range, index)
			}
			shared[lease.Range] = true
		}
	}
	same(f, "ranges of all shares", len(shared), len(all))
	if len(all) < 2 {
		f.Errorf("two partitions have %d ranges", len(all))
	}
}

func scanLostLease(f *fixture) {
	f.filling(15, "a")
	claim := f.claimAll("title-norm")
	older := f.take(claim, 0, 1)
	_, err := f.store.ScanBatch(f.ctx, claim, older[0])
	f.must(err, "scan a batch")
	newer := f.take(claim, 0, 1)
	filled := f.filled()
	_, err = f.store.ScanBatch(f.ctx, claim, older[0])
	f.wantLost(err)
	same(f, "filled after the refused batch", f.filled(), filled)
	for _, lease := range newer {
		f.scanRange(claim, lease)
	}
	f.derivedIn("a")
}

// derivedIn compares the rows of one partition.
func (f *fixture) derivedIn(partition string) {
	f.Helper()
	same(f, "wrong rows in "+partition, f.number(wrongTitles+" AND tenant = $1", partition), 0)
}

func scanLostClaim(f *fixture) {
	f.filling(15, "a")
	older := f.claimAll("title-norm")
	leases := f.take(older, 0, 1)
	newer := f.claimAll("title-norm")
	filled := f.filled()
	_, err := f.store.ScanBatch(f.ctx, older, leases[0])
	f.wantLost(err)
	_, err = f.store.TakeRanges(f.ctx, older, 0, 1)
	f.wantLost(err)
	_, err = f.store.TailBatch(f.ctx, older, "a", 10)
	f.wantLost(err)
	_, err = f.store.RetryLeftovers(f.ctx, older, "a", 10)
	f.wantLost(err)
	same(f, "filled after the refused batches", f.filled(), filled)
	f.scan(newer)
	report, err := f.store.Activate(f.ctx, older, storage.Activation{Partition: "a"})
	if err == nil && report.Outcome != storage.OutcomeLost || err != nil && storage.CodeOf(err) != storage.CodeOwnershipLost {
		f.Errorf("the lost claim activates: %+v, %v", report, err)
	}
	same(f, "outcome of the owner", f.finish(newer, "a").Outcome, storage.OutcomeActivated)
}

func scanAbandoned(f *fixture) {
	f.filling(15, "a")
	claim := f.claimAll("title-norm")
	leases := f.take(claim, 0, 1)
	_, err := f.store.AbandonCheckpoint(f.ctx, "title-norm", 2, "alice", "a mistake")
	f.must(err, "abandon")
	_, err = f.store.ScanBatch(f.ctx, claim, leases[0])
	f.wantLost(err)
	same(f, "filled", f.filled(), 0)
}

func scanResumes(f *fixture) {
	f.filling(25, "a")
	claim := f.claimAll("title-norm")
	lease := f.take(claim, 0, 1)[0]
	for range 2 {
		_, err := f.store.ScanBatch(f.ctx, claim, lease)
		f.must(err, "scan a batch")
	}
	same(f, "filled by the worker that died", f.filled(), 20)
	again := f.take(claim, 0, 1)[0]
	same(f, "rows done of the range", again.Rows, 20)
	same(f, "rows of the worker that goes on", f.scanRange(claim, again), 5)
	f.derivedIn("a")
}

func scanReclaim(f *fixture) {
	f.filling(25, "a")
	claim := f.claimAll("title-norm")
	_, err := f.store.ScanBatch(f.ctx, claim, f.take(claim, 0, 1)[0])
	f.must(err, "scan a batch")
	f.write("a", 2, 5000, "Logged after the claim")
	later := f.claimAll("title-norm")
	before, _ := claim.Row("a")
	kept, _ := later.Row("a")
	same(f, "watermark of the later claim", kept.Watermark, before.Watermark)
	if rows := f.scan(later); rows < 15 || rows > 16 { // the row that came after the claim may lie in a range or not
		f.Errorf("the later claim scanned %d rows, want what was left", rows)
	}
	restarted, err := f.store.ClaimAll(f.ctx, "title-norm", true)
	f.must(err, "begin again")
	anew, _ := restarted.Row("a")
	same(f, "watermark of the restart", anew.Watermark, 1)
	same(f, "rows of the restart", f.scan(restarted), 26)
	progress, err := f.store.ReadProgress(f.ctx, "title-norm")
	f.must(err, "read the progress")
	same(f, "restarts", progress.Restarts, 1)
	same(f, "outcome", f.finish(restarted, "a").Outcome, storage.OutcomeActivated)
}

// scanKeys goes over tables whose keys sort in ways of their own.
func scanKeys(f *fixture) {
	for _, tt := range []struct {
		name    string
		columns []storage.Column
		key     []string
		rows    [][]any
	}{
		{"texts", []storage.Column{{Name: "k", Type: storage.TypeString}}, []string{"k"}, [][]any{
			{""}, {" "}, {"a"}, {"A"}, {"ä"}, {"aa"}, {"Z"}, {"10"}, {"9"}, {"'"}, {`["x"]`}, {"\n"}, {"日本"},
		}},
		{"integers", []storage.Column{{Name: "k", Type: storage.TypeInteger}}, []string{"k"}, [][]any{
			{int64(-1 << 63)}, {int64(-10)}, {int64(-9)}, {int64(0)}, {int64(9)}, {int64(10)}, {int64(1<<63 - 1)},
		}},
		{"pairs", []storage.Column{{Name: "k", Type: storage.TypeString}, {Name: "n", Type: storage.TypeInteger}}, []string{"k", "n"}, [][]any{
			{"a", int64(10)}, {"a", int64(9)}, {"a", int64(-1)}, {"b", int64(0)}, {"", int64(5)}, {`"]`, int64(5)}, {"B", int64(1)},
		}},
		{"floats", []storage.Column{{Name: "k", Type: storage.TypeFloat}}, []string{"k"}, [][]any{
			{-1.5}, {0.1}, {1e300}, {-1e-300}, {2.0}, {10.0},
		}},
		{"bytes", []storage.Column{{Name: "k", Type: storage.TypeBytes}}, []string{"k"}, [][]any{
			{[]byte{}}, {[]byte{0}}, {[]byte{255}}, {[]byte{1, 0}}, {[]byte("text")},
		}},
	} {
		f.Run(tt.name, func(t *testing.T) { f.another(t).scanKeyed(tt.columns, tt.key, tt.rows) })
	}
}

func (f *fixture) scanKeyed(columns []storage.Column, key []string, rows [][]any) {
	f.Helper()
	columns = append(columns, nullable("seen", storage.TypeInteger))
	table := storage.Table{Name: "keyed", Layout: storage.Plain, Columns: columns, PrimaryKey: key}
	checkpoint := storage.Checkpoint{
		Name: "seen", Version: 2, Sources: []storage.Source{{Table: "keyed", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "keyed", Set: map[string]string{"seen": "coalesce(seen, 0) + 1"}}},
	}
	f.apply(storage.Target{Version: 1, Tables: []storage.Table{table}, Owner: owner})
	for _, row := range rows {
		names, places := slices.Clone(key), make([]string, len(key))
		for i := range key {
			places[i] = fmt.Sprintf("$%d", i+1)
		}
		f.exec(fmt.Sprintf("INSERT INTO keyed (%s) VALUES (%s)", join(names), join(places)), row...)
	}
	f.apply(storage.Target{Version: 2, Tables: []storage.Table{table}, Checkpoints: []storage.Checkpoint{checkpoint}, Owner: owner})
	f.must(f.store.WriteSettings(f.ctx, "seen", storage.Settings{BatchRows: 2}), "change the settings")
	claim := f.claimAll("seen")
	same(f, "rows", f.scan(claim), int64(len(rows)))
	same(f, "rows seen once", f.number("SELECT count(*) FROM keyed WHERE seen = 1"), int64(len(rows)))
	same(f, "outcome", f.finish(claim, "*").Outcome, storage.OutcomeActivated)
}

func join(names []string) string {
	text := ""
	for i, name := range names {
		if i > 0 {
			text += ", "
		}
		text += name
	}
	return text
}

func scanNamesKey(f *fixture) {
	f.apply(version1())
	f.fill("a", 1, 20)
	f.exec("UPDATE todos SET title = '{\"a\": 1}' WHERE id <> 7")
	checkpoint := titleNorm(2)
	checkpoint.Verify = nil
	parse := "json(title)"
	if f.db.Dialect == storage.PostgreSQL {
		parse = "(title::json)::text"
	}
	checkpoint.Backfill.Update.Set = map[string]string{"title_norm": parse}
	f.apply(version2(checkpoint))
	claim := f.claimAll("title-norm")
	lease := f.take(claim, 0, 1)[0]
	_, err := f.store.ScanBatch(f.ctx, claim, lease)
	f.wantCode(err, storage.CodeInvalidSQL)
	same(f, "filled by the batch that failed", f.filled(), 0)
	lease.Limit = 1
	for range 6 {
		batch, err := f.store.ScanBatch(f.ctx, claim, lease)
		f.must(err, "scan one row")
		same(f, "rows of a batch limited to one", batch.Rows, 1)
	}
	_, err = f.store.ScanBatch(f.ctx, claim, lease)
	f.wantCode(err, storage.CodeInvalidSQL)
	f.wantMessage(err, "title-norm", "7")
	same(f, "filled", f.filled(), 6)
}

func scanSettings(f *fixture) {
	f.filling(30, "a")
	claim := f.claimAll("title-norm")
	lease := f.take(claim, 0, 1)[0]
	for _, size := range []int{3, 5} {
		f.must(f.store.WriteSettings(f.ctx, "title-norm", storage.Settings{BatchRows: size, MaxRowsPerSecond: 100 * size}), "change the settings")
		batch, err := f.store.ScanBatch(f.ctx, claim, lease)
		f.must(err, "scan a batch")
		same(f, "rows", batch.Rows, int64(size))
		same(f, "rate", batch.Settings.MaxRowsPerSecond, 100*size)
	}
}

func scanHeldRow(f *fixture) {
	if !f.db.Capabilities.RowLocks {
		f.wantOneWriter()
		return
	}
	f.filling(8, "a")
	claim := f.claimAll("title-norm")
	holder, err := f.db.OpenStore(f.T).Begin(f.ctx, "a", 2)
	f.must(err, "begin")
	defer func() { f.must(holder.Rollback(f.ctx), "roll back") }()
	_, err = holder.Exec(f.ctx, "UPDATE todos SET title = 'Held' WHERE id = 3")
	f.must(err, "hold a row")
	lease := f.take(claim, 0, 1)[0]
	batch, err := f.store.ScanBatch(f.ctx, claim, lease)
	f.must(err, "scan a batch")
	same(f, "rows", batch.Rows, 7)
	same(f, "skipped", batch.Skipped, 1)
	same(f, "leftovers", batch.Leftovers, 1)
	f.scanRange(claim, lease)
	batch, err = f.store.RetryLeftovers(f.ctx, claim, "a", 10)
	f.must(err, "retry leftovers")
	same(f, "leftovers while it is held", batch.Leftovers, 1)
	same(f, "done while it is held", batch.Done, false)
	f.must(holder.Commit(f.ctx), "commit")
	batch, err = f.store.RetryLeftovers(f.ctx, claim, "a", 10)
	f.must(err, "retry leftovers")
	same(f, "rows once it is free", batch.Rows, 1)
	same(f, "done once it is free", batch.Done, true)
	f.derivedIn("a")
}

func scanSyncular(f *fixture) {
	f.apply(version1())
	for i := range 12 {
		f.putNote(1, "a", fmt.Sprint(i), "Title", payload(1), notes())
		f.putNote(1, "b", fmt.Sprint(i), "Title", payload(1), notes())
	}
	index := storage.Table{
		Name: "note_words", Layout: storage.Plain, PrimaryKey: []string{"partition", "id"},
		Columns: []storage.Column{
			{Name: "partition", Type: storage.TypeString}, {Name: "id", Type: storage.TypeString}, {Name: "word", Type: storage.TypeString},
		},
		Partition: storage.Partition{Column: "partition"},
	}
	checkpoint := storage.Checkpoint{
		Name: "note-words", Version: 2, Partitions: []string{"a"},
		Sources: []storage.Source{{Table: "notes", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Statement: &storage.Statement{
			Table: "notes",
			Apply: `INSERT INTO note_words (partition, id, word)
				SELECT n._sync_partition, n._sync_row_id, lower(n.title)
				  FROM notes n JOIN batch ON batch._sync_partition = n._sync_partition AND batch._sync_row_id = n._sync_row_id WHERE true
				ON CONFLICT (partition, id) DO UPDATE SET word = excluded.word`,
			Remove: `DELETE FROM note_words WHERE EXISTS (SELECT 1 FROM batch WHERE batch._sync_partition = note_words.partition AND batch._sync_row_id = note_words.id)`,
		}},
	}
	f.apply(storage.Target{Version: 2, Tables: []storage.Table{todos(), notes(), index}, Checkpoints: []storage.Checkpoint{checkpoint}, Owner: owner})
	claim := f.claimAll("note-words")
	same(f, "rows", f.scan(claim), 12)
	f.putNote(2, "a", "3", "Changed", payload(1), notes())
	f.putNote(2, "a", "new", "New", payload(1), notes())
	f.putNote(2, "b", "other", "Other", payload(1), notes())
	same(f, "outcome", f.finish(claim, "a").Outcome, storage.OutcomeActivated)
	same(f, "words of a", f.number("SELECT count(*) FROM note_words WHERE partition = 'a'"), 13)
	same(f, "words of b", f.number("SELECT count(*) FROM note_words WHERE partition = 'b'"), 0)
	same(f, "changed word", f.text("SELECT word FROM note_words WHERE partition = 'a' AND id = '3'"), "changed")
}
