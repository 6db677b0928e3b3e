package testdb

import (
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

const (
	// memoryFolder is a folder in memory, on Linux.
	memoryFolder = "/dev/shm"
	// memoryNeeded is what must be free in it: the servers of a whole run need less than half.
	memoryNeeded = 4 << 30
)

// throwaway returns the folder for servers whose data may be lost: in memory if there is room. A test makes a database and
// some dozens of tables, which are two thousand files, and on a disk the file system takes a quarter of all that the server
// computes. Who sets TMPDIR has chosen already.
func throwaway() string {
	if os.Getenv("TMPDIR") == "" && roomIn(memoryFolder) >= memoryNeeded {
		return memoryFolder
	}
	return os.TempDir()
}

// runFolders are the folders of all shared runs of this user, in memory or not.
func runFolders() ([]string, error) {
	var folders []string
	for _, base := range slices.Compact([]string{os.TempDir(), memoryFolder}) {
		found, err := filepath.Glob(filepath.Join(base, runFolderPrefix()+"*"))
		if err != nil {
			return nil, err
		}
		folders = append(folders, found...)
	}
	return folders, nil
}

// roomIn returns how many bytes are free in a folder that everybody can write to; 0 if it is none.
func roomIn(folder string) uint64 {
	info, err := os.Stat(folder)
	if err != nil || !info.IsDir() || info.Mode().Perm()&0o002 == 0 {
		return 0
	}
	var room syscall.Statfs_t
	if err := syscall.Statfs(folder, &room); err != nil {
		return 0
	}
	return room.Bavail * uint64(room.Bsize)
}
