package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// checkDefinitions tries the SQL of checkpoints in the transaction that declares them, after everything that it may refer to is there.
// Nothing of it stays. tables are the declarations they are declared with.
//
// Errors: CodeInvalidSQL, CodeNotTransactional and CodeInvalidSpec name the checkpoint and which of its statements is wrong; CodeInvalidSpec
// for a table without a usable key or with rows whose key is NULL.
func checkDefinitions(ctx context.Context, tx *sql.Conn, checkpoints []storage.Checkpoint, tables []storage.Table) error {
	for _, c := range checkpoints {
		check := definitionCheck{work: &work{tx: tx, definition: storage.NewDefinition(c, tables)}}
		if c.Backfill.External() {
			if err := check.external(ctx); err != nil {
				return err
			}
			continue
		}
		if err := check.ours(ctx); err != nil {
			return err
		}
	}
	return nil
}

type definitionCheck struct{ *work }

// external: a program of the user's own does the work, so only its verify queries are ours to run.
func (c definitionCheck) external(ctx context.Context) error {
	for _, verify := range c.definition.Checkpoint.Verify {
		if err := c.compile(ctx, fmt.Sprintf("verify %q", verify.Name), "SELECT 1 FROM "+subquery(verify.Query)+" AS q"); err != nil {
			return err
		}
	}
	return nil
}

func (c definitionCheck) ours(ctx context.Context) (err error) {
	if c.work, err = newWork(ctx, c.tx, c.definition); err != nil {
		return err
	}
	if err := c.checkNullKey(ctx); err != nil {
		return err
	}
	if err := c.makeRelations(ctx); err != nil {
		return err
	}
	for _, check := range []func(context.Context) error{c.update, c.keys, c.verify, c.statement} {
		if err := check(ctx); err != nil {
			return err
		}
	}
	return c.dropRelations(ctx)
}

// update: each expression first by itself, where one that closes the parenthesis around it and goes on does not parse.
func (c definitionCheck) update(ctx context.Context) error {
	update := c.definition.Checkpoint.Backfill.Update
	if update == nil {
		return nil
	}
	for _, column := range sortedKeys(update.Set) {
		what := fmt.Sprintf("backfill: the expression for column %q", column)
		if err := c.compile(ctx, what, "SELECT 1 FROM "+c.table()+" WHERE "+subquery(update.Set[column])+" IS NULL"); err != nil {
			return err
		}
	}
	return c.compile(ctx, fmt.Sprintf("backfill: the update of table %q", update.Table), c.applySQL())
}

// keys: what maps the keys of another source has to return keys of the backfilled table.
func (c definitionCheck) keys(ctx context.Context) error {
	for _, source := range c.definition.Checkpoint.Sources {
		if source.Keys == "" {
			continue
		}
		if _, err := c.makeChanged(ctx, source); err != nil {
			return err
		}
		if err := c.returnsKey(ctx, fmt.Sprintf("the keys of source %q", source.Table), source.Keys); err != nil {
			return err
		}
	}
	return nil
}

func (c definitionCheck) verify(ctx context.Context) error {
	for _, verify := range c.definition.Checkpoint.Verify {
		if err := c.returnsKey(ctx, fmt.Sprintf("verify %q", verify.Name), verify.Query); err != nil {
			return err
		}
	}
	return nil
}

// returnsKey checks that a query is right by itself and returns the key columns of the backfilled table. They are asked for by qualified
// names: an unqualified one in quotes that is not there would be taken for a text.
func (c definitionCheck) returnsKey(ctx context.Context, what, query string) error {
	if err := c.compile(ctx, what, "SELECT 1 FROM "+subquery(query)+" AS q"); err != nil {
		return err
	}
	err := c.compile(ctx, what, "SELECT "+c.key.list("q.")+" FROM "+subquery(query)+" AS q")
	if storage.CodeOf(err) != storage.CodeInvalidSQL {
		return err
	}
	return storage.Refuse(storage.CodeInvalidSpec, "checkpoint %q: %s: it has to return the key columns of table %q (%s)",
		c.definition.Name, what, c.key.table, c.key.list(""))
}

// statement runs apply and remove over an empty `batch` and undoes that: they may be several statements each, which cannot be compiled
// before the ones ahead of them have run.
func (c definitionCheck) statement(ctx context.Context) error {
	statement := c.definition.Checkpoint.Backfill.Statement
	if statement == nil {
		return nil
	}
	const mark = "syncbarrier_check"
	for _, part := range []struct{ name, text string }{{"apply", statement.Apply}, {"remove", c.removeSQL()}} {
		if part.text == "" {
			continue
		}
		if err := c.exec(ctx, "set a savepoint", "SAVEPOINT "+mark); err != nil {
			return err
		}
		if err := c.run(ctx, "backfill: "+part.name, part.text); err != nil {
			return err // the caller rolls back all of it
		}
		if err := c.exec(ctx, "undo the trial", "ROLLBACK TO "+mark); err != nil {
			return err
		}
		if err := c.exec(ctx, "release a savepoint", "RELEASE "+mark); err != nil {
			return err
		}
	}
	return nil
}

// run runs a statement of the user where it would run.
func (c definitionCheck) run(ctx context.Context, what, text string) error {
	what = fmt.Sprintf("checkpoint %q: %s", c.definition.Name, what)
	if strings.ContainsRune(text, 0) {
		// SQLite reads up to it and would leave out the rest in silence.
		return storage.Refuse(storage.CodeInvalidSQL, "%s: the SQL holds a NUL character", what)
	}
	return contained(ctx, c.tx, what, &authorizer{}, func() error {
		_, err := c.tx.ExecContext(ctx, text)
		return err
	})
}

// compile has a query or an update compiled where it would run, and not run.
func (c definitionCheck) compile(ctx context.Context, what, text string) error {
	what = fmt.Sprintf("checkpoint %q: %s", c.definition.Name, what)
	if strings.ContainsRune(text, 0) {
		return storage.Refuse(storage.CodeInvalidSQL, "%s: the SQL holds a NUL character", what)
	}
	return contained(ctx, c.tx, what, &authorizer{}, func() error { return compile(ctx, c.tx, text) })
}
