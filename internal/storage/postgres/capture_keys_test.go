package postgres

import (
	"fmt"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// hostileSettings are a writer's own that change how values are written and how SQL is read.
var hostileSettings = []string{
	"datestyle = 'SQL, DMY'", "timezone = 'Asia/Tokyo'", "intervalstyle = 'sql_standard'", "extra_float_digits = -3", "bytea_output = 'escape'",
	"lc_monetary = 'C'", "standard_conforming_strings = off", "backslash_quote = off", "search_path = ''", "transform_null_equals = on",
	"enable_hashjoin = off", "enable_mergejoin = off", "work_mem = '64kB'", "quote_all_identifiers = on", "array_nulls = off",
	"default_transaction_deferrable = on", "check_function_bodies = off", "row_security = on", "plan_cache_mode = force_custom_plan",
}

func (s *session) behaveHostile() {
	s.t.Helper()
	for _, setting := range hostileSettings {
		s.run("SET " + setting)
	}
}

func TestCaptureWritesKeysAlikeWhateverTheSettingsOfTheWriter(t *testing.T) {
	for _, c := range []struct {
		name, kind, value, other string
		text, otherText          string
	}{
		{name: "text", kind: "text", value: `'a"b\c'`, other: `'é '`, text: `a"b\c`, otherText: "é "},
		{name: "uuid", kind: "uuid", value: `'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'`, other: `'00000000-0000-0000-0000-000000000000'`,
			text: "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", otherText: "00000000-0000-0000-0000-000000000000"},
		{name: "timestamptz", kind: "timestamptz", value: `'2026-02-01 12:00:00.123456+00'`, other: `'infinity'`,
			text: "2026-02-01 12:00:00.123456+00", otherText: "infinity"},
		{name: "date", kind: "date", value: `'2026-02-01'::date`, other: `'0044-03-15 BC'`, text: "2026-02-01", otherText: "0044-03-15 BC"},
		{name: "interval", kind: "interval", value: `'1 day 02:03:04'`, other: `'-1 month'`, text: "1 day 02:03:04", otherText: "-1 mons"},
		{name: "float", kind: "double precision", value: `0.1::float8 + 0.2::float8`, other: `'NaN'`, text: "0.30000000000000004", otherText: "NaN"},
		{name: "real", kind: "real", value: `0.1`, other: `1e30`, text: "0.1", otherText: "1e+30"},
		{name: "numeric", kind: "numeric", value: `1.50`, other: `123456789012345678901234567890`, text: "1.50", otherText: "123456789012345678901234567890"},
		{name: "bytea", kind: "bytea", value: `'\x00ff'`, other: `'\x'`, text: `\x00ff`, otherText: `\x`},
		{name: "boolean", kind: "boolean", value: `true`, other: `false`, text: "true", otherText: "false"},
		{name: "char", kind: "char(5)", value: `'ab'`, other: `'cd'`, text: "ab", otherText: "cd"},
		{name: "enum", kind: "mood", value: `'so so'`, other: `'fine'`, text: "so so", otherText: "fine"},
		{name: "domain", kind: "moment", value: `'2026-02-01 12:00+00'`, other: `'2027-02-01 12:00+00'`,
			text: "2026-02-01 12:00:00+00", otherText: "2027-02-01 12:00:00+00"},
		{name: "array of times", kind: "timestamptz[]", value: `ARRAY['2026-02-01 12:00+00'::timestamptz]`, other: `'{}'`,
			text: `{"2026-02-01 12:00:00+00"}`, otherText: "{}"},
		{name: "range", kind: "tstzrange", value: `'[2026-02-01 12:00+00,)'`, other: `'empty'`, text: `["2026-02-01 12:00:00+00",)`, otherText: "empty"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			store, url := newCatalog(t)
			setup := connect(t, url)
			setup.run(`CREATE TYPE mood AS ENUM ('so so', 'fine')`)
			setup.run(`CREATE DOMAIN moment AS timestamptz`)
			setup.run(fmt.Sprintf(`CREATE TABLE src (k %s PRIMARY KEY, tenant %s, title text)`, c.kind, c.kind))
			capture(t, store, captureSpec{table: "src", key: []string{"k"}, partition: byTenant})
			program := connect(t, url)
			program.behaveHostile()
			escaped := func(literal string) string { return strings.ReplaceAll(literal, `\`, `\\`) } // standard_conforming_strings is off
			first, second := escaped(c.value), escaped(c.other)

			program.run(fmt.Sprintf(`INSERT INTO public.src VALUES (%s, %s, 't')`, first, second))
			setup.expectLog(fmt.Sprintf("capture:src/=%s 1 %s", c.otherText, c.text))
			program.run(`UPDATE public.src SET title = 'u'`)
			setup.expectLog(fmt.Sprintf("capture:src/=%s 1 %s", c.otherText, c.text))
			program.run(fmt.Sprintf(`UPDATE public.src SET k = %s, tenant = %s`, second, first))
			setup.expectLog(fmt.Sprintf("capture:src/=%s 1 %s", c.text, c.otherText), fmt.Sprintf("capture:src/=%s 2 %s", c.otherText, c.text))
			program.run(`DELETE FROM public.src`)
			setup.expectLog(fmt.Sprintf("capture:src/=%s 2 %s", c.text, c.otherText))

			// The text finds the row again.
			program.run(fmt.Sprintf(`INSERT INTO public.src VALUES (%s, %s, 't')`, first, second))
			if found := value[int](setup, fmt.Sprintf(`SELECT count(*) FROM src JOIN sync_changes c ON src.k = c.row_id::%s`, c.kind)); found != 1 {
				t.Errorf("the logged key finds %d rows", found)
			}
		})
	}
}

func TestCaptureWritesCompositeKeysAsReadersDecodeThem(t *testing.T) {
	store, url := newCatalog(t)
	setup := connect(t, url)
	setup.run(`CREATE TABLE src (a text, b timestamptz, "C,d" int, title text, PRIMARY KEY ("C,d", a, b))`)
	capture(t, store, captureSpec{table: "src", key: []string{"C,d", "a", "b"}})
	program := connect(t, url)
	program.behaveHostile()
	key := []string{"7", "<a & \"b\">\n\u2028", "2026-02-01 12:00:00+00"}
	program.run(`INSERT INTO public.src VALUES ($1, '2026-02-01 12:00+00', 7, 't')`, key[1])
	row := value[string](setup, `SELECT row_id FROM sync_changes`)
	if decoded, ok := storage.DecodeKey(row, 3); !ok || fmt.Sprint(decoded) != fmt.Sprint(key) {
		t.Errorf("the key %q is read as %q", row, decoded)
	}
}

func TestCaptureNoticesEachChangeOfAValueThatTheServerCallsEqual(t *testing.T) {
	store, url := newCatalog(t)
	setup := connect(t, url)
	setup.run(`CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	columns := []struct{ name, kind, before, after string }{
		{"n", "numeric", "1.0", "1.00"},
		{"f", "double precision", "'-0'", "0"},
		{"i", "interval", "'1 day'", "'24:00'"},
		{"c", "text COLLATE anycase", "'a'", "'A'"},
		{"b", "jsonb", "'{\"a\": 1.0}'", "'{\"a\": 1.00}'"},
		{"j", "json", "'{}'", "'{ }'"},
		{"p", "point", "'(0,1)'", "'(0,2)'"},
		{"x", "xml", "'<a/>'", "'<a></a>'"},
		{"a", "numeric[]", "'{1.0}'", "'{1.00}'"},
		{"t", "text", "NULL", "''"},
		{"o", "time with time zone", "'12:00+00'", "'13:00+01'"},
	}
	var declared, first, sets []string
	for _, c := range columns {
		declared = append(declared, c.name+" "+c.kind)
		first = append(first, c.before)
		sets = append(sets, fmt.Sprintf("%s = %s", c.name, c.after))
	}
	for _, table := range []string{"plain", "parted"} {
		suffix := ""
		if table == "parted" {
			suffix = "PARTITION BY RANGE (id)"
		}
		setup.run(fmt.Sprintf(`CREATE TABLE %s (id bigint PRIMARY KEY, %s) %s`, table, strings.Join(declared, ", "), suffix))
		if suffix != "" {
			setup.run(`CREATE TABLE parted_one PARTITION OF parted DEFAULT`)
		}
		capture(t, store, captureSpec{table: table, key: []string{"id"}})
		setup.run(fmt.Sprintf(`INSERT INTO %s VALUES (1, %s), (2, %s)`, table, strings.Join(first, ", "), strings.Join(first, ", ")))
		setup.forgetLog()
		for _, set := range sets {
			setup.run(fmt.Sprintf(`UPDATE %s SET %s WHERE id = 1`, table, set))
			if got := setup.logged(); len(got) != 1 {
				t.Errorf("%s, one row: after SET %s the log holds %q", table, set, got)
			}
			setup.run(fmt.Sprintf(`UPDATE %s SET %s`, table, set))
			if got := setup.logged(); len(got) != 1 {
				t.Errorf("%s, two rows of which one changes: after SET %s the log holds %q", table, set, got)
			}
		}
		setup.run(fmt.Sprintf(`UPDATE %s SET %s`, table, strings.Join(sets, ", ")))
		setup.expectLog()
	}
}

func TestCaptureNoticesThatAKeyIsWrittenOtherwise(t *testing.T) {
	store, url := newCatalog(t)
	setup := connect(t, url)
	setup.run(`CREATE COLLATION anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)`)
	setup.run(`CREATE TABLE src (k text COLLATE anycase PRIMARY KEY, tenant text COLLATE anycase, title text)`)
	capture(t, store, captureSpec{table: "src", key: []string{"k"}, partition: byTenant})
	setup.run(`INSERT INTO src VALUES ('a', 'x', 't'), ('b', 'X', 't')`)
	setup.expectLog("capture:src/=x 1 a", "capture:src/=X 1 b")
	setup.run(`UPDATE src SET k = upper(k)`)
	setup.expectLog("capture:src/=x 1 A", "capture:src/=x 2 a", "capture:src/=X 1 B", "capture:src/=X 2 b")
	setup.run(`UPDATE src SET tenant = 'X'`)
	setup.expectLog("capture:src/=X 1 A", "capture:src/=x 2 A")
}

func TestCaptureKeepsLongPartitionTextsShort(t *testing.T) {
	store, program := newSource(t, sourceSQL)
	c := capture(t, store, todosBy(byTenant))
	for _, text := range []string{strings.Repeat("a", 200), strings.Repeat("a", 201), strings.Repeat("é", 101), "", strings.Repeat("x", 10000)} {
		program.run(`INSERT INTO todos VALUES (1, $1, 't')`, text)
		program.run(`DELETE FROM todos`)
		key := value[string](program, `SELECT DISTINCT partition FROM sync_changes WHERE op <> 4`)
		want := "capture:todos/=" + text
		if len(text) > maxCapturedText {
			want = "capture:todos/md5:" + value[string](program, `SELECT md5($1::text)`, text)
		}
		if key != want {
			t.Errorf("a text of %d bytes is in partition %.60q, want %.60q", len(text), key, want)
		}
		if !value[bool](program, "SELECT "+c.partitionsSQL("$1::text", "$2::text"), key, text) {
			t.Errorf("a text of %d bytes is not found by its bare value", len(text))
		}
		program.forgetLog()
	}
}

func TestCaptureTakesAnyNames(t *testing.T) {
	long := strings.Repeat("ü", 30) + "abc" // 63 bytes
	tables := []string{`Mixed "Case"`, `back\slash's`, "a/=b", "$syncbarrier$", "truncate", long, strings.Repeat("n", 43), strings.Repeat("n", 44), "{schema}", "%s", "new", "_sb_new", "c"}
	column := []string{"_sb_xid", "_sb_partition", "_sb_keys", "n", "o", "c", "p", "k1", "v", "new", "partition", "op", `quo"te`, `back\slash`, "{{key}}", "ROW"}
	store, url := newCatalog(t)
	setup := connect(t, url)
	program := connect(t, url)
	program.behaveHostile()
	for i, table := range tables {
		name := column[i%len(column)]
		var others []string
		for _, other := range column {
			others = append(others, quoteIdentifier(other)+" text")
		}
		setup.run(fmt.Sprintf(`CREATE TABLE %s (%s, "Id" int DEFAULT 1, PRIMARY KEY (%s, "Id"))`, quoteIdentifier(table), strings.Join(others, ", "), quoteIdentifier(name)))
		capture(t, store, captureSpec{table: table, key: []string{name, "Id"}, partition: storage.Partition{Column: name}})

		prefix := captured{table: table}.prefix()
		qualified := "public." + quoteIdentifier(table)
		program.run(fmt.Sprintf(`INSERT INTO %s (%s) VALUES ('x')`, qualified, quoteIdentifier(name)))
		program.run(fmt.Sprintf(`INSERT INTO %s (%s) SELECT 'many' || i FROM generate_series(1, 3) AS i`, qualified, quoteIdentifier(name)))
		setup.expectLog(fmt.Sprintf(`%s=x 1 ["x","1"]`, prefix), fmt.Sprintf(`%s=many1 1 ["many1","1"]`, prefix),
			fmt.Sprintf(`%s=many2 1 ["many2","1"]`, prefix), fmt.Sprintf(`%s=many3 1 ["many3","1"]`, prefix))
		program.run(fmt.Sprintf(`UPDATE %s SET %s = 'y' WHERE %s = 'x'`, qualified, quoteIdentifier(name), quoteIdentifier(name)))
		setup.expectLog(fmt.Sprintf(`%s=y 1 ["y","1"]`, prefix), fmt.Sprintf(`%s=x 2 ["x","1"]`, prefix))
		other := column[(i+1)%len(column)]
		program.run(fmt.Sprintf(`UPDATE %s SET %s = 'z' WHERE %s LIKE 'many%%'`, qualified, quoteIdentifier(other), quoteIdentifier(name)))
		setup.expectLog(fmt.Sprintf(`%s=many1 1 ["many1","1"]`, prefix), fmt.Sprintf(`%s=many2 1 ["many2","1"]`, prefix),
			fmt.Sprintf(`%s=many3 1 ["many3","1"]`, prefix))
		program.run(fmt.Sprintf(`TRUNCATE %s`, qualified))
		setup.expectLog("* 2 ")
	}
	if named := value[int](setup, `SELECT count(DISTINCT proname) FROM pg_proc WHERE proname LIKE 'syncbarrier\_capture\_%'`); named != len(tables) {
		t.Errorf("%d tables have %d functions", len(tables), named)
	}
}

func TestCaptureWorksInASchemaOfAnyName(t *testing.T) {
	url := testdb.Postgres(t)
	setup := connect(t, url)
	const name = `my "own" sche\ma's`
	setup.run(`CREATE SCHEMA ` + quoteIdentifier(name))
	setup.run(`CREATE TABLE ` + quoteIdentifier(name) + `.todos (id bigint PRIMARY KEY, title text)`)
	store := openStore(t, Config{URL: url, Schema: name})
	installCatalog(t, store)
	capture(t, store, captureSpec{table: "todos", key: []string{"id"}})
	program := connect(t, url)
	program.behaveHostile()
	program.run(`INSERT INTO ` + quoteIdentifier(name) + `.todos VALUES (1, 't')`)
	setup.run(`SET search_path = ` + quoteIdentifier(name))
	setup.expectLog("capture:todos/ 1 1")
	program.run(`TRUNCATE ` + quoteIdentifier(name) + `.todos`)
	setup.expectLog("* 2 ")
}
