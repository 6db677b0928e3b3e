package controllers

import (
	"context"
	"fmt"
	"time"

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
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
)

// Annotations by which a person speaks to the operator (docs/design.md section 9).
const (
	// AnnotationApprove releases one plan: "<version>@<plan hash>".
	AnnotationApprove = v1alpha1.AnnotationApprove
	// AnnotationTakeOver names the owner to take the database schema over from: "<cluster>/<namespace>/<name>".
	AnnotationTakeOver = v1alpha1.AnnotationTakeOver
	// AnnotationRetry asks for another attempt now: a time, RFC 3339, that differs from the one before.
	AnnotationRetry = v1alpha1.AnnotationRetry
)

// +kubebuilder:rbac:groups=syncbarrier.dev,resources=syncschemas,verbs=get;list;watch
// +kubebuilder:rbac:groups=syncbarrier.dev,resources=syncschemas/status,verbs=patch
// +kubebuilder:rbac:groups=syncbarrier.dev,resources=backfillcheckpoints,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups="",resources=secrets;configmaps,verbs=get
// +kubebuilder:rbac:groups="",resources=namespaces,resourceNames=kube-system,verbs=get
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// SyncSchemaReconciler brings database schemas to their versions.
type SyncSchemaReconciler struct {
	// Client reads through the manager's cache and writes.
	Client client.Client
	// Live reads from the API server: Secrets and ConfigMaps, of which no cache is kept.
	Live      client.Reader
	Databases *Databases
	Events    events.EventRecorder // nil: none
	Clock     clock.Clock          // nil: the real one
	// Cluster is this cluster's identity as an owner (ClusterIdentity).
	Cluster string
	// Resync is how often an object at rest is looked at; 0: DefaultResync.
	Resync time.Duration
	// Image and PullPolicy are those of the worker, for the try-out of its Job before a barrier.
	Image      string
	PullPolicy corev1.PullPolicy
	// Named says that the webhook writes who made a decision, so that the name can be believed.
	Named bool
	// Jitter draws from 0 to 1; nil: at random.
	Jitter func() float64
	// Pods reads the pods that ask for the gate, Workloads says who made them; nil: nobody watches pods.
	Pods      client.Reader
	Workloads *Workloads
	// Refusals has what the API server did not let PodReconciler write; nil: nothing.
	Refusals *PodRefusals
	// Changed tells of SyncSchemas of which the gate or the pods changed; nil: nobody does.
	Changed <-chan event.GenericEvent

	attempts attempts
	advices  advices
	statuses statusWriter
	untold   untold
	troubles troubles
	gone     departures
	woken    chan event.GenericEvent // set by SetupWithManager
}

// ClusterIdentity gives what tells this cluster from others: the UID of its namespace kube-system.
func ClusterIdentity(ctx context.Context, live client.Reader) (string, error) {
	var namespace corev1.Namespace
	if err := live.Get(ctx, types.NamespacedName{Name: "kube-system"}, &namespace); err != nil {
		return "", fmt.Errorf("read the identity of this cluster: %w", err)
	}
	return string(namespace.UID), nil
}

// Reconcile makes one pass over a SyncSchema.
func (r *SyncSchemaReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	var object v1alpha1.SyncSchema
	if err := r.Client.Get(ctx, request.NamespacedName, &object); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(request.NamespacedName)
		}
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	r.gone.remember(request.NamespacedName, object.UID)
	if object.DeletionTimestamp != nil {
		return ctrl.Result{}, nil // the database keeps everything, the fence included
	}
	pass := r.begin(&object)
	defer pass.end()
	defer func() { r.advices.put(object.UID, pass.advice) }()
	defer func() { r.untold.keep(object.UID, pass.events) }() // of a pass that could not tell them
	if err := r.run(ctx, pass); err == nil {
		r.troubles.over(object.UID)
	} else if v := r.troubles.judge(object.UID, pass.now, err, pass.underway); v == nil || ctx.Err() != nil {
		return ctrl.Result{}, fmt.Errorf("SyncSchema %s: %w", request.NamespacedName, err)
	} else if pass.verdict == nil {
		pass.verdict = v
	}
	return r.publish(ctx, pass)
}

// run goes through the phases. Looking is done in any case, so that the status shows what the database says; acting only as long as
// nothing is in the way.
func (r *SyncSchemaReconciler) run(ctx context.Context, pass *schemaPass) error {
	for _, look := range []schemaPhase{r.translate, r.connect, r.observe, r.seePods} {
		if err := pass.take(look(ctx, pass)); err != nil {
			return err
		}
	}
	for _, act := range []schemaPhase{r.children, r.suspend, r.warn, r.approve, r.awaitPods, r.migrate, r.openGate} {
		if pass.verdict != nil {
			return nil
		}
		if err := pass.take(act(ctx, pass)); err != nil {
			return err
		}
	}
	return nil
}

// schemaPhase does its part of a pass. It gives a verdict where it is in the way, nil where the pass goes on, and an error that judge
// turns into a verdict.
type schemaPhase func(ctx context.Context, pass *schemaPass) (*verdict, error)

func (r *SyncSchemaReconciler) forget(name types.NamespacedName) {
	for _, uid := range r.gone.take(name) {
		r.attempts.forget(uid)
		r.advices.forget(uid)
		r.untold.take(uid)
		r.troubles.over(uid)
		r.statuses.forget(uid)
	}
	forgetSchema(name.Namespace, name.Name, v1alpha1.KindSyncSchema)
}

func (r *SyncSchemaReconciler) resync() time.Duration {
	if r.Resync > 0 {
		return r.Resync
	}
	return DefaultResync
}

// SetupWithManager has the manager call Reconcile: for SyncSchemas whose spec or annotations changed, and for changes of their checkpoints.
func (r *SyncSchemaReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	options.RateLimiter = retries(firstRetry, longestRetry)
	r.woken = make(chan event.GenericEvent, mostWoken)
	building := ctrl.NewControllerManagedBy(mgr).
		For(&v1alpha1.SyncSchema{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}, statusWiped()))).
		Watches(&v1alpha1.BackfillCheckpoint{}, handler.EnqueueRequestsFromMapFunc(schemaOfCheckpoint)).
		WatchesRawSource(source.Channel(r.woken, &handler.EnqueueRequestForObject{})).
		WithOptions(options)
	if r.Changed != nil {
		building = building.WatchesRawSource(source.Channel(r.Changed, &handler.EnqueueRequestForObject{}))
	}
	return building.Complete(r)
}

// statusWiped lets updates through that took the status away: it is rebuilt at once.
func statusWiped() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		switch object := e.ObjectNew.(type) {
		case *v1alpha1.SyncSchema:
			return len(object.Status.Conditions) == 0
		case *v1alpha1.BackfillCheckpoint:
			return len(object.Status.Conditions) == 0
		}
		return false
	}}
}

func schemaOfCheckpoint(_ context.Context, object client.Object) []reconcile.Request {
	checkpoint, ok := object.(*v1alpha1.BackfillCheckpoint)
	if !ok {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: checkpoint.Namespace, Name: checkpoint.Spec.SchemaRef.Name}}}
}
