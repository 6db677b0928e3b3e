package storage

// Dialect is a database product as far as decisions depend on it.
type Dialect string

// The two backends.
const (
	PostgreSQL Dialect = "postgres"
	SQLite     Dialect = "sqlite"
)

// columnTypes gives the type that a declared column has in each product, as the backend reports physical types.
var columnTypes = map[Dialect]map[ColumnType]string{
	PostgreSQL: {
		TypeString: "text", TypeInteger: "bigint", TypeFloat: "double precision", TypeBoolean: "boolean",
		TypeJSON: "jsonb", TypeBytes: "bytea", TypeBlobRef: "text", TypeCRDT: "bytea",
	},
	SQLite: {
		TypeString: "TEXT", TypeInteger: "INTEGER", TypeFloat: "REAL", TypeBoolean: "INTEGER",
		TypeJSON: "TEXT", TypeBytes: "BLOB", TypeBlobRef: "TEXT", TypeCRDT: "BLOB",
	},
}

// SQLTypeOf is the type a column is created with: its own SQLType, or the product's type for its declared one.
func (d Dialect) SQLTypeOf(c Column) string {
	if c.SQLType != "" {
		return c.SQLType
	}
	return columnTypes[d][c.Type]
}

// MaxIdentifierBytes is the longest name the product takes without cutting it.
const MaxIdentifierBytes = 63

// Facts are what one read of the database showed. EnsureSchema reads them under its locks; Plan reads them without.
type Facts struct {
	Dialect  Dialect
	Protocol int // of the catalog; 0: there is none
	Marker   *Marker
	History  []HistoryRow // by version
	Owner    *Owner
	Open     []OpenCheckpoint           // checkpoints with rows that are not activated
	Known    map[string]KnownCheckpoint // every name that was ever used
	Fence    int64                      // the minimum for all; 0: none
	// Reserved are partition keys in use that are ours: AllPartitions, or CapturePrefix in a database without our catalog.
	Reserved []string
	// Tables are the physical tables among those that the target, its retired tables and the stored layouts name.
	Tables map[string]PhysicalTable
	// CanonicalTypes maps each SQLType of the target to the product's own spelling; a type it does not know is missing.
	CanonicalTypes map[string]string
}

// Marker is the row of sync_schema_meta.
type Marker struct {
	Version int64
	Layouts map[string][]LayoutColumn // the Syncular tables
}

// OpenCheckpoint is a checkpoint with rows that are not activated.
type OpenCheckpoint struct {
	Name       string
	Version    int64
	Partitions []string // at most 1,000 of them
}

// KnownCheckpoint is a name that is or was used.
type KnownCheckpoint struct {
	Version   int64
	Hash      string // empty: declared by another program, without a definition
	Abandoned bool
	Tables    []string // its sources and its backfilled table
	Open      bool     // some row of it is not activated
}

// PhysicalTable is a table as it is.
type PhysicalTable struct {
	Columns []PhysicalColumn
	Key     []string // primary key columns in order; empty: none
	Unique  [][]string
	Indexes []PhysicalIndex
	HasRows bool
	// NullKey says that a key column may hold NULL and does (possible in SQLite only).
	NullKey bool
}

// PhysicalColumn is a column as it is.
type PhysicalColumn struct {
	Name      string
	Type      string       // the product's canonical spelling
	Fits      []ColumnType // the declared types it is of the family of
	NotNull   bool
	Generated bool
}

// PhysicalIndex is an index as it is.
type PhysicalIndex struct {
	Name       string
	Columns    []string // empty if it is over expressions
	Unique     bool
	Plain      bool // no predicate, no expression, usual order and method
	Valid      bool
	Constraint bool // owned by a constraint, so never ours
}

func (t PhysicalTable) column(name string) (PhysicalColumn, bool) {
	for _, c := range t.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return PhysicalColumn{}, false
}

func (f Facts) stored() int64 {
	if f.Marker == nil {
		return 0
	}
	return f.Marker.Version
}

// historyOf finds the history row of a version.
func (f Facts) historyOf(version int64) (HistoryRow, bool) {
	for _, row := range f.History {
		if row.Version == version {
			return row, true
		}
	}
	return HistoryRow{}, false
}

// last is the newest history row at or below the marker, the zero row if there is none.
func (f Facts) last() HistoryRow {
	var last HistoryRow
	for _, row := range f.History {
		if row.Version <= f.stored() && row.Version >= last.Version {
			last = row
		}
	}
	return last
}
