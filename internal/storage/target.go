package storage

import "fmt"

// Target is what a database is to be brought to: one schema version with all that is declared for it
// (docs/design.md section 7). It is made by internal/manifest from a SyncSchema, or by a program that uses a Store itself.
type Target struct {
	Version          int64  // 1 to 2147483647
	MinWriterVersion *int64 // the fence; nil: as Decide computes it
	MinReaderVersion *int64 // the oldest version that may serve; nil: as Decide computes it
	Tables           []Table
	RetiredTables    []string
	Migrations       []Migration  // in version order
	Checkpoints      []Checkpoint // of this and lower versions
	Owner            Owner
	TakeOver         string // "<cluster>/<namespace>/<name>" of the owner to take over from, or empty
	Lock             LockLimits
	// PlanHash is the hash of the plan that was approved: EnsureSchema carries out no other, as it decides under its locks. Empty: any.
	PlanHash string
	// WritersKnown has Plan leave out its look at who writes to the sources, which lasts seconds. It changes nothing else.
	WritersKnown bool
	// OfAnyOwner has Plan look at a database schema of another owner too, with a warning that says whose it is. EnsureSchema knows nothing of it.
	OfAnyOwner bool
}

// Layout says how an application table is laid out.
type Layout string

// The two layouts of docs/design.md section 3.
const (
	// Plain: the application's own columns and key.
	Plain Layout = "Plain"
	// Syncular: key (_sync_partition, _sync_row_id), typed columns, and a payload that packs them.
	Syncular Layout = "Syncular"
)

// ColumnType is a declared column type.
type ColumnType string

// The column types of stored layouts.
const (
	TypeString  ColumnType = "string"
	TypeInteger ColumnType = "integer"
	TypeFloat   ColumnType = "float"
	TypeBoolean ColumnType = "boolean"
	TypeJSON    ColumnType = "json"
	TypeBytes   ColumnType = "bytes"
	TypeBlobRef ColumnType = "blob_ref"
	TypeCRDT    ColumnType = "crdt"
)

// DefaultPartition is the partition of a table that declares none.
const DefaultPartition = "default"

// AllPartitions is the partition of the one row of a checkpoint that covers all partitions, and of the fence for all.
const AllPartitions = "*"

// CapturePrefix begins the keys of captured partitions. Such keys, and AllPartitions, are ours.
const CapturePrefix = "capture:"

// Table is a table that the schema declares. Of a Plain table only what Syncbarrier adds or a source needs is listed.
type Table struct {
	Name        string    `json:"name"`
	Layout      Layout    `json:"layout"`
	Materialize bool      `json:"materialize,omitempty"` // Syncular: keep the typed columns beside the payload
	Columns     []Column  `json:"columns,omitempty"`
	PrimaryKey  []string  `json:"primaryKey,omitempty"` // Plain
	Partition   Partition `json:"partition,omitzero"`
	Indexes     []Index   `json:"indexes,omitempty"`
}

// Column finds a declared column by name; ok is false if there is none.
func (t Table) Column(name string) (Column, bool) {
	for _, c := range t.Columns {
		if c.Name == name {
			return c, true
		}
	}
	return Column{}, false
}

// Key gives the key columns in order: the Syncular pair, or the Plain table's primary key.
func (t Table) Key() []string {
	if t.Layout == Syncular {
		return []string{ColumnPartition, ColumnRowID}
	}
	return t.PrimaryKey
}

// Columns of a Syncular table that are not the application's.
const (
	ColumnPartition     = "_sync_partition"
	ColumnRowID         = "_sync_row_id"
	ColumnServerVersion = "_sync_server_version"
	ColumnScopes        = "_sync_scopes"
	ColumnPayload       = "_sync_payload"
)

// Column is one declared column. Exactly one of Type and SQLType is set.
type Column struct {
	Name     string     `json:"name"`
	Type     ColumnType `json:"type,omitempty"`
	SQLType  string     `json:"sqlType,omitempty"` // a type in the database's own words, compared exactly
	Nullable bool       `json:"nullable,omitempty"`
}

// Partition says which partition a row of a table belongs to: a column's text, a hash of the key into so many slices, or
// (both zero) DefaultPartition.
type Partition struct {
	Column string `json:"column,omitempty"`
	Hash   int    `json:"hash,omitempty"`
}

// Index is a declared index.
type Index struct {
	Name    string   `json:"name"`
	Columns []string `json:"columns"`
	Unique  bool     `json:"unique,omitempty"`
}

// Migration is SQL that runs once, inside the barrier, on the way to Version.
type Migration struct {
	Version int64
	SQL     string
}

// Changes says how changes of a source become known (docs/design.md section 5).
type Changes string

// The two ways.
const (
	// CommitLog: the program follows the sync protocol and appends its own commits.
	CommitLog Changes = "CommitLog"
	// Capture: triggers on the source write the log.
	Capture Changes = "Capture"
)

// Checkpoint declares one named backfill of one schema version.
type Checkpoint struct {
	Name       string   `json:"name"`
	Version    int64    `json:"version"`
	Partitions []string `json:"partitions,omitempty"` // nil: all, new ones included, as one row AllPartitions
	Sources    []Source `json:"sources"`
	Backfill   Backfill `json:"backfill,omitzero"`
	Verify     []Verify `json:"verify,omitempty"`
	Settings   Settings `json:"-"`
	// Standalone says that it was written beside the schema, not in it: it is no part of its version's content hash, and one
	// that the barrier of its version did not declare is declared later by DeclareCheckpoint, or waits.
	Standalone bool `json:"standalone,omitempty"`
}

