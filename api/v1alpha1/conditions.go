package v1alpha1

// This file is the document of how a SyncSchema and a BackfillCheckpoint live. Each group holds one condition with a sentence
// that says when it is true, and then its reasons with the moment in which each appears.
//
// Ready is always there. Reconciling and Stalled are there only while true, and never both: Reconciling says that work goes on
// without a person, Stalled that a person must act. While one of them is true, Ready is False with the same reason. So tools that read
// conditions the kstatus way see: Reconciling is in progress, Stalled has failed, Ready is current.
//
// Every condition carries the observedGeneration of the spec that it speaks of. Conditions are output: the operator looks at the
// database again in every pass, and never steers by a condition that it wrote before.

// Both kinds: Ready.
const (
	// ConditionReady is true when everything that the spec asks for is done and proven: for a SyncSchema the serve gate of its version
	// is open, for a BackfillCheckpoint all its rows are activated. While false it has a reason of Reconciling or Stalled.
	ConditionReady = "Ready"

	// ReasonGateOpen appears on a SyncSchema when the database proved that programs of its version may serve.
	ReasonGateOpen = "GateOpen"
	// ReasonActivated appears on a BackfillCheckpoint when all its rows are activated.
	ReasonActivated = "Activated"
)

// Both kinds: Reconciling.
const (
	// ConditionReconciling is true when work is under way or is waited with that goes on without a person. It is absent
	// otherwise.
	ConditionReconciling = "Reconciling"

	// Waiting: what was tried did not work this time and is tried again, however often that takes.

	// ReasonLockTimeout appears when a lock was not had in its time; the message names who held it.
	ReasonLockTimeout = "LockTimeout"
	// ReasonDeadlock appears when the database chose our transaction to end a deadlock.
	ReasonDeadlock = "Deadlock"
	// ReasonSerialization appears when a transaction of ours could not be ordered among the others.
	ReasonSerialization = "Serialization"
	// ReasonCancelled appears when a statement of ours was ended by its time limit, an administrator or a shutdown.
	ReasonCancelled = "Cancelled"
	// ReasonConnectionLost appears when the database cannot be reached, or went away.
	ReasonConnectionLost = "ConnectionLost"
	// ReasonCommitUnknown appears when the connection was lost while a commit was under way; the next pass reads what became of
	// it.
	ReasonCommitUnknown = "CommitUnknown"
	// ReasonReadOnly appears when the server takes no writes, as a standby or by its settings.
	ReasonReadOnly = "ReadOnly"
	// ReasonAuthenticationFailed appears when the server refused the credentials.
	ReasonAuthenticationFailed = "AuthenticationFailed"
	// ReasonSecretMissing appears when a Secret, ConfigMap or key that the spec names is missing or empty, or the operator may not read it;
	// the message then names the right that it lacks.
	ReasonSecretMissing = "SecretMissing"
	// ReasonThrottled appears when work stands still because of its own limits, such as the lag of a replica or the number of connections.
	ReasonThrottled = "Throttled"
	// ReasonWorkerPending appears when the worker's Job or pod does not start; the message has its own words.
	ReasonWorkerPending = "WorkerPending"
	// ReasonWaitingForPods appears when cutover WhenPodsWait waits for pods of the new version.
	ReasonWaitingForPods = "WaitingForPods"
	// ReasonPreviousVersionOpen appears when a checkpoint waits for the barrier of its version, or a version for a checkpoint of an
	// earlier one.
	ReasonPreviousVersionOpen = "PreviousVersionOpen"

	// Under way.

	// ReasonMigrating appears while the barrier of strategy Barrier is made.
	ReasonMigrating = "Migrating"
	// ReasonPreparing appears while the first step of strategy Online is made. Not in this version.
	ReasonPreparing = "Preparing"
	// ReasonBackfilling appears while workers go over the table.
	ReasonBackfilling = "Backfilling"
	// ReasonCatchingUp appears while workers apply what changed after the table was read.
	ReasonCatchingUp = "CatchingUp"
	// ReasonSourceChanged appears when the log could not say whether a change was missed, and the pass over the table begins again, three
	// times at most.
	ReasonSourceChanged = "SourceChanged"
	// ReasonActivating appears while a checkpoint is being activated.
	ReasonActivating = "Activating"
	// ReasonFinishing appears while the last step of strategy Online is made. Not in this version.
	ReasonFinishing = "Finishing"

	// For a person, without being broken.

	// ReasonApprovalPending appears when cutover OnApproval waits for the approval of the plan in status.plan.
	ReasonApprovalPending = "ApprovalPending"
	// ReasonSuspended appears when spec.suspend is true and work is left. With nothing left Ready stays true.
	ReasonSuspended = "Suspended"
)

