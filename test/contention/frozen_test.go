package contention

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

const frozenTodos = 600 // 15 batches

// frozenWorker is a worker of version 7 that has done three batches and was then frozen.
func (s *scene) frozenWorker() *process {
	s.Helper()
	worker := begin(s.T, task{Database: s.db, Work: fillName(7), PauseAfter: 3})
	worker.await("paused")
	worker.freeze()
	return worker
}

// resume lets a frozen worker go on, and gives how it ended.
func (s *scene) resume(worker *process) string {
	s.Helper()
	worker.thaw()
	worker.goOn()
	return worker.await("ended")
}

// endedAs checks the code that a worker ended with.
func (s *scene) endedAs(worker, ended string, codes ...storage.Code) {
	s.Helper()
	for _, code := range codes {
		if strings.HasPrefix(ended, string(code)+":") {
			return
		}
	}
	s.Errorf("%s ended with %q, want one of %v", worker, ended, codes)
}

func TestAWorkerFrozenAndResumedAfterATakeOverLeavesNothingBehind(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db, frozenTodos)
		s.apply(targetAt(7, fill(7)))
		worker := s.frozenWorker()
		before := s.filled(7)
		claim, err := s.store.ClaimAll(s.ctx, fillName(7), false)
		s.must(err, "take over")
		s.endedAs("the frozen worker", s.resume(worker), storage.CodeOwnershipLost)
		same(s, "rows filled since the take-over", s.filled(7)-before, 0)
		if _, err := s.store.ReadClaim(s.ctx, fillName(7), claim.Token); err != nil {
			s.Errorf("the new owner's claim is gone: %v", err)
		}
		s.finish(7)
		s.derivedRight(7)
		same(s, "the gate is open", s.gateOpen(7), true)
	})
}

func TestAWorkerFrozenAndResumedAfterTheActivationByAnotherChangesNothing(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db, frozenTodos)
		s.apply(targetAt(7, fill(7)))
		worker := s.frozenWorker()
		s.finish(7)
		// A program of the new version has its own say on what its column holds from now on.
		s.observer.Exec(`UPDATE todos SET title_7 = 'by a program'`)
		s.endedAs("the frozen worker", s.resume(worker), storage.CodeOwnershipLost)
		same(s, "rows that the resumed worker changed", s.observer.Number(`SELECT count(*) FROM todos WHERE title_7 <> 'by a program'`), 0)
	})
}

func TestAWorkerFrozenAndResumedAfterAnAbandonLeavesNothingBehind(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db, frozenTodos)
		s.apply(targetAt(7, fill(7)))
		worker := s.frozenWorker()
		before := s.filled(7)
		_, err := s.store.AbandonCheckpoint(s.ctx, fillName(7), 7, "a person", "it was a mistake")
		s.must(err, "abandon")
		s.endedAs("the frozen worker", s.resume(worker), storage.CodeOwnershipLost)
		same(s, "rows filled since the abandon", s.filled(7)-before, 0)
		same(s, "checkpoint rows", s.observer.Number(`SELECT count(*) FROM sync_backfill_checkpoints`), 0)
		same(s, "the gate is open without the abandoned checkpoint", s.gateOpen(7), true)
	})
}

// Epochs come back with a restore, tokens do not: the next owner of the restored database has the epochs of the frozen worker.
func TestAWorkerFrozenAndResumedAfterARestoreLeavesNothingBehind(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db, frozenTodos)
		s.apply(targetAt(7, fill(7)))
		restore := s.dump()
		worker := s.frozenWorker()
		restore()
		same(s, "rows filled in the restored database", s.filled(7), 0)
		claim, err := s.store.ClaimAll(s.ctx, fillName(7), false)
		s.must(err, "claim after the restore")
		same(s, "the epoch of the new owner, which the frozen worker has too", claim.Rows[0].OwnerEpoch, 1)
		leases, err := s.store.TakeRanges(s.ctx, claim, 0, 1)
		s.must(err, "take the ranges after the restore")
		same(s, "the lease of the new owner, which the frozen worker has too", leases[0].Epoch, 1)
		s.endedAs("the frozen worker", s.resume(worker), storage.CodeOwnershipLost)
		same(s, "rows filled by nobody", s.filled(7), 0)
		s.finish(7)
		s.derivedRight(7)
		s.fenceWhole()
	})
}

