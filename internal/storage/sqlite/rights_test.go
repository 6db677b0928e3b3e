package sqlite

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Rights mean nothing to root, so these tests run their subject in a child process: this test binary again, as an account that has none.

// childVariable tells the test binary, started again, what to do instead of testing.
const childVariable = "SYNCBARRIER_SQLITE_CHILD"

// childTasks are what a child process can do. It gets the path of a file, and what it prints is handed to the test.
var childTasks = map[string]func(path string) error{
	"open":  childOpen,
	"apply": childApply,
}

func TestMain(m *testing.M) {
	task, ok := childTasks[os.Getenv(childVariable)]
	if !ok {
		os.Exit(m.Run())
	}
	if err := task(os.Args[len(os.Args)-1]); err != nil {
		fmt.Println(storage.CodeOf(err), err)
		os.Exit(1)
	}
	fmt.Println("done")
	os.Exit(0)
}

func childOpen(path string) error {
	store, err := Open(contextOfChild(), Config{Path: path})
	if err == nil {
		store.Close()
	}
	return err
}

func childApply(path string) error {
	store, err := Open(contextOfChild(), Config{Path: path})
	if err != nil {
		return err
	}
	defer store.Close()
	_, err = store.EnsureSchema(contextOfChild(), version6(), storage.Attempt{Number: 1})
	return err
}

// child prepares this test binary to run a task.
func child(t testing.TB, task, path string) *exec.Cmd {
	t.Helper()
	command := exec.CommandContext(testContext(t), os.Args[0], path)
	command.Env = append(os.Environ(), childVariable+"="+task)
	return command
}

// asNobody runs a task as an account without rights, and gives what it printed.
func asNobody(t testing.TB, task, path string) string {
	t.Helper()
	// The test binary lies in a directory that only its owner may enter.
	binary := filepath.Join(publicDirectory(t), "test")
	content, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(binary, content, 0o755); err != nil {
		t.Fatal(err)
	}
	command := child(t, task, path)
	command.Path, command.Dir = binary, "/"
	if os.Getuid() == 0 {
		nobody, err := user.Lookup("nobody")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseUint(nobody.Uid, 10, 32)
		gid, _ := strconv.ParseUint(nobody.Gid, 10, 32)
		command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("run %s as nobody: %v", task, err)
	}
	return string(output)
}

// publicDirectory is a directory that every account may enter, and whose parents it may enter too.
func publicDirectory(t testing.TB) string {
	t.Helper()
	directory, err := os.MkdirTemp("", "syncbarrier-rights-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(directory) })
	if err := os.Chmod(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	return directory
}

// plainFile makes a database with one table and no write-ahead log, readable by everybody.
func plainFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(publicDirectory(t), "app.db")
	p := openProgram(t, path)
	p.exec("CREATE TABLE mine(i INTEGER)")
	_ = p.db.Close()
	return path
}

func TestMissingRightsAreNamed(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		file, directory os.FileMode
		task            string
		want            storage.Code
	}{
		"a file that may not be read":             {0o600, 0o755, "open", storage.CodeAuthenticationFailed},
		"a file that may not be written":          {0o644, 0o755, "open", storage.CodeReadOnly},
		"a directory that may not be entered":     {0o666, 0o700, "open", storage.CodeAuthenticationFailed},
		"a directory that takes no journal":       {0o666, 0o755, "apply", storage.CodeReadOnly},
		"a file and a directory that take writes": {0o666, 0o777, "apply", "done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := plainFile(t)
			if err := os.Chmod(path, tt.file); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(filepath.Dir(path), tt.directory); err != nil {
				t.Fatal(err)
			}
			if output := asNobody(t, tt.task, path); !strings.HasPrefix(output, string(tt.want)) {
				t.Errorf("got %q, want %q", output, tt.want)
			}
		})
	}
}

func TestAWriteAheadLogInADirectoryThatTakesNoFilesIsNamed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(publicDirectory(t), "app.db")
	p := openProgram(t, path)
	p.exec("PRAGMA journal_mode = WAL")
	p.exec("CREATE TABLE mine(i INTEGER)")
	_ = p.db.Close() // the last connection takes -wal and -shm with it
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	output := asNobody(t, "open", path)
	if !strings.HasPrefix(output, string(storage.CodeAuthenticationFailed)) && !strings.HasPrefix(output, string(storage.CodeReadOnly)) {
		t.Errorf("got %q, want a missing right", output)
	}
}
