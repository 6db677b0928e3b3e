package sqlite

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Bytes that SQLite locks to write: in the shared memory file of a write-ahead log (https://www.sqlite.org/walformat.html, "WAL
// locks"), and in the database file itself without one (pending, reserved, shared; https://www.sqlite.org/lockingv3.html).
const (
	walWriteByte    = 120
	pendingByte     = 0x40000000
	lastSharedByte  = pendingByte + 2 + 509
	processLockFile = "/proc/locks"
)

// blockers names the processes that hold the file's write lock, as far as the system tells: Linux lists all file locks by inode.
// Elsewhere, or in another container, nobody is named. The database file is not opened for it: closing it would drop our own locks.
func (s *Store) blockers() []storage.Blocker {
	var pids []int
	pids = append(pids, lockHolders(s.file+"-shm", walWriteByte, walWriteByte)...)
	pids = append(pids, lockHolders(s.file, pendingByte, lastSharedByte)...)
	slices.Sort(pids)
	var blocked []storage.Blocker
	for _, pid := range slices.Compact(pids) {
		if pid == os.Getpid() {
			continue // another connection of this process; that is said already
		}
		blocked = append(blocked, storage.Blocker{PID: pid, Kind: "process", Name: processName(pid), Table: s.path})
	}
	return blocked
}

// lockHolders gives the processes with a write lock that touches the bytes from first to last of a file.
func lockHolders(path string, first, last int64) []int {
	inode, ok := inodeOf(path)
	if !ok {
		return nil
	}
	locks, err := os.Open(processLockFile)
	if err != nil {
		return nil // not Linux
	}
	defer func() { _ = locks.Close() }()
	var pids []int
	for lines := bufio.NewScanner(locks); lines.Scan(); {
		// 1: POSIX  ADVISORY  WRITE 3568 fe:01:2893123 120 120
		fields := strings.Fields(lines.Text())
		if len(fields) < 8 || fields[1] != "POSIX" || fields[3] != "WRITE" {
			continue
		}
		place := strings.Split(fields[5], ":")
		pid, _ := strconv.Atoi(fields[4])
		from, _ := strconv.ParseInt(fields[6], 10, 64)
		to, err := strconv.ParseInt(fields[7], 10, 64)
		if err != nil {
			to = last // "EOF"
		}
		if place[len(place)-1] == inode && pid > 0 && from <= last && to >= first {
			pids = append(pids, pid)
		}
	}
	return pids
}

// processName is the short name of a running program.
func processName(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return "?"
	}
	return strings.TrimSpace(string(name))
}
