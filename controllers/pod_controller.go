package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// +kubebuilder:rbac:groups="",resources=pods,verbs=list;watch
// +kubebuilder:rbac:groups="",resources=pods/status,verbs=patch

// PodReconciler keeps the condition syncbarrier.dev/serve-gate of every pod that asks for it (docs/design.md section 8). One pass is over all
// pods that require one SyncSchema, so that a hundred pods cost one read of its database. It writes that condition and, with StartGates,
// takes the start gate away, and nothing else.
type PodReconciler struct {
	// Client reads SyncSchemas through the manager's cache, and patches pods.
	Client client.Client
	// Pods reads the pods that have the label: a cache of StripPod.
	Pods client.Reader
	// Live reads from the API server pods that carry the gate and have lost the label; nil: they are not looked after.
	Live client.Reader
	// Namespaces are those that the manager looks after; empty: all.
	Namespaces []string
	// Workloads says who made a pod.
	Workloads *Workloads
	Gates     *Gates
	Events    events.EventRecorder // nil: none
	Clock     clock.Clock          // nil: the real one
	// Cluster is this cluster's identity as an owner (ClusterIdentity).
	Cluster string
	// Changed is told of SyncSchemas of which the gate or the pods changed; nil: nobody is.
	Changed chan<- event.GenericEvent
	// Jitter draws from 0 to 1; nil: at random.
	Jitter func() float64
	// Refusals keeps what the API server does not let us write; nil: of its own.
	Refusals *PodRefusals
	// StartGates says that pods with the start gate are let go once their database is migrated, with the rights of config/start-gate.
	StartGates bool

	once    sync.Once
	strays  podStrays
	written podWrites
	mu      sync.Mutex
	told    map[types.NamespacedName]string
}

// podPass is what one pass over the pods of a SyncSchema has learned.
type podPass struct {
	name types.NamespacedName // of the SyncSchema; without a name: pods that require nothing that can be judged
	now  time.Time
	pods []judgedPod
	all  []corev1.Pod // of the namespace
	// unread is why a pod that lost the label could not be looked at; the others do not wait for it.
	unread error
	// facts are those of every SyncSchema that one of the pods requires, percent how many pods of the stored version withdraw older ones.
	facts   map[string]podgate.Facts
	percent map[string]int32
	// wanted is spec.version of the SyncSchema of the pass, 0 without one.
	wanted int64
	// underway says that the SyncSchema of the pass is not at rest.
	underway bool
	ends     time.Time // of the first bypass to end
	// refused is what the API server does not let us write, in words, retry when the first of it is tried again; zero: there is none.
	refused []string
	retry   time.Time
}

// judgedPod is a pod with the newest condition known of it and what it is to be.
type judgedPod struct {
	pod       *corev1.Pod
	condition *corev1.PodCondition // nil: it has none yet
	written   string               // the version that our last write had led to by then
	verdict   podgate.Verdict
}

// Reconcile makes one pass over the pods that require a SyncSchema.
func (r *PodReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	r.once.Do(func() {
		if r.Refusals == nil {
			r.Refusals = &PodRefusals{}
		}
	})
	pass := &podPass{name: request.NamespacedName, now: clock.Or(r.Clock).Now()}
	if err := r.find(ctx, pass); err != nil {
		return ctrl.Result{}, err
	}
	if err := r.learn(ctx, pass); err != nil {
		return ctrl.Result{}, err
	}
	r.judge(ctx, pass)
	err := errors.Join(pass.unread, r.writeAll(ctx, pass), r.startAll(ctx, pass))
	pass.refused, pass.retry = r.Refusals.shown(pass.name), r.Refusals.keep(pass.name, pass.pods)
	r.show(pass)
	r.tell(pass)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("pods of SyncSchema %s: %w", request.NamespacedName, err)
	}
	return ctrl.Result{RequeueAfter: r.lookAgain(pass)}, nil
}

// find lists the pods of the pass: those with the label, and those that carry the gate and had it. Pods of Jobs are never gated.
func (r *PodReconciler) find(ctx context.Context, pass *podPass) error {
	pods, err := listPods(ctx, r.Pods, pass.name.Namespace)
	if err != nil {
		return err
	}
	var strays []corev1.Pod
	strays, pass.unread = r.strays.current(ctx, r.Live, pass.name.Namespace, pass.now)
	pass.all = slices.DeleteFunc(append(pods, strays...), func(pod corev1.Pod) bool { return ofJob(&pod) })
	for i := range pass.all {
		pod := &pass.all[i]
		if slices.Contains(schemasOfPod(pod), pass.name) {
			written := r.written.since(pod.UID)
			pass.pods = append(pass.pods, judgedPod{pod: pod, condition: r.written.current(pod), written: written})
		}
	}
	return nil
}

