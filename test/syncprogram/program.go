package syncprogram

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Age is how old a program is.
type Age int

// The two ages.
const (
	// Older was built before fences and checkpoints: no writer version, no trigger, no lock before its migration.
	Older Age = iota
	// Newer has the protocol's barrier.
	Newer
)

func (a Age) String() string { return [...]string{"older", "newer"}[a] }

// Codes that the program itself gives; those of the database's triggers come as they are.
var (
	ErrCheckpointIncomplete   = errors.New("sync.storage.checkpoint_incomplete")
	ErrCheckpointNotDeclared  = errors.New("sync.storage.checkpoint_not_declared")
	ErrCheckpointFenceMissing = errors.New("sync.storage.checkpoint_fence_missing")
	ErrNotReady               = errors.New("sync.not_ready")
	ErrStoredNewer            = errors.New("stored schema version is newer than the configured schema")
)

// Options say what a process is like.
type Options struct {
	Age    Age
	Schema Schema
	// MarkerRead, if set, runs after a start has read the marker and before it asks for the migration's lock.
	MarkerRead func(ctx context.Context) error
	// Isolation is how the process begins its push transactions on PostgreSQL; empty: as the database says.
	Isolation string
}

// Declaration names a checkpoint that the process declares with its schema.
type Declaration struct {
	Partition     string
	Name          string
	SchemaVersion int64
}

// Checkpoint is a stored checkpoint.
type Checkpoint struct {
	Partition     string
	Name          string
	SchemaVersion int64
	State         string
	Watermark     int64
	OwnerEpoch    int64
	ObservedRows  int64
}

// Gate is what the three reads of the protocol's serve gate showed.
type Gate struct {
	StoredSchemaVersion int64
	LogEpoch            string
	Pending             []Declaration // partition and name
}

// refusal is why the process must not serve, nil if it may.
func (g Gate) refusal(running int64) error {
	if g.StoredSchemaVersion != running {
		return fmt.Errorf("%w: the stored schema version is %d, this process was built for %d", ErrNotReady, g.StoredSchemaVersion, running)
	}
	if len(g.Pending) > 0 {
		return fmt.Errorf("%w: checkpoint %q of partition %q is not activated", ErrNotReady, g.Pending[0].Name, g.Pending[0].Partition)
	}
	return nil
}

// Verdicts and outcomes of the protocol.
const (
	Clean        = "clean"
	Changed      = "changed"
	Unverifiable = "unverifiable"
	Activated    = "activated"
	Stale        = "stale"
)

// Process is one process of a program.
type Process interface {
	// EnsureSchema is the start: tables and triggers, marker, and if the marker is older, the migration.
	EnsureSchema(ctx context.Context, checkpoints ...Declaration) error
	// Begin opens a push transaction on a partition.
	Begin(ctx context.Context, partition string) (Transaction, error)
	// ReadServeGate reads the gate outside a transaction: three statements, three snapshots.
	ReadServeGate(ctx context.Context, partition string) (Gate, error)
	// Query runs an authoritative read in one snapshot with the gate, and gives its rows and the position of the log.
	Query(ctx context.Context, partition, sql string) (rows [][]any, maxCommitSeq int64, err error)
	ReadCheckpoints(ctx context.Context, partition string) ([]Checkpoint, error)
	DeclareCheckpoint(ctx context.Context, partition, name string, schemaVersion int64) (Checkpoint, error)
	ClaimCheckpoint(ctx context.Context, partition, name string, schemaVersion int64) (Checkpoint, error)
	AdvanceCheckpoint(ctx context.Context, partition, name string, ownerEpoch, watermark, observedRows int64) (bool, error)
	ActivateCheckpoint(ctx context.Context, partition, name string, ownerEpoch, watermark int64, sources []string) (string, error)
	HasSourceChangesAbove(ctx context.Context, partition string, tables []string, seq int64) (string, error)
	SourceCoverageSeq(ctx context.Context, partition string, tables []string) (int64, error)
	SetHorizonSeq(ctx context.Context, partition string, seq int64) error
	// Prune deletes the log up to seq; the horizon is moved apart from it.
	Prune(ctx context.Context, partition string, seq int64) error
	// TouchPartition registers a partition with a log epoch of its own, or notes that it is in use.
	TouchPartition(ctx context.Context, partition, logEpoch string) error
	Close()
}

