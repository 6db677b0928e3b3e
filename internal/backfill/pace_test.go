package backfill

import (
	"context"
	"testing"
	"time"
)

// manual is a clock that only sleeping moves.
type manual struct{ now time.Time }

func (m *manual) Now() time.Time { return m.now }

func (m *manual) Sleep(_ context.Context, d time.Duration) error {
	if d > 0 {
		m.now = m.now.Add(d)
	}
	return nil
}

func TestTheRateLimitHoldsForAllWorkersTogether(t *testing.T) {
	const workers, batches, rows, limit = 4, 10, 1000, 2000
	var slowest time.Duration
	for range workers {
		clock := &manual{now: time.Unix(0, 0)}
		pace := newPacer(clock, workers)
		for range batches {
			if err := pace.wait(t.Context(), rows, limit); err != nil {
				t.Fatal(err)
			}
		}
		slowest = max(slowest, clock.now.Sub(time.Unix(0, 0)))
	}
	if want := time.Duration(workers*batches*rows/limit) * time.Second; slowest != want {
		t.Errorf("%d workers did %d rows at %d rows/s in %s, want %s", workers, workers*batches*rows, limit, slowest, want)
	}
}

func TestTimeThatWasNotUsedIsNotSavedUp(t *testing.T) {
	clock := &manual{now: time.Unix(0, 0)}
	pace := newPacer(clock, 1)
	if err := pace.wait(t.Context(), 100, 100); err != nil {
		t.Fatal(err)
	}
	clock.now = clock.now.Add(time.Hour)
	before := clock.now
	if err := pace.wait(t.Context(), 100, 100); err != nil {
		t.Fatal(err)
	}
	if slept := clock.now.Sub(before); slept != time.Second {
		t.Errorf("after an idle hour 100 rows at 100 rows/s took %s", slept)
	}
}

func TestWithoutALimitNobodyWaits(t *testing.T) {
	clock := &manual{now: time.Unix(0, 0)}
	if err := newPacer(clock, 2).wait(t.Context(), 1_000_000, 0); err != nil || !clock.now.Equal(time.Unix(0, 0)) {
		t.Errorf("waited until %s, error %v", clock.now, err)
	}
}

func TestTheStandbysAreAskedOnceASecond(t *testing.T) {
	clock := &manual{now: time.Unix(100, 0)}
	pace, asked := newPacer(clock, 1), 0
	for range 50 {
		if pace.lagIsDue() {
			asked++
		}
		clock.now = clock.now.Add(100 * time.Millisecond)
	}
	if asked != 5 {
		t.Errorf("asked %d times in 5 s", asked)
	}
}