// Rows gives the partitions of the checkpoint's rows.
func (c Checkpoint) Rows() []string {
	if len(c.Partitions) == 0 {
		return []string{AllPartitions}
	}
	return c.Partitions
}

// Source is a table that a backfill reads.
type Source struct {
	Table   string   `json:"table"`
	Changes Changes  `json:"changes"`
	Columns []string `json:"columns,omitempty"` // the source columns; nil: all that no backfill of the table sets
	Keys    string   `json:"keys,omitempty"`    // SQL that maps the relation `changed` (the source's key columns) to keys of the backfilled table; "": the same table
}

// Backfill says how the rows are filled. At most one field is set; none: a program of the user's own does the work over the
// operations of Store (a user's container, or a program that embeds a Store).
type Backfill struct {
	Update    *Update    `json:"update,omitempty"`
	Statement *Statement `json:"statement,omitempty"`
	Job       bool       `json:"job,omitempty"` // a user's container does the work
	// JobTemplate is the container's partial pod template, as canonical JSON: object keys in order, no white space. Empty
	// where the file says nothing of it.
	JobTemplate string `json:"jobTemplate,omitempty"`
}

// External says that a program of the user's own does the work.
func (b Backfill) External() bool { return b.Update == nil && b.Statement == nil }

// Table is the table whose keys the backfill goes over, "" for an external one.
func (b Backfill) Table() string {
	switch {
	case b.Update != nil:
		return b.Update.Table
	case b.Statement != nil:
		return b.Statement.Table
	default:
		return ""
	}
}

// Update sets columns of a Plain table from expressions over its own row.
type Update struct {
	Table string            `json:"table"`
	Set   map[string]string `json:"set"` // column to SQL expression
}

// Statement is the user's own SQL over the relation `batch`, which has the key columns of the rows at hand.
type Statement struct {
	Table  string `json:"table"`
	Apply  string `json:"apply"`            // for keys that exist
	Remove string `json:"remove,omitempty"` // for keys that are gone; may be empty
}

// Verify is a query that returns the key columns of the backfilled table for each wrong row.
type Verify struct {
	Name  string `json:"name"`
	Query string `json:"query"`
}

// Settings may change while a backfill runs; workers read them again with every batch. A zero means the default.
type Settings struct {
	BatchRows                int  `json:"batchRows,omitempty"`                // rows a batch; 0: 1000
	MaxRowsPerSecond         int  `json:"maxRowsPerSecond,omitempty"`         // 0: no limit
	MaxReplicationLagSeconds int  `json:"maxReplicationLagSeconds,omitempty"` // 0: no limit
	Parallelism              int  `json:"parallelism,omitempty"`              // 0: 1
	Paused                   bool `json:"paused,omitempty"`
}

// DefaultBatchRows is the batch size where none is set.
const DefaultBatchRows = 1000

// WithDefaults fills the zeros.
func (s Settings) WithDefaults() Settings {
	if s.BatchRows == 0 {
		s.BatchRows = DefaultBatchRows
	}
	if s.Parallelism == 0 {
		s.Parallelism = 1
	}
	return s
}

// Owner is who manages a database schema. Cluster is the UID of the namespace kube-system, empty for the command line.
type Owner struct {
	Cluster   string
	Namespace string
	Name      string
	UID       string // recorded, not compared
}

// String is the form that TakeOver names.
func (o Owner) String() string { return o.Cluster + "/" + o.Namespace + "/" + o.Name }

// Has says whether a database schema in which recorded stands as its owner is o's: it is recorded as o's, as that of a command line with the
// same namespace and name, or, with nil, as nobody's (docs/design.md section 7).
func (o Owner) Has(recorded *Owner) bool {
	if recorded == nil {
		return true
	}
	return (recorded.Cluster == o.Cluster || recorded.Cluster == "") && recorded.Namespace == o.Namespace && recorded.Name == o.Name
}

// LockLimits bound what a barrier may wait for. Zero values mean the defaults.
type LockLimits struct {
	TimeoutMilliseconds     int // wait for the first lock of an attempt; 0: 2000
	StatementTimeoutSeconds int // each statement of the barrier; 0: 300
}

// WithDefaults fills the zeros.
func (l LockLimits) WithDefaults() LockLimits {
	if l.TimeoutMilliseconds == 0 {
		l.TimeoutMilliseconds = 2000
	}
	if l.StatementTimeoutSeconds == 0 {
		l.StatementTimeoutSeconds = 300
	}
	return l
}

// StatementHint is what to do about a statement of a barrier that its time limit ended.
func (l LockLimits) StatementHint() string {
	return fmt.Sprintf("a statement of the barrier has %d s, and holds its locks meanwhile: raise lock.statementTimeoutSeconds, or take work out of the migration",
		l.WithDefaults().StatementTimeoutSeconds)
}

// CheckApproved refuses to carry out another plan than was approved. what names the work.
func (t Target) CheckApproved(what, hash string) error {
	if t.PlanHash == "" || t.PlanHash == hash {
		return nil
	}
	return Refuse(CodeSerialization, "%s: the database changed since plan %s was approved, and what would run now is plan %s", what, t.PlanHash, hash)
}
