package postgres

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// locksNamed writes what namesIn finds, for those names that the test calls tables.
func locksNamed(sql string, tables ...string) []string {
	var found []string
	for _, named := range namesIn(sql) {
		name := named.name
		if named.schema != "" {
			name = named.schema + "." + named.name
		}
		if slices.Contains(tables, name) {
			found = append(found, name+" "+named.mode.String())
		}
	}
	return found
}

func TestTablesThatUserSQLNamesAreFoundWithTheirLocks(t *testing.T) {
	const ae, sre = " ACCESS EXCLUSIVE", " SHARE ROW EXCLUSIVE"
	for name, test := range map[string]struct {
		sql    string
		tables []string
		want   []string
	}{
		"rows are written":            {"INSERT INTO a SELECT * FROM b", []string{"a", "b"}, []string{"a" + sre, "b" + sre}},
		"a table is altered":          {"ALTER TABLE IF EXISTS ONLY a ADD COLUMN c int", []string{"a"}, []string{"a" + ae}},
		"tables are dropped":          {"DROP TABLE IF EXISTS a, b CASCADE", []string{"a", "b"}, []string{"a" + ae, "b" + ae}},
		"tables are emptied":          {"TRUNCATE a, b", []string{"a", "b"}, []string{"a" + ae, "b" + ae}},
		"a trigger is dropped":        {"DROP TRIGGER t ON a", []string{"a"}, []string{"a" + ae}},
		"a trigger is made":           {"CREATE TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION f()", []string{"a"}, []string{"a" + sre}},
		"a rule is made":              {"CREATE OR REPLACE RULE r AS ON INSERT TO a DO NOTHING", []string{"a"}, []string{"a" + ae}},
		"a policy is made":            {"CREATE POLICY p ON a", []string{"a"}, []string{"a" + ae}},
		"a column that is called so":  {"UPDATE a SET policy = 1, rule = 2", []string{"a"}, []string{"a" + sre}},
		"a foreign key points to one": {"ALTER TABLE a ADD FOREIGN KEY (x) REFERENCES b(y)", []string{"a", "b"}, []string{"a" + ae, "b" + sre}},
		"the next statement is weak":  {"ALTER TABLE a ADD c int; UPDATE b SET c = 1", []string{"a", "b"}, []string{"a" + ae, "b" + sre}},
		"the table is locked by it":   {"LOCK TABLE a IN SHARE MODE", []string{"a"}, []string{"a" + ae}},
		"an index is built anew":      {"REINDEX INDEX i", []string{"i"}, []string{"i" + ae}},
		"with a schema":               {"UPDATE s.a SET x = 1", []string{"s.a"}, []string{"s.a" + sre}},
		"quoted names":                {`UPDATE "My Schema" . "My ""Table""" SET x = 1`, []string{`My Schema.My "Table"`}, []string{`My Schema.My "Table"` + sre}},
		"bare names fold":             {"UPDATE ToDos SET x = 1", []string{"todos"}, []string{"todos" + sre}},
		"quoted ones do not":          {`UPDATE "ToDos" SET x = 1`, []string{"todos"}, nil},
		"a body between dollars":      {"DO $do$ BEGIN ALTER TABLE a ADD c int; UPDATE b SET c = 1; END $do$", []string{"a", "b"}, []string{"a" + ae, "b" + sre}},
		"a body in a body":            {"DO $a$ BEGIN EXECUTE $b$ DROP TABLE a $b$; END $a$", []string{"a"}, []string{"a" + ae}},
		"a keyword behind a branch":   {"DO $$ BEGIN IF true THEN DROP TABLE a; END IF; END $$", []string{"a"}, []string{"a" + ae}},
		"comments":                    {"-- DROP TABLE a\n/* b /* c */ UPDATE b */ UPDATE d SET x = 1", []string{"a", "b", "c", "d"}, []string{"d" + sre}},
		"strings":                     {`SELECT 'UPDATE a', E'it\'s a', 'it''s b' FROM c`, []string{"a", "b", "c"}, []string{"c" + sre}},
		"a name that PostgreSQL cuts": {"UPDATE " + strings.Repeat("n", 70) + " SET x = 1", []string{strings.Repeat("n", 63)}, []string{strings.Repeat("n", 63) + sre}},
		"a number with an exponent":   {"SELECT 1e5 FROM a WHERE x > 0x1f", []string{"e5", "a", "x1f"}, []string{"a" + sre}},
		"a parameter is no quote":     {"PREPARE p AS UPDATE a SET x = $1 WHERE y = $2", []string{"a"}, []string{"a" + sre}},
		"nothing":                     {"", []string{"a"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := locksNamed(test.sql, test.tables...); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTokensAreCutAsTheServerCutsThem(t *testing.T) {
	for sql, want := range map[string]string{
		`a.b`:                   "w:a s:. w:b",
		`"a.b"`:                 "n:a.b",
		`Ünïcode`:               "w:Ünïcode",
		`E'\\' x`:               "w:x",
		`'\' x`:                 "w:x",
		`e'\'' x`:               "w:x",
		`x'ab' y`:               "w:x w:y",
		`U&"d\0061t" z`:         "w:u s:& n:d\\0061t w:z",
		`$$body$$ x`:            "b:body w:x",
		`$t$a $$ b$t$ x`:        "b:a $$ b w:x",
		`$1 $2`:                 "s:$ s:0 s:$ s:0",
		`a$b c`:                 "w:a$b w:c",
		`$a`:                    "s:$ w:a",
		`'unfinished`:           "",
		`"unfinished`:           "",
		`/* unfinished /* */ x`: "",
		`$$ unfinished`:         "b: unfinished",
		"-- to the end":         "",
		"-- a\nx":               "w:x",
		"/* a */x/**/y":         "w:x w:y",
		"a/**/b":                "w:a w:b",
		"\"two\nlines\"":        "n:two\nlines",
		"1.5e3abc d":            "s:0 s:. s:0 w:d",
		"x\u00a0y":              "w:x\u00a0y",
	} {
		var got []string
		for _, token := range tokenize(sql) {
			got = append(got, string("wnsb"[token.kind])+":"+token.text)
		}
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%q: got %q, want %q", sql, text, want)
		}
	}
}

func TestEveryTextIsCutToItsEnd(t *testing.T) {
	pieces := []string{"'", `"`, "$$", "$a$", "--", "/*", "*/", "\n", "\\", ";", ".", "drop", "E'", "ü", "\xff", "a", " ", "1", "$"}
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(rapid.SliceOf(rapid.SampledFrom(pieces)).Draw(t, "pieces"), "")
		for _, token := range tokenize(text) { // ends, and never panics
			if token.kind == tokenWord && token.text == "" {
				t.Fatalf("an empty word in %q", text)
			}
		}
		namesIn(text)
	})
}

func TestNamesAreCutAt63BytesBetweenCharacters(t *testing.T) {
	for name, want := range map[string]string{
		strings.Repeat("a", 63): strings.Repeat("a", 63),
		strings.Repeat("a", 64): strings.Repeat("a", 63),
		strings.Repeat("ü", 32): strings.Repeat("ü", 31),
		"short":                 "short",
	} {
		if got := cutName(name); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

func TestTheLineOfACharacter(t *testing.T) {
	const text = "ü\nb\r\n\nlast"
	for character, want := range map[int]int{1: 1, 2: 1, 3: 2, 6: 3, 7: 4, 10: 4, 99: 4} {
		if got := lineAt(text, character); got != want {
			t.Errorf("character %d: line %d, want %d", character, got, want)
		}
	}
}
