package v1alpha1

// TableLayout says how an application table is laid out.
// +kubebuilder:validation:Enum=Plain;Syncular
type TableLayout string

// The two layouts of docs/design.md section 3.
const (
	// LayoutPlain: the application's own columns and key.
	LayoutPlain TableLayout = "Plain"
	// LayoutSyncular: the layout of Syncular's server, with a partition, a row id and a packed payload.
	LayoutSyncular TableLayout = "Syncular"
)

// Table declares one table.
//
// +kubebuilder:validation:XValidation:rule="!has(self.materialize) || (has(self.layout) && self.layout == 'Syncular')",message="materialize is for layout Syncular only"
type Table struct {
	// name is the table's name in the database, as it stands there: it is always quoted.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// layout is Plain, the default, for the application's own columns and key, or Syncular for the layout of Syncular's server.
	// +optional
	// +kubebuilder:default=Plain
	Layout TableLayout `json:"layout,omitempty"`

	// materialize says whether a Syncular table keeps its columns beside the payload that packs them. If omitted it does.
	// +optional
	Materialize *bool `json:"materialize,omitempty"`

	// columns lists the columns in their order, which is part of their meaning. Of a Plain table only those that Syncbarrier adds
	// and those that a backfill needs are listed; others are not ours.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1600
	Columns []Column `json:"columns"`

	// primaryKey lists the key columns of a Plain table in their order. If omitted the table can be neither a source of a backfill
	// nor backfilled. A Syncular table has its own key.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	PrimaryKey []string `json:"primaryKey,omitempty"`

	// partition says which partition a row of a Plain table belongs to. If omitted all its rows belong to one, "default".
	// +optional
	Partition *TablePartition `json:"partition,omitempty"`

	// indexes lists the indexes that the table is to have. One that already is as it should be is not touched; one that is left
	// out is not ours. If omitted no index is made.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Indexes []Index `json:"indexes,omitempty"`
}

// ColumnType is a column type that both databases have.
// +kubebuilder:validation:Enum=string;integer;float;boolean;json;bytes;blob_ref;crdt
type ColumnType string

// Column declares one column.
//
// +kubebuilder:validation:XValidation:rule="has(self.type) != has(self.sqlType)",message="exactly one of type and sqlType must be set"
type Column struct {
	// name is the column's name in the database, as it stands there: it is always quoted.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// type is a type that both databases have. A column that was there before is checked by its family only: a varchar is a
	// string. If omitted sqlType must be set.
	// +optional
	Type ColumnType `json:"type,omitempty"`

	// sqlType is a type in the database's own words, such as numeric(12,2). The database checks it, and it is compared
	// exactly. If omitted type must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	SQLType string `json:"sqlType,omitempty"`

	// nullable says whether a column that the barrier creates may be NULL. If omitted it may not.
	// +optional
	// +kubebuilder:default=false
	Nullable bool `json:"nullable,omitempty"`
}

// TablePartition says which partition a row belongs to.
//
// +kubebuilder:validation:XValidation:rule="has(self.column) != has(self.hash)",message="exactly one of column and hash must be set"
type TablePartition struct {
	// column is the column whose text is the partition. If omitted hash must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Column string `json:"column,omitempty"`

	// hash is the number of partitions that rows are spread over by a hash of their key. It is for sources with changes:
	// Capture. If omitted column must be set.
	// +optional
	// +kubebuilder:validation:Minimum=2
	// +kubebuilder:validation:Maximum=1024
	Hash *int32 `json:"hash,omitempty"`
}

// Index declares one index.
type Index struct {
	// name is the index's name in the database.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// columns lists the indexed columns in their order.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Columns []string `json:"columns"`

	// unique says whether no two rows may have the same values. If omitted they may.
	// +optional
	// +kubebuilder:default=false
	Unique bool `json:"unique,omitempty"`
}

// MigrationPhase says when the SQL of a migration runs under strategy Online.
// +kubebuilder:validation:Enum=Prepare;Finish
type MigrationPhase string

// The two phases.
const (
	// PhasePrepare: before the backfill, while old programs write.
	PhasePrepare MigrationPhase = "Prepare"
	// PhaseFinish: in the last step, which shuts old programs out.
	PhaseFinish MigrationPhase = "Finish"
)

// Migration is SQL that runs once, inside the barrier, on the way to its version.
//
// +kubebuilder:validation:XValidation:rule="has(self.sql) != has(self.sqlFrom)",message="exactly one of sql and sqlFrom must be set"
type Migration struct {
	// version is the version that the SQL belongs to, at most spec.version.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Version int32 `json:"version"`

	// phase says when the SQL runs under strategy Online, and is for it only. If omitted it is Prepare: the SQL must then
	// suit the old programs too.
	// +optional
	Phase MigrationPhase `json:"phase,omitempty"`

	// sql is the SQL. It runs in one transaction with the barrier and cannot end it. If omitted sqlFrom must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=262144
	SQL string `json:"sql,omitempty"`

	// sqlFrom takes the SQL from ConfigMaps, joined in the order of the list. If omitted sql must be set.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	SQLFrom []ConfigMapValue `json:"sqlFrom,omitempty"`
}

// ConfigMapValue is a value that stands in a ConfigMap of the object's own namespace.
type ConfigMapValue struct {
	// configMapKeyRef names the ConfigMap and the key in it.
	// +required
	ConfigMapKeyRef KeyReference `json:"configMapKeyRef"`
}
