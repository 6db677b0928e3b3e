package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// pollInterval is how often something outside this process is looked at again.
const pollInterval = 50 * time.Millisecond

const (
	shared    = syscall.LOCK_SH
	exclusive = syscall.LOCK_EX
)

// errLocked says that somebody else holds a lock.
var errLocked = errors.New("locked by another process")

// fileLock is a lock between processes. The kernel lets go of it when the
// process ends, however it ends.
type fileLock struct {
	file *os.File
}

// lockFile waits for a lock on the file at path, which it creates if needed.
func lockFile(ctx context.Context, path string, how int) (*fileLock, error) {
	for {
		lock, err := tryLockFile(path, how)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
		if err := pause(ctx); err != nil {
			return nil, fmt.Errorf("wait for the lock %s: %w", path, err)
		}
	}
}

// tryLockFile takes a lock on the file at path, or returns errLocked at once.
func tryLockFile(path string, how int) (*fileLock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), how|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) || errors.Is(err, syscall.EINTR) {
			return nil, errLocked
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	// The holder before us may have removed the file. Then this lock is on a
	// file that nobody else will ever open, and protects nothing.
	if !sameFile(file, path) {
		file.Close()
		return nil, errLocked
	}
	return &fileLock{file: file}, nil
}

func sameFile(file *os.File, path string) bool {
	held, err := file.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(held, there)
}

// release lets go of the lock.
func (l *fileLock) release() {
	// Closing the only descriptor of the lock ends it; there is nothing in the
	// file that a failed close could lose.
	_ = l.file.Close()
}

// pause waits for one poll interval, or returns why the context ended.
func pause(ctx context.Context) error {
	timer := time.NewTimer(pollInterval)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
