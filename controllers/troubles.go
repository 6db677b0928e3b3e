package controllers

import (
	"errors"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// troubleShown is how long passes over an object may fail, each with an error that nobody has a word for, before its status says so. An API
	// server has its moments, and an object that is Ready does not stop being so for one of them.
	troubleShown = 10 * time.Second
	// troubleRetry is the pause between passes from then on.
	troubleRetry = 15 * time.Second
	// longestRetry bounds the pause after passes that failed and could not even say so: an API server that was away for an hour is not
	// waited for much longer than it was away.
	longestRetry = 30 * time.Second
	// firstRetry is the first such pause. It doubles.
	firstRetry = 50 * time.Millisecond
)

// troubles remembers, by object, since when passes over it fail.
type troubles struct {
	mu sync.Mutex
	of map[types.UID]time.Time
}

// judge turns an error that stands in the way of a whole pass into a verdict, once it has done so for long enough; nil: it is to be returned. What
// the API server refuses or cannot do, such as to call an admission webhook that is down or to read a Secret that it cannot decrypt, is nowhere
// else to be seen for who has the object only.
func (t *troubles) judge(uid types.UID, now time.Time, err error, underway string) *verdict {
	t.mu.Lock()
	defer t.mu.Unlock()
	since, known := t.of[uid]
	if !known {
		if t.of == nil {
			t.of = map[types.UID]time.Time{}
		}
		t.of[uid], since = now, now
	}
	if now.Sub(since) < troubleShown {
		return nil
	}
	var answer apierrors.APIStatus
	if errors.As(err, &answer) {
		return reconciling(troubleRetry, underway, "the API server does not let the operator do its work: %s", err)
	}
	return reconciling(troubleRetry, underway, "%s", err)
}

// over forgets the trouble of an object.
func (t *troubles) over(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.of, uid)
}

// retries paces passes that failed, up to a longest pause.
func retries(first, longest time.Duration) workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](first, longest)
}
