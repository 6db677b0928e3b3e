package postgres

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// hostileSchema is the name of a database schema with all that our statements look for or put in.
const hostileSchema = `O" {schema}\ $syncbarrier$ WHEN (x) EXECUTE FUNCTION %s('`

// capturedNames are names of captured tables; those behind each one are its columns.
var capturedNames = []string{
	"user", "a", "a/=b", "a%2F=b", `say "hi"; DROP TABLE sync_commits; --`, "Title", "title", "it's", `back\slash`, "{schema}", "{of the row}", "%s %d",
	"$1 $syncbarrier$", "two\nlines", " space ", "😀", "x) WHEN (true) EXECUTE FUNCTION f('", "_sb_new", "text", "old", "n", "k1", "insert",
	strings.Repeat("n", 62) + "1", strings.Repeat("n", 62) + "2", strings.TrimPrefix(captureFunction(strings.Repeat("n", 62)+"1"), "syncbarrier_capture_"), strings.Repeat("日", 21),
}

// hostileValues are values of a partition column.
var hostileValues = []string{
	"p'); DROP TABLE sync_commits;--", "%s", "$1", "two\nlines", "tab\t", "*", "capture:a/", "/", "b", "=b", "b/=b", "null", "#0", "md5:", "", " ", "a ", "naïve",
	"nai\u0308ve", "zero\u200bwidth", "😀", "{schema}", `back\slash`, strings.Repeat("日", 66) + "xx", strings.Repeat("日", 67), strings.Repeat("k", 10<<10),
}

// capturedName is one table with its columns.
type capturedName struct {
	storage.Table
	tenant, text, derived string
	values                []string // of the partition column
}

func capturedNameAt(i int) capturedName {
	name := func(behind int) string { return capturedNames[(i+behind)%len(capturedNames)] }
	c := capturedName{tenant: name(2), text: name(3), derived: name(4)}
	for n := range 8 {
		c.values = append(c.values, hostileValues[(3*i+n)%len(hostileValues)])
	}
	c.Table = storage.Table{
		Name: name(0), Layout: storage.Plain, PrimaryKey: []string{name(1)}, Partition: storage.Partition{Column: c.tenant},
		Columns: []storage.Column{
			{Name: name(1), Type: storage.TypeInteger}, {Name: c.tenant, Type: storage.TypeString}, {Name: c.text, Type: storage.TypeString},
			{Name: c.derived, Type: storage.TypeString, Nullable: true},
		},
	}
	if i%4 == 3 {
		c.Partition = storage.Partition{Hash: 4}
	}
	return c
}

// create makes the table as its application does: every third one is partitioned.
func (c capturedName) create(i int) string {
	key := quoteIdentifier(c.PrimaryKey[0])
	sql := fmt.Sprintf("CREATE TABLE %s (%s bigint PRIMARY KEY, %s text, %s text, %s text)", quoteIdentifier(c.Name), key,
		quoteIdentifier(c.tenant), quoteIdentifier(c.text), quoteIdentifier(c.derived))
	if i%3 == 2 {
		sql += fmt.Sprintf(" PARTITION BY HASH (%s); CREATE TABLE %s PARTITION OF %s FOR VALUES WITH (MODULUS 1, REMAINDER 0)", key,
			quoteIdentifier(fmt.Sprintf(`part "%d"`, i)), quoteIdentifier(c.Name))
	}
	return sql
}

func (c capturedName) checkpoint() storage.Checkpoint {
	checkpoint := storage.Checkpoint{
		Name: c.Name, Version: 2,
		Sources: []storage.Source{{Table: c.Name, Changes: storage.Capture, Columns: []string{c.text}}},
		Backfill: storage.Backfill{Update: &storage.Update{
			Table: c.Name, Set: map[string]string{c.derived: "lower(" + quoteIdentifier(c.text) + ")"},
		}},
		Verify: []storage.Verify{{Name: "wrong", Query: "SELECT " + quoteIdentifier(c.PrimaryKey[0]) + " FROM " + quoteIdentifier(c.Name) + " WHERE " + c.wrong()}},
	}
	if c.Name == "a" || c.Name == `back\slash` {
		checkpoint.Partitions = slices.DeleteFunc(slices.Clone(c.values), func(value string) bool { return storage.CheckPartition(value) != nil })
	}
	return checkpoint
}

