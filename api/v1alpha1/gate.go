package v1alpha1

// How a pod asks for the serve gate (docs/design.md section 8).
const (
	// LabelGate opts a pod in. Its value is GateEnabled.
	LabelGate = "syncbarrier.dev/gate"
	// GateEnabled is the value of LabelGate.
	GateEnabled = "enabled"
	// AnnotationRequires names the SyncSchemas of the pod's namespace and the versions that the pod is built for: clinic=7, or
	// clinic=7,billing=3. All must hold.
	AnnotationRequires = "syncbarrier.dev/requires"
	// ReadinessGate is the type of the pod condition, and the name of the readiness gate, that keeps a pod out of its Services until the
	// database proves that it may serve.
	ReadinessGate = "syncbarrier.dev/serve-gate"
	// EnvironmentRequires is the variable that holds the requirement as it was when the pod was created. It cannot change later.
	EnvironmentRequires = "SYNCBARRIER_REQUIRES"

	// AnnotationBypass on a SyncSchema opens its gate for a time: <until, RFC 3339>;<reason>. The fence is not touched.
	AnnotationBypass = "syncbarrier.dev/bypass"
)

// Reasons of the pod condition beside those that a SyncSchema has too: GateOpen, MigrationPending, Backfilling, CheckpointMissing,
// Unreachable, Standby, Bypassed, and Conflict: the database schema is another SyncSchema's, so that what it holds proves nothing.
const (
	// ReasonReaderTooOld appears when the pod's version is below minReaderVersion: it cannot read the database any more.
	ReasonReaderTooOld = "ReaderTooOld"
	// ReasonWriterBelowFence appears on a pod that came after the gate of the stored version opened, and whose writes the fence refuses.
	ReasonWriterBelowFence = "WriterBelowFence"
	// ReasonSuperseded appears when enough pods of the stored version are Ready, and older ones are withdrawn.
	ReasonSuperseded = "Superseded"
	// ReasonVersionEdited appears when the annotation names other versions than the pod was created with.
	ReasonVersionEdited = "VersionEdited"
	// ReasonRequirementMissing appears when a pod asks for the gate and names no SyncSchema and version.
	ReasonRequirementMissing = "RequirementMissing"
	// ReasonRequirementMalformed appears when what it names cannot be read.
	ReasonRequirementMalformed = "RequirementMalformed"
	// ReasonSchemaNotFound appears when the pod's namespace has no SyncSchema of that name.
	ReasonSchemaNotFound = "SchemaNotFound"
	// ReasonReportOnly appears when gate.mode is Report: the condition is True, and the message has the verdict.
	ReasonReportOnly = "ReportOnly"
)
