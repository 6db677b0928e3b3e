package testdb

import (
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the user that the servers run as.
type account struct {
	uid, gid int
	// other is true when that is not the user of this process.
	other bool
}

// serverAccount returns the current user, or for root an unprivileged one:
// PostgreSQL and PgBouncer refuse to run as root.
func serverAccount() (account, error) {
	if os.Geteuid() != 0 {
		return account{uid: os.Geteuid(), gid: os.Getegid()}, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		found, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err := strconv.Atoi(found.Uid)
		if err != nil {
			return account{}, fmt.Errorf("read the user id of %s: %w", name, err)
		}
		gid, err := strconv.Atoi(found.Gid)
		if err != nil {
			return account{}, fmt.Errorf("read the group id of %s: %w", name, err)
		}
		return account{uid: uid, gid: gid, other: true}, nil
	}
	return account{}, fmt.Errorf("a database server does not run as root, and neither the user postgres nor nobody exists: create one of them, or run the tests as another user")
}

// command prepares a program to run as the account, in a session of its own:
// an interrupt typed at the terminal of the tests must not reach a server that
// other test processes use. Of the environment only the search path is passed
// on, so that no PG* variable of the user changes a server.
func (a account) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "TZ=UTC"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if a.other {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}
	}
	return cmd
}

// own gives a file or folder to the account.
func (a account) own(path string) error {
	if !a.other {
		return nil
	}
	return os.Lchown(path, a.uid, a.gid)
}

// folder makes a folder that only the account can enter.
func (a account) folder(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return a.own(path)
}

// tempFolder makes a new folder of the account's under a base folder. Its name
// is short: the path of a Unix socket in it has to stay below some 100 bytes.
func (a account) tempFolder(base string) (string, error) {
	path, err := os.MkdirTemp(base, "syncbarrier-")
	if err != nil {
		return "", err
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", err
	}
	return path, a.own(path)
}

// write writes a file that only the account can read.
func (a account) write(path, content string) error {
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return err
	}
	return a.own(path)
}

// cacheFolder returns where downloads are kept between runs: the user's cache
// folder, but for root the system's, because the servers run as a user who may
// not enter root's home.
func cacheFolder() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache/syncbarrier", nil
	}
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, "syncbarrier"), nil
}
