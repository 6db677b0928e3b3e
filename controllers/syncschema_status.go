package controllers

import (
	"context"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// publish writes the status once, then tells events, and says when to look again.
func (r *SyncSchemaReconciler) publish(ctx context.Context, pass *schemaPass) (ctrl.Result, error) {
	if pass.verdict == nil { // every way through the phases ends with one
		pass.verdict = reconciling(defaultRetry, v1alpha1.ReasonMigrating, "internal error: no phase gave a verdict")
	}
	after := r.statusOf(pass)
	flip := flipped(pass.before.Conditions, after.Conditions)
	pass.events = append(r.untold.take(pass.object.UID), pass.events...)
	forgotten, err := r.recall(ctx, pass, after.Conditions)
	if err != nil {
		return ctrl.Result{}, err
	}
	pass.events = append(pass.events, forgotten...)
	wrote, again, err := r.statuses.write(ctx, r.Client, pass.now, statusChange{
		object: pass.object, kind: v1alpha1.KindSyncSchema, before: &pass.before, after: &after, flipped: flip,
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	r.showMetrics(pass)
	if wrote || !flip {
		events := slices.Concat(pass.events, pass.podEvents(after.Conditions))
		pass.events = nil
		if wrote && flip {
			events = append(events, eventOfVerdict(pass.before.Conditions, *pass.verdict)...)
		}
		emit(r.Events, pass.object, events)
	}
	return ctrl.Result{RequeueAfter: r.lookAgain(pass, again)}, nil
}

func (r *SyncSchemaReconciler) lookAgain(pass *schemaPass, again time.Duration) time.Duration {
	after := pass.verdict.after
	if after <= 0 {
		after = spread(r.resync(), draw(r.Jitter))
	}
	if again > 0 && again < after {
		after = again
	}
	if pass.bypass != nil {
		after = min(after, max(pass.bypass.Until.Sub(pass.now), time.Millisecond))
	}
	return after
}

// statusOf makes the status from what the pass learned. What the database says is kept as it was said last where it could not be read now.
func (r *SyncSchemaReconciler) statusOf(pass *schemaPass) v1alpha1.SyncSchemaStatus {
	out := v1alpha1.SyncSchemaStatus{
		ObservedGeneration: pass.object.Generation,
		StoredVersion:      pass.before.StoredVersion, ContentHash: pass.before.ContentHash, MinWriterVersion: pass.before.MinWriterVersion,
		MinReaderVersion: pass.before.MinReaderVersion, GateOpen: pass.before.GateOpen,
		Workloads: pass.before.Workloads, WorkloadsTotal: pass.before.WorkloadsTotal,
		Plan: pass.plan,
	}
	if pass.status != nil {
		open := pass.gateOpen()
		stored, writer, reader := pass.status.StoredVersion, pass.status.MinWriterVersion, pass.status.MinReaderVersion
		out.StoredVersion, out.MinWriterVersion, out.MinReaderVersion, out.GateOpen = &stored, &writer, &reader, &open
		out.ContentHash = pass.status.ContentHash
	}
	out.Attempts = pass.failedAttempts()
	out.BlockersTotal = int32(len(pass.attempt.blockers))
	for _, blocker := range pass.attempt.blockers[:min(len(pass.attempt.blockers), maxBlockers)] {
		out.Blockers = append(out.Blockers, v1alpha1.Blocker{
			Kind: cut(blocker.Kind, 63), PID: int32(blocker.PID), Name: cut(blocker.Name, 256), User: cut(blocker.User, 63),
			Table: cut(blocker.Table, maxTableName), HeldSeconds: blocker.HeldSeconds,
		})
	}
	if pass.pods != nil {
		out.Workloads, out.WorkloadsTotal = pass.pods.statusOfPods()
	}
	out.Conditions = pass.conditions()
	return out
}

// failedAttempts are those of this run of the operator while the barrier is to be made, and afterwards as the database recorded them.
func (p *schemaPass) failedAttempts() int32 {
	if p.attempt.failures > 0 || !p.migrated() {
		return p.attempt.failures
	}
	i := slices.IndexFunc(p.status.History, func(h storage.HistoryRow) bool { return h.Version == p.status.StoredVersion })
	if i < 0 || p.status.History[i].Attempts < 2 {
		return 0
	}
	return int32(min(p.status.History[i].Attempts-1, 1<<30))
}

func (p *schemaPass) conditions() []metav1.Condition {
	set := &conditionSet{generation: p.object.Generation}
	set.addVerdict(*p.verdict)
	if owner := p.foreign(); owner != "" {
		p.addForeign(set, owner)
	} else {
		p.addMigrated(set)
		p.addFenced(set)
		p.addGateOpen(set)
	}
	if p.object.Spec.Suspend {
		set.add(v1alpha1.ConditionSuspended, metav1.ConditionTrue, v1alpha1.ReasonSuspended, "spec.suspend is true")
	}
	if p.status != nil && p.status.LogGrowing() != "" {
		set.add(v1alpha1.ConditionLogGrowing, metav1.ConditionTrue, v1alpha1.ReasonLogGrowing, p.status.LogGrowing())
	}
	p.addPodConditions(set)
	return set.over(p.before.Conditions, p.now)
}

// addForeign claims nothing of a database that another SyncSchema looks after.
func (p *schemaPass) addForeign(set *conditionSet, owner string) {
	for _, kind := range []string{v1alpha1.ConditionMigrated, v1alpha1.ConditionFenced, v1alpha1.ConditionGateOpen} {
		set.addBool(kind, false, v1alpha1.ReasonConflict, "the database schema is managed by "+owner+", not by this SyncSchema")
	}
}

// gateOpen is what the status and the metric show of the gate.
func (p *schemaPass) gateOpen() bool {
	return p.gate.Verdict().Open && p.foreign() == ""
}

func (p *schemaPass) addMigrated(set *conditionSet) {
	switch {
	case p.status == nil:
		set.add(v1alpha1.ConditionMigrated, metav1.ConditionUnknown, v1alpha1.ReasonUnreachable, "the database could not be read")
	case p.migrated():
		set.addBool(v1alpha1.ConditionMigrated, true, v1alpha1.ReasonMigrated, "the database is at version "+decimal(p.status.StoredVersion))
	default:
		set.addBool(v1alpha1.ConditionMigrated, false, v1alpha1.ReasonMigrationPending,
			"the database is at version "+decimal(p.status.StoredVersion)+", version "+decimal(int64(p.object.Spec.Version))+" with the content of the spec is wanted")
	}
}

// brokenFence says what is wrong with fence or guards; empty: nothing is known to be.
func (p *schemaPass) brokenFence() string {
	if p.fenceBroken == "" && p.verdict.reason == v1alpha1.ReasonFenceBroken {
		return p.verdict.message
	}
	return p.fenceBroken
}

func (p *schemaPass) addFenced(set *conditionSet) {
	broken := p.brokenFence()
	switch {
	case p.status == nil:
		set.add(v1alpha1.ConditionFenced, metav1.ConditionUnknown, v1alpha1.ReasonUnreachable, "the database could not be read")
	case broken != "":
		set.addBool(v1alpha1.ConditionFenced, false, v1alpha1.ReasonFenceBroken, broken)
	case p.status.Protocol == 0 || !p.migrated():
		set.addBool(v1alpha1.ConditionFenced, false, v1alpha1.ReasonMigrationPending, "the barrier is still to come")
	case p.status.MinWriterVersion == 0:
		set.addBool(v1alpha1.ConditionFenced, true, v1alpha1.ReasonFenced, "no version needs a fence yet; fence and guards are whole")
	default:
		set.addBool(v1alpha1.ConditionFenced, true, v1alpha1.ReasonFenced,
			"writers below version "+decimal(p.status.MinWriterVersion)+" are refused")
	}
}

// addGateOpen shows the database's own answer, whatever else is the matter: an invalid or suspended object closes no gate.
func (p *schemaPass) addGateOpen(set *conditionSet) {
	if p.gate == nil {
		set.add(v1alpha1.ConditionGateOpen, metav1.ConditionUnknown, v1alpha1.ReasonUnreachable, "the database could not be read")
		return
	}
	gate := p.gate.Verdict()
	reason := string(gate.Reason)
	if gate.Reason == storage.GateSchemaNotFound {
		reason = v1alpha1.ReasonMigrationPending
	}
	set.addBool(v1alpha1.ConditionGateOpen, gate.Open, reason, gate.Message)
}

func (r *SyncSchemaReconciler) showMetrics(pass *schemaPass) {
	showReady(pass.object.Namespace, v1alpha1.KindSyncSchema, pass.object.Name, *pass.verdict)
	if pass.status == nil {
		return
	}
	gateOpen.WithLabelValues(pass.object.Namespace, pass.object.Name).Set(number(pass.gateOpen()))
	storedVersion.WithLabelValues(pass.object.Namespace, pass.object.Name).Set(float64(pass.status.StoredVersion))
	logBytes.WithLabelValues(pass.object.Namespace, pass.object.Name).Set(float64(pass.status.LogBytes))
	fenceBroken.WithLabelValues(pass.object.Namespace, pass.object.Name).Set(number(pass.brokenFence() != "" && pass.foreign() == ""))
}
