package controllers

import (
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// quietWork is how long workers may run and commit nothing before that is said. A worker that does not reach the database tries again inside its
// pod: to the cluster it looks as healthy as one that works.
const quietWork = 2 * time.Minute

// standstills keeps, by object, since when this operator has seen workers run and nothing new committed. It compares no clock with that of the
// database.
type standstills struct {
	mu sync.Mutex
	of map[types.UID]standstill
}

type standstill struct {
	committed time.Time // the last commit, by the clock of the database
	seen      time.Time // when it was first seen, by ours
}

// lasts says whether workers that run have committed nothing for long.
func (s *standstills) lasts(uid types.UID, committed, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was, known := s.of[uid]
	if known && was.committed.Equal(committed) {
		return now.Sub(was.seen) >= quietWork
	}
	if s.of == nil {
		s.of = map[types.UID]standstill{}
	}
	s.of[uid] = standstill{committed: committed, seen: now}
	return false
}

// forget begins anew: no worker runs, or the object is gone.
func (s *standstills) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.of, uid)
}

// holdIfStill says of workers that run whether they get on. The words do not change while it lasts.
func (r *BackfillCheckpointReconciler) holdIfStill(pass *checkpointPass, running int) {
	switch {
	case running == 0:
		r.stills.forget(pass.object.UID)
	case r.stills.lasts(pass.object.UID, pass.progress.LatestUpdateAt, pass.now):
		pass.hold = fmt.Sprintf("workers run and have committed nothing for over %d minutes; kubectl logs -n %s job/%s says why",
			int(quietWork.Minutes()), pass.object.Namespace, pass.job.Name)
	}
}

// andHeld is what holds the work, as the end of a sentence.
func (p *checkpointPass) andHeld() string {
	if p.hold == "" {
		return ""
	}
	return "; " + p.hold
}
