package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// weakenings are ways to weaken fence and guards, with a part of what the check must say of each. Those that are not mended need a person.
var weakenings = []struct {
	name       string
	statements []string
	object     string
	problem    string
	mended     bool
}{
	{"the fence's trigger is dropped", []string{"DROP TRIGGER syncbarrier_fence_insert"}, "syncbarrier_fence_insert", "missing", true},
	{"the fence's other trigger is dropped", []string{"DROP TRIGGER syncbarrier_fence_update"}, "syncbarrier_fence_update", "missing", true},
	{"the fence's trigger is another one", []string{
		"DROP TRIGGER syncbarrier_fence_insert",
		"CREATE TRIGGER syncbarrier_fence_insert BEFORE INSERT ON sync_commits WHEN 0 BEGIN SELECT 1; END",
	}, "syncbarrier_fence_insert", "not the one", true},
	{"the fence's trigger is on another table", []string{
		"DROP TRIGGER syncbarrier_fence_insert",
		"CREATE TRIGGER syncbarrier_fence_insert BEFORE INSERT ON sync_changes BEGIN SELECT 1; END",
	}, "syncbarrier_fence_insert", "not the one", true},
	{"the guard of the marker is dropped", []string{"DROP TRIGGER syncbarrier_guard_marker_update"}, "syncbarrier_guard_marker_update", "missing", true},
	{"the guard of the fence is dropped", []string{"DROP TRIGGER syncbarrier_guard_fence_delete"}, "syncbarrier_guard_fence_delete", "missing", true},
	{"the guard of the checkpoints is dropped", []string{"DROP TRIGGER syncbarrier_guard_checkpoint_update"}, "syncbarrier_guard_checkpoint_update", "missing", true},
	{"the guard of the definitions is dropped", []string{"DROP TRIGGER syncbarrier_guard_definition_delete"}, "syncbarrier_guard_definition_delete", "missing", true},
	{"the fence is lowered behind its guard", []string{
		"DROP TRIGGER syncbarrier_guard_fence_update",
		"UPDATE sync_writer_fence SET required_writer_version = 1",
	}, "row '*'", "was raised to 7", true},
	{"the row for all is deleted behind its guard", []string{
		"DROP TRIGGER syncbarrier_guard_fence_delete",
		"DELETE FROM sync_writer_fence",
	}, "row '*'", "missing", true},
	{"the table of the log is made anew", []string{
		"ALTER TABLE sync_commits RENAME TO sync_commits_old",
		"CREATE TABLE sync_commits AS SELECT * FROM sync_commits_old WHERE false",
		"DROP TABLE sync_commits_old",
	}, "syncbarrier_fence_insert", "missing", true},
	{"a foreign trigger stamps versions", []string{
		"CREATE TRIGGER zz_stamp AFTER INSERT ON sync_commits BEGIN UPDATE sync_commits SET writer_version = 7; END",
	}, "zz_stamp", "another program's", false},
	{"a foreign trigger skips commits in silence", []string{
		"CREATE TRIGGER zy BEFORE INSERT ON sync_commits BEGIN SELECT RAISE(IGNORE); END",
	}, "zy", "skip a commit in silence", false},
	{"a foreign trigger names no time", []string{
		"CREATE TRIGGER \"zy AFTER x\" INSERT ON sync_commits BEGIN SELECT RAISE(IGNORE); END",
	}, "zy AFTER x", "skip a commit in silence", false},
	{"the version's column has another name", []string{
		"ALTER TABLE sync_commits RENAME COLUMN writer_version TO wv",
	}, "column sync_commits.writer_version", "missing", false},
	{"the version has a default", []string{
		"ALTER TABLE sync_commits DROP COLUMN writer_version",
		"ALTER TABLE sync_commits ADD COLUMN writer_version INTEGER DEFAULT 7",
	}, "writer_version", "default", false},
	{"the version is generated", []string{
		"ALTER TABLE sync_commits DROP COLUMN writer_version",
		"ALTER TABLE sync_commits ADD COLUMN writer_version INTEGER AS (7)",
	}, "writer_version", "generated", false},
	{"the marker is lowered behind its guard", []string{
		"DROP TRIGGER syncbarrier_guard_marker_update",
		"UPDATE sync_schema_meta SET schema_version = 6",
	}, "sync_schema_meta", "version 7 was applied", false},
	{"the fence holds text behind its guard", []string{
		"DROP TRIGGER syncbarrier_guard_fence_update",
		"UPDATE sync_writer_fence SET required_writer_version = 'many'",
	}, "row '*'", "holds no number", false},
	{"the marker is deleted behind its guard", []string{
		"DROP TRIGGER syncbarrier_guard_marker_delete",
		"DELETE FROM sync_schema_meta",
	}, "sync_schema_meta", "marker is missing", false},
	{"the notes of the guards are dropped", []string{"DROP TABLE sync_barrier_replaced"}, "table sync_barrier_replaced", "missing", true},
	{"the leftovers are dropped", []string{"DROP TABLE sync_backfill_leftovers"}, "table sync_backfill_leftovers", "missing", true},
	{"an index of ours is dropped", []string{"DROP INDEX syncbarrier_changes_by_table"}, "index syncbarrier_changes_by_table", "missing", true},
	{"the history is dropped", []string{"DROP TABLE sync_barrier_history"}, "table sync_barrier_history", "missing", false},
	{"the definitions are dropped", []string{"DROP TABLE sync_backfill_definitions"}, "table sync_backfill_definitions", "missing", false},
	{"the progress is dropped", []string{"DROP TABLE sync_backfill_progress"}, "table sync_backfill_progress", "missing", false},
	{"the log is dropped", []string{"DROP TABLE sync_commits"}, "table sync_commits", "missing", false},
	{"the changes are dropped with their index", []string{"DROP TABLE sync_changes"}, "table sync_changes", "missing", false},
	{"the fence is dropped", []string{"DROP TABLE sync_writer_fence"}, "table sync_writer_fence", "missing", false},
	{"the marker's table is dropped", []string{"DROP TABLE sync_schema_meta"}, "table sync_schema_meta", "missing", false},
}

