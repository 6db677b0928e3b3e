package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// claimed is a database at version 7 whose checkpoint is claimed and not worked on yet.
func claimed(t *testing.T, d target, rows int, file string) (token string) {
	t.Helper()
	clinicAtV6(t, d, rows)
	run(t, d, file, "apply", "-f", "-", "--barrier-only").must(t, 0)
	token, _ = run(t, d, "", "checkpoint", "claim", "title-norm", "-o", "json").must(t, 0).json(t)["claim"].(string)
	return token
}

// work is the command of a worker as its Job gives it.
func work(token string, more ...string) []string {
	return append([]string{"backfill", "title-norm", "--claim", token, "--timeout=0", "--output=json"}, more...)
}

// lastLine is the last line of a worker's log, which becomes the pod's termination message.
func (r result) lastLine(t *testing.T) (line struct {
	Level, Msg, Reason string
	ExitCode           int
}) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(r.errors), "\n")
	for _, text := range lines {
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Fatalf("no JSON: %v: %s", err, text)
		}
	}
	return line
}

func TestAShareIsDoneOnlyWhenTheDatabaseSaysSo(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		token := claimed(t, d, 3000, schemaV7)
		var done sync.WaitGroup
		results := make([]result, 3)
		for i := range results {
			done.Go(func() { results[i] = run(t, d, "", work(token, "--index", fmt.Sprint(i), "--of", "3")...) })
		}
		done.Wait()
		for i, r := range results {
			r.must(t, 0)
			if line := r.lastLine(t); line.Level != "INFO" {
				t.Errorf("worker %d ended with the line %+v", i, line)
			}
		}
		run(t, d, "", "gate", "--version", "7").must(t, 0)
		if wrong := d.number(t, wrongRows); wrong != 0 {
			t.Errorf("%d rows are wrong", wrong)
		}
		again := run(t, d, "", work(token)...).must(t, 0)
		if line := again.lastLine(t); line.Msg != "the checkpoint is activated" {
			t.Errorf("started again it says %+v", line)
		}
	})
}

func TestAWorkerEndsWithTheCodeOfItsFailure(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		broken := strings.Replace(schemaV7, "lower(title)", "CAST(abs(-9223372036854775807 - id) AS TEXT)", 1)
		token := claimed(t, d, 20, broken)
		failed := run(t, d, "", work(token)...).must(t, 21)
		if line := failed.lastLine(t); line.Level != "ERROR" || line.Reason != "InvalidSQL" || line.ExitCode != 21 || !strings.Contains(line.Msg, "title-norm") {
			t.Errorf("its last line is %+v", line)
		}
		run(t, d, "", "checkpoint", "claim", "title-norm").must(t, 0)
		lost := run(t, d, "", work(token)...).must(t, 10)
		if line := lost.lastLine(t); line.Reason != "OwnershipLost" {
			t.Errorf("of an older claim it says %+v", line)
		}
		d.exec(t, `UPDATE sync_barrier_owner SET protocol = protocol + 1`)
		newer := run(t, d, "", work(token)...).must(t, 11)
		if line := newer.lastLine(t); line.Reason != "NewerCatalog" {
			t.Errorf("on a newer catalog it says %+v", line)
		}
	})
}

// folder is a mounted Secret: the parts of an address as files.
type folder string

func newFolder(t *testing.T, dsn string) (folder, *url.URL) {
	t.Helper()
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	f := folder(t.TempDir())
	password, _ := parsed.User.Password()
	f.write(t, map[string]string{
		"host": parsed.Hostname(), "port": parsed.Port() + "\n", "database": strings.TrimPrefix(parsed.Path, "/"),
		"user": parsed.User.Username(), "password": password + "\n", "namespace": "shop", "sslmode": "disable",
	})
	return f, parsed
}

func (f folder) write(t *testing.T, files map[string]string) {
	t.Helper()
	for name, content := range files {
		next := filepath.Join(string(f), "."+name)
		if err := os.WriteFile(next, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(string(f), name)); err != nil {
			t.Fatal(err)
		}
	}
}

// running is a worker under way.
type running struct {
	cmd    *exec.Cmd
	log    *watched
	exited chan struct{}
}

func start(t *testing.T, args ...string) *running {
	t.Helper()
	r := &running{cmd: command(t.Context(), args...), log: &watched{}, exited: make(chan struct{})}
	r.cmd.Stderr, r.cmd.Stdout = r.log, r.log
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = r.cmd.Wait() // its exit code is read where it matters
		close(r.exited)
	}()
	return r
}

func (r *running) must(t *testing.T, code int) {
	t.Helper()
	select {
	case <-r.exited:
	case <-time.After(runBound):
		_ = r.cmd.Process.Kill() // the test fails either way
		t.Fatalf("it still runs after %s:\n%s", runBound, r.log)
	}
	if got := r.cmd.ProcessState.ExitCode(); got != code {
		t.Fatalf("exit code %d, want %d:\n%s", got, code, r.log)
	}
}

// watched is output that can be read while it is written.
type watched struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

const slowV7 = "batchRows: 100, maxRowsPerSecond: 300"

func slowly(file string) string { return strings.Replace(file, "batchRows: 100", slowV7, 1) }

func (d target) rowsDone(t *testing.T) int64 {
	t.Helper()
	return d.number(t, `SELECT coalesce(sum(rows_done), 0) FROM sync_backfill_progress`)
}

