package kubelet

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// command is a container's command, ready to run.
type command struct {
	words       []string
	environment []string
	folder      string
	log         string
}

// command resolves a container's command: variables expanded, mount paths and programs as they are on this machine.
func (p *pod) command(container corev1.Container) (*command, error) {
	values, err := p.environment(container)
	if err != nil {
		return nil, err
	}
	local := p.localPaths(container)
	c := &command{folder: p.folder, log: p.logOf(container.Name)}
	for _, word := range slices.Concat(container.Command, container.Args) {
		c.words = append(c.words, local.Replace(expand(word, values)))
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		c.environment = append(c.environment, name+"="+local.Replace(values[name]))
	}
	if len(c.words) == 0 {
		return nil, fmt.Errorf("container %s has no command, and an image of this kubelet has none", container.Name)
	}
	if program, inImage := p.kubelet.images[container.Image][c.words[0]]; inImage {
		c.words[0] = program
	}
	return c, os.MkdirAll(p.folder, 0o755)
}

// localPaths replaces mount paths, longer ones first.
func (p *pod) localPaths(container corev1.Container) *strings.Replacer {
	p.mu.Lock()
	defer p.mu.Unlock()
	mounts := slices.Clone(container.VolumeMounts)
	slices.SortFunc(mounts, func(a, b corev1.VolumeMount) int { return len(b.MountPath) - len(a.MountPath) })
	var pairs []string
	for _, mount := range mounts {
		pairs = append(pairs, mount.MountPath, filepath.Join(p.mounts[mount.Name], mount.SubPath))
	}
	return strings.NewReplacer(pairs...)
}

// Exit codes of processes that did not end by themselves, as a container runtime gives them.
const (
	exitNotStarted = 128
	exitSignalled  = 128 // plus the signal's number
)

// run runs the command to its end and returns its exit code. When ctx ends the process gets SIGTERM, and after the grace period SIGKILL.
func (c *command) run(ctx context.Context, started func()) int {
	// The kernel kills the process when the thread that started it ends, so that none is left behind by a test that is killed.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	log, err := os.OpenFile(c.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return exitNotStarted
	}
	defer log.Close()
	process := exec.Command(c.words[0], c.words[1:]...)
	process.Env, process.Dir, process.Stdout, process.Stderr = c.environment, c.folder, log, log
	if process.Env == nil {
		process.Env = []string{} // nil would be the environment of the test
	}
	process.SysProcAttr = diesWithParent()
	if err := process.Start(); err != nil {
		_, _ = fmt.Fprintf(log, "start: %v\n", err) // shown with the log; the exit code says it too
		return exitNotStarted
	}
	ended := make(chan struct{})
	go terminate(ctx, process.Process, ended)
	started()
	_ = process.Wait() // how it ended is read below
	close(ended)
	if status, ok := process.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignalled + int(status.Signal())
	}
	return process.ProcessState.ExitCode()
}

func terminate(ctx context.Context, process *os.Process, ended <-chan struct{}) {
	select {
	case <-ended:
		return
	case <-ctx.Done():
	}
	_ = process.Signal(syscall.SIGTERM) // it may have ended meanwhile
	bound, cancel := context.WithTimeout(context.Background(), graceOf(ctx))
	defer cancel()
	select {
	case <-ended:
	case <-bound.Done():
		_ = process.Kill() // it may have ended meanwhile
	}
}
