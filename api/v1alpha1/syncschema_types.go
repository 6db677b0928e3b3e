package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SyncSchema declares one version of a database schema, the backfills that the version needs, and how the change is made.
// The operator migrates the database behind one exclusive lock, shuts out writers that are too old, runs the backfills, and
// opens the serve gate of the version once the database proves that nothing was missed.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=syncschemas,singular=syncschema,shortName=ssch,categories=syncbarrier,scope=Namespaced
// +kubebuilder:printcolumn:name="Version",type=integer,JSONPath=`.spec.version`,description="The version that is asked for"
// +kubebuilder:printcolumn:name="Stored",type=integer,JSONPath=`.status.storedVersion`,description="The version that the database holds"
// +kubebuilder:printcolumn:name="Gate",type=boolean,JSONPath=`.status.gateOpen`,description="Whether programs of the version may serve"
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Fence",type=integer,priority=1,JSONPath=`.status.minWriterVersion`,description="The oldest version that may write"
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="metadata.name must be at most 63 characters: pods name it in their requirement, and Jobs are named after it"
type SyncSchema struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata. The name must have at most 63 characters.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec is the version that the database is to be brought to, and how.
	// +required
	Spec SyncSchemaSpec `json:"spec"`

	// status mirrors what the database said last. It is written by the operator only and is rebuilt from the database when it
	// is lost. If omitted it gets an observedGeneration of -1: the operator has not looked yet.
	// +optional
	// +kubebuilder:default:={"observedGeneration":-1}
	Status SyncSchemaStatus `json:"status,omitzero"`
}

// SyncSchemaList is a list of SyncSchemas.
//
// +kubebuilder:object:root=true
type SyncSchemaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SyncSchema `json:"items"`
}

// SyncSchemaSpec says what the database is to be brought to, and how.
type SyncSchemaSpec struct {
	// database says where the database is. It is required here; a file for the command line may leave it out and give the
	// database beside the file.
	// +required
	Database Database `json:"database"`

	// version is the schema version that the database is to have. Programs built for it carry the same number. A version lower
	// than the stored one is accepted here, so that a commit can be reverted, and then reported as VersionRegression.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Version int32 `json:"version"`

	// minWriterVersion is the oldest program version that may write once the barrier is done: the fence. If omitted it becomes
	// the highest version among the checkpoints which the barrier declares and which cover all partitions or have a
	// Capture source; without such a checkpoint it stays as it is, since an additive version shuts nobody out. It can never be
	// lower than the stored one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	MinWriterVersion *int32 `json:"minWriterVersion,omitempty"`

	// minReaderVersion is the oldest program version that may be Ready once the barrier is done. If omitted it becomes the highest
	// version among the SQL migrations that the barrier runs and the rewrites that it makes; without any it stays as it is. It
	// can never be lower than the stored one.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	MinReaderVersion *int32 `json:"minReaderVersion,omitempty"`

	// strategy says how and when old writers are shut out. If omitted the strategy is Barrier, made as soon as the object is
	// seen.
	// +optional
	Strategy *Strategy `json:"strategy,omitempty"`

	// lock bounds what the barrier may wait for and hold. If omitted each of its fields has its default.
	// +optional
	Lock *Lock `json:"lock,omitempty"`

	// tables lists the tables that the version declares. A table that is left out is not touched: it is dropped only if it
	// stands in retiredTables. If omitted the version has no declared tables.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Tables []Table `json:"tables,omitempty"`

	// retiredTables lists the tables that the barrier drops. This is the only way in which a table is dropped. If omitted none
	// is.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=63
	RetiredTables []string `json:"retiredTables,omitempty"`

	// migrations lists SQL for what columns cannot say. Entries run in the order of their versions inside the barrier,
	// each once; they stay in the list for as long as a database below their version may exist. If omitted no SQL is run.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MaxItems=64
	Migrations []Migration `json:"migrations,omitempty"`

	// checkpoints lists the backfills of this and earlier versions. The barrier declares every entry above the stored version,
	// so that a jump over versions skips nothing; entries stay in the list for as long as a database below their version
	// may exist. If omitted the version needs no backfill.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Checkpoints []Checkpoint `json:"checkpoints,omitempty"`

	// worker changes the pods that run the backfills. If omitted they run as the operator makes them.
	// +optional
	Worker *Worker `json:"worker,omitempty"`

	// gate says how pods are held back. If omitted each of its fields has its default.
	// +optional
	Gate *Gate `json:"gate,omitempty"`

	// suspend stops barrier, Jobs and activation while it is true. It never changes the serve gate. If omitted it is false.
	// +optional
	// +kubebuilder:default=false
	Suspend bool `json:"suspend,omitempty"`
}

