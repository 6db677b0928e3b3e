package storagetest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runBarrier(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"an empty database becomes version 1 in one step", barrierFirst},
		{"the same target again is agreed with and changes nothing", barrierAgreed},
		{"a later version moves marker, columns, checkpoints and fence together", barrierNext},
		{"a jump declares and runs what lies between", barrierJump},
		{"SQL that fails leaves nothing of the version behind", barrierFailingSQL},
		{"SQL that writes below the fence is the user's to mend", barrierFencedSQL},
		{"SQL that would end the transaction is refused and leaves nothing", barrierEndingSQL},
		{"a declared backfill that the database cannot run is refused with its name", barrierBrokenBackfill},
		{"a verify query without the key columns is refused with its name", barrierVerifyWithoutKey},
		{"a lower version is a regression", barrierRegression},
		{"other content at the same version is drift", barrierDrift},
		{"an unfinished checkpoint has to be declared by the next version", barrierIncomplete},
		{"a checkpoint name used again is drift", barrierNameAgain},
		{"captured sources are refused where no session can say its version", barrierCapture},
		{"a column that is NOT NULL is not added to a table with rows", barrierNotNull},
		{"another owner is a conflict until it is taken over", barrierOwner},
		{"a plan shows what would happen and changes nothing", barrierPlan},
		{"a barrier carries out the plan that was approved, and no other that the database has come to ask for", barrierApproved},
		{"of eight migrators one migrates and seven agree", barrierEight},
		{"a checkpoint written beside the schema may join a version that has it already", barrierStandalone},
	})
}

func barrierFirst(f *fixture) {
	result := f.apply(version1())
	same(f, "outcome", result.Outcome, storage.Migrate)
	same(f, "stored before", result.Stored, 0)
	same(f, "stored now", result.Version, 1)

	status, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	same(f, "protocol", status.Protocol, storage.CatalogProtocol)
	same(f, "version", status.StoredVersion, 1)
	same(f, "content hash", status.ContentHash, version1().ContentHash(1))
	same(f, "history rows", len(status.History), 1)
	if status.Owner == nil || *status.Owner != owner {
		f.Errorf("the owner is %v, want %v", status.Owner, owner)
	}
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta WHERE id = 1"), 1)
	layouts, err := storage.DecodeLayouts(f.text("SELECT layouts FROM sync_schema_meta WHERE id = 1"))
	f.must(err, "read the layouts")
	if _, plain := layouts["todos"]; plain || len(layouts["notes"]) != 1 {
		f.Errorf("the stored layouts are %v, want those of the Syncular table only", layouts)
	}
	same(f, "todos", f.number("SELECT count(*) FROM todos"), 0)
}

func barrierAgreed(f *fixture) {
	f.apply(version1())
	before, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	result := f.apply(version1())
	same(f, "outcome", result.Outcome, storage.Agreed)
	after, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	if len(before.History) != 1 || !reflect.DeepEqual(after.History, before.History) {
		f.Errorf("the history is %+v, was %+v", after.History, before.History)
	}
}

func barrierNext(f *fixture) {
	f.apply(version1())
	result := f.apply(version2(titleNorm(2)))
	same(f, "outcome", result.Outcome, storage.Migrate)
	if !slices.Equal(result.Declared, []string{"title-norm"}) {
		f.Errorf("declared %v, want title-norm", result.Declared)
	}
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta WHERE id = 1"), 2)
	same(f, "fence", f.number("SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'"), 2)
	same(f, "filled", f.number("SELECT count(*) FROM todos WHERE title_norm IS NOT NULL"), 0)
	rows, err := f.store.ReadCheckpoints(f.ctx, storage.AllPartitions)
	f.must(err, "read the checkpoints")
	if len(rows) != 1 || rows[0].State != storage.Declared || rows[0].Version != 2 || rows[0].Partition != "*" {
		f.Errorf("the checkpoint rows are %v, want one declared row '*' of version 2", rows)
	}
	definition, err := f.store.ReadDefinition(f.ctx, "title-norm")
	f.must(err, "read the definition")
	same(f, "hash", definition.Hash, titleNorm(2).Hash())
}

