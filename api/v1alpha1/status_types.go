package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SyncSchemaStatus mirrors what the database said last. Lists are capped; the total beside each says how many there are.
type SyncSchemaStatus struct {
	// conditions say how far the version is; conditions.go tells their life. If omitted the operator has not looked yet.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="!has(self.observedGeneration) || self.observedGeneration <= 9007199254740991",message="observedGeneration must fit into 53 bits"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation of the spec that the status speaks of, moved on success and on failure alike. -1,
	// which an omitted status gets, means that the operator has not looked yet.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=9007199254740991
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// storedVersion is the version that the database holds, 0 for none. If omitted the database was not read yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	StoredVersion *int64 `json:"storedVersion,omitempty"`

	// contentHash is the hash of the content that was applied for storedVersion, in hex. If omitted none was recorded.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	ContentHash string `json:"contentHash,omitempty"`

	// minWriterVersion is the oldest program version that may write, 0 for any. If omitted the database was not read yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	MinWriterVersion *int64 `json:"minWriterVersion,omitempty"`

	// minReaderVersion is the oldest program version that may be Ready, 0 for any. If omitted the database was not read yet.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	MinReaderVersion *int64 `json:"minReaderVersion,omitempty"`

	// gateOpen says whether programs of spec.version may serve. If omitted the database was not read yet.
	// +optional
	GateOpen *bool `json:"gateOpen,omitempty"`

	// plan is what would happen, while it waits for approval. If omitted nothing waits.
	// +optional
	Plan *Plan `json:"plan,omitempty"`

	// attempts counts the attempts at the barrier of spec.version that got no lock or failed. If omitted none did.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Attempts int32 `json:"attempts,omitempty"`

	// blockers lists who held the locks that the last attempt did not get, ten at most. If omitted nobody did.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Blockers []Blocker `json:"blockers,omitempty"`

	// blockersTotal is how many there were. If omitted there were none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	BlockersTotal int32 `json:"blockersTotal,omitempty"`

	// workloads lists what is gated, by workload and version, 32 at most. If omitted no pod asked for the gate.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	Workloads []WorkloadStatus `json:"workloads,omitempty"`

	// workloadsTotal is how many there are. If omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	WorkloadsTotal int32 `json:"workloadsTotal,omitempty"`
}

// Plan is what would happen once it is approved.
type Plan struct {
	// hash is the plan's hash. An approval names it, with the version, and releases no other plan.
	// +required
	// +kubebuilder:validation:MinLength=12
	// +kubebuilder:validation:MaxLength=12
	Hash string `json:"hash"`

	// version is the version that the plan leads to.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Version int32 `json:"version"`

	// locks lists the table locks in the order in which they are taken. If omitted none is.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Locks []PlannedLock `json:"locks,omitempty"`

	// locksTotal is how many there are. If omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	LocksTotal int32 `json:"locksTotal,omitempty"`

	// rowsRewritten is the number of rows, by the database's estimate, that are rewritten under the locks. If omitted none is.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	RowsRewritten int64 `json:"rowsRewritten,omitempty"`

	// rowsBackfilled is the number of rows, by the database's estimate, that the backfills go over. If omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	RowsBackfilled int64 `json:"rowsBackfilled,omitempty"`

	// expectedPauseMilliseconds is how long old programs are expected to be shut out before new ones may write, in
	// milliseconds. If omitted no pause is expected.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	ExpectedPauseMilliseconds int64 `json:"expectedPauseMilliseconds,omitempty"`
}

// PlannedLock is one table lock of a plan.
type PlannedLock struct {
	// table is the table, behind its schema and a dot if that is not the one that Syncbarrier works in.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=127
	Table string `json:"table"`

	// mode is the lock mode in the database's words.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Mode string `json:"mode"`
}

// Blocker is somebody who held a lock that the barrier needs.
type Blocker struct {
	// kind says what it is: session, prepared transaction, vacuum or process.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// pid is the server process. If omitted there is none, as for a prepared transaction.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	PID int32 `json:"pid,omitempty"`

	// name is the application's name, or that of the prepared transaction. If omitted it gave none.
	// +optional
	// +kubebuilder:validation:MaxLength=256
	Name string `json:"name,omitempty"`

	// user is the database user. If omitted it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	User string `json:"user,omitempty"`

	// table is the table whose lock it held, as in the plan. If omitted it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=127
	Table string `json:"table,omitempty"`

	// heldSeconds is how long its transaction had been open, in seconds. If omitted less than one.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	HeldSeconds int64 `json:"heldSeconds,omitempty"`
}

// WorkloadHold says what holding a workload's new pods costs.
type WorkloadHold string

// The three answers.
const (
	// HoldLossless: the rollout surges, so all old pods serve while new ones are held.
	HoldLossless WorkloadHold = "Lossless"
	// HoldLosesCapacity: some old pods are gone before new ones are Ready.
	HoldLosesCapacity WorkloadHold = "LosesCapacity"
	// HoldOutage: no pod serves while new ones are held.
	HoldOutage WorkloadHold = "Outage"
)

