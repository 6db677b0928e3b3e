package storage

import (
	"context"
	"time"
)

// CatalogProtocol is the number of the catalog this build writes and understands. A worker of an older build finishes its
// work while the number is the same; a higher one is CodeNewerCatalog.
const CatalogProtocol = 1

// Store is one database schema that carries a barrier. All methods are safe for concurrent use, bound every wait, honour the
// context, and return errors whose CodeOf and ClassOf are meaningful. Any method may return CodeConnectionLost,
// CodeAuthenticationFailed, CodeRightMissing, CodeConnectionsBusy, CodeReadOnly, CodeCancelled, CodeLockTimeout and CodeNewerCatalog; the others are named.
type Store interface {
	Barriers
	Writers
	Checkpoints
	Gates
	Logs
	Backfills
	Fences

	// Identity tells this database from others.
	Identity(ctx context.Context) (DatabaseIdentity, error)
	// Status reads marker, history, owner, checkpoints and progress in one snapshot. A database without our catalog is
	// not an error: Protocol is 0.
	Status(ctx context.Context) (Status, error)
	// Remove lists, in order, the statements that drop all that is ours (triggers, functions, catalog tables); with
	// apply it runs them in one transaction under the barrier's lock. The tables of the sync protocol and all application
	// columns stay. Without a catalog the list is empty.
	Remove(ctx context.Context, apply bool) ([]string, error)
	// Close ends all connections. It is idempotent.
	Close()
}

// Barriers plan and apply schema versions (docs/design.md section 3).
type Barriers interface {
	// Plan says what EnsureSchema would do now. It changes nothing and takes no lock. Errors: those of DecidePlan.
	Plan(ctx context.Context, target Target) (Plan, error)
	// EnsureSchema makes one attempt to bring the database to the target: catalog, locks, facts, Decide, steps, marker,
	// checkpoints, fence, checks, COMMIT. It either does all of it or nothing. attempt counts from 1 and goes into the
	// history; first names the table to wait for first (Error.Table of the attempt before), or is empty.
	//
	// Errors: those of Decide; CodeLockTimeout with blockers and Table; CodeInvalidSQL, CodeNotTransactional for user SQL;
	// CodeFenceBroken; CodeSerialization if the plan is another one than Target.PlanHash; CodeCommitUnknown when the
	// acknowledgement was lost (ask again: a barrier that did commit is found and agreed with). With an error LockHold of the result says how long the attempt had held its locks; 0: it had none.
	EnsureSchema(ctx context.Context, target Target, attempt Attempt) (BarrierResult, error)
}

// Attempt is one try of a barrier.
type Attempt struct {
	Number int
	First  string // table to wait for first; empty: the usual order
}

// Writers append to the log of one partition, as the sync protocol says.
type Writers interface {
	// Begin opens a writer's transaction on a partition, for a program built for the given schema version.
	// CodeInvalidSpec for an empty or reserved partition key.
	Begin(ctx context.Context, partition string, writerVersion int64) (Tx, error)
}