// A worker whose own claim stands in the dump is still its owner, and what it fills is right. But what it noted of the tables is no
// longer true of a database that was made anew, so it activates nothing. A file whose pages were put back is the one in which its pass
// began: there it goes on at the restored cursor.
func TestAWorkerWhoseClaimWasRestoredTooProvesOnlyWhatStillHolds(t *testing.T) {
	databases.Each(t, func(t *testing.T, db databases.Database) {
		s := newScene(t, db, frozenTodos)
		s.apply(targetAt(7, fill(7)))
		worker := s.frozenWorker()
		restore := s.dump()
		s.observer.Exec(`UPDATE todos SET title = 'after the dump', title_7 = 'lost with the restore'`)
		restore()
		ended := s.resume(worker)
		if db.Dialect == storage.PostgreSQL {
			s.endedAs("the worker", ended, storage.CodeUnverifiable)
			same(s, "the gate is open", s.gateOpen(7), false)
		} else {
			same(s, "the worker ended", ended, "done")
		}
		same(s, "rows with a wrong value", s.observer.Number(`SELECT count(*) FROM todos WHERE title_7 IS NOT NULL AND (`+wrong(7)+`)`), 0)
		s.finish(7)
		s.derivedRight(7)
		same(s, "the gate is open in the end", s.gateOpen(7), true)
	})
}

// dump keeps the database as it is, and gives a function that puts it in the place of what has become of it.
func (s *scene) dump() (restore func()) {
	s.Helper()
	if s.db.Dialect == storage.SQLite {
		return s.copyFile()
	}
	folder := s.T.TempDir()
	file := filepath.Join(folder, "dump")
	s.command("pg_dump", "--format=custom", "--file="+file, "--dbname="+s.db.Address)
	return func() {
		s.Helper()
		name := s.observer.Text(`SELECT current_database()`)
		admin := databases.Database{Dialect: s.db.Dialect, Address: strings.Replace(s.db.Address, "/"+name, "/postgres", 1)}.Session(s.T)
		admin.Exec(fmt.Sprintf(`DROP DATABASE %q WITH (FORCE)`, name))
		admin.Exec(fmt.Sprintf(`CREATE DATABASE %q TEMPLATE template0`, name))
		s.command("pg_restore", "--exit-on-error", "--no-owner", "--dbname="+s.db.Address, file)
		s.store, s.observer = s.db.Store(s.T), s.db.Session(s.T)
	}
}

func (s *scene) command(name string, arguments ...string) {
	s.Helper()
	output, err := exec.CommandContext(s.ctx, name, arguments...).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		s.Fatalf("%s is not on PATH: install the client programs of PostgreSQL (Debian: postgresql-client)", name)
	}
	if err != nil {
		s.Fatalf("%s: %v: %s", name, err, output)
	}
}

// copyFile copies the file with all that is committed, and restores it by SQLite's own means, through the pages of the file that other
// processes have open.
func (s *scene) copyFile() (restore func()) {
	s.Helper()
	s.observer.Exec(`PRAGMA wal_checkpoint(TRUNCATE)`)
	content, err := os.ReadFile(s.db.Address)
	s.must(err, "read the file")
	saved := filepath.Join(s.T.TempDir(), "copy.db")
	s.must(os.WriteFile(saved, content, 0o600), "write the copy")
	return func() {
		s.Helper()
		s.observer.Restore(saved)
		s.store, s.observer = s.db.Store(s.T), s.db.Session(s.T)
	}
}

// A batch whose statement the server still runs when its worker freezes: rows are locked and changed, nothing is committed. SQLite has no such
// state for others to see; there a process that is stopped inside a batch keeps the file's lock, and is named in every refusal.
func TestAWorkerFrozenInTheMiddleOfABatchLosesTheWholeBatch(t *testing.T) {
	s := newScene(t, databases.New(t, storage.PostgreSQL), frozenTodos)
	s.observer.Exec(`CREATE TABLE held(yes boolean)`)
	s.observer.Exec(`
		CREATE FUNCTION once_released(value text) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
		BEGIN
		  WHILE EXISTS (SELECT FROM held) LOOP
		    PERFORM pg_sleep(0.002);
		  END LOOP;
		  RETURN value;
		END $$`)
	slow := fill(7)
	slow.Backfill.Update.Set[columnOf(7)] = "once_released(" + derivedBy(7) + ")"
	s.apply(targetAt(7, slow))
	s.observer.Exec(`INSERT INTO held VALUES (true)`)
	worker := begin(t, task{Database: s.db, Work: fillName(7), PauseAfter: 1})
	s.observer.WaitUntil(`
		SELECT count(*) FROM pg_stat_activity
		WHERE datname = current_database() AND state = 'active' AND wait_event = 'PgSleep'`)
	worker.freeze()

	_, err := s.store.ClaimAll(s.ctx, fillName(7), false)
	s.must(err, "take over while the batch is under way")
	s.observer.Exec(`DELETE FROM held`)
	worker.thaw()
	s.endedAs("the frozen worker", worker.await("ended"), storage.CodeOwnershipLost)
	same(s, "rows filled", s.filled(7), 0)
	s.finish(7)
	s.derivedRight(7)
}
