package controllers

import (
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// DefaultResync is how often an object is looked at that nothing is known to happen to.
const DefaultResync = 5 * time.Minute

// spread moves a time by up to a tenth to either side, so that objects that were seen together are not looked at together for ever.
func spread(d time.Duration, jitter float64) time.Duration {
	return d + time.Duration(float64(d)*(jitter-0.5)/5)
}

func draw(jitter func() float64) float64 {
	if jitter == nil {
		return rand.Float64()
	}
	return jitter()
}

// attempts remembers, by object, when the next attempt at a barrier is due. It paces and counts; losing it costs nothing but the count.
type attempts struct {
	mu sync.Mutex
	of map[types.UID]attemptState
}

type attemptState struct {
	trigger  string // what the attempts are for: with another spec or request they begin anew
	next     storage.Attempt
	due      time.Time
	rest     time.Duration // the pause that ends then
	failure  error         // of the last attempt
	failures int32
	blockers []storage.Blocker
	tried    string // the workers that the API server has accepted (workersOf)

	fence   *storage.FenceReport // of the last full check
	fenceAt time.Time
}

func (a *attempts) get(uid types.UID, trigger string) attemptState {
	a.mu.Lock()
	defer a.mu.Unlock()
	state := a.of[uid]
	if state.trigger != trigger {
		state = attemptState{trigger: trigger, fence: state.fence, fenceAt: state.fenceAt}
	}
	if state.next.Number == 0 {
		state.next.Number = 1
	}
	return state
}

func (a *attempts) put(uid types.UID, state attemptState) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		a.of = map[types.UID]attemptState{}
	}
	a.of[uid] = state
}

func (a *attempts) forget(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, uid)
}

// failed gives the state after a failed attempt: the next one waits first for the table that was refused, after a pause that grows. took and held
// are those of barrier.Pause.
func (s attemptState) failed(err error, took, held time.Duration, now time.Time, jitter float64) attemptState {
	s.failure, s.failures, s.blockers = err, s.failures+1, nil
	var refused *storage.Error
	if errors.As(err, &refused) {
		s.blockers = refused.Blocked
	}
	s.rest = barrier.Pause(s.next.Number, took, held, err, jitter)
	s.due = now.Add(s.rest)
	s.next = barrier.Next(s.next, err)
	return s
}

// refused gives the state after an attempt that a person has to look at, which held its locks for so long. Looking again is for what is put right
// in the database; a changed spec or a retry does not wait for it.
func (s attemptState) refused(err error, held time.Duration, now time.Time, resync time.Duration) attemptState {
	s = s.succeeded()
	s.failure, s.rest = err, max(resync, barrier.RestFactor*held)
	s.due = now.Add(s.rest)
	return s
}

// succeeded forgets the failures.
func (s attemptState) succeeded() attemptState {
	return attemptState{trigger: s.trigger, tried: s.tried, fence: s.fence, fenceAt: s.fenceAt}
}
