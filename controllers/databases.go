package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Bounds of what the manager opens (docs/design.md section 7, "Reconciling is not a place to wait").
const (
	// PoolConnections is how many connections an Opener may give a Database.
	PoolConnections = 4
	maxPools        = 64
	poolIdle        = 60 * time.Second
	sweepEvery      = 15 * time.Second
)

// Database is an opened database, whose Stores share one pool of connections.
type Database interface {
	// Store gives the Store of a schema, to be used until the Database is closed. Errors are about that schema, or those of any Store.
	Store(ctx context.Context, schema string) (storage.Store, error)
	// Close ends all connections. One that is in use ends when its transaction does.
	Close()
}

// Opener opens the database of a connection, whatever its schema, with at most PoolConnections connections, and within three seconds. Its
// errors have the codes of storage and never repeat a secret.
type Opener func(ctx context.Context, c Connection) (Database, error)

// Databases keeps the pools that reconcilers use: one for each address, database, user and set of credentials, 64 at most, closed after a
// minute without use. All schemas of a database share its pool. A server that does not answer is left alone during a growing pause, so
// that one dead database slows nobody else, and takes part in one barrier attempt at a time.
//
// Who waits for a connection of a pool has none, so that those who share it never wait for each other. The exception is a barrier: it has a
// second one to watch the first, waits for that before it has a lock and not for long, and can do without (storage/postgres).
type Databases struct {
	open  Opener
	clock clock.Clock

	mu      sync.Mutex
	pools   map[poolKey]*pool
	servers map[string]*server
	refused map[poolKey]*breaker // addresses with credentials that a server refused
	closed  bool
	leases  sync.WaitGroup
	closing sync.WaitGroup // pools that are being closed beside everything else
}

// NewDatabases makes an empty set. A nil clock is the real one.
func NewDatabases(open Opener, c clock.Clock) *Databases {
	if c == nil {
		c = clock.Real{}
	}
	return &Databases{
		open: open, clock: c,
		pools: map[poolKey]*pool{}, servers: map[string]*server{}, refused: map[poolKey]*breaker{},
	}
}

// poolKey tells pools apart. A label of a Secret is no part of it, so touching one drops no pool. address has the database's name.
type poolKey struct{ address, user, credentials string }

type pool struct {
	key      poolKey
	database Database // nil until it is opened
	server   *server
	opened   chan struct{} // closed when opening it has ended
	leases   int
	used     time.Time
	stale    bool // no longer given out; closed with its last lease
}

// server is what is known of one address.
type server struct {
	name    string
	breaker breaker
	healthy bool          // the last connection to it was made
	probing chan struct{} // not nil while somebody finds out whether it answers
	barrier turns         // taken during a barrier attempt
}

// Lease is the use of a Store by one pass.
type Lease struct {
	// Store is open until Release.
	Store storage.Store

	databases *Databases
	pool      *pool
	once      sync.Once
}

// Acquire gives the Store of a connection. It waits for its own dialling, or that of another pass which is the first to try this server, and
// the first time a schema is asked for, for one of the pool's connections.
//
// Errors: those of the Opener and of Database; a *waiting while the server, or these credentials, are left alone after a failure.
func (d *Databases) Acquire(ctx context.Context, c Connection) (*Lease, error) {
	lease, err := d.lease(ctx, c)
	if err != nil {
		return nil, err
	}
	if lease.Store, err = lease.pool.database.Store(ctx, c.Schema); err != nil {
		if ctx.Err() == nil {
			lease.Report(err)
		}
		lease.Release()
		return nil, err
	}
	return lease, nil
}

// lease gives a lease of the pool, without a Store.
func (d *Databases) lease(ctx context.Context, c Connection) (*Lease, error) {
	for {
		lease, wait, err := d.tryAcquire(ctx, c)
		if wait == nil {
			return lease, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %s: %w", c.Name, context.Cause(ctx))
		}
	}
}

