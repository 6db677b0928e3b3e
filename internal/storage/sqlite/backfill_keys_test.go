package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// manyRows fills a table from a series of numbers n.
func manyRows(table, columns, values string, count int) string {
	return fmt.Sprintf(`
		WITH RECURSIVE series(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM series WHERE n + 1 < %d)
		INSERT INTO %s(%s) SELECT %s FROM series`, count, table, columns, values)
}

func TestEveryRowIsCoveredOnceWhateverItsKey(t *testing.T) {
	for name, tt := range map[string]struct {
		create  string
		fill    []string
		keys    []storage.Column
		rows    int64
		batches int // 0: as many as the rows need, and one more
	}{
		"many rows share the first column of the key": {
			create: "CREATE TABLE t(created_at INTEGER NOT NULL, id INTEGER NOT NULL, filled INTEGER, PRIMARY KEY(created_at, id))",
			fill:   []string{manyRows("t", "created_at, id", "1700000000, n", 2500)},
			keys:   []storage.Column{key("created_at", "INTEGER"), key("id", "INTEGER")}, rows: 2500,
		},
		"composite key without a rowid": {
			create: "CREATE TABLE t(region TEXT, id INTEGER, filled INTEGER, PRIMARY KEY(region, id)) WITHOUT ROWID",
			fill:   []string{manyRows("t", "region, id", "'r' || (n % 3), n", 2500)},
			keys:   []storage.Column{key("region", "TEXT"), key("id", "INTEGER")}, rows: 2500,
		},
		"composite key in falling order": {
			create: "CREATE TABLE t(region TEXT NOT NULL, id INTEGER NOT NULL, filled INTEGER, PRIMARY KEY(region, id DESC))",
			fill:   []string{manyRows("t", "region, id", "'r' || (n % 3), n", 2500)},
			keys:   []storage.Column{key("region", "TEXT"), key("id", "INTEGER")}, rows: 2500,
		},
		"text in byte order": {
			create: "CREATE TABLE t(k TEXT NOT NULL PRIMARY KEY, filled INTEGER)",
			fill:   []string{"INSERT INTO t(k) VALUES ('a'), ('B'), ('ä'), ('a '), ('A'), (''), (char(0)), ('a' || char(0) || 'b'), (CAST(x'ff41' AS TEXT))"},
			keys:   []storage.Column{key("k", "TEXT")}, rows: 9,
		},
		"text without regard to case": {
			create: "CREATE TABLE t(k TEXT NOT NULL COLLATE NOCASE PRIMARY KEY, filled INTEGER)",
			fill:   []string{manyRows("t", "k", "CASE n % 2 WHEN 0 THEN 'K' ELSE 'k' END || n", 2500)},
			keys:   []storage.Column{key("k", "TEXT")}, rows: 2500,
		},
		"text without regard to trailing spaces": {
			create: "CREATE TABLE t(k TEXT NOT NULL COLLATE RTRIM PRIMARY KEY, filled INTEGER)",
			fill:   []string{manyRows("t", "k", "n || CASE n % 2 WHEN 0 THEN '  ' ELSE '' END", 2500)},
			keys:   []storage.Column{key("k", "TEXT")}, rows: 2500,
		},
		"a column that ignores case under a key that does not": {
			create: "CREATE TABLE t(k TEXT NOT NULL COLLATE NOCASE, filled INTEGER, UNIQUE(k COLLATE BINARY))",
			fill:   []string{"INSERT INTO t(k) VALUES ('a'), ('A'), ('b'), ('B'), ('c')"},
			keys:   []storage.Column{key("k", "TEXT")}, rows: 5,
		},
		"bytes with zeros at the end": {
			create: "CREATE TABLE t(k BLOB NOT NULL PRIMARY KEY, filled INTEGER)",
			fill: []string{
				manyRows("t", "k", "CAST(printf('%04d', n) AS BLOB) || zeroblob(16)", 2500),
				"INSERT INTO t(k) VALUES (x''), (x'00'), (x'0000'), (x'61'), (x'6100'), (x'610000')",
			},
			keys: []storage.Column{key("k", "BLOB")}, rows: 2506,
		},
		"numbers with fractions": {
			create: "CREATE TABLE t(k REAL NOT NULL PRIMARY KEY, filled INTEGER)",
			fill:   []string{manyRows("t", "k", "n / 7.0 - 100", 2500), "INSERT INTO t(k) VALUES (1e308), (-1e308), (5e-324), (9e999), (-9e999)"},
			keys:   []storage.Column{key("k", "REAL")}, rows: 2505,
		},
		"values of every storage class in one column": {
			create: "CREATE TABLE t(k NOT NULL PRIMARY KEY, filled INTEGER)",
			fill: []string{
				"INSERT INTO t(k) VALUES (5), ('5'), (x'35'), (5.5), ('5.5'), (-1), (9007199254740993), (9007199254740993.0), ('NULL'), (''), (x'')",
			},
			keys: []storage.Column{{Name: "k", Type: storage.TypeString}}, rows: 11,
		},
		"values of every storage class in a strict table": {
			create: "CREATE TABLE t(k ANY NOT NULL PRIMARY KEY, filled INTEGER) STRICT",
			fill:   []string{"INSERT INTO t(k) VALUES (5), ('5'), (x'35'), (5.5), ('5.5'), (''), (x'')"},
			keys:   []storage.Column{key("k", "ANY")}, rows: 7,
		},
		"dates, which the driver would read as times": {
			create: "CREATE TABLE t(k DATETIME NOT NULL PRIMARY KEY, filled INTEGER)",
			fill:   []string{"INSERT INTO t(k) VALUES ('2020-01-01'), ('2020-01-01 00:00:00'), ('2020-01-01T00:00:00Z'), (1577836800), ('no date')"},
			keys:   []storage.Column{key("k", "DATETIME")}, rows: 5,
		},
		"the row's number, negative ones too": {
			create: "CREATE TABLE t(id INTEGER PRIMARY KEY, filled INTEGER)",
			fill:   []string{manyRows("t", "id", "n - 1250", 2500), "INSERT INTO t(id) VALUES (9223372036854775807), (-9223372036854775808)"},
			keys:   []storage.Column{key("id", "INTEGER")}, rows: 2502,
		},
		"an empty table": {
			create: "CREATE TABLE t(id INTEGER PRIMARY KEY, filled INTEGER)",
			keys:   []storage.Column{key("id", "INTEGER")}, batches: 1,
		},
		"exactly one batch": {
			create: "CREATE TABLE t(id INTEGER PRIMARY KEY, filled INTEGER)",
			fill:   []string{manyRows("t", "id", "n", 1000)},
			keys:   []storage.Column{key("id", "INTEGER")}, rows: 1000, batches: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBackfill(t, append([]string{tt.create}, tt.fill...), []storage.Table{keyed("t", tt.keys...)}, counting("t"))
			b.begin()
			batches, rows := b.finish(storage.AllPartitions)
			same(t, "rows filled", rows, tt.rows)
			same(t, "rows filled once", b.program.number("SELECT count(*) FROM t WHERE filled = 1"), tt.rows)
			most := tt.batches
			if most == 0 {
				most = int(tt.rows+storage.DefaultBatchRows-1)/storage.DefaultBatchRows + 1
			}
			if batches > most {
				t.Errorf("it took %d batches, at most %d are needed", batches, most)
			}
			same(t, "gate", b.gate().Open, true)
		})
	}
}

