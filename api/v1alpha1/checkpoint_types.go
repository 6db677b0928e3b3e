package v1alpha1

import "k8s.io/apimachinery/pkg/runtime"

// Checkpoint is one named backfill of one version, as an entry of a SyncSchema.
type Checkpoint struct {
	// name is the checkpoint's name. It belongs to its version for ever: another backfill needs another name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._/:-]*[A-Za-z0-9])?$`
	Name string `json:"name"`

	// version is the version that needs the backfill, at most spec.version.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Version int32 `json:"version"`

	CheckpointDefinition `json:",inline"`
}

// CheckpointDefinition is what a checkpoint does. It is recorded in the database when the checkpoint is declared, and cannot
// change from then on, but for the settings that Backfill calls live.
type CheckpointDefinition struct {
	// partitions lists the partitions that are backfilled, each by itself. If omitted all are, new ones included, in one
	// pass.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Partitions []string `json:"partitions,omitempty"`

	// sources lists the tables that the backfill reads. A change of one of them after its rows were backfilled is applied
	// again.
	// +required
	// +listType=map
	// +listMapKey=table
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	Sources []Source `json:"sources"`

	// backfill says how the rows are filled.
	// +required
	Backfill Backfill `json:"backfill"`

	// verify lists queries that must find no wrong row before the checkpoint is activated. If omitted none is asked.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Verify []Verify `json:"verify,omitempty"`
}

// SourceChanges says how changes of a source become known.
// +kubebuilder:validation:Enum=CommitLog;Capture
type SourceChanges string

// The two ways of docs/design.md section 5.
const (
	// ChangesCommitLog: the program follows the sync protocol and appends its own commits to the log.
	ChangesCommitLog SourceChanges = "CommitLog"
	// ChangesCapture: triggers on the table write the log.
	ChangesCapture SourceChanges = "Capture"
)

// Source is a table that a backfill reads.
type Source struct {
	// table is the table, one of spec.tables.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Table string `json:"table"`

	// changes says how changes of the table become known: CommitLog where the program appends its own commits, Capture where
	// triggers must do it.
	// +required
	Changes SourceChanges `json:"changes"`

	// columns lists the columns whose change counts. If omitted all count that no backfill of the table sets.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1600
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	Columns []string `json:"columns,omitempty"`

	// keys is a query that maps changed keys of this table, the relation "changed", to keys of the backfilled table. It is
	// needed for every source but the backfilled table itself. It sees the source as it is now: where rows of the source are deleted, or
	// come to point elsewhere, it must find from the key alone what they pointed to, so have that in the source's key, or
	// keep such rows; verify with a query what it cannot find. If omitted a changed key is the key to backfill.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	Keys string `json:"keys,omitempty"`
}

// Backfill says how rows are filled: by an update, by statements, or by a container of the user's own.
//
// +kubebuilder:validation:XValidation:rule="(has(self.update) ? 1 : 0) + (has(self.statement) ? 1 : 0) + (has(self.job) ? 1 : 0) == 1",message="exactly one of update, statement and job must be set"
type Backfill struct {
	// update sets columns of a Plain table from expressions over its own row; the batch statement is made from it. If omitted
	// statement or job must be set.
	// +optional
	Update *Update `json:"update,omitempty"`

	// statement gives the batch statements in the user's own SQL. If omitted update or job must be set.
	// +optional
	Statement *Statement `json:"statement,omitempty"`

	// job runs a container of the user's own, which uses the verbs of the command line as its protocol. It is refused for
	// strategy Online. If omitted update or statement must be set.
	// +optional
	Job *JobBackfill `json:"job,omitempty"`

	// batchRows is the number of rows of one batch, which is one transaction. It is live: workers read it again with every batch.
	// If omitted it is 1000.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100000
	BatchRows int32 `json:"batchRows,omitempty"`

	// maxRowsPerSecond bounds the rows that all workers together fill in a second. It is live. If omitted, or 0, nothing bounds
	// it.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=1000000000
	MaxRowsPerSecond int32 `json:"maxRowsPerSecond,omitempty"`

	// maxReplicationLagSeconds makes workers pause while a replica is further behind than this, in seconds. It is live. If
	// omitted, or 0, replicas are not looked at.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=86400
	MaxReplicationLagSeconds int32 `json:"maxReplicationLagSeconds,omitempty"`

	// parallelism is the number of workers. It is live. If omitted it is 1.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=64
	Parallelism int32 `json:"parallelism,omitempty"`
}

// Expression is an SQL expression.
// +kubebuilder:validation:MinLength=1
// +kubebuilder:validation:MaxLength=16384
type Expression string

// Update sets columns of a Plain table from expressions over its own row.
type Update struct {
	// table is the table whose rows are filled, one of spec.tables.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Table string `json:"table"`

	// set gives for each column the SQL expression of its value. Column names have at most 63 bytes.
	// +required
	// +kubebuilder:validation:MinProperties=1
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(column, size(column) >= 1 && size(column) <= 63)",message="a column name must have 1 to 63 characters"
	Set map[string]Expression `json:"set"`
}

// Statement gives the batch statements in the user's own SQL. The relation "batch" has the key columns of the rows at hand.
type Statement struct {
	// table is the table whose keys the backfill goes over, one of spec.tables.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Table string `json:"table"`

	// apply is the SQL that is run for the keys in batch that exist.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Apply string `json:"apply"`

	// remove is the SQL that is run for the keys in batch that are gone. A pass that had to begin again does not know of keys that went
	// before it: have a verify query that finds what is left of them. If omitted nothing is run for them.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Remove string `json:"remove,omitempty"`
}

// JobBackfill runs a container of the user's own.
type JobBackfill struct {
	// template is a partial pod template in the form of a PodTemplateSpec, whose container "worker" does the work. The API server keeps it
	// without looking into it; it is tried by a dry run before anything happens. It has the limits of spec.worker.template, but for the
	// image and the command, which are the user's own.
	// +required
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Template runtime.RawExtension `json:"template"`
}

// Worker changes the pods that run the backfills.
type Worker struct {
	// template is a partial pod template in the form of a PodTemplateSpec, merged over the operator's own, whose container is called
	// "worker". The API server keeps it without looking into it; it is tried by a dry run before anything happens. If omitted the
	// operator's own template is used.
	//
	// It may set labels and annotations, nodeSelector, tolerations, affinity, resources, priority and runtime class, pull secrets, volumes
	// and further containers. It cannot change the worker's image, command or security context, take the pod out of the pod security
	// standard "restricted", or give it a credential: no service account, no token, no Secret but those that images are pulled with.
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	Template *runtime.RawExtension `json:"template,omitempty"`
}

// Verify is a query that finds wrong rows.
type Verify struct {
	// name is the name that a failure is reported under.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// query returns the key columns of the backfilled table for each wrong row, and holds when it returns none.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=65536
	Query string `json:"query"`
}
