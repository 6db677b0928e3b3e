package testdb

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// running reports whether a process exists and has not ended. One that ended
// and that nobody has waited for yet has a state of Z.
func running(pid int) bool {
	if err := syscall.Kill(pid, 0); errors.Is(err, syscall.ESRCH) {
		return false
	}
	state, _, known := procStat(pid)
	return !known || state != "Z"
}

// commandLine returns the program and arguments of a process, empty if it is
// gone.
func commandLine(pid int) string {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err == nil {
		return string(bytes.ReplaceAll(content, []byte{0}, []byte{' '}))
	}
	// No /proc: macOS.
	output, err := exec.Command("ps", "-ww", "-o", "args=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return ""
	}
	return string(output)
}

// children returns the processes that a process started and that still run.
func children(pid int) []int {
	folders, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(folders) == 0 {
		return childrenByPgrep(pid)
	}
	var found []int
	for _, folder := range folders {
		candidate, err := strconv.Atoi(filepath.Base(folder))
		if err != nil {
			continue
		}
		if _, parent, known := procStat(candidate); known && parent == pid {
			found = append(found, candidate)
		}
	}
	return found
}

// childrenByPgrep does the same where there is no /proc.
func childrenByPgrep(pid int) []int {
	output, err := exec.Command("pgrep", "-P", strconv.Itoa(pid)).Output()
	if err != nil {
		return nil // pgrep answers 1 for "none"
	}
	var found []int
	for line := range strings.FieldsSeq(string(output)) {
		if child, err := strconv.Atoi(line); err == nil {
			found = append(found, child)
		}
	}
	return found
}

// procStat reads state and parent of a process from /proc (see proc(5)). The
// second field is the program's name in brackets, which may hold anything.
func procStat(pid int) (state string, parent int, known bool) {
	content, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return "", 0, false
	}
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	if len(fields) < 2 {
		return "", 0, false
	}
	parent, err = strconv.Atoi(fields[1])
	return fields[0], parent, err == nil
}
