package testdb

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// The environment of a watchdog process: the folder of the run it watches and
// the time that the server may be idle.
const (
	watchVariable = "SYNCBARRIER_TESTDB_WATCH"
	idleVariable  = "SYNCBARRIER_TESTDB_IDLE"
)

// A watchdog is the program that started the server, run once more with the
// watchdog's environment: so it needs no program of its own, and it takes the
// same locks by the same code. It must not get as far as main, which would run
// the tests.
func init() {
	folder := os.Getenv(watchVariable)
	if folder == "" {
		return
	}
	idle, err := time.ParseDuration(os.Getenv(idleVariable))
	if err == nil {
		err = sharedRun{folder: folder, idle: idle}.watch()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testdb watchdog:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// startWatchdog starts the process that ends the run when it is idle.
func (r sharedRun) startWatchdog() error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(r.folder, "watchdog.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	watchdog := exec.Command(program)
	watchdog.Dir = "/"
	watchdog.Env = append(os.Environ(), watchVariable+"="+r.folder, idleVariable+"="+r.idle.String())
	watchdog.Stdout = log
	watchdog.Stderr = log
	// A session of its own, or the interrupt that ends the tests ends it too.
	watchdog.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := watchdog.Start(); err != nil {
		return fmt.Errorf("start the watchdog of the shared server: %w", err)
	}
	return watchdog.Process.Release()
}

// watch ends the run once nobody has used it for the idle period. It ends by
// itself when the run is gone or has another server, which has a watchdog of
// its own.
func (r sharedRun) watch() error {
	own, err := r.readState()
	if err != nil {
		return err
	}
	ticker := time.NewTicker(max(r.idle/20, pollInterval))
	defer ticker.Stop()
	lastUse := time.Now()
	for range ticker.C {
		state, err := r.readState()
		if errors.Is(err, fs.ErrNotExist) || err == nil && state.PID != own.PID {
			return nil
		}
		if err != nil {
			return err
		}
		used, err := r.endIfIdle(lastUse)
		if err != nil {
			return err
		}
		if used {
			lastUse = time.Now()
		}
	}
	return nil
}

// endIfIdle ends the run if nobody uses it and nobody has since the idle
// period. It reports whether somebody uses it now.
func (r sharedRun) endIfIdle(lastUse time.Time) (used bool, err error) {
	users, err := tryLockFile(r.usersFile(), exclusive)
	if errors.Is(err, errLocked) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	// Held while the server is stopped: a process that wants to use it waits,
	// finds the run gone, and starts another.
	defer users.release()
	if time.Since(lastUse) < r.idle {
		return false, nil
	}
	return false, r.end()
}