func (b *backfillTest) gate() storage.GateVerdict {
	b.Helper()
	gate, err := b.store.ReadServeGate(testContext(b), 1)
	if err != nil {
		b.Fatalf("read the gate: %v", err)
	}
	return gate.Verdict()
}

// What the log calls a row is text. From it every row that could be meant has to be found again, whatever the storage class.
func TestEveryLoggedKeyFindsItsRow(t *testing.T) {
	for name, tt := range map[string]struct {
		create string
		keys   []storage.Column
		fill   string   // the keys that are there
		logged []string // row ids of those that were changed
		want   string   // keys that must have been filled again
		gone   []string // row ids of rows that are deleted
	}{
		"numbers": {
			create: "CREATE TABLE t(k INTEGER PRIMARY KEY, filled INTEGER)", keys: []storage.Column{key("k", "INTEGER")},
			fill: "VALUES (1), (-2), (30)", logged: []string{"-2", "30"}, want: "-2, 30",
		},
		"fractions": {
			create: "CREATE TABLE t(k REAL NOT NULL PRIMARY KEY, filled INTEGER)", keys: []storage.Column{key("k", "REAL")},
			fill: "VALUES (0.1), (1e21), (5.0), (2.5)", logged: []string{"0.1", "1e+21", "5"}, want: "0.1, 1e21, 5.0",
		},
		"text that looks like bytes or numbers": {
			create: "CREATE TABLE t(k TEXT NOT NULL PRIMARY KEY, filled INTEGER)", keys: []storage.Column{key("k", "TEXT")},
			fill: `VALUES ('\x61'), ('a'), ('007'), ('7')`, logged: []string{`\x61`, "007"}, want: `'\x61', '007'`,
		},
		"bytes": {
			create: "CREATE TABLE t(k BLOB NOT NULL PRIMARY KEY, filled INTEGER)", keys: []storage.Column{key("k", "BLOB")},
			fill: "VALUES (x'61'), (x'6100'), (x''), (x'00')", logged: []string{`\x6100`, `\x`}, want: "x'6100', x''",
		},
		"a column of any storage class": {
			create: "CREATE TABLE t(k NOT NULL PRIMARY KEY, filled INTEGER)", keys: []storage.Column{{Name: "k", Type: storage.TypeString}},
			fill: `VALUES (5), ('five'), (x'35'), (2.5)`, logged: []string{"5", `\x35`, "2.5", "five"}, want: "5, 'five', x'35', 2.5",
		},
		"text in another case, where case does not matter": {
			create: "CREATE TABLE t(k TEXT NOT NULL COLLATE NOCASE PRIMARY KEY, filled INTEGER)", keys: []storage.Column{key("k", "TEXT")},
			fill: "VALUES ('Abc'), ('x')", logged: []string{"aBC"}, want: "'Abc'",
		},
		"composite keys": {
			create: "CREATE TABLE t(k TEXT NOT NULL, n INTEGER NOT NULL, filled INTEGER, PRIMARY KEY(k, n))",
			keys:   []storage.Column{key("k", "TEXT"), key("n", "INTEGER")},
			fill:   `VALUES ('a"b', 1), ('a"b', 2), ('', 3)`, logged: []string{`["a\"b","2"]`, `["","3"]`}, want: `'a"b', ''`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			columns := keyed("t", tt.keys...)
			b := newBackfill(t, []string{tt.create}, []storage.Table{columns}, counting("t"))
			list := "k"
			if len(tt.keys) > 1 {
				list = "k, n"
			}
			b.program.exec("INSERT INTO t(" + list + ") " + tt.fill)
			b.begin()
			b.scan()
			b.write("p", "t", tt.logged, "")
			same(t, "rows of the tail", b.tail(storage.AllPartitions), int64(len(tt.logged)))
			same(t, "rows filled again", b.program.number("SELECT count(*) FROM t WHERE filled = 2"), int64(len(tt.logged)))
			same(t, "of those that were meant", b.program.number("SELECT count(*) FROM t WHERE filled = 2 AND k IN ("+tt.want+")"), int64(len(tt.logged)))
			same(t, "outcome", b.activate(storage.AllPartitions).Outcome, storage.OutcomeActivated)
		})
	}
}