func (c capturedName) wrong() string {
	return quoteIdentifier(c.derived) + " IS DISTINCT FROM lower(" + quoteIdentifier(c.text) + ")"
}

// change has a program insert a row of each value and change them all.
func (c capturedName) change(program *session, first int) {
	program.t.Helper()
	program.run(fmt.Sprintf("INSERT INTO %s (%s, %s, %s) SELECT $1 + n, value, 'Title' FROM unnest($2::text[]) WITH ORDINALITY AS u(value, n)",
		quoteIdentifier(c.Name), quoteIdentifier(c.PrimaryKey[0]), quoteIdentifier(c.tenant), quoteIdentifier(c.text)), first, c.values)
	program.run(fmt.Sprintf("UPDATE %s SET %s = 'Changed ' || $1::text", quoteIdentifier(c.Name), quoteIdentifier(c.text)), fmt.Sprint(first))
}

// keys are the captured partitions of the rows, sorted.
func (c capturedName) keys() []string {
	prefix := "capture:" + strings.NewReplacer("%", "%25", "/", "%2F").Replace(c.Name) + "/"
	var keys []string
	for n := range c.Partition.Hash {
		keys = append(keys, fmt.Sprintf("%s#%d", prefix, n))
	}
	if c.Partition.Column != "" {
		for _, value := range c.values {
			if len(value) > 200 {
				sum := md5.Sum([]byte(value))
				keys = append(keys, prefix+"md5:"+hex.EncodeToString(sum[:]))
				continue
			}
			keys = append(keys, prefix+"="+value)
		}
	}
	slices.Sort(keys)
	return keys
}

// Every name and every value goes through the whole life of captured tables, all of them in one database, so that none is taken for another.
func TestCapturedTablesOfAnyNamesGoThroughAllOfADatabasesLife(t *testing.T) {
	t.Parallel()
	db := newBarrierDB(t, Config{Schema: hostileSchema})
	db.exec("SET search_path = " + quoteIdentifier(hostileSchema))
	wanted := target(2)
	for i := range capturedNames {
		c := capturedNameAt(i)
		db.exec(c.create(i))
		wanted.Tables = append(wanted.Tables, c.Table)
		wanted.Checkpoints = append(wanted.Checkpoints, c.checkpoint())
	}
	db.mustApply(wanted)
	db.wantSettled(wanted)
	db.wantText(fmt.Sprint(len(capturedNames)), `SELECT count(DISTINCT proname) FROM pg_proc WHERE proname LIKE 'syncbarrier\_capture\_%'`)

	old, program := connect(t, db.url), connect(t, db.url)
	for _, s := range []*session{old, program} {
		s.run("SET search_path = " + quoteIdentifier(hostileSchema))
	}
	program.run(`SET syncbarrier.writer_version = 2`)
	passes := make([]capturedPass, len(capturedNames))
	for i := range capturedNames {
		c := capturedNameAt(i)
		expectFenced(t, old.try(fmt.Sprintf("INSERT INTO %s (%s) VALUES (0)", quoteIdentifier(c.Name), quoteIdentifier(c.PrimaryKey[0]))))
		b := &backfillDB{barrierDB: db, name: c.Name}
		c.change(program, 1000)
		passes[i] = capturedPass{c, b, b.mustClaim(false)}
	}
	for _, p := range passes {
		p.db.scan(p.claim, p.db.mustLeases(p.claim))
		p.change(program, 2000)
		p.wantKeys()
	}
	for _, p := range passes { // the log of those that are done is pruned, while that of the others is needed
		p.finish(program)
	}
	db.wantText("0", `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'syncbarrier\_capture%'`)
	db.wantSettled(wanted)
	db.endCaptured(wanted, old)
}

