package storagetest

import (
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// hostileIdentifiers are legal names of tables and columns that break whatever does not quote them, looks for something in them, or cuts them.
//
// Every second one is the name of a table that is backfilled, and all of them are columns of such a table.
var hostileIdentifiers = []string{
	`say "hi"; DROP TABLE sync_commits; --`, "user", "commitLog", "select", "Order Data", "order", "it's", "table", `back\slash`, "NULL",
	"100%s %d %!", `E'\\x'`, "$1 $$ $syncbarrier$ ?1 :a @b", "a.b", "a/=b", "*", "{schema}", "{schema_text} {due} {{key}}", "two\nlines", "tab\t",
	" leading", "trailing ", "zero\u200bwidth", "zerowidth", "😀 tables", "\u202eright to left", "naïve", "nai\u0308ve",
	") WHEN (true) EXECUTE FUNCTION x(", "/* no comment", "capture:a/", "[brackets]", "`ticks`", "new", "batch", "old", "changed", "t", "q", "u", "k1", "key",
	"keys", "partition", "text", "_sb_xid", "c0", "int8",
	strings.Repeat("n", 63), strings.Repeat("ü", 31) + "y", strings.Repeat("n", 62) + "x", strings.Repeat("日", 21), "a" + strings.Repeat("日", 20) + "z", "idx",
}

// quoted writes a name in SQL, for both products.
func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// hostileName is the name at a place behind the i-th, round and round.
func hostileName(i, behind int) string { return hostileIdentifiers[(i+behind)%len(hostileIdentifiers)] }

// hostileTable is a table all of whose names are hostile, as it is at a version.
type hostileTable struct {
	storage.Table
	key, tenant, text, derived, late string
}

func hostileTableAt(i int, version int64) hostileTable {
	t := hostileTable{
		key: hostileName(i, 1), tenant: hostileName(i, 2), text: hostileName(i, 3), derived: hostileName(i, 4), late: hostileName(i, 5),
	}
	t.Table = storage.Table{
		Name: hostileName(i, 0), Layout: storage.Plain, PrimaryKey: []string{t.key}, Partition: storage.Partition{Column: t.tenant},
		Columns: []storage.Column{
			{Name: t.key, Type: storage.TypeString}, {Name: t.tenant, Type: storage.TypeString}, {Name: t.text, Type: storage.TypeString},
		},
	}
	if version > 1 {
		t.Columns = append(t.Columns, nullable(t.derived, storage.TypeString))
		t.Indexes = []storage.Index{{Name: hostileName(i, 6), Columns: []string{t.tenant, t.derived}}}
	}
	if version > 2 {
		t.Columns = append(t.Columns, nullable(t.late, storage.TypeInteger))
		t.Indexes[0].Columns = []string{t.derived, t.tenant, t.late}
	}
	return t
}

// backfilled says whether the i-th table is.
func backfilled(i int) bool { return i%2 == 0 }

// retired says whether the i-th table is, with version 3.
func retired(i int) bool { return i%5 == 0 }

// hidden says that the table's name is also one of a relation that a statement of the user's knows, which comes first there.
func (t hostileTable) hidden() bool { return t.Name == "batch" || t.Name == "changed" }

// checkpoint fills the derived column: by an update, or every second one by a statement of the user's; of all partitions, or of one.
func (t hostileTable) checkpoint(i int) storage.Checkpoint {
	c := storage.Checkpoint{
		Name: t.Name, Version: 2,
		Sources:  []storage.Source{{Table: t.Name, Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: t.Name, Set: map[string]string{t.derived: "lower(" + quoted(t.text) + ")"}}},
	}
	if i%3 == 0 {
		c.Partitions = []string{hostileName(i, 7)}
		if c.Partitions[0] == storage.AllPartitions || strings.HasPrefix(c.Partitions[0], storage.CapturePrefix) {
			c.Partitions[0] = "x" + c.Partitions[0]
		}
	}
	if t.hidden() {
		return c
	}
	if i%4 == 0 {
		c.Verify = []storage.Verify{{Name: hostileName(i, 8), Query: "SELECT " + quoted(t.key) + " FROM " + quoted(t.Name) + " WHERE " + t.wrong()}}
	} else {
		c.Backfill = storage.Backfill{Statement: &storage.Statement{
			Table: t.Name,
			Apply: "UPDATE " + quoted(t.Name) + " SET " + quoted(t.derived) + " = lower(" + quoted(t.text) + ") WHERE " +
				quoted(t.key) + " IN (SELECT batch." + quoted(t.key) + " FROM batch)",
		}}
		c.Sources[0].Keys = "SELECT " + quoted(t.key) + " FROM changed"
	}
	return c
}

// wrong is the condition that a row does not have its derived value.
func (t hostileTable) wrong() string {
	return quoted(t.derived) + " IS NULL OR " + quoted(t.derived) + " <> lower(" + quoted(t.text) + ")"
}

func (t hostileTable) insert() string {
	return "INSERT INTO " + quoted(t.Name) + " (" + quoted(t.key) + ", " + quoted(t.tenant) + ", " + quoted(t.text) + ") VALUES ($1, $2, $3)"
}

// hostileSyncular is a Syncular table with the same names.
func hostileSyncular(i int, version int64) storage.Table {
	t := storage.Table{Name: "s" + hostileName(i, 0), Layout: storage.Syncular, Materialize: true, Columns: []storage.Column{{Name: hostileName(i, 1), Type: storage.TypeString}}}
	if len(t.Name) > storage.MaxIdentifierBytes {
		t.Name = "s" + strings.Repeat("日", i%20) + "z"
	}
	for grown := int64(2); grown <= version; grown++ {
		t.Columns = append(t.Columns, nullable(hostileName(i, int(grown)), storage.TypeString))
	}
	return t
}

// hostileTarget declares all of them. From version 3 on some are retired.
func hostileTarget(version int64) storage.Target {
	target := storage.Target{Version: version, Owner: owner}
	for i := range hostileIdentifiers {
		plain, packed := hostileTableAt(i, version), hostileSyncular(i, version)
		if version > 1 && backfilled(i) {
			target.Checkpoints = append(target.Checkpoints, plain.checkpoint(i))
		}
		if version > 2 && retired(i) {
			target.RetiredTables = append(target.RetiredTables, plain.Name, packed.Name)
			continue
		}
		target.Tables = append(target.Tables, plain.Table, packed)
	}
	return target
}

// hostileLife takes tables with hostile names through all that a database goes through, all of them at once.
func hostileLife(f *fixture) {
	f.apply(hostileTarget(1))
	f.settled(hostileTarget(1))
	for i := range hostileIdentifiers {
		table := hostileTableAt(i, 1)
		for row, tenant := range hostileTenants(i) {
			f.exec(table.insert(), fmt.Sprint(hostileName(i, row), row), tenant, fmt.Sprint("Title ", row))
		}
	}
	f.apply(hostileTarget(2))
	f.settled(hostileTarget(2))
	for i := range hostileIdentifiers {
		if backfilled(i) {
			f.hostileBackfill(i)
		}
		f.hostileRow(i)
	}
	f.wantGate(2, storage.GateOpen)
	f.settled(hostileTarget(2))

	f.apply(hostileTarget(3))
	f.settled(hostileTarget(3))
	for i := range hostileIdentifiers {
		f.hostileGrown(i)
	}
	f.hostileAbandon()
	f.hostileEnd()
}

// hostileTenants are the partitions of a table's first rows. The first is the one that its checkpoint may list.
func hostileTenants(i int) []string {
	if listed := hostileTableAt(i, 2).checkpoint(i).Partitions; len(listed) > 0 {
		return []string{listed[0], listed[0], listed[0]}
	}
	return []string{"a", "A", "a "}
}

// settled checks that whatever the barrier made is found again: it agrees, does nothing, and changes nothing in the catalogue.
func (f *fixture) settled(target storage.Target) {
	f.Helper()
	before := f.catalogue()
	result := f.apply(target)
	same(f, "outcome", result.Outcome, storage.Agreed)
	same(f, "statements", result.Statements, 0)
	same(f, "the catalogue", f.catalogue(), before)
	plan, err := f.store.Plan(f.ctx, target)
	f.must(err, "plan")
	same(f, "planned statements", len(plan.Statements), 0)
	report, err := f.store.CheckFence(f.ctx)
	f.must(err, "check the fence")
	if !report.Intact() {
		f.Errorf("findings: %+v", report.Findings)
	}
}

// catalogue identifies the state of all tables, columns, indexes, triggers and functions.
func (f *fixture) catalogue() string {
	f.Helper()
	if f.db.Dialect == storage.SQLite {
		return fmt.Sprint(f.number("PRAGMA schema_version"))
	}
	return f.text(`
		WITH ours AS (
		  SELECT oid FROM pg_class WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		)
		SELECT string_agg(changed, ' ' ORDER BY changed)
		  FROM (
		    SELECT 'trigger ' || oid::text || ' ' || xmin::text FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM ours)
		     UNION ALL
		    SELECT 'column ' || attrelid::text || ' ' || attnum::text || ' ' || xmin::text FROM pg_attribute WHERE attrelid IN (SELECT oid FROM ours)
		     UNION ALL
		    SELECT 'index ' || indexrelid::text || ' ' || xmin::text FROM pg_index WHERE indrelid IN (SELECT oid FROM ours)
		     UNION ALL
		    SELECT 'function ' || oid::text || ' ' || xmin::text FROM pg_proc WHERE pronamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())
		  ) AS object(changed)`)
}

// hostileBackfill brings the i-th checkpoint to its activation while its program writes.
func (f *fixture) hostileBackfill(i int) {
	f.Helper()
	table := hostileTableAt(i, 2)
	checkpoint := table.checkpoint(i)
	partition, row := hostileTenants(i)[0], checkpoint.Rows()[0]
	if partition == "a" { // '*' has raised the fence for all
		f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
	}
	claim := f.claimAll(checkpoint.Name)
	if scanned := f.scan(claim); scanned != 3 {
		f.Errorf("%q: %d rows were scanned, want 3", table.Name, scanned)
	}
	tx := f.begin(partition, 2)
	f.must(tx.LockPartition(f.ctx), "lock the partition")
	_, err := tx.Exec(f.ctx, table.insert(), "late "+table.Name, partition, "LATE")
	f.must(err, "write a late row")
	seq, err := tx.AppendCommit(f.ctx, commitOf(table.Name, "late "+table.Name, storage.OpUpsert))
	f.must(err, "append a commit")
	f.must(tx.Commit(f.ctx), "commit")
	same(f, "verdict", f.coverage(partition, seq-1, table.Name).Verdict, storage.Changed)
	newest, err := f.store.SourceCoverageSeq(f.ctx, partition, []string{table.Name})
	f.must(err, "read the newest change")
	same(f, "newest change", newest, seq)
	same(f, "outcome of "+table.Name, f.finish(claim, row).Outcome, storage.OutcomeActivated)
	same(f, "wrong rows of "+table.Name, f.number("SELECT count(*) FROM "+f.whole(table.Name)+" WHERE "+table.wrong()), 0)
	progress, err := f.store.ReadProgress(f.ctx, checkpoint.Name)
	f.must(err, "read the progress")
	same(f, "name in the progress", progress.Definition.Table.Name, table.Name)
	f.prune(partition, seq, false)
}

// whole is a table's name in SQL. On SQLite the name of the schema makes sure of the file's own.
func (f *fixture) whole(name string) string {
	if f.db.Dialect == storage.SQLite {
		return "main." + quoted(name)
	}
	return quoted(name)
}

// hostileRow writes, reads and keeps a row of the i-th Syncular table.
func (f *fixture) hostileRow(i int) {
	f.Helper()
	table, id := hostileSyncular(i, 2), hostileName(i, 9)
	tx := f.begin("a", 2)
	row := storage.Row{RowID: id, Payload: payload(2), Values: map[string]any{table.Columns[0].Name: hostileName(i, 3)}}
	f.must(tx.UpsertRow(f.ctx, table, row), "write a row")
	f.must(tx.UpsertRow(f.ctx, table, row), "write it again")
	f.must(tx.UpsertRow(f.ctx, table, storage.Row{RowID: "gone", Payload: payload(2), Values: row.Values}), "write another one")
	f.must(tx.DeleteRow(f.ctx, table, "gone"), "delete it")
	f.must(tx.Commit(f.ctx), "commit")
}

// hostileGrown checks the tables of version 3.
func (f *fixture) hostileGrown(i int) {
	f.Helper()
	plain, packed := hostileTableAt(i, 3), hostileSyncular(i, 3)
	if retired(i) {
		for _, name := range []string{plain.Name, packed.Name} {
			if _, err := f.program.Query(f.ctx, "SELECT 1 FROM "+f.whole(name)); err == nil {
				f.Errorf("the retired table %q is still there", name)
			}
		}
		return
	}
	want := int64(0)
	if backfilled(i) {
		want = 4
	}
	same(f, "rows of "+plain.Name, f.number("SELECT count("+quoted(plain.derived)+") FROM "+f.whole(plain.Name)+" WHERE "+quoted(plain.late)+" IS NULL"), want)
	tx := f.begin("a", 3)
	row, ok, err := tx.GetRow(f.ctx, packed, hostileName(i, 9))
	f.must(err, "read a row")
	f.must(tx.Rollback(f.ctx), "roll back")
	if !ok || row.Values[packed.Columns[0].Name] != hostileName(i, 3) || len(row.Payload) != len(payload(3)) {
		f.Errorf("the row of %q is %v, %t", packed.Name, row, ok)
	}
}

// hostileAbandon declares checkpoints beside a barrier and gives them up, by names of every form.
func (f *fixture) hostileAbandon() {
	f.Helper()
	target := hostileTarget(3)
	target.Version = 4
	keep := external("keeps the gate closed", 4)
	keep.Sources[0].Table = hostileName(2, 0)
	target.Checkpoints = append(target.Checkpoints, keep)
	f.apply(target)
	longest := strings.Repeat("日", 84) + "x" // 253 bytes
	for _, name := range []string{"second {schema}", `x'); DROP TABLE sync_commits; --`, " ", "**", "line\nend", longest} {
		checkpoint := hostileTableAt(2, 3).checkpoint(2)
		checkpoint.Name, checkpoint.Version = name, 4
		_, err := f.store.DeclareCheckpoint(f.ctx, checkpoint, target.Tables)
		f.must(err, "declare "+name)
		f.claimAll(name)
		rows, err := f.store.AbandonCheckpoint(f.ctx, name, 4, "O'Brien", "it's \"over\"")
		f.must(err, "abandon "+name)
		same(f, "abandoned rows", rows, 1)
	}
}

// hostileEnd removes all that is ours, and nothing else.
func (f *fixture) hostileEnd() {
	f.Helper()
	repaired, err := f.store.RepairFence(f.ctx)
	f.must(err, "repair the fence")
	same(f, "repaired", len(repaired.Repaired), 0)
	statements, err := f.store.Remove(f.ctx, true)
	f.must(err, "remove")
	if len(statements) == 0 {
		f.Error("nothing was removed")
	}
	for _, table := range hostileTarget(3).Tables {
		f.number("SELECT count(*) FROM " + f.whole(table.Name))
	}
	if again, err := f.store.Remove(f.ctx, false); err != nil || len(again) > 0 {
		f.Errorf("left to remove: %v, %v", again, err)
	}
	f.number("SELECT count(*) FROM sync_commits")
}
