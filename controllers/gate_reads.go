package controllers

import (
	"context"
	"errors"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// How fresh what is known of a gate is (docs/design.md section 8, "Freshness").
const (
	// hotGate is how often a gate is read while a pod waits for it or a checkpoint is open, coldGate how often otherwise.
	hotGate  = 250 * time.Millisecond
	coldGate = 30 * time.Second
	// GateConnections is how many connections a pool for gates needs: its reads follow one another.
	GateConnections = 1

	readTimeout    = 3 * time.Second // of one read
	addressKept    = 5 * time.Second // how long an address from a Secret is used without reading the Secret again
	problemKept    = time.Second     // how long the API server is not asked again after it failed to answer
	wantedTogether = 2 * hotGate     // schemas of one database that were asked for within this time are read together
)

// Gates reads the serve gates of databases, on connections of its own, so that no barrier and no backfill is in its way. Whoever asks for a
// schema soon after somebody else has the same answer; schemas of one database are read in one statement.
type Gates struct {
	// Live reads Secrets from the API server.
	Live client.Reader
	// Databases are for nothing but gates.
	Databases *Databases
	Clock     clock.Clock // nil: the real one

	mu        sync.Mutex
	addresses map[types.NamespacedName]gateAddress
	databases map[poolKey]*gateDatabase
	rounds    rounds
}

// GateRead is what a read of a gate gave. A read that failed says nothing of the one before it.
type GateRead struct {
	// Gate is for storage.AllVersions; nil: it could not be read, and Problem says why.
	Gate    *storage.ServeGate
	Problem string
	// At is when the read began.
	At time.Time

	silent bool // the server gave no answer
}

// Start closes idle connections until ctx ends, and then all of them. It is a Runnable of a manager.
func (g *Gates) Start(ctx context.Context) error {
	defer context.AfterFunc(ctx, g.rounds.end)()
	return g.Databases.Start(ctx)
}

// NeedLeaderElection says that every replica reads gates: those that do not lead answer by HTTP.
func (g *Gates) NeedLeaderElection() bool { return false }

// gateAddress is the address of an object's database, as its Secrets had it, or why there is none.
type gateAddress struct {
	uid        types.UID
	generation int64
	connection Connection
	err        error
	at         time.Time
}

// current says whether it still stands for an object.
func (a gateAddress) current(object *v1alpha1.SyncSchema, now time.Time) bool {
	kept := addressKept
	if a.err != nil && judge(a.err, v1alpha1.ReasonMigrating) == nil { // of the Kubernetes API
		kept = problemKept
	}
	return a.uid == object.UID && a.generation == object.Generation && now.Sub(a.at) < kept
}

// gateDatabase is one database with the schemas in it that somebody asked for.
type gateDatabase struct {
	mu     sync.Mutex
	wanted map[string]time.Time
	apart  map[string]bool // schemas that failed alone, so that they do not fail the others
	reads  map[string]GateRead
	round  *gateRound // the reading under way; nil: none
	silent bool       // the last round got no answer
}

// Read gives the gate of a SyncSchema, read less than maxAge ago.
func (g *Gates) Read(ctx context.Context, object *v1alpha1.SyncSchema, maxAge time.Duration) GateRead {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	connection, err := g.address(ctx, object)
	if err != nil {
		return GateRead{Problem: err.Error(), At: clock.Or(g.Clock).Now()}
	}
	read := g.database(connection).read(ctx, g, connection, maxAge)
	gateReads.WithLabelValues(outcomeOf(read)).Inc()
	return read
}

func outcomeOf(read GateRead) string {
	if read.Gate == nil {
		return "failed"
	}
	return "read"
}

// address resolves the address of an object's database. At 250 ms its Secret is not asked of the API server each time, whether the database
// answers or not: one that was changed takes effect once the address is no longer kept.
func (g *Gates) address(ctx context.Context, object *v1alpha1.SyncSchema) (Connection, error) {
	name, now := client.ObjectKeyFromObject(object), clock.Or(g.Clock).Now()
	g.mu.Lock()
	known, ok := g.addresses[name]
	g.mu.Unlock()
	if ok && known.current(object, now) {
		return known.connection, known.err
	}
	connection, err := newResolver(g.Live, object.Namespace).connection(ctx, object.Spec.Database.Postgres)
	if err != nil && ctx.Err() != nil {
		return Connection{}, err // whoever asked has left
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.addresses == nil {
		g.addresses = map[types.NamespacedName]gateAddress{}
	}
	for other, kept := range g.addresses {
		if now.Sub(kept.at) > poolIdle {
			delete(g.addresses, other)
		}
	}
	g.addresses[name] = gateAddress{uid: object.UID, generation: object.Generation, connection: connection, err: err, at: now}
	return connection, err
}

// database gives what is kept of the database that a connection leads to. Databases that nobody asked for in a while are forgotten.
func (g *Gates) database(connection Connection) *gateDatabase {
	key, now := connection.key(), clock.Or(g.Clock).Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.databases == nil {
		g.databases = map[poolKey]*gateDatabase{}
	}
	for other, kept := range g.databases {
		if kept.idle(now) {
			delete(g.databases, other)
		}
	}
	known, ok := g.databases[key]
	if !ok {
		known = &gateDatabase{wanted: map[string]time.Time{}, apart: map[string]bool{}, reads: map[string]GateRead{}}
		g.databases[key] = known
	}
	known.want(connection.Schema, now)
	return known
}

func (d *gateDatabase) want(schema string, now time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.wanted[schema] = now
}

func (d *gateDatabase) idle(now time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range d.wanted {
		if now.Sub(at) < poolIdle {
			return false
		}
	}
	return true
}

// readAll reads schemas together, or, where one of them fails that, each alone. A server that does not answer is not asked again.
func (d *gateDatabase) readAll(ctx context.Context, g *Gates, connection Connection, schemas []string) map[string]GateRead {
	connection.Schema = schemas[0]
	gates, began, err := g.readSchemas(ctx, connection, schemas)
	reads := map[string]GateRead{}
	if len(schemas) > 1 && err != nil && !unanswered(err) {
		for _, schema := range schemas {
			maps.Copy(reads, d.readAll(ctx, g, connection, []string{schema}))
		}
		return reads
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, schema := range schemas {
		if err != nil {
			reads[schema] = GateRead{Problem: err.Error(), At: began, silent: unanswered(err)}
			d.apart[schema] = !unanswered(err)
			continue
		}
		reads[schema] = GateRead{Gate: &gates[i], At: began}
		d.apart[schema] = !gates[i].Catalog // before its first barrier it has nothing to be read together with others
	}
	return reads
}

// unanswered says that an error is about the server, and no answer to what was asked. A right that is missing in one schema is one.
func unanswered(err error) bool {
	var left *waiting
	if storage.CodeOf(err) == storage.CodeRightMissing {
		return false
	}
	return errors.As(err, &left) || storage.ClassOf(err).Retryable() || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// readSchemas makes one read, which begins once there is a connection: what it shows is not older. A schema without our catalog is read by
// itself and has a gate that is closed.
func (g *Gates) readSchemas(ctx context.Context, connection Connection, schemas []string) (gates []storage.ServeGate, began time.Time, err error) {
	lease, err := g.Databases.Acquire(ctx, connection)
	began = clock.Or(g.Clock).Now()
	if err != nil {
		return nil, began, err
	}
	defer lease.Release()
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	if several, ok := lease.Store.(storage.ServeGatesOf); ok && len(schemas) > 1 {
		gates, err = several.ReadServeGates(ctx, schemas)
	} else {
		gates = make([]storage.ServeGate, 1)
		gates[0], err = lease.Store.ReadServeGate(ctx, storage.AllVersions)
	}
	if err != nil {
		lease.Report(err)
		return nil, began, err
	}
	return gates, began, nil
}
