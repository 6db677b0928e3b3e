package v1alpha1

// Annotations that a person sets on a SyncSchema, by hand or by `kubectl syncbarrier`. Each is an instruction for one moment, so none
// belongs into a file under version control.
const (
	// AnnotationApprove releases the plan in status.plan. Its value is <version>@<plan hash>; it releases no other plan.
	AnnotationApprove = "syncbarrier.dev/approve"
	// AnnotationRetry makes the operator look again now, and drop the pause that it makes after a failure. Its value is the time
	// of the request, RFC 3339: another value is another request.
	AnnotationRetry = "syncbarrier.dev/retry"
	// AnnotationTakeOver lets the object take the database schema over from the owner that it names, as
	// <cluster>/<namespace>/<name>.
	AnnotationTakeOver = "syncbarrier.dev/take-over"
)