// capturedPass is one table's backfill under way.
type capturedPass struct {
	capturedName
	db    *backfillDB
	claim storage.Claim
}

// wantKeys compares the partitions of the log with those of the rows.
func (p capturedPass) wantKeys() {
	p.db.t.Helper()
	rows, err := p.db.conn.Query(p.db.ctx, `SELECT DISTINCT partition FROM sync_changes WHERE tbl = $1 AND op <> 4`, p.Name)
	if err != nil {
		p.db.t.Fatal(err)
	}
	var got []string
	for rows.Next() {
		var key string
		if err := rows.Scan(&key); err != nil {
			p.db.t.Fatal(err)
		}
		got = append(got, key)
	}
	slices.Sort(got)
	if rows.Err() != nil || !slices.Equal(got, p.keys()) {
		p.db.t.Errorf("table %q: the log has the partitions %.100q, want %.100q (%v)", p.Name, got, p.keys(), rows.Err())
	}
}

func (p capturedPass) finish(program *session) {
	p.db.t.Helper()
	for _, row := range p.claim.Rows {
		p.db.catchUp(p.claim, row.Partition)
		if err := p.db.store.VerifyRow(p.db.ctx, p.claim, row.Partition); err != nil {
			p.db.t.Fatal(err)
		}
		program.run(fmt.Sprintf("UPDATE %s SET %s = 'At last ' || %[2]s WHERE $1 IN ('*', %s)",
			quoteIdentifier(p.Name), quoteIdentifier(p.text), quoteIdentifier(p.tenant)), row.Partition)
		if report := p.db.mustActivate(p.claim, row.Partition); report.Rest == 0 {
			p.db.t.Errorf("table %q, partition %.40q: the activation found nothing of what was changed last", p.Name, row.Partition)
		}
	}
	covered := p.wrong()
	if listed := p.checkpoint().Partitions; len(listed) > 0 {
		covered = fmt.Sprintf("(%s) AND %s = ANY ($1)", covered, quoteIdentifier(p.tenant))
		p.db.wantText("0", "SELECT count(*) FROM "+quoteIdentifier(p.Name)+" WHERE "+covered, listed)
		return
	}
	p.db.wantText("0", "SELECT count(*) FROM "+quoteIdentifier(p.Name)+" WHERE "+covered)
}

// endCaptured goes on with fences alone: they are found, put back, and taken away with the rest of ours.
func (db *barrierDB) endCaptured(wanted storage.Target, old *session) {
	db.t.Helper()
	for i := 0; i < len(capturedNames); i += 7 {
		c := capturedNameAt(i)
		db.exec("DROP TRIGGER syncbarrier_fence_source ON " + quoteIdentifier(c.Name))
		report, err := db.store.RepairFence(db.ctx)
		if err != nil || !report.Intact() || len(report.Repaired) == 0 {
			db.t.Errorf("table %q: %+v, %v", c.Name, report, err)
		}
		expectFenced(db.t, old.try("TRUNCATE "+quoteIdentifier(c.Name)))
	}
	next := wanted
	next.Version, next.RetiredTables, next.Tables = 3, nil, nil
	for i, table := range wanted.Tables {
		if i%2 == 0 {
			next.RetiredTables = append(next.RetiredTables, table.Name)
			continue
		}
		late := storage.Column{Name: capturedNames[(i+5)%len(capturedNames)], Type: storage.TypeString, Nullable: true}
		table.Columns = append(slices.Clone(table.Columns), late)
		next.Tables = append(next.Tables, table)
	}
	db.mustApply(next)
	db.wantSettled(next)
	if _, err := db.store.Remove(db.ctx, true); err != nil {
		db.t.Fatal(err)
	}
	db.wantText("0", `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'syncbarrier%'`)
	db.wantText("0", `SELECT count(*) FROM pg_proc WHERE proname LIKE 'syncbarrier%'`)
	db.wantText("sync_commits", `SELECT relname FROM pg_class WHERE relname = 'sync_commits'`)
}

