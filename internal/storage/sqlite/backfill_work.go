package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// work is what a transaction of a backfill needs to know: the definition, the key of the table it goes over, and how its SQL reads.
type work struct {
	tx         *sql.Conn
	definition storage.Definition
	key        tableKey
}

// newWork reads the key. CodeInvalidSpec for an external checkpoint, and for a table without a usable key.
func newWork(ctx context.Context, tx *sql.Conn, definition storage.Definition) (*work, error) {
	if definition.Checkpoint.Backfill.External() {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "checkpoint %q is filled by a program of its own, not by SQL", definition.Name)
	}
	key, err := readKey(ctx, tx, definition.Table)
	if err != nil {
		return nil, err
	}
	return &work{tx: tx, definition: definition, key: key}, nil
}

// The temporary tables of a transaction. Users' statements name batch and changed without a schema: an unqualified name is looked
// for among the temporary tables first, so a table of the file with such a name does not get in the way; that one is main.batch.
const (
	batchRelation   = "temp.batch"   // keys at hand
	changedRelation = "temp.changed" // keys of a source that is mapped to others
	keysRelation    = "temp.syncbarrier_keys"
)

// makeRelations makes the temporary tables anew.
func (w *work) makeRelations(ctx context.Context) error {
	if err := w.dropRelations(ctx); err != nil {
		return err
	}
	for _, relation := range []string{batchRelation, keysRelation} {
		if err := w.exec(ctx, "make "+relation, w.key.temporary(relation)); err != nil {
			return err
		}
	}
	return nil
}

// dropRelations leaves nothing of ours in the session. What the user's SQL left in it would stand in for tables of the file, so such a
// connection is not used again.
func (w *work) dropRelations(ctx context.Context) error {
	for _, relation := range []string{batchRelation, changedRelation, keysRelation} {
		if err := w.exec(ctx, "drop "+relation, "DROP TABLE IF EXISTS "+relation); err != nil {
			return err
		}
	}
	if hasTemporaries(ctx, w.tx) {
		closeConnection(ctx)
	}
	return nil
}

// exec runs a statement of ours.
func (w *work) exec(ctx context.Context, what, text string, arguments ...any) error {
	_, err := w.tx.ExecContext(ctx, text, arguments...)
	return translate(err, fmt.Sprintf("checkpoint %q: %s", w.definition.Name, what))
}

// count runs a query of ours for one number.
func (w *work) count(ctx context.Context, what, text string, arguments ...any) (n int64, err error) {
	err = w.tx.QueryRowContext(ctx, text, arguments...).Scan(&n)
	return n, translate(err, fmt.Sprintf("checkpoint %q: %s", w.definition.Name, what))
}

// table is the backfilled table in SQL.
func (w *work) table() string { return "main." + quoteIdentifier(w.key.table) }

// applySQL is the statement that fills the rows whose keys stand in batch.
func (w *work) applySQL() string {
	if statement := w.definition.Checkpoint.Backfill.Statement; statement != nil {
		return statement.Apply
	}
	update := w.definition.Checkpoint.Backfill.Update
	var set []string
	for _, column := range sortedKeys(update.Set) {
		set = append(set, quoteIdentifier(column)+" = "+subquery(update.Set[column]))
	}
	return "UPDATE " + w.table() + " SET " + strings.Join(set, ", ") +
		" WHERE " + w.key.row("") + " IN (SELECT " + w.key.list("batch.") + " FROM " + batchRelation + " AS batch)"
}

// removeSQL is the statement for keys in batch whose rows are gone, "" if there is none.
func (w *work) removeSQL() string {
	if statement := w.definition.Checkpoint.Backfill.Statement; statement != nil && strings.TrimSpace(trimStatement(statement.Remove)) != "" {
		return statement.Remove
	}
	return ""
}

// apply runs a statement of the backfill over batch.
func (w *work) apply(ctx context.Context, text string) error {
	what := fmt.Sprintf("checkpoint %q: apply a batch to table %q", w.definition.Name, w.key.table)
	return contained(ctx, w.tx, what, &authorizer{}, func() error {
		_, err := w.tx.ExecContext(ctx, text)
		return err
	})
}

// checkNullKey refuses rows whose key holds NULL, which SQLite allows in most primary keys: they cannot be told apart, so they would be
// passed over in silence.
func (w *work) checkNullKey(ctx context.Context) error {
	condition, possible := w.key.isNull("")
	if !possible {
		return nil
	}
	found, err := w.count(ctx, "look for NULL in the key", "SELECT EXISTS (SELECT 1 FROM "+w.table()+" WHERE "+condition+")")
	if err != nil || found == 0 {
		return err
	}
	return storage.Refuse(storage.CodeInvalidSpec, "table %q has rows whose key (%s) is NULL, so checkpoint %q cannot go over it",
		w.key.table, w.key.list(""), w.definition.Name)
}

// sourceTables gives the names of the sources.
func sourceTables(definition storage.Definition) []string {
	var names []string
	for _, source := range definition.Checkpoint.Sources {
		names = append(names, source.Table)
	}
	return names
}
