package gitops

import (
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

// healthCheck is one entry of healthCheckExprs of a Flux Kustomization.
type healthCheck struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	InProgress string `json:"inProgress"`
	Failed     string `json:"failed"`
	Current    string `json:"current"`
}

func TestFluxJudgesEveryStateAsKstatusDoes(t *testing.T) {
	checks := healthChecks(t, "../../config/gitops/flux/health.yaml")
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, want verdicts) {
		// Flux has no word of its own for an object that is being deleted.
		wanted := want.kstatus
		if wanted == status.TerminatingStatus {
			wanted = status.InProgressStatus
		}
		if got := judge(t, checks[object.GetKind()], object); got != wanted {
			t.Errorf("Flux says %s, want %s", got, wanted)
		}
	})
}

func TestTheVariantForApprovalsDiffersForApprovalsAlone(t *testing.T) {
	checks := healthChecks(t, "../../config/gitops/flux/health-approval.yaml")
	plain := healthChecks(t, "../../config/gitops/flux/health.yaml")
	differs := 0
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, want verdicts) {
		if object.GetKind() != "SyncSchema" {
			return // the variant leaves BackfillCheckpoints to Flux itself
		}
		got := judge(t, checks["SyncSchema"], object)
		if want.approval != "" {
			differs++
			if got != want.approval {
				t.Errorf("Flux says %s, want %s", got, want.approval)
			}
		} else if usual := judge(t, plain["SyncSchema"], object); got != usual {
			t.Errorf("Flux says %s, without the variant %s", got, usual)
		}
	})
	if differs != 1 {
		t.Errorf("%d states wait for an approval, want 1", differs)
	}
}

// healthChecks reads the expressions of a Flux Kustomization, by kind.
func healthChecks(t *testing.T, path string) map[string]healthCheck {
	t.Helper()
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []healthCheck `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(documents(t, path)[0].Object, &kustomization, false); err != nil {
		t.Fatal(err)
	}
	found := map[string]healthCheck{}
	for _, check := range kustomization.Spec.HealthCheckExprs {
		if check.APIVersion != "syncbarrier.dev/v1alpha1" || check.Current == "" {
			t.Errorf("%s: Flux would not take %+v", path, check)
		}
		found[check.Kind] = check
	}
	return found
}

// judge does what Flux does (runtime/cel of its packages, RFC-0009): the generation first, then the expressions in this order.
func judge(t *testing.T, check healthCheck, object *unstructured.Unstructured) status.Status {
	t.Helper()
	observed, found, err := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	if err != nil {
		t.Fatal(err)
	}
	if found && observed != object.GetGeneration() {
		return status.InProgressStatus
	}
	for _, asked := range []struct {
		expression string
		answer     status.Status
	}{{check.InProgress, status.InProgressStatus}, {check.Failed, status.FailedStatus}, {check.Current, status.CurrentStatus}} {
		if isTrue(t, asked.expression, object) {
			return asked.answer
		}
	}
	return status.InProgressStatus
}

// isTrue evaluates an expression in the environment that Flux gives it: parsed and not checked, since it knows no types of ours.
func isTrue(t *testing.T, expression string, object *unstructured.Unstructured) bool {
	t.Helper()
	environment, err := cel.NewEnv(
		cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true), cel.OptionalTypes(), ext.Strings(), ext.Sets(), ext.Encoders(),
	)
	if err != nil {
		t.Fatal(err)
	}
	parsed, issues := environment.Parse(expression)
	if issues.Err() != nil {
		t.Fatalf("%s: %v", expression, issues.Err())
	}
	program, err := environment.Program(parsed, cel.EvalOptions(cel.OptOptimize), cel.InterruptCheckFrequency(100))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	answer, _, err := program.ContextEval(t.Context(), object.Object)
	if err != nil {
		t.Fatalf("%s: %v (Flux would wait for its whole timeout)", expression, err)
	}
	truth, ok := answer.(types.Bool)
	if !ok {
		t.Fatalf("%s gives %v, Flux wants a boolean", expression, answer)
	}
	return bool(truth)
}