// wantSettled checks that what the barrier installed is found again, and that nothing of it is made anew.
func (db *barrierDB) wantSettled(wanted storage.Target) {
	db.t.Helper()
	const installed = `
		SELECT string_agg(object, ' ' ORDER BY object)
		  FROM (
		    SELECT 'trigger ' || oid::text || ' ' || xmin::text FROM pg_trigger
		     UNION ALL
		    SELECT 'function ' || oid::text || ' ' || xmin::text FROM pg_proc WHERE oid >= 16384) AS o(object)`
	before := db.text(installed)
	if result := db.mustApply(wanted); result.Outcome != storage.Agreed {
		db.t.Errorf("applied again: %+v", result)
	}
	db.wantText(before, installed)
	if report, err := db.store.CheckFence(db.ctx); err != nil || !report.Intact() {
		db.t.Errorf("the fence: %+v, %v", report, err)
	}
}

// What decides whether a row changed is compared by its columns' exact names: a trigger that somebody replaced by one that looks at
// another column is found.
func TestAConditionOnAColumnThatDiffersInNothingButItsQuotesIsAnotherOne(t *testing.T) {
	db := newBarrierDB(t)
	columns := []string{"Title", "title", "ti tle", `ti"tle`, "ti(tle"}
	table := storage.Table{Name: "Todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Columns: []storage.Column{{Name: "id", Type: storage.TypeInteger}}}
	sql := `CREATE TABLE "Todos" (id bigint PRIMARY KEY`
	for _, column := range columns {
		table.Columns = append(table.Columns, storage.Column{Name: column, Type: storage.TypeString})
		sql += ", " + quoteIdentifier(column) + " text"
	}
	db.exec(sql + `) PARTITION BY HASH (id); CREATE TABLE "Part" PARTITION OF "Todos" FOR VALUES WITH (MODULUS 1, REMAINDER 0)`)
	wanted := target(2, table)
	wanted.Checkpoints = []storage.Checkpoint{{
		Name: "external", Version: 2, Backfill: storage.Backfill{Job: true},
		Sources: []storage.Source{{Table: "Todos", Changes: storage.Capture, Columns: []string{"Title"}}},
	}}
	db.mustApply(wanted)
	db.wantSettled(wanted)
	right := db.text(`SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'syncbarrier_capture_row_update' AND tgparentid = 0`)
	for _, column := range columns[1:] {
		wrong := strings.ReplaceAll(right, `"Title"`, quoteIdentifier(column))
		db.exec(strings.Replace(wrong, "CREATE TRIGGER", "CREATE OR REPLACE TRIGGER", 1))
		expectFinding(t, db.store, "syncbarrier_capture_row_update", true)
		if _, err := db.store.RepairFence(db.ctx); err != nil {
			t.Fatal(err)
		}
		db.wantText(right, `SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'syncbarrier_capture_row_update' AND tgparentid = 0`)
	}
}

// A table of ours may be called like the full name of a captured one that was moved to another schema.
func TestATableCalledLikeOneOfAnotherSchemaIsNotTakenForIt(t *testing.T) {
	db, program := newCapturedDB(t)
	db.exec(`CREATE SCHEMA elsewhere; CREATE TABLE "elsewhere.todos" (id bigint PRIMARY KEY); ALTER TABLE todos SET SCHEMA elsewhere`)
	sources, err := db.store.readSources(db.ctx, db.conn, []string{"elsewhere.todos"})
	if err != nil || len(sources) != 2 || len(sources["elsewhere.todos"].relations) != 1 || sources["elsewhere.todos"].fenced() {
		t.Errorf("%+v, %v", sources, err)
	}
	expectFenced(t, connect(t, db.url).try(`UPDATE elsewhere.todos SET title = 'by an old program'`))
	program.run(`UPDATE elsewhere.todos SET title = 'by a new one'`)
}
