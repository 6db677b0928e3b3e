package webhook

import (
	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// recorded are the annotations by which a person decides, each with the one that says who did.
var recorded = map[string]string{
	v1alpha1.AnnotationApprove: v1alpha1.AnnotationApprovedBy,
	v1alpha1.AnnotationBypass:  v1alpha1.AnnotationBypassedBy,
}

// RecordDecisions returns the annotations of a SyncSchema with the user's name beside each decision that the user made with this change.
// Names beside decisions that stay are as they were, whatever the change says, and go with their decision. old is nil for an object that is
// created.
func RecordDecisions(old, changed map[string]string, user string) map[string]string {
	result := map[string]string{}
	for name, value := range changed {
		result[name] = value
	}
	for decision, by := range recorded {
		was, before := old[by]
		delete(result, by)
		switch {
		case changed[decision] == "":
		case changed[decision] != old[decision]:
			result[by] = user
		case before:
			result[by] = was
		}
	}
	return result
}

// approves returns the approval that a change makes, empty for none.
func approves(old, changed map[string]string) string {
	if given := changed[v1alpha1.AnnotationApprove]; given != old[v1alpha1.AnnotationApprove] {
		return given
	}
	return ""
}