func TestTableWithoutUsableKeyIsRefusedBeforeAnythingIsWritten(t *testing.T) {
	nullable := storage.Column{Name: "k", SQLType: "TEXT", Nullable: true}
	for name, tt := range map[string]struct {
		setup []string
		table storage.Table
		sql   string // of the version itself
	}{
		"NULL in a primary key, written by the version's own SQL": {
			setup: []string{"CREATE TABLE t(k TEXT PRIMARY KEY, filled INTEGER)", "INSERT INTO t(k) VALUES ('a')"},
			table: keyed("t", nullable), sql: "INSERT INTO t(k) VALUES (NULL)",
		},
		"no key at all": {
			setup: []string{"CREATE TABLE t(k TEXT, filled INTEGER)"}, table: keyed("t", nullable),
		},
		"NULL in a primary key": {
			setup: []string{"CREATE TABLE t(k TEXT PRIMARY KEY, filled INTEGER)", "INSERT INTO t(k) VALUES ('a'), (NULL), ('b')"},
			table: keyed("t", nullable),
		},
		"NULL in the second column of a primary key": {
			setup: []string{"CREATE TABLE t(k TEXT, n TEXT, filled INTEGER, PRIMARY KEY(k, n))", "INSERT INTO t(k, n) VALUES ('a', 'b'), ('a', NULL)"},
			table: keyed("t", nullable, storage.Column{Name: "n", SQLType: "TEXT", Nullable: true}),
		},
		"a unique column that may hold NULL": {
			setup: []string{"CREATE TABLE t(k TEXT UNIQUE, filled INTEGER)"}, table: keyed("t", nullable),
		},
		"a unique index of some rows only": {
			setup: []string{"CREATE TABLE t(k TEXT NOT NULL, filled INTEGER)", "CREATE UNIQUE INDEX some ON t(k) WHERE k > 'a'"},
			table: keyed("t", key("k", "TEXT")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := newFile(t)
			store, program := openStore(t, path), openProgram(t, path)
			for _, statement := range tt.setup {
				program.exec(statement)
			}
			target := withSQL(storage.Target{
				Version: 1, Tables: []storage.Table{tt.table}, Checkpoints: []storage.Checkpoint{counting("t")}, Owner: clinicOwner,
			}, tt.sql)
			refuse(t, store, target, storage.CodeInvalidSpec, `"t"`, `"fill"`)
			same(t, "tables", program.number("SELECT count(*) FROM sqlite_master WHERE type = 'table'"), 1)
		})
	}
}

