package controllers

import (
	"math/rand/v2"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Pauses after which a server, or a set of credentials, is tried again. They double with each failure. Credentials wait longer, since many
// servers lock an account after some wrong passwords.
const (
	shortestBreak   = time.Second
	shortestRefusal = 5 * time.Second
	longestBreak    = 30 * time.Second
)

// breaker leaves something alone for a while after it failed.
type breaker struct {
	failures int
	until    time.Time
	failure  error
}

// trip notes a failure.
func (b *breaker) trip(err error, now time.Time, shortest time.Duration) {
	pause := longestBreak
	if b.failures < 6 {
		pause = min(longestBreak, shortest<<b.failures)
	}
	b.failures++
	b.until = now.Add(pause + time.Duration(rand.Float64()*float64(pause)/4))
	b.failure = err
}

// wait is how long it is still left alone.
func (b *breaker) wait(now time.Time) time.Duration { return b.until.Sub(now) }

// refusal tells a pass why it is not tried now: the words of the failure itself, so that a status does not change with who met it. One that needs a
// person is given as it was.
func (b *breaker) refusal(after time.Duration) error {
	class := storage.ClassOf(b.failure)
	if _, needsPerson := stalledReasons[class]; needsPerson {
		return b.failure
	}
	return &waiting{reason: string(class), message: b.failure.Error(), after: after}
}
