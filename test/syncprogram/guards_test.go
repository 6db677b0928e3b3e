package syncprogram

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

func TestItsTriggerMadeAgainAtEveryStartLeavesOurFenceWhole(t *testing.T) {
	ourScene(t, func(s *scene) {
		old := s.started(Options{Age: Newer, Schema: schemaAt(6)})
		s.apply(targetAt(7, noteWords(7)))
		s.fill("note-words")

		const starts = 8
		started := make(chan error, 1)
		go func() {
			defer close(started)
			for range starts {
				p := s.process(Options{Age: Newer, Schema: schemaAt(7)})
				if err := p.EnsureSchema(s.ctx); err != nil {
					started <- err
					return
				}
			}
		}()
		var refused int
		for running := true; running; refused++ {
			select {
			case err := <-started:
				s.must(err, "start the program of version 7")
				running = false
			default:
			}
			_, err := Push(s.ctx, old, notesAt(6), fmt.Sprintf("new-%d", refused), "old", noteValues(6, "Old"))
			s.refusedBy(err, storage.CodeWriterFenceRejected, "an old push to a new partition while programs start")
		}
		same(s, "old commits in new partitions", s.observer.Number(`SELECT count(*) FROM sync_commits WHERE partition LIKE 'new-%'`), 0)
		same(s, "starts without their trigger", s.triggerOfTheProgram(), true)
		s.promisesKept()

		next := noteWords(8)
		next.Name = "note-words-again"
		s.apply(targetAt(8, noteWords(7), next))
		s.fill(next.Name)
		s.promisesKept()
	})
}

// triggerOfTheProgram says whether the program's own trigger stands beside ours.
func (s *scene) triggerOfTheProgram() bool {
	s.Helper()
	query := `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'sync_commits'::regclass AND tgname = 'sync_commits_writer_fence'`
	if s.db.Dialect == storage.SQLite {
		query = `SELECT count(*) FROM sqlite_master WHERE type = 'trigger' AND name = 'sync_commits_writer_fence'`
	}
	return s.observer.Number(query) == 1
}

// ourVersion8 leaves the layouts as they are, so that nothing but the marker stands in a stale migrator's way.
func ourVersion8() storage.Target {
	target := targetAt(8, noteWords(8))
	target.Tables[0] = ours(notesAt(6))
	return target
}

func TestAStaleMigratorCannotLowerTheMarker(t *testing.T) {
	for _, age := range []Age{Older, Newer} {
		t.Run(age.String(), func(t *testing.T) {
			ourScene(t, func(s *scene) {
				stale := s.process(Options{Age: age, Schema: Schema{Version: 7, Tables: []Table{notesAt(6)}}, MarkerRead: func(context.Context) error {
					s.apply(ourVersion8())
					return nil
				}})
				s.refusedBy(stale.EnsureSchema(s.ctx), storage.CodeMarkerGuard, "the stale migration to 7")
				same(s, "the marker", s.marker(), 8)
				s.fill("note-words")
				s.promisesKeptAt(6)
				s.wordsRight()
			})
		})
	}
}

// Layouts that were read before the lock describe payloads that are no more.
func TestAStaleMigratorThatRewritesRowsLeavesThemReadable(t *testing.T) {
	ourScene(t, func(s *scene) {
		stale := s.process(Options{Age: Newer, Schema: schemaAt(7), MarkerRead: func(context.Context) error {
			s.apply(targetAt(8, noteWords(8)))
			return nil
		}})
		if err := stale.EnsureSchema(s.ctx); err == nil {
			s.Errorf("a migration from layouts of before our barrier succeeded")
		}
		same(s, "the marker", s.marker(), 8)
		s.fill("note-words")
		s.promisesKept()
		s.wordsRight()
	})
}