// tryAcquire gives a lease, an error, or something to wait for.
func (d *Databases) tryAcquire(ctx context.Context, c Connection) (*Lease, <-chan struct{}, error) {
	d.mu.Lock()
	now := d.clock.Now()
	at := d.serverOf(c.Server)
	if err := d.mayConnect(at, c, now); err != nil {
		d.mu.Unlock()
		return nil, nil, err
	}
	if p, ok := d.pools[c.key()]; ok {
		defer d.mu.Unlock()
		if p.database == nil {
			return nil, p.opened, nil
		}
		return d.leaseLocked(p, now), nil, nil
	}
	if at.probing != nil {
		defer d.mu.Unlock()
		if at.breaker.failures > 0 { // it was dead, and one is enough to find out whether it still is
			return nil, nil, at.breaker.refusal(time.Second)
		}
		return nil, at.probing, nil
	}
	evicted, err := d.makeRoom()
	if err != nil {
		d.mu.Unlock()
		return nil, nil, err
	}
	p := &pool{key: c.key(), server: at, opened: make(chan struct{})}
	d.pools[p.key] = p
	if !at.healthy {
		at.probing = p.opened
	}
	d.mu.Unlock()
	if evicted != nil {
		evicted.Close()
	}
	lease, err := d.dial(ctx, c, p)
	return lease, nil, err
}

func (d *Databases) mayConnect(at *server, c Connection, now time.Time) error {
	if d.closed {
		return operatorEnds()
	}
	if wait := at.breaker.wait(now); wait > 0 {
		return at.breaker.refusal(wait)
	}
	if refused := d.refused[c.key()]; refused != nil {
		if wait := refused.wait(now); wait > 0 {
			return refused.refusal(min(wait, secretRetry)) // other credentials are tried at once
		}
	}
	return nil
}

func operatorEnds() error {
	return &waiting{reason: v1alpha1.ReasonCancelled, message: "the operator is ending", after: time.Second}
}

func (d *Databases) serverOf(name string) *server {
	at, ok := d.servers[name]
	if !ok {
		at = &server{name: name}
		d.servers[name] = at
	}
	return at
}

// dial opens a pool that stands in the map already, without the lock.
func (d *Databases) dial(ctx context.Context, c Connection, p *pool) (*Lease, error) {
	database, err := d.open(ctx, c)
	d.mu.Lock()
	defer d.mu.Unlock()
	defer close(p.opened)
	now := d.clock.Now()
	if p.server.probing == p.opened {
		p.server.probing = nil
	}
	if err != nil {
		delete(d.pools, p.key)
		if ctx.Err() == nil {
			d.noteFailure(p, err, now)
		}
		return nil, err
	}
	if d.closed { // Close no longer waits for new leases
		delete(d.pools, p.key)
		database.Close()
		return nil, operatorEnds()
	}
	p.database = database
	p.server.healthy, p.server.breaker = true, breaker{}
	delete(d.refused, p.key)
	databasePools.Set(float64(len(d.pools)))
	return d.leaseLocked(p, now), nil
}

func (d *Databases) leaseLocked(p *pool, now time.Time) *Lease {
	p.leases++
	p.used = now
	d.leases.Add(1)
	return &Lease{databases: d, pool: p}
}

// makeRoom takes the pool that was not used for longest out of the map, if there are too many, and gives it to be closed.
func (d *Databases) makeRoom() (Database, error) {
	if len(d.pools) < maxPools {
		return nil, nil
	}
	var oldest *pool
	for _, p := range d.pools {
		if p.leases == 0 && p.database != nil && (oldest == nil || p.used.Before(oldest.used)) {
			oldest = p
		}
	}
	if oldest == nil {
		return nil, &waiting{reason: v1alpha1.ReasonThrottled, after: time.Second,
			message: fmt.Sprintf("all %d database pools of the operator are in use", maxPools)}
	}
	delete(d.pools, oldest.key)
	return oldest.database, nil
}

// noteFailure lets the breakers know. It is called with the lock held.
func (d *Databases) noteFailure(p *pool, err error, now time.Time) {
	class := storage.ClassOf(err)
	if class == storage.ClassConnectionLost || class == storage.ClassAuthenticationFailed {
		serverFailures.WithLabelValues(string(class)).Inc()
	}
	switch class {
	case storage.ClassConnectionLost:
		p.server.healthy = false
		p.server.breaker.trip(err, now, shortestBreak)
		d.abandon(p.server)
	case storage.ClassAuthenticationFailed, storage.ClassInvalidSpec: // a database that is not there, too
		refused, ok := d.refused[p.key]
		if !ok {
			refused = &breaker{}
			d.refused[p.key] = refused
		}
		refused.trip(err, now, shortestRefusal)
	}
}

