package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	modernc "modernc.org/sqlite"
)

// contained runs statements that hold SQL of the user, with us in charge of how they are run: under SQLite's authorizer, which looks at
// what a statement would do when it is compiled, whatever its text looks like (https://www.sqlite.org/c3ref/set_authorizer.html).
//
// Errors: CodeNotTransactional, CodeInvalidSpec or CodeInvalidSQL for what the authorizer refuses; else as translateUserSQL.
func contained(ctx context.Context, conn *sql.Conn, what string, watch *authorizer, run func() error) error {
	if err := setAuthorizer(conn, watch.authorize); err != nil {
		return translate(err, what)
	}
	err := run()
	if cleared := setAuthorizer(conn, nil); cleared != nil {
		// Left in place it would refuse our own COMMIT, so the transaction ends with its connection.
		closeConnection(ctx)
		return translate(cleared, what)
	}
	if err != nil && watch.denied != nil {
		watch.denied.Message = what + ": " + watch.denied.Message
		return watch.denied
	}
	return translateUserSQL(err, what)
}

// setAuthorizer sets the function that SQLite asks about what it compiles on this connection; nil: none.
func setAuthorizer(conn *sql.Conn, authorize modernc.AuthorizerFn) error {
	return conn.Raw(func(driverConn any) error {
		registerer, ok := driverConn.(modernc.AuthorizerRegisterer)
		if !ok {
			return fmt.Errorf("the driver's connection %T takes no authorizer", driverConn)
		}
		return registerer.RegisterAuthorizer(authorize)
	})
}

// hasTemporaries says whether the connection holds temporary objects, which would stand in for tables of the file.
func hasTemporaries(ctx context.Context, q querier) bool {
	var exist bool
	err := q.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM temp.sqlite_schema)").Scan(&exist)
	return exist || err != nil
}

// trimStatement drops what ends a statement, so that it can stand inside another one. A line break has to follow it, since it may end
// in a comment.
func trimStatement(text string) string {
	return strings.TrimRight(text, "; \t\r\n")
}

// subquery encloses a query so that it can stand in a FROM clause, whatever comment it ends with.
func subquery(text string) string { return "(\n" + trimStatement(text) + "\n)" }
