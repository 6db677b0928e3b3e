package v1alpha1

// What a pod asks of the webhook beside the serve gate (docs/design.md section 8). Without the webhook they say nothing.
const (
	// AnnotationInject asks for variables in the pod's containers. Its value is InjectPGOptions.
	AnnotationInject = "syncbarrier.dev/inject"
	// InjectPGOptions asks for PGOPTIONS with the setting by which sources of changes: Capture learn the version of whoever writes.
	InjectPGOptions = "PGOPTIONS"

	// AnnotationStart asks for the start gate. Its value is StartAfterMigration.
	AnnotationStart = "syncbarrier.dev/start"
	// StartAfterMigration keeps the pod from being scheduled until the database holds its version.
	StartAfterMigration = "AfterMigration"
	// StartGate is the name of the scheduling gate that does.
	StartGate = "syncbarrier.dev/start-gate"
)

// What the webhook writes on a SyncSchema: the name of the user who made a decision, as the API server knows it. Nobody else can.
const (
	// AnnotationApprovedBy is who set AnnotationApprove to its value.
	AnnotationApprovedBy = "syncbarrier.dev/approved-by"
	// AnnotationBypassedBy is who set AnnotationBypass to its value.
	AnnotationBypassedBy = "syncbarrier.dev/bypassed-by"
)

// VerbApprove is the right, on syncschemas, to set AnnotationApprove where the webhook is installed.
const VerbApprove = "approve"
