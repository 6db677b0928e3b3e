package sqlite

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func init() { childTasks["hold"] = childHold }

// childHold takes the write lock, says so, and keeps it until its input ends.
func childHold(path string) error {
	store, err := Open(contextOfChild(), Config{Path: path})
	if err != nil {
		return err
	}
	t, err := store.begin(contextOfChild(), "hold", true)
	if err != nil {
		return err
	}
	defer t.rollback(contextOfChild())
	if _, err := os.Stdout.WriteString("held\n"); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startHolder runs childHold until the test ends and returns once it holds the lock.
func startHolder(t testing.TB, path string) *exec.Cmd {
	t.Helper()
	command := child(t, "hold", path)
	if _, err := command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	output, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil || line != "held\n" {
		t.Fatalf("the holder said %q (%v)", line, err)
	}
	return command
}

func TestAStoppedProcessThatHoldsTheLockIsNamedAndNotWaitedForForEver(t *testing.T) {
	t.Parallel()
	for _, journal := range []string{"WAL", "DELETE"} {
		t.Run(journal, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			p := openProgram(t, path)
			p.exec("PRAGMA journal_mode = " + journal)
			p.exec("CREATE TABLE mine(i INTEGER)")
			holder := startHolder(t, path)
			if err := holder.Process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			store := openStore(t, path)
			target := version6()
			target.Lock.TimeoutMilliseconds = 300
			started := time.Now()
			err := refusal(t, store, target, storage.CodeLockTimeout)
			if waited := time.Since(started); waited > 10*time.Second {
				t.Errorf("waited %s with a bound of 300ms", waited)
			}
			wantText(t, err, "another process")
			if exists(t, processLockFile) {
				wantBlocker(t, err, holder.Process.Pid)
				plan, err := store.Plan(testContext(t), target)
				if err != nil {
					t.Fatal(err)
				}
				if len(plan.Blockers) != 1 || plan.Blockers[0].PID != holder.Process.Pid {
					t.Errorf("the plan names %v, want pid %d", plan.Blockers, holder.Process.Pid)
				}
			}
			// A process that is gone leaves no lock.
			if err := holder.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = holder.Wait()
			same(t, "outcome", apply(t, store, target).Outcome, storage.Migrate)
		})
	}
}

func wantBlocker(t testing.TB, err error, pid int) {
	t.Helper()
	var refused *storage.Error
	if !asStorageError(err, &refused) {
		t.Fatalf("got %v, want an error that names pid %d", err, pid)
	}
	if len(refused.Blocked) != 1 || refused.Blocked[0].PID != pid {
		t.Errorf("the error %v names %v, want pid %d", err, refused.Blocked, pid)
	}
}

func TestOurOwnOtherConnectionIsNoOtherProcess(t *testing.T) {
	t.Parallel()
	store := openWith(t, Config{Path: newFile(t), Create: true, BusyTimeout: 50 * time.Millisecond})
	apply(t, store, version6())
	first, err := store.begin(testContext(t), "hold", true)
	if err != nil {
		t.Fatal(err)
	}
	defer first.rollback(context.Background())
	_, err = store.begin(testContext(t), "wait", true)
	wantCode(t, err, storage.CodeLockTimeout)
	var refused *storage.Error
	if asStorageError(err, &refused) && len(refused.Blocked) > 0 {
		t.Errorf("named %v, want nobody: the lock is this process's own", refused.Blocked)
	}
}
