package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// asProgram makes the test binary be the program, so that tests run it as a user does: a process that can be killed.
const asProgram = "SYNCBARRIER_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

// target is one database under test.
type target struct {
	address string
	db      *sql.DB
	sqlite  bool
}

// onBoth runs a test on a fresh database of each product.
func onBoth(t *testing.T, test func(t *testing.T, db target)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) { test(t, sqliteTarget(t)) })
	t.Run("postgres", func(t *testing.T) { test(t, postgresTarget(t)) })
}

func sqliteTarget(t *testing.T) target {
	t.Helper()
	path := filepath.Join(t.TempDir(), "clinic.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(20000)&_txlock=immediate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	if _, err := db.Exec(`PRAGMA journal_mode=WAL`); err != nil {
		t.Fatal(err)
	}
	return target{address: "sqlite:" + path, db: db, sqlite: true}
}

func postgresTarget(t *testing.T) target {
	t.Helper()
	dsn := testdb.Postgres(t)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return target{address: dsn, db: db}
}

// exec runs statements of the application, separated by ;.
func (d target) exec(t *testing.T, statements string) {
	t.Helper()
	for _, statement := range strings.Split(statements, ";") {
		if strings.TrimSpace(statement) == "" {
			continue
		}
		if _, err := d.db.ExecContext(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// number reads one number.
func (d target) number(t *testing.T, query string) (n int64) {
	t.Helper()
	if err := d.db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// q turns ? into the product's placeholders.
func (d target) q(text string) string {
	for n := 1; !d.sqlite && strings.Contains(text, "?"); n++ {
		text = strings.Replace(text, "?", fmt.Sprintf("$%d", n), 1)
	}
	return text
}

// contents is everything in the database: definitions and rows. Two equal texts mean that nothing was changed.
func (d target) contents(t *testing.T) string {
	t.Helper()
	tables := `SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name`
	definitions := `SELECT coalesce(sql, name) FROM sqlite_master ORDER BY name`
	if !d.sqlite {
		tables = `SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY table_name`
		definitions = `SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable FROM information_schema.columns WHERE table_schema = 'public'
			UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
			UNION ALL SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal ORDER BY 1`
	}
	var b strings.Builder
	for _, line := range d.strings(t, definitions) {
		fmt.Fprintln(&b, line)
	}
	for _, table := range d.strings(t, tables) {
		fmt.Fprintln(&b, table, d.rows(t, table))
	}
	return b.String()
}

func (d target) strings(t *testing.T, query string) (texts []string) {
	t.Helper()
	rows, err := d.db.QueryContext(t.Context(), query)
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, text)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return texts
}

func (d target) rows(t *testing.T, table string) string {
	t.Helper()
	rows, err := d.db.QueryContext(t.Context(), `SELECT * FROM "`+strings.ReplaceAll(table, `"`, `""`)+`"`)
	if err != nil {
		t.Fatalf("read %s: %v", table, err)
	}
	defer func() { _ = rows.Close() }()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for rows.Next() {
		values, pointers := make([]any, len(columns)), make([]any, len(columns))
		for i := range values {
			pointers[i] = &values[i]
		}
		if err := rows.Scan(pointers...); err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprint(values))
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// result is what one run of the program did.
type result struct {
	code   int
	out    string
	errors string
}

// json reads the output of -o json.
func (r result) json(t *testing.T) map[string]any {
	t.Helper()
	var value map[string]any
	if err := json.Unmarshal([]byte(r.out), &value); err != nil {
		t.Fatalf("no JSON: %v\n%s", err, r.out)
	}
	return value
}

// command is the program as a process.
func command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// runBound is far above what any run here takes; a run that reaches it hangs.
const runBound = 2 * time.Minute

// run runs the program on a database with a file as standard input.
func run(t *testing.T, d target, stdin string, args ...string) result {
	t.Helper()
	return runProgram(t, stdin, append([]string{"--database", d.address}, args...)...)
}

func runProgram(t *testing.T, stdin string, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runBound)
	defer cancel()
	cmd := command(ctx, args...)
	var out, failures bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &failures
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("syncbarrier %v still ran after %s:\n%s%s", args, runBound, out.String(), failures.String())
	}
	var exited *exec.ExitError
	if err != nil && !errors.As(err, &exited) {
		t.Fatal(err)
	}
	return result{code: cmd.ProcessState.ExitCode(), out: out.String(), errors: failures.String()}
}

// must fails the test unless the run ended with the code.
func (r result) must(t *testing.T, code int) result {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\n%s%s", r.code, code, r.out, r.errors)
	}
	return r
}
