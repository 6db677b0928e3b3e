package storage

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"
)

// planTables compares each declared table with the physical one and collects what has to be added.
func (d *decider) planTables() error {
	d.created = createdColumns(d.facts.last())
	for _, name := range d.target.RetiredTables {
		if _, exists := d.facts.Tables[name]; exists || d.storedSyncular(name) {
			d.drops = append(d.drops, Step{Kind: StepDropTable, Table: name})
		}
	}
	for _, t := range d.target.Tables {
		if err := d.planTable(t); err != nil {
			return err
		}
		d.planIndexes(t)
	}
	return nil
}

func (d *decider) storedSyncular(name string) bool {
	if d.facts.Marker == nil {
		return false
	}
	_, ok := d.facts.Marker.Layouts[name]
	return ok
}

func (d *decider) planTable(t Table) error {
	if err := d.checkSQLTypes(t); err != nil {
		return err
	}
	if d.created[t.Name] == nil {
		d.created[t.Name] = map[string]bool{}
	}
	physical, exists := d.facts.Tables[t.Name]
	if !exists {
		if _, recorded := d.facts.last().PlainLayouts[t.Name]; recorded || d.storedSyncular(t.Name) {
			// Made anew it would be empty, and its backfills would still count as done.
			return Refuse(CodeLayoutMismatch, "tables: %q is recorded for version %d, but does not exist in the database any more", t.Name, d.facts.stored()).
				WithHint("restore it, or name it in retiredTables of a version before it is declared again")
		}
		if t.Layout == Plain && len(t.PrimaryKey) == 0 {
			return Refuse(CodeInvalidSpec, "tables: %q does not exist, and without primaryKey it cannot be created", t.Name)
		}
		d.changes = append(d.changes, Step{Kind: StepCreateTable, Table: t.Name, Declared: t})
		for _, c := range t.Columns {
			d.created[t.Name][c.Name] = true
		}
		return nil
	}
	if t.Layout == Syncular {
		return d.growSyncular(t, physical)
	}
	return d.growPlain(t, physical)
}

func (d *decider) checkSQLTypes(t Table) error {
	for _, c := range t.Columns {
		if _, known := d.facts.CanonicalTypes[c.SQLType]; c.SQLType != "" && !known {
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: the database knows no type %q", t.Name, c.Name, c.SQLType)
		}
	}
	return nil
}

func (d *decider) growPlain(t Table, physical PhysicalTable) error {
	recorded := d.facts.last().PlainLayouts[t.Name]
	for _, c := range t.Columns {
		have, exists := physical.column(c.Name)
		if exists {
			if problem := d.facts.checkColumn(c, have, physical, d.created[t.Name][c.Name]); problem != "" {
				return Refuse(CodeLayoutMismatch, "tables: %q: column %q %s", t.Name, c.Name, problem)
			}
			continue
		}
		if slices.ContainsFunc(recorded, func(known LayoutColumn) bool { return known.Name == c.Name }) {
			return Refuse(CodeLayoutMismatch, "tables: %q: column %q is recorded for version %d, but does not exist in the database any more",
				t.Name, c.Name, d.facts.stored())
		}
		if !c.Nullable && physical.HasRows {
			return Refuse(CodeInvalidSpec, "tables: %q: column %q is NOT NULL, but the table has rows and they would have no value for it", t.Name, c.Name).
				WithHint("declare it nullable, fill it with a checkpoint, and set NOT NULL by SQL in a later version")
		}
		if slices.Contains(t.PrimaryKey, c.Name) {
			return Refuse(CodeLayoutMismatch, "tables: %q: key column %q does not exist", t.Name, c.Name)
		}
		if problem := d.facts.Dialect.problemOfAdding(c.Name); problem != "" {
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: %s", t.Name, c.Name, problem)
		}
		d.changes = append(d.changes, Step{Kind: StepAddColumn, Table: t.Name, Declared: t, Column: c})
		d.created[t.Name][c.Name] = true
	}
	return nil
}

