package testdb

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// Standby starts a streaming replica of this server, read-only, on a port of
// its own. It is stopped and removed when the test ends. It follows the primary
// with some delay: a test that needs a certain state waits for it, for instance
// by comparing pg_last_wal_replay_lsn.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	standby := newServer(t, s.cluster.binaries, filepath.Dir(s.cluster.folder))
	if err := standby.cluster.copyOf(s.cluster); err != nil {
		t.Fatalf("copy the primary for a standby: %v", err)
	}
	standby.Start()
	return standby
}

// Promote makes a standby a primary, on a new timeline.
func (s *Server) Promote() {
	s.t.Helper()
	// pg_promote returns false when the server is not a primary in time.
	if err := execute(s.DSN("postgres"), "SELECT 1/(CASE WHEN pg_promote(true, 60) THEN 1 ELSE 0 END)"); err != nil {
		s.t.Fatalf("promote the standby: %v", err)
	}
}

// copyOf fills the data folder with a base backup of a running primary, by the
// low-level functions of the PostgreSQL manual ("Making a Base Backup Using the
// Low Level API"): the packages from npm have no pg_basebackup.
func (c *cluster) copyOf(primary *cluster) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	port, err := freePort()
	if err != nil {
		return err
	}
	c.port, c.password = port, primary.password

	// One session from start to end: the backup is given up when it closes.
	conn, err := pgx.Connect(ctx, primary.dsn("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	begin, end := "SELECT pg_backup_start('standby', true)", "SELECT labelfile FROM pg_backup_stop(false)"
	if c.binaries.major < 15 { // the functions had other names
		begin, end = "SELECT pg_start_backup('standby', true, false)", "SELECT labelfile FROM pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		return fmt.Errorf("begin the backup: %w", err)
	}
	if err := c.copyData(primary.data()); err != nil {
		return err
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		return fmt.Errorf("end the backup: %w", err)
	}
	if err := c.account.write(filepath.Join(c.data(), "backup_label"), label); err != nil {
		return err
	}
	if err := c.account.write(filepath.Join(c.data(), "standby.signal"), ""); err != nil {
		return err
	}
	return c.configure(map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=%s password=%s", primary.port, superuser, primary.password),
	})
}

// emptyInBackups are folders of which a backup holds the folder alone.
var emptyInBackups = []string{"pg_wal", "pg_dynshmem", "pg_notify", "pg_replslot", "pg_serial", "pg_snapshots", "pg_stat_tmp", "pg_subtrans"}

// absentInBackups are files that belong to the running primary.
var absentInBackups = []string{"postmaster.pid", "postmaster.opts", "pg_internal.init"}

// copyData copies a data folder whose server goes on writing. A file may be
// half written, which the write-ahead log repairs, or vanish.
func (c *cluster) copyData(source string) error {
	return filepath.WalkDir(source, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(source, path)
		if err != nil {
			return err
		}
		target := filepath.Join(c.data(), relative)
		if entry.IsDir() {
			return c.account.folder(target)
		}
		inEmpty := slices.Contains(emptyInBackups, strings.Split(relative, string(filepath.Separator))[0])
		if inEmpty || slices.Contains(absentInBackups, entry.Name()) || !entry.Type().IsRegular() {
			return nil
		}
		return c.copyFile(path, target)
	})
}

func (c *cluster) copyFile(source, target string) error {
	from, err := os.Open(source)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	return errors.Join(err, to.Close(), c.account.own(target))
}
