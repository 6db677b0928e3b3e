package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// idleInTransaction bounds how long a writer's transaction may do nothing: until it ends nobody else can write to the file.
const idleInTransaction = 10 * time.Second

// Begin opens a writer's transaction on a partition. From here on until it ends no other connection can write to the file, so it is
// rolled back if it is idle for ten seconds.
//
// Errors: CodeInvalidSpec for a partition key that is empty, reserved or too long, or a version below 0; CodeLockTimeout.
func (s *Store) Begin(ctx context.Context, partition string, writerVersion int64) (storage.Tx, error) {
	w, err := s.beginWriter(ctx, partition, writerVersion, idleInTransaction)
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (s *Store) beginWriter(ctx context.Context, partition string, writerVersion int64, idle time.Duration) (*writer, error) {
	if err := storage.CheckPartition(partition); err != nil {
		return nil, err
	}
	if writerVersion < 0 {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "writer version %d is below 0", writerVersion)
	}
	t, err := s.begin(ctx, fmt.Sprintf("write to partition %q", partition), true)
	if err != nil {
		return nil, err
	}
	w := &writer{store: s, t: t, tx: t.conn, partition: partition, version: writerVersion, idle: idle}
	w.use()
	w.watch = time.AfterFunc(idle, w.expire)
	return w, nil
}

// writer is a writer's transaction. It is for one goroutine.
type writer struct {
	store     *Store
	t         *transaction
	tx        *sql.Conn
	partition string
	version   int64
	failed    error // the first error since begin, or since the savepoint; as on PostgreSQL, only a rollback is taken then
	marked    bool  // there is a savepoint
	foreign   bool  // a statement of the program's own ran

	mu      sync.Mutex // between the steps and the watch
	watch   *time.Timer
	idle    time.Duration
	used    time.Time // when the last step ended
	expired bool      // rolled back, because nothing was done for too long
}

// use notes that the transaction is not idle.
func (w *writer) use() { w.used = time.Now() }

// expire rolls an idle transaction back. A step that ended meanwhile sets the watch again.
func (w *writer) expire() {
	w.mu.Lock()
	defer w.mu.Unlock()
	rest := w.idle - time.Since(w.used)
	switch {
	case w.t.ended:
	case rest > 0:
		w.watch.Reset(rest)
	default:
		w.t.rollback(context.Background())
		w.expired = true
	}
}

const savepoint = "syncbarrier_push"

// run does one step of the transaction, unless it has ended or a step before failed.
func (w *writer) run(what string, step func() error) error {
	what = fmt.Sprintf("%s in partition %q", what, w.partition)
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.use()
	if err := w.usable(what); err != nil {
		return err
	}
	err := translate(step(), what)
	if err != nil {
		w.failed = err
	}
	return err
}

func (w *writer) usable(what string) error {
	if w.expired {
		return storage.Refuse(storage.CodeConnectionLost, "%s: the transaction did nothing for %s and was rolled back", what, w.idle)
	}
	if w.t.ended {
		return storage.Refuse(storage.CodeInvalidSpec, "%s: the transaction has ended", what)
	}
	if w.failed != nil {
		return &storage.Error{Code: storage.CodeOf(w.failed), Message: what + ": the transaction has failed before and can only be rolled back", Err: w.failed}
	}
	return nil
}

// LockPartition makes the partition's row if it is missing. The write lock of the file is held since Begin, and it covers every
// partition.
func (w *writer) LockPartition(ctx context.Context) error {
	return w.run("lock the partition", func() error {
		return makePartition(ctx, w.tx, w.partition)
	})
}

func makePartition(ctx context.Context, q querier, partition string) error {
	_, err := q.ExecContext(ctx, `
		INSERT INTO main.sync_partitions(partition)
		SELECT ?1
		 WHERE NOT EXISTS (SELECT 1 FROM main.sync_partitions WHERE partition = ?1)`, partition)
	return err
}

// AppendCommit allocates the next sequence number of the partition and writes a commit with its changes.
//
// Errors: CodeWriterFenceRejected names table, partition and versions; CodeInvalidSpec before anything is written.
func (w *writer) AppendCommit(ctx context.Context, commit storage.Commit) (seq int64, err error) {
	if err := storage.CheckCommit(commit); err != nil {
		return 0, err
	}
	err = w.run("append a commit", func() error {
		if err := makePartition(ctx, w.tx, w.partition); err != nil {
			return err
		}
		err := w.tx.QueryRowContext(ctx, `
			UPDATE main.sync_partitions
			   SET max_commit_seq = max_commit_seq + 1
			 WHERE partition = ?1
			RETURNING max_commit_seq`, w.partition).Scan(&seq)
		if err != nil {
			return err
		}
		_, err = w.tx.ExecContext(ctx, `
			INSERT INTO main.sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
			VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)`,
			w.partition, seq, commit.ClientID, commit.ClientCommitID, commit.ActorID, nowMillis(), w.version)
		if err != nil {
			return w.explainFence(ctx, err)
		}
		return w.appendChanges(ctx, seq, commit.Changes)
	})
	if err != nil {
		return 0, err
	}
	return seq, nil
}

// explainFence adds to a refusal of the fence what a trigger of SQLite cannot say: which version was given and which is required.
func (w *writer) explainFence(ctx context.Context, err error) error {
	refused := translate(err, "append a commit")
	if storage.CodeOf(refused) != storage.CodeWriterFenceRejected {
		return err
	}
	required := "the row '*' of sync_writer_fence"
	var all, minimum sql.NullInt64
	asked := w.tx.QueryRowContext(ctx, `
		SELECT (SELECT required_writer_version FROM main.sync_writer_fence WHERE partition = '*'),
		       (SELECT max(required_writer_version) FROM main.sync_writer_fence WHERE partition IN ('*', ?1))`,
		w.partition).Scan(&all, &minimum)
	if asked == nil && all.Valid {
		required = fmt.Sprint(minimum.Int64)
	}
	return storage.Refuse(storage.CodeWriterFenceRejected, "append a commit: table sync_commits, partition %s: writer version %d, required %s",
		quoteLiteral(w.partition), w.version, required)
}