// abandon takes all pools of a server out of the map. Their connections lead to the same dead end, and each would be waited for by a pass of its
// own; so one pass finds out with a new connection whether the server is back. It is called with the lock held.
func (d *Databases) abandon(at *server) {
	if d.closed { // Close has them all
		return
	}
	for key, p := range d.pools {
		if p.server != at || p.database == nil {
			continue
		}
		p.stale = true
		delete(d.pools, key)
		if p.leases == 0 {
			d.closing.Go(p.database.Close)
		}
	}
}

// Report tells what an error of the Store says about the server. After a lost connection, a server that became read-only or refused
// credentials the pool is not given out again: its other connections may go to the same dead end. What an error says of one schema, a right
// that is missing there too, is nothing to the others.
func (l *Lease) Report(err error) {
	switch storage.CodeOf(err) {
	case storage.CodeConnectionLost, storage.CodeCommitUnknown, storage.CodeReadOnly, storage.CodeAuthenticationFailed:
	default:
		return
	}
	d := l.databases
	d.mu.Lock()
	defer d.mu.Unlock()
	if l.pool.stale {
		return
	}
	l.pool.stale = true
	if d.pools[l.pool.key] == l.pool {
		delete(d.pools, l.pool.key)
	}
	d.noteFailure(l.pool, err, d.clock.Now())
}

// TryBarrier takes the right to the one barrier attempt that a server takes part in at a time. done is nil while another pass has it; then so
// many are ahead of this one, and wake, if not nil, is called when it is its turn.
func (l *Lease) TryBarrier(who types.UID, wake func()) (done func(), ahead int) {
	ahead, ok := l.pool.server.barrier.take(who, wake)
	if !ok {
		return nil, ahead
	}
	return l.pool.server.barrier.give, 0
}

// Release ends the use. It may be called again.
func (l *Lease) Release() {
	l.once.Do(func() {
		d := l.databases
		d.mu.Lock()
		p := l.pool
		p.leases--
		p.used = d.clock.Now()
		if p.stale && p.leases == 0 {
			d.closing.Go(p.database.Close) // which takes its time if the server does not answer
		}
		d.mu.Unlock()
		d.leases.Done()
	})
}

// CloseIdle closes what was not used for a minute, and forgets refusals that are long over.
func (d *Databases) CloseIdle() {
	d.mu.Lock()
	now := d.clock.Now()
	var idle []Database
	used := map[*server]bool{}
	for key, p := range d.pools {
		if p.leases == 0 && p.database != nil && now.Sub(p.used) >= poolIdle {
			idle = append(idle, p.database)
			delete(d.pools, key)
			continue
		}
		used[p.server] = true
	}
	for key, refused := range d.refused {
		if now.Sub(refused.until) > longestBreak {
			delete(d.refused, key)
		}
	}
	for name, at := range d.servers {
		// One that a lease still holds is in a pool, or is stale and tried anew by whoever comes next.
		if !used[at] && at.probing == nil && now.Sub(at.breaker.until) > longestBreak && at.barrier.idle() {
			delete(d.servers, name)
		}
	}
	databasePools.Set(float64(len(d.pools)))
	d.mu.Unlock()
	for _, database := range idle {
		database.Close()
	}
}

// Start closes idle pools until ctx ends, and then all of them. It is a Runnable of a manager.
func (d *Databases) Start(ctx context.Context) error {
	for d.clock.Sleep(ctx, sweepEvery) == nil {
		d.CloseIdle()
	}
	d.Close()
	return nil
}

// Close refuses further use, waits until every lease is released, and closes all pools. Leases end soon after the context of
// their pass, since every operation of a Store honours it.
func (d *Databases) Close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.leases.Wait()
	d.mu.Lock()
	pools := d.pools
	d.pools = map[poolKey]*pool{}
	d.mu.Unlock()
	for _, p := range pools {
		d.closing.Go(func() {
			<-p.opened
			if p.database != nil {
				p.database.Close()
			}
		})
	}
	d.closing.Wait()
}