// weaken runs statements against a file in which nothing has been weakened. The triggers have to be out of the way for a column to be
// dropped, so those on the log are dropped and made again around it.
func weaken(t testing.TB, p program, statements []string) {
	t.Helper()
	column := strings.Contains(strings.Join(statements, " "), "DROP COLUMN")
	for _, trigger := range triggers {
		if column && trigger.table == "sync_commits" {
			p.exec("DROP TRIGGER " + trigger.name)
		}
	}
	for _, statement := range statements {
		p.exec(statement)
	}
	for _, trigger := range triggers {
		if column && trigger.table == "sync_commits" {
			p.exec(trigger.sql)
		}
	}
}

func TestEachWeakeningIsFoundAndMendedOrNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range weakenings {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, version6())
			apply(t, store, version7())
			wantIntact(t, store)
			weaken(t, openProgram(t, path), tt.statements)

			report, err := store.CheckFence(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			wantFinding(t, report, tt.object, tt.problem, tt.mended)
			// A barrier neither goes on beside it nor mends it in silence, whether it has work or agrees.
			refuse(t, store, version7(), storage.CodeFenceBroken, tt.object)
			next := version7()
			next.Version = 8
			refuse(t, store, next, storage.CodeFenceBroken)

			repaired, err := store.RepairFence(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if !tt.mended {
				wantFinding(t, repaired, tt.object, tt.problem, false) // left for a person
				return
			}
			if !repaired.Intact() {
				t.Errorf("left after the repair: %v", repaired.Findings)
			}
			if len(repaired.Repaired) == 0 {
				t.Error("nothing was repaired")
			}
			wantIntact(t, store)
			same(t, "fence", repaired.MinWriterVersion, 7)
			if err := openProgram(t, path).commit("p", 1, 6); err == nil || !strings.Contains(err.Error(), fenced) {
				t.Errorf("version 6 after the repair: %v", err)
			}
			same(t, "outcome", apply(t, store, version7()).Outcome, storage.Agreed)
		})
	}
}

func wantIntact(t testing.TB, store *Store) {
	t.Helper()
	report, err := store.CheckFence(testContext(t))
	if err != nil || !report.Intact() {
		t.Errorf("fence and guards: %v %v, want them intact", report.Findings, err)
	}
}

func wantFinding(t testing.TB, report storage.FenceReport, object, problem string, repairable bool) {
	t.Helper()
	for _, finding := range report.Findings {
		if strings.Contains(finding.Object, object) && strings.Contains(finding.Problem, problem) && finding.Repairable == repairable {
			return
		}
	}
	t.Errorf("found %v, want %q with %q, repairable %t", report.Findings, object, problem, repairable)
}

