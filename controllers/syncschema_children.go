package controllers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// children keeps a BackfillCheckpoint for each entry of spec.checkpoints that the database holds or will hold, and removes those whose entry
// is gone and whose work is done.
func (r *SyncSchemaReconciler) children(ctx context.Context, pass *schemaPass) (*verdict, error) {
	if !ours(pass.status.Owner, r.Cluster, pass.object) && pass.target.TakeOver != pass.status.Owner.String() {
		return nil, nil // migrate says whose it is
	}
	inDatabase := map[string]storage.CheckpointProgress{}
	for _, checkpoint := range pass.status.Checkpoints {
		inDatabase[checkpoint.Definition.Name] = checkpoint
	}
	wanted := map[string]bool{}
	for i := range pass.object.Spec.Checkpoints {
		entry := &pass.object.Spec.Checkpoints[i]
		if _, held := inDatabase[entry.Name]; !held && int64(entry.Version) <= pass.status.StoredVersion {
			continue // of a version that came before our record, or abandoned
		}
		wanted[entry.Name] = true
		if v, err := r.keepChild(ctx, pass, entry); v != nil || err != nil {
			return v, err
		}
	}
	if pass.status.StoredVersion >= pass.target.Version && !pass.migrated() {
		return nil, nil // a file that does not fit the database, as after a revert, says nothing about what is done
	}
	for i := range pass.checkpoints {
		child := &pass.checkpoints[i]
		progress, held := inDatabase[child.Spec.Name]
		if !metav1.IsControlledBy(child, pass.object) || wanted[child.Spec.Name] || held && progress.Activated < progress.Total {
			continue
		}
		if err := r.deleteChild(ctx, child); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (r *SyncSchemaReconciler) deleteChild(ctx context.Context, child *v1alpha1.BackfillCheckpoint) error {
	err := r.Client.Delete(ctx, child, client.Preconditions{UID: &child.UID}, client.PropagationPolicy(metav1.DeletePropagationBackground))
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) { // a conflict: it was replaced already
		return fmt.Errorf("delete BackfillCheckpoint %s: %w", child.Name, err)
	}
	return nil
}

// outdated says whether an object has other content than its entry, which was edited while the barrier was still to come. Nothing in an object
// but its live settings can change, so it would be ContentDrift for ever beside the checkpoint that the barrier declares. Where the database
// holds other content than the entry it is the entry that drifted, and the object stays.
func (p *schemaPass) outdated(existing *v1alpha1.BackfillCheckpoint, entry *v1alpha1.Checkpoint) bool {
	wanted := contentHash(entry)
	if contentHash(&existing.Spec.Checkpoint) == wanted {
		return false
	}
	i := slices.IndexFunc(p.status.Checkpoints, func(c storage.CheckpointProgress) bool { return c.Definition.Name == entry.Name })
	return i < 0 || p.status.Checkpoints[i].Definition.Hash == wanted
}

// renewChild deletes an object that is not as its entry says; its event brings us back, to create it anew. Where the API server would not keep what
// the entry says, that would go on for ever.
func (r *SyncSchemaReconciler) renewChild(
	ctx context.Context, pass *schemaPass, existing *v1alpha1.BackfillCheckpoint, entry *v1alpha1.Checkpoint,
) (*verdict, error) {
	try := childOf(pass.object, entry)
	try.Name, try.GenerateName = "", "try-"
	if err := r.Client.Create(ctx, try, client.DryRunAll, client.FieldOwner(FieldManager)); err != nil {
		return nil, fmt.Errorf("try BackfillCheckpoint %s: %w", existing.Name, err)
	}
	if contentHash(&try.Spec.Checkpoint) != contentHash(entry) {
		return stalled(v1alpha1.ReasonInvalidSpec, "checkpoint %q: the API server does not keep BackfillCheckpoint %s as the entry says: a policy changes it, "+
			"or the CustomResourceDefinition of BackfillCheckpoint is of another version than that of SyncSchema", entry.Name, existing.Name), nil
	}
	return nil, r.deleteChild(ctx, existing)
}

// contentHash is the hash by which the database would know a checkpoint; live settings are no part of it.
func contentHash(checkpoint *v1alpha1.Checkpoint) string {
	schema := &v1alpha1.SyncSchema{Spec: v1alpha1.SyncSchemaSpec{Checkpoints: []v1alpha1.Checkpoint{*checkpoint}}}
	return manifest.Target(schema, nil).Checkpoints[0].Hash()
}

// keepChild makes the object of an entry, or brings its live settings up to date. Nothing is written where nothing differs.
func (r *SyncSchemaReconciler) keepChild(ctx context.Context, pass *schemaPass, entry *v1alpha1.Checkpoint) (*verdict, error) {
	child := childOf(pass.object, entry)
	existing := pass.childFor(entry, child.Name)
	if existing != nil {
		if !metav1.IsControlledBy(existing, pass.object) {
			return nameTaken(child.Name), nil
		}
		if pass.outdated(existing, entry) {
			return r.renewChild(ctx, pass, existing, entry)
		}
		if manifest.Settings(&existing.Spec.Backfill) == manifest.Settings(&entry.Backfill) {
			return nil, nil
		}
	}
	if existing == nil {
		return r.createChild(ctx, pass, child)
	}
	err := r.Client.Patch(ctx, existing.DeepCopy(), client.RawPatch(types.MergePatchType, settingsPatch(existing.UID, &entry.Backfill)), client.FieldOwner(FieldManager))
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil, nil // gone or replaced: its event brings us back
	default:
		return nil, fmt.Errorf("change the settings of BackfillCheckpoint %s: %w", child.Name, err)
	}
}

