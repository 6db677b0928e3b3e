package testdb

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// serverVariable names the environment variable with the URL of a server
	// to use instead of starting one.
	serverVariable = "SYNCBARRIER_TEST_POSTGRES"
	// idlePeriod is how long the shared server lives without a user.
	idlePeriod = 10 * time.Minute
	// useTimeout bounds how long a test waits for the shared server: another
	// process may be downloading and starting it.
	useTimeout = downloadTimeout + startTimeout + time.Minute
)

// ErrInUse says that a shared server was left running, because test processes
// still use it. Its watchdog stops it when they are done.
var ErrInUse = errors.New("the shared test server is in use")

// sharedServer returns the URL of a superuser on the shared server, which it
// starts if it does not run. This process counts as a user until it ends.
var sharedServer = sync.OnceValues(func() (string, error) {
	if dsn := os.Getenv(serverVariable); dsn != "" {
		return dsn, nil
	}
	found, err := findBinaries(0)
	if err != nil {
		return "", err
	}
	return newSharedRun(found).use(found)
})

// StartShared starts the shared server, if it does not run yet, before any test
// needs it. It is for the command that prepares a test run.
func StartShared() error {
	_, err := sharedServer()
	return err
}

// StopShared stops the shared servers of this user, of every version. It
// returns ErrInUse if it left one running.
func StopShared() error {
	folders, err := runFolders()
	if err != nil {
		return err
	}
	var failures []error
	for _, folder := range folders {
		failures = append(failures, sharedRun{folder: folder}.stopUnused())
	}
	return errors.Join(failures...)
}

// sharedRun is a server that several test processes use. Its folder holds
//
//	users        every user holds a shared lock on it; who holds it alone may end the run
//	lock         held while the server is looked for or started
//	server.json  where the server is
//	server/      the server's own folder
type sharedRun struct {
	folder string
	idle   time.Duration
}

// newSharedRun names the run after everything that makes two servers differ.
func newSharedRun(found binaries) sharedRun {
	differences := []string{found.folder}
	for name, value := range settingsFor(false, nil) {
		differences = append(differences, name+"="+value)
	}
	slices.Sort(differences)
	hash := sha256.Sum256([]byte(strings.Join(differences, "\n")))
	name := fmt.Sprintf("%spg%d-%s", runFolderPrefix(), found.major, hex.EncodeToString(hash[:4]))
	return sharedRun{folder: filepath.Join(throwaway(), name), idle: idlePeriod}
}

func runFolderPrefix() string {
	return fmt.Sprintf("syncbarrier-testdb-%d-", os.Geteuid())
}

// sharedState is the content of server.json.
type sharedState struct {
	BinFolder string `json:"binFolder"`
	Major     int    `json:"major"`
	Port      int    `json:"port"`
	Password  string `json:"password"`
	PID       int    `json:"pid"`
}

func (r sharedRun) stateFile() string    { return filepath.Join(r.folder, "server.json") }
func (r sharedRun) usersFile() string    { return filepath.Join(r.folder, "users") }
func (r sharedRun) serverFolder() string { return filepath.Join(r.folder, "server") }

// heldUsers keeps the locks of this process alive: a file that nothing refers
// to is closed by the garbage collector, and the lock ends with it.
var heldUsers []*fileLock

// use registers this process as a user until its end and returns the server's
// URL.
func (r sharedRun) use(found binaries) (string, error) {
	users, dsn, err := r.join(found)
	if err != nil {
		return "", err
	}
	heldUsers = append(heldUsers, users)
	return dsn, nil
}

// join takes a user's lock and finds or starts the server. While the lock is
// held nobody ends the run.
func (r sharedRun) join(found binaries) (*fileLock, string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), useTimeout)
	defer cancel()
	users, err := r.lockUsers(ctx)
	if err != nil {
		return nil, "", err
	}
	dsn, err := r.findOrStart(ctx, found)
	if err != nil {
		users.release()
		return nil, "", err
	}
	return users, dsn, nil
}