func TestTheFenceOfAListedPartitionIsFoundLowAndPutBack(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		statements []string
		problem    string
		mended     bool
	}{
		"deleted": {[]string{"DROP TRIGGER syncbarrier_guard_fence_delete", "DELETE FROM sync_writer_fence WHERE partition = 'p'"},
			"missing, but a checkpoint of version 7", true},
		"lowered": {[]string{"DROP TRIGGER syncbarrier_guard_fence_update", "UPDATE sync_writer_fence SET required_writer_version = 3 WHERE partition = 'p'"},
			"requires version 3, but a checkpoint of version 7", true},
		"no number": {[]string{"DROP TRIGGER syncbarrier_guard_fence_update", "UPDATE sync_writer_fence SET required_writer_version = 'x' WHERE partition = 'p'"},
			"holds no number", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store := openStore(t, path)
			apply(t, store, version6())
			listed := version7()
			listed.Checkpoints[0].Partitions = []string{"p", "q"}
			apply(t, store, listed)
			wantIntact(t, store)
			p := openProgram(t, path)
			weaken(t, p, tt.statements)
			report, err := store.CheckFence(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			wantFinding(t, report, `row "p"`, tt.problem, tt.mended)
			refuse(t, store, listed, storage.CodeFenceBroken, `row "p"`)
			repaired, err := store.RepairFence(testContext(t))
			if err != nil {
				t.Fatal(err)
			}
			if !tt.mended {
				wantFinding(t, repaired, `row "p"`, tt.problem, false)
				return
			}
			wantIntact(t, store)
			same(t, "fences", p.text("SELECT group_concat(partition || required_writer_version) FROM (SELECT * FROM sync_writer_fence ORDER BY 1)"), "*0,p7,q7")
			// What the fence for all covers needs no row of its own.
			weaken(t, p, []string{"UPDATE sync_writer_fence SET required_writer_version = 7 WHERE partition = '*'"})
			weaken(t, p, []string{"DROP TRIGGER syncbarrier_guard_fence_delete", "DELETE FROM sync_writer_fence WHERE partition = 'p'"})
			if _, err := store.RepairFence(testContext(t)); err != nil {
				t.Fatal(err)
			}
			wantIntact(t, store)
			same(t, "rows of p", p.number("SELECT count(*) FROM sync_writer_fence WHERE partition = 'p'"), 0)
		})
	}
}

func TestAColumnThatGetsItsNameBackIsIntact(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, version7())
	p := openProgram(t, path)
	p.exec("ALTER TABLE sync_commits RENAME COLUMN writer_version TO wv")
	if _, err := store.RepairFence(testContext(t)); err != nil {
		t.Fatal(err)
	}
	p.exec("ALTER TABLE sync_commits RENAME COLUMN wv TO writer_version")
	if _, err := store.RepairFence(testContext(t)); err != nil {
		t.Fatal(err)
	}
	wantIntact(t, store)
}

// gotInFile has commits of partitions that were there before the fence for all, and a way to write whatever version.
func gotInFile(t *testing.T, then storage.Target) (*Store, program, func(partition string, seq int64, version any)) {
	t.Helper()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	write := func(partition string, seq int64, version any) {
		t.Helper()
		if err := p.commit(partition, seq, version); err != nil {
			t.Fatal(err)
		}
		p.exec("INSERT OR IGNORE INTO sync_partitions(partition) VALUES (?)", partition)
		p.exec("UPDATE sync_partitions SET max_commit_seq = ? WHERE partition = ?", seq, partition)
	}
	write("old", 1, 6) // before the fence: rightly there
	write("old", 2, nil)
	apply(t, store, then)
	return store, p, write
}

