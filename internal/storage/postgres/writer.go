package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Begin opens a writer's transaction on a partition. It is READ COMMITTED, and the server ends it if it is idle for ten seconds.
//
// Errors: CodeInvalidSpec for a partition key that is empty, reserved or too long, or a version below 0.
func (s *Store) Begin(ctx context.Context, partition string, writerVersion int64) (storage.Tx, error) {
	if err := storage.CheckPartition(partition); err != nil {
		return nil, err
	}
	if writerVersion < 0 {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "writer version %d is below 0", writerVersion)
	}
	what := fmt.Sprintf("write to partition %q", partition)
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return nil, err
	}
	tx, err := s.begin(ctx, conn, txOptions{})
	if err != nil {
		s.release(ctx, conn, false)
		return nil, translate(err, what+": begin")
	}
	return &writer{store: s, conn: conn, tx: tx, partition: partition, version: writerVersion}, nil
}

// writer is a writer's transaction. It is for one goroutine.
type writer struct {
	store     *Store
	conn      *pgxpool.Conn // nil once the transaction has ended
	tx        pgx.Tx
	partition string
	version   int64
	failed    error // the first error since begin, or since the savepoint; PostgreSQL then only takes a rollback
	marked    bool  // there is a savepoint
	foreign   bool  // a statement of the program's own ran: it may have left anything in the session
}

const savepoint = "syncbarrier_push"

// run does one step of the transaction, unless it has ended or a step before failed.
func (w *writer) run(what string, step func() error) error {
	what = fmt.Sprintf("%s in partition %q", what, w.partition)
	if err := w.usable(what); err != nil {
		return err
	}
	err := w.translate(step(), what)
	if err != nil {
		w.failed = err
	}
	return err
}

func (w *writer) usable(what string) error {
	if w.conn == nil {
		return storage.Refuse(storage.CodeInvalidSpec, "%s: the transaction has ended", what)
	}
	if w.failed != nil {
		return &storage.Error{Code: storage.CodeOf(w.failed), Message: what + ": the transaction has failed before and can only be rolled back", Err: w.failed}
	}
	return nil
}

// translate makes a stale plan retryable: inside a transaction the statement cannot be repeated, only the transaction.
func (w *writer) translate(err error, what string) error {
	if isStalePlan(err) {
		return &storage.Error{Code: storage.CodeSerialization, Message: what + ": a table has changed; begin again", Err: withoutDetail(err)}
	}
	return translate(err, what)
}

// LockPartition locks the partition's row until the transaction ends, making it if it is missing.
func (w *writer) LockPartition(ctx context.Context) error {
	return w.run("lock the partition", func() error {
		return w.store.lockPartition(ctx, w.tx, w.partition)
	})
}

// lockPartition makes the row first: FOR UPDATE of a row that is not there locks nothing.
func (s *Store) lockPartition(ctx context.Context, tx pgx.Tx, partition string) error {
	_, err := tx.Exec(ctx, s.sql(`
		INSERT INTO {schema}.sync_partitions(partition)
		VALUES ($1::text)
		ON CONFLICT (partition) DO NOTHING`), partition)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, s.sql(`
		SELECT 1
		  FROM {schema}.sync_partitions
		 WHERE partition = $1::text
		   FOR UPDATE`), partition)
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
		// Number and commit are one statement: a number that was given out and not used would be a hole in a dense log.
		err := w.tx.QueryRow(ctx, w.store.sql(`
			WITH allocated AS (
			  INSERT INTO {schema}.sync_partitions AS p (partition, max_commit_seq)
			  VALUES ($1::text, 1)
			  ON CONFLICT (partition) DO UPDATE
			     SET max_commit_seq = p.max_commit_seq + 1
			  RETURNING max_commit_seq
			)
			INSERT INTO {schema}.sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
			SELECT $1::text, max_commit_seq, $2::text, $3::text, $4::text, `+nowMS+`, $5::bigint
			  FROM allocated
			RETURNING commit_seq`),
			w.partition, commit.ClientID, commit.ClientCommitID, commit.ActorID, w.version).Scan(&seq)
		if err != nil || len(commit.Changes) == 0 {
			return err
		}
		return w.appendChanges(ctx, seq, commit.Changes)
	})
	return seq, err
}