func TestNullKeyWrittenDuringTheBackfillKeepsItFromBeingActivated(t *testing.T) {
	nullable := storage.Column{Name: "k", SQLType: "TEXT", Nullable: true}
	b := newBackfill(t, []string{
		"CREATE TABLE t(k TEXT PRIMARY KEY, filled INTEGER)", "INSERT INTO t(k) VALUES ('a'), ('b')",
	}, []storage.Table{keyed("t", nullable)}, counting("t"))
	b.begin()
	b.write("p", "t", []string{"a"}, "INSERT INTO t(k) VALUES (NULL)")
	b.scan()
	b.tail(storage.AllPartitions)
	_, err := b.store.Activate(testContext(t), b.claim, storage.Activation{Partition: storage.AllPartitions})
	wantCode(t, err, storage.CodeInvalidSpec)
	wantText(t, err, `"t"`, "NULL")
	same(t, "gate", b.gate().Open, false)
	b.write("p", "t", []string{"a"}, "DELETE FROM t WHERE k IS NULL")
	same(t, "outcome without the row", b.activate(storage.AllPartitions).Outcome, storage.OutcomeActivated)
	same(t, "rows not filled", b.program.number("SELECT count(*) FROM t WHERE filled IS NULL"), 0)
}

// Paging has to walk the index of the key: a batch that sorts the table, or walks it from its beginning, takes the longer the
// further the scan is, with the program waiting.
func TestPagingWalksTheIndexOfTheKey(t *testing.T) {
	for name, tt := range map[string]struct {
		create string
		keys   []storage.Column
		part   part
		want   string
	}{
		"the row's number":     {"CREATE TABLE t(id INTEGER PRIMARY KEY)", []storage.Column{key("id", "INTEGER")}, part{}, "(rowid>? AND rowid<?)"},
		"text":                 {"CREATE TABLE t(k TEXT PRIMARY KEY)", []storage.Column{key("k", "TEXT")}, part{}, "(k>? AND k<?)"},
		"text ignoring case":   {"CREATE TABLE t(k TEXT COLLATE NOCASE PRIMARY KEY)", []storage.Column{key("k", "TEXT")}, part{}, "(k>? AND k<?)"},
		"a key's own order":    {"CREATE TABLE t(k TEXT COLLATE NOCASE NOT NULL, UNIQUE(k COLLATE BINARY))", []storage.Column{key("k", "TEXT")}, part{}, "(k>? AND k<?)"},
		"composite":            {"CREATE TABLE t(a TEXT, b INTEGER, PRIMARY KEY(a, b))", []storage.Column{key("a", "TEXT"), key("b", "INTEGER")}, part{}, "((a,b)>(?,?) AND (a,b)<(?,?))"},
		"composite, no rowid":  {"CREATE TABLE t(a TEXT, b INTEGER, PRIMARY KEY(a, b)) WITHOUT ROWID", []storage.Column{key("a", "TEXT"), key("b", "INTEGER")}, part{}, "((a,b)>(?,?) AND (a,b)<(?,?))"},
		"one partition's part": {"CREATE TABLE t(a TEXT, b INTEGER, PRIMARY KEY(a, b))", []storage.Column{key("a", "TEXT"), key("b", "INTEGER")}, part{column: "a", leads: true, partition: "p"}, "((a,b)>(?,?) AND (a,b)<(?,?))"},
	} {
		t.Run(name, func(t *testing.T) {
			path := newFile(t)
			store, program := openStore(t, path), openProgram(t, path)
			program.exec(tt.create)
			err := store.inTx(testContext(t), "read a plan", false, func(ctx context.Context, tx *sql.Conn) error {
				k, err := readKey(ctx, tx, keyed("t", tt.keys...))
				if err != nil {
					return err
				}
				bound := slices.Repeat([]any{1}, len(tt.keys))
				for _, r := range []keyRange{{part: tt.part, after: bound, upTo: bound}, {part: tt.part, after: bound}, {part: tt.part, upTo: bound}} {
					condition, arguments := r.condition(k, "t.")
					detail, err := planOf(ctx, tx, "SELECT "+k.list("t.")+" FROM main.t AS t WHERE "+condition+
						" ORDER BY "+k.order("t.", "")+" LIMIT 10", arguments...)
					if err != nil {
						return err
					}
					if !strings.HasPrefix(detail, "SEARCH") || strings.Contains(detail, "B-TREE") {
						t.Errorf("the plan of %s is %q", condition, detail)
					}
					if r.after != nil && r.upTo != nil && !strings.HasSuffix(detail, tt.want) {
						t.Errorf("the plan of %s is %q, want one with %q", condition, detail, tt.want)
					}
				}
				return updatesByKey(ctx, t, tx, k)
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// updatesByKey looks at the plan of the statement that fills a batch: it has to look its rows up, not to read the whole table.
func updatesByKey(ctx context.Context, t *testing.T, tx *sql.Conn, k tableKey) error {
	w := &work{tx: tx, key: k, definition: storage.Definition{Checkpoint: counting("t")}}
	w.definition.Checkpoint.Backfill.Update.Set = map[string]string{k.columns[0].name: "1"}
	if err := w.makeRelations(ctx); err != nil {
		return err
	}
	detail, err := planOf(ctx, tx, w.applySQL())
	if err == nil && !strings.Contains(detail, "SEARCH main.t") {
		t.Errorf("the plan of %s is %q", w.applySQL(), detail)
	}
	return firstError(err, w.dropRelations(ctx))
}

func planOf(ctx context.Context, tx *sql.Conn, text string, arguments ...any) (string, error) {
	details, err := collect(ctx, tx, func(row interface{ Scan(...any) error }) (detail string, err error) {
		var ignored int
		return detail, row.Scan(&ignored, &ignored, &ignored, &detail)
	}, "EXPLAIN QUERY PLAN "+text, arguments...)
	return strings.Join(details, "; "), err
}

func TestCursorsKeepStorageClassAndBytes(t *testing.T) {
	for _, key := range [][]any{
		{int64(5)}, {int64(math.MinInt64)}, {5.0}, {0.1}, {math.Inf(1)}, {math.SmallestNonzeroFloat64}, {"5"}, {""}, {"i5"}, {"a\x00b"}, {"\xff"}, {"["},
		{[]byte{}}, {[]byte("5")}, {[]byte{0, 0}}, {"a", int64(1)}, {"\xfe", []byte{0}, 1.5, int64(-1), "\"]"},
	} {
		cursor, err := encodeCursor(key)
		if err != nil {
			t.Fatal(err)
		}
		read, err := decodeCursor(cursor, len(key))
		if err != nil || !reflect.DeepEqual(read, key) {
			t.Errorf("%#v is written as %q and read as %#v (%v)", key, cursor, read, err)
		}
		if !utf8.ValidString(cursor) || strings.ContainsRune(cursor, 0) {
			t.Errorf("the cursor %q of %#v is no text for every program", cursor, key)
		}
	}
	for _, cursor := range []string{"", "5", "i", "ix", "q5", "bzz", `["i5"]`, "rx"} {
		if key, err := decodeCursor(cursor, 1); err == nil {
			t.Errorf("%q was read as %#v", cursor, key)
		}
	}
	if _, err := encodeCursor([]any{nil}); err == nil {
		t.Error("NULL was written as a cursor")
	}
}

// Random keys appear below the cursor while the scan runs. The scan does not see them; the log does.
func TestRowInsertedBelowTheCursorIsCovered(t *testing.T) {
	b := newBackfill(t, []string{
		"CREATE TABLE t(k TEXT NOT NULL PRIMARY KEY, filled INTEGER)",
		manyRows("t", "k", "lower(hex(randomblob(16)))", 100),
	}, []storage.Table{keyed("t", key("k", "TEXT"))}, counting("t"))
	b.setBatch(30)
	b.begin()
	lease := b.take(0, 1)[0]
	for i := 0; !lease.Done; i++ {
		batch, err := b.store.ScanBatch(testContext(t), b.claim, lease)
		if err != nil {
			t.Fatal(err)
		}
		lease.Done = batch.Done
		low := fmt.Sprintf("0000-%d", i)
		b.write("p", "t", []string{low}, "INSERT INTO t(k) VALUES ($1)", low)
	}
	written := b.program.number("SELECT count(*) FROM t WHERE k LIKE '0000-%'")
	same(t, "rows that the scan has not seen", b.program.number("SELECT count(*) FROM t WHERE filled IS NULL"), written)
	report := b.activate(storage.AllPartitions)
	same(t, "outcome", report.Outcome, storage.OutcomeActivated)
	same(t, "rest", report.Rest, written)
	same(t, "rows filled once", b.program.number("SELECT count(*) FROM t WHERE filled = 1"), 100+written)
}

// Keys that go through Go on their way, as those of a listed partition do, keep their storage class and their text too.
func TestKeysOfAListedPartitionAreReadAsTheyAre(t *testing.T) {
	table := keyed("t", key("k", "DATETIME"))
	table.Columns = append(table.Columns, storage.Column{Name: "tenant", SQLType: "TEXT"})
	table.Partition.Column = "tenant"
	b := newBackfill(t, []string{
		"CREATE TABLE t(k DATETIME NOT NULL PRIMARY KEY, filled INTEGER, tenant TEXT NOT NULL)",
		`INSERT INTO t(k, tenant) VALUES ('2020-01-01', 'a'), ('2020-01-01 00:00:00', 'b'), ('2020-01-01T00:00:00Z', 'a'), (1577836800, 'a'),
			('no date', 'b'), ('2020-01-02', 'a'), (x'32', 'a'), (x'', 'a'), (2.5, 'a')`,
	}, []storage.Table{table}, counting("t", "a"))
	b.setBatch(2)
	b.begin()
	_, rows := b.finish("a")
	same(t, "rows", rows, 7)
	same(t, "rows filled once", b.program.number("SELECT count(*) FROM t WHERE filled = 1 AND tenant = 'a'"), 7)
	same(t, "rows of the other partition that were filled", b.program.number("SELECT count(*) FROM t WHERE filled IS NOT NULL AND tenant = 'b'"), 0)
}
