package main

import (
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// hostileNames are legal in both products: reserved, in need of quotes, taken by YAML for no text, unfit for a terminal, as long as can be, and
// equal in what is left of them where something is appended.
var hostileNames = []string{
	"commitLog", "select", `quo"te's %s%d $1 {schema} \ a.b`, "con\x1b[2Jtrol\nline\ttab", "\u202eright\u200b🏥", "on",
	strings.Repeat("n", 60) + "one", strings.Repeat("n", 60) + "two", strings.Repeat("é", 31) + "x",
}

// hostileKeys are partition keys; further is one that only a captured source can have.
var (
	hostileKeys = []string{"p'); DROP TABLE sync_commits;--", "%s%d", "$1", "new\nline", "\x1b[2J\u202e", " ", "null", "E", "e", strings.Repeat("k", 256)}
	further     = strings.Repeat("long", 10<<8)
)

func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// hostileTable is one with four columns: key, partition, source, and what is derived from it.
type hostileTable struct {
	name, key, partition, source, derived string
	captured                              bool
}

func (d target) hostileTables() (tables []hostileTable) {
	at := func(i int) string { return hostileNames[i%len(hostileNames)] }
	for i, name := range hostileNames {
		tables = append(tables, hostileTable{name: name, key: at(i), partition: at(i + 1), source: at(i + 2), derived: at(i + 3), captured: !d.sqlite && slices.Contains([]int{3, 6, 7}, i)})
	}
	if !d.sqlite { // which does not tell case apart
		tables = append(tables, hostileTable{name: "COMMITLOG", key: "a", partition: "A", source: "b", derived: "B", captured: true})
	}
	return tables
}

type object = map[string]any

// hostileFile is a version of a schema of those tables, as JSON, which is YAML as well.
func (d target) hostileFile(t *testing.T, version int) string {
	t.Helper()
	var tables, checkpoints []object
	for i, h := range d.hostileTables() {
		table := object{"name": h.name, "primaryKey": []string{h.key}, "partition": object{"column": h.partition}}
		columns := []object{{"name": h.key, "type": "integer"}, {"name": h.partition, "type": "string"}, {"name": h.source, "type": "string"}}
		if version > 1 {
			columns = append(columns, object{"name": h.derived, "type": "string", "nullable": true})
			table["indexes"] = []object{{"name": "i" + string([]rune(h.name)[1:]), "columns": []string{h.derived}}}
			checkpoint := object{
				"name": fmt.Sprintf("C:%d/%s", i, strings.Repeat("x", 58)), "version": 2,
				"sources":  []object{{"table": h.name, "changes": "CommitLog"}},
				"backfill": object{"batchRows": 3, "update": object{"table": h.name, "set": object{h.derived: "upper(" + quoted(h.source) + ")"}}},
				"verify":   []object{{"name": h.name, "query": "SELECT " + quoted(h.key) + " FROM " + quoted(h.name) + " WHERE " + quoted(h.derived) + " IS NULL"}},
			}
			if h.captured {
				checkpoint["sources"] = []object{{"table": h.name, "changes": "Capture"}}
			} else if i == 0 {
				checkpoint["partitions"] = hostileKeys
			}
			checkpoints = append(checkpoints, checkpoint)
		}
		table["columns"] = columns
		tables = append(tables, table)
	}
	text, err := json.Marshal(object{
		"apiVersion": "syncbarrier.dev/v1alpha1", "kind": "SyncSchema", "metadata": object{"name": "clinic"},
		"spec": object{"version": version, "database": object{"postgres": object{"schema": "Order Data"}}, "tables": tables, "checkpoints": checkpoints},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// onBothHostile gives a fresh database of each product, in PostgreSQL with the schema Order Data, which the program does not know of by itself.
func onBothHostile(t *testing.T, test func(t *testing.T, d target)) {
	t.Helper()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		test(t, sqliteTarget(t))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		d := target{address: testdb.Postgres(t)}
		db, err := sql.Open("pgx", d.address+`&search_path=%22Order%20Data%22`)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		d.db = db
		d.exec(t, `CREATE SCHEMA "Order Data"`)
		test(t, d)
	})
}

// legible runs a verb and fails the test if it ends otherwise, or shows a character that does not show itself.
func (d target) legible(t *testing.T, code int, stdin string, args ...string) result {
	t.Helper()
	r := run(t, d, stdin, args...).must(t, code)
	for _, r := range r.out + r.errors {
		if !unicode.IsPrint(r) && r != '\n' {
			t.Errorf("syncbarrier %q shows the character %q", args, r)
		}
	}
	return r
}

// set writes a row of a table as a program of a version, with its commit where no trigger writes it.
func (d target) set(t *testing.T, h hostileTable, version, key int, partition string) error {
	t.Helper()
	tx, err := d.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }() // committed or not, it is over
	var failed error
	do := func(statement string, values ...any) {
		if failed == nil {
			_, failed = tx.ExecContext(t.Context(), d.q(statement), values...)
		}
	}
	if h.captured {
		do(`SELECT set_config('syncbarrier.writer_version', ?, true)`, fmt.Sprint(version))
	} else if version > 0 {
		do(`INSERT INTO sync_partitions(partition) VALUES (?) ON CONFLICT (partition) DO NOTHING`, partition)
		do(`UPDATE sync_partitions SET max_commit_seq = max_commit_seq + 1 WHERE partition = ?`, partition)
		do(`INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
			SELECT partition, max_commit_seq, 'c', CAST(max_commit_seq AS text), 'a', 0, CAST(? AS integer) FROM sync_partitions WHERE partition = ?`, version, partition)
		do(`INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
			SELECT partition, max_commit_seq, 0, CAST(? AS text), CAST(? AS text), 1, '{}' FROM sync_partitions WHERE partition = ?`, h.name, fmt.Sprint(key), partition)
	}
	// The names stand in the statement only once its placeholders are made.
	statement := strings.NewReplacer("TABLE", quoted(h.name), "KEY", quoted(h.key), "PARTITION", quoted(h.partition), "SOURCE", quoted(h.source)).Replace(
		d.q(`INSERT INTO TABLE(KEY, PARTITION, SOURCE) VALUES (?, ?, ?) ON CONFLICT (KEY) DO UPDATE SET SOURCE = excluded.SOURCE`))
	if failed == nil {
		_, failed = tx.ExecContext(t.Context(), statement, key, partition, fmt.Sprint("written by ", version))
	}
	if failed != nil {
		return failed
	}
	return tx.Commit()
}

// fill gives each table a row of each partition.
func (d target) fill(t *testing.T) {
	t.Helper()
	for _, h := range d.hostileTables() {
		keys := hostileKeys
		if h.captured {
			keys = append(keys[:len(keys):len(keys)], further)
		}
		for i, partition := range keys {
			before := h
			before.captured = false // no version yet
			if err := d.set(t, before, 0, i, partition); err != nil {
				t.Fatalf("%q: %v", h.name, err)
			}
		}
	}
}

func TestNamesThatNeedCareGoTheWholeWay(t *testing.T) {
	onBothHostile(t, func(t *testing.T, d target) {
		d.legible(t, 0, d.hostileFile(t, 1), "apply", "-f", "-")
		d.fill(t)
		v2 := d.hostileFile(t, 2)
		beside := []string{"--schema", "Order Data"} // for verbs that take no file

		plan := d.legible(t, 0, v2, "plan", "-f", "-")
		for _, want := range []string{"version 1 -> 2", `  "con\x1b[2Jtrol\nline\ttab"  `, "\n  on  "} {
			if !strings.Contains(plan.out, want) {
				t.Errorf("the plan does not hold %q:\n%s", want, plan.out)
			}
		}
		d.legible(t, 0, v2, "apply", "-f", "-", "--barrier-only")
		d.legible(t, 3, v2, "gate", "-f", "-")
		for _, h := range d.hostileTables() {
			for i, partition := range hostileKeys {
				if err := d.set(t, h, 1, i, partition); err == nil || !strings.Contains(err.Error(), "writer_fence_rejected") {
					t.Errorf("an old program writes to %q in %.40q: %v", h.name, partition, err)
				}
				if err := d.set(t, h, 2, i, partition); err != nil {
					t.Errorf("a program of version 2 writes to %q in %.40q: %v", h.name, partition, err)
				}
			}
		}
		for _, h := range d.hostileTables() {
			var logged int
			if err := d.db.QueryRowContext(t.Context(), d.q(`SELECT count(DISTINCT row_id) FROM sync_changes WHERE tbl = ? AND op IN (1, 2)`), h.name).Scan(&logged); err != nil || logged != len(hostileKeys) {
				t.Errorf("the log holds %d changes of %q, want %d: %v", logged, h.name, len(hostileKeys), err)
			}
		}
		d.legible(t, 0, v2, "apply", "-f", "-")
		for _, h := range d.hostileTables() {
			wrong := fmt.Sprintf(`SELECT count(*) FROM %s WHERE %s IS NULL OR %s <> upper(%s)`, quoted(h.name), quoted(h.derived), quoted(h.derived), quoted(h.source))
			if n := d.number(t, wrong); n > 0 {
				t.Errorf("%d rows of %q are wrong", n, h.name)
			}
		}

		// Everything is found again under the names it was made by, so there is nothing left to do.
		again := d.legible(t, 0, v2, "plan", "-f", "-")
		if !strings.Contains(again.out, "nothing to do") {
			t.Errorf("a second plan:\n%s", again.out)
		}
		before := d.number(t, `SELECT sum(owner_epoch) FROM sync_backfill_checkpoints`)
		d.legible(t, 0, v2, "apply", "-f", "-")
		if after := d.number(t, `SELECT sum(owner_epoch) FROM sync_backfill_checkpoints`); after != before {
			t.Error("a second apply claims what is activated")
		}
		for _, verb := range [][]string{{"status"}, {"gate", "--version", "2"}, {"checkpoint", "list"}, {"fence", "check"}, {"fence", "repair"}, {"remove"}} {
			d.legible(t, 0, "", append(verb, beside...)...)
		}
		for _, partition := range append(hostileKeys[:len(hostileKeys):len(hostileKeys)], strings.Repeat("k", 2000)) {
			d.legible(t, 0, "", append([]string{"prune", "--partition", partition, "--to", "1"}, beside...)...)
		}
		d.legible(t, 0, "", append([]string{"remove", "--yes"}, beside...)...)
		triggers := `SELECT count(*) FROM sqlite_master WHERE type = 'trigger'`
		if !d.sqlite {
			triggers = `SELECT count(*) FROM pg_trigger WHERE tgname LIKE 'syncbarrier%'`
		}
		if n := d.number(t, triggers); n != 0 {
			t.Errorf("%d triggers are left", n)
		}
		d.number(t, `SELECT count(*) FROM sync_commits`) // whatever the keys said
	})
}
