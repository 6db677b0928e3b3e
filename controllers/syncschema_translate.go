package controllers

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// translate makes the engine's input from the object, its standalone checkpoints, and the SQL in ConfigMaps.
func (r *SyncSchemaReconciler) translate(ctx context.Context, pass *schemaPass) (*verdict, error) {
	all, err := checkpointsOf(ctx, r.Client, pass.object.Namespace, pass.object.Name)
	if err != nil {
		return nil, err
	}
	pass.checkpoints = all
	spec := &pass.object.Spec
	errs := manifest.Relations(spec)
	if err := cutoverUnavailable(spec); err != nil && r.Pods == nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return stalled(v1alpha1.ReasonInvalidSpec, "%s", listErrors(errs)), nil
	}
	sqlFrom, err := readMigrations(ctx, newResolver(r.Live, pass.object.Namespace), spec)
	if err != nil {
		return nil, err
	}
	accepted, _ := acceptStandalone(spec, all)
	target := manifest.Target(pass.object, sqlFrom, accepted...)
	target.Owner.Cluster = r.Cluster
	target.TakeOver = pass.object.Annotations[AnnotationTakeOver]
	pass.target = &target
	return nil, nil
}

// cutoverUnavailable refuses what an operator that watches no pods cannot do: to know that pods wait.
func cutoverUnavailable(spec *v1alpha1.SyncSchemaSpec) *field.Error {
	if spec.EffectiveStrategy().Cutover != v1alpha1.CutoverWhenPodsWait {
		return nil
	}
	return field.Invalid(field.NewPath("spec", "strategy", "cutover"), v1alpha1.CutoverWhenPodsWait,
		"cutover WhenPodsWait is not available in an operator that watches no pods; Automatic and OnApproval are")
}

// readMigrations gives the SQL of the migrations that take it from ConfigMaps, by version. The parts are joined line by line.
func readMigrations(ctx context.Context, from *resolver, spec *v1alpha1.SyncSchemaSpec) (map[int32]string, error) {
	sql := map[int32]string{}
	for i := range spec.Migrations {
		migration := &spec.Migrations[i]
		var parts []string
		for _, part := range migration.SQLFrom {
			text, err := from.configValue(ctx, part.ConfigMapKeyRef)
			if err != nil {
				return nil, fmt.Errorf("SQL of version %d: %w", migration.Version, err)
			}
			parts = append(parts, text)
		}
		if len(parts) > 0 {
			sql[migration.Version] = strings.Join(parts, "\n")
		}
	}
	return sql, nil
}

// checkpointsOf lists the BackfillCheckpoints of a schema, by age and name.
func checkpointsOf(ctx context.Context, c client.Reader, namespace, schema string) ([]v1alpha1.BackfillCheckpoint, error) {
	var list v1alpha1.BackfillCheckpointList
	if err := c.List(ctx, &list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list the checkpoints of SyncSchema %s: %w", schema, err)
	}
	return selectCheckpoints(list.Items, schema), nil
}

const maxListedErrors = 20

func listErrors(errs field.ErrorList) string {
	var parts []string
	for _, err := range errs[:min(len(errs), maxListedErrors)] {
		if value, ok := err.BadValue.(string); ok && len(value) > 80 {
			bounded := *err
			bounded.BadValue = cut(value, 80)
			err = &bounded
		}
		parts = append(parts, legible.Line(err.Error())) // a path holds names of columns
	}
	text := strings.Join(parts, "; ")
	if more := len(errs) - maxListedErrors; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// connect opens the database.
func (r *SyncSchemaReconciler) connect(ctx context.Context, pass *schemaPass) (*verdict, error) {
	connection, err := newResolver(r.Live, pass.object.Namespace).connection(ctx, pass.object.Spec.Database.Postgres)
	if err == nil {
		pass.lease, err = r.Databases.Acquire(ctx, connection)
	}
	if v := refusedAddress(err); v != nil {
		return v, nil
	}
	return nil, err
}

// observe reads what the database says.
func (r *SyncSchemaReconciler) observe(ctx context.Context, pass *schemaPass) (*verdict, error) {
	if pass.lease == nil {
		return nil, nil
	}
	status, err := pass.lease.Store.Status(ctx)
	if err != nil {
		return nil, err
	}
	gate, err := pass.lease.Store.ReadServeGate(ctx, int64(pass.object.Spec.Version))
	if err != nil {
		return nil, err
	}
	pass.status, pass.gate = &status, &gate
	return nil, r.checkFence(ctx, pass)
}

// checkFence looks at fence and guards in full once in every resync, and in each pass while something is wrong with them. The barrier's
// own, smaller check is part of every pass.
func (r *SyncSchemaReconciler) checkFence(ctx context.Context, pass *schemaPass) error {
	if pass.status.Protocol == 0 || !ours(pass.status.Owner, r.Cluster, pass.object) {
		return nil
	}
	state := pass.attempt
	whole := state.fence != nil && state.fence.Intact()
	if !whole || pass.now.Sub(state.fenceAt) >= r.resync()*4/5 {
		report, err := pass.lease.Store.CheckFence(ctx)
		if err != nil {
			return err
		}
		state.fence, state.fenceAt = &report, pass.now
		pass.attempt = state
		r.attempts.put(pass.object.UID, state)
	}
	if text := state.fence.Summary(); text != "" {
		pass.fenceBroken = text + " (" + storage.HintFence + ")"
	}
	return nil
}

// ours says whether a database schema belongs to an object, or may be taken over by it without a word: from a command line.
func ours(owner *storage.Owner, cluster string, object *v1alpha1.SyncSchema) bool {
	return storage.Owner{Cluster: cluster, Namespace: object.Namespace, Name: object.Name}.Has(owner)
}

// foreignOwner names the recorded owner of a database schema where that is another SyncSchema's, and nobody asked to take it over; empty: it is the
// object's own, or nobody's. What such a database holds is another's doing and says nothing about this object.
func foreignOwner(owner *storage.Owner, cluster string, object *v1alpha1.SyncSchema) string {
	if ours(owner, cluster, object) || object.Annotations[AnnotationTakeOver] == owner.String() {
		return ""
	}
	return owner.String()
}
