package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/gatesql"
)

var _ storage.ServeGatesOf = (*Store)(nil)

// ReadServeGates reads the gates of several schemas of this database in one statement, so that a database with many of them is asked as
// rarely as one with a single one (docs/design.md section 8, "Freshness").
//
// Errors: CodeNewerCatalog; that of any schema that cannot be read. An error never means open.
func (s *Store) ReadServeGates(ctx context.Context, schemas []string) ([]storage.ServeGate, error) {
	const what = "read the serve gates"
	if len(schemas) == 0 {
		return nil, storage.Refuse(storage.CodeInvalidSpec, "%s: no schema is named", what)
	}
	var gates []storage.ServeGate
	collect := func(rows pgx.Rows) (err error) {
		gates, err = scanGates(rows, schemas)
		return err
	}
	err := s.readOnce(ctx, what, collect, gatesStatement(schemas, true), storage.AllVersions, nil)
	if sqlState(err) == stateNoPrivilege {
		// If it was only the right to read the identifier that is missing, the gates go without; what else is missing fails again.
		err = s.readOnce(ctx, what, collect, gatesStatement(schemas, false), storage.AllVersions, nil)
	}
	if err != nil {
		return nil, err
	}
	return gates, nil
}

// gatesStatement puts the statements of several schemas into one, each with its place in the list.
func gatesStatement(schemas []string, system bool) string {
	parts := make([]string, len(schemas))
	for i, schema := range schemas {
		parts[i] = fmt.Sprintf("SELECT %d, gate.*\n  FROM (\n%s\n) gate", i, gatesql.Postgres(quoteIdentifier(schema), system))
	}
	return strings.Join(parts, "\nUNION ALL\n") + "\nORDER BY 1"
}

func scanGates(rows pgx.Rows, schemas []string) ([]storage.ServeGate, error) {
	gates := make([]storage.ServeGate, 0, len(schemas))
	for rows.Next() {
		var place int
		var row gatesql.PostgresRow
		if err := rows.Scan(append([]any{&place}, row.Targets()...)...); err != nil {
			return nil, err
		}
		if place != len(gates) || place >= len(schemas) {
			return nil, fmt.Errorf("a gate at place %d of %d came after %d others", place, len(schemas), len(gates))
		}
		gate, err := row.ServeGate(storage.AllVersions, schemas[place])
		if err != nil {
			return nil, err
		}
		gates = append(gates, gate)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(gates) != len(schemas) {
		return nil, fmt.Errorf("%d gates of %d were read", len(gates), len(schemas))
	}
	return gates, nil
}
