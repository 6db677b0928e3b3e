package storagetest

import (
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runTail(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"changes after the claim are applied and the position moves", tailApplies},
		{"rows that are gone are removed by the statement that says so", tailRemoves},
		{"a limit is kept, whole commits only", tailLimit},
		{"a checkpoint of all partitions tails each, new ones too", tailAll},
		{"changes of another source are mapped to the rows they concern", tailMapped},
		{"a log that cannot answer is unverifiable and changes nothing, until the pass begins again", tailUnverifiable},
		{"a tail that lost its claim leaves no write behind", tailLost},
		{"a row id that is no key of the table is unverifiable, never passed over", tailForeignKey},
	})
}

func (f *fixture) tailOnce(claim storage.Claim, partition string, limit int) storage.Batch {
	f.Helper()
	batch, err := f.store.TailBatch(f.ctx, claim, partition, limit)
	f.must(err, "tail a batch")
	return batch
}

func tailApplies(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.write("a", 2, 3, "CHANGED")
	f.write("a", 2, 100, "NEW")
	f.write("a", 2, 3, "CHANGED AGAIN")
	f.write("b", 2, 1_000_001, "OF ANOTHER PARTITION")
	batch := f.tailOnce(claim, "a", 100)
	same(f, "rows", batch.Rows, 2)
	f.derivedIn("a")
	f.tail(claim, "a")
	same(f, "watermark", f.checkpoint("a", "title-norm").Watermark, 3)
	same(f, "rows when nothing is left", f.tailOnce(claim, "a", 100).Rows, 0)
	same(f, "done when nothing is left", f.tailOnce(claim, "a", 100).Done, true)
	same(f, "outcome", f.finish(claim, "a").Outcome, storage.OutcomeActivated)
}

func tailRemoves(f *fixture) {
	f.apply(version1())
	f.fill("a", 1, 5)
	f.apply(version2Words())
	claim := f.claimAll("todo-words")
	f.scan(claim)
	f.derivedWords()
	f.remove("a", 2, 2)
	f.write("a", 2, 50, "Came and went")
	f.remove("a", 2, 50)
	f.write("a", 2, 3, "Stayed")
	f.tail(claim, "*")
	f.derivedWords()
	same(f, "words", f.number("SELECT count(*) FROM words"), 4)
	same(f, "outcome", f.finish(claim, "*").Outcome, storage.OutcomeActivated)
}

func tailLimit(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	tx := f.begin("a", 2)
	var changes []storage.Change
	for id := range int64(6) {
		_, err := tx.Exec(f.ctx, `INSERT INTO todos (id, tenant, title) VALUES ($1, 'a', 'ONE COMMIT')
			ON CONFLICT (id) DO UPDATE SET title = excluded.title`, id)
		f.must(err, "write")
		changes = append(changes, storage.Change{Table: "todos", RowID: fmt.Sprint(id), Op: storage.OpUpsert})
	}
	_, err := tx.AppendCommit(f.ctx, storage.Commit{Changes: changes})
	f.must(err, "append a commit of six changes")
	f.must(tx.Commit(f.ctx), "commit")
	for id := int64(10); id < 14; id++ {
		f.write("a", 2, id, "ITS OWN COMMIT")
	}
	batch := f.tailOnce(claim, "a", 2)
	first := f.checkpoint("a", "title-norm").Watermark
	if batch.Done || first < 1 || first > 3 || batch.Rows != 5+first {
		f.Errorf("a batch over a commit that is larger than its limit had %d rows up to commit %d, done %t", batch.Rows, first, batch.Done)
	}
	batch = f.tailOnce(claim, "a", 2)
	same(f, "rows of the commits within the limit", batch.Rows, 2)
	same(f, "watermark", f.checkpoint("a", "title-norm").Watermark, first+2)
	f.tail(claim, "a")
	f.derivedIn("a")
}

func tailAll(f *fixture) {
	f.filling(5)
	f.write("a", 2, 200, "BEFORE THE CLAIM")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.write("a", 2, 1, "CHANGED")
	f.write("b", 2, 1_000_001, "CHANGED")
	f.write("new", 2, 300, "OF A PARTITION THAT IS NEW")
	f.tail(claim, "*")
	f.derived()
	f.write("new", 2, 301, "AND AGAIN")
	report := f.finish(claim, "*")
	same(f, "outcome", report.Outcome, storage.OutcomeActivated)
	f.derived()
	f.wantGate(2, storage.GateOpen)
}

// tailMapped fills todos from tenants: a change of a tenant concerns all its todos.
func tailMapped(f *fixture) {
	tenants := storage.Table{
		Name: "tenants", Layout: storage.Plain, PrimaryKey: []string{"name"},
		Columns:   []storage.Column{{Name: "name", Type: storage.TypeString}, {Name: "label", Type: storage.TypeString}},
		Partition: storage.Partition{Column: "name"},
	}
	checkpoint := storage.Checkpoint{
		Name: "label", Version: 2, Partitions: []string{"a"},
		Sources: []storage.Source{
			{Table: "todos", Changes: storage.CommitLog},
			{Table: "tenants", Changes: storage.CommitLog, Keys: "SELECT todos.id FROM todos JOIN changed ON changed.name = todos.tenant"},
		},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{
			"title_norm": "(SELECT label FROM tenants WHERE tenants.name = todos.tenant)",
		}}},
		Verify: []storage.Verify{{Name: "label", Query: `SELECT todos.id FROM todos JOIN tenants ON tenants.name = todos.tenant
			WHERE title_norm IS NULL OR title_norm <> label`}},
	}
	first := version1()
	first.Tables = append(first.Tables, tenants)
	f.apply(first)
	f.fill("a", 1, 12)
	f.exec("INSERT INTO tenants (name, label) VALUES ('a', 'one')")
	second := version2(checkpoint)
	second.Tables = append(second.Tables, tenants)
	f.apply(second)
	claim := f.claimAll("label")
	f.scan(claim)
	same(f, "labelled one", f.number("SELECT count(*) FROM todos WHERE title_norm = 'one'"), 12)

	tx := f.begin("a", 2)
	_, err := tx.Exec(f.ctx, "UPDATE tenants SET label = 'two' WHERE name = 'a'")
	f.must(err, "rename the tenant")
	_, err = tx.AppendCommit(f.ctx, commitOf("tenants", "a", storage.OpUpsert))
	f.must(err, "append a commit")
	f.must(tx.Commit(f.ctx), "commit")
	same(f, "outcome", f.finish(claim, "a").Outcome, storage.OutcomeActivated)
	same(f, "labelled two", f.number("SELECT count(*) FROM todos WHERE title_norm = 'two'"), 12)
}

