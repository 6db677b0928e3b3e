package gitops

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// argoStatuses says which of kstatus's answers an answer of Argo CD can stand for.
var argoStatuses = map[string][]status.Status{
	"Healthy":     {status.CurrentStatus},
	"Degraded":    {status.FailedStatus},
	"Progressing": {status.InProgressStatus, status.TerminatingStatus},
	"Suspended":   {status.InProgressStatus},
}

// Disagreement says how Argo CD or Flux would judge an object, as it is in an API server, other than kstatus does. It returns nil if
// they agree.
func Disagreement(ctx context.Context, object *unstructured.Unstructured) error {
	computed, err := status.Compute(object)
	if err != nil {
		return fmt.Errorf("compute kstatus: %w", err)
	}
	health, message, err := ArgoHealth(ctx, object)
	if err != nil {
		return err
	}
	if !slices.Contains(argoStatuses[health], computed.Status) {
		return fmt.Errorf("in Argo CD the object is %q (%s), for kstatus %s", health, message, computed.Status)
	}
	flux, err := FluxStatus(ctx, FluxHealth, object)
	if err != nil {
		return err
	}
	// Flux has no word of its own for an object that is being deleted.
	if flux != computed.Status && (flux != status.InProgressStatus || computed.Status != status.TerminatingStatus) {
		return fmt.Errorf("for Flux the object is %s, for kstatus %s", flux, computed.Status)
	}
	return nil
}
