package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// checkDefinitions tries the SQL of a checkpoint whose rows are written, in the transaction that declares it and after everything that
// it may refer to is there. Nothing of it stays: it runs in a savepoint that is rolled back. tables are the declarations it
// was declared with.
//
// Errors: CodeInvalidSQL, CodeNotTransactional and CodeInvalidSpec name the checkpoint and which of its statements is wrong.
func (s *Store) checkDefinitions(ctx context.Context, tx pgx.Tx, checkpoint storage.Checkpoint, tables []storage.Table) error {
	probe, err := tx.Begin(ctx)
	if err != nil {
		return fmt.Errorf("check checkpoint %q: %w", checkpoint.Name, err)
	}
	defer rollback(ctx, probe)
	closeConnection(ctx)
	c := definitionCheck{Tx: probe, store: s, checkpoint: checkpoint}
	if checkpoint.Backfill.External() {
		return c.apart(ctx, definitionCheck.external)
	}
	if c.plan, err = s.readPlan(ctx, probe, checkpoint.Name); err != nil {
		return err
	}
	if err := usePath(ctx, probe, c.plan.path); err != nil {
		return err
	}
	for _, check := range []func(definitionCheck, context.Context) error{
		definitionCheck.update, definitionCheck.keys, definitionCheck.verify, definitionCheck.statement,
	} {
		if err := c.apart(ctx, check); err != nil {
			return err
		}
	}
	return nil
}

// apart makes one check in a savepoint of its own, and lets pass what only COMMIT makes possible: a value that the SQL of this barrier
// has added to an enumeration cannot be used before, and the backfill begins after it.
func (c definitionCheck) apart(ctx context.Context, check func(definitionCheck, context.Context) error) error {
	probe, err := c.Begin(ctx)
	if err != nil {
		return fmt.Errorf("check checkpoint %q: %w", c.checkpoint.Name, err)
	}
	defer rollback(ctx, probe)
	c.Tx = probe
	if err := check(c, ctx); err != nil && sqlState(err) != stateEnumUse {
		return err
	}
	return nil
}

type definitionCheck struct {
	pgx.Tx
	store      *Store
	checkpoint storage.Checkpoint
	plan       *backfillPlan
}

// explain lets the database parse and plan one statement without running it.
func (c definitionCheck) explain(ctx context.Context, statement string) error {
	_, err := oneStatement(ctx, c.Tx, "EXPLAIN (COSTS OFF) "+statement)
	return err
}

// external: a program of the user's own does the work, so only its verify queries are ours to run.
func (c definitionCheck) external(ctx context.Context) error {
	for _, verify := range c.checkpoint.Verify {
		if err := c.explain(ctx, verify.Query); err != nil {
			return translateUserSQL(err, fmt.Sprintf("checkpoint %q: verify %q", c.checkpoint.Name, verify.Name))
		}
	}
	return nil
}

// update: each expression first by itself, where one that closes the parenthesis around it and goes on does not parse.
func (c definitionCheck) update(ctx context.Context) error {
	update := c.checkpoint.Backfill.Update
	if update == nil {
		return nil
	}
	table := c.plan.table.sql
	for _, column := range slices.Sorted(maps.Keys(update.Set)) {
		what := fmt.Sprintf("checkpoint %q: the expression for column %q", c.checkpoint.Name, column)
		if err := c.explain(ctx, fmt.Sprintf("SELECT FROM %s WHERE %s IS NULL", table, enclosed(update.Set[column]))); err != nil {
			return translateUserSQL(err, what)
		}
	}
	err := c.explain(ctx, fmt.Sprintf("UPDATE %s SET %s", table, c.plan.set))
	return translateUserSQL(err, fmt.Sprintf("checkpoint %q: the update of table %q", c.checkpoint.Name, update.Table))
}

// keys: what maps the keys of another source has to return keys of the backfilled table.
func (c definitionCheck) keys(ctx context.Context) error {
	for _, source := range c.plan.sources {
		if source.Keys == "" {
			continue
		}
		what := fmt.Sprintf("checkpoint %q: the keys of source %q", c.checkpoint.Name, source.Table)
		changed := fmt.Sprintf("WITH changed AS (SELECT %s FROM %s AS t WHERE false) ", source.table.names("t."), source.table.sql)
		if err := c.explain(ctx, changed+trimmed(source.Keys)); err != nil {
			return translateUserSQL(err, what)
		}
		if err := c.returnsKey(ctx, what, changed, source.Keys); err != nil {
			return err
		}
	}
	return nil
}

func (c definitionCheck) verify(ctx context.Context) error {
	for _, verify := range c.checkpoint.Verify {
		what := fmt.Sprintf("checkpoint %q: verify %q", c.checkpoint.Name, verify.Name)
		if err := c.explain(ctx, trimmed(verify.Query)); err != nil {
			return translateUserSQL(err, what)
		}
		if err := c.returnsKey(ctx, what, "", verify.Query); err != nil {
			return err
		}
	}
	return nil
}

// returnsKey checks that a query which is right by itself returns the key columns of the backfilled table, in types that compare
// with the table's.
func (c definitionCheck) returnsKey(ctx context.Context, what, with, query string) error {
	key := c.plan.table
	err := c.explain(ctx, fmt.Sprintf("%sSELECT FROM (%s\n) AS found JOIN %s AS t ON %s", with, trimmed(query), key.sql,
		key.join(" AND ", func(_ int, column keyColumn) string { return fmt.Sprintf("found.%s = t.%s", column.name, column.name) })))
	if err == nil {
		return nil
	}
	translated := translateUserSQL(err, what)
	if storage.CodeOf(translated) != storage.CodeInvalidSQL {
		return translated
	}
	return &storage.Error{
		Code: storage.CodeInvalidSpec, Err: withoutDetail(err),
		Message: fmt.Sprintf("%s: it has to return the key columns of table %q (%s)", what, key.declared.Name, strings.Join(key.declared.Key(), ", ")),
	}
}

// statement runs apply and remove over an empty `batch`: they may be several statements each, which cannot be planned before the ones
// ahead of them have run.
func (c definitionCheck) statement(ctx context.Context) error {
	statement := c.plan.statement()
	if statement == nil {
		return nil
	}
	b := &batchTx{Tx: c.Tx, store: c.store, plan: c.plan, claim: storage.Claim{Name: c.checkpoint.Name}}
	if err := b.overBatch(ctx, "apply", statement.Apply, nil); err != nil {
		return err
	}
	if statement.Remove == "" {
		return nil
	}
	return b.overBatch(ctx, "remove", statement.Remove, nil)
}

// trimmed takes off the semicolon that people end a query with, which no subquery may have.
func trimmed(query string) string { return strings.TrimRight(query, "; \t\r\n") }
