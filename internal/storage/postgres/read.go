package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// readTimeout bounds one statement of readOnce.
const readTimeout = 10 * time.Second

// readOnce runs one reading statement: one snapshot, one round trip, no transaction block. The settings it needs go ahead of it in the
// same implicit transaction and end with it (PostgreSQL manual, "Pipelining": everything up to Sync is one transaction), so nothing is
// left in the session. collect reads the rows; it may be called twice, since a plan that went stale by a change of a table
// is tried again.
func (s *Store) readOnce(ctx context.Context, what string, collect func(pgx.Rows) error, sql string, arguments ...any) error {
	err := s.tryReadOnce(ctx, what, collect, sql, arguments...)
	if isStalePlan(err) {
		err = s.tryReadOnce(ctx, what, collect, sql, arguments...)
	}
	return translate(err, what)
}

// readSettings: with row security on, a policy that hides rows from us would make an empty answer of a refusal.
var readSettings = fmt.Sprintf(`
	SELECT set_config('row_security', 'off', true),
	       set_config('jit', 'off', true),
	       set_config('lock_timeout', '%d', true),
	       set_config('statement_timeout', '%d', true)`, milliseconds(defaultLockTimeout), milliseconds(readTimeout))

func (s *Store) tryReadOnce(ctx context.Context, what string, collect func(pgx.Rows) error, sql string, arguments ...any) (err error) {
	conn, err := s.acquire(ctx, what)
	if err != nil {
		return err
	}
	defer func() {
		err = unanswered(ctx, conn.Conn(), err)
		s.release(ctx, conn, false)
	}()
	s.allow(conn.Conn(), readTimeout)

	batch := &pgx.Batch{}
	batch.Queue(readSettings)
	batch.Queue(sql, arguments...)
	results := conn.SendBatch(ctx, batch)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()
	if _, err := results.Exec(); err != nil {
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := collect(rows); err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

// explainMissing is for what asks about checkpoints: where the database schema has no catalog, there are none, and the missing table is no
// defect of ours. CodeCheckpointNotDeclared then, otherwise err.
func (s *Store) explainMissing(ctx context.Context, err error, what string) error {
	code := storage.CodeOf(err)
	wentAway := code == storage.CodeSerialization // what the wait for a lock says of a table that is gone
	if !wentAway && (code != storage.CodeInternal || sqlState(err) != stateNoTable) {
		return err
	}
	var missing bool
	probe := s.readOnce(ctx, what+": look for the catalog", scanRow(&missing),
		`SELECT to_regclass($1::text) IS NULL`, s.schema+".sync_backfill_definitions")
	if probe != nil || !missing {
		return err
	}
	return storage.Refuse(storage.CodeCheckpointNotDeclared, "%s: the database schema %s has no Syncbarrier catalog", what, s.schemaName)
}

// oneStatement runs SQL that is not ours in a transaction, by the extended protocol in every mode: it takes one statement only, where the
// simple one, which the driver would choose for SQL without arguments, takes several and a COMMIT among them.
func oneStatement(ctx context.Context, tx pgx.Tx, sql string, arguments ...any) (pgconn.CommandTag, error) {
	if len(arguments) == 0 {
		result := tx.Conn().PgConn().ExecParams(ctx, sql, nil, nil, nil, nil).Read()
		return result.CommandTag, result.Err
	}
	mode := tx.Conn().Config().DefaultQueryExecMode
	if mode == pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeExec
	}
	return tx.Exec(ctx, sql, append([]any{mode}, arguments...)...)
}

// scanRow makes collect for a statement that returns exactly one row.
func scanRow(targets ...any) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		if !rows.Next() {
			if err := rows.Err(); err != nil {
				return err
			}
			return pgx.ErrNoRows
		}
		return rows.Scan(targets...)
	}
}

// nowMS is the database's clock in milliseconds. It decides nothing; it is there for people.
const nowMS = `(extract(epoch FROM clock_timestamp()) * 1000)::bigint`