// Tx is a writer's transaction, for one goroutine. Its reads see what it staged. It must be ended; after Commit or Rollback every
// method but Rollback fails with CodeInvalidSpec. After a step that failed at the database it can only be rolled back, to the savepoint
// if there is one: every other method, Commit too, fails with that step's code and nothing of it is committed.
type Tx interface {
	// LockPartition locks the partition's row, making it if it is missing. Taken before rows are written.
	LockPartition(ctx context.Context) error
	// AppendCommit allocates the next sequence number and writes one commit with its changes. CodeWriterFenceRejected
	// if the fence refuses the writer version; the transaction can then only be rolled back.
	AppendCommit(ctx context.Context, commit Commit) (int64, error)
	// UpsertRow writes a row of a Syncular table in this partition.
	UpsertRow(ctx context.Context, table Table, row Row) error
	// GetRow reads a row of a Syncular table; ok is false if there is none.
	GetRow(ctx context.Context, table Table, rowID string) (row Row, ok bool, err error)
	// DeleteRow deletes a row of a Syncular table; deleting none is no error.
	DeleteRow(ctx context.Context, table Table, rowID string) error
	// AdvanceCheckpoint is Store.AdvanceCheckpoint inside this transaction.
	AdvanceCheckpoint(ctx context.Context, advance Advance) (bool, error)
	// ReadServeGate is Store.ReadServeGate inside this transaction.
	ReadServeGate(ctx context.Context, running int64) (ServeGate, error)
	// Query is Store.Query inside this transaction, without the gate. A query that fails leaves the transaction as it was.
	Query(ctx context.Context, name string, parameters ...any) (QueryResult, error)
	// Exec runs a statement of the program's own, with the backend's placeholders. It returns the rows affected.
	Exec(ctx context.Context, sql string, arguments ...any) (int64, error)
	// Savepoint marks a place to come back to, for a rejected push.
	Savepoint(ctx context.Context) error
	// RollbackToSavepoint undoes all since Savepoint and keeps the transaction open.
	RollbackToSavepoint(ctx context.Context) error
	Commit(ctx context.Context) error
	// Rollback undoes everything. After Commit or Rollback it does nothing and returns nil.
	Rollback(ctx context.Context) error
}

// Commit is one commit of the log.
type Commit struct {
	ClientID       string
	ClientCommitID string
	ActorID        string
	Changes        []Change
}

// Op is what happened to a row.
type Op int16

// The operations of sync_changes. OpRange is ours: RowID holds the smallest and largest key of a large statement.
const (
	OpUpsert Op = 1
	OpDelete Op = 2
	OpRange  Op = 3
)

// Change is one row of sync_changes.
type Change struct {
	Table      string
	RowID      string
	Op         Op
	RowVersion *int64
	Scopes     string // JSON; "" is {}
	Payload    []byte
}

// Row is a row of a Syncular table. Values are the typed columns by name, unless the table is not materialized.
type Row struct {
	RowID   string
	Version int64
	Scopes  string // JSON; "" is {}
	Payload []byte
	Values  map[string]any
}

// Checkpoints declare, claim, advance and activate backfills.
type Checkpoints interface {
	// DeclareCheckpoint writes row, definition and fence in one transaction, outside a barrier. Idempotent for the same
	// version and hash. tables are the declarations of the tables it names. CodeConflict unless its version is
	// the marker's and the gate of that version is closed; CodeContentDrift for a name used with another version or content;
	// CodeInvalidSpec.
	DeclareCheckpoint(ctx context.Context, checkpoint Checkpoint, tables []Table) ([]CheckpointRow, error)
	// ClaimCheckpoint claims one row: owner epoch + 1, a new token, `declared` becomes `backfilling`.
	// CodeCheckpointNotDeclared if there is no row that is not activated.
	ClaimCheckpoint(ctx context.Context, partition, name string) (Claim, error)
	// ClaimAll claims every row of a checkpoint that is not activated, in one transaction, with one token, and cuts the
	// work into ranges the first time. restart begins the pass again: cursors, leftovers and positions are taken anew (after
	// an unverifiable verdict). A claim of a checkpoint whose rows are all activated has no rows and is no error.
	// CodeCheckpointNotDeclared if there is no such checkpoint; CodeCheckpointDefinitionMissing.
	ClaimAll(ctx context.Context, name string, restart bool) (Claim, error)
	// ReadClaim gives a claim back to a worker that knows only its token: the rows that still belong to it. It has no rows
	// once all of them are activated. CodeOwnershipLost if a newer claim took them, CodeCheckpointNotDeclared.
	ReadClaim(ctx context.Context, name, token string) (Claim, error)
	// AdvanceCheckpoint is a compare-and-swap on the claim: false means the caller is not the owner. False too once the row
	// is activated, and for a watermark that would go down. CodeInvalidSpec for the owner of a row that SQL fills.
	AdvanceCheckpoint(ctx context.Context, advance Advance) (bool, error)
	// ActivateCheckpoint flips one row of an external checkpoint (or of one whose ranges are all scanned and whose
	// tail is empty) if no source change is above the watermark given. CodeCheckpointFenceMissing, CodeScanIncomplete,
	// CodeCheckpointDefinitionMissing, CodeCheckpointNotDeclared. Asked again after success: OutcomeActivated.
	ActivateCheckpoint(ctx context.Context, owner Ownership, watermark int64) (Outcome, error)
	// AbandonCheckpoint deletes the rows of a checkpoint under the barrier's lock and keeps its name used, with by whom and
	// why in the history; the gate no longer needs it. It returns how many rows went. CodeCheckpointNotDeclared;
	// CodeCheckpointActivated if all of them are activated; CodeInvalidSpec without by or reason.
	AbandonCheckpoint(ctx context.Context, name string, version int64, by, reason string) (int, error)
	// ReadCheckpoints returns the rows of a partition, or of all for AllPartitions, by name and partition.
	ReadCheckpoints(ctx context.Context, partition string) ([]CheckpointRow, error)
	// ReadDefinition returns a checkpoint's definition. CodeCheckpointNotDeclared, CodeCheckpointDefinitionMissing.
	ReadDefinition(ctx context.Context, name string) (Definition, error)
	// ReadProgress returns what is known of one checkpoint. CodeCheckpointNotDeclared.
	ReadProgress(ctx context.Context, name string) (CheckpointProgress, error)
	// WriteSettings changes the live settings of a checkpoint; workers see them with their next batch.
	WriteSettings(ctx context.Context, name string, settings Settings) error
}