func (d *decider) growSyncular(t Table, physical PhysicalTable) error {
	var stored []LayoutColumn
	if d.facts.Marker != nil {
		stored = d.facts.Marker.Layouts[t.Name]
	}
	if stored == nil {
		return Refuse(CodeLayoutMismatch, "tables: %q exists, but the stored layouts do not know it as a Syncular table", t.Name)
	}
	if err := checkStoredColumns(t, stored, physical); err != nil {
		return err
	}
	for _, c := range t.Columns[len(stored):] {
		if !c.Nullable {
			return Refuse(CodeInvalidSpec, "tables: %q: column %q must be nullable: it is appended to rows that have no value for it", t.Name, c.Name)
		}
		have, exists := physical.column(c.Name)
		switch {
		case exists && have.Type != d.facts.Dialect.SQLTypeOf(c):
			return Refuse(CodeLayoutMismatch, "tables: %q: column %q exists with type %s, declared %s", t.Name, c.Name, have.Type, d.facts.Dialect.SQLTypeOf(c))
		case !exists && t.Materialize && d.facts.Dialect.problemOfAdding(c.Name) != "":
			return Refuse(CodeInvalidSpec, "tables: %q: column %q: %s", t.Name, c.Name, d.facts.Dialect.problemOfAdding(c.Name))
		case !exists && t.Materialize:
			d.changes = append(d.changes, Step{Kind: StepAddColumn, Table: t.Name, Declared: t, Column: c})
		}
	}
	if len(t.Columns) > len(stored) {
		// Run twice this would corrupt every payload, so it is part of the transaction that moves the marker, planned from
		// layouts read under the same lock.
		d.changes = append(d.changes, Step{Kind: StepRewritePayload, Table: t.Name, Declared: t, OldColumns: len(stored), NewColumns: len(t.Columns)})
	}
	return nil
}

// checkStoredColumns: the columns that the stored layout has stand beside the payload, or none of them does.
func checkStoredColumns(t Table, stored []LayoutColumn, physical PhysicalTable) error {
	if !t.Materialize {
		return nil
	}
	var missing []string
	for _, c := range stored {
		if _, exists := physical.column(c.Name); !exists {
			missing = append(missing, c.Name)
		}
	}
	switch {
	case len(missing) == 0:
		return nil
	case len(missing) == len(stored):
		return Refuse(CodeInvalidSpec, "tables: %q: materialize cannot be switched on: its rows hold their columns only in the payload", t.Name)
	default:
		return Refuse(CodeLayoutMismatch, "tables: %q: column %q is in the stored layout, but does not exist in the database any more", t.Name, missing[0])
	}
}

// planIndexes touches only what differs. Ours are those named IndexName and bare declared names; constraints own theirs.
func (d *decider) planIndexes(t Table) {
	physical := d.facts.Tables[t.Name]
	kept, generated := map[string]bool{}, map[string]bool{}
	for _, index := range t.Indexes {
		generated[IndexName(index.Name)] = true
	}
	for _, index := range t.Indexes {
		satisfied := false
		for _, have := range physical.Indexes {
			// The bare name of one may be what another is called in the database.
			if have.Constraint || have.Name != IndexName(index.Name) && (have.Name != index.Name || generated[have.Name]) {
				continue
			}
			if have.Plain && have.Valid && have.Unique == index.Unique && slices.Equal(have.Columns, index.Columns) {
				satisfied, kept[have.Name] = true, true
				continue
			}
			kept[have.Name] = true
			d.drops = append(d.drops, Step{Kind: StepDropIndex, Table: t.Name, Index: Index{Name: have.Name}})
		}
		if !satisfied {
			d.indexes = append(d.indexes, Step{Kind: StepCreateIndex, Table: t.Name, Declared: t,
				Index: Index{Name: IndexName(index.Name), Columns: index.Columns, Unique: index.Unique}})
		}
	}
	for _, have := range physical.Indexes {
		if strings.HasPrefix(have.Name, indexPrefix) && !have.Constraint && !kept[have.Name] {
			d.drops = append(d.drops, Step{Kind: StepDropIndex, Table: t.Name, Index: Index{Name: have.Name}})
		}
	}
}

const indexPrefix = "sync_ix_"

// IndexName is the name of a declared index in the database, as the sync protocol has it: sync_ix_<name>, or where that
// is over 63 bytes, sync_ix_ and the FNV-1a hash of the name in hex.
func IndexName(declared string) string {
	if name := indexPrefix + declared; len(name) <= MaxIdentifierBytes {
		return name
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(declared)) // a hash never fails
	return fmt.Sprintf("%s%016x", indexPrefix, hash.Sum64())
}

