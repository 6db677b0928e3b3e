package controllers

import (
	"context"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// publish writes the status once, then tells events, and says when to look again.
func (r *BackfillCheckpointReconciler) publish(ctx context.Context, pass *checkpointPass) (ctrl.Result, error) {
	if pass.verdict == nil { // every way through the phases ends with one
		pass.verdict = reconciling(defaultRetry, v1alpha1.ReasonBackfilling, "internal error: no phase gave a verdict")
	}
	after := r.statusOf(pass)
	flip := flipped(pass.before.Conditions, after.Conditions)
	pass.events = append(r.untold.take(pass.object.UID), pass.events...)
	forgotten, err := r.recall(ctx, pass)
	if err != nil {
		return ctrl.Result{}, err
	}
	pass.events = append(pass.events, forgotten...)
	wrote, again, err := r.statuses.write(ctx, r.Client, pass.now, statusChange{
		object: pass.object, kind: v1alpha1.KindBackfillCheckpoint, before: &pass.before, after: &after, flipped: flip,
	})
	if err != nil {
		return ctrl.Result{}, err
	}
	r.showMetrics(pass, after)
	if wrote || !flip {
		events := pass.events
		pass.events = nil
		if wrote && flip {
			events = append(events, eventOfVerdict(pass.before.Conditions, *pass.verdict)...)
		}
		emit(r.Events, pass.object, events)
	}
	next := pass.verdict.after
	if next <= 0 {
		next = spread(r.resync(), draw(r.Jitter))
	}
	if again > 0 && again < next {
		next = again
	}
	return ctrl.Result{RequeueAfter: next}, nil
}

const maxHoldReason = 1024

// statusOf makes the status from what the pass learned. Progress is kept as it was read last where it could not be read now.
func (r *BackfillCheckpointReconciler) statusOf(pass *checkpointPass) v1alpha1.BackfillCheckpointStatus {
	out := v1alpha1.BackfillCheckpointStatus{ObservedGeneration: pass.object.Generation}
	if pass.progress == nil && pass.lease == nil {
		out.State, out.Partitions, out.Behind = pass.before.State, pass.before.Partitions, pass.before.Behind
		out.Rows = withoutRate(pass.before.Rows)
	}
	if pass.progress != nil {
		r.addProgress(pass, &out)
	}
	out.HoldReason = said(pass.hold, maxHoldReason)
	if pass.job != nil && pass.verdict.state != stateDone {
		out.JobName = pass.job.Name
	}
	set := &conditionSet{generation: pass.object.Generation}
	set.addVerdict(*pass.verdict)
	pass.addBackfillComplete(set)
	pass.addActivated(set)
	out.Conditions = set.over(pass.before.Conditions, pass.now)
	return out
}

func withoutRate(rows *v1alpha1.RowProgress) *v1alpha1.RowProgress {
	if rows == nil {
		return nil
	}
	return &v1alpha1.RowProgress{Done: rows.Done, Estimated: rows.Estimated}
}

func (r *BackfillCheckpointReconciler) addProgress(pass *checkpointPass, out *v1alpha1.BackfillCheckpointStatus) {
	p := pass.progress
	switch {
	case p.Declared > 0:
		out.State = v1alpha1.StateDeclared
	case p.Backfilling > 0:
		out.State = v1alpha1.StateBackfilling
	default:
		out.State = v1alpha1.StateActivated
	}
	out.Partitions = &v1alpha1.PartitionCounts{
		Total: int32(p.Total), Declared: int32(p.Declared), Backfilling: int32(p.Backfilling), Activated: int32(p.Activated),
		Unverifiable: int32(p.Unverifiable),
	}
	for _, row := range p.Behind {
		partition := v1alpha1.PartitionStatus{
			Partition: cut(row.Partition, 512), State: v1alpha1.CheckpointState(row.State), Watermark: row.Watermark, Epoch: row.OwnerEpoch,
		}
		if row.Verdict != storage.Clean {
			partition.Verdict = string(row.Verdict)
		}
		out.Behind = append(out.Behind, partition)
	}
	if p.RangesTotal == 0 && p.RowsDone == 0 {
		return // it has not begun
	}
	estimated := max(p.RowsEstimated, p.RowsDone)
	out.Rows = &v1alpha1.RowProgress{Done: p.RowsDone, Estimated: &estimated}
	if pass.verdict.state == stateDone || pass.hold != "" {
		r.rates.forget(pass.object.UID)
		return
	}
	if rate, known := r.rates.measure(pass.object.UID, pass.now, p.RowsDone); known {
		out.Rows.PerSecond = &rate
		if rate > 0 {
			left := (estimated - p.RowsDone) / rate
			out.Rows.SecondsLeft = &left
		}
	}
}

func (p *checkpointPass) addBackfillComplete(set *conditionSet) {
	switch {
	case p.progress == nil && p.lease == nil:
		set.add(v1alpha1.ConditionBackfillComplete, metav1.ConditionUnknown, v1alpha1.ReasonUnreachable, "the database was not read")
	case p.progress == nil:
		set.addBool(v1alpha1.ConditionBackfillComplete, false, v1alpha1.ReasonPreviousVersionOpen, "it is not declared yet")
	case p.progress.Activated == p.progress.Total || p.caughtUp():
		set.addBool(v1alpha1.ConditionBackfillComplete, true, v1alpha1.ReasonBackfillComplete, "every row was gone over, and what changed meanwhile is applied")
	case p.scanned():
		set.addBool(v1alpha1.ConditionBackfillComplete, false, v1alpha1.ReasonCatchingUp, "changes that came meanwhile are being applied")
	default:
		set.addBool(v1alpha1.ConditionBackfillComplete, false, v1alpha1.ReasonBackfilling, "rows are being gone over")
	}
}

func (p *checkpointPass) scanned() bool {
	return p.progress.RangesTotal > 0 && p.progress.RangesDone == p.progress.RangesTotal
}

func (p *checkpointPass) caughtUp() bool {
	return p.scanned() && !slices.ContainsFunc(p.progress.Behind, func(b storage.BehindRow) bool { return b.Verdict != storage.Clean })
}

func (p *checkpointPass) addActivated(set *conditionSet) {
	kind := v1alpha1.ConditionActivated
	switch {
	case p.progress == nil && p.lease == nil:
		set.add(kind, metav1.ConditionUnknown, v1alpha1.ReasonUnreachable, "the database was not read")
	case p.progress == nil:
		set.addBool(kind, false, v1alpha1.ReasonPreviousVersionOpen, "it is not declared yet")
	case p.progress.Activated == p.progress.Total:
		set.addBool(kind, true, v1alpha1.ReasonActivated, "all "+decimal(int64(p.progress.Total))+" partitions are activated")
	case p.verdict.reason == v1alpha1.ReasonVerificationFailed:
		set.addBool(kind, false, v1alpha1.ReasonVerificationFailed, p.verdict.message)
	case p.progress.Unverifiable > 0 || p.verdict.reason == v1alpha1.ReasonSourceChanged:
		set.addBool(kind, false, v1alpha1.ReasonSourceChanged, "the log cannot answer for every partition, so the pass begins again")
	case p.caughtUp():
		set.addBool(kind, false, v1alpha1.ReasonActivating, "every row and every change is applied")
	default:
		set.addBool(kind, false, v1alpha1.ReasonBackfilling,
			decimal(int64(p.progress.Activated))+" of "+decimal(int64(p.progress.Total))+" partitions are activated")
	}
}

// rateWindow is the time that a rate is measured over.
const rateWindow = time.Minute

// rates keeps, by object, how many rows were done when, for a minute.
type rates struct {
	mu sync.Mutex
	of map[types.UID][]rateSample
}

type rateSample struct {
	at   time.Time
	rows int64
}

// measure adds a sample and gives rows a second over the window; known is false before there are two samples a second apart.
func (r *rates) measure(uid types.UID, now time.Time, rows int64) (perSecond int64, known bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.of == nil {
		r.of = map[types.UID][]rateSample{}
	}
	samples := r.of[uid]
	if n := len(samples); n > 0 && samples[n-1].rows > rows {
		samples = nil // the pass began again
	}
	samples = append(samples, rateSample{at: now, rows: rows})
	for len(samples) > 2 && now.Sub(samples[1].at) >= rateWindow {
		samples = samples[1:]
	}
	r.of[uid] = samples
	took := now.Sub(samples[0].at).Seconds()
	if took < 1 {
		return 0, false
	}
	return int64(float64(rows-samples[0].rows) / took), true
}

func (r *rates) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.of, uid)
}