// learn reads the gates of all SyncSchemas that the pods require, and of the one of the pass.
func (r *PodReconciler) learn(ctx context.Context, pass *podPass) error {
	names := map[string]bool{}
	if pass.name.Name != "" {
		names[pass.name.Name] = true
	}
	for _, judged := range pass.pods {
		for _, name := range schemasOfPod(judged.pod) {
			if name.Name != "" {
				names[name.Name] = true
			}
		}
	}
	pass.facts, pass.percent = map[string]podgate.Facts{}, map[string]int32{}
	var reads sync.WaitGroup
	var mu sync.Mutex
	for name := range names {
		var object v1alpha1.SyncSchema
		err := r.Client.Get(ctx, types.NamespacedName{Namespace: pass.name.Namespace, Name: name}, &object)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			reads.Wait()
			return fmt.Errorf("read SyncSchema %s/%s: %w", pass.name.Namespace, name, err)
		}
		facts := factsOf(&object, pass.now)
		pass.percent[name] = object.Spec.EffectiveGate().WithdrawAtPercent
		if facts.Bypass != nil && (pass.ends.IsZero() || facts.Bypass.Until.Before(pass.ends)) {
			pass.ends = facts.Bypass.Until
		}
		if name == pass.name.Name {
			pass.wanted, pass.underway = int64(object.Spec.Version), underway(&object)
			if len(pass.pods) == 0 && !pass.underway {
				facts.Problem = "nobody asks for it"
				mu.Lock()
				pass.facts[name] = facts
				mu.Unlock()
				continue
			}
		}
		reads.Go(func() {
			known := afterRead(facts, r.Gates.Read(ctx, &object, hotGate*4/5), r.Cluster, &object)
			mu.Lock()
			defer mu.Unlock()
			pass.facts[name] = known
		})
	}
	reads.Wait()
	return nil
}

// underway says whether a SyncSchema is not at rest. It paces reads and decides nothing: of a thousand SyncSchemas that nobody asks for, no
// database is read.
func underway(object *v1alpha1.SyncSchema) bool {
	return object.Status.ObservedGeneration != object.Generation || meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionReconciling)
}

// factsOf gives what an object says of its gate, before the database is read.
func factsOf(object *v1alpha1.SyncSchema, now time.Time) podgate.Facts {
	gate := object.Spec.EffectiveGate()
	facts := podgate.Facts{Found: true, Mode: gate.Mode, Older: gate.OlderPods}
	// One that cannot be read opens nothing; the SyncSchema's own pass says so.
	facts.Bypass, _ = bypassOf(object, now)
	return facts
}

// afterRead adds what a read of the object's database gave.
func afterRead(facts podgate.Facts, read GateRead, cluster string, object *v1alpha1.SyncSchema) podgate.Facts {
	facts.Gate, facts.Problem = read.Gate, read.Problem
	if read.Gate != nil {
		facts.Foreign = foreignOwner(read.Gate.Owner, cluster, object)
	}
	return facts
}

// judge decides what the condition of each pod is to be.
func (r *PodReconciler) judge(ctx context.Context, pass *podPass) {
	of := func(schema string) podgate.Facts { return pass.facts[schema] }
	superseded := r.superseded(ctx, pass)
	for i := range pass.pods {
		judged := &pass.pods[i]
		facts := gateFacts(judged.pod, judged.condition)
		facts.Superseded = superseded[judged.pod.UID]
		judged.verdict = podgate.Judge(facts, of)
	}
}