// lockUsers makes the folder and takes a user's lock in it. The run may end,
// and its folder go, between the two.
func (r sharedRun) lockUsers(ctx context.Context) (*fileLock, error) {
	for {
		if err := r.makeFolder(); err != nil {
			return nil, err
		}
		users, err := lockFile(ctx, r.usersFile(), shared)
		if !errors.Is(err, fs.ErrNotExist) {
			return users, err
		}
	}
}

// makeFolder makes the run's folder, and refuses one that another user made:
// the temporary folder is everybody's, and what is in the run's is executed.
func (r sharedRun) makeFolder() error {
	if err := os.Mkdir(r.folder, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(r.folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the run has just ended: lockUsers comes back
	}
	if err != nil {
		return err
	}
	status, known := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !known || int(status.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s is not a folder that this user alone can write", r.folder)
	}
	return nil
}

// findOrStart returns the URL of the run's server, which one process starts
// while the others wait.
func (r sharedRun) findOrStart(ctx context.Context, found binaries) (string, error) {
	lock, err := lockFile(ctx, filepath.Join(r.folder, "lock"), exclusive)
	if err != nil {
		return "", err
	}
	defer lock.release()
	if state, err := r.readState(); err == nil {
		dsn := serverURL(state.Port, state.Password, "postgres")
		if ping(ctx, dsn) == nil {
			return dsn, nil
		}
	}
	// What is there, if anything, is the rest of a server that crashed, or
	// whose start was interrupted.
	if err := r.stopServer(); err != nil {
		return "", err
	}
	return r.startServer(found)
}

// startServer makes and starts the server, and its watchdog.
func (r sharedRun) startServer(found binaries) (string, error) {
	user, err := serverAccount()
	if err != nil {
		return "", err
	}
	if err := user.folder(r.serverFolder()); err != nil {
		return "", err
	}
	server, err := newCluster(found, user, r.serverFolder(), settingsFor(false, nil))
	if err != nil {
		return "", err
	}
	if err := server.start(); err != nil {
		return "", errors.Join(err, server.stop(syscall.SIGQUIT))
	}
	state := sharedState{
		BinFolder: found.folder, Major: found.major,
		Port: server.port, Password: server.password, PID: server.process.Process.Pid,
	}
	if err := errors.Join(r.writeState(state), r.startWatchdog()); err != nil {
		return "", errors.Join(err, server.stop(syscall.SIGQUIT))
	}
	return server.dsn("postgres"), nil
}

func (r sharedRun) readState() (sharedState, error) {
	content, err := os.ReadFile(r.stateFile())
	if err != nil {
		return sharedState{}, err
	}
	var state sharedState
	err = json.Unmarshal(content, &state)
	return state, err
}

func (r sharedRun) writeState(state sharedState) error {
	content, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return os.WriteFile(r.stateFile(), content, 0o600)
}

// stopServer stops what runs in the run's folder and removes its data.
func (r sharedRun) stopServer() error {
	if err := os.Remove(r.stateFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	server := cluster{folder: r.serverFolder()}
	if err := server.stop(syscall.SIGQUIT); err != nil {
		return err
	}
	return os.RemoveAll(r.serverFolder())
}

// stopUnused ends the run and removes its folder, unless somebody uses it.
func (r sharedRun) stopUnused() error {
	users, err := tryLockFile(r.usersFile(), exclusive)
	if errors.Is(err, errLocked) {
		return fmt.Errorf("%s: %w", r.folder, ErrInUse)
	}
	if err != nil {
		return err
	}
	defer users.release()
	return r.end()
}

// end stops the server and removes the folder. The caller holds the lock of the
// users alone.
func (r sharedRun) end() error {
	if err := r.stopServer(); err != nil {
		return err
	}
	return os.RemoveAll(r.folder)
}