func tailUnverifiable(f *fixture) {
	for name, spoil := range map[string]func(f *fixture){
		"pruned": func(f *fixture) { f.prune("a", 2, true) },
		"a hole": func(f *fixture) {
			f.exec("DELETE FROM sync_changes WHERE partition = 'a' AND commit_seq = 1")
			f.exec("DELETE FROM sync_commits WHERE partition = 'a' AND commit_seq = 1")
		},
		"another epoch": func(f *fixture) { f.must(f.store.RotateLogEpoch(f.ctx, "a"), "rotate the epoch") },
	} {
		f.Run(name, func(t *testing.T) {
			f := f.another(t)
			f.filling(5, "a")
			claim := f.claimAll("title-norm")
			f.scan(claim)
			f.write("a", 2, 1, "FIRST")
			f.write("a", 2, 2, "SECOND")
			f.log("a", 2, "notes")
			spoil(f)
			wrong := f.number(wrongTitles + " AND tenant = 'a'")
			batch := f.tailOnce(claim, "a", 100)
			if batch.Unverifiable == "" {
				f.Errorf("the batch is %+v, want unverifiable with a reason", batch)
			}
			same(f, "wrong rows after it", f.number(wrongTitles+" AND tenant = 'a'"), wrong)
			report, err := f.store.Activate(f.ctx, claim, storage.Activation{Partition: "a"})
			f.must(err, "try to activate")
			same(f, "outcome", report.Outcome, storage.OutcomeUnverifiable)
			if report.Reason == "" {
				f.Error("the report has no reason")
			}
			kept := f.claimAll("title-norm")
			if batch := f.tailOnce(kept, "a", 100); batch.Unverifiable == "" {
				f.Error("a later claim that is no restart makes it verifiable")
			}
			restarted, err := f.store.ClaimAll(f.ctx, "title-norm", true)
			f.must(err, "begin again")
			f.scan(restarted)
			same(f, "outcome of the new pass", f.finish(restarted, "a").Outcome, storage.OutcomeActivated)
			f.derivedIn("a")
		})
	}
}

func tailLost(f *fixture) {
	f.filling(5, "a")
	older := f.claimAll("title-norm")
	f.scan(older)
	f.write("a", 2, 1, "CHANGED")
	newer := f.claimAll("title-norm")
	wrong := f.number(wrongTitles + " AND tenant = 'a'")
	_, err := f.store.TailBatch(f.ctx, older, "a", 10)
	f.wantLost(err)
	same(f, "wrong rows after the refused batch", f.number(wrongTitles+" AND tenant = 'a'"), wrong)
	same(f, "watermark", f.checkpoint("a", "title-norm").Watermark, 0)
	same(f, "rows of the owner", f.tail(newer, "a"), 1)
	f.derivedIn("a")
}

// tailForeignKey: a change of nobody knows which row might be the one that matters.
func tailForeignKey(f *fixture) {
	pairs := storage.Table{
		Name: "pairs", Layout: storage.Plain, PrimaryKey: []string{"k", "n"},
		Columns: []storage.Column{
			{Name: "k", Type: storage.TypeString}, {Name: "n", Type: storage.TypeInteger}, nullable("seen", storage.TypeInteger),
		},
	}
	checkpoint := storage.Checkpoint{
		Name: "seen", Version: 2, Sources: []storage.Source{{Table: "pairs", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "pairs", Set: map[string]string{"seen": "1"}}},
	}
	f.apply(storage.Target{Version: 1, Tables: []storage.Table{pairs}, Owner: owner})
	f.apply(storage.Target{Version: 2, Tables: []storage.Table{pairs}, Checkpoints: []storage.Checkpoint{checkpoint}, Owner: owner})
	for _, rowID := range []string{"no array", `["a"]`, `["a", "1", "more"]`, ""} {
		claim, err := f.store.ClaimAll(f.ctx, "seen", true)
		f.must(err, "begin a pass")
		f.scan(claim)
		tx := f.begin("a", 2)
		_, err = tx.AppendCommit(f.ctx, commitOf("pairs", rowID, storage.OpUpsert))
		f.must(err, "append a commit")
		f.must(tx.Commit(f.ctx), "commit")
		if batch := f.tailOnce(claim, "*", 100); batch.Unverifiable == "" {
			f.Errorf("row id %q: the batch is %+v, want unverifiable", rowID, batch)
		}
		report, err := f.store.Activate(f.ctx, claim, storage.Activation{Partition: "*"})
		f.must(err, "try to activate")
		same(f, "outcome", report.Outcome, storage.OutcomeUnverifiable)
	}
}
