package postgres

import (
	"sync"
	"time"
)

// backfillMemory is what a process remembers between batches. It only saves work: everything that decides is read in
// the batch's own transaction.
type backfillMemory struct {
	mu        sync.Mutex
	plans     map[string]*backfillPlan // by claim token
	contended map[string]int           // by checkpoint: so many batches are done without waiting for rows at all
	places    map[rangeOf]batchPlace   // where the next batch begins
	pruned    map[string]time.Time     // by checkpoint: when the captured log of all partitions was pruned last
}

// rangeOf is a key range of a claim.
type rangeOf struct {
	token string
	no    int
}

// memoryBound is how many claims are remembered. A process works on few at a time.
const memoryBound = 64

func (m *backfillMemory) plan(token string) *backfillPlan {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plans[token]
}

func (m *backfillMemory) keep(token string, plan *backfillPlan) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plans == nil || len(m.plans) >= memoryBound {
		m.plans = map[string]*backfillPlan{}
	}
	m.plans[token] = plan
}

func (m *backfillMemory) forget(token string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.plans, token)
}

// contendedBatches is how many batches go round the program's rows after one that met them.
const contendedBatches = 32

// met notes that a batch had to wait for the program.
func (m *backfillMemory) met(checkpoint string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.contended == nil || len(m.contended) >= memoryBound {
		m.contended = map[string]int{}
	}
	m.contended[checkpoint] = contendedBatches
}

// quiet says whether the next batch may try to take its rows without looking, and counts it if not.
func (m *backfillMemory) quiet(checkpoint string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.contended[checkpoint] == 0 {
		return true
	}
	m.contended[checkpoint]--
	return false
}

// expect notes where the next batch of a range begins if nobody else moves the cursor.
func (m *backfillMemory) expect(token string, no int, place batchPlace) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.places == nil || len(m.places) >= memoryBound*rangesBound {
		m.places = map[rangeOf]batchPlace{}
	}
	m.places[rangeOf{token, no}] = place
}

func (m *backfillMemory) expected(token string, no int) (batchPlace, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	place, ok := m.places[rangeOf{token, no}]
	return place, ok
}

// pruneAllEvery is how often the captured log of all partitions is pruned while a checkpoint is worked on.
const pruneAllEvery = 30 * time.Second

// pruneAll says whether it is time to do that, and notes that it is done.
func (m *backfillMemory) pruneAll(checkpoint string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pruned == nil || len(m.pruned) >= memoryBound {
		m.pruned = map[string]time.Time{}
	}
	if last, known := m.pruned[checkpoint]; known && now.Sub(last) < pruneAllEvery {
		return false
	}
	m.pruned[checkpoint] = now
	return true
}
