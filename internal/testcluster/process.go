package testcluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// startTimeout bounds the start of one program. The API server takes four
	// seconds, and much longer on a machine that is compiling.
	startTimeout = 3 * time.Minute
	// stopTimeout bounds its end after SIGTERM; then it is killed.
	stopTimeout = 30 * time.Second
	// pollInterval is the pause between two looks at something awaited.
	pollInterval = 50 * time.Millisecond
)

// process is one program of the cluster, which may run, be frozen or have ended.
type process struct {
	name    string
	program string
	args    []string
	folder  string
	// ready returns nil once the program does its work.
	ready func(context.Context) error

	command *exec.Cmd
	// exited is closed when command has ended.
	exited chan struct{}
}

func (p *process) log() string { return filepath.Join(p.folder, p.name+".log") }

// start starts the program and returns once it is ready.
func (p *process) start() error {
	log, err := os.OpenFile(p.log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p.command = exec.Command(p.program, p.args...)
	p.command.Dir = p.folder
	p.command.Stdout = log
	p.command.Stderr = log
	// A session of its own: an interrupt at the terminal reaches the tests, and
	// they, or the guard, stop this.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.command.Start(); err != nil {
		return fmt.Errorf("start %s: %w", p.name, err)
	}
	p.exited = make(chan struct{})
	go func(command *exec.Cmd, exited chan struct{}) {
		// How it ended stands in its log; here it only has to be waited for.
		_ = command.Wait()
		close(exited)
	}(p.command, p.exited)
	pid := strconv.Itoa(p.command.Process.Pid)
	if err := os.WriteFile(filepath.Join(p.folder, p.name+".pid"), []byte(pid+"\n"), 0o600); err != nil {
		return errors.Join(err, p.stop())
	}
	if err := p.awaitReady(); err != nil {
		return errors.Join(fmt.Errorf("start %s in %s: %w; the end of its log:\n%s", p.name, p.folder, err, tailOf(p.log())), p.stop())
	}
	return nil
}

func (p *process) awaitReady() error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		refusal := p.ready(ctx)
		if refusal == nil {
			return nil
		}
		select {
		case <-p.exited:
			return errors.New("it ended")
		case <-ctx.Done():
			return fmt.Errorf("it is not ready: %w", refusal)
		case <-time.After(pollInterval):
		}
	}
}

// signal sends the program a signal.
func (p *process) signal(what syscall.Signal) error {
	if p.command == nil {
		return fmt.Errorf("%s was not started", p.name)
	}
	if err := p.command.Process.Signal(what); err != nil {
		return fmt.Errorf("send %v to %s: %w", what, p.name, err)
	}
	return nil
}

// freezeTimeout bounds the wait for a stopped program to stand still.
const freezeTimeout = 10 * time.Second

// freeze stops the program and returns once none of its threads runs any more: until then it may still answer, and on a busy machine it does.
// Where the system does not show threads, it returns at once.
func (p *process) freeze() error {
	if err := p.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	pattern := fmt.Sprintf("/proc/%d/task/*/stat", p.command.Process.Pid)
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	deadline := time.After(freezeTimeout)
	for {
		threads, err := filepath.Glob(pattern)
		if err != nil || len(threads) == 0 || !slices.ContainsFunc(threads, runs) {
			return err
		}
		select {
		case <-ticker.C:
		case <-deadline:
			return fmt.Errorf("%s does not stand still within %v of SIGSTOP", p.name, freezeTimeout)
		}
	}
}

// runs says whether a thread is not stopped, by its state behind the name in brackets (proc_pid_stat(5)).
func runs(stat string) bool {
	text, err := os.ReadFile(stat)
	if err != nil {
		return false // it has ended
	}
	_, state, _ := strings.Cut(string(text[bytes.LastIndexByte(text, ')')+1:]), " ")
	return !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "t")
}

// kill ends the program at once, frozen or not, and returns when it is gone.
func (p *process) kill() error {
	if p.command == nil {
		return nil
	}
	if err := p.command.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	select {
	case <-p.exited:
		p.command = nil
		return nil
	case <-time.After(stopTimeout):
		return fmt.Errorf("%s was killed and does not end", p.name)
	}
}

// stop asks the program to end, and kills it if it does not.
func (p *process) stop() error {
	if p.command == nil {
		return nil
	}
	// A frozen program cannot hear the request, so it is woken first; a program
	// that has ended hears neither.
	_ = p.command.Process.Signal(syscall.SIGCONT)
	_ = p.command.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
		p.command = nil
		return nil
	case <-time.After(stopTimeout):
		return p.kill()
	}
}

// FreePort returns a TCP port that nobody listens on. It lies below the range
// that systems take the ports of outgoing connections from, so that it is still
// free when a stopped server starts again.
func FreePort() (int, error) {
	const lowest, highest = 15000, 32000
	for range 200 {
		port := lowest + rand.IntN(highest-lowest)
		listener, err := net.Listen("tcp", address(port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free TCP port on 127.0.0.1 between %d and %d", lowest, highest)
}

func address(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

// tailOf returns the last lines of a log, for the message of a failure.
func tailOf(path string) string {
	const most = 3000
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(content) > most {
		content = content[len(content)-most:]
	}
	return string(content)
}
