package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	modernc "modernc.org/sqlite"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	openTimeout           = 3 * time.Second
	idleClose             = 60 * time.Second
	defaultBusyTimeout    = 5 * time.Second
	defaultMaxConnections = 8
)

// Config says which file to open and how.
type Config struct {
	// Path is the file. It is a path and nothing else: no URI, no parameters, no database in memory.
	Path string
	// Create makes an empty file if there is none.
	Create bool
	// Queries are those that Query may run.
	Queries []storage.RegisteredQuery
	// BusyTimeout bounds the wait for the file's write lock; 0: 5 s. A barrier has its own bound.
	BusyTimeout time.Duration
	// MaxConnections bounds the pool; 0: 8. It is 2 at least: a barrier looks at the file as it was through a second one.
	MaxConnections int
}

// Open opens a database file and looks at it, within three seconds. It changes nothing in it; its journal mode too stays what its
// programs chose, because a write-ahead log on a network volume destroys the file.
//
// Errors: CodeInvalidSpec for a path that is empty, missing, a directory or no database; CodeReadOnly for a file that takes no
// writes; CodeAuthenticationFailed for one that may not be read; CodeLockTimeout.
func Open(ctx context.Context, config Config) (*Store, error) {
	what := "open " + config.Path
	given, file, err := checkPath(config)
	if err != nil {
		return nil, err
	}
	s := &Store{path: config.Path, given: given, file: file, busy: config.BusyTimeout, turn: make(chan struct{}, 1), queries: map[string]storage.RegisteredQuery{}}
	if s.busy <= 0 {
		s.busy = defaultBusyTimeout
	}
	for _, query := range config.Queries {
		s.queries[query.Name] = query
	}
	connections := config.MaxConnections
	if connections <= 0 {
		connections = defaultMaxConnections
	}
	opener := &connector{name: s.dataSourceName(config.Create)}
	s.db = sql.OpenDB(opener)
	connections = max(connections, 2)
	s.db.SetMaxOpenConns(connections)
	s.db.SetMaxIdleConns(connections)
	s.db.SetConnMaxIdleTime(idleClose)

	bounded, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	if err := s.firstLook(bounded, what); err != nil {
		s.Close()
		if storage.CodeOf(err) == storage.CodeCancelled && ctx.Err() == nil {
			return nil, s.lockTimeout(what, openTimeout)
		}
		return nil, err
	}
	opener.name = s.dataSourceName(false) // a file that goes away later is not made again
	return s, nil
}

// checkPath refuses what SQLite would misunderstand or hang on, and gives the absolute path as it was given and the real one. It must not open the file: closing it again
// would drop every lock that this process holds on it (POSIX, fcntl(2)), those of another Store included.
func checkPath(config Config) (given, file string, err error) {
	path := config.Path
	switch {
	case path == "":
		return "", "", storage.Refuse(storage.CodeInvalidSpec, "the path of the SQLite file is empty")
	case path == ":memory:":
		return "", "", storage.Refuse(storage.CodeInvalidSpec, "a database in memory has one connection and nobody to keep out; name a file")
	case strings.ContainsRune(path, 0):
		return "", "", storage.Refuse(storage.CodeInvalidSpec, "the path of the SQLite file holds a NUL character")
	}
	given, err = filepath.Abs(path)
	if err != nil {
		return "", "", storage.Refuse(storage.CodeInvalidSpec, "open %s: %v", path, err)
	}
	info, err := os.Stat(given)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return "", "", storage.Refuse(storage.CodeAuthenticationFailed, "open %s: the right to reach the file is missing", path)
	case errors.Is(err, fs.ErrNotExist) && config.Create:
		if parent, err := os.Stat(filepath.Dir(given)); err != nil || !parent.IsDir() {
			return "", "", storage.Refuse(storage.CodeInvalidSpec, "open %s: the directory does not exist", path)
		}
		return given, given, nil
	case err != nil:
		return "", "", storage.Refuse(storage.CodeInvalidSpec, "open %s: the file does not exist", path)
	case info.IsDir():
		return "", "", storage.Refuse(storage.CodeInvalidSpec, "open %s: it is a directory, not a database file", path)
	case !info.Mode().IsRegular():
		return "", "", storage.Refuse(storage.CodeInvalidSpec, "open %s: it is no regular file", path)
	}
	if file, err = filepath.EvalSymlinks(given); err != nil {
		file = given
	}
	return given, file, nil
}

