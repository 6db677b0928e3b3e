package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// advices remembers, by object, what was said before a barrier and what is counted between passes. It only decides what is said again; losing
// it costs a repeated event.
type advices struct {
	mu sync.Mutex
	of map[types.UID]advice
}

type advice struct {
	version      int32                       // spec.version that it is about
	planned      int64                       // generation for which the writers were looked at; 0: for none
	unversioned  []storage.UnversionedWriter // by that look
	expected     time.Duration               // how long new pods wait, by the last plan
	warned       map[types.UID]bool          // workloads that were warned of
	lateWarned   map[types.UID]bool          // workloads whose deadline was
	waitingSince time.Time                   // for pods; zero: not
	waitedLong   bool                        // said so
	bypassTold   bool                        // that the annotation opens nothing
	refusedKnown bool
	refused      int64 // by the last read
	refusedNew   int64 // since the operator looks
	refusedAt    time.Time
	mislabelled  []string  // pods that require the SyncSchema, with another label than asks for the gate
	labelsAt     time.Time // when they were looked for last; zero: not for this version
}

// refusalsShown is how long a refused write is shown after the last one.
const refusalsShown = 10 * time.Minute

func (a *advices) get(uid types.UID, version int32) advice {
	a.mu.Lock()
	defer a.mu.Unlock()
	known := a.of[uid]
	if known.version != version || known.warned == nil {
		known = advice{
			version: version, warned: map[types.UID]bool{}, lateWarned: map[types.UID]bool{},
			refusedKnown: known.refusedKnown, refused: known.refused, refusedNew: known.refusedNew, refusedAt: known.refusedAt,
		}
	}
	return known
}

func (a *advices) put(uid types.UID, given advice) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[types.UID]advice{}
	}
	a.of[uid] = given
}

func (a *advices) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, uid)
}

// countRefused notes how many writes the fence refused since the last look.
func (a advice) countRefused(refused int64, now time.Time) advice {
	if a.refusedKnown && refused > a.refused {
		a.refusedNew += refused - a.refused
		a.refusedAt = now
	}
	a.refused, a.refusedKnown = refused, true
	return a
}

// unversionedWriters says who writes without a version, as far as it is known; empty: nobody. The fence counts what it refuses and not why: the
// transaction is rolled back with all that it could have said, but for a sequence.
func (a advice) unversionedWriters(now time.Time) string {
	var parts []string
	for _, writer := range a.unversioned[:min(len(a.unversioned), maxNamedPods)] {
		parts = append(parts, fmt.Sprintf("%d sessions of user %s, application %q, write to %s without a version",
			writer.Sessions, writer.User, cut(writer.Application, 63), writer.Table))
	}
	if more := len(a.unversioned) - maxNamedPods; more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	if a.refusedNew > 0 && now.Sub(a.refusedAt) < refusalsShown {
		parts = append(parts, fmt.Sprintf(
			"the fence refused %d writes of programs without a version, or with one that is too low (their own errors say which), the last within the last %d minutes",
			a.refusedNew, int(refusalsShown.Minutes())))
	}
	return strings.Join(parts, "; ")
}

// warn tells, once for each version, before its barrier and before its plan is approved, what will be lost while new pods wait: on the
// SyncSchema and on the workload.
func (r *SyncSchemaReconciler) warn(_ context.Context, pass *schemaPass) (*verdict, error) {
	if pass.pods == nil || pass.status.StoredVersion >= pass.target.Version {
		return nil, nil
	}
	for _, w := range pass.pods.unsafe() {
		if pass.advice.warned[w.uid] {
			continue
		}
		pass.advice.warned[w.uid] = true
		r.tellBoth(pass, w, string(w.hold), fmt.Sprintf("%s; the barrier of version %d is still to come", w.holdText(), pass.target.Version))
	}
	return nil, nil
}

// plan asks what the barrier would do. The look at who writes to the sources lasts seconds, and so it is had once for a spec: what it found is
// kept.
func (r *SyncSchemaReconciler) plan(ctx context.Context, pass *schemaPass) (storage.Plan, error) {
	target := *pass.target
	target.WritersKnown = pass.advice.planned == pass.object.Generation
	plan, err := pass.lease.Store.Plan(ctx, target)
	if err != nil {
		return storage.Plan{}, fmt.Errorf("plan version %d: %w", target.Version, err)
	}
	if !target.WritersKnown {
		pass.advice.planned, pass.advice.unversioned = pass.object.Generation, plan.Unversioned
	}
	pass.advice.expected = plan.ExpectedPause
	r.advise(pass)
	return plan, nil
}

// planAhead asks once for what is ahead, where pods or writers are to be told of: pods wait for the gate, or programs write to sources whose
// changes are captured, and so do not follow the protocol. A plan that cannot be made is no matter of this phase: the barrier says why.
func (r *SyncSchemaReconciler) planAhead(ctx context.Context, pass *schemaPass) {
	if pass.advice.planned == pass.object.Generation || !pass.captures() && (pass.pods == nil || len(pass.pods.groups) == 0) {
		return
	}
	_, _ = r.plan(ctx, pass)
}

