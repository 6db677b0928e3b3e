package testdb

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// newTestRun returns a run apart from the one that the tests use, with a short
// name: its server has a Unix socket in it.
func newTestRun(t *testing.T, idle time.Duration) (sharedRun, binaries) {
	t.Helper()
	found, err := findBinaries(0)
	if err != nil {
		t.Fatal(err)
	}
	base, err := os.MkdirTemp("", "syncbarrier-")
	if err != nil {
		t.Fatal(err)
	}
	// The account of the server must be able to enter it.
	if err := os.Chmod(base, 0o755); err != nil {
		t.Fatal(err)
	}
	run := sharedRun{folder: filepath.Join(base, "run"), idle: idle}
	t.Cleanup(func() {
		if err := errors.Join(run.stopServer(), os.RemoveAll(base)); err != nil {
			t.Errorf("remove the run: %v", err)
		}
	})
	return run, found
}

func TestManyUsersAtOnceShareOneServer(t *testing.T) {
	run, found := newTestRun(t, time.Minute)
	const users = 8
	locks, urls, failures := make([]*fileLock, users), make([]string, users), make([]error, users)
	var group sync.WaitGroup
	for i := range users {
		group.Go(func() {
			locks[i], urls[i], failures[i] = run.join(found)
		})
	}
	group.Wait()
	for i := range users {
		if failures[i] != nil {
			t.Fatalf("user %d: %v", i, failures[i])
		}
		if urls[i] != urls[0] {
			t.Errorf("user %d got another server than user 0", i)
		}
	}

	if err := run.stopUnused(); !errors.Is(err, ErrInUse) {
		t.Errorf("stop while it is used: %v, want %v", err, ErrInUse)
	}
	for _, lock := range locks {
		lock.release()
	}
	if err := run.stopUnused(); err != nil {
		t.Errorf("stop when nobody uses it: %v", err)
	}
	if _, err := os.Stat(run.folder); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the folder of the run is still there: %v", err)
	}
}

func TestAServerThatCrashedIsReplaced(t *testing.T) {
	run, found := newTestRun(t, time.Minute)
	first, firstURL, err := run.join(found)
	if err != nil {
		t.Fatal(err)
	}
	defer first.release()
	crashed := cluster{folder: run.serverFolder()}
	if err := crashed.kill(); err != nil {
		t.Fatal(err)
	}

	second, secondURL, err := run.join(found)
	if err != nil {
		t.Fatal(err)
	}
	defer second.release()
	if firstURL == secondURL {
		t.Error("the new server has the password and port of the old one")
	}
	if err := ping(t.Context(), secondURL); err != nil {
		t.Errorf("the new server does not answer: %v", err)
	}
}

func TestTheWatchdogEndsARunThatNobodyUses(t *testing.T) {
	run, found := newTestRun(t, time.Second)
	user, url, err := run.join(found)
	if err != nil {
		t.Fatal(err)
	}
	// The server is used for longer than the idle period, and lives.
	inUse, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	for pause(inUse) == nil {
		if err := ping(t.Context(), url); err != nil {
			t.Fatalf("the server was ended while it was used: %v", err)
		}
	}

	user.release()
	waiting, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		if _, err := os.Stat(run.folder); errors.Is(err, os.ErrNotExist) {
			break
		}
		if err := pause(waiting); err != nil {
			t.Fatalf("the run is still there: %v", err)
		}
	}
	if err := ping(t.Context(), url); err == nil {
		t.Error("the server still answers")
	}
}

func TestAFolderThatOthersCanWriteIsRefused(t *testing.T) {
	run := sharedRun{folder: filepath.Join(t.TempDir(), "run")}
	if err := os.Mkdir(run.folder, 0o755); err != nil {
		t.Fatal(err)
	}
	// Not by Mkdir, whose mode the umask would change.
	if err := os.Chmod(run.folder, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := run.makeFolder(); err == nil {
		t.Error("a folder that everybody can write was accepted")
	}
}

func TestALockOnARemovedFileIsNoLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users")
	held, err := tryLockFile(path, exclusive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryLockFile(path, shared); !errors.Is(err, errLocked) {
		t.Errorf("a second lock: %v, want %v", err, errLocked)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	fresh, err := tryLockFile(path, exclusive)
	if err != nil {
		t.Fatalf("a lock on the new file: %v", err)
	}
	fresh.release()
	if sameFile(held.file, path) {
		t.Error("the removed file counts as the one at its path")
	}
	held.release()
}
