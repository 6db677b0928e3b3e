package postgres

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// keyCase is a table whose rows are found by its key. Its column v is to be filled with its column k's text or its row's.
type keyCase struct {
	name    string
	setup   string // makes the table t(..., src text, v text)
	key     []string
	columns []storage.Column
	rows    int64
}

func textKey(name string) storage.Column { return storage.Column{Name: name, Type: storage.TypeString} }

func typedKey(name, kind string) storage.Column { return storage.Column{Name: name, SQLType: kind} }

// Many equal values, composite keys, texts in a collation that is not byte order, bytes with zeros at their end, quoted names: each
// row is filled exactly once, however small the batches are.
func TestEveryRowIsFilledExactlyOnceWhateverItsKey(t *testing.T) {
	cases := []keyCase{
		{"rows with one creation time", `CREATE TABLE t(id bigint PRIMARY KEY, created_at timestamptz, src text, v text);
			INSERT INTO t SELECT n, '2026-01-01', n::text FROM generate_series(1, 2500) n`,
			[]string{"id"}, []storage.Column{typedKey("id", "bigint")}, 2500},
		{"composite", `CREATE TABLE t(region text, id int, src text, v text, PRIMARY KEY (region, id));
			INSERT INTO t SELECT 'r' || n % 7, n / 7, n::text FROM generate_series(1, 2500) n`,
			[]string{"region", "id"}, []storage.Column{textKey("region"), typedKey("id", "integer")}, 2500},
		{"composite, its second column first in the table", `CREATE TABLE t(b numeric, a uuid, src text, v text, PRIMARY KEY (a, b));
			INSERT INTO t SELECT n / 3.0, md5((n % 5)::text)::uuid, n::text FROM generate_series(1, 1200) n`,
			[]string{"a", "b"}, []storage.Column{typedKey("a", "uuid"), typedKey("b", "numeric")}, 1200},
		{"text in a linguistic collation", `CREATE COLLATION german (provider = icu, locale = 'de');
			CREATE TABLE t(id text COLLATE german PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT x || n, n::text FROM unnest(ARRAY['a', 'B', 'ä', 'a ', 'Z', '"', '\', 'ß', E'\t', '😀']) x, generate_series(1, 120) n`,
			[]string{"id"}, []storage.Column{textKey("id")}, 1200},
		{"text in a collation for which different texts are equal", `CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
			CREATE TABLE t(id text COLLATE folded PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT CASE n % 2 WHEN 0 THEN 'Key' ELSE 'kEY' END || n, n::text FROM generate_series(1, 1100) n`,
			[]string{"id"}, []storage.Column{textKey("id")}, 1100},
		{"text in byte order", `CREATE TABLE t(id text COLLATE "C" PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT x || n, n::text FROM unnest(ARRAY['a', 'B', 'ä', 'a ', '']) x, generate_series(1, 300) n`,
			[]string{"id"}, []storage.Column{textKey("id")}, 1500},
		{"padded characters", `CREATE TABLE t(id char(12) PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT 'k' || n, n::text FROM generate_series(1, 1100) n`,
			[]string{"id"}, []storage.Column{typedKey("id", "character(12)")}, 1100},
		{"bytes with zeros at their end", `CREATE TABLE t(id bytea PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT decode(lpad(to_hex(n / 3), 4, '0'), 'hex') || substr('\x000000'::bytea, 1, n % 3), n::text FROM generate_series(1, 1200) n`,
			[]string{"id"}, []storage.Column{typedKey("id", "bytea")}, 1200},
		{"uuid", `CREATE TABLE t(id uuid PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT md5(n::text)::uuid, n::text FROM generate_series(1, 1100) n`,
			[]string{"id"}, []storage.Column{typedKey("id", "uuid")}, 1100},
		{"negative integers and the bounds", `CREATE TABLE t(id bigint PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT n - 550, n::text FROM generate_series(1, 1100) n;
			INSERT INTO t VALUES (-9223372036854775808, 'least'), (9223372036854775807, 'largest')`,
			[]string{"id"}, []storage.Column{typedKey("id", "bigint")}, 1102},
		{"numeric with infinity and not a number", `CREATE TABLE t(id numeric PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT (n - 500) / 7.0, n::text FROM generate_series(1, 1000) n;
			INSERT INTO t VALUES ('NaN', 'nan'), ('Infinity', 'inf'), ('-Infinity', '-inf')`,
			[]string{"id"}, []storage.Column{typedKey("id", "numeric")}, 1003},
		{"double precision", `CREATE TABLE t(id float8 PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT n / 3.0::float8 - 100, n::text FROM generate_series(1, 1000) n WHERE n <> 300;
			INSERT INTO t VALUES ('NaN', 'nan'), ('Infinity', 'inf'), ('-0', 'zero'), (5e-324, 'smallest')`,
			[]string{"id"}, []storage.Column{typedKey("id", "double precision")}, 1003},
		{"time with zone and infinity", `CREATE TABLE t(id timestamptz PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT '2026-03-29 00:00+00'::timestamptz + n * interval '7 minutes 1 microsecond', n::text FROM generate_series(1, 1000) n;
			INSERT INTO t VALUES ('infinity', 'inf'), ('-infinity', '-inf'), ('0001-01-01 00:00+00 BC', 'bc')`,
			[]string{"id"}, []storage.Column{typedKey("id", "timestamp with time zone")}, 1003},
		{"boolean", `CREATE TABLE t(id boolean PRIMARY KEY, src text, v text); INSERT INTO t VALUES (true, 'yes'), (false, 'no')`,
			[]string{"id"}, []storage.Column{typedKey("id", "boolean")}, 2},
		{"array", `CREATE TABLE t(id text[] PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT ARRAY['a, "b', NULL, n::text], n::text FROM generate_series(1, 500) n`,
			[]string{"id"}, []storage.Column{typedKey("id", "text[]")}, 500},
		{"a type of another schema", `CREATE SCHEMA other; CREATE EXTENSION citext SCHEMA other;
			CREATE TABLE t(id other.citext PRIMARY KEY, src text, v text);
			INSERT INTO t SELECT CASE n % 2 WHEN 0 THEN 'Key' ELSE 'kEY' END || n, n::text FROM generate_series(1, 1100) n`,
			[]string{"id"}, []storage.Column{typedKey("id", "other.citext")}, 1100},
		{"an enumeration", `CREATE TYPE mood AS ENUM ('sad', 'Ok, "fine"', 'happy'); CREATE TABLE t(id mood, n int, src text, v text, PRIMARY KEY (id, n));
			INSERT INTO t SELECT m, n, n::text FROM unnest(enum_range(NULL::mood)) m, generate_series(1, 400) n`,
			[]string{"id", "n"}, []storage.Column{typedKey("id", "mood"), typedKey("n", "integer")}, 1200},
		{"no rows", `CREATE TABLE t(id bigint PRIMARY KEY, src text, v text)`, []string{"id"}, []storage.Column{typedKey("id", "bigint")}, 0},
		{"exactly one batch", `CREATE TABLE t(id bigint PRIMARY KEY, src text, v text); INSERT INTO t SELECT n, n::text FROM generate_series(1, 1000) n`,
			[]string{"id"}, []storage.Column{typedKey("id", "bigint")}, 1000},
		{"one row", `CREATE TABLE t(id bigint PRIMARY KEY, src text, v text); INSERT INTO t VALUES (0, 'x')`,
			[]string{"id"}, []storage.Column{typedKey("id", "bigint")}, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := storage.Table{Name: "t", Layout: storage.Plain, PrimaryKey: c.key,
				Columns: append(c.columns, textKey("src"), storage.Column{Name: "v", Type: storage.TypeString, Nullable: true})}
			for i := range table.Columns {
				table.Columns[i].Nullable = table.Columns[i].Name == "v" || table.Columns[i].Name == "src"
			}
			db := newBackfillDB(t, c.setup+"; ANALYZE t", onceCheckpoint(map[string]string{"v": "coalesce(v, '') || src || ';'"}), table)
			claim := db.mustClaim(false)
			batches, rows := db.scan(claim, db.mustLeases(claim))
			if rows != c.rows {
				t.Errorf("applied %d rows, want %d", rows, c.rows)
			}
			if most := int((c.rows+999)/1000) + 1; batches > most {
				t.Errorf("it took %d batches, want at most %d", batches, most)
			}
			db.wantText("0", "SELECT count(*) FROM t WHERE v IS DISTINCT FROM src || ';'")
			db.catchUp(claim, storage.AllPartitions)
			db.mustActivate(claim, storage.AllPartitions)
		})
	}
}

