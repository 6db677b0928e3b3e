package servegate

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Reason is why a gate is open or closed. The words are those of the condition of pods (docs/design.md section 8).
type Reason string

// The reasons that a database alone can give.
const (
	// GateOpen: the database proved that the version may serve.
	GateOpen Reason = "GateOpen"
	// MigrationPending: the database holds an older version, or none.
	MigrationPending Reason = "MigrationPending"
	// Backfilling: a checkpoint of the version, or of one before it, is not activated.
	Backfilling Reason = "Backfilling"
	// CheckpointMissing: the history records a checkpoint that does not exist, or nothing of the stored version.
	CheckpointMissing Reason = "CheckpointMissing"
	// ReaderTooOld: programs of the version can no longer read what the database holds.
	ReaderTooOld Reason = "ReaderTooOld"
	// Standby: the server is a standby. What it shows may be old, so it proves nothing.
	Standby Reason = "Standby"
	// SchemaNotFound: the database schema has no catalog.
	SchemaNotFound Reason = "SchemaNotFound"
	// Conflict: the database schema belongs to another SyncSchema than Options say.
	Conflict Reason = "Conflict"
	// Unreachable: the gate could not be read. The error beside it says why.
	Unreachable Reason = "Unreachable"
)

// DefaultTimeout bounds a read of the gate if Options.Timeout does not.
const DefaultTimeout = 2 * time.Second

// Options say whose gate it is.
type Options struct {
	// Version is the schema version that the program was built for, 1 to 2147483647. It belongs into the program, not into its settings.
	Version int64
	// Name is that of the SyncSchema which must own the database schema. If empty any may: then a program that was given another
	// application's database is not told so.
	Name string
	// Namespace and Cluster say more about that SyncSchema: its namespace, and the UID of the namespace kube-system of its cluster. What is empty is
	// not compared. A database schema that a command line migrated has no cluster, and any will do.
	Namespace, Cluster string
	// Schema is the PostgreSQL schema that holds the catalog. If empty it is public. SQLite has none.
	Schema string
	// Timeout bounds each read of the gate. 0 is DefaultTimeout.
	Timeout time.Duration
}

// Answer is what one read of the database said.
type Answer struct {
	// Open says that the program may serve.
	Open bool `json:"open"`
	// Writable says that it may write too: the fence accepts its version.
	Writable bool `json:"writable"`
	// Reason is a word that programs may branch on.
	Reason Reason `json:"reason"`
	// Message is for people who run the database: it names versions, checkpoints and partitions. Show it in logs, not to the public.
	Message string `json:"message"`
	// StoredVersion is the version that the database holds; 0 if there is none, or it could not be read.
	StoredVersion int64 `json:"storedVersion"`
}

// ClosedError is the error of a Query whose gate was closed.
type ClosedError struct{ Answer Answer }

func (e *ClosedError) Error() string {
	return fmt.Sprintf("the serve gate is closed: %s: %s", e.Answer.Reason, e.Answer.Message)
}

// Gate is the gate of one program's version on one database. It keeps no connection of its own. Tx is the transaction that Query
// gives. Its methods may be called by many goroutines at once.
type Gate[Tx any] struct {
	source  source[Tx]
	dialect dialect
	options Options
	now     func() time.Time
}

// source makes snapshots of a database.
type source[Tx any] interface {
	// snapshot begins a transaction that can only read and has one snapshot for all its statements, calls run, and ends it.
	snapshot(ctx context.Context, run func(ctx context.Context, tx Tx, one queryRow) error) error
	// one reads one row outside a snapshot.
	one(ctx context.Context, targets []any, text string, arguments ...any) error
}

// queryRow reads one row into targets. No row is an error.
type queryRow func(ctx context.Context, targets []any, text string, arguments ...any) error

func newGate[Tx any](from source[Tx], dialect dialect, o Options) (*Gate[Tx], error) {
	if o.Version < 1 || o.Version > math.MaxInt32 {
		return nil, fmt.Errorf("make a serve gate: version %d is not between 1 and %d", o.Version, math.MaxInt32)
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("make a serve gate: the timeout %v is below 0", o.Timeout)
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	return &Gate[Tx]{source: from, dialect: dialect, options: o, now: time.Now}, nil
}

// Check reads the gate, once, within Options.Timeout. With an error the answer is closed, for reason Unreachable.
func (g *Gate[Tx]) Check(ctx context.Context) (Answer, error) {
	answer, _, err := g.read(ctx)
	return answer, err
}

// read is Check with the facts.
func (g *Gate[Tx]) read(ctx context.Context) (answer Answer, facts storage.ServeGate, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeout)
	defer cancel()
	err = g.source.snapshot(ctx, func(ctx context.Context, _ Tx, one queryRow) (err error) {
		answer, facts, err = g.judge(ctx, one)
		return err
	})
	if err != nil {
		err = fmt.Errorf("read the serve gate of version %d: %w", g.options.Version, err)
		return Answer{Reason: Unreachable, Message: err.Error()}, storage.ServeGate{}, err
	}
	return answer, facts, nil
}

// judge reads the gate and its owner in somebody's snapshot.
func (g *Gate[Tx]) judge(ctx context.Context, one queryRow) (Answer, storage.ServeGate, error) {
	facts, err := g.dialect.gate(ctx, one, g.options.Version)
	if err != nil {
		return Answer{}, storage.ServeGate{}, err
	}
	wanted := storage.Owner{Cluster: g.options.Cluster, Namespace: g.options.Namespace, Name: g.options.Name}
	if facts.Catalog && facts.Owner == nil && wanted != (storage.Owner{}) {
		return Answer{Reason: Conflict, Message: "no SyncSchema manages this database schema, so not the one that is wanted"}, storage.ServeGate{}, nil
	}
	verdict := facts.VerdictFor(wanted)
	if verdict.Reason == storage.GateConflict {
		// What another application's database holds says nothing of this one's version either.
		return Answer{Reason: Conflict, Message: verdict.Message}, storage.ServeGate{}, nil
	}
	return Answer{
		Open: verdict.Open, Writable: verdict.Writable, Reason: Reason(verdict.Reason), Message: verdict.Message,
		StoredVersion: facts.StoredVersion,
	}, facts, nil
}

// IsClosed says that a Query was refused because the gate was closed, and gives the answer that closed it.
func IsClosed(err error) (Answer, bool) {
	var closed *ClosedError
	if errors.As(err, &closed) {
		return closed.Answer, true
	}
	return Answer{}, false
}