func barrierJump(f *fixture) {
	f.apply(version1())
	target := version2(titleNorm(2))
	target.Version = 4
	target.Checkpoints = append(target.Checkpoints, external("letters", 3, "a"))
	target.Migrations = []storage.Migration{
		{Version: 2, SQL: "INSERT INTO todos (id, tenant, title) VALUES (1, 'a', 'two')"},
		{Version: 3, SQL: "UPDATE todos SET title = 'three' WHERE title = 'two'"},
		{Version: 4, SQL: "UPDATE todos SET title = 'four' WHERE title = 'three'"},
	}
	f.apply(target)
	same(f, "title", f.text("SELECT title FROM todos WHERE id = 1"), "four")
	rows, err := f.store.ReadCheckpoints(f.ctx, storage.AllPartitions)
	f.must(err, "read the checkpoints")
	var declared []string
	for _, row := range rows {
		declared = append(declared, fmt.Sprintf("%s %d %s", row.Name, row.Version, row.Partition))
	}
	if want := []string{"letters 3 a", "title-norm 2 *"}; !slices.Equal(declared, want) {
		f.Errorf("declared %v, want %v", declared, want)
	}
	status, err := f.store.Status(f.ctx)
	f.must(err, "read the status")
	var versions []int64
	for _, row := range status.History {
		versions = append(versions, row.Version)
	}
	if want := []int64{1, 2, 3, 4}; !slices.Equal(versions, want) {
		f.Errorf("the history has versions %v, want %v", versions, want)
	}
	same(f, "minimum reader", status.MinReaderVersion, 4)
}

// unchanged compares all that a barrier of version 2 would touch with how version 1 left it.
func (f *fixture) unchanged() {
	f.Helper()
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta WHERE id = 1"), 1)
	same(f, "fence", f.number("SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'"), 0)
	same(f, "checkpoints", f.number("SELECT count(*) FROM sync_backfill_checkpoints"), 0)
	same(f, "definitions", f.number("SELECT count(*) FROM sync_backfill_definitions"), 0)
	same(f, "history", f.number("SELECT max(version) FROM sync_barrier_history"), 1)
	if _, err := f.program.Query(f.ctx, "SELECT title_norm FROM todos"); err == nil {
		f.Error("the column of version 2 is there")
	}
	same(f, "todos", f.number("SELECT count(*) FROM todos"), 0)
	f.write("a", 1, 1, "still accepted")
	result := f.apply(version2(titleNorm(2)))
	same(f, "outcome of the right version 2", result.Outcome, storage.Migrate)
}

func barrierFailingSQL(f *fixture) {
	f.apply(version1())
	target := version2(titleNorm(2))
	target.Migrations = []storage.Migration{{
		Version: 2,
		SQL:     "INSERT INTO todos (id, tenant, title) VALUES (1, 'a', 'x'); INSERT INTO no_such_table VALUES (1)",
	}}
	err := f.refuse(target, storage.CodeInvalidSQL)
	f.wantMessage(err, "no_such_table")
	f.unchanged()
}

func barrierFencedSQL(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	target := version2(titleNorm(2))
	target.Version = 3
	target.Migrations = []storage.Migration{{Version: 3, SQL: `
		INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		VALUES ('a', 1, 'c', '1', 'a', 0, 1)`}}
	_, err := f.store.EnsureSchema(f.ctx, target, storage.Attempt{Number: 1})
	f.wantCode(err, storage.CodeInvalidSQL)
	f.wantMessage(err, "version 3", string(storage.CodeWriterFenceRejected))
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta WHERE id = 1"), 2)
}

