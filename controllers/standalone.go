package controllers

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
)

// selectCheckpoints picks those of a schema that are not being deleted, by age and name.
func selectCheckpoints(all []v1alpha1.BackfillCheckpoint, schema string) []v1alpha1.BackfillCheckpoint {
	of := slices.DeleteFunc(slices.Clone(all), func(c v1alpha1.BackfillCheckpoint) bool {
		return c.Spec.SchemaRef.Name != schema || c.DeletionTimestamp != nil
	})
	slices.SortFunc(of, func(a, b v1alpha1.BackfillCheckpoint) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return of
}

// standalone says whether a user wrote the checkpoint. Only the owner reference tells: names are anybody's.
func standalone(checkpoint *v1alpha1.BackfillCheckpoint) bool {
	owner := metav1.GetControllerOf(checkpoint)
	return owner == nil || owner.Kind != v1alpha1.KindSyncSchema
}

// acceptStandalone sorts standalone checkpoints into those that can belong to the schema and those that cannot, with the verdict on each of the
// latter. One that is wrong is its own object's trouble and never holds the schema up: it is left out of the schema's barrier.
// A checkpoint above the schema's version is neither: it waits, for tables and columns that only that version has.
func acceptStandalone(spec *v1alpha1.SyncSchemaSpec, all []v1alpha1.BackfillCheckpoint) (accepted []v1alpha1.BackfillCheckpoint, refused map[types.UID]*verdict) {
	refused = map[types.UID]*verdict{}
	taken := map[string]string{}
	for i := range spec.Checkpoints {
		taken[spec.Checkpoints[i].Name] = "spec.checkpoints of the SyncSchema"
	}
	for i := range all {
		checkpoint := &all[i]
		if !standalone(checkpoint) {
			continue
		}
		if by, used := taken[checkpoint.Spec.Name]; used {
			refused[checkpoint.UID] = stalled(v1alpha1.ReasonConflict, "the checkpoint name %q belongs to %s", checkpoint.Spec.Name, by)
			continue
		}
		if checkpoint.Spec.Version > spec.Version {
			taken[checkpoint.Spec.Name] = "BackfillCheckpoint " + checkpoint.Name
			continue
		}
		errs := manifest.Relations(spec, append(slices.Clone(accepted), *checkpoint)...)
		if len(errs) > 0 && len(manifest.Relations(spec, accepted...)) == 0 {
			refused[checkpoint.UID] = stalled(v1alpha1.ReasonInvalidSpec, "%s", listErrors(errs))
			continue
		}
		taken[checkpoint.Spec.Name] = "BackfillCheckpoint " + checkpoint.Name
		accepted = append(accepted, *checkpoint)
	}
	return accepted, refused
}