// childFor finds the object of an entry, or one that has its name.
func (p *schemaPass) childFor(entry *v1alpha1.Checkpoint, name string) (found *v1alpha1.BackfillCheckpoint) {
	for i := range p.checkpoints {
		checkpoint := &p.checkpoints[i]
		if checkpoint.Spec.Name == entry.Name && metav1.IsControlledBy(checkpoint, p.object) {
			return checkpoint
		}
		if checkpoint.Name == name {
			found = checkpoint
		}
	}
	return found
}

// createChild creates rather than applies, so that an object of the same name that belongs to somebody else is never taken over. One that is
// there already may be ours: a cache does not show at once what was just made.
func (r *SyncSchemaReconciler) createChild(ctx context.Context, pass *schemaPass, child *v1alpha1.BackfillCheckpoint) (*verdict, error) {
	err := r.Client.Create(ctx, child, client.FieldOwner(FieldManager))
	if apierrors.IsAlreadyExists(err) {
		var found v1alpha1.BackfillCheckpoint
		err = r.Live.Get(ctx, client.ObjectKeyFromObject(child), &found)
		apart := hashedName(pass.object.Name, child.Spec.Name)
		switch {
		case err != nil:
		case metav1.IsControlledBy(&found, pass.object):
			pass.seeLeaving(&found)
		case childOfAnother(&found, pass.object) && child.Name != apart:
			other := child.DeepCopy() // schema "a" with checkpoint "b-c" and schema "a-b" with checkpoint "c"
			other.Name, other.ResourceVersion = apart, ""
			return r.createChild(ctx, pass, other)
		default:
			return nameTaken(child.Name), nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("create BackfillCheckpoint %s: %w", child.Name, err)
	}
	return nil, nil
}

// childOfAnother says whether a checkpoint is the child of a SyncSchema of another name.
func childOfAnother(checkpoint *v1alpha1.BackfillCheckpoint, schema *v1alpha1.SyncSchema) bool {
	owner := metav1.GetControllerOf(checkpoint)
	return owner != nil && owner.Kind == v1alpha1.KindSyncSchema && owner.Name != schema.Name
}

// seeLeaving notes a child that is being deleted and is still there: nobody looks after its work, and there can be no other of its name.
func (p *schemaPass) seeLeaving(child *v1alpha1.BackfillCheckpoint) {
	if child.DeletionTimestamp != nil {
		p.leaving = fmt.Sprintf("BackfillCheckpoint %s is being deleted and kept by its finalizers (%s); another one is made when it is gone",
			child.Name, cut(strings.Join(child.Finalizers, ", "), 256))
	}
}

// settingsPatch changes the live settings of a checkpoint and nothing else; where more was edited in an entry that was applied, the barrier's
// own check says so.
func settingsPatch(uid types.UID, backfill *v1alpha1.Backfill) []byte {
	s := manifest.Settings(backfill)
	return fmt.Appendf(nil, `{"metadata":{"uid":%q},"spec":{"backfill":{"batchRows":%d,"maxRowsPerSecond":%d,"maxReplicationLagSeconds":%d,"parallelism":%d}}}`,
		uid, s.BatchRows, s.MaxRowsPerSecond, s.MaxReplicationLagSeconds, s.Parallelism)
}

func nameTaken(name string) *verdict {
	return stalled(v1alpha1.ReasonConflict,
		"there is a BackfillCheckpoint %q that does not belong to this SyncSchema; rename or delete it", name)
}

// childOf is the BackfillCheckpoint of an entry. Labels are not copied: GitOps tools track what they own by them.
func childOf(schema *v1alpha1.SyncSchema, entry *v1alpha1.Checkpoint) *v1alpha1.BackfillCheckpoint {
	child := &v1alpha1.BackfillCheckpoint{}
	child.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindBackfillCheckpoint))
	child.Namespace, child.Name = schema.Namespace, childName(schema.Name, entry.Name)
	controls := true
	child.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.KindSyncSchema, Name: schema.Name, UID: schema.UID, Controller: &controls,
	}}
	child.Spec = v1alpha1.BackfillCheckpointSpec{SchemaRef: v1alpha1.SchemaReference{Name: schema.Name}, Checkpoint: *entry.DeepCopy()}
	return child
}