// On PostgreSQL a migrator really waits behind a barrier that is under way. SQLite has no such queue: who begins later waits inside
// BEGIN IMMEDIATE, which the test above comes to by order.
func TestAStaleMigratorThatWaitedBehindOurBarrierCannotLowerTheMarker(t *testing.T) {
	for _, age := range []Age{Older, Newer} {
		t.Run(age.String(), func(t *testing.T) {
			t.Parallel()
			s := sceneMadeBy(t, databases.New(t, storage.PostgreSQL), madeByUs)
			target := targetAt(8, noteWords(8))
			target.Lock.TimeoutMilliseconds = 60_000
			target.Migrations = []storage.Migration{{Version: 8, SQL: `SELECT pg_advisory_xact_lock_shared(4711)`}}
			s.observer.Exec(`SELECT pg_advisory_lock(4711)`)

			watcher, ours, inside, theirs := s.db.Session(t), make(chan error, 1), make(chan struct{}), make(chan error, 1)
			stale := s.process(Options{Age: age, Schema: Schema{Version: 7, Tables: []Table{notesAt(6)}}, MarkerRead: func(ctx context.Context) error {
				go func() { ours <- s.attempt(target) }()
				select {
				case <-inside:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}})
			go func() { theirs <- stale.EnsureSchema(s.ctx) }()
			// Our barrier holds all its locks and is inside its SQL.
			watcher.WaitUntil(`SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`)
			close(inside)
			watcher.WaitBlocked(map[Age]string{Older: `INDEX`, Newer: `LOCK TABLE sync_partitions`}[age])
			s.observer.Exec(`SELECT pg_advisory_unlock(4711)`)

			s.must(<-ours, "our barrier")
			s.refusedBy(<-theirs, storage.CodeMarkerGuard, "the migration that waited behind our barrier")
			same(s, "the marker", s.marker(), 8)
			s.fill("note-words")
			s.promisesKept()
			s.wordsRight()
		})
	}
}

func TestItsHorizonWriteCannotGoBack(t *testing.T) {
	ourScene(t, func(s *scene) {
		s.apply(targetAt(7, noteWords(7)))
		program := s.started(Options{Age: Newer, Schema: schemaAt(7)}, Declaration{Partition: "*", Name: "note-words"})
		for i := range 8 {
			s.push(program, 7, "a", fmt.Sprintf("more-%d", i), "More")
		}
		s.fill("note-words")
		// Two pruners: the one that was asked for less writes its horizon last.
		s.must(program.Prune(s.ctx, "a", 9), "prune to 9")
		s.must(program.SetHorizonSeq(s.ctx, "a", 9), "write horizon 9")
		s.must(program.Prune(s.ctx, "a", 5), "prune to 5")
		s.must(program.SetHorizonSeq(s.ctx, "a", 5), "write horizon 5")
		same(s, "the horizon", s.observer.Number(`SELECT horizon_seq FROM sync_partitions WHERE partition = 'a'`), 9)
		for _, watermark := range []int64{5, 8} {
			coverage, err := s.store.HasSourceChangesAbove(s.ctx, "a", []string{"labels"}, watermark)
			s.must(err, "ask for coverage")
			same(s, fmt.Sprintf("coverage above %d, whose log is gone", watermark), coverage.Verdict, storage.Unverifiable)
			theirs, err := program.HasSourceChangesAbove(s.ctx, "a", []string{"labels"}, watermark)
			s.must(err, "ask the program for coverage")
			same(s, fmt.Sprintf("the program's coverage above %d", watermark), theirs, Unverifiable)
		}
		s.promisesKept()
	})
}

func TestAPruneWithoutItsHorizonIsNoProofOfCoverage(t *testing.T) {
	ourScene(t, func(s *scene) {
		program := s.started(Options{Age: Newer, Schema: schemaAt(6)})
		s.must(program.Prune(s.ctx, "a", 4), "prune, and die before the horizon is written")
		coverage, err := s.store.HasSourceChangesAbove(s.ctx, "a", []string{"labels"}, 2)
		s.must(err, "ask for coverage")
		same(s, "coverage above 2", coverage.Verdict, storage.Unverifiable)
		coverage, err = s.store.HasSourceChangesAbove(s.ctx, "a", []string{"labels"}, 4)
		s.must(err, "ask for coverage")
		same(s, "coverage above 4", coverage.Verdict, storage.Clean)
	})
}

// On SQLite every append ends before a declaration begins, by BEGIN IMMEDIATE.
func TestItsDeclarationWaitsForOpenAppendsOfThePartition(t *testing.T) {
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			s := sceneMadeBy(t, databases.New(t, storage.PostgreSQL), madeByUs)
			old := s.started(Options{Age: Newer, Schema: schemaAt(6), Isolation: isolation})
			newer := s.started(Options{Age: Newer, Schema: schemaAt(6)})
			watcher := s.db.Session(t)

			open := s.openAppend(old, "a", "before")
			declared := make(chan error, 1)
			go func() {
				_, err := newer.DeclareCheckpoint(s.ctx, "a", "theirs", 7)
				declared <- err
			}()
			watcher.WaitBlocked("sync_writer_fence")
			s.must(open.Commit(s.ctx), "commit the append that was open before the fence")
			s.must(<-declared, "declare")

			raised := s.observer.Number(`SELECT max_commit_seq FROM sync_partitions WHERE partition = 'a'`)
			_, err := Push(s.ctx, old, notesAt(6), "a", "after", noteValues(6, "After"))
			s.refusedBy(err, storage.CodeWriterFenceRejected, "an old push after the declaration")
			same(s, "old commits above the raise", s.storedBelow("a", 7, raised), 0)
			s.push(old, 6, "b", "elsewhere", "Another partition has no such fence")
			s.promisesKept()
		})
	}
}