// captures says that the barrier will declare a checkpoint with a captured source.
func (p *schemaPass) captures() bool {
	return slices.ContainsFunc(p.target.Checkpoints, func(c storage.Checkpoint) bool {
		return c.Version > p.status.StoredVersion && slices.ContainsFunc(c.Sources, func(s storage.Source) bool { return s.Changes == storage.Capture })
	})
}

// advise warns, once for a workload, of a deadline that is shorter than the expected wait.
func (r *SyncSchemaReconciler) advise(pass *schemaPass) {
	if pass.pods == nil {
		return
	}
	for _, w := range pass.pods.workloads() {
		deadline := time.Duration(w.deadline) * time.Second
		if deadline == 0 || deadline >= pass.advice.expected || pass.advice.lateWarned[w.uid] {
			continue
		}
		pass.advice.lateWarned[w.uid] = true
		r.tellBoth(pass, w, "ProgressDeadline", fmt.Sprintf(
			"%s %s has progressDeadlineSeconds %d, and new pods are expected to wait %d s: it will be reported as failed while it waits as intended",
			w.kind, w.name, w.deadline, int64(pass.advice.expected.Seconds())))
	}
}

// tellBoth tells of a workload on itself and on the SyncSchema, at once: it is to be known before the barrier begins.
func (r *SyncSchemaReconciler) tellBoth(pass *schemaPass, w workload, reason, note string) {
	warning := []notice{{warning: true, reason: reason, action: "Gate", note: note}}
	emit(r.Events, pass.object, warning)
	if w.object != nil {
		emit(r.Events, w.object, warning)
	}
}

// awaitPods finds out what is ahead, and, with cutover WhenPodsWait, keeps the barrier back until every workload has pods of the new version
// that only the gate holds.
func (r *SyncSchemaReconciler) awaitPods(ctx context.Context, pass *schemaPass) (*verdict, error) {
	if pass.status.StoredVersion >= pass.target.Version {
		pass.advice.unversioned = nil // the fence has an answer for them now
		return nil, nil
	}
	r.planAhead(ctx, pass)
	r.advise(pass)
	if pass.pods == nil {
		return nil, nil
	}
	strategy := pass.object.Spec.EffectiveStrategy()
	if strategy.Cutover != v1alpha1.CutoverWhenPodsWait {
		return nil, nil
	}
	missing := pass.pods.notWaiting(pass.target.Version)
	if missing == "" {
		pass.advice.waitingSince = time.Time{}
		return nil, nil
	}
	if pass.advice.waitingSince.IsZero() {
		pass.advice.waitingSince = pass.now
	}
	long := pass.now.Sub(pass.advice.waitingSince) >= time.Duration(*strategy.WaitForPodsSeconds)*time.Second
	if long && strategy.Type == v1alpha1.StrategyOnline {
		return nil, nil
	}
	if long && !pass.advice.waitedLong {
		pass.advice.waitedLong = true
		emit(r.Events, pass.object, []notice{{warning: true, reason: v1alpha1.ReasonWaitingForPods, action: "Gate",
			note: fmt.Sprintf("waited %d s, and goes on waiting: %s", *strategy.WaitForPodsSeconds, missing)}})
	}
	return reconciling(watchEvery, v1alpha1.ReasonWaitingForPods, "the barrier of version %d waits for pods of it: %s", pass.target.Version, missing), nil
}

// notWaiting says what is missing until the barrier of a version may begin; empty: nothing is. Each workload must have as many pods of the
// version as its rollout can have at once, with all containers ready. One that would not serve meanwhile, or could not be read, never may begin.
func (p *schemaPods) notWaiting(version int64) string {
	var parts []string
	some := false
	for _, w := range p.workloads() {
		switch {
		case w.unread != nil: // it may be one that would not serve
			parts = append(parts, w.unreadText())
			continue
		case w.hold == v1alpha1.HoldOutage:
			parts = append(parts, w.holdText())
			continue
		}
		started := p.started(w.uid, version)
		need := max(w.atOnce, 1)
		switch {
		case started >= need:
			some = true
		case w.kind == "Pod" && started == 0: // an old pod that nobody made is replaced by nobody
		default:
			parts = append(parts, fmt.Sprintf("%s %s has %d of %d", w.kind, w.name, started, need))
		}
	}
	if len(parts) == 0 && !some {
		return "no pod of it runs"
	}
	return someOf(parts, maxNamedWorks)
}

func (p *schemaPods) started(uid types.UID, version int64) int32 {
	for _, group := range p.groups {
		if group.workload.uid == uid && group.version == version {
			return group.started
		}
	}
	return 0
}
