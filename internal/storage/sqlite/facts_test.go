package sqlite

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func factsOf(t testing.TB, store *Store, target storage.Target) storage.Facts {
	t.Helper()
	facts, err := readFacts(testContext(t), store.db, mustObjects(t, store), target)
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// manyCheckpoints adds the rows of a checkpoint in so many partitions.
const manyCheckpoints = `
	WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?)
	INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
	SELECT printf('p%06d', n), ?, ?, ?, 0 FROM c`

func TestFactsNameEveryCheckpointThatWasEverUsed(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	apply(t, store, version7())
	p := openProgram(t, path)
	p.exec(manyCheckpoints, 3, "theirs", 7, "declared")
	p.exec(manyCheckpoints, 3, "done", 5, "activated")
	p.exec("INSERT INTO sync_backfill_progress(checkpoint, kind, partition, updated_at_ms) VALUES ('given-up', 'abandoned', '*', 0)")
	facts := factsOf(t, store, version7())
	var known []string
	for _, name := range sortedKeys(facts.Known) {
		k := facts.Known[name]
		known = append(known, fmt.Sprintf("%s %d hash %t open %t abandoned %t %v", name, k.Version, k.Hash != "", k.Open, k.Abandoned, k.Tables))
	}
	same(t, "known", strings.Join(known, "\n"), strings.Join([]string{
		"done 5 hash false open false abandoned false []",
		"given-up 0 hash false open false abandoned true []",
		"theirs 7 hash false open true abandoned false []",
		"title-norm 7 hash true open true abandoned false [todos]",
	}, "\n"))
	var open []string
	for _, o := range facts.Open {
		open = append(open, fmt.Sprintf("%s %d %v", o.Name, o.Version, o.Partitions))
	}
	same(t, "open", strings.Join(open, "\n"), "theirs 7 [p000001 p000002 p000003]\ntitle-norm 7 [*]")
	same(t, "fence", facts.Fence, 7)
	same(t, "owner", *facts.Owner, clinicOwner)
	same(t, "history", len(facts.History), 2)
}

func TestAnOpenPartitionIsNeverHiddenByTheLimit(t *testing.T) {
	t.Parallel()
	path := newFile(t)
	store := openStore(t, path)
	apply(t, store, version6())
	p := openProgram(t, path)
	p.exec(manyCheckpoints, maxOpenPartitions+200, "theirs", 6, "declared")
	target := version7()
	covering := storage.Checkpoint{
		Name: "theirs", Version: 6, Backfill: storage.Backfill{Job: true}, Standalone: true,
		Sources: []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
	}
	for n := 1; n < maxOpenPartitions+200; n++ {
		covering.Partitions = append(covering.Partitions, fmt.Sprintf("p%06d", n))
	}
	target.Checkpoints = append(target.Checkpoints, covering)
	last := fmt.Sprintf("p%06d", maxOpenPartitions+200)
	refuse(t, store, target, storage.CodeCheckpointIncomplete, "theirs", last)
	target.Checkpoints[1].Partitions = append(target.Checkpoints[1].Partitions, last)
	same(t, "outcome", apply(t, store, target).Outcome, storage.Migrate)
}

// TestTheLockIsHeldNoLongerTheMorePartitionsThereAre: a checkpoint of all partitions is one row, whatever their number.
func TestTheLockIsHeldNoLongerTheMorePartitionsThereAre(t *testing.T) {
	t.Parallel()
	held := map[int]time.Duration{}
	for _, partitions := range []int{1, 20_000} {
		path := newFile(t)
		store := openStore(t, path)
		apply(t, store, version6())
		p := openProgram(t, path)
		p.exec(`WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < ?)
			INSERT INTO sync_partitions SELECT printf('p%06d', n), 5, 0 FROM c`, partitions)
		p.exec(manyCheckpoints, partitions, "done", 5, "activated")
		held[partitions] = apply(t, store, version7()).LockHold
		same(t, "checkpoint rows added", p.number("SELECT count(*) FROM sync_backfill_checkpoints WHERE name = 'title-norm'"), 1)
	}
	t.Logf("held %v", held)
	if held[20_000] > held[1]+500*time.Millisecond {
		t.Errorf("held %v, want it flat", held)
	}
}
