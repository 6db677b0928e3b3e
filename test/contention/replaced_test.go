package contention

import (
	"os"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

// A file that was put in the place of the one that a worker has open is another database.
func TestAWorkerWhoseFileWasReplacedLeavesNothingBehind(t *testing.T) {
	s := newScene(t, databases.New(t, storage.SQLite), frozenTodos)
	s.apply(targetAt(7, fill(7)))
	s.observer.Exec(`PRAGMA wal_checkpoint(TRUNCATE)`)
	content, err := os.ReadFile(s.db.Address)
	s.must(err, "read the file")
	worker := s.frozenWorker()
	s.store.Close()
	fresh := s.db.Address + ".restored"
	s.must(os.WriteFile(fresh, content, 0o600), "write the copy")
	for _, beside := range []string{"-wal", "-shm"} {
		s.must(os.Remove(s.db.Address+beside), "remove "+beside)
	}
	s.must(os.Rename(fresh, s.db.Address), "put the copy in place")
	s.store, s.observer = s.db.Store(s.T), s.db.Session(s.T)
	same(s, "rows filled in the restored file", s.filled(7), 0)
	claim, err := s.store.ClaimAll(s.ctx, fillName(7), false)
	s.must(err, "claim after the restore")
	same(s, "the epoch of the new owner, which the frozen worker has too", claim.Rows[0].OwnerEpoch, 1)
	s.endedAs("the frozen worker", s.resume(worker), storage.CodeConflict)
	same(s, "rows filled by nobody", s.filled(7), 0)
	s.finish(7)
	s.derivedRight(7)
}
