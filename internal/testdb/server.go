package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// ServerOptions says what a private server is like. The zero value is a server
// like the shared one.
type ServerOptions struct {
	// Major asks for a major version, 14 to 18. 0 takes the version of the
	// shared server.
	Major int
	// Settings are added to postgresql.conf and win over our own.
	Settings map[string]string
	// Durable leaves fsync, synchronous_commit and full_page_writes on, for
	// tests that measure speed.
	Durable bool
}

// Server is a private PostgreSQL server. Its methods fail the test that asked
// for the server if they cannot do what they say. They are for one goroutine.
type Server struct {
	t       testing.TB
	cluster *cluster
	guard   *guard
}

// PostgresServer starts a private server, for a test that changes settings of
// the server, kills or restarts it, or needs a standby. It is stopped and
// removed when the test ends.
func PostgresServer(t testing.TB, opts ServerOptions) *Server {
	t.Helper()
	found, err := findBinaries(opts.Major)
	if err != nil {
		t.Fatal(err)
	}
	base := throwaway()
	if opts.Durable {
		base = os.TempDir() // its speed is that of a disk
	}
	server := newServer(t, found, base)
	created, err := newCluster(found, server.cluster.account, server.cluster.folder, settingsFor(opts.Durable, opts.Settings))
	if err != nil {
		t.Fatalf("make a private PostgreSQL: %v", err)
	}
	server.cluster = created
	server.Start()
	return server
}

// newServer makes the folder of a private server, under a base folder, and has it cleaned up.
func newServer(t testing.TB, found binaries, base string) *Server {
	t.Helper()
	user, err := serverAccount()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := user.tempFolder(base)
	if err != nil {
		t.Fatalf("make a folder for a private PostgreSQL: %v", err)
	}
	server := &Server{t: t, cluster: &cluster{binaries: found, account: user, folder: folder}}
	server.guard, err = startGuard(folder, filepath.Join(server.cluster.data(), "postmaster.pid"), "QUIT")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := server.cluster.stop(syscall.SIGQUIT)
		if err := errors.Join(err, server.guard.dismiss()); err != nil {
			t.Errorf("remove the private PostgreSQL in %s: %v", folder, err)
		}
	})
	return server
}

// DSN returns the URL of a database of this server, for a superuser. The
// database "postgres" is always there. The address is the same after a restart.
func (s *Server) DSN(database string) string {
	return s.cluster.dsn(database)
}

// Database creates an empty database on this server and returns its URL, for a
// superuser. The server must still run when the test ends.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	return freshDatabase(t, s.DSN("postgres"))
}

// WriteFile puts a file into the server's data folder, as the server's own: a
// certificate, or pg_hba.conf. What it is used for is read at the next start, or by
// pg_reload_conf().
func (s *Server) WriteFile(name string, content []byte) {
	s.t.Helper()
	if err := s.cluster.account.write(filepath.Join(s.cluster.data(), name), string(content)); err != nil {
		s.t.Fatalf("write %s of a private PostgreSQL: %v", name, err)
	}
}

// Start starts the server, after Stop or Kill, and returns once it answers.
func (s *Server) Start() {
	s.t.Helper()
	if err := s.cluster.start(); err != nil {
		s.t.Fatal(err)
	}
}

// Stop shuts the server down in good order: sessions are ended, and nothing
// that was committed is lost.
func (s *Server) Stop() {
	s.t.Helper()
	if err := s.cluster.stop(syscall.SIGINT); err != nil {
		s.t.Fatal(err)
	}
}

// Restart is Stop and Start.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Kill ends all processes of the server by SIGKILL, as when the machine's
// power fails: clients see their connections break without a word, and the next
// Start begins with crash recovery. With the fast settings the last commits
// (some 600 ms, synchronous_commit is off) may be lost: use ServerOptions.Durable
// if they matter.
func (s *Server) Kill() {
	s.t.Helper()
	if err := s.cluster.kill(); err != nil {
		s.t.Fatal(err)
	}
}

// kill ends all processes of a server and returns when they are gone.
func (c *cluster) kill() error {
	pid, err := c.postmaster()
	if err != nil {
		return err
	}
	if pid == 0 {
		return errors.New("kill postgres: it does not run")
	}
	// The postmaster is stopped first, so that it starts no process between
	// our look at its children and its end, and it dies last: a backend that sees its postmaster
	// gone says so to its client before it is killed itself.
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop the postmaster %d: %w", pid, err)
	}
	family := append(children(pid), pid)
	for _, member := range family {
		if err := syscall.Kill(member, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill process %d of postgres: %w", member, err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	for _, member := range family {
		if err := c.awaitGone(ctx, member); err != nil {
			return fmt.Errorf("process %d of postgres does not end: %w", member, err)
		}
	}
	return nil
}
