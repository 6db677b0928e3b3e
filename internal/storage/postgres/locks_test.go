package postgres

import (
	"slices"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestALockSetHasEachTableOnceInItsStrongestMode(t *testing.T) {
	var locks lockSet
	locks.add("s", "a", shareRowExclusive)
	locks.add("s", "b", exclusive)
	locks.add("s", "a", accessExclusive)
	locks.add("s", "b", shareRowExclusive)
	locks.add("other", "a", exclusive)
	want := lockSet{{"s", "a", accessExclusive}, {"s", "b", exclusive}, {"other", "a", exclusive}}
	if !slices.Equal(locks, want) {
		t.Errorf("got %v, want %v", locks, want)
	}
}

func TestLocksCoverWhatIsWeaker(t *testing.T) {
	held := lockSet{{"s", "a", exclusive}, {"s", "b", shareRowExclusive}}
	for name, test := range map[string]struct {
		need lockSet
		want bool
	}{
		"nothing":           {nil, true},
		"the same":          {held, true},
		"a weaker one":      {lockSet{{"s", "a", shareRowExclusive}}, true},
		"a stronger one":    {lockSet{{"s", "b", exclusive}}, false},
		"another table":     {lockSet{{"s", "c", shareRowExclusive}}, false},
		"another's of name": {lockSet{{"t", "a", shareRowExclusive}}, false},
	} {
		if got := held.covers(test.need); got != test.want {
			t.Errorf("%s: got %t", name, got)
		}
	}
}

func TestTheTableOfTheLastRefusalIsWaitedForFirst(t *testing.T) {
	locks := lockSet{{"s", "a", exclusive}, {"s", "b", accessExclusive}, {"s", "c", exclusive}}
	found := func(table string) lockSet { return lockSet{{"s", table, accessExclusive}} }
	if got := locks.waitFirst(found("c"), true); !slices.Equal(got, lockSet{locks[2], locks[0], locks[1]}) {
		t.Errorf("one of the set: %v", got)
	}
	if got := locks.waitFirst(found("x"), true); !slices.Equal(got, lockSet{found("x")[0], locks[0], locks[1], locks[2]}) {
		t.Errorf("one that a step needed: %v", got)
	}
	if got := locks.waitFirst(found("x"), false); !slices.Equal(got, locks) {
		t.Errorf("one that no step can need: %v", got)
	}
	if got := locks.waitFirst(nil, true); !slices.Equal(got, locks) {
		t.Errorf("one that is gone: %v", got)
	}
	if locks[0].table != "a" {
		t.Error("the set itself was changed")
	}
}

// The order is that of docs/design.md section 3; the tables of steps come by name between the first and the last two.
func TestTheLocksOfADecisionAndTheirOrder(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(5, plainTodos(), syncularNotes(3)))
	db.exec("CREATE SCHEMA elsewhere")
	db.exec("CREATE TABLE elsewhere.things(i int PRIMARY KEY)")
	db.exec("CREATE TABLE parts(i int) PARTITION BY LIST (i)")
	db.exec("CREATE TABLE kept(i int REFERENCES elsewhere.things)")
	db.exec("CREATE INDEX kept_i ON kept(i)")
	db.exec("CREATE TABLE sync_tombstones(tbl text)")
	db.exec("CREATE VIEW looks AS SELECT 1")
	step := func(kind storage.StepKind, table string) storage.Step { return storage.Step{Kind: kind, Table: table} }
	sql := func(text string) storage.Step { return storage.Step{Kind: storage.StepRunSQL, SQL: text} }
	const meta = "sync_schema_meta EXCLUSIVE"
	for name, test := range map[string]struct {
		decision storage.Decision
		want     []string
	}{
		"nothing to do":           {storage.Decision{Outcome: storage.Agreed, LockPartitions: true}, nil},
		"a marker alone":          {storage.Decision{}, []string{meta}},
		"the fence":               {storage.Decision{Raise: map[string]int64{"*": 7}}, []string{"sync_commits SHARE ROW EXCLUSIVE", meta}},
		"writers of the protocol": {storage.Decision{LockPartitions: true}, []string{"sync_partitions EXCLUSIVE", meta}},
		"a column":                {storage.Decision{Steps: []storage.Step{step(storage.StepAddColumn, "todos")}}, []string{"todos ACCESS EXCLUSIVE", meta}},
		"payloads":                {storage.Decision{Steps: []storage.Step{step(storage.StepRewritePayload, "notes")}}, []string{"notes EXCLUSIVE", meta}},
		"an index":                {storage.Decision{Steps: []storage.Step{step(storage.StepCreateIndex, "todos")}}, []string{"todos SHARE ROW EXCLUSIVE", meta}},
		"an index less":           {storage.Decision{Steps: []storage.Step{step(storage.StepDropIndex, "todos")}}, []string{"todos ACCESS EXCLUSIVE", meta}},
		"a table that is not yet": {storage.Decision{Steps: []storage.Step{step(storage.StepCreateTable, "new"), step(storage.StepCreateIndex, "new")}}, []string{meta}},
		"a table, and what it is tied to": {storage.Decision{Steps: []storage.Step{step(storage.StepDropTable, "kept")}},
			[]string{"elsewhere.things ACCESS EXCLUSIVE", "kept ACCESS EXCLUSIVE", "sync_tombstones SHARE ROW EXCLUSIVE", meta}},
		"SQL: tables, indexes, other schemas; no views, no catalogs": {storage.Decision{Steps: []storage.Step{
			sql("UPDATE elsewhere.things SET i = 1; DROP INDEX kept_i; SELECT * FROM looks, pg_class, information_schema.tables; INSERT INTO parts VALUES (1)")}},
			[]string{"elsewhere.things SHARE ROW EXCLUSIVE", "kept ACCESS EXCLUSIVE", "parts SHARE ROW EXCLUSIVE", meta}},
		"SQL on what is ours keeps the order": {storage.Decision{LockPartitions: true, Steps: []storage.Step{
			sql("ALTER TABLE sync_schema_meta ADD x int; ALTER TABLE sync_commits ADD x int; ALTER TABLE sync_partitions ADD x int; UPDATE todos SET id = 1")}},
			[]string{"sync_partitions ACCESS EXCLUSIVE", "todos SHARE ROW EXCLUSIVE", "sync_commits ACCESS EXCLUSIVE", "sync_schema_meta ACCESS EXCLUSIVE"}},
		"all of it": {storage.Decision{LockPartitions: true, Raise: map[string]int64{"a": 7}, Steps: []storage.Step{
			step(storage.StepAddColumn, "todos"), step(storage.StepRewritePayload, "notes"), step(storage.StepAddColumn, "notes")}},
			[]string{"sync_partitions EXCLUSIVE", "notes ACCESS EXCLUSIVE", "todos ACCESS EXCLUSIVE", "sync_commits SHARE ROW EXCLUSIVE", meta}},
	} {
		t.Run(name, func(t *testing.T) {
			locks, err := db.store.locksFor(db.ctx, db.conn, test.decision)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, lock := range locks {
				got = append(got, db.store.lockName(lock)+" "+lock.mode.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