// changesPerStatement bounds the parameters of one INSERT.
const changesPerStatement = 200

func (w *writer) appendChanges(ctx context.Context, seq int64, changes []storage.Change) error {
	for first := 0; first < len(changes); first += changesPerStatement {
		part := changes[first:min(first+changesPerStatement, len(changes))]
		var arguments []any
		for i, change := range part {
			var version any
			if change.RowVersion != nil {
				version = *change.RowVersion
			}
			arguments = append(arguments, w.partition, seq, first+i, change.Table, change.RowID, int64(change.Op), version,
				storage.ScopesOrEmpty(change.Scopes), change.Payload)
		}
		_, err := w.tx.ExecContext(ctx, `
			INSERT INTO main.sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
			VALUES `+places(len(part), 9), arguments...)
		if err != nil {
			return err
		}
	}
	return nil
}

// places gives placeholders for so many rows of so many columns: (?, ?), (?, ?).
func places(rows, columns int) string {
	row := "(" + strings.TrimSuffix(strings.Repeat("?, ", columns), ", ") + ")"
	return strings.TrimSuffix(strings.Repeat(row+", ", rows), ", ")
}

// AdvanceCheckpoint is Store.AdvanceCheckpoint inside this transaction.
func (w *writer) AdvanceCheckpoint(ctx context.Context, advance storage.Advance) (moved bool, err error) {
	err = w.run(fmt.Sprintf("advance checkpoint %q", advance.Name), func() error {
		moved, err = w.store.advance(ctx, w.tx, advance)
		return err
	})
	return moved, err
}

// ReadServeGate is Store.ReadServeGate inside this transaction, with the log epoch of its partition.
func (w *writer) ReadServeGate(ctx context.Context, running int64) (gate storage.ServeGate, err error) {
	err = w.run("read the serve gate", func() error {
		gate, err = w.store.gateIn(ctx, w.tx, running, w.partition)
		return err
	})
	return gate, err
}

// Query is Store.Query inside this transaction, without the gate: it sees what the transaction staged. A query that fails leaves
// the transaction as it was.
func (w *writer) Query(ctx context.Context, name string, parameters ...any) (storage.QueryResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.use()
	if err := w.usable(fmt.Sprintf("run query %q", name)); err != nil {
		return storage.QueryResult{}, err
	}
	registered, err := w.store.registered(w.partition, name, parameters)
	if err != nil {
		return storage.QueryResult{}, err
	}
	return w.store.runRegistered(ctx, w.tx, registered, w.partition, parameters)
}

// Exec runs one statement of the program's own, with ? or ?1 for its first argument, and returns the rows affected. Statements that
// would end or split the transaction, or change the connection, are refused.
//
// Errors: CodeInvalidSQL; CodeNotTransactional; the codes of fence and guards.
func (w *writer) Exec(ctx context.Context, text string, arguments ...any) (affected int64, err error) {
	err = w.run("run a statement", func() error {
		w.foreign = true
		return contained(ctx, w.tx, "run a statement", &authorizer{}, func() error {
			result, err := w.tx.ExecContext(ctx, text, arguments...)
			if raised := raisedByUs(err, "run a statement"); storage.CodeOf(raised) != storage.CodeWriterFenceRejected && raised != nil {
				return raised // the program asked for it at run time, and knows the code
			}
			if err != nil {
				return w.explainFence(ctx, err)
			}
			affected, err = result.RowsAffected()
			return err
		})
	})
	return affected, err
}

// Savepoint marks the place that RollbackToSavepoint goes back to. Called again, it moves the mark.
func (w *writer) Savepoint(ctx context.Context) error {
	return w.run("set a savepoint", func() error {
		if w.marked {
			if _, err := w.tx.ExecContext(ctx, "RELEASE SAVEPOINT "+savepoint); err != nil {
				return err
			}
		}
		_, err := w.tx.ExecContext(ctx, "SAVEPOINT "+savepoint)
		w.marked = err == nil
		return err
	})
}

// RollbackToSavepoint undoes all since Savepoint, an error included, and keeps the transaction and the mark. CodeInvalidSpec without
// a savepoint.
func (w *writer) RollbackToSavepoint(ctx context.Context) error {
	what := fmt.Sprintf("roll back to the savepoint in partition %q", w.partition)
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.use()
	if w.t.ended || !w.marked {
		return storage.Refuse(storage.CodeInvalidSpec, "%s: there is none", what)
	}
	if _, err := w.tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT "+savepoint); err != nil {
		w.failed = translate(err, what)
		return w.failed
	}
	w.failed = nil
	return nil
}

// Commit ends the transaction. If a step failed before, nothing is committed and the error says so, with that step's code.
func (w *writer) Commit(ctx context.Context) error {
	what := fmt.Sprintf("commit to partition %q", w.partition)
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.watch.Stop()
	if err := w.usable(what); err != nil {
		w.t.rollback(ctx)
		return err
	}
	// Temporary objects that a program's statement made would stand in the way of everybody's tables.
	w.t.close = w.t.close || w.foreign && hasTemporaries(ctx, w.tx)
	return w.t.commit(ctx)
}

// Rollback undoes everything. Once the transaction has ended it does nothing.
func (w *writer) Rollback(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.watch.Stop()
	w.t.rollback(ctx)
	return nil
}
