package storage

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of what a program may declare through a Store, without a file that was checked before.
const (
	maxNameBytes = 253
	maxVersion   = 1<<31 - 1
)

// CheckDeclaration refuses a checkpoint that cannot be carried out, whoever declares it. tables are the declarations of the
// tables it names. CodeInvalidSpec names checkpoint and field.
func CheckDeclaration(c Checkpoint, tables []Table) error {
	d := declaration{checkpoint: c, tables: tables}
	for _, rule := range []func() error{
		d.checkName, d.checkPartitions, d.checkSources, d.checkBackfill, d.checkVerify,
	} {
		if err := rule(); err != nil {
			return err
		}
	}
	return c.Settings.Check()
}

type declaration struct {
	checkpoint Checkpoint
	tables     []Table
}

func (d declaration) refuse(format string, args ...any) error {
	return Refuse(CodeInvalidSpec, "checkpoint %q: "+format, append([]any{d.checkpoint.Name}, args...)...)
}

func (d declaration) checkName() error {
	name := d.checkpoint.Name
	switch {
	case name == "":
		return Refuse(CodeInvalidSpec, "a checkpoint has no name")
	case len(name) > maxNameBytes || !utf8.ValidString(name) || strings.ContainsRune(name, 0):
		return Refuse(CodeInvalidSpec, "the checkpoint name %.40q is not UTF-8 text of at most %d bytes without NUL", name, maxNameBytes)
	case d.checkpoint.Version < 1 || d.checkpoint.Version > maxVersion:
		return d.refuse("version %d is not between 1 and %d", d.checkpoint.Version, maxVersion)
	}
	return nil
}

// checkKeys judges the partitions by themselves.
func (d declaration) checkKeys() error {
	seen := make(map[string]bool, len(d.checkpoint.Partitions))
	for _, partition := range d.checkpoint.Partitions {
		if problem := problemOfPartition(partition); problem != "" {
			return d.refuse("partitions: %s", problem)
		}
		if seen[partition] {
			return d.refuse("partition %q is listed twice", partition)
		}
		seen[partition] = true
	}
	return nil
}

func (d declaration) checkPartitions() error {
	if err := d.checkKeys(); err != nil {
		return err
	}
	others := func(partition string) bool { return partition != DefaultPartition }
	if !slices.ContainsFunc(d.checkpoint.Partitions, others) {
		return d.checkDefault()
	}
	names := []string{d.checkpoint.Backfill.Table()}
	for _, source := range d.checkpoint.Sources {
		names = append(names, source.Table)
	}
	for _, name := range names {
		table, ok := findTable(d.tables, name)
		if ok && table.Layout == Plain && table.Partition.Column == "" {
			return d.refuse("partitions are listed, but table %q declares no partition column to tell its rows apart", name)
		}
	}
	return nil
}

// checkDefault: the partition of a table that has none stands for nothing in a captured source that has some.
func (d declaration) checkDefault() error {
	if len(d.checkpoint.Partitions) == 0 || !d.checkpoint.Backfill.External() {
		return nil
	}
	for _, source := range d.checkpoint.Sources {
		table, ok := findTable(d.tables, source.Table)
		if ok && source.Changes == Capture && table.Partition.Column != "" {
			return d.refuse("partition %q is listed, but captured source %q has a partition column: leave partitions out, or list its partitions",
				DefaultPartition, source.Table)
		}
	}
	return nil
}

// keyed finds a declared table whose rows can be told apart.
func (d declaration) keyed(name string) (Table, error) {
	table, ok := findTable(d.tables, name)
	switch {
	case !ok:
		return Table{}, d.refuse("table %q is not declared", name)
	case len(table.Key()) == 0:
		return Table{}, d.refuse("table %q declares no primary key, so its rows cannot be told apart", name)
	}
	return table, nil
}

