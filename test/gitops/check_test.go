package gitops

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

func typed(t *testing.T, object *unstructured.Unstructured) client.Object {
	t.Helper()
	var into client.Object = &v1alpha1.SyncSchema{}
	if object.GetKind() == v1alpha1.KindBackfillCheckpoint {
		into = &v1alpha1.BackfillCheckpoint{}
	}
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into))
	return into
}

func TestEveryStateIsSound(t *testing.T) {
	everyState(t, func(t *testing.T, object *unstructured.Unstructured, _ verdicts) {
		must(t, Check(t.Context(), typed(t, object)))
	})
}

func TestWhatIsWrongWithAStatusIsFound(t *testing.T) {
	condition := func(name string) func(*v1alpha1.SyncSchema) *metav1.Condition {
		return func(s *v1alpha1.SyncSchema) *metav1.Condition {
			for i := range s.Status.Conditions {
				if s.Status.Conditions[i].Type == name {
					return &s.Status.Conditions[i]
				}
			}
			t.Fatalf("%s has no condition %s", s.Name, name)
			return nil
		}
	}
	ready, stalled := condition("Ready"), condition("Stalled")
	cases := []struct {
		name, state, want string
		wrong             func(*v1alpha1.SyncSchema)
	}{
		{"no Ready", "applied", "there is no condition Ready", func(s *v1alpha1.SyncSchema) { ready(s).Type = "Other" }},
		{"a condition of an older generation", "applied", "Ready is of generation 0", func(s *v1alpha1.SyncSchema) { ready(s).ObservedGeneration = 0 }},
		{"a condition without its time", "applied", "Ready has no time", func(s *v1alpha1.SyncSchema) { ready(s).LastTransitionTime = metav1.Time{} }},
		{"a reason that belongs elsewhere", "applied", "the reason Backfilling does not go with Current", func(s *v1alpha1.SyncSchema) {
			ready(s).Reason = "Backfilling"
		}},
		{"not Ready and nothing else", "applied", "Ready is False", func(s *v1alpha1.SyncSchema) { ready(s).Status = metav1.ConditionFalse }},
		{"Ready and Stalled", "stalled", "Ready is True", func(s *v1alpha1.SyncSchema) { ready(s).Status = metav1.ConditionTrue }},
		{"Stalled that is false", "stalled", "Stalled is there only while true", func(s *v1alpha1.SyncSchema) { stalled(s).Status = metav1.ConditionFalse }},
		{"Stalled with a reason of its own", "stalled", "with the reason of Ready", func(s *v1alpha1.SyncSchema) { stalled(s).Reason = "Conflict" }},
		{"Stalled and Reconciling", "stalled", "exclude each other", func(s *v1alpha1.SyncSchema) {
			also := *stalled(s)
			also.Type = "Reconciling"
			s.Status.Conditions = append(s.Status.Conditions, also)
		}},
		{"a status that tools take for done before anybody looked", "applied", "kstatus says Current", func(s *v1alpha1.SyncSchema) {
			s.Status.ObservedGeneration = 0
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, object := range objects(t) {
				schema, ok := typed(t, object).(*v1alpha1.SyncSchema)
				if !ok || schema.Name != c.state {
					continue
				}
				c.wrong(schema)
				if err := Check(t.Context(), schema); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("it says %v, want %q", err, c.want)
				}
			}
		})
	}
}