// Both kinds: Stalled.
const (
	// ConditionStalled is true when nothing goes on before a person acts, or the database, the spec or what it refers to changes. It
	// is absent otherwise. A stalled object is looked at again at every resync.
	ConditionStalled = "Stalled"

	// ReasonInvalidSpec appears when the spec cannot be right; the message names the field.
	ReasonInvalidSpec = "InvalidSpec"
	// ReasonInvalidSQL appears when the database refused SQL of the spec; the message has its words.
	ReasonInvalidSQL = "InvalidSQL"
	// ReasonNotTransactional appears when SQL of the spec cannot run inside a transaction, or would end it.
	ReasonNotTransactional = "NotTransactional"
	// ReasonVersionRegression appears when the database holds a newer version than the spec asks for.
	ReasonVersionRegression = "VersionRegression"
	// ReasonContentDrift appears when the content of an applied version, or of a declared checkpoint, was edited.
	ReasonContentDrift = "ContentDrift"
	// ReasonLayoutMismatch appears when the tables in the database are not as the spec says that they were.
	ReasonLayoutMismatch = "LayoutMismatch"
	// ReasonConflict appears when somebody else owns the database schema, or a name that is asked for.
	ReasonConflict = "Conflict"
	// ReasonFenceBroken appears when the fence or a guard in the database is not as it was installed, or commits got past it.
	ReasonFenceBroken = "FenceBroken"
	// ReasonVerificationFailed appears when a verify query found wrong rows; the message names the check and up to ten keys.
	ReasonVerificationFailed = "VerificationFailed"
	// ReasonNotConverging appears when a backfill does not catch up with the changes of its sources.
	ReasonNotConverging = "NotConverging"
	// ReasonUnverifiable appears when the log could not answer whether a change was missed, after the first pass and after three more.
	ReasonUnverifiable = "Unverifiable"
	// ReasonCheckpointOrphaned appears when a declared checkpoint has no object and no file that speaks of it any more.
	ReasonCheckpointOrphaned = "CheckpointOrphaned"
	// ReasonInternal appears when something failed that this program has no word for, such as a damaged index, or a defect of its own; the
	// message has the database's words. It is tried again at every resync.
	ReasonInternal = "Internal"
)

// SyncSchema: Migrated.
const (
	// ConditionMigrated is true when the database holds spec.version with the content of the spec.
	ConditionMigrated = "Migrated"

	// ReasonMigrated appears when it does.
	ReasonMigrated = "Migrated"
	// ReasonMigrationPending appears while the barrier, or the last step of Online, is still to come, on Fenced and GateOpen too.
	ReasonMigrationPending = "MigrationPending"
)

// SyncSchema: Fenced.
const (
	// ConditionFenced is true when fence and guards of the database are whole and refuse writers below
	// status.minWriterVersion. A version that needs no fence has it true too: none is missing. Its other reasons are
	// MigrationPending and FenceBroken.
	ConditionFenced = "Fenced"

	// ReasonFenced appears when they are.
	ReasonFenced = "Fenced"
)

