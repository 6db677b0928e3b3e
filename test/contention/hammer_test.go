package contention

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

// Writers of the hammer: some never learn of a new version, the others follow the marker as soon as they are refused.
const (
	stubbornWriters = 2
	followers       = 4
	hammeredTodos   = 400
	newPartition    = "late-%d" // a partition that first appears behind the barrier of a version
)

// hammer is a load of old and new writers.
type hammer struct {
	*scene
	stop chan struct{}
	wait sync.WaitGroup

	guard    sync.Mutex
	stored   map[string][]int64 // acknowledged commit numbers by partition
	refused  atomic.Int64
	stubborn atomic.Int64 // acknowledged writes of stubborn writers
}

func (s *scene) startHammer() *hammer {
	h := &hammer{scene: s, stop: make(chan struct{}), stored: map[string][]int64{}}
	for n := range stubbornWriters + followers {
		store := s.db.Store(s.T)
		h.wait.Go(func() { h.write(store, n) })
	}
	return h
}

// end lets the writers finish what they have begun.
func (h *hammer) end() {
	close(h.stop)
	h.wait.Wait()
}

func (h *hammer) write(store storage.Store, n int) {
	random := rand.New(rand.NewPCG(uint64(n), 4711))
	version := int64(firstVersion)
	for i := 0; ; i++ {
		select {
		case <-h.stop:
			return
		default:
		}
		id := int64(random.IntN(hammeredTodos))
		w := todo{partition: partitions[id%int64(len(partitions))], id: id, title: fmt.Sprintf("By %d at %d, nr %d", n, version, i), deleted: random.IntN(10) == 0}
		if random.IntN(20) == 0 {
			// Nobody has written to this partition before.
			w = todo{partition: fmt.Sprintf(newPartition, version), id: 1000*version + int64(n), title: w.title}
		}
		seq, err := write(h.ctx, store, version, w)
		switch {
		case err == nil:
			h.note(n, w.partition, seq)
		case storage.CodeOf(err) == storage.CodeWriterFenceRejected:
			h.refused.Add(1)
			if n >= stubbornWriters {
				version = h.marker(store)
			}
		case !storage.ClassOf(err).Retryable():
			h.Errorf("writer %d of version %d: %v", n, version, err)
			return
		}
	}
}

func (h *hammer) note(n int, partition string, seq int64) {
	if n < stubbornWriters {
		h.stubborn.Add(1)
	}
	h.guard.Lock()
	defer h.guard.Unlock()
	h.stored[partition] = append(h.stored[partition], seq)
}

// marker is what a refused program reads before it comes up as the next version.
func (h *hammer) marker(store storage.Store) int64 {
	gate, err := store.ReadServeGate(h.ctx, firstVersion)
	if err != nil {
		h.Errorf("read the marker: %v", err)
	}
	return gate.StoredVersion
}

// until waits for writers to have done something more.
func (h *hammer) until(what string, count *atomic.Int64, more int64) {
	h.Helper()
	goal := count.Load() + more
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for count.Load() < goal {
		select {
		case <-ticker.C:
		case <-h.ctx.Done():
			h.Fatalf("writers do not come to %d %s", goal, what)
		}
	}
}

// Barriers 7 to 10 follow one another under load, each with a backfill: in turn of all partitions and of the sixteen.
func TestBarriersFollowOneAnotherUnderOldAndNewWriters(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db, hammeredTodos)
		s.observer.Exec(`CREATE TABLE raised_at(version bigint, partition text, position bigint)`)
		h := s.startHammer()
		h.until("writes of the first version", &h.stubborn, 10)

		var checkpoints []storage.Checkpoint
		target := targetAt(firstVersion)
		for version := int64(firstVersion + 1); version <= firstVersion+4; version++ {
			if version%2 == 1 {
				checkpoints = append(checkpoints, fill(version))
			} else {
				checkpoints = append(checkpoints, fill(version, partitions...))
			}
			migrations := append(target.Migrations, storage.Migration{Version: version, SQL: fmt.Sprintf(
				`INSERT INTO raised_at SELECT %d, partition, max_commit_seq FROM sync_partitions`, version)})
			target = targetAt(version, checkpoints...)
			target.Migrations = migrations
			result := s.apply(target)
			same(s, "outcome", result.Outcome, storage.Migrate)
			h.until("refusals", &h.refused, 3)
			s.finish(version)
			same(s, fmt.Sprintf("the gate of %d is open", version), s.gateOpen(version), true)
		}
		h.end()
		h.check(target.Version)
	})
}

func (h *hammer) check(last int64) {
	h.Helper()
	h.logDense()
	h.fenceWhole()
	for version := int64(firstVersion + 1); version <= last; version++ {
		// A partition that was not there when the fence was raised began behind it. The listed ones are the sixteen.
		listed := ""
		if version%2 == 0 {
			listed = `AND c.partition LIKE 'tenant-%'`
		}
		same(h.scene, fmt.Sprintf("commits below the fence of version %d", version), h.observer.Number(fmt.Sprintf(`
			SELECT count(*)
			  FROM sync_commits AS c
			  LEFT JOIN raised_at AS r ON r.partition = c.partition AND r.version = $1
			 WHERE c.commit_seq > coalesce(r.position, 0) AND (c.writer_version IS NULL OR c.writer_version < $1) %s`, listed), version), 0)
		h.derivedRightOf(version)
	}
	stored := 0
	for _, partition := range slices.Sorted(maps.Keys(h.stored)) {
		seqs := h.stored[partition]
		stored += len(seqs)
		slices.Sort(seqs)
		if distinct := len(slices.Compact(slices.Clone(seqs))); distinct != len(seqs) {
			h.Errorf("partition %s: %d commits share numbers", partition, len(seqs)-distinct)
		}
	}
	same(h.scene, "acknowledged commits and stored ones", h.observer.Number(`SELECT count(*) FROM sync_commits`), int64(stored))
	same(h.scene, "raise positions", h.raisedInHistory(), h.observer.Number(`SELECT CAST(sum(position) AS bigint) FROM raised_at WHERE version = 7`))
	h.Logf("%d commits stored, %d refused", stored, h.refused.Load())
	if h.refused.Load() == 0 {
		h.Error("no writer was ever refused: the test proves nothing")
	}
}

// derivedRightOf compares derived data with its definition: of all rows, or where partitions were listed, of those of the listed.
func (h *hammer) derivedRightOf(version int64) {
	h.Helper()
	condition := "(" + wrong(version) + ")"
	if version%2 == 0 {
		condition += ` AND tenant LIKE 'tenant-%'`
	}
	same(h.scene, fmt.Sprintf("wrong rows of version %d", version), h.observer.Number(`SELECT count(*) FROM todos WHERE `+condition), 0)
}

// raisedInHistory is the position of all logs together at the first raise, as the history has it.
func (h *hammer) raisedInHistory() int64 {
	h.Helper()
	status, err := h.store.Status(context.WithoutCancel(h.ctx))
	h.must(err, "read the status")
	for _, row := range status.History {
		if row.Version == firstVersion+1 {
			return row.Raised[storage.AllPartitions]
		}
	}
	return -1
}
