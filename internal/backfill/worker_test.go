package backfill

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// slowStore is a Store of one row that is scanned already. Each of its steps takes a time of the clock, and fails as it is told.
type slowStore struct {
	storage.Store
	clock    *manual
	scanned  bool
	batch    func(n int) error                                                            // the nth batch of the scan
	activate func(n int) (report storage.ActivationReport, took time.Duration, err error) // the nth attempt

	batches, attempts int
	held              time.Duration
}

func (s *slowStore) claim() storage.Claim {
	return storage.Claim{Name: "norm", Token: "t", Rows: []storage.CheckpointRow{{Partition: "a"}}}
}

func (s *slowStore) TakeRanges(context.Context, storage.Claim, int, int) ([]storage.Lease, error) {
	return []storage.Lease{{Partition: "a", Done: s.scanned}}, nil
}

func (s *slowStore) ReadProgress(context.Context, string) (storage.CheckpointProgress, error) {
	return storage.CheckpointProgress{}, nil
}

func (s *slowStore) ScanBatch(context.Context, storage.Claim, storage.Lease) (storage.Batch, error) {
	s.batches++
	s.clock.now, s.held = s.clock.now.Add(10*time.Minute), s.held+10*time.Minute
	return storage.Batch{Done: true}, s.batch(s.batches)
}

func (s *slowStore) TailBatch(context.Context, storage.Claim, string, int) (storage.Batch, error) {
	return storage.Batch{Done: true}, nil
}
func (s *slowStore) VerifyRow(context.Context, storage.Claim, string) error   { return nil }
func (s *slowStore) RecordError(context.Context, storage.Claim, string) error { return nil }
func (s *slowStore) Activate(context.Context, storage.Claim, storage.Activation) (storage.ActivationReport, error) {
	s.attempts++
	report, took, err := s.activate(s.attempts)
	s.clock.now, s.held = s.clock.now.Add(took), s.held+took
	return report, err
}

// run does the store's one share and returns how much of the time writers were not held up.
func (s *slowStore) run(t *testing.T) (free time.Duration, err error) {
	t.Helper()
	s.clock = &manual{now: time.Unix(0, 0)}
	err = (&Runner{Store: s, Clock: s.clock}).Run(t.Context(), s.claim(), Share{Of: 1})
	return s.clock.now.Sub(time.Unix(0, 0)) - s.held, err
}

func TestWritersHaveFourFifthsOfTheTimeWhateverAnActivationFailsFor(t *testing.T) {
	const failures = 4
	for _, tt := range []struct {
		code storage.Code
		took time.Duration
		held time.Duration
	}{
		{storage.CodeCancelled, 10 * time.Second, 10 * time.Second},
		{storage.CodeDeadlock, time.Second, time.Second},
		{storage.CodeConnectionLost, 8 * time.Second, 8 * time.Second},
		{storage.CodeSerialization, 5 * time.Second, 5 * time.Second},
		{storage.CodeLockTimeout, time.Second, 0}, // in the queue, where writers queue behind it
	} {
		t.Run(string(tt.code), func(t *testing.T) {
			s := &slowStore{scanned: true, activate: func(n int) (storage.ActivationReport, time.Duration, error) {
				if n > failures {
					return storage.ActivationReport{Outcome: storage.OutcomeActivated}, 0, nil
				}
				return storage.ActivationReport{Held: tt.held}, tt.took, storage.Refuse(tt.code, "activate")
			}}
			free, err := s.run(t)
			if err != nil || s.attempts != failures+1 || free < 4*failures*tt.took {
				t.Errorf("%d attempts of %s each left writers %s: %v", s.attempts, tt.took, free, err)
			}
		})
	}
}

func TestACheckThatIsEndedUnderTheLocksAgainAndAgainIsNamed(t *testing.T) {
	s := &slowStore{scanned: true, activate: func(int) (storage.ActivationReport, time.Duration, error) {
		return storage.ActivationReport{Held: 10 * time.Second}, 10 * time.Second,
			storage.Refuse(storage.CodeCancelled, `checkpoint "norm": verify "none-missing"`)
	}}
	free, err := s.run(t)
	if storage.CodeOf(err) != storage.CodeNotConverging || !strings.Contains(err.Error(), `verify "none-missing"`) {
		t.Errorf("it ends with %v", err)
	}
	if s.attempts != endedBound || free < 4*(endedBound-1)*10*time.Second {
		t.Errorf("%d attempts held the locks for %s and left writers %s", s.attempts, s.held, free)
	}
}

func TestABatchThatItsTimeLimitEndsIsRestedFromAndGivenUp(t *testing.T) {
	late := storage.Refuse(storage.CodeCancelled, "apply")
	activated := func(int) (storage.ActivationReport, time.Duration, error) {
		return storage.ActivationReport{Outcome: storage.OutcomeActivated}, 0, nil
	}
	s := &slowStore{activate: activated, batch: func(int) error { return late }}
	free, err := s.run(t)
	if storage.CodeOf(err) != storage.CodeNotConverging || s.batches != endedBound || free < 4*(endedBound-1)*10*time.Minute {
		t.Errorf("%d batches held rows for %s and left writers %s: %v", s.batches, s.held, free, err)
	}
	s = &slowStore{activate: activated, batch: func(n int) error {
		if n < endedBound {
			return late
		}
		return nil
	}}
	if _, err := s.run(t); err != nil || s.attempts != 1 {
		t.Errorf("a batch that comes to its end at last is followed by %v", err)
	}
}