func barrierEndingSQL(f *fixture) {
	f.apply(version1())
	for _, statement := range []string{"COMMIT", "ROLLBACK", "SAVEPOINT s", "BEGIN"} {
		target := version2(titleNorm(2))
		target.Migrations = []storage.Migration{{Version: 2, SQL: "INSERT INTO todos (id, tenant, title) VALUES (1, 'a', 'x'); " + statement}}
		_, err := f.store.EnsureSchema(f.ctx, target, storage.Attempt{Number: 1})
		if code := storage.CodeOf(err); code != storage.CodeNotTransactional {
			f.Errorf("%s: got code %q (%v), want %q", statement, code, err, storage.CodeNotTransactional)
		}
	}
	f.unchanged()
}

func barrierBrokenBackfill(f *fixture) {
	f.apply(version1())
	broken := titleNorm(2)
	broken.Backfill.Update.Set = map[string]string{"title_norm": "no_such_function(title)"}
	err := f.refuse(version2(broken), storage.CodeInvalidSQL)
	f.wantMessage(err, "title-norm", "no_such_function")
	statement := todoWords(2)
	statement.Verify = nil
	statement.Backfill.Statement.Apply = "INSERT INTO nowhere SELECT id FROM batch"
	err = f.refuse(version2(statement), storage.CodeInvalidSQL)
	f.wantMessage(err, "todo-words", "nowhere")
	f.unchanged()
}

func barrierVerifyWithoutKey(f *fixture) {
	f.apply(version1())
	keyless := titleNorm(2)
	keyless.Verify = []storage.Verify{{Name: "keyless", Query: "SELECT title FROM todos WHERE title_norm IS NULL"}}
	err := f.refuse(version2(keyless), storage.CodeInvalidSpec)
	f.wantMessage(err, "title-norm", "keyless", "id")
	broken := titleNorm(2)
	broken.Verify = []storage.Verify{{Name: "broken", Query: "SELECT id FROM nowhere"}}
	err = f.refuse(version2(broken), storage.CodeInvalidSQL)
	f.wantMessage(err, "title-norm", "broken", "nowhere")
	f.unchanged()
}

func barrierRegression(f *fixture) {
	f.apply(version1())
	f.apply(version2())
	err := f.refuse(version1(), storage.CodeVersionRegression)
	f.wantMessage(err, "2", "1")
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta WHERE id = 1"), 2)
}

func barrierDrift(f *fixture) {
	f.apply(version1())
	target := version1()
	target.Migrations = []storage.Migration{{Version: 1, SQL: "SELECT 1"}}
	_ = f.refuse(target, storage.CodeContentDrift)
	same(f, "outcome of what was applied", f.apply(version1()).Outcome, storage.Agreed)
}

func barrierIncomplete(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	forgotten := next(version2())
	err := f.refuse(forgotten, storage.CodeCheckpointIncomplete)
	f.wantMessage(err, "title-norm")
	same(f, "outcome of a version that keeps the entry", f.apply(next(version2(titleNorm(2)))).Outcome, storage.Migrate)
}

func barrierNameAgain(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	again := next(version2(titleNorm(3)))
	err := f.refuse(again, storage.CodeContentDrift)
	f.wantMessage(err, "title-norm")
}

func barrierCapture(f *fixture) {
	f.apply(version1())
	captured := titleNorm(2)
	captured.Sources[0].Changes = storage.Capture
	if f.db.Dialect == storage.PostgreSQL {
		same(f, "outcome", f.apply(version2(captured)).Outcome, storage.Migrate)
		same(f, "fence", f.number(`SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'`), 2)
		return
	}
	err := f.refuse(version2(captured), storage.CodeInvalidSpec)
	f.wantMessage(err, "title-norm", "Capture", "version of its program")
	f.unchanged()
}

func barrierNotNull(f *fixture) {
	f.apply(version1())
	f.write("a", 1, 1, "a row")
	target := version2()
	target.Tables[0] = todos(storage.Column{Name: "title_norm", Type: storage.TypeString})
	err := f.refuse(target, storage.CodeInvalidSpec)
	f.wantMessage(err, "todos", "title_norm")
}

