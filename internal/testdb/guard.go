package testdb

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// guardScript waits until this process is gone, then ends the server of a
// private folder and removes the folder. $1 is the folder, $2 the file with the
// server's process id, $3 the signal that ends it. The file may be left over from
// a server that was killed, and its id belong to another program by now, so the
// process must also have the folder on its command line. Standard input is a pipe of
// which only this process holds the other end, so reading it ends when this
// process does, even by SIGKILL or a test's time limit.
const guardScript = `
cat >/dev/null
pid=$(head -n 1 "$2" 2>/dev/null)
command=$(tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null || ps -ww -o args= -p "$pid" 2>/dev/null)
case "$command" in
*"$1"*)
	kill -s "$3" "$pid" 2>/dev/null
	tries=0
	while kill -0 "$pid" 2>/dev/null && [ "$tries" -lt 100 ]; do
		sleep 0.1
		tries=$((tries + 1))
	done
	;;
esac
rm -rf "$1"
`

// guard makes sure that a private server does not outlive this process.
type guard struct {
	process *exec.Cmd
	// alive is our end of the pipe.
	alive *os.File
}

// startGuard guards the server in a folder.
func startGuard(folder, pidFile, signal string) (*guard, error) {
	reader, writer, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer reader.Close()
	process := exec.Command("sh", "-c", guardScript, "guard", folder, pidFile, signal)
	process.Dir = "/"
	process.Stdin = reader
	process.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := process.Start(); err != nil {
		writer.Close()
		return nil, fmt.Errorf("start the guard of %s: %w", folder, err)
	}
	return &guard{process: process, alive: writer}, nil
}

// dismiss lets the guard do its work now, and waits for it. When the server has
// been stopped before, what is left to do is to remove the folder.
func (g *guard) dismiss() error {
	if err := g.alive.Close(); err != nil {
		return err
	}
	return g.process.Wait()
}