// Transaction is a push transaction. It must be ended.
type Transaction interface {
	LockPartition(ctx context.Context) error
	UpsertRow(ctx context.Context, table string, row Row) error
	GetRow(ctx context.Context, table, rowID string) (Row, bool, error)
	DeleteRow(ctx context.Context, table, rowID string) error
	AppendCommit(ctx context.Context, commit Commit) (int64, error)
	PutPushResult(ctx context.Context, clientID, clientCommitID, result string) error
	AdvanceCheckpoint(ctx context.Context, name string, ownerEpoch, watermark, observedRows int64) (bool, error)
	ReadServeGate(ctx context.Context) (Gate, error)
	Query(ctx context.Context, sql string) ([][]any, int64, error)
	// Reject undoes what the push wrote since LockPartition, keeps its result, and commits.
	Reject(ctx context.Context, clientID, clientCommitID, result string) error
	Commit(ctx context.Context) error
	Rollback(ctx context.Context)
}

// Row is a stored row. Scopes is a JSON object of texts.
type Row struct {
	RowID         string
	ServerVersion int64
	Scopes        string
	Payload       []byte
}

// Commit is one entry of the log.
type Commit struct {
	ClientID       string
	ClientCommitID string
	ActorID        string
	CreatedAtMs    int64
	Changes        []Change
}

// Change is one changed row of a commit.
type Change struct {
	Table      string
	RowID      string
	Delete     bool
	RowVersion int64
	Scopes     map[string]string
	Payload    []byte
}

func (c Change) op() int {
	if c.Delete {
		return 2
	}
	return 1
}

// Push writes one row and its commit as the push handler does: lock, rows, commit, result.
func Push(ctx context.Context, p Process, table Table, partition, rowID string, values []any) (int64, error) {
	payload, err := EncodeRow(table.Columns, values)
	if err != nil {
		return 0, err
	}
	return push(ctx, p, partition, rowID, func(tx Transaction) (Change, error) {
		old, _, err := tx.GetRow(ctx, table.Name, rowID)
		if err != nil {
			return Change{}, err
		}
		row := Row{RowID: rowID, ServerVersion: old.ServerVersion + 1, Scopes: `{"tenant":"t"}`, Payload: payload}
		change := Change{
			Table: table.Name, RowID: rowID, RowVersion: row.ServerVersion, Scopes: map[string]string{"tenant": "t"}, Payload: payload,
		}
		return change, tx.UpsertRow(ctx, table.Name, row)
	})
}

// PushDelete deletes one row and logs it.
func PushDelete(ctx context.Context, p Process, table, partition, rowID string) (int64, error) {
	return push(ctx, p, partition, rowID, func(tx Transaction) (Change, error) {
		return Change{Table: table, RowID: rowID, Delete: true}, tx.DeleteRow(ctx, table, rowID)
	})
}

func push(ctx context.Context, p Process, partition, rowID string, write func(Transaction) (Change, error)) (int64, error) {
	tx, err := p.Begin(ctx, partition)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(ctx)
	if err := tx.LockPartition(ctx); err != nil {
		return 0, err
	}
	change, err := write(tx)
	if err != nil {
		return 0, err
	}
	seq, err := tx.AppendCommit(ctx, Commit{ClientID: "client", ClientCommitID: "commit-" + rowID, ActorID: "actor", Changes: []Change{change}})
	if err != nil {
		return 0, err
	}
	if err := tx.PutPushResult(ctx, "client", "commit-"+rowID, fmt.Sprintf(`{"status":"applied","commitSeq":%d,"results":[]}`, seq)); err != nil {
		return 0, err
	}
	return seq, tx.Commit(ctx)
}

// undeclared says whether a stored, unfinished checkpoint is not among those that the process declares.
func undeclared(stored, declared []Declaration) bool {
	return slices.ContainsFunc(stored, func(s Declaration) bool {
		return !slices.ContainsFunc(declared, func(d Declaration) bool { return d.Partition == s.Partition && d.Name == s.Name })
	})
}
