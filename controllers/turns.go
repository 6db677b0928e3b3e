package controllers

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// turns lets one at a time of those who want a barrier on a server have it. Who has to wait goes, and is woken when it is its turn: a thousand
// that come again each second would do nothing but read the database.
type turns struct {
	mu      sync.Mutex
	taken   bool
	waiting []waiter
}

type waiter struct {
	who  types.UID
	wake func()
}

// take takes the turn if nobody has it. Else it notes who wants it, unless wake is nil, and says how many are before it.
func (t *turns) take(who types.UID, wake func()) (ahead int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := slices.IndexFunc(t.waiting, func(w waiter) bool { return w.who == who })
	switch {
	case !t.taken:
		t.taken = true
		if at >= 0 {
			t.waiting = slices.Delete(t.waiting, at, at+1)
		}
		return 0, true
	case at >= 0:
		return at, false
	case wake == nil:
		return len(t.waiting), false
	}
	t.waiting = append(t.waiting, waiter{who: who, wake: wake})
	return len(t.waiting) - 1, false
}

// give ends a turn and wakes who is next. That one is no longer noted: it may be gone, and must not keep the others back.
func (t *turns) give() {
	t.mu.Lock()
	t.taken = false
	var next func()
	if len(t.waiting) > 0 {
		next = t.waiting[0].wake
		t.waiting = slices.Delete(t.waiting, 0, 1)
	}
	t.mu.Unlock()
	if next != nil {
		next()
	}
}

// idle says that nobody has a turn or wants one.
func (t *turns) idle() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.taken && len(t.waiting) == 0
}

// turnPause is when somebody with so many before it comes again by itself, in case nobody wakes it.
func turnPause(ahead int) time.Duration {
	const each, longest = 500 * time.Millisecond, DefaultResync
	return min(longest, time.Second+time.Duration(ahead)*each)
}

const mostWoken = 1024 // that a manager has not taken up yet; others come again by themselves

// waker wakes the pass of an object; nil where no manager runs this reconciler.
func (r *SyncSchemaReconciler) waker(object *v1alpha1.SyncSchema) func() {
	if r.woken == nil {
		return nil
	}
	return func() {
		select {
		case r.woken <- event.GenericEvent{Object: object}:
		default:
		}
	}
}