// CheckPhysical compares declared tables with what is there. A column that was there before us is compared by family and not for
// nullability; what we created (created, by table and column) and everything of a Syncular table exactly.
// CodeLayoutMismatch names table and column.
func CheckPhysical(target Target, facts Facts, created map[string]map[string]bool) error {
	for _, t := range target.Tables {
		physical, exists := facts.Tables[t.Name]
		if !exists {
			return Refuse(CodeLayoutMismatch, "tables: %q does not exist in the database", t.Name)
		}
		var problem string
		if t.Layout == Syncular {
			problem = facts.checkSyncular(t, physical)
		} else {
			problem = facts.checkPlain(t, physical, created[t.Name])
		}
		if problem != "" {
			return Refuse(CodeLayoutMismatch, "tables: %q: %s", t.Name, problem)
		}
	}
	return nil
}

func (f Facts) checkPlain(t Table, physical PhysicalTable, created map[string]bool) string {
	for _, c := range t.Columns {
		have, exists := physical.column(c.Name)
		if !exists {
			return fmt.Sprintf("column %q does not exist in the database", c.Name)
		}
		if problem := f.checkColumn(c, have, physical, created[c.Name]); problem != "" {
			return fmt.Sprintf("column %q %s", c.Name, problem)
		}
	}
	if len(t.PrimaryKey) > 0 && len(physical.Key) > 0 && !slices.Equal(t.PrimaryKey, physical.Key) &&
		!slices.ContainsFunc(physical.Unique, func(u []string) bool { return slices.Equal(u, t.PrimaryKey) }) {
		return fmt.Sprintf("the primary key is (%s), declared (%s)", strings.Join(physical.Key, ", "), strings.Join(t.PrimaryKey, ", "))
	}
	return ""
}

func (f Facts) checkColumn(c Column, have PhysicalColumn, of PhysicalTable, created bool) string {
	switch {
	case created && !c.Nullable && !have.NotNull && !slices.Contains(of.Key, c.Name):
		return "may be NULL, declared NOT NULL" // stricter than declared is fine: SQL of a later version may set NOT NULL
	case c.SQLType != "":
		if want := f.CanonicalTypes[c.SQLType]; have.Type != want {
			return fmt.Sprintf("has type %s, declared %s", have.Type, want)
		}
	case created:
		if want := f.Dialect.SQLTypeOf(c); have.Type != want {
			return fmt.Sprintf("has type %s, declared %s (%s)", have.Type, c.Type, want)
		}
	case !slices.Contains(have.Fits, c.Type):
		return fmt.Sprintf("has type %s, which is no %s", have.Type, c.Type)
	}
	return ""
}

func (f Facts) checkSyncular(t Table, physical PhysicalTable) string {
	for _, want := range f.Dialect.SyncularColumns(t) {
		have, exists := physical.column(want.Name)
		switch {
		case !exists:
			return fmt.Sprintf("column %q does not exist in the database", want.Name)
		case have.Type != want.Type:
			return fmt.Sprintf("column %q has type %s, must have %s", want.Name, have.Type, want.Type)
		case have.NotNull != want.NotNull:
			return fmt.Sprintf("column %q has NOT NULL %t, must have %t", want.Name, have.NotNull, want.NotNull)
		}
	}
	if !slices.Equal(physical.Key, t.Key()) {
		return fmt.Sprintf("the primary key is (%s), must be (%s)", strings.Join(physical.Key, ", "), strings.Join(t.Key(), ", "))
	}
	return ""
}

// SyncularColumns are the physical columns of a Syncular table, in order, with their types in the product's spelling.
func (d Dialect) SyncularColumns(t Table) []PhysicalColumn {
	types := columnTypes[d]
	columns := []PhysicalColumn{
		{Name: ColumnPartition, Type: types[TypeString], NotNull: true},
		{Name: ColumnRowID, Type: types[TypeString], NotNull: true},
	}
	if t.Materialize {
		for _, c := range t.Columns {
			columns = append(columns, PhysicalColumn{Name: c.Name, Type: types[c.Type], NotNull: !c.Nullable})
		}
	}
	return append(columns,
		PhysicalColumn{Name: ColumnServerVersion, Type: types[TypeInteger], NotNull: true},
		PhysicalColumn{Name: ColumnScopes, Type: types[TypeJSON], NotNull: true},
		PhysicalColumn{Name: ColumnPayload, Type: types[TypeBytes], NotNull: true},
	)
}

// CreatedColumns are the columns a decision creates or knows as created, for CheckPhysical after the steps.
func (d Decision) CreatedColumns() map[string]map[string]bool {
	return createdColumns(HistoryRow{PlainLayouts: d.PlainLayouts})
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
