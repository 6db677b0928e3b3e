package manifest

import (
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// The schema accepts all of docs/design.md section 7. What this version of Syncbarrier cannot do yet is refused here, one
// function for each, and nowhere else.

// onlineUnavailable refuses strategy Online.
func onlineUnavailable(spec *field.Path) *field.Error {
	return field.Invalid(spec.Child("strategy", "type"), v1alpha1.StrategyOnline, "strategy Online is not available in this version of Syncbarrier")
}
