package controllers

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/clock"
)

// Who waits for a database that does not answer does nothing else, and there is a bounded number of workers. So a few wait for as long as a read
// may take, the rest for no longer than a read takes that is answered, and once a round got no answer one alone waits for the next.
const (
	patientReaders = 4
	crowdPatience  = 2 * hotGate
)

// gateRound is one reading of a database for all who want it. It belongs to none of them: it goes on when they leave, has its own limits,
// and what it finds out, a server that does not answer too, is for all.
type gateRound struct {
	done    chan struct{} // closed at its end
	started time.Time     // by the real clock, by which it is waited for
	readers int
}

// patience is how long the next reader waits.
func (r *gateRound) patience(silent bool) time.Duration {
	switch {
	case silent && r.readers > 0:
		return 0
	case r.readers >= patientReaders:
		return max(0, crowdPatience-time.Since(r.started))
	default:
		return readTimeout
	}
}

// read gives the gate of a schema from a read that is young enough, or began after it was asked for. It waits for the round under way, or
// begins one.
func (d *gateDatabase) read(ctx context.Context, g *Gates, connection Connection, maxAge time.Duration) GateRead {
	asked := clock.Or(g.Clock).Now()
	for {
		d.mu.Lock()
		now := clock.Or(g.Clock).Now()
		if read, ok := d.reads[connection.Schema]; ok && (now.Sub(read.At) < maxAge || !read.At.Before(asked)) {
			d.mu.Unlock()
			return read
		}
		if d.round == nil {
			d.begin(ctx, g, connection, now)
		}
		round := d.round
		patience := round.patience(d.silent)
		round.readers++
		d.mu.Unlock()
		if !round.wait(ctx, patience) {
			return d.unknown(connection.Schema, asked)
		}
	}
}

// wait says whether the round ended while somebody waited for it.
func (r *gateRound) wait(ctx context.Context, patience time.Duration) bool {
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	select {
	case <-r.done:
		return true
	case <-bounded.Done():
		return false
	}
}

// unknown is the answer to whoever does not wait any longer. It says what the last round met, so that a message does not change with who asks.
func (d *gateDatabase) unknown(schema string, asked time.Time) GateRead {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := d.reads[schema]; last.silent {
		return GateRead{Problem: last.Problem, At: asked}
	}
	return GateRead{Problem: "the database does not answer in time", At: asked}
}

// begin starts a round. It is called with the lock held.
func (d *gateDatabase) begin(ctx context.Context, g *Gates, connection Connection, now time.Time) {
	round := &gateRound{done: make(chan struct{}), started: time.Now()}
	d.round = round
	schemas := d.together(connection.Schema, now)
	bounded, end := g.rounds.context(ctx, round)
	go func() {
		defer end()
		reads := d.readAll(bounded, g, connection, schemas)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.silent = false
		for schema, read := range reads {
			d.reads[schema] = read
			d.silent = d.silent || read.silent
		}
		d.round = nil
		close(round.done)
	}()
}

// together lists the schemas to be read in one statement with the one that is asked for. It is called with the lock held.
func (d *gateDatabase) together(schema string, now time.Time) []string {
	if d.apart[schema] {
		return []string{schema}
	}
	schemas := []string{schema}
	for other, at := range d.wanted {
		if other != schema && !d.apart[other] && now.Sub(at) < wantedTogether {
			schemas = append(schemas, other)
		}
	}
	slices.Sort(schemas)
	return schemas
}

// rounds are those under way, so that they end with the operator.
type rounds struct {
	mu     sync.Mutex
	cancel map[*gateRound]context.CancelFunc
	ended  bool
}

// context is for a round: it ends with the operator, not with whoever began it. end forgets it.
func (r *rounds) context(ctx context.Context, round *gateRound) (bounded context.Context, end func()) {
	bounded, cancel := context.WithCancel(context.WithoutCancel(ctx))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel == nil {
		r.cancel = map[*gateRound]context.CancelFunc{}
	}
	r.cancel[round] = cancel
	if r.ended {
		cancel()
	}
	return bounded, func() {
		cancel()
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.cancel, round)
	}
}

// end ends the rounds under way, and those that begin later at once.
func (r *rounds) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, cancel := range r.cancel {
		cancel()
	}
}