// SyncSchema: GateOpen.
const (
	// ConditionGateOpen is true when the database proved that programs of spec.version may serve. True has the reason GateOpen;
	// other reasons are MigrationPending and Backfilling.
	ConditionGateOpen = "GateOpen"

	// ReasonCheckpointMissing appears when a checkpoint is recorded that does not exist.
	ReasonCheckpointMissing = "CheckpointMissing"
	// ReasonUnreachable appears when the database, or in WorkloadsSafe a workload, could not be read.
	ReasonUnreachable = "Unreachable"
	// ReasonStandby appears when the server that answered is a standby: what it says may be old, so it proves nothing.
	ReasonStandby = "Standby"
)

// SyncSchema: conditions that are there only where they apply.
const (
	// ConditionSuspended is true while spec.suspend is true, with work left or without. Its reason is Suspended.
	ConditionSuspended = "Suspended"

	// ConditionWorkloadsSafe is true when holding new pods costs no workload a pod that serves, and false, before the barrier,
	// when it would. It is unknown while a workload cannot be read.
	ConditionWorkloadsSafe = "WorkloadsSafe"
	// ReasonLossless appears when every gated workload surges.
	ReasonLossless = "Lossless"
	// ReasonLosesCapacity appears when a workload has fewer serving pods while new ones are held.
	ReasonLosesCapacity = "LosesCapacity"
	// ReasonOutage appears when a workload has no serving pod while new ones are held.
	ReasonOutage = "Outage"

	// ConditionPodsUngated is true when pods asked for the gate and run without it, or name a version that they require under a label that is
	// mistyped. Ready is not touched by it: the fence still protects the data.
	ConditionPodsUngated = "PodsUngated"
	// ReasonPodsWithoutGate appears with it; the message has their number and some names.
	ReasonPodsWithoutGate = "PodsWithoutGate"

	// ConditionPodsRefused is true while the API server does not let the operator write the condition of pods, or take their start gate away:
	// a right is missing, or a policy protects the pod. Those pods are held; the others, and Ready, are not touched by it.
	ConditionPodsRefused = "PodsRefused"
	// ReasonWriteRefused appears with it; the message has the number, some names, and the API server's words.
	ReasonWriteRefused = "WriteRefused"

	// ConditionUnversionedWriters is true when programs write to the sources without a version, as far as a sample can tell, or when the fence
	// refused writes a short while ago. What it refuses it counts and does not tell apart: a version that was missing, or one that was too low.
	ConditionUnversionedWriters = "UnversionedWriters"
	// ReasonVersionMissing appears with it; the message has number, application and user of a sample, or the number of refused writes.
	ReasonVersionMissing = "VersionMissing"

	// ConditionGateBypassed is true while a person has opened the gate for a time. The fence is not touched by it.
	ConditionGateBypassed = "GateBypassed"
	// ReasonBypassed appears with it; the message says who, why and until when.
	ReasonBypassed = "Bypassed"

	// ConditionLogGrowing is true when the log of captured sources grows and nothing prunes it.
	ConditionLogGrowing = "LogGrowing"
	// ReasonLogGrowing appears with it; the message has its size in bytes.
	ReasonLogGrowing = "LogGrowing"
)

// BackfillCheckpoint: BackfillComplete.
const (
	// ConditionBackfillComplete is true when every row was gone over and what changed meanwhile is applied. Its reasons while false
	// are Backfilling, CatchingUp and PreviousVersionOpen.
	ConditionBackfillComplete = "BackfillComplete"

	// ReasonBackfillComplete appears when it is.
	ReasonBackfillComplete = "BackfillComplete"
)

// BackfillCheckpoint: Activated.
const (
	// ConditionActivated is true when all rows of the checkpoint are activated: proven, and never changed again. True has the reason
	// Activated; other reasons are Backfilling, Activating, SourceChanged and VerificationFailed.
	ConditionActivated = "Activated"
)
