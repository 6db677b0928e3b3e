// Package barrier brings a database to a target, attempt by attempt, and waits for its serve gate. It knows no SQL and no
// Kubernetes: one attempt is Store.EnsureSchema, and what an error means is its class.
//
// An attempt waits for at most one lock, for at most the lock timeout. Between attempts the engine pauses for at least four times
// as long as the attempt waited for its locks or held them, so that writers have the database to themselves for at least four fifths of the time
// (docs/design.md section 3, "Locks of a barrier").
package barrier

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Engine applies targets to one Store.
type Engine struct {
	Store storage.Store
	// Clock tells and passes time; nil means the real one.
	Clock clock.Clock
	// Report, if set, is told about each attempt that has to be repeated.
	Report func(Waiting)
}

// Waiting is an attempt that failed and will be tried again.
type Waiting struct {
	Attempt int
	Err     error
	Pause   time.Duration // until the next attempt
}

// Apply makes attempts until the database is at the target, or an error needs a person, or ctx ends. It returns the result of
// the attempt that succeeded. When ctx ends first the error is that of the last attempt that came to its end, which says who was in the way, or
// the context's own.
//
// A right that the role lacks is not waited for: whoever called is there to grant it, and the error says so at once.
//
// A lost acknowledgement of COMMIT is resolved here by asking again on a new connection: a barrier that did commit is found
// by its marker and content hash, and agreed with.
func (e *Engine) Apply(ctx context.Context, target storage.Target) (storage.BarrierResult, error) {
	attempt := storage.Attempt{Number: 1}
	var last error // of the attempt before
	for {
		started := e.time().Now()
		result, err := e.Store.EnsureSchema(ctx, target, attempt)
		if err == nil {
			return result, nil
		}
		if ctx.Err() != nil && last != nil && storage.ClassOf(err) == storage.ClassCancelled {
			return storage.BarrierResult{}, fmt.Errorf("gave up during attempt %d: %w", attempt.Number, last)
		}
		if !storage.ClassOf(err).Retryable() || ctx.Err() != nil || storage.CodeOf(err) == storage.CodeRightMissing {
			return storage.BarrierResult{}, endedBy(ctx, err)
		}
		pause := Pause(attempt.Number, e.time().Now().Sub(started), result.LockHold, err, rand.Float64())
		if e.Report != nil {
			e.Report(Waiting{Attempt: attempt.Number, Err: err, Pause: pause})
		}
		if ended := e.time().Sleep(ctx, pause); ended != nil {
			return storage.BarrierResult{}, fmt.Errorf("gave up after %d attempts: %w", attempt.Number, err)
		}
		attempt, last = Next(attempt, err), err
	}
}

// endedBy keeps the deadline visible beside the error of an attempt that it cut short.
func endedBy(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w (%w)", err, cause)
	}
	return err
}

// Next is the attempt after one that failed: it waits first for the table whose lock was refused.
func Next(attempt storage.Attempt, err error) storage.Attempt {
	next := storage.Attempt{Number: attempt.Number + 1}
	var refused *storage.Error
	if errors.As(err, &refused) {
		next.First = refused.Table
	}
	return next
}

// Bounds of the pause between two attempts.
const (
	shortestPause = 200 * time.Millisecond
	longestPause  = 30 * time.Second
	// dutyFactor: a pause is at least so many times what the attempt held writers up, in the lock queue or under its locks.
	dutyFactor = 4
)

// RestFactor is for work under the locks that came to no end, and will hardly do so the next time: it holds writers up for nothing. It is left
// alone for at least so many times what it held them up.
const RestFactor = 20

// Pause is how long to leave the database alone after a failed attempt that took so long and held its locks for a part of that: growing with the
// attempts, at least four times what it held writers up, and up to half of it again by jitter (0 to 1). An attempt whose statement was ended
// under the locks, by its time limit or by an administrator, rests for twenty times as long.
func Pause(attempt int, took, held time.Duration, err error, jitter float64) time.Duration {
	pause := longestPause
	if attempt < 16 {
		pause = min(longestPause, shortestPause<<(attempt-1))
	}
	switch storage.ClassOf(err) {
	case storage.ClassCommitUnknown:
		pause = shortestPause // nobody waits for us; the answer is one read away
	case storage.ClassLockTimeout:
		pause = max(pause, dutyFactor*max(took, held))
	case storage.ClassCancelled:
		pause = max(pause, RestFactor*held)
	default:
		pause = max(pause, dutyFactor*held)
	}
	return pause + time.Duration(float64(pause)*jitter/2)
}

// WaitForGate reads the gate of a version until judge finds it open, and returns the last verdict with nil then. When ctx ends first the last
// verdict comes with the context's error; it is the zero verdict if the database never answered. Errors that
// pass are waited out; any other is returned at once.
func (e *Engine) WaitForGate(ctx context.Context, running int64, every time.Duration,
	judge func(storage.ServeGate) storage.GateVerdict,
) (storage.GateVerdict, error) {
	var last storage.GateVerdict
	for {
		gate, err := e.Store.ReadServeGate(ctx, running)
		switch {
		case err == nil:
			if last = judge(gate); last.Open {
				return last, nil
			}
		case !storage.ClassOf(err).Retryable():
			return last, err
		}
		if ended := e.time().Sleep(ctx, every); ended != nil {
			if err != nil {
				return last, err
			}
			return last, ended
		}
	}
}

func (e *Engine) time() clock.Clock { return clock.Or(e.Clock) }