// onceCheckpoint sets columns of t. Its verify query finds nothing.
func onceCheckpoint(set map[string]string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: "fill", Version: 2,
		Sources:  []storage.Source{{Table: "t", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "t", Set: set}},
	}
}

// Keys of two collations have none in common.
func TestACompositeKeyOfDifferentCollations(t *testing.T) {
	db := newBackfillDB(t, `CREATE COLLATION german (provider = icu, locale = 'de');
		CREATE TABLE t(a text COLLATE german, b text COLLATE "C", src text, v text, PRIMARY KEY (a, b));
		INSERT INTO t SELECT 'ä' || n % 3, 'B' || n, n::text FROM generate_series(1, 100) n`,
		onceCheckpoint(map[string]string{"v": "(SELECT coalesce(v, '') || src || ';')"}),
		storage.Table{Name: "t", Layout: storage.Plain, PrimaryKey: []string{"a", "b"}, Columns: []storage.Column{
			textKey("a"), textKey("b"), {Name: "src", Type: storage.TypeString, Nullable: true}, {Name: "v", Type: storage.TypeString, Nullable: true}}})
	db.settings(storage.Settings{BatchRows: 7})
	db.complete(db.mustClaim(false))
	db.wantText("0", "SELECT count(*) FROM t WHERE v IS DISTINCT FROM src || ';'")
}

