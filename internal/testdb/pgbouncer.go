package testdb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// PgBouncer starts a PgBouncer in transaction mode in front of the database of
// dsn, and returns the URL of that database through it, for the same role. Up to
// 20 transactions run at once; a further one waits. It is stopped when the test
// ends.
func PgBouncer(t testing.TB, dsn string, options ...PgBouncerOption) string {
	t.Helper()
	through, err := startPgBouncer(t, dsn, options)
	if err != nil {
		t.Fatalf("start PgBouncer: %v", err)
	}
	return through
}

// PgBouncerOption changes how a PgBouncer is configured.
type PgBouncerOption func(*bouncer)

// WithEntry adds a further name under which the database is reached, each of whose
// server connections runs a query before its first use.
func WithEntry(name, connectQuery string) PgBouncerOption {
	return func(b *bouncer) { b.entries = append(b.entries, [2]string{name, connectQuery}) }
}

// WithIgnoredParameter lets clients send a startup parameter, which is dropped.
func WithIgnoredParameter(name string) PgBouncerOption {
	return func(b *bouncer) { b.ignored = append(b.ignored, name) }
}

// WithPoolSize bounds the server connections of each name.
func WithPoolSize(size int) PgBouncerOption {
	return func(b *bouncer) { b.poolSize = size }
}

func startPgBouncer(t testing.TB, dsn string, options []PgBouncerOption) (string, error) {
	program, err := findPgBouncer()
	if err != nil {
		return "", err
	}
	user, err := serverAccount()
	if err != nil {
		return "", err
	}
	port, err := freePort()
	if err != nil {
		return "", err
	}
	folder, err := user.tempFolder(os.TempDir())
	if err != nil {
		return "", err
	}
	bouncer := &bouncer{program: program, account: user, folder: folder, port: port, poolSize: 20}
	for _, option := range options {
		option(bouncer)
	}
	if err := bouncer.configure(t, dsn); err != nil {
		return "", err
	}
	guard, err := startGuard(folder, bouncer.file("pid"), "TERM")
	if err != nil {
		return "", err
	}
	t.Cleanup(func() {
		if err := errors.Join(bouncer.stop(), guard.dismiss()); err != nil {
			t.Errorf("stop PgBouncer: %v", err)
		}
	})
	u := mustParse(t, dsn)
	u.Host = fmt.Sprintf("127.0.0.1:%d", port)
	u.RawQuery = "sslmode=disable"
	return u.String(), bouncer.start(u.String())
}

// findPgBouncer returns the program. Debian keeps it where only root looks.
func findPgBouncer() (string, error) {
	if program, err := exec.LookPath("pgbouncer"); err == nil {
		return program, nil
	}
	const debian = "/usr/sbin/pgbouncer"
	if _, err := os.Stat(debian); err == nil {
		return debian, nil
	}
	return "", errors.New("pgbouncer is not installed: run hack/install-tools.sh, or install it from your system's packages")
}

// bouncer is one PgBouncer process.
type bouncer struct {
	program  string
	account  account
	folder   string
	port     int
	poolSize int
	entries  [][2]string // further names of the database, each with its connect_query
	ignored  []string    // startup parameters that are dropped
	process  *exec.Cmd
	exited   chan struct{}
}

func (b *bouncer) file(name string) string {
	return filepath.Join(b.folder, "pgbouncer."+name)
}

// configure writes the two files of PgBouncer. The list of users holds the
// password itself: PgBouncer needs it to log in to a server that asks for SCRAM.
func (b *bouncer) configure(t testing.TB, dsn string) error {
	u := mustParse(t, dsn)
	password, _ := u.User.Password()
	database := strings.TrimPrefix(u.Path, "/")
	server := fmt.Sprintf("host=%s port=%s dbname=%s", u.Hostname(), u.Port(), database)
	lines := []string{"[databases]", database + " = " + server}
	for _, entry := range b.entries {
		lines = append(lines, fmt.Sprintf("%s = %s connect_query='%s'", entry[0], server, strings.ReplaceAll(entry[1], "'", "''")))
	}
	lines = append(lines,
		"[pgbouncer]",
		"listen_addr = 127.0.0.1",
		fmt.Sprintf("listen_port = %d", b.port),
		"unix_socket_dir =",
		"pool_mode = transaction",
		fmt.Sprintf("default_pool_size = %d", b.poolSize),
		"max_client_conn = 200",
		"auth_type = scram-sha-256",
		"auth_file = "+b.file("users"),
		"pidfile = "+b.file("pid"),
		"logfile = "+b.file("log"))
	if len(b.ignored) > 0 {
		lines = append(lines, "ignore_startup_parameters = "+strings.Join(b.ignored, ","))
	}
	lines = append(lines, "")
	users := fmt.Sprintf("%q %q\n", u.User.Username(), password)
	return errors.Join(
		b.account.write(b.file("ini"), strings.Join(lines, "\n")),
		b.account.write(b.file("users"), users))
}

// start runs PgBouncer and returns once a query passes through it.
func (b *bouncer) start(through string) error {
	b.process = b.account.command(b.program, b.file("ini"))
	if err := b.process.Start(); err != nil {
		return err
	}
	b.exited = make(chan struct{})
	go func() {
		// How it ended stands in its log; here it only has to be waited for.
		_ = b.process.Wait()
		close(b.exited)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		refusal := ping(ctx, through)
		if refusal == nil {
			return nil
		}
		select {
		case <-b.exited:
			return fmt.Errorf("it ended; its log:\n%s", tailOf(b.file("log")))
		default:
		}
		if err := pause(ctx); err != nil {
			return fmt.Errorf("it does not answer: %w; its log:\n%s", refusal, tailOf(b.file("log")))
		}
	}
}

// stop ends PgBouncer, its clients' connections included.
func (b *bouncer) stop() error {
	if b.process == nil || b.exited == nil {
		return nil
	}
	select {
	case <-b.exited:
		return nil
	default:
	}
	if err := b.process.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	select {
	case <-b.exited:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("process %d does not end: %w", b.process.Process.Pid, ctx.Err())
	}
}
