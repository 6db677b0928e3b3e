package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// step is one statement of a pipeline.
type step struct {
	what      string
	sql       string
	arguments []any
	user      bool                           // it holds SQL of the user
	done      func(tag pgconn.CommandTag)    // for a statement without rows
	rows      func(ctx pgx.Rows) (err error) // for one with rows
}

// send runs statements in order in one round trip. Each is a statement of its own with a snapshot of its own. The first failure ends
// the transaction; the error says what was being done.
func send(ctx context.Context, tx pgx.Tx, steps ...step) (err error) {
	pipeline := &pgx.Batch{}
	for _, step := range steps {
		pipeline.Queue(step.sql, step.arguments...)
	}
	defer boundedOf(tx.Conn().PgConn().Conn()).allowStatements(len(steps))()
	results := tx.SendBatch(ctx, pipeline)
	defer func() {
		if closed := results.Close(); err == nil {
			err = closed
		}
	}()
	for _, step := range steps {
		if err := step.read(results); err != nil {
			if step.user {
				return translateUserSQL(err, step.what)
			}
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

func (s step) read(results pgx.BatchResults) error {
	if s.rows == nil {
		tag, err := results.Exec()
		if err == nil && s.done != nil {
			s.done(tag)
		}
		return err
	}
	rows, err := results.Query()
	if err != nil {
		return err
	}
	defer rows.Close()
	if err := s.rows(rows); err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

// sortedKeys are the keys of a batch after an attempt to lock their rows.
type sortedKeys struct {
	locked [][]string // rows that are ours until COMMIT
	held   [][]string // rows that somebody else holds, or that appeared meanwhile
	gone   [][]string // keys without a row
}

// rowLock is how rows are locked.
type rowLock int

const (
	skipLocked  rowLock = iota // never wait for a row
	waitLocked                 // wait as long as lock_timeout allows
	onlyFree                   // refuse if somebody holds one
	tableIsHeld                // not at all: the table is locked
)

// lockClause is the end of a statement that locks rows of t.
func (p *backfillPlan) lockClause(mode rowLock) string {
	switch mode {
	case skipLocked:
		return "\n   " + p.lock + " OF t SKIP LOCKED"
	case waitLocked:
		return "\n   " + p.lock + " OF t"
	case onlyFree:
		return "\n   " + p.lock + " OF t NOWAIT"
	default:
		return ""
	}
}

// lockKeys locks the rows of keys, and then looks which keys have a row at all: in this order, so that a row that appears between
// the two counts as held and is looked at again.
func (b *batchTx) lockKeys(ctx context.Context, keys [][]string, mode rowLock) (sortedKeys, error) {
	t := b.plan.table
	lock := fmt.Sprintf(`
SELECT %s
  FROM %s AS t
 WHERE (%s) IN %s
 ORDER BY %s%s`, t.texts("t."), t.sql, t.names("t."), t.set(1), t.names("t."), b.plan.lockClause(mode))
	found := fmt.Sprintf(`
SELECT %s, t.tableoid IS NOT NULL
  FROM (SELECT DISTINCT * FROM %s AS named) AS u
  LEFT JOIN %s AS t
    ON %s`,
		t.list(func(_ int, c keyColumn) string {
			return fmt.Sprintf("coalesce(t.%s::text, u.%s::text)", c.name, c.name)
		}),
		t.set(1), t.sql,
		t.equal("t.", "u."))
	return b.sortOut(ctx, lock, found, t.arrays(keys))
}

// lockRange is lockKeys for all rows of a key range.
func (b *batchTx) lockRange(ctx context.Context, lower, upper []string) (sortedKeys, error) {
	t := b.plan.table
	condition := t.inRange("t.", lower, upper, b.partition())
	lock := fmt.Sprintf(`
SELECT %s
  FROM %s AS t
 WHERE %s
 ORDER BY %s%s`, t.texts("t."), t.sql, condition.sql(), t.names("t."), b.plan.lockClause(skipLocked))
	found := fmt.Sprintf(`
SELECT %s, true
  FROM %s AS t
 WHERE %s`, t.texts("t."), t.sql, condition.sql())
	return b.sortOut(ctx, lock, found, condition.arguments, byKeySQL(false))
}

// sortOut runs the two statements and compares what they found.
func (b *batchTx) sortOut(ctx context.Context, lock, found string, arguments []any, more ...step) (sortedKeys, error) {
	t := b.plan.table
	var sorted sortedKeys
	ours := map[string]bool{}
	what := fmt.Sprintf("lock rows of table %q", t.declared.Name)
	steps := append([]step{
		{what: what, sql: lock, arguments: arguments, rows: func(rows pgx.Rows) (err error) {
			if sorted.locked, err = t.collectKeys(rows); err != nil {
				return err
			}
			for _, key := range sorted.locked {
				ours[storage.EncodeKey(key)] = true
			}
			return nil
		}},
		{what: what, sql: found, arguments: arguments, rows: func(rows pgx.Rows) error {
			var exists bool
			return t.eachKey(rows, func(key []string) {
				switch {
				case !exists:
					sorted.gone = append(sorted.gone, key)
				case !ours[storage.EncodeKey(key)]:
					sorted.held = append(sorted.held, key)
				}
			}, &exists)
		}},
	}, more...)
	err := send(ctx, b.Tx, steps...)
	return sorted, err
}

// apply fills the rows that are locked, and removes what was derived from rows that are gone. It is a statement after the one that
// locked: its snapshot shows everything that was committed before the rows were ours. In one statement with the locking it would read
// all other rows as they were before, and write an old value over a newer one.
func (b *batchTx) apply(ctx context.Context, sorted sortedKeys) error {
	if statement := b.plan.statement(); statement != nil {
		return b.applyStatement(ctx, *statement, sorted)
	}
	if len(sorted.locked) == 0 {
		return nil
	}
	var updated int64
	if err := send(ctx, b.Tx, b.updateKeys(sorted.locked, &updated)...); err != nil {
		return err
	}
	return b.checkFilled(ctx, sorted.locked, updated)
}

// updateKeys are the statements of an update of exactly these rows, but for those that are filled already. Were these written again, a
// trigger of the program's that notes the time of each update would make a change of each, which the tail would apply, and so on
// without end. updated becomes the number of rows that were written.
func (b *batchTx) updateKeys(keys [][]string, updated *int64) []step {
	return b.updateWhere(keys, b.plan.unfilled(), updated)
}

func (b *batchTx) updateWhere(keys [][]string, and string, updated *int64) []step {
	t := b.plan.table
	return b.checkingConstraints(b.applying("update", keys), step{
		sql:       fmt.Sprintf("UPDATE %s\n   SET %s\n WHERE (%s) IN %s%s", t.sql, b.plan.set, t.names(""), t.set(1), and),
		arguments: t.arrays(keys),
		done:      func(tag pgconn.CommandTag) { *updated = tag.RowsAffected() },
	})
}

// checkFilled looks for rows that an update of these keys should have filled and did not, because a trigger or a rule of the program's keeps
// it from them. Without this they would count as done. Our locks hold the rows, but not the other tables that an expression may read:
// what was filled for the update need not be for the statement after it, so whoever is unfilled then is first written once more. Only
// a row that stays unfilled although nothing but a trigger or a rule could leave it out counts as kept from us.
func (b *batchTx) checkFilled(ctx context.Context, keys [][]string, updated int64) error {
	if updated >= int64(len(keys)) {
		return nil
	}
	if b.plan.differs != "" {
		for range tellingTries {
			var err error
			if keys, err = b.unfilledOf(ctx, keys); err != nil {
				return err
			}
			if len(keys) == 0 {
				return nil
			}
			if err := send(ctx, b.Tx, b.updateWhere(keys, "", &updated)...); err != nil {
				return err
			}
			if updated == int64(len(keys)) {
				return nil
			}
		}
	}
	return storage.Refuse(storage.CodeInvalidSQL, "%s: a trigger or a rule of the table keeps it from %d rows",
		b.applying("update", keys), int64(len(keys))-updated).
		WithHint("let it pass this update, or give those rows the value that they have: CASE WHEN ... THEN the column ELSE ... END")
}

// tellingTries is how often a row is written anew before it is said to be kept from us. A trigger that suppresses redundant updates leaves out
// a row whose value changed between two of our statements, and back again: not so many times in a row.
const tellingTries = 3

// unfilledOf are those of the keys whose rows do not have their values.
func (b *batchTx) unfilledOf(ctx context.Context, keys [][]string) (unfilled [][]string, err error) {
	t := b.plan.table
	err = send(ctx, b.Tx, step{
		what: b.applying("look for rows without their value", nil), user: true,
		sql:       fmt.Sprintf("SELECT %s FROM %s WHERE (%s) IN %s%s", t.texts(""), t.sql, t.names(""), t.set(1), b.plan.unfilled()),
		arguments: t.arrays(keys),
		rows: func(rows pgx.Rows) (err error) {
			unfilled, err = t.collectKeys(rows)
			return err
		},
	})
	return unfilled, err
}

// checkingConstraints are a statement of the user and, where the table has any, the checks that it deferred to COMMIT: there they
// would fail without a name.
func (b *batchTx) checkingConstraints(what string, statement step) []step {
	statement.what, statement.user = what, true
	if !b.plan.deferrable {
		return []step{statement}
	}
	return []step{statement, {what: what, sql: "SET CONSTRAINTS ALL IMMEDIATE", user: true}}
}

// applying says what the user's SQL was doing; of a batch of one row it names the key.
func (b *batchTx) applying(part string, keys [][]string) string {
	what := fmt.Sprintf("checkpoint %q: %s of table %q", b.claim.Name, part, b.plan.table.declared.Name)
	if len(keys) == 1 {
		what += fmt.Sprintf(", key %.200q", storage.EncodeKey(keys[0]))
	}
	return what
}

// applyStatement runs the user's statement over the relation `batch`.
func (b *batchTx) applyStatement(ctx context.Context, statement storage.Statement, sorted sortedKeys) error {
	if len(sorted.locked) > 0 {
		if err := b.overBatch(ctx, "apply", statement.Apply, sorted.locked); err != nil {
			return err
		}
	}
	if len(sorted.gone) > 0 && statement.Remove != "" {
		return b.overBatch(ctx, "remove", statement.Remove, sorted.gone)
	}
	return nil
}

// overBatch fills `batch` with keys and runs SQL of the user, through EXECUTE of plpgsql: there nothing in it can end or split our
// transaction. The text travels as a value.
func (b *batchTx) overBatch(ctx context.Context, part, sql string, keys [][]string) error {
	t := b.plan.table
	if err := b.makeBatch(ctx); err != nil {
		return err
	}
	return send(ctx, b.Tx, b.runningOverBatch(part, sql, keys, step{
		sql: fmt.Sprintf("SELECT %s FROM %s AS keys", t.names("keys."), t.set(1)), arguments: t.arrays(keys),
	})...)
}

// runningOverBatch are the statements that fill `batch` by a query and run SQL of the user over it. keys are there for errors.
func (b *batchTx) runningOverBatch(part, sql string, keys [][]string, query step) []step {
	what := b.applying(part, keys)
	query.what = what
	query.sql = fmt.Sprintf("INSERT INTO pg_temp.batch (%s)\n%s", b.plan.table.names(""), query.sql)
	var before []string
	steps := []step{
		{what: what, sql: "DELETE FROM pg_temp.batch"},
		query,
		{what: what, sql: "SELECT set_config('syncbarrier.sql', $1::text, true)", arguments: []any{sql}},
		{what: what, sql: sessionSQL, rows: scanRow(&before)},
	}
	steps = append(steps, b.checkingConstraints(what, step{
		sql: "DO $syncbarrier$ BEGIN EXECUTE current_setting('syncbarrier.sql'); END $syncbarrier$",
	})...)
	return append(steps, step{what: what, sql: sessionSQL, rows: func(rows pgx.Rows) error {
		var after []string
		if err := scanRow(&after)(rows); err != nil {
			return err
		}
		for i, setting := range sessionSettingNames {
			if before[i] != after[i] {
				return storage.Refuse(storage.CodeInvalidSQL, "%s: it changes the session's %s, which the rest of the batch and other batches need as it is", what, setting).
					WithHint("leave it out; names of other schemas can be written in full")
			}
		}
		return nil
	}})
}

// sessionSettingNames are what SQL of the user in a batch must leave alone: who we are, where names are looked for, how long we wait, and how
// keys are written. In a barrier all of a session is set anew and its connection closed; that would cost more than a batch does.
var sessionSettingNames = []string{
	"role", "session_authorization", "search_path", "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout",
	"row_security", "client_encoding", "session_replication_role", "transaction_read_only", writerVersionSetting, "datestyle", "timezone", "intervalstyle",
	"extra_float_digits", "bytea_output", "lc_monetary", "standard_conforming_strings",
}

var sessionSQL = "SELECT ARRAY[coalesce(current_setting('" + strings.Join(sessionSettingNames, "', true), ''), coalesce(current_setting('") + "', true), '')]"

// makeBatch makes the temporary table `batch` with the key columns of the backfilled table. It stays with the session, empty between
// transactions; behind a pooler, where the session is everybody's, it goes with the transaction.
func (b *batchTx) makeBatch(ctx context.Context) error {
	t := b.plan.table
	var exists, fits bool
	types, modifiers := make([]int64, len(t.columns)), make([]int32, len(t.columns))
	for i, column := range t.columns {
		types[i], modifiers[i] = int64(column.oid), column.modifier
	}
	err := b.QueryRow(ctx, `
		WITH batch AS (
		  SELECT a.attname, a.atttypid, a.atttypmod, a.attcollation
		    FROM pg_catalog.pg_attribute a
		   WHERE a.attrelid = to_regclass('pg_temp.batch')
		     AND a.attnum > 0
		     AND NOT a.attisdropped
		), wanted AS (
		  SELECT a.attname, key.oid, key.modifier, a.attcollation
		    FROM unnest($2::text[], $3::bigint[]::oid[], $4::integer[]) AS key(name, oid, modifier)
		    JOIN pg_catalog.pg_attribute a
		      ON a.attname = key.name
		   WHERE a.attrelid = $1::oid
		)
		SELECT to_regclass('pg_temp.batch') IS NOT NULL,
		       NOT EXISTS (TABLE batch EXCEPT TABLE wanted) AND NOT EXISTS (TABLE wanted EXCEPT TABLE batch)`,
		t.oid, t.declared.Key(), types, modifiers).Scan(&exists, &fits)
	if err != nil {
		return fmt.Errorf("look for the relation batch: %w", err)
	}
	if exists && fits {
		return nil
	}
	if exists && !b.store.pooled {
		if _, err := b.Exec(ctx, "DROP TABLE pg_temp.batch"); err != nil {
			return fmt.Errorf("drop the relation batch of another backfill: %w", err)
		}
	}
	ending := "DELETE ROWS"
	if b.store.pooled {
		ending = "DROP"
	}
	columns := t.list(func(_ int, c keyColumn) string { return fmt.Sprintf("t.%s::%s AS %s", c.name, c.kind, c.name) })
	_, err = b.Exec(ctx, fmt.Sprintf("CREATE TEMPORARY TABLE batch ON COMMIT %s AS SELECT %s FROM %s AS t WITH NO DATA", ending, columns, t.sql))
	if err != nil {
		return fmt.Errorf("make the relation batch: %w", err)
	}
	return nil
}
