package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// queryTries is how often Query starts again because a barrier was committed while it ran.
const queryTries = 3

// Query runs a query that was registered at open. Gate, query and log position are read in one REPEATABLE READ, READ ONLY transaction,
// hence in one snapshot (PostgreSQL manual, "Transaction Isolation").
//
// A table that a barrier rewrites after the snapshot was taken would look empty in it (PostgreSQL manual, "Caveats" of concurrency
// control), so the marker is read again afterwards: if it has moved, all is read again.
//
// Errors: CodeInvalidSpec for an unknown name, a wrong number of parameters, or a partition key that cannot be; CodeNotReady with the
// gate's reason; CodeInvalidSQL where the query itself fails or writes; CodeSerialization if barriers kept following one another.
func (s *Store) Query(ctx context.Context, partition, name string, running int64, parameters ...any) (storage.QueryResult, error) {
	registered, err := s.registered(partition, name, parameters)
	if err != nil {
		return storage.QueryResult{}, err
	}
	for range queryTries {
		result, stored, err := s.queryOnce(ctx, registered, partition, running, parameters)
		if err != nil {
			return storage.QueryResult{}, err
		}
		var now int64
		err = s.readOnce(ctx, "read the schema version again", scanRow(&now),
			s.sql(`SELECT schema_version FROM {schema}.sync_schema_meta WHERE id = 1`))
		if err != nil {
			return storage.QueryResult{}, err
		}
		if now == stored {
			return result, nil
		}
	}
	return storage.QueryResult{}, storage.Refuse(storage.CodeSerialization,
		"query %q: the schema version changed each of the %d times it ran", name, queryTries)
}

// queryOnce is one try. It also returns the version that its snapshot showed.
func (s *Store) queryOnce(ctx context.Context, registered storage.RegisteredQuery, partition string, running int64, parameters []any) (
	result storage.QueryResult, stored int64, err error,
) {
	what := fmt.Sprintf("run query %q", registered.Name)
	o := txOptions{iso: pgx.RepeatableRead, readOnly: true}
	err = s.inTx(ctx, what, o, func(ctx context.Context, tx pgx.Tx) error {
		gate, err := s.gateIn(ctx, tx, running, partition)
		if err != nil {
			return err
		}
		if verdict := gate.Verdict(); !verdict.Open {
			return storage.Refuse(storage.CodeNotReady, "query %q: the gate of version %d is closed: %s: %s",
				registered.Name, running, verdict.Reason, verdict.Message)
		}
		stored = gate.StoredVersion
		result, err = s.runRegistered(ctx, tx, registered, partition, parameters)
		return err
	})
	return result, stored, err
}

// registered finds a query and checks what it is given.
func (s *Store) registered(partition, name string, parameters []any) (storage.RegisteredQuery, error) {
	registered, ok := s.queries[name]
	if !ok {
		return storage.RegisteredQuery{}, storage.Refuse(storage.CodeInvalidSpec, "no query %q was registered when the store was opened", name)
	}
	if len(parameters) != registered.Parameters {
		return storage.RegisteredQuery{}, storage.Refuse(storage.CodeInvalidSpec,
			"query %q takes %d parameters beside the partition, got %d", name, registered.Parameters, len(parameters))
	}
	return registered, storage.CheckPartition(partition)
}

// runRegistered runs the query in a subtransaction that is read only and always rolled back: it sees what the transaction staged,
// can write nothing, and a setting it changes ends with it. As a subquery it can be nothing but a query: a COMMIT would not parse.
// It is sent by the extended protocol in every mode, which takes one statement only.
func (s *Store) runRegistered(ctx context.Context, tx pgx.Tx, registered storage.RegisteredQuery, partition string, parameters []any) (
	storage.QueryResult, error,
) {
	what := fmt.Sprintf("run query %q", registered.Name)
	if err := execAll(ctx, tx, `SAVEPOINT syncbarrier_query; SET LOCAL transaction_read_only = on`); err != nil {
		return storage.QueryResult{}, translate(err, what)
	}
	result, failure := s.runReadOnly(ctx, tx, registered, partition, parameters)
	if err := execAll(ctx, tx, `ROLLBACK TO SAVEPOINT syncbarrier_query; RELEASE SAVEPOINT syncbarrier_query`); err != nil && failure == nil {
		failure = translate(err, what)
	}
	if failure != nil {
		return storage.QueryResult{}, failure
	}
	err := tx.QueryRow(ctx, s.sql(`
		SELECT coalesce((SELECT max_commit_seq FROM {schema}.sync_partitions WHERE partition = $1::text), 0),
		       coalesce((SELECT log_epoch FROM {schema}.sync_partition_registry WHERE partition = $1::text), '')`),
		partition).Scan(&result.MaxCommitSeq, &result.LogEpoch)
	return result, translate(err, what+": read the log's position")
}

func (s *Store) runReadOnly(ctx context.Context, tx pgx.Tx, registered storage.RegisteredQuery, partition string, parameters []any) (
	result storage.QueryResult, err error,
) {
	what := fmt.Sprintf("run query %q", registered.Name)
	mode := tx.Conn().Config().DefaultQueryExecMode
	if mode == pgx.QueryExecModeSimpleProtocol {
		mode = pgx.QueryExecModeExec
	}
	text := "SELECT syncbarrier_query.* FROM (" + trimmed(registered.SQL) + "\n) AS syncbarrier_query"
	arguments := append([]any{mode, textResult, partition}, parameters...)
	rows, err := tx.Query(ctx, text, arguments...)
	if err == nil {
		result.Columns, result.Rows, err = collectResult(rows)
	}
	if sqlState(err) == stateReadOnly {
		return result, &storage.Error{Code: storage.CodeInvalidSQL, Message: what + ": it writes, but queries are read only", Err: withoutDetail(err)}
	}
	return result, translateUserSQL(err, what)
}

// execAll sends several statements without parameters in one round trip. The simple protocol is what allows it.
func execAll(ctx context.Context, tx pgx.Tx, statements string) error {
	_, err := tx.Exec(ctx, statements, pgx.QueryExecModeSimpleProtocol)
	return err
}
