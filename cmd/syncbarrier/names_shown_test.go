package main

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestNamesOfADatabaseWriteNoLineOfOurs: another program declared checkpoints and keys by which the output would be another one.
func TestNamesOfADatabaseWriteNoLineOfOurs(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 20)
		run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		hostile := []string{"x\ngate open: version 7", "\x1b[2J\x1b[1;1Hgate open: version 7", "\u202e7 noisrev :nepo etag", "x\rgate open: version 7", "\tx\u200b", "-o=json", "%s",
			strings.Repeat("k", 250)}
		for _, name := range hostile {
			if _, err := d.db.ExecContext(t.Context(), d.q(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms) VALUES (?, ?, 7, 'declared', 0)`), name, name); err != nil {
				t.Fatal(err)
			}
		}
		closed := func(r result) {
			for line := range strings.Lines(r.out + r.errors) {
				if strings.HasPrefix(line, "gate open") {
					t.Errorf("a name says that the gate is open:\n%s", r.out+r.errors)
				}
				if len(line) > 4000 {
					t.Errorf("a line has %d bytes", len(line))
				}
			}
		}
		closed(d.legible(t, 3, "", "gate", "--version", "7"))
		closed(d.legible(t, 0, "", "status"))
		list := d.legible(t, 0, "", "checkpoint", "list")
		closed(list)
		for _, shown := range []string{`"x\ngate open: version 7"`, `"\tx\u200b"`, "-o=json ", "%s ", strings.Repeat("k", 97) + "... "} {
			if !strings.Contains(list.out, "\n"+shown) {
				t.Errorf("the list does not show %s:\n%s", shown, list.out)
			}
		}
		closed(d.legible(t, 4, schemaV7, "apply", "-f", "-", "--timeout", "1s"))
		for _, name := range hostile {
			claim := d.legible(t, 0, "", "checkpoint", "claim", "--partition="+name, "-o", "json", "--", name).json(t)
			if claim["name"] != name || claim["rows"].([]any)[0].(object)["partition"] != name {
				t.Errorf("%q is called %v in JSON", name, claim)
			}
		}
		name, token := hostile[1], ""
		claimed := d.legible(t, 0, "", "checkpoint", "claim", "--partition="+name, "--", name)
		closed(claimed)
		for line := range strings.Lines(claimed.out) {
			token += strings.TrimPrefix(strings.TrimSpace(line), "claim ")
			break
		}
		row := []string{"--partition=" + name, "--epoch", "2", "--watermark", "0", "--claim", token, "--", name}
		closed(d.legible(t, 0, "", append([]string{"checkpoint", "advance"}, row...)...))
		closed(d.legible(t, 26, "", append([]string{"checkpoint", "activate"}, row...)...)) // it has no definition
		closed(d.legible(t, 26, "", "backfill", "--", name))
		for _, name := range hostile {
			closed(d.legible(t, 0, "", "checkpoint", "abandon", "--version", "7", "--reason", "a test", "--yes", "--", name))
		}
		d.legible(t, 0, "", "gate", "--version", "7")
	})
}

// TestNamesThatCannotBeAreRefusedByFieldBeforeAnythingIsOpened: no database is there to be asked.
func TestNamesThatCannotBeAreRefusedByFieldBeforeAnythingIsOpened(t *testing.T) {
	long := strings.Repeat("é", 32) // 32 characters, 64 bytes
	edit := func(old, replacement string) string { return strings.Replace(schemaV7, old, replacement, 1) }
	quote := func(name string) string {
		text, err := json.Marshal(name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	cases := []struct{ name, file, says string }{
		{"a schema of 64 bytes", edit("  version: 7\n", "  version: 7\n  database: {postgres: {schema: "+long+"}}\n"), "spec.database.postgres.schema"},
		{"a table of 64 bytes", edit("- name: todos", "- name: "+long), "spec.tables[0].name"},
		{"a table of 64 characters", edit("- name: todos", "- name: "+strings.Repeat("n", 64)), "spec.tables[0].name"},
		{"a column of 64 bytes", edit("{name: title,", "{name: "+long+","), "spec.tables[0].columns[2].name"},
		{"an index of 64 bytes", edit("{name: todos_norm,", "{name: "+long+","), "spec.tables[0].indexes[0].name"},
		{"a retired table of 64 bytes", edit("  checkpoints:", "  retiredTables: ["+long+"]\n  checkpoints:"), "spec.retiredTables[0]"},
		{"a key column that is not declared", edit("primaryKey: [id]", "primaryKey: ["+long+"]"), "spec.tables[0].primaryKey[0]"},
		{"a table with NUL", edit("- name: todos", `- name: "a\0b"`), "spec.tables[0].name"},
		{"a type with NUL", edit("title, type: string", `title, sqlType: "text\0"`), "spec.tables[0].columns[2].sqlType"},
		{"a checkpoint with a blank", edit("name: title-norm", "name: title norm"), "spec.checkpoints[0].name"},
		{"a checkpoint of 64 characters", edit("name: title-norm", "name: "+strings.Repeat("n", 64)), "spec.checkpoints[0].name"},
		{"a verify of 64 characters", edit("none-missing", strings.Repeat("n", 64)), "spec.checkpoints[0].verify[0].name"},
		{"a verify with NUL", edit("none-missing", `"a\0"`), "spec.checkpoints[0].verify[0].name"},
		{"a partition of 10 KB", edit("sources: [{table", "partitions: ["+strings.Repeat("k", 10<<10)+"]\n    sources: [{table"), "spec.checkpoints[0].partitions[0]"},
		{"a partition of 257 bytes", edit("sources: [{table", "partitions: ["+strings.Repeat("é", 128)+"k]\n    sources: [{table"), "spec.checkpoints[0].partitions[0]"},
		{"a partition that is all", edit("sources: [{table", "partitions: ['*']\n    sources: [{table"), "spec.checkpoints[0].partitions[0]"},
		{"a partition with NUL", edit("sources: [{table", `partitions: ["a\0"]`+"\n    sources: [{table"), "spec.checkpoints[0].partitions[0]"},
		{"a set column that wipes the screen", edit("set: {title_norm:", "set: {"+quote("\x1b[2J\nx")+":"), `spec.checkpoints[0].backfill.update.set[\u001b[2J\nx]`},
		{"a table that is a boolean", edit("- name: todos", "- name: on"), `write "on"`},
		{"a set column that is a number", edit("set: {title_norm:", "set: {0x10:"), `the key 0x10 stands without quotes, and YAML reads it as 16: write "0x10"`},
	}
	nowhere := target{address: "postgres://op@127.0.0.1:1/clinic"}
	for _, c := range cases {
		if c.file == schemaV7 {
			t.Fatalf("%s: the case changes nothing in the file", c.name)
		}
		r := nowhere.legible(t, 20, c.file, "apply", "-f", "-")
		if !strings.Contains(r.errors, c.says) {
			t.Errorf("%s: it does not name %s: %s", c.name, c.says, r.errors)
		}
	}
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{20, "database schema", []string{"status", "--schema", long}},
		{20, "PostgreSQL's own", []string{"status", "--schema", "pg_catalog"}},
		{2, "--schema", []string{"status", "--schema", "\xff"}},
		{2, "--partition", []string{"prune", "--partition", "\xff", "--to", "1"}},
		{2, "UTF-8", []string{"checkpoint", "claim", "\xff"}},
		{2, "one line", []string{"abandon", "c", "--version", "7", "--yes", "--reason", "two\nlines"}},
		{2, `unknown flag: --databse\u001b[2J`, []string{"status", "--databse\x1b[2J"}},
		{2, `no\u001b[2J`, []string{"plan", "-f", "no\x1b[2J\nfile"}},
	} {
		if r := nowhere.legible(t, c.code, "", c.args...); !strings.Contains(r.errors, c.says) {
			t.Errorf("%q: it does not say %q: %s", c.args, c.says, r.errors)
		}
	}
}
