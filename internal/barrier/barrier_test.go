package barrier_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestAPauseIsAtLeastFourTimesWhatTheAttemptHeldWritersUp(t *testing.T) {
	for _, tt := range []struct {
		code   storage.Code
		factor time.Duration // of the time that the locks were held
		queued time.Duration // of the time that the attempt took
	}{
		{storage.CodeLockTimeout, 4, 4},
		{storage.CodeCancelled, 20, 0}, // by the statement timeout as a rule: the next attempt will hardly come further
		{storage.CodeDeadlock, 4, 0},
		{storage.CodeSerialization, 4, 0},
		{storage.CodeConnectionLost, 4, 0}, // a server that is not there held nobody up
		{storage.CodeConnectionsBusy, 4, 0},
		{storage.CodeReadOnly, 4, 0},
		{storage.CodeRightMissing, 4, 0},
		{storage.CodeCheckpointIncomplete, 4, 0},
	} {
		for _, took := range []time.Duration{0, 100 * time.Millisecond, 2 * time.Second, 300 * time.Second} {
			for attempt := 1; attempt < 40; attempt++ {
				refused := storage.Refuse(tt.code, "attempt")
				if pause := barrier.Pause(attempt, took, took, refused, 0); pause < tt.factor*took {
					t.Errorf("%s: attempt %d held its locks for %s and pauses only %s", tt.code, attempt, took, pause)
				}
				free := barrier.Pause(attempt, 0, 0, refused, 0)
				if pause := barrier.Pause(attempt, took, 0, refused, 0); pause != max(free, tt.queued*took) {
					t.Errorf("%s: attempt %d took %s without locks and pauses %s", tt.code, attempt, took, pause)
				}
			}
		}
	}
}

func TestPausesGrowAndAreBounded(t *testing.T) {
	refused := storage.Refuse(storage.CodeConnectionLost, "connect")
	last := time.Duration(0)
	for attempt := 1; attempt < 100; attempt++ {
		pause := barrier.Pause(attempt, 0, 0, refused, 0)
		if pause < last {
			t.Errorf("attempt %d pauses %s, the one before %s", attempt, pause, last)
		}
		if longest := barrier.Pause(attempt, 0, 0, refused, 1); longest > 45*time.Second {
			t.Errorf("attempt %d pauses %s with the most jitter", attempt, longest)
		}
		last = pause
	}
	if last != 30*time.Second {
		t.Errorf("the longest pause is %s without jitter, want 30s", last)
	}
}

func TestALostAcknowledgementIsAskedAboutAtOnce(t *testing.T) {
	unknown := storage.Refuse(storage.CodeCommitUnknown, "commit")
	if pause := barrier.Pause(12, time.Minute, time.Minute, unknown, 0); pause > time.Second {
		t.Errorf("paused %s", pause)
	}
}

func TestTheNextAttemptWaitsFirstForTheTableThatWasRefused(t *testing.T) {
	refused := storage.Refuse(storage.CodeLockTimeout, "lock todos")
	refused.Table = "todos"
	next := barrier.Next(storage.Attempt{Number: 3, First: "sync_commits"}, errors.Join(errors.New("attempt"), refused))
	if next.Number != 4 || next.First != "todos" {
		t.Errorf("next attempt is %+v", next)
	}
	if next := barrier.Next(next, errors.New("no lock at all")); next.First != "" {
		t.Errorf("an attempt that no lock refused is followed by %+v", next)
	}
}

// refusing is a Store whose first attempt is refused a lock, and whose second one ends with the time there was.
type refusing struct {
	storage.Store
	end context.CancelFunc
}

func (r refusing) EnsureSchema(_ context.Context, _ storage.Target, attempt storage.Attempt) (storage.BarrierResult, error) {
	if attempt.Number == 1 {
		refused := storage.Refuse(storage.CodeLockTimeout, "lock todos")
		refused.Blocked = []storage.Blocker{{Table: "todos", PID: 4711}}
		return storage.BarrierResult{}, refused
	}
	r.end()
	return storage.BarrierResult{}, storage.Refuse(storage.CodeCancelled, "wait for who holds the tables")
}

// forbidden is a Store whose role lacks a right.
type forbidden struct {
	storage.Store
	attempts *int
}

func (f forbidden) EnsureSchema(context.Context, storage.Target, storage.Attempt) (storage.BarrierResult, error) {
	*f.attempts++
	return storage.BarrierResult{}, storage.Refuse(storage.CodeRightMissing, "permission denied for schema public")
}

func TestARightThatIsMissingIsToldAtOnce(t *testing.T) {
	attempts := 0
	at := &passing{now: time.Unix(0, 0)}
	ctx, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	_, err := (&barrier.Engine{Store: forbidden{attempts: &attempts}, Clock: at}).Apply(ctx, storage.Target{})
	if storage.CodeOf(err) != storage.CodeRightMissing || attempts != 1 || !at.now.Equal(time.Unix(0, 0)) {
		t.Errorf("after %d attempts and %s: %v", attempts, at.now.Sub(time.Unix(0, 0)), err)
	}
}

func TestWhoWasInTheWayIsSaidWhenTheTimeIsUp(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	_, err := (&barrier.Engine{Store: refusing{end: end}, Clock: clock.Real{}}).Apply(ctx, storage.Target{})
	var refused *storage.Error
	if !errors.As(err, &refused) || len(refused.Blocked) != 1 || storage.ClassOf(err) != storage.ClassLockTimeout {
		t.Errorf("the error is %v", err)
	}
}

// stopped is a Store whose first attempt is ended under its locks, and whose second one comes to its end.
type stopped struct{ storage.Store }

func (stopped) EnsureSchema(_ context.Context, _ storage.Target, attempt storage.Attempt) (storage.BarrierResult, error) {
	if attempt.Number == 1 {
		return storage.BarrierResult{LockHold: 5 * time.Minute}, storage.Refuse(storage.CodeCancelled, "the SQL of version 7")
	}
	return storage.BarrierResult{Version: 7}, nil
}

// passing is a clock that only sleeping moves.
type passing struct{ now time.Time }

func (p *passing) Now() time.Time { return p.now }
func (p *passing) Sleep(_ context.Context, d time.Duration) error {
	p.now = p.now.Add(d)
	return nil
}

func TestAnAttemptThatWasEndedUnderItsLocksRestsForTwentyTimesAsLong(t *testing.T) {
	begun := time.Unix(0, 0)
	at := &passing{now: begun}
	result, err := (&barrier.Engine{Store: stopped{}, Clock: at}).Apply(t.Context(), storage.Target{})
	if err != nil || result.Version != 7 || at.now.Sub(begun) < 100*time.Minute {
		t.Errorf("came to version %d after %s: %v", result.Version, at.now.Sub(begun), err)
	}
}
