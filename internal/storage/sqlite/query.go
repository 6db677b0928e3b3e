package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Query runs a query that was registered at open. Gate, query and log position are read in one transaction, hence in one snapshot
// (https://www.sqlite.org/isolation.html), and the connection takes nothing but queries while it runs.
//
// Errors: CodeInvalidSpec for an unknown name, a wrong number of parameters, or a partition key that cannot be; CodeNotReady with the
// gate's reason; CodeInvalidSQL where the query itself fails or writes.
func (s *Store) Query(ctx context.Context, partition, name string, running int64, parameters ...any) (storage.QueryResult, error) {
	registered, err := s.registered(partition, name, parameters)
	if err != nil {
		return storage.QueryResult{}, err
	}
	var result storage.QueryResult
	err = s.inTx(ctx, fmt.Sprintf("run query %q", name), false, func(ctx context.Context, tx *sql.Conn) error {
		gate, err := s.gateIn(ctx, tx, running, partition)
		if err != nil {
			return err
		}
		if verdict := gate.Verdict(); !verdict.Open {
			return storage.Refuse(storage.CodeNotReady, "query %q: the gate of version %d is closed: %s: %s",
				name, running, verdict.Reason, verdict.Message)
		}
		result, err = s.runRegistered(ctx, tx, registered, partition, parameters)
		return err
	})
	if err != nil {
		return storage.QueryResult{}, err
	}
	return result, nil
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

// runRegistered runs the query inside a transaction: it sees what the transaction staged and can write nothing.
func (s *Store) runRegistered(ctx context.Context, tx *sql.Conn, registered storage.RegisteredQuery, partition string, parameters []any) (
	storage.QueryResult, error,
) {
	what := fmt.Sprintf("run query %q", registered.Name)
	result, err := s.runReadOnly(ctx, tx, registered, partition, parameters)
	if err != nil {
		return storage.QueryResult{}, err
	}
	err = tx.QueryRowContext(ctx, `
		SELECT coalesce((SELECT max_commit_seq FROM main.sync_partitions WHERE partition = ?1), 0),
		       coalesce((SELECT log_epoch FROM main.sync_partition_registry WHERE partition = ?1), '')`,
		partition).Scan(&result.MaxCommitSeq, &result.LogEpoch)
	return result, translate(err, what+": read the log's position")
}

func (s *Store) runReadOnly(ctx context.Context, tx *sql.Conn, registered storage.RegisteredQuery, partition string, parameters []any) (
	result storage.QueryResult, err error,
) {
	what := fmt.Sprintf("run query %q", registered.Name)
	arguments := append([]any{partition}, parameters...)
	err = contained(ctx, tx, what, &authorizer{readOnly: true}, func() error {
		// As a subquery it can be nothing but one query: a second statement would not parse.
		if err := compile(ctx, tx, "SELECT 1 FROM "+subquery(registered.SQL)+" AS syncbarrier_query"); err != nil {
			return err
		}
		rows, err := tx.QueryContext(ctx, registered.SQL, arguments...)
		if err != nil {
			return err
		}
		if hasTimes(rows) {
			result.Columns, result.Rows, err = readPlain(ctx, tx, rows, registered.SQL, arguments)
			return err
		}
		result.Columns, result.Rows, err = collectResult(rows)
		return err
	})
	return result, err
}

// compile has a statement compiled and not run.
func compile(ctx context.Context, tx *sql.Conn, text string) error {
	statement, err := tx.PrepareContext(ctx, text)
	if err != nil {
		return err
	}
	defer func() { _ = statement.Close() }() // nothing was run, so nothing can be lost
	return nil
}

// readPlain runs a query again so that the driver gives its values as they are.
func readPlain(ctx context.Context, tx *sql.Conn, rows *sql.Rows, text string, arguments []any) (columns []string, values [][]any, err error) {
	columns, err = rows.Columns()
	if closed := rows.Close(); err != nil || closed != nil {
		return nil, nil, firstError(err, closed)
	}
	if rows, err = tx.QueryContext(ctx, plainValues(subquery(text), len(columns)), arguments...); err != nil {
		return nil, nil, err
	}
	_, values, err = collectResult(rows)
	return columns, values, err
}

// hasTimes says that the driver would turn text of some column into a time, because of the column's declared type, and so change it.
func hasTimes(rows *sql.Rows) bool {
	types, err := rows.ColumnTypes()
	if err != nil {
		return false
	}
	for _, t := range types {
		switch t.DatabaseTypeName() {
		case "DATE", "DATETIME", "TIMESTAMP":
			return true
		}
	}
	return false
}

// plainValues selects the columns of a query as expressions, which have no declared type.
func plainValues(body string, columns int) string {
	names, values := make([]string, columns), make([]string, columns)
	for i := range columns {
		names[i], values[i] = fmt.Sprintf("c%d", i), fmt.Sprintf("+c%d", i)
	}
	return "WITH syncbarrier_query(" + strings.Join(names, ", ") + ") AS " + body +
		" SELECT " + strings.Join(values, ", ") + " FROM syncbarrier_query"
}

// collectResult reads column names and rows. Integers are int64, floats float64, bytes []byte, text string, NULL nil.
func collectResult(rows *sql.Rows) (columns []string, values [][]any, err error) {
	defer func() { err = firstError(err, rows.Close()) }()
	if columns, err = rows.Columns(); err != nil {
		return nil, nil, err
	}
	for rows.Next() {
		row, targets := make([]any, len(columns)), make([]any, len(columns))
		for i := range row {
			targets[i] = &row[i]
		}
		if err := rows.Scan(targets...); err != nil {
			return nil, nil, err
		}
		for i := range row {
			row[i] = notNil(row[i])
		}
		values = append(values, row)
	}
	return columns, values, rows.Err()
}

// notNil tells an empty BLOB from NULL: the driver reads it as a nil slice, and would write that as NULL.
func notNil(value any) any {
	if bytes, ok := value.([]byte); ok && bytes == nil {
		return []byte{}
	}
	return value
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
