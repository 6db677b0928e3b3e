package gitops

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func TestFluxJudgesEveryStateAsKstatusDoes(t *testing.T) {
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, want verdicts) {
		wanted := want.kstatus
		if wanted == status.TerminatingStatus {
			wanted = status.InProgressStatus
		}
		got, err := FluxStatus(t.Context(), FluxHealth, object)
		must(t, err)
		if got != wanted {
			t.Errorf("Flux says %s, want %s", got, wanted)
		}
	})
}

func TestTheVariantForApprovalsDiffersForApprovalsAlone(t *testing.T) {
	differs := 0
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, want verdicts) {
		got, err := FluxStatus(t.Context(), FluxHealthApproval, object)
		must(t, err)
		if want.approval != "" {
			differs++
			if got != want.approval {
				t.Errorf("Flux says %s, want %s", got, want.approval)
			}
			return
		}
		usual, err := FluxStatus(t.Context(), FluxHealth, object)
		must(t, err)
		if got != usual && want.kstatus != status.TerminatingStatus {
			t.Errorf("Flux says %s, without the variant %s", got, usual)
		}
	})
	if differs != 1 {
		t.Errorf("%d states wait for an approval, want 1", differs)
	}
}