func barrierOwner(f *fixture) {
	f.apply(version1())
	other := version1()
	other.Owner = storage.Owner{Cluster: "c1", Namespace: "shop", Name: "clinic"}
	err := f.refuse(other, storage.CodeConflict)
	f.wantMessage(err, "default", "clinic")
	barrierPlanOfAnother(f, other.Owner)
	other.TakeOver = owner.String()
	f.apply(other)
	err = f.refuse(version1(), storage.CodeConflict)
	f.wantMessage(err, "shop", "c1")
}

// barrierPlanOfAnother: whoever may read may see the next version's plan, the same that its owner sees; nobody else may carry it out.
func barrierPlanOfAnother(f *fixture, another storage.Owner) {
	f.Helper()
	next := version2(titleNorm(2))
	owners, err := f.store.Plan(f.ctx, next)
	f.must(err, "plan of the owner")
	next.Owner = another
	_, err = f.store.Plan(f.ctx, next)
	f.wantCode(err, storage.CodeConflict)
	next.OfAnyOwner = true
	plan, err := f.store.Plan(f.ctx, next)
	f.must(err, "plan of another")
	same(f, "hash of another's plan", plan.Hash, owners.Hash)
	if said := strings.Join(plan.Decision.Warnings, "\n"); !strings.Contains(said, "owned by "+owner.String()) || !strings.Contains(said, "--take-over "+owner.String()) {
		f.Errorf("the plan of another says %q", said)
	}
	f.wantMessage(f.refuse(next, storage.CodeConflict), owner.String())
	same(f, "marker", f.number("SELECT schema_version FROM sync_schema_meta WHERE id = 1"), 1)
}

func barrierPlan(f *fixture) {
	plan, err := f.store.Plan(f.ctx, version1())
	f.must(err, "plan version 1 on an empty database")
	same(f, "outcome", plan.Decision.Outcome, storage.Migrate)
	if len(plan.Statements) == 0 || len(plan.Hash) != 12 {
		f.Errorf("the plan has %d statements and the hash %q", len(plan.Statements), plan.Hash)
	}
	if _, err := f.program.Query(f.ctx, "SELECT 1 FROM sync_schema_meta"); err == nil {
		f.Error("planning made the catalog")
	}
	f.apply(version1())
	plan, err = f.store.Plan(f.ctx, version2(titleNorm(2)))
	f.must(err, "plan version 2")
	again, err := f.store.Plan(f.ctx, version2(titleNorm(2)))
	f.must(err, "plan version 2 again")
	same(f, "hash of the same plan", again.Hash, plan.Hash)
	f.unchanged()
	_, err = f.store.Plan(f.ctx, version1())
	f.wantCode(err, storage.CodeVersionRegression)
}

func barrierEight(f *fixture) {
	f.apply(version1())
	const migrators = 8
	outcomes := make([]storage.DecisionOutcome, migrators)
	failures := make([]error, migrators)
	var group sync.WaitGroup
	for i := range migrators {
		store := f.db.OpenStore(f.T)
		group.Go(func() {
			result, err := applyWith(f.ctx, store, version2(titleNorm(2)))
			outcomes[i], failures[i] = result.Outcome, err
		})
	}
	group.Wait()
	migrated := 0
	for i := range migrators {
		f.must(failures[i], fmt.Sprintf("migrator %d", i))
		if outcomes[i] == storage.Migrate {
			migrated++
		} else {
			same(f, "outcome of the others", outcomes[i], storage.Agreed)
		}
	}
	same(f, "migrators that migrated", migrated, 1)
	same(f, "rows in the history", f.number("SELECT count(*) FROM sync_barrier_history"), 2)
}

func barrierStandalone(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	later := external("letters", 2)
	later.Standalone = true
	same(f, "outcome", f.apply(version2(titleNorm(2), later)).Outcome, storage.Agreed)
	rows, err := f.store.ReadCheckpoints(f.ctx, storage.AllPartitions)
	f.must(err, "read the checkpoints")
	same(f, "checkpoint rows", len(rows), 1)
}