func wantGotIn(t testing.TB, store *Store, want map[string]int64) {
	t.Helper()
	report, err := store.CheckFence(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for partition, rows := range want {
		total += rows
		wantFinding(t, report, fmt.Sprintf("%q", partition), fmt.Sprintf("%d commits", rows), false)
	}
	same(t, "commits that got in", report.GotIn, total)
}

func TestCommitsThatGotInAreCounted(t *testing.T) {
	t.Parallel()
	store, p, write := gotInFile(t, version7())
	write("old", 3, 7)
	wantIntact(t, store)
	p.exec("DROP TRIGGER syncbarrier_fence_insert")
	write("old", 4, 6)
	write("new", 1, nil)
	write("new", 2, 7)
	write("new", 3, "x")
	p.exec(triggers[0].sql) // put back as if nothing had been
	wantGotIn(t, store, map[string]int64{"old": 1, "new": 2})
	repaired, err := store.RepairFence(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	same(t, "commits counted by the repair", repaired.GotIn, 3)
	same(t, "put back", len(repaired.Repaired), 0)
	// What got in does not stop the next version: nothing can undo it.
	next := version7()
	next.Version = 8
	apply(t, store, next)
	wantGotIn(t, store, map[string]int64{"old": 1, "new": 2})
	p.exec("DELETE FROM sync_commits WHERE partition = 'new'")
	wantGotIn(t, store, map[string]int64{"old": 1})
}

func TestCommitsThatGotInToAListedPartitionAreCountedByItsOwnFence(t *testing.T) {
	t.Parallel()
	listed := version7()
	listed.Checkpoints[0].Partitions = []string{"old"}
	store, p, write := gotInFile(t, listed)
	write("other", 1, nil) // is not fenced
	wantIntact(t, store)
	p.exec("DROP TRIGGER syncbarrier_fence_insert")
	write("old", 3, 6)
	write("old", 4, 7)
	wantGotIn(t, store, map[string]int64{"old": 1})
}

func TestCommitsThatARaiseCouldNotNoteAreNotCountedAgainstAnybody(t *testing.T) {
	t.Parallel()
	store, p, write := gotInFile(t, version6())
	p.exec(`WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?)
		INSERT INTO sync_partitions SELECT 'many' || n, 1, 0 FROM c`, maxRecordedPositions)
	write("before", 1, nil)
	apply(t, store, version7())
	wantIntact(t, store)
}

func TestTheProtocolsOwnTriggerIsLeftAlone(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, version7())
	p := openProgram(t, path)
	// As a program of the sync protocol does at each start.
	own := `CREATE TRIGGER IF NOT EXISTS sync_commits_writer_fence BEFORE INSERT ON sync_commits FOR EACH ROW
		WHEN EXISTS (SELECT 1 FROM sync_writer_fence WHERE partition = NEW.partition
			AND (NEW.writer_version IS NULL OR NEW.writer_version < required_writer_version))
		BEGIN SELECT RAISE(ABORT, 'sync.storage.writer_fence_rejected'); END`
	p.exec(own)
	// These have nothing to do with versions, and come after the row.
	p.exec("CREATE TRIGGER notify AFTER INSERT ON sync_commits BEGIN SELECT 1; END")
	p.exec("create trigger if not exists \"it's \"\"quoted\"\"\"\nafter insert ON sync_commits BEGIN SELECT 1; END")
	wantIntact(t, store)
	next := version7()
	next.Version = 8
	apply(t, store, next)
	if _, err := store.RepairFence(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if text := p.text("SELECT sql FROM sqlite_master WHERE name = 'sync_commits_writer_fence'"); !strings.HasSuffix(text, "END") {
		t.Errorf("the protocol's trigger is now %q", text)
	}
	if err := p.commit("p", 1, 6); err == nil || !strings.Contains(err.Error(), fenced) {
		t.Errorf("version 6: %v", err)
	}
}

// TestWithoutTheCatalogEveryVerbSaysSo: it is one class whoever finds it out, and no defect of ours.
func TestWithoutTheCatalogEveryVerbSaysSo(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	store := openStore(t, newFile(t))
	for name, ask := range map[string]func() error{
		"read a claim": func() error { _, err := store.ReadClaim(ctx, "c", "token"); return err },
		"abandon":      func() error { _, err := store.AbandonCheckpoint(ctx, "c", 7, "somebody", "because"); return err },
		"prune":        func() error { _, err := store.Prune(ctx, "p", 5, false); return err },
		"read the log": func() error { _, err := store.MaxCommitSeq(ctx, "p"); return err },
		"read rows":    func() error { _, err := store.ReadCheckpoints(ctx, storage.AllPartitions); return err },
	} {
		err := ask()
		same(t, name, storage.ClassOf(err), storage.ClassConflict)
		wantText(t, err, "no Syncbarrier catalog")
	}
	refuse(t, store, withSQL(version6(), "UPDATE sync_never_there SET x = 1"), storage.CodeInvalidSQL, "sync_never_there")
}

func TestAFileWithoutACatalogHasNoFenceToCheck(t *testing.T) {
	t.Parallel()
	store := openStore(t, newFile(t))
	_, err := store.CheckFence(testContext(t))
	wantCode(t, err, storage.CodeFenceBroken)
	_, err = store.RepairFence(testContext(t))
	wantCode(t, err, storage.CodeFenceBroken)
}

func TestANewerCatalogIsLeftToTheNewerProgram(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	p.exec("UPDATE sync_barrier_owner SET protocol = 99")
	before := p.dump()
	refuse(t, store, version7(), storage.CodeNewerCatalog)
	for name, do := range map[string]func() error{
		"check":  func() error { _, err := store.CheckFence(testContext(t)); return err },
		"repair": func() error { _, err := store.RepairFence(testContext(t)); return err },
		"plan":   func() error { _, err := store.Plan(testContext(t), version7()); return err },
		"remove": func() error { _, err := store.Remove(testContext(t), true); return err },
	} {
		t.Run(name, func(t *testing.T) { wantCode(t, do(), storage.CodeNewerCatalog) })
	}
	same(t, "the file is as it was", p.dump(), before)
}

func TestAnotherBuildsFenceIsUpgradedInsideTheBarrier(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	p.exec("UPDATE sync_barrier_owner SET revision = 'of an older build'")
	p.exec("DROP TRIGGER syncbarrier_guard_marker_update")
	p.exec("CREATE TRIGGER syncbarrier_guard_marker_update BEFORE UPDATE ON sync_schema_meta BEGIN SELECT 'older'; END")
	same(t, "outcome", apply(t, store, version6()).Outcome, storage.Agreed)
	wantIntact(t, store)
	same(t, "revision", p.text("SELECT revision FROM sync_barrier_owner"), catalogRevision)
}
