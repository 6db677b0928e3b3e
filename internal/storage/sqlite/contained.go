package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	modernc "modernc.org/sqlite"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// policy says what SQL that is not ours may contain. It gives a word for what it refuses, "" for what it lets through.
type policy func(action modernc.AuthorizerActionCode) string

// statements lets everything through but what would end or split our transaction, or change the connection.
func statements(action modernc.AuthorizerActionCode) string {
	switch action {
	case modernc.AuthTransaction:
		return "BEGIN, COMMIT or ROLLBACK"
	case modernc.AuthSavepoint:
		return "SAVEPOINT or RELEASE"
	case modernc.AuthAttach, modernc.AuthDetach:
		return "ATTACH or DETACH"
	case modernc.AuthPragma:
		return "PRAGMA"
	default:
		return ""
	}
}

// readOnly lets queries through and nothing else.
func readOnly(action modernc.AuthorizerActionCode) string {
	switch action {
	case modernc.AuthSelect, modernc.AuthRead, modernc.AuthFunction, modernc.AuthRecursive:
		return ""
	default:
		return "something that is no query"
	}
}

// contained runs SQL that is not ours under SQLite's authorizer, which looks at what a statement would do when it is compiled, whatever
// its text looks like (https://www.sqlite.org/c3ref/set_authorizer.html). Errors are the SQL's own.
//
// Errors: CodeNotTransactional or CodeInvalidSQL for what the policy refuses; else as translateUserSQL.
func contained(ctx context.Context, conn *sql.Conn, what string, allow policy, run func() error) error {
	refused := ""
	authorize := func(action modernc.AuthorizerActionCode, _, _, _, _ string) modernc.AuthorizerReturnCode {
		if word := allow(action); word != "" {
			refused = word
			return modernc.AuthorizerDeny
		}
		return modernc.AuthorizerOK
	}
	if err := setAuthorizer(conn, authorize); err != nil {
		return translate(err, what)
	}
	err := run()
	if cleared := setAuthorizer(conn, nil); cleared != nil {
		// Left in place it would refuse our own COMMIT, so the transaction cannot end but by the end of its connection.
		closeConnection(ctx)
		return translate(cleared, what)
	}
	if err == nil || refused == "" {
		return translateUserSQL(err, what)
	}
	code := storage.CodeNotTransactional
	if refused == readOnly(modernc.AuthInsert) {
		code = storage.CodeInvalidSQL
	}
	return &storage.Error{Code: code, Message: fmt.Sprintf("%s: it contains %s, which cannot run here", what, refused), Err: err}
}

func setAuthorizer(conn *sql.Conn, authorize modernc.AuthorizerFn) error {
	return conn.Raw(func(driverConn any) error {
		registerer, ok := driverConn.(modernc.AuthorizerRegisterer)
		if !ok {
			return fmt.Errorf("the driver's connection %T takes no authorizer", driverConn)
		}
		return registerer.RegisterAuthorizer(authorize)
	})
}

// hasTemporaries says whether the connection holds temporary objects, which would stand in the way of everybody's tables.
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
