package controllers

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// shortestReplace and longestReplace bound the pause before a failed Job is replaced; it doubles with each failure.
	shortestReplace = 10 * time.Second
	longestReplace  = 5 * time.Minute
)

func replacePause(failures int) time.Duration {
	if failures > 5 {
		return longestReplace
	}
	return min(longestReplace, shortestReplace<<max(0, failures-1))
}

// paces remembers, by object, what pauses are reckoned from. Losing it makes one Job sooner.
type paces struct {
	mu sync.Mutex
	of map[types.UID]pace
}

type pace struct {
	ended       types.UID // the last Job that was seen to have ended,
	endedAt     time.Time // when it did by the cluster's clock,
	seenAt      time.Time // and when that was seen by ours
	lost        int       // Jobs that went before their work was done, one after the other
	lostAt      time.Time // the last of them,
	lostOfClaim string    // and the token of its claim
}

// ended is how long ago a Job ended. It is never longer than it was seen to have: the clocks of a cluster differ, and one that is ahead of ours
// would stretch a pause by as much.
func (p *paces) ended(uid types.UID, job *batchv1.Job, at, now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of[uid]
	if known.ended != job.UID || !known.endedAt.Equal(at) {
		known.ended, known.endedAt, known.seenAt = job.UID, at, now
		p.put(uid, known)
	}
	if at.After(known.seenAt) {
		return known.seenAt
	}
	return at
}

// lose notes that the Job of a claim went before its work was done, and gives the time before another one is made: none for the first, which
// somebody may have deleted for a reason. Where one after the other goes, a rule of the cluster makes them, and another at each look would only take
// the work from the one before.
func (p *paces) lose(uid types.UID, token string, now time.Time) (pause time.Duration, at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.of[uid]
	if known.lostOfClaim != token {
		if now.Sub(known.lostAt) > 2*longestReplace {
			known.lost = 0
		}
		known.lost, known.lostAt, known.lostOfClaim = known.lost+1, now, token
		p.put(uid, known)
	}
	if known.lost < 2 {
		return 0, known.lostAt
	}
	return replacePause(known.lost-1) - now.Sub(known.lostAt), known.lostAt
}

func (p *paces) put(uid types.UID, known pace) {
	if p.of == nil {
		p.of = map[types.UID]pace{}
	}
	p.of[uid] = known
}

func (p *paces) forget(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, uid)
}

// failure is what is known of the Jobs that have ended: how many there are, and the last of them. They are kept for an hour.
type failure struct {
	job   *batchv1.Job // nil: none
	at    time.Time
	count int
}

// lastFailure looks through the Jobs.
func lastFailure(jobs []batchv1.Job) (last failure) {
	for i := range jobs {
		if !finished(&jobs[i]) {
			continue
		}
		for _, condition := range jobs[i].Status.Conditions {
			if condition.Type != batchv1.JobFailed && condition.Type != batchv1.JobComplete {
				continue
			}
			last.count++
			if last.job == nil || condition.LastTransitionTime.After(last.at) {
				last.job, last.at = &jobs[i], condition.LastTransitionTime.Time
			}
		}
	}
	return last
}

// retries are the requests of a person for another attempt, on the checkpoint and on its schema, as they stand in the annotations: times.
func (p *checkpointPass) retries() [2]string {
	return [2]string{p.object.Annotations[AnnotationRetry], p.schema.Annotations[AnnotationRetry]}
}

// retryMark stands for a request in the annotation of the Job that answers it: anybody may write anything, of any length, for a time.
func retryMark(request string) string {
	if request == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(request))
	return hex.EncodeToString(sum[:4])
}

// retriesDone is what a Job that is made now answers: every request but one for a time to come.
func (p *checkpointPass) retriesDone() string {
	var done [2]string
	for i, request := range p.retries() {
		if at, err := time.Parse(time.RFC3339, request); err != nil || !at.After(p.now) {
			done[i] = retryMark(request)
		}
	}
	return strings.Join(done[:], ";")
}

// retryAsked says whether a person asked for another attempt since the last one ended. Which requests that one answered stands on its Job, so that no
// clock has to agree with another; for a Job that does not say it, and for one that is gone, the times tell. A time that is still to come asks for
// an attempt then, and not for every one until then; in is how long that is, 0 for never. What is no time at all asks for one now.
func (p *checkpointPass) retryAsked(since failure) (asked bool, in time.Duration) {
	if since.at.IsZero() {
		return false, 0
	}
	var answered []string
	if since.job != nil {
		answered = strings.Split(since.job.Annotations[annotationRetried], ";")
	}
	for i, request := range p.retries() {
		at, err := time.Parse(time.RFC3339, request)
		known := len(answered) == len(p.retries())
		switch {
		case request == "", known && retryMark(request) == answered[i], !known && (err != nil || at.Before(since.at)):
		case !at.After(p.now):
			asked = true
		case in == 0 || at.Sub(p.now) < in:
			in = at.Sub(p.now)
		}
	}
	return asked, in
}

// untilRetry shortens a pause to the moment that a person asked for.
func (p *checkpointPass) untilRetry(since failure, pause time.Duration) time.Duration {
	if _, in := p.retryAsked(since); in > 0 {
		return min(pause, in)
	}
	return pause
}
