package syncprogram

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
)

// Schema is what a program was built with.
type Schema struct {
	Version int64
	Tables  []Table
}

// Table is an application table of the protocol: its rows carry a payload, and beside it the typed columns if they are materialised.
type Table struct {
	Name        string
	Columns     []Column
	Materialize bool
	Indexes     []Index
}

// Column is a column of a table. Type is one of string, integer, float, boolean, json, bytes, blob_ref, crdt.
type Column struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Nullable bool   `json:"nullable"`
}

// Index is an index that the schema declares.
type Index struct {
	Name    string
	Columns []string
	Unique  bool
}

func (s Schema) table(name string) (Table, error) {
	for _, t := range s.Tables {
		if t.Name == name {
			return t, nil
		}
	}
	return Table{}, fmt.Errorf("unknown table %q: the schema has to be ensured before rows are written", name)
}

// layouts is what the marker keeps of each table: the columns that its payloads are written with.
type layouts map[string][]Column

func (s Schema) layouts() layouts {
	all := layouts{}
	for _, t := range s.Tables {
		all[t.Name] = append([]Column{}, t.Columns...)
	}
	return all
}

func (l layouts) encode() (string, error) {
	text, err := json.Marshal(l)
	return string(text), err
}

func parseLayouts(text string) (layouts, error) {
	parsed := layouts{}
	if text == "" {
		return parsed, nil
	}
	err := json.Unmarshal([]byte(text), &parsed)
	return parsed, err
}

// assertStored refuses a marker of the same version that describes other rows: the codec could not read them.
func (s Schema) assertStored(text string) error {
	stored, err := parseLayouts(text)
	if err != nil {
		return err
	}
	configured := s.layouts()
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		if !slices.Equal(configured[name], stored[name]) {
			return fmt.Errorf("stored schema layouts disagree with the configured schema at version %d (table %q)", s.Version, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		if _, known := configured[name]; !known {
			return fmt.Errorf("stored schema layouts disagree with the configured schema at version %d (table %q)", s.Version, name)
		}
	}
	return nil
}

// retired lists the stored tables that the schema has no more.
func (s Schema) retired(stored layouts) []string {
	configured := s.layouts()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(stored)) {
		if _, known := configured[name]; !known {
			names = append(names, name)
		}
	}
	return names
}

// rewritePlan says what has to be done to the stored rows of a table: encode them anew because columns were appended, or fill columns
// that have just been added from the payloads.
func (t Table) rewritePlan(old []Column, before []string) (migrate, fill bool, err error) {
	if old == nil || before == nil {
		return false, false, nil
	}
	if len(old) > len(t.Columns) || !slices.Equal(old, t.Columns[:len(old)]) {
		return false, false, fmt.Errorf("table %q: only appending nullable columns is supported", t.Name)
	}
	for _, added := range t.Columns[len(old):] {
		if !added.Nullable {
			return false, false, fmt.Errorf("table %q: added column %q must be nullable", t.Name, added.Name)
		}
	}
	for _, c := range old {
		fill = fill || t.Materialize && !slices.Contains(before, c.Name)
	}
	return len(old) < len(t.Columns), fill, nil
}

type dialect struct {
	version, scopes, payload string
	types                    map[string]string
	placeholder              func(int) string
}

var postgresDialect = dialect{
	version: "BIGINT", scopes: "JSONB", payload: "BYTEA",
	types: map[string]string{
		"string": "TEXT", "blob_ref": "TEXT", "json": "JSONB", "integer": "BIGINT", "float": "DOUBLE PRECISION",
		"boolean": "BOOLEAN", "bytes": "BYTEA", "crdt": "BYTEA",
	},
	placeholder: func(n int) string { return fmt.Sprintf("$%d", n) },
}

var sqliteDialect = dialect{
	version: "INTEGER", scopes: "TEXT", payload: "BLOB",
	types: map[string]string{
		"string": "TEXT", "blob_ref": "TEXT", "json": "TEXT", "integer": "INTEGER", "float": "REAL",
		"boolean": "INTEGER", "bytes": "BLOB", "crdt": "BLOB",
	},
	placeholder: func(int) string { return "?" },
}

const (
	partitionColumn = "_sync_partition"
	rowIDColumn     = "_sync_row_id"
	versionColumn   = "_sync_server_version"
	scopesColumn    = "_sync_scopes"
	payloadColumn   = "_sync_payload"
)

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

func quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quote(name)
	}
	return strings.Join(quoted, ", ")
}

// columnNames are the physical columns of a table in order.
func (t Table) columnNames() []string {
	names := []string{partitionColumn, rowIDColumn}
	if t.Materialize {
		for _, c := range t.Columns {
			names = append(names, c.Name)
		}
	}
	return append(names, versionColumn, scopesColumn, payloadColumn)
}

// physicalColumn is a column as the database shows it.
type physicalColumn struct {
	name    string
	kind    string
	notNull bool
	key     int // place in the primary key from 1 on; 0: not in it
}

func (t Table) physicalColumns(d dialect) []physicalColumn {
	columns := []physicalColumn{{partitionColumn, "TEXT", true, 1}, {rowIDColumn, "TEXT", true, 2}}
	if t.Materialize {
		for _, c := range t.Columns {
			columns = append(columns, physicalColumn{c.Name, d.types[c.Type], !c.Nullable, 0})
		}
	}
	return append(columns, physicalColumn{versionColumn, d.version, true, 0}, physicalColumn{scopesColumn, d.scopes, true, 0},
		physicalColumn{payloadColumn, d.payload, true, 0})
}

// assertPhysical refuses a table whose columns are not exactly those that the program would have made, in whatever order.
func (t Table) assertPhysical(d dialect, have []physicalColumn) error {
	want := t.physicalColumns(d)
	for _, column := range want {
		found := slices.IndexFunc(have, func(h physicalColumn) bool { return h.name == column.name })
		if found < 0 {
			return fmt.Errorf("table %q: the physical column %q is missing", t.Name, column.name)
		}
		actual := have[found]
		actual.kind = strings.ToUpper(actual.kind)
		if actual != column {
			return fmt.Errorf("table %q: the physical column %q is %+v, want %+v", t.Name, column.name, actual, column)
		}
	}
	if len(have) != len(want) {
		return fmt.Errorf("table %q has %d physical columns, want %d", t.Name, len(have), len(want))
	}
	return nil
}

// ddl brings one table from its physical columns (nil: there is no table) to the schema.
func (t Table) ddl(d dialect, existing []string) []string {
	if existing == nil {
		var defs []string
		for _, c := range t.physicalColumns(d) {
			def := quote(c.name) + " " + c.kind
			if c.notNull {
				def += " NOT NULL"
			}
			defs = append(defs, def)
		}
		defs = append(defs, fmt.Sprintf("PRIMARY KEY (%s, %s)", quote(partitionColumn), quote(rowIDColumn)))
		return []string{fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (%s)", quote(t.Name), strings.Join(defs, ", "))}
	}
	if !t.Materialize {
		return nil
	}
	var statements []string
	for _, c := range t.Columns {
		if !slices.Contains(existing, c.Name) {
			statements = append(statements, fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s %s", quote(t.Name), quote(c.Name), d.types[c.Type]))
		}
	}
	return statements
}

// schemaDDL is every statement of a migration, tables first, then all index drops, then all index creations.
func (s Schema) schemaDDL(d dialect, columns, indexes map[string][]string) []string {
	var statements, creates []string
	for _, t := range s.Tables {
		statements = append(statements, t.ddl(d, columns[t.Name])...)
	}
	for _, t := range s.Tables {
		declared := map[string]bool{}
		if t.Materialize {
			for _, index := range t.Indexes {
				declared[index.Name] = true
				unique := ""
				if index.Unique {
					unique = "UNIQUE "
				}
				creates = append(creates, fmt.Sprintf("CREATE %sINDEX IF NOT EXISTS %s ON %s (%s)",
					unique, quote(indexName(index.Name)), quote(t.Name), quoteAll(index.Columns)))
			}
		}
		for _, name := range indexes[t.Name] {
			if strings.HasPrefix(name, "sync_ix_") || declared[name] {
				statements = append(statements, "DROP INDEX IF EXISTS "+quote(name))
			}
		}
	}
	return append(statements, creates...)
}

// indexName is an index's name in the database; one that would be too long is hashed.
func indexName(declared string) string {
	if name := "sync_ix_" + declared; len(name) <= 63 {
		return name
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(declared)) // a hash never fails
	return fmt.Sprintf("sync_ix_%016x", hash.Sum64())
}
