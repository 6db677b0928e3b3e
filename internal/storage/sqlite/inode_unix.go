//go:build unix

package sqlite

import (
	"os"
	"strconv"
	"syscall"
)

// inodeOf gives the number of a file as the system's list of locks shows it.
func inodeOf(path string) (string, bool) {
	info, err := os.Stat(path)
	if err != nil {
		return "", false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", false
	}
	return strconv.FormatUint(stat.Ino, 10), true
}