// WorkloadStatus is what is gated of one workload at one version.
type WorkloadStatus struct {
	// kind is the workload's kind, such as Deployment, or Pod for a pod without an owner.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`

	// name is the workload's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// version is the schema version that its pods require.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=2147483647
	Version int32 `json:"version"`

	// gated is the number of its pods of that version that carry the gate. If omitted none does.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Gated int32 `json:"gated,omitempty"`

	// ready is the number of them that are Ready. If omitted none is.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Ready int32 `json:"ready,omitempty"`

	// hold says what holding new pods costs: Lossless, LosesCapacity or Outage. If omitted it is not known.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Hold WorkloadHold `json:"hold,omitempty"`
}

// CheckpointState is the state of a checkpoint, in the words of the database.
type CheckpointState string

// The states of a checkpoint. Where partitions are listed, it is the state of the one that is furthest behind.
const (
	// StateDeclared: the version needs the backfill, nobody has claimed it.
	StateDeclared CheckpointState = "declared"
	// StateBackfilling: a worker has claimed it.
	StateBackfilling CheckpointState = "backfilling"
	// StateActivated: it is done and proven.
	StateActivated CheckpointState = "activated"
)

// BackfillCheckpointStatus mirrors what the database said last.
type BackfillCheckpointStatus struct {
	// conditions say how far the backfill is; conditions.go tells their life. If omitted the operator has not looked yet.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:XValidation:rule="!has(self.observedGeneration) || self.observedGeneration <= 9007199254740991",message="observedGeneration must fit into 53 bits"
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation of the spec that the status speaks of, moved on success and on failure alike. -1,
	// which an omitted status gets, means that the operator has not looked yet.
	// +optional
	// +kubebuilder:validation:Minimum=-1
	// +kubebuilder:validation:Maximum=9007199254740991
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// state is declared, backfilling or activated, that of the partition furthest behind. If omitted the checkpoint is not
	// declared yet.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	State CheckpointState `json:"state,omitempty"`

	// partitions counts the checkpoint's partitions by state. If omitted the checkpoint is not declared yet.
	// +optional
	Partitions *PartitionCounts `json:"partitions,omitempty"`

	// behind lists the partitions that are furthest behind, ten at most. If omitted none is.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=10
	Behind []PartitionStatus `json:"behind,omitempty"`

	// rows says how far the backfill is. If omitted it has not begun.
	// +optional
	Rows *RowProgress `json:"rows,omitempty"`

	// holdReason says why the backfill stands still although there is work. If omitted it does not.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	HoldReason string `json:"holdReason,omitempty"`

	// jobName is the name of the Job that works on it. If omitted there is none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	JobName string `json:"jobName,omitempty"`
}

// PartitionCounts counts the partitions of a checkpoint. One that covers all partitions counts as one.
type PartitionCounts struct {
	// total is how many there are. If omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Total int32 `json:"total,omitempty"`

	// declared is how many nobody has claimed. If omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Declared int32 `json:"declared,omitempty"`

	// backfilling is how many are being worked on. If omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Backfilling int32 `json:"backfilling,omitempty"`

	// activated is how many are done and proven. If omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Activated int32 `json:"activated,omitempty"`

	// unverifiable is how many of those that are worked on have to start again, because the log could not answer for them. If
	// omitted there are none.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Unverifiable int32 `json:"unverifiable,omitempty"`
}

// PartitionStatus is how far one partition is.
type PartitionStatus struct {
	// partition is the partition, * for the one row of a checkpoint that covers all.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Partition string `json:"partition"`

	// state is declared, backfilling or activated.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	State CheckpointState `json:"state"`

	// watermark is the position in the log up to which every source change is in the backfilled data. If omitted it is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Watermark int64 `json:"watermark,omitempty"`

	// epoch is the owner epoch, which grows with each claim. If omitted nobody has claimed it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Epoch int64 `json:"epoch,omitempty"`

	// verdict is what the last attempt to activate it found: changed, unverifiable or lost. If omitted there was none.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Verdict string `json:"verdict,omitempty"`
}

// RowProgress is how far a backfill is, by the database's own count.
type RowProgress struct {
	// done is the number of rows that were filled. If omitted none was.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Done int64 `json:"done,omitempty"`

	// estimated is the number of rows in all, by the database's estimate. If omitted it is not known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	Estimated *int64 `json:"estimated,omitempty"`

	// perSecond is the number of rows filled in a second, measured over the last minute. If omitted it is not known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	PerSecond *int64 `json:"perSecond,omitempty"`

	// secondsLeft is the time that the rest will take at that rate, in seconds. If omitted it is not known, as while the
	// backfill is held.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=9007199254740991
	SecondsLeft *int64 `json:"secondsLeft,omitempty"`
}
