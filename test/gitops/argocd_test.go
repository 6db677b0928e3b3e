package gitops

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestArgoCDShowsEveryState(t *testing.T) {
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, want verdicts) {
		health, message, err := ArgoHealth(t.Context(), object)
		must(t, err)
		if health != want.argo {
			t.Errorf("Argo CD shows %q (%s), want %s", health, message, want.argo)
		}
		if message == "" {
			t.Error("Argo CD shows no message")
		}
		must(t, Disagreement(t.Context(), object))
	})
}

// An object without a status cannot be read from an API server, where status has a default; a dry run may show one.
func TestArgoCDTakesNoObjectWithoutAStatusForHealthy(t *testing.T) {
	object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"generation": int64(1)}}}
	health, _, err := ArgoHealth(t.Context(), object)
	must(t, err)
	is(t, "the health", health, "Progressing")
}