func (r *BackfillCheckpointReconciler) showMetrics(pass *checkpointPass, status v1alpha1.BackfillCheckpointStatus) {
	namespace, name := pass.object.Namespace, pass.object.Name
	showReady(namespace, v1alpha1.KindBackfillCheckpoint, name, *pass.verdict)
	p := pass.progress
	if p == nil {
		return
	}
	checkpointPartitions.WithLabelValues(namespace, name, string(storage.Declared)).Set(float64(p.Declared))
	checkpointPartitions.WithLabelValues(namespace, name, string(storage.Backfilling)).Set(float64(p.Backfilling))
	checkpointPartitions.WithLabelValues(namespace, name, string(storage.Activated)).Set(float64(p.Activated))
	backfillRows.WithLabelValues(namespace, name).Set(float64(p.RowsDone))
	lag, rate := 0.0, 0.0
	if p.Activated < p.Total && !p.OldestUpdateAt.IsZero() {
		lag = max(0, pass.now.Sub(p.OldestUpdateAt).Seconds())
	}
	if status.Rows != nil && status.Rows.PerSecond != nil {
		rate = float64(*status.Rows.PerSecond)
	}
	backfillLag.WithLabelValues(namespace, name).Set(lag)
	showWhile(p.Activated < p.Total, backfillProgress, float64(p.LatestUpdateAt.UnixMilli())/1000, namespace, name)
	backfillRate.WithLabelValues(namespace, name).Set(rate)
}
