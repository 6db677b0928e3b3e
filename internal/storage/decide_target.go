package storage

import (
	"strings"
	"unicode/utf8"
)

// checkTarget refuses what cannot be right whatever the database holds. A file has passed the same rules with better paths
// (internal/manifest); a program that uses a Store itself has not. Names are judged before any lock: PostgreSQL would cut one
// that is too long, in silence.
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
	seen := map[string]bool{}
	for _, t := range d.target.Tables {
		if err := checkTableName("tables", t.Name); err != nil {
			return err
		}
		if seen[t.Name] {
			return Refuse(CodeInvalidSpec, "tables: %q is declared twice", t.Name)
		}
		seen[t.Name] = true
		if err := checkTableColumns(t); err != nil {
			return err
		}
	}
	return nil
}

func checkTableColumns(t Table) error {
	seen := map[string]bool{}
	for _, c := range t.Columns {
		switch problem := problemOfName(c.Name); {
		case problem != "":
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: %s", t.Name, c.Name, problem)
		case seen[c.Name]:
			return Refuse(CodeInvalidSpec, "tables: %q: column %q is declared twice", t.Name, c.Name)
		case (c.Type == "") == (c.SQLType == ""):
			return Refuse(CodeInvalidSpec, "tables: %q: column %q needs exactly one of type and sqlType", t.Name, c.Name)
		case c.SQLType == "" && columnTypes[PostgreSQL][c.Type] == "":
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: there is no type %q", t.Name, c.Name, c.Type)
		case t.Layout == Syncular && c.SQLType != "":
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: a Syncular table packs its columns, so each needs a type, not an sqlType", t.Name, c.Name)
		case t.Layout == Syncular && strings.HasPrefix(strings.ToLower(c.Name), "_sync_"):
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: names that begin with _sync_ are the layout's own", t.Name, c.Name)
		}
		seen[c.Name] = true
	}
	for _, name := range t.PrimaryKey {
		if !seen[name] {
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
			name := IndexName(index.Name)
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
		if err := checkTableName("retiredTables", name); err != nil {
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
		if seen[c.Name] {
			return Refuse(CodeInvalidSpec, "checkpoints: %q is declared twice", c.Name)
		}
		seen[c.Name] = true
	}
	return nil
}

// checkTableName: the tables of the sync protocol and our own are no application's. SQLite does not tell case apart.
func checkTableName(field, name string) error {
	if problem := problemOfName(name); problem != "" {
		return Refuse(CodeInvalidSpec, "%s: %q: %s", field, name, problem)
	}
	lower := strings.ToLower(name)
	if strings.HasPrefix(lower, "sync_") || strings.HasPrefix(lower, "syncbarrier_") {
		return Refuse(CodeInvalidSpec, "%s: %q: names that begin with sync_ or syncbarrier_ are Syncbarrier's own", field, name)
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
