package storage

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// CheckTarget refuses what cannot be right whatever the database holds. A file has passed the same rules with better paths
// (internal/manifest); a program that uses a Store itself has not. Names are judged before the database is asked anything, and so before any
// lock: PostgreSQL would cut one that is too long, in silence. CodeInvalidSpec names the field.
func CheckTarget(target Target, dialect Dialect) error {
	d := &decider{target: target, facts: Facts{Dialect: dialect}}
	return d.checkTarget()
}

func (d *decider) checkTarget() error {
	for _, rule := range []func() error{
		d.checkVersions, d.checkTables, d.checkIndexNames, d.checkRetiredNames, d.checkMigrations, d.checkCheckpoints,
	} {
		if err := rule(); err != nil {
			return err
		}
	}
	return nil
}

func (d *decider) checkVersions() error {
	version := d.target.Version
	if version < 1 || version > maxVersion {
		return Refuse(CodeInvalidSpec, "version: %d is not between 1 and %d", version, maxVersion)
	}
	if m := d.target.MinWriterVersion; m != nil && (*m < 0 || *m > version) {
		return Refuse(CodeInvalidSpec, "minWriterVersion: %d is not between 0 and version %d, so no program could write", *m, version)
	}
	if m := d.target.MinReaderVersion; m != nil && (*m < 0 || *m > version) {
		return Refuse(CodeInvalidSpec, "minReaderVersion: %d is not between 0 and version %d, so no program could serve", *m, version)
	}
	return nil
}

func (d *decider) checkTables() error {
	seen := names{dialect: d.facts.Dialect}
	for _, t := range d.target.Tables {
		if err := d.checkTableName("tables", t.Name); err != nil {
			return err
		}
		if problem := seen.add(t.Name); problem != "" {
			return Refuse(CodeInvalidSpec, "tables: %q %s", t.Name, problem)
		}
		if err := checkTableColumns(t, d.facts.Dialect); err != nil {
			return err
		}
	}
	return nil
}

func checkTableColumns(t Table, dialect Dialect) error {
	seen := names{dialect: dialect}
	for _, c := range t.Columns {
		problem := problemOfName(c.Name)
		if problem == "" && dialect == PostgreSQL && slices.Contains(systemColumns, c.Name) {
			problem = "PostgreSQL keeps the name for a system column"
		}
		if problem != "" {
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: %s", t.Name, c.Name, problem)
		}
		if problem := seen.add(c.Name); problem != "" {
			return Refuse(CodeInvalidSpec, "tables: %q: column %q %s", t.Name, c.Name, problem)
		}
		switch {
		case (c.Type == "") == (c.SQLType == ""):
			return Refuse(CodeInvalidSpec, "tables: %q: column %q needs exactly one of type and sqlType", t.Name, c.Name)
		case c.SQLType == "" && columnTypes[PostgreSQL][c.Type] == "":
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: there is no type %q", t.Name, c.Name, c.Type)
		case t.Layout == Syncular && c.SQLType != "":
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: a Syncular table packs its columns, so each needs a type, not an sqlType", t.Name, c.Name)
		case t.Layout == Syncular && strings.HasPrefix(strings.ToLower(c.Name), "_sync_"):
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: names that begin with _sync_ are the layout's own", t.Name, c.Name)
		}
	}
	for _, name := range t.PrimaryKey {
		if _, declared := t.Column(name); !declared {
			return Refuse(CodeInvalidSpec, "tables: %q: primaryKey: column %q is not declared", t.Name, name)
		}
	}
	return nil
}

// checkIndexNames: in a database the indexes of all tables share one name space.
func (d *decider) checkIndexNames() error {
	owner := map[string]string{}
	for _, t := range d.target.Tables {
		for _, index := range t.Indexes {
			if problem := problemOfName(index.Name); problem != "" {
				return Refuse(CodeInvalidSpec, "tables: %q: index %q: %s", t.Name, index.Name, problem)
			}
			name := d.facts.Dialect.fold(IndexName(index.Name))
			if other, taken := owner[name]; taken {
				return Refuse(CodeInvalidSpec, "tables: %q: index %q: table %q has an index of that name", t.Name, index.Name, other)
			}
			owner[name] = t.Name
			for _, column := range index.Columns {
				if _, declared := t.Column(column); !declared {
					return Refuse(CodeInvalidSpec, "tables: %q: index %q: column %q is not declared", t.Name, index.Name, column)
				}
			}
		}
	}
	return nil
}

