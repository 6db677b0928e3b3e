package controllers

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
)

// +kubebuilder:rbac:groups=syncbarrier.dev,resources=backfillcheckpoints/status,verbs=patch

// BackfillCheckpointReconciler brings checkpoints to their activation: it declares those that users wrote, claims them, and makes the Jobs
// that do the work. Whether the work is done it reads from the database, never from a Job.
type BackfillCheckpointReconciler struct {
	// Client reads through the manager's cache and writes.
	Client client.Client
	// Live reads from the API server: Secrets, pods, and the Jobs of a checkpoint before another one is made.
	Live      client.Reader
	Databases *Databases
	Events    events.EventRecorder // nil: none
	Clock     clock.Clock          // nil: the real one
	// Cluster is this cluster's identity as an owner (ClusterIdentity).
	Cluster string
	// Resync is how often an object at rest is looked at; 0: DefaultResync.
	Resync time.Duration
	// Image and PullPolicy are those of the worker: the operator's own.
	Image      string
	PullPolicy corev1.PullPolicy
	// Jitter draws from 0 to 1; nil: at random.
	Jitter func() float64

	statuses statusWriter
	untold   untold
	troubles troubles
	gone     departures
	claims   claims
	rates    rates
	stills   standstills
	paces    paces
}

// Reconcile makes one pass over a BackfillCheckpoint.
func (r *BackfillCheckpointReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var object v1alpha1.BackfillCheckpoint
	if err := r.Client.Get(ctx, request.NamespacedName, &object); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(ctx, request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.gone.remember(request.NamespacedName, object.UID)
	if object.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // its Jobs go with it; the database keeps what it has
	}
	pass := r.begin(&object)
	defer pass.end()
	defer func() { r.untold.keep(object.UID, pass.events) }() // of a pass that could not tell them
	if err := r.run(ctx, pass); err == nil {
		r.troubles.over(object.UID)
	} else if v := r.troubles.judge(object.UID, pass.now, err, pass.underway); v == nil || ctx.Err() != nil {
		return ctrl.Result{}, fmt.Errorf("BackfillCheckpoint %s: %w", request.NamespacedName, err)
	} else {
		pass.verdict = v
	}
	return r.publish(ctx, pass)
}

// run goes through the phases until one is in the way.
func (r *BackfillCheckpointReconciler) run(ctx context.Context, pass *checkpointPass) error {
	for _, phase := range []checkpointPhase{
		r.findSchema, r.leave, r.connect, r.observe, r.refuse, r.declare, r.compare, r.finish, r.settings, r.suspend, r.work,
	} {
		if err := pass.take(phase(ctx, pass)); err != nil {
			return err
		}
		if pass.verdict != nil {
			return nil
		}
	}
	return nil
}

// checkpointPhase does its part of a pass, as a schemaPhase does.
type checkpointPhase func(ctx context.Context, pass *checkpointPass) (*verdict, error)

func (r *BackfillCheckpointReconciler) resync() time.Duration {
	if r.Resync > 0 {
		return r.Resync
	}
	return DefaultResync
}

// SetupWithManager has the manager call Reconcile: for changes of a checkpoint's spec or annotations, of its Jobs, and of its schema.
func (r *BackfillCheckpointReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	options.RateLimiter = retries(firstRetry, longestRetry)
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.BackfillCheckpoint{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, statusWiped()))).
		Owns(&batchv1.Job{}).
		Watches(&v1alpha1.SyncSchema{}, handler.EnqueueRequestsFromMapFunc(r.checkpointsOfSchema), builder.WithPredicates(schemaMoved())).
		WithOptions(options).
		Complete(r)
}

// schemaMoved lets those updates of a SyncSchema through that concern its checkpoints: another spec or annotation, another stored version, another
// reason to wait for a person, which those that wait for a barrier repeat, or a gate that has opened or closed. The gate opens by the last activation, which the schema may see first: without that its checkpoint would say for
// seconds that rows are being gone over, beside a SyncSchema that is Ready.
func schemaMoved() predicate.Predicate {
	return predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, predicate.Funcs{
		UpdateFunc: func(e event.UpdateEvent) bool {
			before, ok := e.ObjectOld.(*v1alpha1.SyncSchema)
			after, also := e.ObjectNew.(*v1alpha1.SyncSchema)
			if !ok || !also {
				return true
			}
			was, is := &before.Status, &after.Status
			if was.StoredVersion == nil || is.StoredVersion == nil || was.GateOpen == nil || is.GateOpen == nil {
				return true
			}
			return *was.StoredVersion != *is.StoredVersion || *was.GateOpen != *is.GateOpen || stalledReason(before) != stalledReason(after)
		},
	})
}

func (r *BackfillCheckpointReconciler) checkpointsOfSchema(ctx context.Context, object client.Object) []reconcile.Request {
	of, err := checkpointsOf(ctx, r.Client, object.GetNamespace(), object.GetName())
	if err != nil {
		return nil // a cache that is not there yet: its first listing brings each checkpoint anyway
	}
	var requests []reconcile.Request
	for i := range of {
		requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Namespace: of[i].Namespace, Name: of[i].Name}})
	}
	return requests
}
