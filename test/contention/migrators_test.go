package contention

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

const migrators = 8

func TestOfEightMigratorsOneExecutesAndSevenAgree(t *testing.T) {
	for name, setting := range map[string]string{
		"as the database is":                 "",
		"where repeatable read is the habit": "default_transaction_isolation = 'repeatable read'",
	} {
		t.Run(name, func(t *testing.T) {
			databases.Each(t, func(t *testing.T, db databases.Database) {
				s := newScene(t, db, 100)
				if setting != "" && db.Dialect == storage.PostgreSQL {
					s.observer.Exec(fmt.Sprintf(`ALTER DATABASE %q SET %s`, s.observer.Text(`SELECT current_database()`), setting))
				}
				target := targetAt(7, fill(7))
				target.Migrations = []storage.Migration{{Version: 7, SQL: `CREATE TABLE once (i integer)`}}
				outcomes := map[string]int{}
				for _, outcome := range s.applyByProcesses(target) {
					outcomes[outcome]++
				}
				same(s, "migrators that executed", outcomes[string(storage.Migrate)], 1)
				same(s, "migrators that agreed", outcomes[string(storage.Agreed)], migrators-1)
				same(s, "checkpoint rows", s.observer.Number(`SELECT count(*) FROM sync_backfill_checkpoints`), 1)
				same(s, "history rows of version 7", s.observer.Number(`SELECT count(*) FROM sync_barrier_history WHERE version = 7`), 1)
				s.finish(7)
				s.derivedRight(7)
				s.fenceWhole()
			})
		})
	}
}

// applyByProcesses lets all migrators go at once and gives their outcomes. On PostgreSQL none gets its locks before all have looked at the
// database and wait in the queue; SQLite has no queue to see.
func (s *scene) applyByProcesses(target storage.Target) []string {
	s.Helper()
	release := func() {}
	if s.db.Dialect == storage.PostgreSQL {
		target.Lock.TimeoutMilliseconds = 60_000
		holder := s.db.Session(s.T)
		holder.Exec(`BEGIN`)
		holder.Exec(`LOCK TABLE todos, sync_partitions, sync_commits, sync_schema_meta IN ROW EXCLUSIVE MODE`)
		release = func() {
			s.observer.WaitUntil(`
				SELECT CAST(count(*) >= $1::bigint AS integer) FROM pg_stat_activity
				WHERE datname = current_database() AND wait_event_type = 'Lock'`, migrators)
			holder.Exec(`COMMIT`)
		}
	}
	var all []*process
	for range migrators {
		all = append(all, begin(s.T, task{Database: s.db, Apply: &target}))
	}
	for _, p := range all {
		p.await("ready")
	}
	for _, p := range all {
		p.goOn()
	}
	release()
	var outcomes []string
	for _, p := range all {
		outcomes = append(outcomes, p.await("ended"))
	}
	s.Logf("outcomes: %v", outcomes)
	return outcomes
}

func TestOfTwoOwnersAtOnceOneIsRefused(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db, 0)
		s.observer.Exec(`DELETE FROM todos`)
		one, other := targetAt(7), targetAt(7)
		other.Owner = storage.Owner{Cluster: "c2", Namespace: "shop", Name: "clinic"}
		// The clinic of the scene belongs to the first; both want more at once.
		var wait sync.WaitGroup
		errs := map[string]error{}
		var guard sync.Mutex
		for name, target := range map[string]storage.Target{"one": one, "other": other} {
			store := db.Store(t)
			wait.Go(func() {
				_, err := (&barrier.Engine{Store: store}).Apply(s.ctx, target)
				guard.Lock()
				defer guard.Unlock()
				errs[name] = err
			})
		}
		wait.Wait()
		s.must(errs["one"], "apply as the owner")
		s.wantCode(errs["other"], storage.CodeConflict)
		if err := errs["other"]; err == nil || !strings.Contains(err.Error(), one.Owner.String()) {
			s.Errorf("the refusal does not name the owner: %v", err)
		}

		other = targetAt(8, fill(8))
		other.Owner, other.TakeOver = storage.Owner{Cluster: "c2", Namespace: "shop", Name: "clinic"}, one.Owner.String()
		s.apply(other)
		_, err := s.store.EnsureSchema(s.ctx, targetAt(9, fill(8), fill(9)), storage.Attempt{Number: 1})
		s.wantCode(err, storage.CodeConflict)
		wrong := targetAt(9, fill(8), fill(9))
		wrong.TakeOver = one.Owner.String()
		_, err = s.store.EnsureSchema(s.ctx, wrong, storage.Attempt{Number: 1})
		s.wantCode(err, storage.CodeConflict)
		same(s, "the marker", s.observer.Number(`SELECT schema_version FROM sync_schema_meta WHERE id = 1`), 8)
		s.fenceWhole()
	})
}

func TestOfTwoOwnersOfAFreshDatabaseOneIsFirst(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		ctx := t.Context()
		codes := make(chan storage.Code, 2)
		for _, name := range []string{"clinic", "billing"} {
			target := targetAt(firstVersion)
			target.Owner.Name = name
			store := db.Store(t)
			go func() {
				_, err := (&barrier.Engine{Store: store}).Apply(ctx, target)
				codes <- storage.CodeOf(err)
			}()
		}
		if got := fmt.Sprint(map[storage.Code]bool{<-codes: true, <-codes: true}); got != fmt.Sprint(map[storage.Code]bool{"": true, storage.CodeConflict: true}) {
			t.Errorf("codes %s, want one success and one %s", got, storage.CodeConflict)
		}
	})
}