func (w *writer) appendChanges(ctx context.Context, seq int64, changes []storage.Change) error {
	var tables, rows, scopes []string
	var ops []int16
	var versions []*int64
	var payloads [][]byte
	for _, change := range changes {
		tables, rows = append(tables, change.Table), append(rows, change.RowID)
		ops, versions = append(ops, int16(change.Op)), append(versions, change.RowVersion)
		scopes, payloads = append(scopes, storage.ScopesOrEmpty(change.Scopes)), append(payloads, change.Payload)
	}
	_, err := w.tx.Exec(ctx, w.store.sql(`
		INSERT INTO {schema}.sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
		SELECT $1::text, $2::bigint, change.ordinal - 1, change.tbl, change.row_id, change.op, change.row_version, change.scopes::jsonb, change.payload
		  FROM unnest($3::text[], $4::text[], $5::smallint[], $6::bigint[], $7::text[], $8::bytea[])
		       WITH ORDINALITY AS change(tbl, row_id, op, row_version, scopes, payload, ordinal)`),
		w.partition, seq, tables, rows, ops, versions, scopes, payloads)
	return err
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
	if err := w.usable(fmt.Sprintf("run query %q", name)); err != nil {
		return storage.QueryResult{}, err
	}
	registered, err := w.store.registered(w.partition, name, parameters)
	if err != nil {
		return storage.QueryResult{}, err
	}
	return w.store.runRegistered(ctx, w.tx, registered, w.partition, parameters)
}

// Exec runs one statement of the program's own, with $1 for its first argument, and returns the rows affected.
//
// Errors: CodeInvalidSQL; CodeNotTransactional for a statement that ended the transaction.
func (w *writer) Exec(ctx context.Context, sql string, arguments ...any) (affected int64, err error) {
	err = w.run("run a statement", func() error {
		w.foreign = true
		tag, err := oneStatement(ctx, w.tx, sql, arguments...)
		affected = tag.RowsAffected()
		if err == nil && w.conn.Conn().PgConn().TxStatus() != 'T' {
			err = storage.Refuse(storage.CodeNotTransactional, "a statement ended the transaction that it ran in")
		}
		var pgErr *pgconn.PgError
		if errors.As(err, &pgErr) {
			if raised := raisedByUs(pgErr, "run a statement"); raised != nil {
				return raised // the program asked for it at run time, and knows the code
			}
		}
		return translateUserSQL(err, "run a statement")
	})
	return affected, err
}

// Savepoint marks the place that RollbackToSavepoint goes back to. Called again, it moves the mark.
func (w *writer) Savepoint(ctx context.Context) error {
	return w.run("set a savepoint", func() error {
		statement := "SAVEPOINT " + savepoint
		if w.marked {
			statement = "RELEASE SAVEPOINT " + savepoint + "; " + statement
		}
		err := execAll(ctx, w.tx, statement)
		w.marked = w.marked || err == nil
		return err
	})
}

// RollbackToSavepoint undoes all since Savepoint, an error included, and keeps the transaction and the mark. CodeInvalidSpec without
// a savepoint.
func (w *writer) RollbackToSavepoint(ctx context.Context) error {
	what := fmt.Sprintf("roll back to the savepoint in partition %q", w.partition)
	if w.conn == nil || !w.marked {
		return storage.Refuse(storage.CodeInvalidSpec, "%s: there is none", what)
	}
	if _, err := w.tx.Exec(ctx, "ROLLBACK TO SAVEPOINT "+savepoint); err != nil {
		w.failed = w.translate(err, what)
		return w.failed
	}
	w.failed = nil
	return nil
}

// Commit ends the transaction. If a step failed before, nothing is committed and the error says so, with that step's code.
func (w *writer) Commit(ctx context.Context) error {
	what := fmt.Sprintf("commit to partition %q", w.partition)
	if err := w.usable(what); err != nil {
		if w.conn != nil {
			w.end(ctx, true)
		}
		return err
	}
	err := translate(commit(ctx, w.tx, what), what)
	w.end(ctx, err != nil)
	return err
}

// Rollback undoes everything. Once the transaction has ended it does nothing.
func (w *writer) Rollback(ctx context.Context) error {
	if w.conn != nil {
		w.end(ctx, true)
	}
	return nil
}

// end gives the connection back. A rollback that fails is no error of the caller's: the connection is closed, which undoes the
// transaction as well.
func (w *writer) end(ctx context.Context, undo bool) {
	if undo {
		rollback(ctx, w.tx)
	}
	broken := w.foreign && !w.store.resetSession(ctx, w.conn)
	w.store.release(ctx, w.conn, broken)
	w.conn = nil
}

// resetSession undoes what a program's statement may have left in a session that is ours alone: settings, role, temporary tables,
// advisory locks. Behind a transaction pooler the session is not ours, and what is left in it is the program's doing.
func (s *Store) resetSession(ctx context.Context, conn *pgxpool.Conn) bool {
	if s.pooled {
		return true
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackTimeout)
	defer cancel()
	results := conn.Conn().PgConn().Exec(bounded, `RESET SESSION AUTHORIZATION; RESET ALL; CLOSE ALL; UNLISTEN *;
		SELECT pg_advisory_unlock_all(); DISCARD TEMP`)
	_, err := results.ReadAll()
	return err == nil
}
