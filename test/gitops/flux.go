package gitops

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/ext"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	files "github.com/syncbarrier/syncbarrier/config/gitops"
)

// The two variants of the health expressions.
const (
	FluxHealth         = "flux/health.yaml"
	FluxHealthApproval = "flux/health-approval.yaml"
)

// healthCheck is one entry of healthCheckExprs of a Flux Kustomization.
type healthCheck struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	InProgress string `json:"inProgress"`
	Failed     string `json:"failed"`
	Current    string `json:"current"`
}

// FluxStatus judges an object by one variant of our health expressions as Flux does (runtime/cel of its packages, RFC-0009): the
// generation first, then the expressions in the order inProgress, failed, current. An object of a kind that the variant does not
// have is judged by kstatus.
func FluxStatus(ctx context.Context, variant string, object *unstructured.Unstructured) (status.Status, error) {
	check, err := healthCheckOf(variant, object.GetKind())
	if err != nil {
		return "", err
	}
	if check == nil {
		computed, err := status.Compute(object)
		if err != nil {
			return "", err
		}
		return computed.Status, nil
	}
	observed, found, err := unstructured.NestedInt64(object.Object, "status", "observedGeneration")
	if err != nil {
		return "", err
	}
	if found && observed != object.GetGeneration() {
		return status.InProgressStatus, nil
	}
	for _, asked := range []struct {
		expression string
		answer     status.Status
	}{{check.InProgress, status.InProgressStatus}, {check.Failed, status.FailedStatus}, {check.Current, status.CurrentStatus}} {
		holds, err := isTrue(ctx, asked.expression, object)
		if err != nil {
			return "", fmt.Errorf("%s: %w (Flux would wait for its whole timeout)", asked.expression, err)
		}
		if holds {
			return asked.answer, nil
		}
	}
	return status.InProgressStatus, nil
}

// healthCheckOf gives the expressions for a kind; nil: there are none.
func healthCheckOf(variant, kind string) (*healthCheck, error) {
	checks, err := healthChecks[variant]()
	if err != nil {
		return nil, err
	}
	for _, check := range checks {
		if check.Kind == kind {
			return &check, nil
		}
	}
	return nil, nil
}

// healthChecks reads each variant once.
var healthChecks = map[string]func() ([]healthCheck, error){
	FluxHealth:         sync.OnceValues(func() ([]healthCheck, error) { return readHealthChecks(FluxHealth) }),
	FluxHealthApproval: sync.OnceValues(func() ([]healthCheck, error) { return readHealthChecks(FluxHealthApproval) }),
}

func readHealthChecks(variant string) ([]healthCheck, error) {
	text, err := files.Files.ReadFile(variant)
	if err != nil {
		return nil, err
	}
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []healthCheck `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		return nil, fmt.Errorf("read %s: %w", variant, err)
	}
	for _, check := range kustomization.Spec.HealthCheckExprs {
		if check.APIVersion != "syncbarrier.dev/v1alpha1" || check.Current == "" {
			return nil, fmt.Errorf("%s: Flux would not take the check for %s %s", variant, check.APIVersion, check.Kind)
		}
	}
	return kustomization.Spec.HealthCheckExprs, nil
}

// environment is the one that Flux evaluates expressions in.
var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.HomogeneousAggregateLiterals(), cel.EagerlyValidateDeclarations(true), cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true), cel.OptionalTypes(), ext.Strings(), ext.Sets(), ext.Encoders(),
	)
})

// programs are the expressions met before, by their text: thousands of objects are judged in a run.
var programs sync.Map

// compile makes an expression ready as Flux does: parsed and not checked, since it knows no types of ours.
func compile(expression string) (cel.Program, error) {
	if known, ok := programs.Load(expression); ok {
		return known.(cel.Program), nil //nolint:forcetypeassert // nothing else is stored
	}
	made, err := environment()
	if err != nil {
		return nil, err
	}
	parsed, issues := made.Parse(expression)
	if issues.Err() != nil {
		return nil, issues.Err()
	}
	program, err := made.Program(parsed, cel.EvalOptions(cel.OptOptimize), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, err
	}
	programs.Store(expression, program)
	return program, nil
}

// isTrue evaluates an expression on an object.
func isTrue(ctx context.Context, expression string, object *unstructured.Unstructured) (bool, error) {
	program, err := compile(expression)
	if err != nil {
		return false, err
	}
	answer, _, err := program.ContextEval(ctx, object.Object)
	if err != nil {
		return false, err
	}
	truth, ok := answer.(types.Bool)
	if !ok {
		return false, fmt.Errorf("it gives %v, Flux wants a boolean", answer)
	}
	return bool(truth), nil
}
