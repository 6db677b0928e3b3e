package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// stateEnumUse: a value was used in the transaction that added it to its type.
const stateEnumUse = "55P04"

// runUserSQL runs the SQL of one version inside the barrier's transaction, through EXECUTE of plpgsql: there COMMIT, ROLLBACK, SAVEPOINT,
// PREPARE TRANSACTION, CREATE INDEX CONCURRENTLY, VACUUM and their like fail, wherever in the text they stand, while the same words in
// comments, strings and bodies pass. So nothing in it can end or split our transaction. The text travels as a value. limits are
// the settings to set again after it.
//
// Errors: CodeNotTransactional, CodeInvalidSQL with the database's message.
func (s *Store) runUserSQL(ctx context.Context, tx pgx.Tx, step storage.Step, limits string) error {
	closeConnection(ctx) // whatever it leaves in the session ends with it
	prepared, err := preparedNames(ctx, tx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, "SELECT set_config('syncbarrier.sql', $1::text, true)", step.SQL); err != nil {
		return fmt.Errorf("hand over the SQL of version %d: %w", step.Version, err)
	}
	if _, err := tx.Exec(ctx, "DO $syncbarrier$ BEGIN EXECUTE current_setting('syncbarrier.sql'); END $syncbarrier$"); err != nil {
		return userSQLError(err, step)
	}
	// What the SQL deferred to COMMIT is found here, where it still has a name.
	if _, err := tx.Exec(ctx, "SET CONSTRAINTS ALL IMMEDIATE"); err != nil {
		return userSQLError(err, step)
	}
	if err := s.resetAfterUserSQL(ctx, tx, prepared, limits); err != nil {
		return err
	}
	var readOnly bool
	if err := tx.QueryRow(ctx, "SELECT current_setting('transaction_read_only')::boolean").Scan(&readOnly); err != nil {
		return fmt.Errorf("look at the transaction: %w", err)
	}
	if readOnly {
		return storage.Refuse(storage.CodeNotTransactional, "the SQL of version %d makes the barrier's transaction read only", step.Version)
	}
	return nil
}

// userSQLError says which version's SQL failed, and at which of its lines if the database said so.
func userSQLError(err error, step storage.Step) error {
	what := fmt.Sprintf("the SQL of version %d", step.Version)
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) {
		return translate(err, what)
	}
	if pgErr.InternalQuery == step.SQL && pgErr.InternalPosition > 0 {
		what += fmt.Sprintf(", line %d", lineAt(step.SQL, int(pgErr.InternalPosition)))
	}
	if pgErr.Code == stateEnumUse {
		return &storage.Error{
			Code: storage.CodeNotTransactional, Message: what, Err: withoutValues(pgErr),
			Hint: "add the value in one version and use it in the next",
		}
	}
	translated := translateUserSQL(err, what)
	var refused *storage.Error
	if errors.As(translated, &refused) && refused.Code == storage.CodeNotTransactional {
		return refused.WithHint("all SQL of a version runs in one transaction with the marker: leave out what begins or ends one, or cannot run in one")
	}
	return translated
}

// lineAt gives the line of a character; both are counted from 1.
func lineAt(text string, character int) int {
	runes := []rune(text)
	return 1 + strings.Count(string(runes[:min(len(runes), character-1)]), "\n")
}

// resetAfterUserSQL puts the session back: role, settings, what was prepared, opened or locked in it, and temporary objects. Closing our
// connection would not do: behind a pooler the server's goes on to somebody else.
func (s *Store) resetAfterUserSQL(ctx context.Context, tx pgx.Tx, prepared []string, limits string) error {
	reset := "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL;" + limits + s.pinnedSQL() +
		"; SELECT pg_advisory_unlock_all(); CLOSE ALL; UNLISTEN *; DISCARD TEMP"
	if tx.Conn().PgConn().ParameterStatus(clientEncoding) != utf8Encoding {
		// By itself: the names in what follows would be taken for something else.
		if _, err := tx.Exec(ctx, "SET LOCAL client_encoding = 'UTF8'"); err != nil {
			return fmt.Errorf("reset the encoding after the user's SQL: %w", err)
		}
	}
	if _, err := tx.Exec(ctx, reset); err != nil { // in one round trip: the locks are held
		return fmt.Errorf("reset the session after the user's SQL: %w", err)
	}
	if !s.pooled {
		// The SQL may have dropped the driver's own prepared statements as well (DEALLOCATE ALL), and the driver would go on using them.
		if err := tx.Conn().DeallocateAll(ctx); err != nil {
			return fmt.Errorf("drop the prepared statements after the user's SQL: %w", err)
		}
		return nil
	}
	now, err := preparedNames(ctx, tx)
	if err != nil {
		return err
	}
	for _, name := range now {
		if slices.Contains(prepared, name) {
			continue
		}
		if _, err := tx.Exec(ctx, "DEALLOCATE "+quoteIdentifier(name)); err != nil {
			return fmt.Errorf("drop a prepared statement of the user's SQL: %w", err)
		}
	}
	return nil
}

// preparedNames are the statements that SQL has prepared in this session. Those of the driver are not among them.
func preparedNames(ctx context.Context, tx pgx.Tx) ([]string, error) {
	rows, err := tx.Query(ctx, "SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql ORDER BY name")
	if err != nil {
		return nil, fmt.Errorf("read the prepared statements: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the prepared statements: %w", err)
	}
	return names, nil
}