func (d *decider) checkRetiredNames() error {
	for _, name := range d.target.RetiredTables {
		if err := d.checkTableName("retiredTables", name); err != nil {
			return err
		}
	}
	return nil
}

func (d *decider) checkMigrations() error {
	seen := map[int64]bool{}
	for _, m := range d.target.Migrations {
		if seen[m.Version] {
			return Refuse(CodeInvalidSpec, "migrations: version %d is there twice", m.Version)
		}
		seen[m.Version] = true
	}
	return nil
}

// checkCheckpoints: the rest of an entry is judged when its barrier declares it (CheckDeclaration); an older one may name tables that are
// retired since.
func (d *decider) checkCheckpoints() error {
	seen := map[string]bool{}
	for _, c := range d.target.Checkpoints {
		entry := declaration{checkpoint: c}
		if err := entry.checkName(); err != nil {
			return err
		}
		if err := entry.checkKeys(); err != nil {
			return err
		}
		if seen[c.Name] {
			return Refuse(CodeInvalidSpec, "checkpoints: %q is declared twice", c.Name)
		}
		seen[c.Name] = true
	}
	return nil
}

// checkTableName: the tables of the sync protocol and our own are no application's. SQLite does not tell case apart.
func (d *decider) checkTableName(field, name string) error {
	if problem := problemOfName(name); problem != "" {
		return Refuse(CodeInvalidSpec, "%s: %q: %s", field, name, problem)
	}
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, "sync_") || strings.HasPrefix(lower, "syncbarrier_") {
		return Refuse(CodeInvalidSpec, "%s: %q: names that begin with sync_ or syncbarrier_ are Syncbarrier's own", field, name)
	}
	if d.facts.Dialect == SQLite && IsSQLiteName(name) {
		return Refuse(CodeInvalidSpec, "%s: %q: the name is SQLite's own", field, name)
	}
	return nil
}

// systemColumns are columns that every table of PostgreSQL has (PostgreSQL manual, "System Columns").
var systemColumns = []string{"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}

// IsSQLiteName says whether a name is one that SQLite keeps for itself: it refuses tables named sqlite_..., and one with the name of a
// table-valued function would stand in for the function in every statement of ours (https://www.sqlite.org/vtab.html, "Table-valued functions").
func IsSQLiteName(name string) bool {
	lower := asciiLower(name)
	return strings.HasPrefix(lower, "sqlite_") || strings.HasPrefix(lower, "pragma_") || lower == "json_each" || lower == "json_tree"
}

// problemOfAdding: a table of SQLite may be made with a column that is called like the row's number, but none is added to it.
func (d Dialect) problemOfAdding(column string) string {
	if d == SQLite && slices.Contains([]string{"rowid", "oid", "_rowid_"}, asciiLower(column)) {
		return "SQLite adds no column with a name of the row's number"
	}
	return ""
}

// names are those of one kind that a target declares.
type names struct {
	dialect Dialect
	seen    map[string]string
}

// add says what is wrong with one more name: it is there already, or SQLite does not tell it from one that is.
func (n *names) add(name string) (problem string) {
	folded := n.dialect.fold(name)
	switch other, taken := n.seen[folded]; {
	case taken && other == name:
		return "is declared twice"
	case taken:
		return fmt.Sprintf("and %q are one name in SQLite, which does not tell case apart", other)
	}
	if n.seen == nil {
		n.seen = map[string]string{}
	}
	n.seen[folded] = name
	return ""
}

// fold is the form in which the product compares names.
func (d Dialect) fold(name string) string {
	if d == SQLite {
		return asciiLower(name)
	}
	return name
}

// asciiLower is how SQLite compares names: other letters than those of ASCII are told apart.
func asciiLower(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			r += 'a' - 'A'
		}
		return r
	}, name)
}

// CheckIdentifier refuses a name that no product takes as it is. CodeInvalidSpec names the field.
func CheckIdentifier(field, name string) error {
	if problem := problemOfName(name); problem != "" {
		return Refuse(CodeInvalidSpec, "%s: %q: %s", field, name, problem)
	}
	return nil
}

// problemOfName: everything else is legal, since names are always quoted.
func problemOfName(name string) string {
	switch {
	case name == "":
		return "the name is empty"
	case len(name) > MaxIdentifierBytes:
		return "the name has more than 63 bytes"
	case strings.ContainsRune(name, 0) || !utf8.ValidString(name):
		return "the name is not UTF-8 text without NUL"
	}
	return ""
}
