package capture

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// load is a pgbench that runs all the time: one short run after the other.
type load struct {
	options string // PGOPTIONS
	clients int
	script  string // "": its own workload
}

// result is what a run of pgbench says of itself. Deadlocks it does not count in full; the server does (bank.deadlocks).
type result struct {
	done, serialization int64
	code                int
	output              string
}

func (r *result) add(other result) {
	r.done += other.done
	r.serialization += other.serialization
}

var resultPatterns = map[string]*regexp.Regexp{
	"done":          regexp.MustCompile(`number of transactions actually processed: (\d+)`),
	"serialization": regexp.MustCompile(`number of serialization failures: (\d+)`),
}

// run runs pgbench once, for so long or for so many transactions a client.
func (l load) run(ctx context.Context, t testing.TB, b *bank, length ...string) result {
	args := []string{"-n", "--failures-detailed", "-c", strconv.Itoa(l.clients), "-j", "2"}
	if l.script != "" {
		path := filepath.Join(b.TempDir(), "script.sql")
		if err := os.WriteFile(path, []byte(l.script), 0o600); err != nil {
			t.Error(err)
		}
		args = append(args, "-f", path)
	}
	cmd := exec.CommandContext(ctx, testdb.Program(t, "pgbench"), append(append(args, length...), b.url)...)
	cmd.Env = append(os.Environ(), "PGOPTIONS="+l.options)
	output, err := cmd.CombinedOutput()
	r := result{code: exitCode(t, err), output: string(output)}
	number := func(name string) int64 {
		found := resultPatterns[name].FindStringSubmatch(r.output)
		if found == nil {
			return 0
		}
		n, _ := strconv.ParseInt(found[1], 10, 64) // the pattern has digits only
		return n
	}
	r.done, r.serialization = number("done"), number("serialization")
	return r
}

// running is a load under way.
type running struct {
	stop  chan struct{}
	ended sync.WaitGroup
	total result
	wrong []string // outputs of runs that failed by anything but what a program may get from any database
}

// begin runs pgbench until end is called.
func (l load) begin(b *bank) *running {
	r := &running{stop: make(chan struct{})}
	r.ended.Go(func() {
		for {
			select {
			case <-r.stop:
				return
			default:
			}
			once := l.run(b.ctx, b, b, "-T", "1")
			r.total.add(once)
			if once.code != 0 {
				r.wrong = append(r.wrong, once.output)
			}
		}
	})
	return r
}

// end waits for the run at hand and gives what all of them did.
func (r *running) end() result {
	close(r.stop)
	r.ended.Wait()
	r.total.output = strings.Join(r.wrong, "\n")
	return r.total
}