// checkSources: without sources nothing could ever be missing, and an activation would prove nothing.
func (d declaration) checkSources() error {
	backfilled := d.checkpoint.Backfill.Table()
	if len(d.checkpoint.Sources) == 0 {
		return d.refuse("it declares no sources")
	}
	seen := map[string]bool{}
	for _, source := range d.checkpoint.Sources {
		table, err := d.keyed(source.Table)
		switch {
		case err != nil:
			return err
		case seen[source.Table]:
			return d.refuse("source %q is listed twice", source.Table)
		case source.Changes != CommitLog && source.Changes != Capture:
			return d.refuse("source %q: changes: %q is neither %s nor %s", source.Table, source.Changes, CommitLog, Capture)
		case source.Keys == "" && backfilled != "" && source.Table != backfilled:
			return d.refuse("source %q needs keys: a query that maps its changed keys to keys of %q", source.Table, backfilled)
		}
		for _, column := range source.Columns {
			if _, ok := table.Column(column); !ok {
				return d.refuse("source %q declares no column %q", source.Table, column)
			}
		}
		seen[source.Table] = true
	}
	return nil
}

func (d declaration) checkBackfill() error {
	b := d.checkpoint.Backfill
	set := 0
	for _, given := range []bool{b.Update != nil, b.Statement != nil, b.Job} {
		if given {
			set++
		}
	}
	if set > 1 {
		return d.refuse("backfill: only one of update, statement and job may be set")
	}
	if b.External() {
		return nil
	}
	table, err := d.keyed(b.Table())
	if err != nil {
		return err
	}
	if b.Statement != nil {
		if strings.TrimSpace(b.Statement.Apply) == "" {
			return d.refuse("backfill: statement: apply is empty")
		}
		return nil
	}
	return d.checkUpdate(table)
}

func (d declaration) checkUpdate(table Table) error {
	set := d.checkpoint.Backfill.Update.Set
	switch {
	case table.Layout == Syncular:
		return d.refuse("update is for Plain tables: in the Syncular table %q the payload is what counts", table.Name)
	case len(set) == 0:
		return d.refuse("update of table %q sets no column", table.Name)
	}
	for _, column := range sortedKeys(set) {
		_, declared := table.Column(column)
		switch {
		case !declared:
			return d.refuse("update: table %q declares no column %q", table.Name, column)
		case slices.Contains(table.PrimaryKey, column):
			return d.refuse("update: column %q is part of the key of table %q", column, table.Name)
		case table.Partition.Column == column:
			return d.refuse("update: column %q is the partition of table %q, so rows would move", column, table.Name)
		case strings.TrimSpace(set[column]) == "":
			return d.refuse("update: the expression for column %q is empty", column)
		}
	}
	return nil
}

// checkVerify: a check that nobody runs would be worse than none. The queries return keys of the table that a backfill goes over, and where a
// program of the user's own does the work there is none to compare with.
func (d declaration) checkVerify() error {
	if len(d.checkpoint.Verify) > 0 && d.checkpoint.Backfill.External() {
		return d.refuse("verify: needs a backfill by update or statement; a program of your own verifies its work itself, before it activates")
	}
	seen := map[string]bool{}
	for _, verify := range d.checkpoint.Verify {
		switch {
		case verify.Name == "" || seen[verify.Name]:
			return d.refuse("verify: the name %q is empty or used twice", verify.Name)
		case strings.TrimSpace(verify.Query) == "":
			return d.refuse("verify %q: the query is empty", verify.Name)
		}
		seen[verify.Name] = true
	}
	return nil
}

// Check refuses settings that mean nothing. CodeInvalidSpec names the field.
func (s Settings) Check() error {
	for name, value := range map[string]int{
		"batchRows": s.BatchRows, "maxRowsPerSecond": s.MaxRowsPerSecond,
		"maxReplicationLagSeconds": s.MaxReplicationLagSeconds, "parallelism": s.Parallelism,
	} {
		if value < 0 || value > maxVersion {
			return Refuse(CodeInvalidSpec, "settings: %s: %d is not between 0 and %d", name, value, maxVersion)
		}
	}
	return nil
}