// lookAgain says when: soon while something waits for the database, rarely while pods serve, and not at all without pods.
func (r *PodReconciler) lookAgain(pass *podPass) time.Duration {
	var after time.Duration
	if len(pass.pods) > 0 {
		after = coldGate - time.Duration(draw(r.Jitter)*float64(coldGate)/5)
	}
	switch {
	case pass.waits():
		after = hotGate
	case pass.underway && len(pass.pods) == 0:
		after = watchEvery // its barrier, or its checkpoints, may come
	}
	sooner := func(at time.Time, least time.Duration) {
		if left := max(at.Sub(pass.now), least); !at.IsZero() && (after == 0 || left < after) {
			after = left
		}
	}
	sooner(pass.ends, time.Millisecond) // it is over then, and no time of the next pass
	sooner(pass.retry, hotGate)         // whatever is due and not done: no pass is in a hurry for it
	return after
}

// waits says whether a pod waits for what the database of the pass will show, or a checkpoint is open. One that waits for another SyncSchema is
// looked after by that one's passes.
func (p *podPass) waits() bool {
	for _, judged := range p.pods {
		switch judged.verdict.ReasonBy(p.name.Name) {
		case v1alpha1.ReasonMigrationPending, v1alpha1.ReasonBackfilling, v1alpha1.ReasonCheckpointMissing, v1alpha1.ReasonUnreachable,
			v1alpha1.ReasonStandby, v1alpha1.ReasonConflict:
			return true
		}
	}
	facts := p.facts[p.name.Name]
	return facts.Gate != nil && facts.Foreign == "" && facts.Gate.PendingTotal > 0
}

// tell has the SyncSchema looked at whose gate or pods are not as they were: when the last of them goes, too.
func (r *PodReconciler) tell(pass *podPass) {
	if r.Changed == nil {
		return
	}
	state := ""
	if len(pass.pods) > 0 || pass.underway {
		state = pass.summary()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if pass.wanted == 0 { // there is nobody to tell, and whoever gets the name later is told anew
		delete(r.told, pass.name)
		return
	}
	if r.told[pass.name] == state {
		return
	}
	object := &v1alpha1.SyncSchema{}
	object.Namespace, object.Name = pass.name.Namespace, pass.name.Name
	select {
	case r.Changed <- event.GenericEvent{Object: object}:
		if r.told == nil {
			r.told = map[types.NamespacedName]string{}
		}
		r.told[pass.name] = state
		if state == "" {
			delete(r.told, pass.name)
		}
	default: // the next pass tells it
	}
}

// summary is what of a pass shows in the status of its SyncSchema.
func (p *podPass) summary() string {
	gate := "unreachable"
	if read := p.facts[p.name.Name].Gate; read != nil {
		verdict := read.For(p.wanted).Verdict()
		gate = string(verdict.Reason) + "/" + decimal(read.StoredVersion) + "/" + decimal(read.PendingTotal) +
			"/" + p.facts[p.name.Name].Foreign
	}
	counts := map[string]int{}
	for _, judged := range p.pods {
		key := fmt.Sprint(requiredVersion(judged.pod, p.name.Name), carriesGate(judged.pod),
			isTrue(podCondition(judged.pod, corev1.PodReady)), isTrue(podCondition(judged.pod, corev1.ContainersReady)), judged.verdict.Open)
		counts[key]++
	}
	return gate + fmt.Sprint(p.refused, counts) // maps are printed in the order of their keys
}

// longestPodRetry bounds the pause after passes that failed: pods wait for them.
const longestPodRetry = 10 * time.Second

// SetupWithManager has the manager call Reconcile for the SyncSchemas that pods require.
func (r *PodReconciler) SetupWithManager(mgr ctrl.Manager, options controller.Options) error {
	options.RateLimiter = retries(hotGate, longestPodRetry)
	found := make(chan event.GenericEvent)
	look := manager.RunnableFunc(func(ctx context.Context) error { return r.findStrays(ctx, found) })
	return errors.Join(mgr.Add(look), ctrl.NewControllerManagedBy(mgr).
		Named("pods").
		Watches(&v1alpha1.SyncSchema{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(
			predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(schemasOfObject), builder.WithPredicates(r.departures())).
		WatchesRawSource(source.Channel(found, handler.EnqueueRequestsFromMapFunc(schemasOfObject))).
		WithOptions(options).
		Complete(r))
}

func schemasOfObject(_ context.Context, object client.Object) []reconcile.Request {
	pod, ok := object.(*corev1.Pod)
	if !ok || ofJob(pod) {
		return nil
	}
	var requests []reconcile.Request
	for _, name := range schemasOfPod(pod) {
		requests = append(requests, reconcile.Request{NamespacedName: name})
	}
	return requests
}