// Gates answer whether a program of a version may serve.
type Gates interface {
	// ReadServeGate is one statement, one snapshot. An error never means open.
	ReadServeGate(ctx context.Context, running int64) (ServeGate, error)
	// Query runs a query registered at open, READ ONLY, with the partition as its first parameter, in the same snapshot as
	// the gate of the running version. CodeNotReady with the gate's reason when closed; CodeInvalidSpec for an unknown name.
	Query(ctx context.Context, partition, name string, running int64, parameters ...any) (QueryResult, error)
}

// RegisteredQuery is a query that may be run through Query. Its first placeholder is the partition.
type RegisteredQuery struct {
	Name       string
	SQL        string
	Parameters int // beside the partition
}

// QueryResult holds rows and the log position of the same snapshot.
type QueryResult struct {
	Columns      []string
	Rows         [][]any
	MaxCommitSeq int64
	LogEpoch     string
}

// Logs answer for the commit log.
type Logs interface {
	// MaxCommitSeq is the last sequence number of a partition, 0 if it has none.
	MaxCommitSeq(ctx context.Context, partition string) (int64, error)
	// SourceCoverageSeq is the newest commit of the partition that changed one of the tables, 0 if none. An empty list is CodeInvalidSpec.
	SourceCoverageSeq(ctx context.Context, partition string, tables []string) (int64, error)
	// HasSourceChangesAbove says in one statement whether the log shows changes of the tables above seq, or cannot answer.
	// An empty list of tables is CodeInvalidSpec.
	HasSourceChangesAbove(ctx context.Context, partition string, tables []string, seq int64) (Coverage, error)
	// Prune moves the horizon to seq, at most to the end of the log, and deletes the log at or below it; it returns the horizon now in force. It does not
	// go past what an open checkpoint still needs (CodePruneRefused names it) unless forced. The horizon never goes back.
	Prune(ctx context.Context, partition string, seq int64, force bool) (int64, error)
	// RotateLogEpoch gives a partition (or all, for AllPartitions) a new random log epoch, as after a restore.
	RotateLogEpoch(ctx context.Context, partition string) error
}

