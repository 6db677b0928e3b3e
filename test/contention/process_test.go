package contention

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

// taskVariable makes this test program do one task as a process of its own instead of running tests.
const taskVariable = "SYNCBARRIER_CONTENTION_TASK"

func TestMain(m *testing.M) {
	text, isTask := os.LookupEnv(taskVariable)
	if !isTask {
		os.Exit(m.Run())
	}
	var task task
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		fmt.Println("ended", err)
		os.Exit(1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	fmt.Println("ended", task.run(ctx, bufio.NewReader(os.Stdin)))
}

// task is what a process does.
type task struct {
	Database databases.Database
	// Apply, if set, is brought about.
	Apply *storage.Target
	// Work, if set, names a checkpoint whose backfill is done under a claim of the process's own.
	Work string
	// PauseAfter is the number of batches after which the worker says so and waits for a line.
	PauseAfter int
}

// run gives the word for how the task ended: an outcome, or the code of the error.
func (k task) run(ctx context.Context, input *bufio.Reader) string {
	store, err := k.Database.Open(ctx)
	if err != nil {
		return "cannot open: " + err.Error()
	}
	defer store.Close()
	if k.Apply != nil {
		say("ready", input)
		result, err := (&barrier.Engine{Store: store}).Apply(ctx, *k.Apply)
		return wordFor(string(result.Outcome), err)
	}
	claim, err := store.ClaimAll(ctx, k.Work, false)
	if err != nil {
		return wordFor("", err)
	}
	batches := 0
	runner := &backfill.Runner{Store: store, Report: func(event backfill.Event) {
		if event.Kind != backfill.EventScanned {
			return
		}
		if batches++; batches == k.PauseAfter {
			say("paused", input)
		}
	}}
	return wordFor("done", runner.Run(ctx, claim, backfill.Share{Index: 0, Of: 1}))
}

func wordFor(outcome string, err error) string {
	if err != nil {
		return fmt.Sprintf("%s: %v", storage.CodeOf(err), err)
	}
	return outcome
}

// say writes a word and waits until somebody answers with a line.
func say(word string, input *bufio.Reader) {
	fmt.Println(word)
	if _, err := input.ReadString('\n'); err != nil {
		os.Exit(1) // the test is gone
	}
}

// process is a child that does a task.
type process struct {
	t      testing.TB
	cmd    *exec.Cmd
	input  io.WriteCloser
	output *bufio.Reader
}

// begin starts a process. It is killed when the test ends.
func begin(t testing.TB, k task) *process {
	t.Helper()
	text, err := json.Marshal(k)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	p.cmd.Stderr = os.Stderr
	input, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	output, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.input, p.output = input, bufio.NewReader(output)
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start a process: %v", err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it has ended, as a rule
		_ = p.cmd.Wait()
	})
	return p
}

// await reads the next line of the process, which must begin with the word, and gives the rest of it.
func (p *process) await(word string) string {
	p.t.Helper()
	type answer struct {
		line string
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		line, err := p.output.ReadString('\n')
		answers <- answer{line, err}
	}()
	select {
	case a := <-answers:
		rest, ok := strings.CutPrefix(strings.TrimSpace(a.line), word)
		if !ok {
			p.t.Fatalf("the process says %q (%v), want %q", a.line, a.err, word)
		}
		return strings.TrimSpace(rest)
	case <-time.After(testTimeout):
		p.t.Fatalf("the process does not say %q", word)
		return ""
	}
}

// goOn answers the process.
func (p *process) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.input, "\n"); err != nil {
		p.t.Fatalf("answer the process: %v", err)
	}
}

func (p *process) signal(signal syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(signal); err != nil {
		p.t.Fatalf("send %s: %v", signal, err)
	}
}

// freeze stops the process where it stands, and returns once it does.
func (p *process) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		p.t.Fatalf("the process does not stop: %v, %v", status, err)
	}
}

func (p *process) thaw() { p.signal(syscall.SIGCONT) }
