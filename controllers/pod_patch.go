package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// patchesAtOnce is how many pods are written at a time.
const patchesAtOnce = 20

// podWrites remembers the conditions that were written last: the cache shows them only a little later, and until then the same write would be
// made again.
type podWrites struct {
	mu   sync.Mutex
	last map[types.UID]podWrite
	busy map[types.UID]*podTurn
}

// podTurn is the right to write one pod, with how many want it.
type podTurn struct {
	sync.Mutex
	wanted int
}

// lock waits until nobody else writes a pod, and gives what ends that.
func (w *podWrites) lock(uid types.UID) (free func()) {
	w.mu.Lock()
	if w.busy == nil {
		w.busy = map[types.UID]*podTurn{}
	}
	turn := w.busy[uid]
	if turn == nil {
		turn = &podTurn{}
		w.busy[uid] = turn
	}
	turn.wanted++
	w.mu.Unlock()
	turn.Lock()
	return func() {
		turn.Unlock()
		w.mu.Lock()
		defer w.mu.Unlock()
		if turn.wanted--; turn.wanted == 0 {
			delete(w.busy, uid)
		}
	}
}

// since gives the version that the last write led to; empty: none is remembered.
func (w *podWrites) since(uid types.UID) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last[uid].version
}

type podWrite struct {
	version   string // resourceVersion that the write led to
	condition corev1.PodCondition
	at        time.Time
}

// writesKept is how long a write is remembered: longer than a cache is behind, and than messages are held back for.
const writesKept = time.Minute

// current gives the newest condition known of a pod; nil: it has none.
func (w *podWrites) current(pod *corev1.Pod) *corev1.PodCondition {
	w.mu.Lock()
	defer w.mu.Unlock()
	if last, ok := w.last[pod.UID]; ok && newer(last.version, pod.ResourceVersion) {
		return last.condition.DeepCopy()
	}
	return podCondition(pod, v1alpha1.ReadinessGate)
}

func (w *podWrites) remember(uid types.UID, write podWrite) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[types.UID]podWrite{}
	}
	for other, kept := range w.last {
		if write.at.Sub(kept.at) > writesKept {
			delete(w.last, other)
		}
	}
	w.last[uid] = write
}

// due says whether a condition is to be written: at once where status or reason change or a proof does; a message that only says how far
// things are at most every ten seconds.
func (w *podWrites) due(judged judgedPod, now time.Time) bool {
	was := judged.condition
	if was == nil || isTrue(was) != judged.verdict.Open || was.Reason != judged.verdict.Reason {
		return true
	}
	if was.Message == judged.verdict.Message {
		return false
	}
	if judged.verdict.Reason == v1alpha1.ReasonGateOpen {
		return true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last[judged.pod.UID]
	return !ok || now.Sub(last.at) >= statusEvery
}

// writeAll patches the conditions that are not as they are to be. Events are told when all are written: a hundred of them would be in the way of
// the pods that come last.
//
// Errors: those of a way to the API server that fails. What it refuses of one pod is no error: the others do not wait for it.
func (r *PodReconciler) writeAll(ctx context.Context, pass *podPass) error {
	var mu sync.Mutex
	var changed []judgedPod
	wanted := slices.DeleteFunc(slices.Clone(pass.pods), func(judged judgedPod) bool {
		return !r.Refusals.wants(r.written.due(judged, pass.now), judged.pod.UID, writesCondition, pass.now)
	})
	err := eachPod(wanted, func(judged judgedPod) error {
		wrote, err := r.write(ctx, judged, pass.now)
		if wrote {
			mu.Lock()
			defer mu.Unlock()
			changed = append(changed, judged)
		}
		return r.refused(judged.pod, writesCondition, wrote, err, pass.now)
	})
	for _, judged := range changed {
		r.announce(judged)
	}
	return err
}

// eachPod calls do for every pod, some at a time, and gives all errors.
func eachPod(pods []judgedPod, do func(judgedPod) error) error {
	places := make(chan struct{}, patchesAtOnce)
	var all sync.WaitGroup
	var mu sync.Mutex
	var failures []error
	for _, judged := range pods {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if err := do(judged); err != nil {
				mu.Lock()
				defer mu.Unlock()
				failures = append(failures, err)
			}
		})
	}
	all.Wait()
	return errors.Join(failures...)
}

// refused keeps what the API server answered to a write, and tells of it on the pod. An error that is no answer comes back.
func (r *PodReconciler) refused(pod *corev1.Pod, what string, wrote bool, err error, now time.Time) error {
	var answer apierrors.APIStatus
	switch {
	case err == nil:
		if wrote {
			r.Refusals.done(pod.UID, what)
		}
		return nil
	case !errors.As(err, &answer):
		return err
	}
	if r.Refusals.note(pod, what, err, now) {
		emit(r.Events, pod, []notice{{warning: true, reason: v1alpha1.ReasonWriteRefused, action: "Gate", note: cut(err.Error(), 1024)}})
	}
	return nil
}

// write patches one condition, by its type and for the pod's UID, so that nothing else of the status is touched and no other pod is. A pod that
// is gone, or whose name is another pod's by now, is left alone: its own event brings us back.
func (r *PodReconciler) write(ctx context.Context, judged judgedPod, now time.Time) (wrote bool, err error) {
	// A pod may require several SyncSchemas, whose passes judge it at the same time. Whoever comes second would write what an older read showed
	// over what a newer one did: a pod that was let in would be taken out.
	free := r.written.lock(judged.pod.UID)
	defer free()
	if last := r.written.since(judged.pod.UID); last != "" && last != judged.written {
		return false, nil // that write's event brings us back
	}
	condition := corev1.PodCondition{
		Type: v1alpha1.ReadinessGate, Status: corev1.ConditionFalse, Reason: judged.verdict.Reason, Message: judged.verdict.Message,
		LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if judged.verdict.Open {
		condition.Status = corev1.ConditionTrue
	}
	if judged.condition != nil && judged.condition.Status == condition.Status {
		condition.LastTransitionTime = judged.condition.LastTransitionTime
	}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": judged.pod.UID},
		"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
	})
	if err != nil {
		return false, fmt.Errorf("encode the condition of pod %s: %w", judged.pod.Name, err)
	}
	patched := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: judged.pod.Namespace, Name: judged.pod.Name}}
	err = r.Client.Status().Patch(ctx, patched, client.RawPatch(types.StrategicMergePatchType, body), client.FieldOwner(FieldManager))
	switch {
	case isAnotherPod(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("write the condition of pod %s: %w", judged.pod.Name, err)
	}
	r.written.remember(judged.pod.UID, podWrite{version: patched.ResourceVersion, condition: condition, at: now})
	return true, nil
}

// announce tells of a condition that changed its status or reason.
func (r *PodReconciler) announce(judged judgedPod) {
	was, verdict := judged.condition, judged.verdict
	if was != nil && isTrue(was) == verdict.Open && was.Reason == verdict.Reason {
		return
	}
	e := notice{reason: verdict.Reason, action: "Gate", note: verdict.Message}
	switch verdict.Reason {
	case v1alpha1.ReasonVersionEdited, v1alpha1.ReasonRequirementMissing, v1alpha1.ReasonRequirementMalformed, v1alpha1.ReasonSchemaNotFound,
		v1alpha1.ReasonReaderTooOld, v1alpha1.ReasonWriterBelowFence, v1alpha1.ReasonBypassed, v1alpha1.ReasonCheckpointMissing, v1alpha1.ReasonConflict:
		e.warning = true
	}
	emit(r.Events, judged.pod, []notice{e})
}