func TestAPasswordThatIsChangedReachesARunningWorker(t *testing.T) {
	d := postgresTarget(t)
	token := claimed(t, d, 3000, slowly(schemaV7))
	role := testdb.Role(t, d.address, "worker")
	d.exec(t, fmt.Sprintf(`ALTER ROLE %q SUPERUSER`, testdb.RoleName(t, role)))
	f, parsed := newFolder(t, role)
	old, _ := parsed.User.Password()
	w := start(t, work(token, "--database-file", string(f))...)
	waitUntil(t, func() bool { return d.rowsDone(t) > 0 })
	const changed = `p@ss/w#rd 100% 'S3CRET'`
	d.exec(t, fmt.Sprintf(`ALTER ROLE %q PASSWORD '%s'`, parsed.User.Username(), strings.ReplaceAll(changed, "'", "''")))
	d.exec(t, fmt.Sprintf(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '%s'`, parsed.User.Username()))
	waitUntil(t, func() bool { return strings.Contains(w.log.String(), "AuthenticationFailed") })
	before := d.rowsDone(t)
	f.write(t, map[string]string{"password": changed + "\n"})
	d.exec(t, `UPDATE sync_backfill_definitions SET settings = '{}'`)
	w.must(t, 0)
	if before == 0 || before >= 3000 {
		t.Errorf("%d rows were done when the password was changed: nothing was cut off", before)
	}
	if wrong := d.number(t, wrongRows); wrong != 0 {
		t.Errorf("%d rows are wrong", wrong)
	}
	for _, secret := range []string{old, changed, "S3CRET"} {
		if strings.Contains(w.log.String(), secret) {
			t.Errorf("a password is in the log:\n%s", w.log)
		}
	}
}

// gate is a TCP port before the database that can be shut.
type tcpGate struct {
	to       string
	port     string
	listener net.Listener
	mu       sync.Mutex
	conns    []net.Conn
}

func newTCPGate(t *testing.T, to string) *tcpGate {
	t.Helper()
	g := &tcpGate{to: to, port: "0"}
	g.open(t)
	t.Cleanup(g.shut)
	return g
}

func (g *tcpGate) open(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", g.port))
	if err != nil {
		t.Fatal(err)
	}
	g.listener = listener
	_, g.port, _ = net.SplitHostPort(listener.Addr().String())
	go func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", g.to)
			if err != nil {
				_ = in.Close() // whoever dialled sees it closed
				continue
			}
			g.mu.Lock()
			g.conns = append(g.conns, in, out)
			g.mu.Unlock()
			// Either ends when one side does, and then ends the other.
			go func() { _, _ = io.Copy(in, out); _ = in.Close() }()
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
		}
	}()
}

func (g *tcpGate) shut() {
	_ = g.listener.Close() // it may be shut already
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, conn := range g.conns {
		_ = conn.Close() // the other side may have closed it
	}
	g.conns = nil
}

func TestAWorkerWaitsForADatabaseThatIsAway(t *testing.T) {
	d := postgresTarget(t)
	token := claimed(t, d, 3000, slowly(schemaV7))
	f, parsed := newFolder(t, d.address)
	g := newTCPGate(t, parsed.Host)
	g.shut()
	f.write(t, map[string]string{"host": "127.0.0.1", "port": g.port})
	w := start(t, work(token, "--database-file", string(f))...)
	waitUntil(t, func() bool { return strings.Contains(w.log.String(), "ConnectionLost") })
	g.open(t)
	waitUntil(t, func() bool { return d.rowsDone(t) > 0 })
	g.shut()
	cut := strings.Count(w.log.String(), "ConnectionLost")
	waitUntil(t, func() bool { return strings.Count(w.log.String(), "ConnectionLost") > cut })
	if done := d.rowsDone(t); done >= 3000 {
		t.Errorf("%d rows were done when the database went: nothing was cut off", done)
	}
	d.exec(t, `UPDATE sync_backfill_definitions SET settings = '{}'`)
	g.open(t)
	w.must(t, 0)
	if wrong := d.number(t, wrongRows); wrong != 0 {
		t.Errorf("%d rows are wrong", wrong)
	}
}

func TestAWorkerThatIsTerminatedDoesNotEndWell(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		token := claimed(t, d, 3000, slowly(schemaV7))
		w := start(t, append([]string{"--database", d.address}, work(token)...)...)
		waitUntil(t, func() bool { return d.rowsDone(t) > 0 })
		if err := w.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		w.must(t, 143)
		before := d.rowsDone(t)
		d.exec(t, `UPDATE sync_backfill_definitions SET settings = '{}'`)
		run(t, d, "", work(token)...).must(t, 0)
		if after := d.rowsDone(t); before == 0 || after != 3000 {
			t.Errorf("%d rows were done by the first worker and %d by both, of 3000", before, after)
		}
	})
}

func TestTheProgramPutsACopyOfItselfIntoAFolder(t *testing.T) {
	to := t.TempDir()
	runProgram(t, "", "install-cli", to).must(t, 0)
	cmd := exec.CommandContext(t.Context(), filepath.Join(to, "syncbarrier"), "--help")
	cmd.Env = append(os.Environ(), asProgram+"=1")
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "syncbarrier plan") {
		t.Errorf("the copy: %v\n%s", err, out)
	}
}