const maxObjectName = 63

var (
	notInLabels = regexp.MustCompile(`[^a-z0-9-]+`)
	dnsLabel    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
)

// childName is <schema>-<checkpoint> where that is a DNS label of at most 63 characters. Otherwise, and where the child of another schema has that
// name, what does not fit is replaced or cut, and eight hex digits of a hash keep names apart.
func childName(schema, checkpoint string) string {
	plain := schema + "-" + checkpoint
	if len(plain) <= maxObjectName && dnsLabel.MatchString(plain) {
		return plain
	}
	return hashedName(schema, checkpoint)
}

func hashedName(schema, checkpoint string) string {
	sum := sha256.Sum256([]byte(schema + "\x00" + checkpoint))
	tail := "-" + hex.EncodeToString(sum[:4])
	name := notInLabels.ReplaceAllString(strings.ToLower(schema+"-"+checkpoint), "-")
	return strings.Trim(name[:min(len(name), maxObjectName-len(tail))], "-") + tail
}

// stalledChild is the first checkpoint of the version that waits for a person, by its object.
func (p *schemaPass) stalledChild() *verdict {
	for i := range p.checkpoints {
		checkpoint := &p.checkpoints[i]
		if int64(checkpoint.Spec.Version) > p.target.Version {
			continue
		}
		open := slices.ContainsFunc(p.status.Checkpoints, func(c storage.CheckpointProgress) bool {
			return c.Definition.Name == checkpoint.Spec.Name && c.Activated < c.Total
		})
		for _, condition := range checkpoint.Status.Conditions {
			if open && condition.Type == v1alpha1.ConditionStalled && condition.Status == metav1.ConditionTrue {
				return stalled(condition.Reason, "BackfillCheckpoint %s: %s", checkpoint.Name, condition.Message)
			}
		}
	}
	return nil
}