func TestBatchesOfEverySizeCoverEveryRowOnce(t *testing.T) {
	for _, size := range []int{1, 2, 3, 7, 100} {
		for _, careful := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d rows, careful %t", size, careful), func(t *testing.T) {
				t.Parallel()
				expression := "coalesce(v, '') || src || ';'"
				if careful {
					expression = "(SELECT coalesce(v, '') || src || ';')"
				}
				db := newBackfillDB(t, `CREATE TABLE t(region text, id int, src text, v text, PRIMARY KEY (region, id));
					INSERT INTO t SELECT 'r' || n % 3, n, n::text FROM generate_series(1, 100) n`,
					onceCheckpoint(map[string]string{"v": expression}),
					storage.Table{Name: "t", Layout: storage.Plain, PrimaryKey: []string{"region", "id"}, Columns: []storage.Column{
						textKey("region"), typedKey("id", "integer"), {Name: "src", Type: storage.TypeString, Nullable: true}, {Name: "v", Type: storage.TypeString, Nullable: true}}})
				db.settings(storage.Settings{BatchRows: size})
				claim := db.mustClaim(false)
				batches, rows := db.scan(claim, db.mustLeases(claim))
				if want := (100+size-1)/size + 1; rows != 100 || batches > want {
					t.Errorf("applied %d rows in %d batches, want 100 in at most %d", rows, batches, want)
				}
				db.wantText("0", "SELECT count(*) FROM t WHERE v IS DISTINCT FROM src || ';'")
			})
		}
	}
}

// Where most rows share the first column of the key, a batch must not be taken for most of the table.
func TestABatchIsFoundByTheKeyHoweverFewItsFirstColumnTellsApart(t *testing.T) {
	db := newBackfillDB(t, `CREATE TABLE t(region text, id int, src text, v text, PRIMARY KEY (region, id));
		INSERT INTO t SELECT 'only', n, 'X' || n FROM generate_series(1, 20000) n; ANALYZE t`,
		onceCheckpoint(map[string]string{"v": "lower(src)"}),
		storage.Table{Name: "t", Layout: storage.Plain, PrimaryKey: []string{"region", "id"}, Columns: []storage.Column{
			textKey("region"), typedKey("id", "integer"), {Name: "src", Type: storage.TypeString, Nullable: true}, {Name: "v", Type: storage.TypeString, Nullable: true}}})
	claim := db.mustClaim(false)
	if batches, rows := db.scan(claim, db.mustLeases(claim)); rows != 20000 || batches < 20 {
		t.Errorf("%d rows in %d batches", rows, batches)
	}
	db.store.Close() // a session reports what it did at its end
	scans := func(column string) int {
		t.Helper()
		db.exec("SELECT pg_stat_clear_snapshot()")
		count, err := strconv.Atoi(db.text("SELECT " + column + " FROM pg_stat_user_tables WHERE relname = 't'"))
		if err != nil {
			t.Fatal(err)
		}
		return count
	}
	db.eventually("the batches' scans of the index are reported", func() bool { return scans("idx_scan") >= 40 })
	if whole := scans("seq_scan"); whole > 5 { // making the table and its key, and cutting it into ranges
		t.Errorf("the whole table was read %d times", whole)
	}
}