// StrategyType says how a version is brought in.
// +kubebuilder:validation:Enum=Barrier;Online
type StrategyType string

// The two strategies of docs/design.md section 6.
const (
	// StrategyBarrier moves marker and fence first and backfills afterwards: old writers are shut out for as long as the
	// backfill takes.
	StrategyBarrier StrategyType = "Barrier"
	// StrategyOnline backfills while old programs write, and moves marker and fence at the end. Not in this version: InvalidSpec.
	StrategyOnline StrategyType = "Online"
)

// Cutover says when old writers are shut out.
// +kubebuilder:validation:Enum=Automatic;OnApproval;WhenPodsWait
type Cutover string

// The three moments.
const (
	// CutoverAutomatic: as soon as everything is prepared.
	CutoverAutomatic Cutover = "Automatic"
	// CutoverOnApproval: when a person has approved exactly the plan in status.plan.
	CutoverOnApproval Cutover = "OnApproval"
	// CutoverWhenPodsWait: when pods of the new version run and only the serve gate holds them back.
	CutoverWhenPodsWait Cutover = "WhenPodsWait"
)

// Strategy says how and when old writers are shut out.
type Strategy struct {
	// type is the strategy. Barrier, the default, shuts old writers out first and backfills then. Online backfills while they
	// write and shuts them out for less than a second at the end; it is not in this version, which refuses it as InvalidSpec.
	// +optional
	// +kubebuilder:default=Barrier
	Type StrategyType `json:"type,omitempty"`

	// cutover says when old writers are shut out: for Barrier the barrier itself, for Online its last step. If omitted it is
	// Automatic.
	// +optional
	// +kubebuilder:default=Automatic
	Cutover Cutover `json:"cutover,omitempty"`

	// waitForPodsSeconds bounds the wait of WhenPodsWait, in seconds. After it Online goes on, and Barrier keeps waiting and
	// says so. If omitted it is 600.
	// +optional
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	WaitForPodsSeconds *int32 `json:"waitForPodsSeconds,omitempty"`
}

// Lock bounds what the barrier may wait for and hold.
type Lock struct {
	// timeoutMilliseconds bounds the wait for the first lock of an attempt, in milliseconds. Every further lock is taken at once
	// or not at all, and a failed attempt is made again after a pause. If omitted it is 2000.
	// +optional
	// +kubebuilder:default=2000
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	TimeoutMilliseconds int32 `json:"timeoutMilliseconds,omitempty"`

	// statementTimeoutSeconds bounds each statement of the barrier, in seconds, and so how long its locks are held. If omitted
	// it is 300.
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	StatementTimeoutSeconds int32 `json:"statementTimeoutSeconds,omitempty"`

	// holdBudgetMilliseconds bounds how long the last step of Online may hold its locks, in milliseconds; over it the step
	// lets go and is tried later. Barrier does not use it. If omitted it is 1000.
	// +optional
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=60000
	HoldBudgetMilliseconds int32 `json:"holdBudgetMilliseconds,omitempty"`
}

// GateMode says whether the serve gate holds pods.
// +kubebuilder:validation:Enum=Enforce;Report
type GateMode string

// The two modes.
const (
	// GateEnforce: pods are Ready only if the database proves that they may serve.
	GateEnforce GateMode = "Enforce"
	// GateReport: everything is computed and shown, nothing is held.
	GateReport GateMode = "Report"
)

// OlderPods says what becomes of pods of an older version once enough pods of the newest are Ready.
// +kubebuilder:validation:Enum=Withdraw;Keep
type OlderPods string

// The two answers.
const (
	// OlderPodsWithdraw: they are taken out of their Services.
	OlderPodsWithdraw OlderPods = "Withdraw"
	// OlderPodsKeep: they stay until the rollout removes them.
	OlderPodsKeep OlderPods = "Keep"
)

// Gate says how pods are held back.
type Gate struct {
	// mode is Enforce, the default, or Report: compute and show the verdict, and hold nothing.
	// +optional
	// +kubebuilder:default=Enforce
	Mode GateMode `json:"mode,omitempty"`

	// olderPods says what becomes of pods that the fence no longer lets write once enough pods of this version are
	// Ready. Withdraw, the default, takes them out of their Services; Keep leaves them to the rollout.
	// +optional
	// +kubebuilder:default=Withdraw
	OlderPods OlderPods `json:"olderPods,omitempty"`

	// withdrawAtPercent is how many pods of this version must be Ready before older ones are withdrawn, in per cent of the
	// workload's replicas. If omitted it is 100.
	// +optional
	// +kubebuilder:default=100
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	WithdrawAtPercent int32 `json:"withdrawAtPercent,omitempty"`
}
