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

func TestAPauseIsAtLeastFourTimesTheTimeJustWaitedForALock(t *testing.T) {
	refused := storage.Refuse(storage.CodeLockTimeout, "lock sync_partitions")
	for _, waited := range []time.Duration{0, 100 * time.Millisecond, 2 * time.Second, 20 * time.Second} {
		for attempt := 1; attempt < 40; attempt++ {
			if pause := barrier.Pause(attempt, waited, refused, 0); pause < 4*waited {
				t.Errorf("attempt %d waited %s in the queue and pauses only %s", attempt, waited, pause)
			}
		}
	}
}

func TestPausesGrowAndAreBounded(t *testing.T) {
	refused := storage.Refuse(storage.CodeConnectionLost, "connect")
	last := time.Duration(0)
	for attempt := 1; attempt < 100; attempt++ {
		pause := barrier.Pause(attempt, 0, refused, 0)
		if pause < last {
			t.Errorf("attempt %d pauses %s, the one before %s", attempt, pause, last)
		}
		if longest := barrier.Pause(attempt, 0, refused, 1); longest > 45*time.Second {
			t.Errorf("attempt %d pauses %s with the most jitter", attempt, longest)
		}
		last = pause
	}
	if last != 30*time.Second {
		t.Errorf("the longest pause is %s without jitter, want 30s", last)
	}
}

func TestALostAcknowledgementIsAskedAboutAtOnce(t *testing.T) {
	if pause := barrier.Pause(12, time.Minute, storage.Refuse(storage.CodeCommitUnknown, "commit"), 0); pause > time.Second {
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

func TestWhoWasInTheWayIsSaidWhenTheTimeIsUp(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	defer end()
	_, err := (&barrier.Engine{Store: refusing{end: end}, Clock: clock.Real{}}).Apply(ctx, storage.Target{})
	var refused *storage.Error
	if !errors.As(err, &refused) || len(refused.Blocked) != 1 || storage.ClassOf(err) != storage.ClassLockTimeout {
		t.Errorf("the error is %v", err)
	}
}
