package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
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

// fill fills the rows of batch, which are so many. An update has to change each of them: one that a trigger of the program's, or a constraint
// that ignores conflicts, kept from its value would count as done.
func (w *work) fill(ctx context.Context, rows int64) error {
	changed, err := w.apply(ctx, w.applySQL())
	if err != nil || w.definition.Checkpoint.Backfill.Update == nil || changed >= rows {
		return err
	}
	return storage.Refuse(storage.CodeInvalidSQL, "checkpoint %q: update of table %q: a trigger or a constraint of the table keeps it from %d rows",
		w.definition.Name, w.key.table, rows-changed).
		WithHint("let it pass this update, or give those rows the value that they have: CASE WHEN ... THEN the column ELSE ... END")
}

// leaveOutFilled takes keys out of batch whose rows have the values of the update already, and gives the number that is left. Were these
// rows written again, a trigger of the program's that logs each update would make a change of each, which the tail would apply, and so on
// without end.
func (w *work) leaveOutFilled(ctx context.Context) (left int64, err error) {
	unfilled, err := w.unfilledSQL(ctx)
	if err != nil {
		return 0, err
	}
	_, err = w.apply(ctx, "DELETE FROM "+batchRelation+" AS b WHERE "+w.key.row("b.")+" NOT IN (SELECT "+w.key.list("")+" FROM "+w.table()+
		" WHERE "+w.key.row("")+" IN (SELECT "+w.key.list("batch.")+" FROM "+batchRelation+" AS batch) AND ("+unfilled+"))")
	if err != nil {
		return 0, err
	}
	return w.count(ctx, "count a batch", "SELECT count(*) FROM "+batchRelation)
}

// unfilledSQL is the condition that a row does not have the values of the update, byte by byte. The sign + takes the affinity from a value, so
// that it is converted for the comparison as it would be for the column; a column that converts nothing keeps 1 apart from 1.0.
func (w *work) unfilledSQL(ctx context.Context) (string, error) {
	columns, err := readColumns(ctx, w.tx, w.key.table)
	if err != nil {
		return "", err
	}
	strict, err := isStrict(ctx, w.tx, w.key.table)
	if err != nil {
		return "", err
	}
	set := w.definition.Checkpoint.Backfill.Update.Set
	var differs []string
	for _, name := range sortedKeys(set) {
		quoted, value := quoteIdentifier(name), "+"+subquery(set[name])
		differs = append(differs, quoted+" COLLATE BINARY IS NOT "+value)
		i := slices.IndexFunc(columns, func(c column) bool { return fold(c.name) == fold(name) })
		if i >= 0 && affinityOf(columns[i].declared, strict) == "BLOB" {
			differs = append(differs, "typeof("+quoted+") IS NOT typeof("+value+")")
		}
	}
	return strings.Join(differs, " OR "), nil
}

// apply runs a statement of the backfill over batch and gives the rows that it changed, for one that is a single statement.
func (w *work) apply(ctx context.Context, text string) (changed int64, err error) {
	what := fmt.Sprintf("checkpoint %q: apply a batch to table %q", w.definition.Name, w.key.table)
	err = contained(ctx, w.tx, what, &authorizer{}, func() error {
		changed, err = affected(w.tx.ExecContext(ctx, text))
		return err
	})
	return changed, err
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