// Backfills are the transactions of the runner (docs/design.md section 6). The runner holds no SQL; these hold no loop.
type Backfills interface {
	// TakeRanges takes the ranges r of the claim with r mod of = index, raising their lease epochs: whoever held them before is
	// refused from then on. Ranges that are finished are returned too. CodeOwnershipLost if the claim is not the newest.
	TakeRanges(ctx context.Context, claim Claim, index, of int) ([]Lease, error)
	// ScanBatch does one batch of a range in one transaction: keys above the cursor, locked without waiting for the program's
	// rows, applied, cursor moved, ownership checked last. CodeOwnershipLost leaves nothing of the batch behind.
	ScanBatch(ctx context.Context, claim Claim, lease Lease) (Batch, error)
	// TailBatch applies logged source changes above the position of a claimed row (all partitions for AllPartitions) and
	// moves the position, at most limit changes. CodeOwnershipLost; Batch.Unverifiable if the log cannot answer.
	TailBatch(ctx context.Context, claim Claim, partition string, limit int) (Batch, error)
	// RetryLeftovers tries the keys that earlier batches of a row skipped once more, at most limit of them.
	RetryLeftovers(ctx context.Context, claim Claim, partition string, limit int) (Batch, error)
	// VerifyRow runs the verify queries of a checkpoint in full, in one snapshot without a lock, restricted to the claimed row's
	// partition where the table has one. Wrong rows whose keys the same snapshot shows in the log above the position, or among
	// the leftovers, are still to be done and do not count. CodeVerificationFailed names the query, the count and at most ten keys.
	VerifyRow(ctx context.Context, claim Claim, partition string) error
	// Activate makes one bounded attempt: locks, the rest, verify, proof, flip, ownership, COMMIT. CodeLockTimeout means try again after
	// a pause; CodeScanIncomplete; CodeVerificationFailed; CodeCheckpointFenceMissing.
	Activate(ctx context.Context, claim Claim, activation Activation) (ActivationReport, error)
	// RecordError keeps the last error of a claim for status. It is not an error if the claim is no longer the newest.
	RecordError(ctx context.Context, claim Claim, message string) error
	// ReplicationLag is the largest replay lag of the standbys, 0 without any.
	ReplicationLag(ctx context.Context) (time.Duration, error)
}

// Lease is the right to one key range.
type Lease struct {
	Partition string
	Range     int   // unique within the checkpoint
	Epoch     int64 // lease epoch
	Done      bool
	Rows      int64
	// Limit overrides the batch size of the settings, for a worker that looks for the one row its SQL fails on; 0: none.
	// With a limit of 1 an error of the user's SQL names the key.
	Limit int
}

// Batch is what one batch did.
type Batch struct {
	Rows         int64 // rows applied
	Skipped      int64 // keys left for later, because the program holds their rows
	Leftovers    int64 // keys of the row that are still left after this batch
	Done         bool  // scan: the range is finished; tail: nothing was left to read; leftovers: none left
	Unverifiable string
	Settings     Settings // as they stood in this transaction
}

// Activation asks for one attempt.
type Activation struct {
	Partition string
	// Tables asks for the last resort: the source tables are locked SHARE ROW EXCLUSIVE instead of rows.
	Tables bool
	// MaxRest is the largest rest that is applied under the locks; more is OutcomeChanged. 0: 10,000.
	MaxRest int
	// BeforeCommit, if set, runs inside the transaction with all locks held, right before COMMIT; an error rolls back.
	// It is there for tests that compare derived data with its definition.
	BeforeCommit func(ctx context.Context, q Querier) error
}

// Querier reads inside somebody's transaction.
type Querier interface {
	Query(ctx context.Context, sql string, arguments ...any) ([][]any, error)
}

// ActivationReport says what an attempt did. With an error only Held says something.
type ActivationReport struct {
	Outcome Outcome
	Rest    int64         // rows applied under the locks
	Held    time.Duration // since the first lock; 0: it had none
	Reason  string        // for OutcomeUnverifiable
}

// Fences check and mend what the database enforces.
type Fences interface {
	// CheckFence finds each way in which fence and guards are weakened. Without a catalog: CodeFenceBroken.
	CheckFence(ctx context.Context) (FenceReport, error)
	// RepairFence puts fence and guards back in one transaction, under the same lock as a barrier, without a moment of absence, and
	// counts the commits that got in below the fence.
	RepairFence(ctx context.Context) (FenceReport, error)
}
