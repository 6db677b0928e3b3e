package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// missingRights says which rights a barrier and its backfills will need that this role does not have, as far as it can be asked beforehand:
// what the SQL of a migration or of a backfill touches besides is not known.
//
// A table that is altered, or gets a trigger, has to be the role's own or that of a role it is a member of (PostgreSQL manual, ALTER TABLE). A
// new object needs CREATE on the schema.
func (s *Store) missingRights(ctx context.Context, q querier, locks lockSet, decision storage.Decision) ([]string, error) {
	if decision.Outcome == storage.Agreed {
		return nil, nil
	}
	schemas, tables, changed := neededOf(s.schemaName, locks, decision)
	rows, err := q.Query(ctx, s.sql(`
		SELECT CASE WHEN need.changed
		            THEN 'to alter table "' || c.relname || '" the role has to own it, or to be a member of ' || pg_catalog.pg_get_userbyid(c.relowner)
		            ELSE 'to fill table "' || c.relname || '" the role needs SELECT and UPDATE on it'
		       END
		  FROM unnest($1::text[], $2::text[], $3::bool[]) AS need(schema, name, changed)
		  JOIN pg_catalog.pg_namespace n ON n.nspname = need.schema
		  JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = need.name
		 WHERE NOT CASE WHEN need.changed
		                THEN pg_catalog.pg_has_role(c.relowner, 'USAGE')
		                ELSE pg_catalog.has_table_privilege(c.oid, 'SELECT') AND pg_catalog.has_table_privilege(c.oid, 'UPDATE')
		           END
		 UNION ALL
		SELECT 'to make tables, indexes and functions the role needs CREATE on schema "' || n.nspname || '"'
		  FROM pg_catalog.pg_namespace n
		 WHERE n.nspname = $5::text
		   AND NOT pg_catalog.has_schema_privilege(n.oid, 'CREATE')
		   AND ($4::bool OR to_regclass({schema_text} || '.sync_barrier_history') IS NULL)
		 ORDER BY 1`), schemas, tables, changed, makes(decision), s.schemaName)
	if err != nil {
		return nil, fmt.Errorf("read the rights of the role: %w", err)
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("read the rights of the role: %w", err)
	}
	for i := range missing {
		missing[i] = "apply would be refused: " + missing[i]
	}
	return missing, nil
}

// neededOf gives the tables that a decision needs rights on, each once, and whether they are changed or only filled.
func neededOf(schema string, locks lockSet, decision storage.Decision) (schemas, tables []string, changed []bool) {
	add := func(in, table string, alter bool) {
		for i := range tables {
			if schemas[i] == in && tables[i] == table {
				return
			}
		}
		schemas, tables, changed = append(schemas, in), append(tables, table), append(changed, alter)
	}
	for _, lock := range locks {
		add(lock.schema, lock.table, true)
	}
	for _, c := range decision.Declare {
		for _, source := range c.Sources {
			add(schema, source.Table, true) // it gets a trigger
		}
	}
	for _, c := range decision.Declare {
		add(schema, c.Backfill.Table(), false)
	}
	return schemas, tables, changed
}

// makes says whether a decision makes something new in the schema.
func makes(decision storage.Decision) bool {
	return slices.ContainsFunc(decision.Steps, func(step storage.Step) bool { return strings.HasPrefix(string(step.Kind), "create") })
}
