package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// checkReferences looks for rows whose foreign key the user's SQL broke, in the tables that it wrote and in those that refer to them. The barrier
// runs without enforcement, because with it DROP TABLE deletes the rows of other tables (ON DELETE CASCADE); so what holds in the
// end is checked here. What was wrong before is not the SQL's doing. CodeInvalidSQL.
func (s *Store) checkReferences(ctx context.Context, q querier, what string, written []string) error {
	tables, err := referringTables(ctx, q, written)
	if err != nil {
		return err
	}
	for _, table := range tables {
		if err := s.checkTableReferences(ctx, q, what, table); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) checkTableReferences(ctx context.Context, q querier, what, table string) error {
	broken, err := brokenReferences(ctx, q, table)
	if err == nil && broken == 0 {
		return nil
	}
	if err != nil && !isMismatch(err) {
		return err
	}
	before, beforeErr := s.brokenBefore(ctx, table)
	switch {
	case beforeErr != nil && !isMismatch(beforeErr):
		return beforeErr
	case beforeErr != nil:
		return nil // its foreign keys meant nothing before either
	case err != nil:
		return translateUserSQL(fmt.Errorf("table %q: %w", table, sqliteError(err)), what)
	case broken <= before:
		return nil
	}
	return storage.Refuse(storage.CodeInvalidSQL, "%s: it leaves %d rows of table %q that refer to rows which do not exist", what, broken-before, table).
		WithHint("foreign keys are not enforced while it runs, so ON DELETE CASCADE does nothing: delete such rows in the SQL too")
}

func brokenReferences(ctx context.Context, q querier, table string) (int64, error) {
	return countOf(ctx, q, "broken references of table "+table, "SELECT count(*) FROM pragma_foreign_key_check(?)", table)
}

// isMismatch says that a foreign key refers to columns that are no key. SQLite says so in words only.
func isMismatch(err error) bool {
	return primaryCode(err) == codeError && strings.Contains(err.Error(), "foreign key mismatch")
}

// brokenBefore counts in a snapshot of its own, which shows the file as it was before the barrier's transaction. Where that cannot be read (a
// file without a write-ahead log, once the transaction has outgrown its cache) nothing counts as broken before.
func (s *Store) brokenBefore(ctx context.Context, table string) (before int64, err error) {
	err = s.inTx(ctx, "count broken references of table "+table, false, func(ctx context.Context, tx *sql.Conn) error {
		exists, err := countOf(ctx, tx, "tables", "SELECT count(*) FROM main.sqlite_master WHERE type = 'table' AND name = ? COLLATE NOCASE", table)
		if err != nil || exists == 0 {
			return err
		}
		before, err = brokenReferences(ctx, tx, table)
		return err
	})
	if storage.CodeOf(err) == storage.CodeLockTimeout {
		return 0, nil
	}
	return before, err
}

// referringTables are those of the written tables, and of the tables that refer to one, which have foreign keys.
func referringTables(ctx context.Context, q querier, written []string) ([]string, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT m.name, f."table"
		FROM main.sqlite_master AS m
		JOIN pragma_foreign_key_list(m.name) AS f
		WHERE m.type = 'table'
		ORDER BY m.name`)
	if err != nil {
		return nil, translate(err, "read the foreign keys")
	}
	defer func() { _ = rows.Close() }()
	var tables []string
	for rows.Next() {
		var child, parent string
		if err := rows.Scan(&child, &parent); err != nil {
			return nil, translate(err, "read the foreign keys")
		}
		touched := slices.Contains(written, fold(child)) || slices.Contains(written, fold(parent))
		if touched && !slices.Contains(tables, child) {
			tables = append(tables, child)
		}
	}
	return tables, translate(rows.Err(), "read the foreign keys")
}

// checkRetirable refuses to drop a table that one which stays refers to: its rows would point nowhere. CodeInvalidSpec.
func checkRetirable(ctx context.Context, q querier, retired []string) error {
	folded := make([]string, len(retired))
	for i, name := range retired {
		folded[i] = fold(name)
	}
	for i, name := range folded {
		children, err := referringTables(ctx, q, []string{name})
		if err != nil {
			return err
		}
		for _, child := range children {
			if !slices.Contains(folded, fold(child)) {
				return storage.Refuse(storage.CodeInvalidSpec, "retiredTables: table %q cannot go while a foreign key of table %q refers to it", retired[i], child)
			}
		}
	}
	return nil
}

// readableViews are the views that can be read.
func readableViews(ctx context.Context, q querier) ([]string, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT name
		FROM main.sqlite_master
		WHERE type = 'view'
		ORDER BY name`)
	if err != nil {
		return nil, translate(err, "read the views")
	}
	defer func() { _ = rows.Close() }()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, translate(err, "read the views")
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		return nil, translate(err, "read the views")
	}
	var readable []string
	for _, name := range names {
		if readView(ctx, q, name) == nil {
			readable = append(readable, name)
		}
	}
	return readable, nil
}

func readView(ctx context.Context, q querier, name string) error {
	_, err := q.ExecContext(ctx, "SELECT 1 FROM main."+quoteIdentifier(name)+" LIMIT 0")
	return err
}

// checkViews refuses to leave a view behind that cannot be read any more, as SQLite would in silence: what depends on a retired table is
// not ours to drop. A view that the version's own SQL dropped is nobody's loss. CodeInvalidSpec.
func checkViews(ctx context.Context, q querier, readable []string) error {
	for _, name := range readable {
		exists, err := countOf(ctx, q, "views", "SELECT count(*) FROM main.sqlite_master WHERE type = 'view' AND name = ?", name)
		if err != nil {
			return err
		}
		if exists == 0 {
			continue
		}
		if err := readView(ctx, q, name); err != nil {
			return &storage.Error{Code: storage.CodeInvalidSpec, Message: fmt.Sprintf("retiredTables: view %q cannot be read without it", name), Err: err}
		}
	}
	return nil
}