// dataSourceName writes the settings into the name that every connection of the pool is opened with: a PRAGMA through the pool would
// reach one connection and leave the next as it was.
func (s *Store) dataSourceName(create bool) string {
	settings := url.Values{
		"mode":      {"rw"},
		"_txlock":   {"immediate"},
		"_error_rc": {"1"},
		"_pragma": {
			fmt.Sprintf("busy_timeout(%d)", s.busy.Milliseconds()),
			// Backfills must keep the references between the program's tables. A barrier switches this off on its own
			// connection and checks the references at its end: with it on, DROP TABLE deletes the rows of a table first, and
			// those of all tables that refer to it ON DELETE CASCADE.
			"foreign_keys(1)",
		},
	}
	if create {
		settings.Set("mode", "rwc")
	}
	return "file:" + (&url.URL{Path: s.file}).EscapedPath() + "?" + settings.Encode()
}

// firstLook opens the first connection, reads the file's header and says what is wrong with it.
func (s *Store) firstLook(ctx context.Context, what string) error {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return s.explainOpen(err, what)
	}
	defer release(conn, false)
	var objects int64
	if err := conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&objects); err != nil {
		return s.explainOpen(err, what)
	}
	var readOnly bool
	err = conn.Raw(func(driverConn any) error {
		asker, ok := driverConn.(interface{ IsReadOnly(string) (bool, error) })
		if !ok {
			return errors.New("the driver does not tell whether a file is read-only")
		}
		readOnly, err = asker.IsReadOnly("main")
		return err
	})
	if err != nil {
		return translate(err, what)
	}
	if readOnly {
		return storage.Refuse(storage.CodeReadOnly, "%s: the file is read-only", what)
	}
	if s.opened, err = os.Stat(s.file); err != nil {
		return &storage.Error{Code: storage.CodeConflict, Message: what + ": the file went away while it was opened", Err: err}
	}
	return nil
}

// checkSameFile refuses to go on once another file stands at the path, as after a restore by mv or where a link was turned: connections would go
// on with the file before, which nobody else sees, and a worker would report as done what is nowhere. It does not open the file (checkPath says why).
func (s *Store) checkSameFile(what string) error {
	if now, err := os.Stat(s.given); err == nil && os.SameFile(now, s.opened) {
		return nil
	}
	return storage.Refuse(storage.CodeConflict, "%s: %s is not the file any more that was opened: it was replaced, moved or deleted", what, s.path).
		WithHint("open it again; what this process wrote before is in the file that was there then")
}

// explainOpen is translate for the first look at a file: SQLite says "unable to open" for a missing right.
func (s *Store) explainOpen(err error, what string) error {
	switch primaryCode(err) {
	case codeNotADatabase:
		return storage.Refuse(storage.CodeInvalidSpec, "%s: the file is no SQLite database", what)
	case codeCannotOpen:
		return &storage.Error{Code: storage.CodeAuthenticationFailed, Message: what + ": the right to read the file, or to write beside it, is missing", Err: err}
	}
	return translate(err, what)
}

// functions is a driver of our own, so that nothing we register reaches other connections of the process.
var functions = newDriver()

// connector opens connections with our functions.
type connector struct{ name string }

func (c *connector) Connect(ctx context.Context) (driver.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return functions.Open(c.name)
}

func (c *connector) Driver() driver.Driver { return functions }

// rewriteFunction is the SQL function over storage.RewritePayload: (payload, old columns, new columns). Bytes stay bytes in it,
// also in a UTF-16 database, where || over substr() would go through text.
const rewriteFunction = "syncbarrier_rewrite_payload"

func newDriver() *modernc.Driver {
	d := &modernc.Driver{}
	d.MustRegisterDeterministicScalarFunction(rewriteFunction, 3, rewritePayload)
	return d
}

func rewritePayload(_ *modernc.FunctionContext, arguments []driver.Value) (driver.Value, error) {
	payload, isBytes := arguments[0].([]byte)
	old, isOld := arguments[1].(int64)
	now, isNow := arguments[2].(int64)
	if !isBytes || !isOld || !isNow {
		return nil, errors.New("a payload is no BLOB")
	}
	rewritten, ok := storage.RewritePayload(payload, int(old), int(now))
	if !ok {
		return nil, errors.New("a payload is shorter than its null bitmap")
	}
	return rewritten, nil
}
