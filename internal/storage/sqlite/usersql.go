package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	modernc "modernc.org/sqlite"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// runUserSQL runs SQL of the user as it was written, in our transaction. SQLite takes it apart, so a semicolon in a string, a comment or
// a trigger's body means what it means; nothing here reads the text. An authorizer, which SQLite asks about every statement it
// compiles, keeps anything in it from ending or splitting the transaction, or from reaching beyond it. It returns the tables written.
//
// CodeNotTransactional, CodeInvalidSQL; CodeInvalidSpec for a PRAGMA, which would have no effect here. Whatever the error, the
// caller must roll back. The connection is not to be used again afterwards.
func runUserSQL(ctx context.Context, conn *sql.Conn, what, text string) (written []string, err error) {
	if strings.ContainsRune(text, 0) {
		// SQLite reads up to it and would leave out the rest in silence.
		return nil, storage.Refuse(storage.CodeInvalidSQL, "%s: the SQL holds a NUL character", what)
	}
	watch := &authorizer{}
	if err := setAuthorizer(conn, watch.authorize); err != nil {
		return nil, translate(err, what)
	}
	_, err = conn.ExecContext(ctx, text)
	if cleared := setAuthorizer(conn, nil); err == nil && cleared != nil {
		return nil, translate(cleared, what)
	}
	if err != nil && watch.denied != nil {
		watch.denied.Message = what + ": " + watch.denied.Message
		return nil, watch.denied
	}
	return watch.written, translateUserSQL(err, what)
}

// authorizer decides what SQL of a user may do, and notes which tables it writes.
type authorizer struct {
	readOnly bool           // only queries pass
	denied   *storage.Error // the first refusal: SQLite itself only says "not authorized"
	written  []string
}

// authorize is asked by SQLite while it compiles a statement (https://www.sqlite.org/c3ref/c_alter_table.html has the arguments).
func (a *authorizer) authorize(action modernc.AuthorizerActionCode, first, second, database, _ string) modernc.AuthorizerReturnCode {
	if a.readOnly && !isQuery(action) {
		return a.deny(storage.CodeInvalidSQL, "it does something else than read, and only queries run here")
	}
	switch action {
	case modernc.AuthTransaction:
		return a.deny(storage.CodeNotTransactional, "%s would end or split the transaction it runs in", first)
	case modernc.AuthSavepoint:
		return a.deny(storage.CodeNotTransactional, "SAVEPOINT and RELEASE would split the transaction they run in")
	case modernc.AuthAttach:
		return a.deny(storage.CodeNotTransactional, "ATTACH reaches another file, which is not part of this transaction")
	case modernc.AuthDetach:
		return a.deny(storage.CodeNotTransactional, "DETACH reaches another file, which is not part of this transaction")
	case modernc.AuthPragma:
		if fold(first) == "wal_checkpoint" {
			return a.deny(storage.CodeNotTransactional, "PRAGMA wal_checkpoint cannot run inside a transaction")
		}
		if second != "" && !slices.Contains(readingPragmas, fold(first)) && !slices.Contains(storedPragmas, fold(first)) {
			return a.deny(storage.CodeInvalidSpec, "PRAGMA %s: a setting is the connection's and has no effect inside a transaction; leave it out", first)
		}
	case modernc.AuthInsert, modernc.AuthUpdate, modernc.AuthDelete, modernc.AuthDropTable:
		a.write(first, database)
	case modernc.AuthAlterTable: // its arguments are the database and the table
		a.write(second, first)
	}
	return modernc.AuthorizerOK
}

// isQuery says that an action is part of a query.
func isQuery(action modernc.AuthorizerActionCode) bool {
	switch action {
	case modernc.AuthSelect, modernc.AuthRead, modernc.AuthFunction, modernc.AuthRecursive:
		return true
	default:
		return false
	}
}

func (a *authorizer) deny(code storage.Code, format string, args ...any) modernc.AuthorizerReturnCode {
	if a.denied == nil {
		a.denied = storage.Refuse(code, format, args...)
	}
	return modernc.AuthorizerDeny
}

func (a *authorizer) write(table, database string) {
	if database == "main" && !slices.Contains(a.written, fold(table)) {
		a.written = append(a.written, fold(table))
	}
}

// readingPragmas take an argument and change nothing. SQLite itself asks some of them: ALTER TABLE ADD COLUMN with a CHECK runs
// quick_check. Without an argument every PRAGMA that matters only reads.
var readingPragmas = []string{
	"foreign_key_check", "foreign_key_list", "index_info", "index_list", "index_xinfo", "integrity_check", "page_count", "page_size",
	"quick_check", "table_info", "table_list", "table_xinfo",
}

// storedPragmas write a number into the file's header, in the transaction: programs keep a version of their own there.
var storedPragmas = []string{"application_id", "user_version"}

// discardTemporaries drops what user SQL left in the session: an unqualified name is looked up among temporary tables first, so the
// marker could be written into one and be gone, and a temporary trigger would act on our own statements.
func discardTemporaries(ctx context.Context, q querier, what string) error {
	rows, err := q.QueryContext(ctx, `
		SELECT upper(type), name
		FROM temp.sqlite_master
		WHERE type IN ('table', 'view', 'trigger')
		  AND name NOT LIKE 'sqlite!_%' ESCAPE '!'
		ORDER BY type = 'table', name`)
	if err != nil {
		return translate(err, what)
	}
	defer func() { _ = rows.Close() }()
	var drops []string
	for rows.Next() {
		var kind, name string
		if err := rows.Scan(&kind, &name); err != nil {
			return translate(err, what)
		}
		drops = append(drops, "DROP "+kind+" IF EXISTS temp."+quoteIdentifier(name))
	}
	if err := rows.Err(); err != nil {
		return translate(err, what)
	}
	for _, drop := range drops {
		if _, err := q.ExecContext(ctx, drop); err != nil {
			return translate(err, what+": drop what it left in the session")
		}
	}
	return nil
}

// userSQLName names the SQL of a version in errors.
func userSQLName(version int64) string { return fmt.Sprintf("run the SQL of version %d", version) }
