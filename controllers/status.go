package controllers

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// FieldManager is the name under which the operator writes.
const FieldManager = "syncbarrier"

// statusEvery is the shortest time between two writes of a status in which no condition flips.
const statusEvery = 10 * time.Second

const conflictRetry = time.Second

// statusWriter writes statuses of one kind. It remembers its own last write of each object: a cache may show the object as it was before
// that, and then the write, and the events after it, would be made a second time.
type statusWriter struct {
	mu   sync.Mutex
	last map[types.UID]writtenStatus
}

type writtenStatus struct {
	version string // resourceVersion that the write led to
	at      time.Time
	status  any // pointer to a status struct
}

// statusChange is a status to be written.
type statusChange struct {
	object  client.Object // as read
	kind    string
	before  any // pointer to the status as it is
	after   any // pointer to the status as it is to be
	flipped bool
}

// cacheLag is more than a cache stays behind. What is remembered of a write for longer than that is believed no more: a cluster that was restored
// from a backup counts its versions from an earlier number again.
const cacheLag = time.Minute

// current gives the newest status known of an object: the one read, or our own last write if that is newer.
func (w *statusWriter) current(object client.Object, read any, now time.Time) any {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.last[object.GetUID()]
	if ok && newer(last.version, object.GetResourceVersion()) && now.Sub(last.at) < cacheLag {
		return last.status
	}
	return read
}

// newer compares resource versions: they grow with each write of any object (Kubernetes documentation, "Resource versions").
func newer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	return errX == nil && errY == nil && x > y
}

// write applies a status if it differs. One in which nothing flipped waits until ten seconds after the last write; again is then the
// time that is left. An object that is gone is no error.
func (w *statusWriter) write(ctx context.Context, c client.Client, now time.Time, change statusChange) (wrote bool, again time.Duration, err error) {
	if reflect.DeepEqual(change.before, change.after) {
		return false, 0, nil
	}
	uid := change.object.GetUID()
	w.mu.Lock()
	last, known := w.last[uid]
	w.mu.Unlock()
	if !change.flipped && known {
		if left := statusEvery - now.Sub(last.at); left > 0 {
			return false, left, nil
		}
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(change.after)
	if err != nil {
		return false, 0, fmt.Errorf("encode the status of %s %s: %w", change.kind, change.object.GetName(), err)
	}
	applied := &unstructured.Unstructured{Object: map[string]any{"status": status}}
	applied.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(change.kind))
	applied.SetNamespace(change.object.GetNamespace())
	applied.SetName(change.object.GetName())
	applied.SetUID(uid) // an object of the same name that came since is another one
	err = mirror(ctx, c, applied)
	switch {
	case apierrors.IsNotFound(err):
		return false, 0, nil
	case apierrors.IsConflict(err):
		return false, conflictRetry, nil // another object of the name, or an API server in trouble: looked at again in a moment
	case err != nil:
		return false, 0, fmt.Errorf("write the status of %s %s: %w", change.kind, change.object.GetName(), err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last == nil {
		w.last = map[types.UID]writtenStatus{}
	}
	w.last[uid] = writtenStatus{version: applied.GetResourceVersion(), at: now, status: change.after}
	return true, 0, nil
}

// forget drops what is remembered of objects that are gone.
func (w *statusWriter) forget(uid types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.last, uid)
}

// maxNote is what the note of an event may have (events.k8s.io/v1).
const maxNote = 1024

// notice is an event to tell once the status is written.
type notice struct {
	warning bool
	reason  string
	action  string
	note    string
}

func emit(recorder events.EventRecorder, object runtime.Object, list []notice) {
	if recorder == nil {
		return
	}
	for _, e := range list {
		kind := corev1.EventTypeNormal
		if e.warning {
			kind = corev1.EventTypeWarning
		}
		recorder.Eventf(object, nil, kind, e.reason, e.action, "%s", said(e.note, maxNote))
	}
}

// eventOfVerdict tells about Ready when its status or reason changed.
func eventOfVerdict(before []metav1.Condition, v verdict) []notice {
	for _, was := range before {
		if was.Type == v1alpha1.ConditionReady && was.Reason == v.reason && (was.Status == metav1.ConditionTrue) == (v.state == stateDone) {
			return nil
		}
	}
	return []notice{{warning: v.state == stateStalled, reason: v.reason, action: "Reconcile", note: v.message}}
}
