package postgres

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// typeFamilies are the types that do for a declared one: a table of another program may be narrower, but not of another kind.
var typeFamilies = map[string][]string{
	"TEXT":     {"text", "character varying"},
	"BIGINT":   {"bigint", "integer", "smallint"},
	"INTEGER":  {"integer", "bigint", "smallint"},
	"SMALLINT": {"smallint", "integer", "bigint"},
	"BOOLEAN":  {"boolean"},
	"JSONB":    {"jsonb", "json"},
	"BYTEA":    {"bytea"},
}

// conflictKeys are the keys that statements of ours and of the protocol name in ON CONFLICT.
var conflictKeys = map[string][]string{
	"sync_partitions":           {"partition"},
	"sync_partition_registry":   {"partition"},
	"sync_schema_meta":          {"id"},
	"sync_backfill_checkpoints": {"name", "partition"},
	"sync_writer_fence":         {"partition"},
}

// partitionable are the tables that may be partitioned: the log.
var partitionable = []string{"sync_commits", "sync_changes"}

var declaredColumnPattern = regexp.MustCompile(`(?m)^  (\w+) ([A-Z]+)\b`)

// declaredColumns reads columns and types out of a table's declaration.
func declaredColumns(relation declaredRelation) map[string]string {
	columns := map[string]string{}
	for _, match := range declaredColumnPattern.FindAllStringSubmatch(string(relation.sql), -1) {
		if _, known := typeFamilies[match[2]]; known {
			columns[match[1]] = match[2]
		}
	}
	return columns
}

// checkSyncTables refuses a table that exists with other columns, another key, or as something else than a table. CodeLayoutMismatch.
func (s *Store) checkSyncTables(ctx context.Context, tx pgx.Tx, found foundCatalog) error {
	for _, declared := range declaredRelations {
		relation, exists := found.relations[declared.name]
		if !exists || declared.kind != "TABLE" {
			continue
		}
		if relation.kind != "r" && !(relation.kind == "p" && slices.Contains(partitionable, declared.name)) {
			return storage.Refuse(storage.CodeLayoutMismatch, "%s is %s, a table is needed", s.named(declared.name), relationKinds[relation.kind])
		}
		if err := s.checkColumns(ctx, tx, declared); err != nil {
			return err
		}
		if err := s.checkConflictKey(ctx, tx, declared.name); err != nil {
			return err
		}
	}
	return nil
}

var relationKinds = map[string]string{
	"p": "a partitioned table", "v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index",
	"I": "a partitioned index", "c": "a type", "t": "a TOAST table",
}

func (s *Store) checkColumns(ctx context.Context, tx pgx.Tx, declared declaredRelation) error {
	rows, err := tx.Query(ctx, `
		SELECT a.attname::text, pg_catalog.format_type(a.atttypid, NULL)
		  FROM pg_catalog.pg_attribute AS a
		  JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
		  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		 WHERE n.nspname = $1::text
		   AND c.relname = $2::text
		   AND a.attnum > 0
		   AND NOT a.attisdropped`, s.schemaName, declared.name)
	if err != nil {
		return translate(err, "read the columns of "+declared.name)
	}
	types := map[string]string{}
	var name, kind string
	if _, err := pgx.ForEachRow(rows, []any{&name, &kind}, func() error { types[name] = kind; return nil }); err != nil {
		return translate(err, "read the columns of "+declared.name)
	}
	columns := declaredColumns(declared)
	for _, column := range slices.Sorted(maps.Keys(columns)) {
		family := typeFamilies[columns[column]]
		kind, exists := types[column]
		switch {
		case !exists && column == "writer_version":
			// An older program's log does not have it; it is added.
		case !exists:
			return storage.Refuse(storage.CodeLayoutMismatch, "table %s has no column %s", s.named(declared.name), column)
		case !slices.Contains(family, kind):
			return storage.Refuse(storage.CodeLayoutMismatch, "table %s: column %s is of type %s, needed is %s", s.named(declared.name), column, kind,
				strings.Join(family, " or "))
		}
	}
	return nil
}

func (s *Store) checkConflictKey(ctx context.Context, tx pgx.Tx, table string) error {
	key, needed := conflictKeys[table]
	if !needed {
		return nil
	}
	rows, err := tx.Query(ctx, `
		SELECT ARRAY(
		         SELECT a.attname::text
		           FROM pg_catalog.pg_attribute AS a
		          WHERE a.attrelid = i.indrelid
		            AND a.attnum = ANY(i.indkey::int2[]))
		  FROM pg_catalog.pg_index AS i
		  JOIN pg_catalog.pg_class AS c ON c.oid = i.indrelid
		  JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
		 WHERE n.nspname = $1::text
		   AND c.relname = $2::text
		   AND i.indisunique
		   AND i.indisvalid
		   AND i.indimmediate
		   AND i.indpred IS NULL
		   AND i.indexprs IS NULL`, s.schemaName, table)
	if err != nil {
		return translate(err, "read the keys of "+table)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[[]string])
	if err != nil {
		return translate(err, "read the keys of "+table)
	}
	for _, columns := range keys {
		slices.Sort(columns)
		if slices.Equal(columns, key) {
			return nil
		}
	}
	return storage.Refuse(storage.CodeLayoutMismatch, "table %s has no unique key (%s)", s.named(table), strings.Join(key, ", "))
}