// openAppend leaves a push of a note open, its commit appended and not committed.
func (s *scene) openAppend(p Process, partition, id string) Transaction {
	s.Helper()
	tx, err := p.Begin(s.ctx, partition)
	s.must(err, "begin")
	s.Cleanup(func() { tx.Rollback(context.Background()) })
	s.must(tx.LockPartition(s.ctx), "lock the partition")
	payload, err := EncodeRow(notesAt(6).Columns, noteValues(6, id))
	s.must(err, "encode")
	s.must(tx.UpsertRow(s.ctx, "notes", Row{RowID: id, ServerVersion: 1, Scopes: `{}`, Payload: payload}), "write a note")
	_, err = tx.AppendCommit(s.ctx, Commit{ClientID: "c", ClientCommitID: id, ActorID: "a", Changes: []Change{{Table: "notes", RowID: id, Payload: payload}}})
	s.must(err, "append")
	return tx
}

func TestAnOlderSnapshotDoesNotPassAFenceThatTheProgramRaised(t *testing.T) {
	for _, isolation := range []string{"repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			s := sceneMadeBy(t, databases.New(t, storage.PostgreSQL), madeByUs)
			old := s.started(Options{Age: Newer, Schema: schemaAt(6), Isolation: isolation})
			newer := s.started(Options{Age: Newer, Schema: schemaAt(6)})
			for _, partition := range []string{"a", "never-seen"} {
				tx, err := old.Begin(s.ctx, partition)
				s.must(err, "begin")
				_, err = tx.ReadServeGate(s.ctx) // takes the snapshot
				s.must(err, "read the gate")
				_, err = newer.DeclareCheckpoint(s.ctx, partition, "theirs-"+partition, 7)
				s.must(err, "declare")
				_, err = tx.AppendCommit(s.ctx, Commit{ClientID: "c", ClientCommitID: "c", ActorID: "a"})
				if err == nil {
					err = tx.Commit(s.ctx)
				}
				tx.Rollback(s.ctx)
				if err == nil {
					s.Errorf("partition %s: an old append with a snapshot from before the fence was stored", partition)
				}
				same(s, "old commits in partition "+partition+" above the raise",
					s.observer.Number(`SELECT count(*) FROM sync_commits WHERE partition = $1 AND client_id = 'c'`, partition), 0)
			}
		})
	}
}

func TestAnOpenPushOfTheProgramHoldsOurBarrierUpAndIsNotHarmed(t *testing.T) {
	ourScene(t, func(s *scene) {
		program := s.started(Options{Age: Newer, Schema: schemaAt(6)})
		open, err := program.Begin(s.ctx, "a")
		s.must(err, "begin")
		defer open.Rollback(s.ctx)
		s.must(open.LockPartition(s.ctx), "lock the partition")
		target := targetAt(7, noteWords(7))
		target.Lock.TimeoutMilliseconds = 200
		err = s.attempt(target)
		s.wantCode(err, storage.CodeLockTimeout)
		// SQLite's lock has no name for who holds it, so there the file is named.
		named := s.db.Address
		if s.db.Dialect == storage.PostgreSQL {
			named = "blocked by session pid"
		}
		if !strings.Contains(err.Error(), named) {
			s.Errorf("the refusal does not name %q: %v", named, err)
		}
		same(s, "the marker", s.marker(), 6)
		_, err = open.AppendCommit(s.ctx, Commit{ClientID: "c", ClientCommitID: "c", ActorID: "a"})
		s.must(err, "append while our barrier waits")
		s.must(open.Commit(s.ctx), "commit")
		s.apply(target)
		s.fill("note-words")
		s.promisesKept()
	})
}

// Each partition is one that the program's snapshot shows, or one that is new to everybody.
func TestAnOlderSnapshotOfTheProgramDoesNotPassOurBarrier(t *testing.T) {
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		for _, partition := range []string{"a", "never-seen"} {
			t.Run(isolation+" "+partition, func(t *testing.T) {
				t.Parallel()
				s := sceneMadeBy(t, databases.New(t, storage.PostgreSQL), madeByUs)
				old := s.started(Options{Age: Newer, Schema: schemaAt(6), Isolation: isolation})
				tx, err := old.Begin(s.ctx, partition)
				s.must(err, "begin")
				defer tx.Rollback(s.ctx)
				_, err = tx.ReadServeGate(s.ctx) // takes the snapshot
				s.must(err, "read the gate")
				s.apply(targetAt(7, noteWords(7)))
				_, err = tx.AppendCommit(s.ctx, Commit{ClientID: "c", ClientCommitID: "c", ActorID: "a"})
				if err == nil {
					err = tx.Commit(s.ctx)
				}
				if err == nil {
					s.Errorf("an old append with a snapshot from before the barrier was stored")
				}
				same(s, "old commits behind the barrier", s.observer.Number(`SELECT count(*) FROM sync_commits WHERE client_id = 'c'`), 0)
			})
		}
	}
}
