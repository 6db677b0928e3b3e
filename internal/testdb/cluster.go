package testdb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"math/rand/v2"
)

const (
	// startTimeout bounds the start of a server, its crash recovery included.
	startTimeout = 2 * time.Minute
	// stopTimeout bounds its end.
	stopTimeout = 30 * time.Second
)

// cluster is one data folder and the server process on it.
type cluster struct {
	binaries binaries
	account  account
	// folder holds data/, the server's log and its Unix socket.
	folder   string
	port     int
	password string

	// process is the postmaster, if this process started it.
	process *exec.Cmd
	// exited is closed when process has ended.
	exited chan struct{}
}

func (c *cluster) data() string { return filepath.Join(c.folder, "data") }
func (c *cluster) log() string  { return filepath.Join(c.folder, "server.log") }

func (c *cluster) dsn(database string) string {
	return serverURL(c.port, c.password, database)
}

// newCluster makes a data folder with the given settings. It starts nothing.
func newCluster(found binaries, user account, folder string, settings map[string]string) (*cluster, error) {
	password, err := randomText(16)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	c := &cluster{binaries: found, account: user, folder: folder, port: port, password: password}
	if err := c.initialise(); err != nil {
		return nil, err
	}
	return c, c.configure(settings)
}

// initialise runs initdb. Every user of this machine can reach the port, so
// connections need the password, even by the Unix socket.
func (c *cluster) initialise() error {
	passwordFile := filepath.Join(c.folder, "password")
	if err := c.account.write(passwordFile, c.password); err != nil {
		return err
	}
	defer os.Remove(passwordFile)

	initdb := c.account.command(c.binaries.path("initdb"),
		"--pgdata", c.data(),
		"--username", superuser,
		"--pwfile", passwordFile,
		"--auth", "scram-sha-256",
		"--encoding", "UTF8",
		"--locale", "C",
		"--no-sync")
	if output, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("initdb: %w: %s", err, output)
	}
	return nil
}

// configure appends settings to postgresql.conf; the last of two wins.
func (c *cluster) configure(settings map[string]string) error {
	lines := []string{
		"# written by internal/testdb",
		"listen_addresses = '127.0.0.1'",
		fmt.Sprintf("port = %d", c.port),
		fmt.Sprintf("unix_socket_directories = '%s'", c.folder),
	}
	for name, value := range settings {
		lines = append(lines, fmt.Sprintf("%s = '%s'", name, strings.ReplaceAll(value, "'", "''")))
	}
	slices.Sort(lines[4:])
	file, err := os.OpenFile(filepath.Join(c.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString("\n" + strings.Join(lines, "\n") + "\n")
	return errors.Join(err, file.Close())
}

// start starts the server and returns once it answers.
func (c *cluster) start() error {
	log, err := os.OpenFile(c.log(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	c.process = c.account.command(c.binaries.path("postgres"), "-D", c.data())
	c.process.Stdout = log
	c.process.Stderr = log
	if err := c.process.Start(); err != nil {
		return fmt.Errorf("start postgres: %w", err)
	}
	c.exited = make(chan struct{})
	go func(process *exec.Cmd, exited chan struct{}) {
		// How it ended stands in its log; here it only has to be waited for.
		_ = process.Wait()
		close(exited)
	}(c.process, c.exited)

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	if err := c.awaitReady(ctx); err != nil {
		return fmt.Errorf("start postgres in %s: %w; the end of its log:\n%s", c.folder, err, tailOf(c.log()))
	}
	return nil
}

// awaitReady returns once the server answers a query.
func (c *cluster) awaitReady(ctx context.Context) error {
	for {
		refusal := ping(ctx, c.dsn("postgres"))
		if refusal == nil {
			return nil
		}
		select {
		case <-c.exited:
			return errors.New("the server ended")
		default:
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("it does not answer: %w", refusal)
		}
	}
}

// stop ends the server by a signal (SIGINT: disconnect everybody and shut
// down; SIGQUIT: end at once, as in a crash) and returns when it is gone.
func (c *cluster) stop(how syscall.Signal) error {
	pid, err := c.postmaster()
	if err != nil || pid == 0 {
		return err
	}
	if err := syscall.Kill(pid, how); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop the postmaster %d: %w", pid, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := c.awaitGone(ctx, pid); err != nil {
		return fmt.Errorf("the postmaster %d does not end: %w; the end of its log:\n%s", pid, err, tailOf(c.log()))
	}
	return nil
}

// awaitGone returns when a process of this server has ended.
func (c *cluster) awaitGone(ctx context.Context, pid int) error {
	if c.process != nil && c.process.Process.Pid == pid {
		select {
		case <-c.exited:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for running(pid) {
		if err := pause(ctx); err != nil {
			return err
		}
	}
	return nil
}

// postmaster returns the process id of the server, 0 if it does not run. The
// id in postmaster.pid may be an old one that now belongs to another program,
// so the process must also have our data folder on its command line.
func (c *cluster) postmaster() (int, error) {
	content, err := os.ReadFile(filepath.Join(c.data(), "postmaster.pid"))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil {
		return 0, fmt.Errorf("read postmaster.pid in %s: %w", c.data(), err)
	}
	if !running(pid) || !strings.Contains(commandLine(pid), c.data()) {
		return 0, nil
	}
	return pid, nil
}

// ping asks a server for an answer.
func ping(ctx context.Context, dsn string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	return conn.Ping(ctx)
}

// freePort returns a TCP port that nobody listens on. It lies below the range
// that systems take the ports of outgoing connections from, so that it is still
// free when a stopped server starts again.
func freePort() (int, error) {
	const lowest, highest = 15000, 32000
	for range 200 {
		port := lowest + rand.IntN(highest-lowest)
		listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, fmt.Errorf("no free TCP port on 127.0.0.1 between %d and %d", lowest, highest)
}

// tailOf returns the last lines of a log, for the message of a failure.
func tailOf(path string) string {
	const most = 2000
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(content) > most {
		content = content[len(content)-most:]
	}
	return string(content)
}
