package testcluster

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// guardScript waits until this process is gone, then kills the programs of a
// cluster and removes its folder, which is $1. The folder has the process id of
// each in NAME.pid. Such an id may belong to another program by now, so the
// process must also have the folder on its command line. Standard input is a
// pipe of which only this process holds the other end, so reading it ends when
// this process does, even by SIGKILL or a test's time limit.
const guardScript = `
cat >/dev/null
for file in "$1"/*.pid; do
	pid=$(head -n 1 "$file" 2>/dev/null) || continue
	command=$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null || ps -ww -o args= -p "$pid" 2>/dev/null)
	case "$command" in
	*"$1"*) kill -s KILL "$pid" 2>/dev/null ;;
	esac
done
# A program that is being killed may still make files.
tries=0
while ! rm -rf "$1" 2>/dev/null && [ "$tries" -lt 50 ]; do
	sleep 0.1
	tries=$((tries + 1))
done
`

// guard makes sure that a cluster does not outlive this process.
type guard struct {
	process *exec.Cmd
	// alive is our end of the pipe.
	alive *os.File
}

// startGuard guards the cluster in a folder.
func startGuard(folder string) (*guard, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	process := exec.Command("sh", "-c", guardScript, "guard", folder)
	process.Dir = "/"
	process.Stdin = reader
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := process.Start(); err != nil {
		writer.Close()
		return nil, fmt.Errorf("start the guard of %s: %w", folder, err)
	}
	return &guard{process: process, alive: writer}, nil
}

// dismiss lets the guard do its work now, and waits for it. When the programs
// have been stopped before, what is left to do is to remove the folder.
func (g *guard) dismiss() error {
	if err := g.alive.Close(); err != nil {
		return err
	}
	return g.process.Wait()
}
