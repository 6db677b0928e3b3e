package storagetest

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runHostile(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"partition keys that try to be SQL are only ever values", hostileKeys},
		{"a composite key of names that need quoting works from end to end", hostileNames},
		{"tables, columns, indexes and checkpoints of any names go through all of a database's life", hostileLife},
		{"names that cannot be are refused before any lock", hostileRefused},
		{"names that SQLite does not tell apart are one in SQLite and two in PostgreSQL", hostileCase},
		{"index names that would be cut to the same, or are made up of each other, stay apart", hostileIndexes},
		{"partition keys that cannot be are refused before any lock", hostileKeysRefused},
	})
}

func hostileKeys(f *fixture) {
	keys := []string{
		"p'); DROP TABLE sync_commits;--", "%s%d%v", "$1", "?1", "new\nline", "tab\t", `quote"d`, `back\slash`, "'", "''", "\\'", "é", "日本", "NULL",
		"A", "a", " a", "a ", "/", "a/=b", "a*", "capture", "{schema}", "{due}", "zero\u200bwidth", "naïve", "nai\u0308ve", "😀", "default",
		incompressible(storage.MaxPartitionBytes),
	}
	longest := incompressible(253)
	f.apply(version1())
	for i, key := range keys {
		f.write(key, 1, int64(i), "Title")
	}
	f.apply(version2(titleNorm(2, keys...), external(longest, 2, keys...)))
	claim := f.claimAll("title-norm")
	same(f, "claimed rows", len(claim.Rows), len(keys))
	f.scan(claim)
	for i, key := range keys {
		same(f, "number", f.write(key, 2, int64(i), "Changed"), 2)
		same(f, "verdict", f.coverage(key, 1, "todos").Verdict, storage.Changed)
		f.wantCode(f.oldWriter(key, 1), storage.CodeWriterFenceRejected)
		same(f, "outcome", f.finish(claim, key).Outcome, storage.OutcomeActivated)
		f.finishExternal(key, longest)
		same(f, "horizon", f.prune(key, 1, false), 1)
		f.must(f.store.RotateLogEpoch(f.ctx, key), "rotate the epoch")
		rows, err := f.store.ReadCheckpoints(f.ctx, key)
		f.must(err, "read the checkpoints")
		same(f, "rows of one key", len(rows), 2)
	}
	f.derived()
	f.wantGate(2, storage.GateOpen)
	same(f, "partitions", f.number("SELECT count(*) FROM sync_partitions"), int64(len(keys)))
	same(f, "commits", f.number("SELECT count(*) FROM sync_commits"), int64(len(keys)))
}

// incompressible is a text that no index can store in fewer bytes.
func incompressible(bytes int) string {
	var b strings.Builder
	for sum := sha256.Sum256(nil); b.Len() < bytes; sum = sha256.Sum256(sum[:]) {
		b.WriteString(base64.RawStdEncoding.EncodeToString(sum[:]))
	}
	return b.String()[:bytes]
}

func hostileNames(f *fixture) {
	table := storage.Table{
		Name: `Select "x" é`, Layout: storage.Plain, PrimaryKey: []string{"user", `or"der`},
		Columns: []storage.Column{
			{Name: "user", Type: storage.TypeString},
			{Name: `or"der`, Type: storage.TypeString},
			{Name: "Group by", Type: storage.TypeString},
			{Name: strings.Repeat("n", 63), Type: storage.TypeString, Nullable: true},
			{Name: "derived $1 %s", Type: storage.TypeString, Nullable: true},
		},
		Partition: storage.Partition{Column: "Group by"},
		Indexes:   []storage.Index{{Name: `ix "1"`, Columns: []string{"Group by", "derived $1 %s"}}, {Name: strings.Repeat("i", 63), Columns: []string{"user"}}},
	}
	packed := storage.Table{Name: `Pa'cked "t"`, Layout: storage.Syncular, Materialize: true, Columns: []storage.Column{
		{Name: `wh"ere`, Type: storage.TypeString, Nullable: true}, {Name: "from", Type: storage.TypeJSON, Nullable: true},
	}}
	checkpoint := storage.Checkpoint{
		Name: `name "with" 'quotes'; --`, Version: 2, Partitions: []string{"a"},
		Sources:  []storage.Source{{Table: table.Name, Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: table.Name, Set: map[string]string{"derived $1 %s": `"user" || "or""der" -- a comment`}}},
		Verify:   []storage.Verify{{Name: `ver"ify`, Query: `SELECT "user", "or""der" FROM "Select ""x"" é" WHERE "derived $1 %s" IS NULL`}},
	}
	f.apply(storage.Target{Version: 1, Tables: []storage.Table{table, packed}, Owner: owner})
	const insert = `INSERT INTO "Select ""x"" é" ("user", "or""der", "Group by") VALUES ($1, $2, 'a')`
	for i := range 5 {
		f.exec(insert, fmt.Sprint("u", i), `["x"]`)
	}
	f.apply(storage.Target{Version: 2, Tables: []storage.Table{table, packed}, Checkpoints: []storage.Checkpoint{checkpoint}, Owner: owner})

	tx := f.begin("a", 2)
	f.must(tx.UpsertRow(f.ctx, packed, storage.Row{RowID: `"`, Payload: payload(2), Values: map[string]any{`wh"ere`: "here", "from": `{"a":1}`}}), "write a row")
	row, ok, err := tx.GetRow(f.ctx, packed, `"`)
	f.must(err, "read a row")
	if !ok || row.Values[`wh"ere`] != "here" {
		f.Errorf("the row is %v, %t", row, ok)
	}
	_, err = tx.Exec(f.ctx, insert, "late", "']; --")
	f.must(err, "write a late row")
	_, err = tx.AppendCommit(f.ctx, commitOf(table.Name, storage.EncodeKey([]string{"late", "']; --"}), storage.OpUpsert))
	f.must(err, "append a commit")
	f.must(tx.Commit(f.ctx), "commit")

	claim := f.claimAll(checkpoint.Name)
	f.scan(claim)
	same(f, "outcome", f.finish(claim, "a").Outcome, storage.OutcomeActivated)
	same(f, "rows without a value", f.number(`SELECT count(*) FROM "Select ""x"" é" WHERE "derived $1 %s" IS NULL OR "derived $1 %s" <> "user" || "or""der"`), 0)
	f.wantGate(2, storage.GateOpen)
	report, err := f.store.CheckFence(f.ctx)
	f.must(err, "check the fence")
	if !report.Intact() {
		f.Errorf("findings: %+v", report.Findings)
	}
}
