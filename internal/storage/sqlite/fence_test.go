package sqlite

import (
	"fmt"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const fenced = string(storage.CodeWriterFenceRejected)

// fencedFile is a file whose fence requires version 10, as a program sees it.
func fencedFile(t testing.TB) (*Store, program) {
	t.Helper()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	p.exec("UPDATE sync_writer_fence SET required_writer_version = 10 WHERE partition = '*'")
	return store, p
}

// typedVersions are SQL literals of every type that a program may write as its version, and whether 10 is reached.
var typedVersions = []struct {
	literal string
	passes  bool
}{
	{"NULL", false}, {"9", false}, {"10", true}, {"'10'", true}, {"10.0", true}, {"9.9", false}, {"10.5", false},
	{"'9'", false}, {"'abc'", false}, {"''", false}, {"'10 '", true}, {"x'3130'", false}, {"-1", false}, {"9e999", false}, {"TRUE", false},
}

func TestOnlyAWholeNumberThatIsHighEnoughPassesTheFence(t *testing.T) {
	t.Parallel()
	_, p := fencedFile(t)
	seq := 0
	for _, verb := range []string{
		"INSERT", "INSERT OR IGNORE", "INSERT OR REPLACE", "INSERT OR FAIL", "INSERT OR ABORT", "INSERT OR ROLLBACK", "REPLACE",
	} {
		for _, version := range typedVersions {
			seq++
			statement := fmt.Sprintf(`%s INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
				VALUES ('p', %d, 'c', '1', 'a', 0, %s)`, verb, seq, version.literal)
			_, err := p.db.ExecContext(testContext(t), statement)
			stored := p.number("SELECT count(*) FROM sync_commits WHERE commit_seq = ?", seq)
			switch {
			case version.passes && (err != nil || stored != 1):
				t.Errorf("%s with %s: %v, stored %d", verb, version.literal, err, stored)
			case !version.passes && stored != 0:
				t.Errorf("%s with %s was stored", verb, version.literal)
			case !version.passes && (err == nil || !strings.Contains(err.Error(), fenced)):
				t.Errorf("%s with %s: got %v, want %s: a refusal is never silent", verb, version.literal, err, fenced)
			}
		}
	}
	same(t, "versions in the log", p.text("SELECT group_concat(DISTINCT writer_version || ' ' || typeof(writer_version)) FROM sync_commits"), "10 integer")
}

func TestAVersionIsNotChangedAfterwards(t *testing.T) {
	t.Parallel()
	_, p := fencedFile(t)
	if err := p.commit("p", 1, 10); err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"UPDATE", "UPDATE OR IGNORE", "UPDATE OR REPLACE", "UPDATE OR FAIL", "UPDATE OR ROLLBACK"} {
		for _, version := range typedVersions {
			if !version.passes {
				p.refused(fenced, verb+" sync_commits SET writer_version = "+version.literal)
			}
		}
	}
	p.refused(fenced, `INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		VALUES ('p', 1, 'c', '1', 'a', 0, 10) ON CONFLICT DO UPDATE SET writer_version = 1`)
	same(t, "version", p.number("SELECT writer_version FROM sync_commits"), 10)
}

func TestManyRowsAtOnceAreStoredOrRefusedTogether(t *testing.T) {
	t.Parallel()
	_, p := fencedFile(t)
	p.refused(fenced, `INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
		VALUES ('p', 1, 'c', '1', 'a', 0, 10), ('p', 2, 'c', '2', 'a', 0, 9)`)
	same(t, "commits", p.number("SELECT count(*) FROM sync_commits"), 0)
}

func TestTemporaryObjectsAndForeignTriggersDoNotGetRoundTheFence(t *testing.T) {
	t.Parallel()
	_, p := fencedFile(t)
	p.db.SetMaxOpenConns(1) // temporary objects belong to one connection
	p.exec("CREATE TEMP TABLE sync_writer_fence(partition TEXT, required_writer_version INTEGER)")
	p.exec("INSERT INTO temp.sync_writer_fence VALUES ('*', 0)")
	p.exec("CREATE TEMP TRIGGER lower_it BEFORE INSERT ON main.sync_commits BEGIN DELETE FROM temp.sync_writer_fence; END")
	p.exec(`CREATE TEMP TRIGGER lower_it_after AFTER INSERT ON main.sync_commits
		BEGIN UPDATE sync_commits SET writer_version = 1 WHERE partition = NEW.partition; END`)
	if err := p.commit("p", 1, 9); err == nil || !strings.Contains(err.Error(), fenced) {
		t.Errorf("version 9 beside temporary objects: %v", err)
	}
	if err := p.commit("p", 1, 10); err == nil || !strings.Contains(err.Error(), fenced) {
		t.Errorf("version 10 that a trigger makes 1: %v", err)
	}
	same(t, "commits", p.number("SELECT count(*) FROM sync_commits"), 0)
}

func TestOnePartitionMayRequireMoreThanAll(t *testing.T) {
	t.Parallel()
	_, p := fencedFile(t)
	p.exec("INSERT INTO sync_writer_fence VALUES ('high', 12), ('low', 3)")
	for _, tt := range []struct {
		partition string
		version   int
		passes    bool
	}{{"high", 11, false}, {"high", 12, true}, {"low", 9, false}, {"low", 10, true}, {"new", 9, false}, {"new", 10, true}} {
		err := p.commit(tt.partition, 1, tt.version)
		if passed := err == nil; passed != tt.passes {
			t.Errorf("version %d in partition %s: passed %t (%v), want %t", tt.version, tt.partition, passed, err, tt.passes)
		}
	}
}

func TestBeforeTheFirstFenceEverythingPasses(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	apply(t, openStore(t, path), version6())
	p := openProgram(t, path)
	for seq, version := range []any{nil, 1, "x"} {
		if err := p.commit("p", int64(seq+1), version); err != nil {
			t.Errorf("version %v: %v", version, err)
		}
	}
}

func TestWithoutTheRowForAllNothingPasses(t *testing.T) {
	t.Parallel()
	_, p := fencedFile(t)
	p.exec("DROP TRIGGER syncbarrier_guard_fence_delete")
	p.exec("DELETE FROM sync_writer_fence")
	if err := p.commit("p", 1, 100); err == nil || !strings.Contains(err.Error(), fenced) {
		t.Errorf("without the row: %v", err)
	}
}

func TestARaiseNotesWhereTheLogStood(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	for partition, commits := range map[string]int64{"a": 3, "b": 2} {
		p.exec("INSERT INTO sync_partitions VALUES (?, ?, 0)", partition, commits)
		for seq := range commits {
			if err := p.commit(partition, seq+1, 6); err != nil {
				t.Fatal(err)
			}
		}
	}
	apply(t, store, version7())
	history, err := readHistory(testContext(t), store.db, mustObjects(t, store))
	if err != nil {
		t.Fatal(err)
	}
	raised := history[len(history)-1].Raised
	same(t, "positions", fmt.Sprint(raised), fmt.Sprint(map[string]int64{"*": 5, "a": 3, "b": 2}))
	same(t, "complete", isComplete(raised), true)
	same(t, "complete without one", isComplete(map[string]int64{"*": 5, "a": 3}), false)
}

func mustObjects(t testing.TB, store *Store) schemaObjects {
	t.Helper()
	objects, err := readObjects(testContext(t), store.db)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}
