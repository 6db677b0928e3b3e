package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Types of the server's own, by what a trigger has to know of them. A domain counts as the type under it, and text is exact only
// under a collation for which no two texts are equal.
var (
	exactTypes = setOfTypes("int2", "int4", "int8", "oid", "bool", "uuid", "date", "time", "timestamp", "timestamptz", "bytea", "char",
		"name", "macaddr", "xid8", "text", "varchar")
	orderedTypes = setOfTypes("int2", "int4", "int8", "oid", "float4", "float8", "numeric", "money", "text", "varchar", "bpchar", "date",
		"time", "timetz", "timestamp", "timestamptz", "interval")
	settledTypes = setOfTypes("int2", "int4", "int8", "oid", "bool", "uuid", "numeric", "text", "varchar", "bpchar", "name", "char", "inet",
		"cidr", "macaddr", "macaddr8", "bit", "varbit", "json", "jsonb", "xid8", "tid", "pg_lsn")
	// nameTypes are written as names, with or without their schema as the search_path has it.
	nameTypes = setOfTypes("regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator", "regproc",
		"regprocedure", "regrole", "regtype")
)

func setOfTypes(names ...string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

// readCaptured reads what the triggers of a captured source depend on. Source columns are those that the source names, else all columns of
// the table but the targets, which backfills set. The key and the partition column always count.
//
// Errors: CodeInvalidSpec names the table, for one whose changes triggers cannot see in full.
func (s *Store) readCaptured(ctx context.Context, q querier, table storage.Table, source storage.Source, targets []string) (captured, error) {
	c := captured{table: table.Name}
	if err := s.readCapturedRelations(ctx, q, &c); err != nil {
		return captured{}, err
	}
	if err := s.readCapturedKey(ctx, q, table, &c); err != nil {
		return captured{}, err
	}
	columns, err := s.readCapturedColumns(ctx, q, c)
	if err != nil {
		return captured{}, err
	}
	for _, name := range table.Key() {
		column, err := columns.keyColumn(table.Name, name)
		if err != nil {
			return captured{}, err
		}
		c.key = append(c.key, column)
	}
	if c.partition, err = columns.partitionOf(table); err != nil {
		return captured{}, err
	}
	c.counting, err = columns.counting(c, source.Columns, targets)
	return c, err
}

func refuseSource(table, format string, args ...any) *storage.Error {
	return storage.Refuse(storage.CodeInvalidSpec, "source %q cannot be captured: "+format, append([]any{table}, args...)...)
}

// readCapturedRelations finds the table and its partitions, and refuses what could change without a trigger of ours.
func (s *Store) readCapturedRelations(ctx context.Context, q querier, c *captured) error {
	what := fmt.Sprintf("look at the source %q", c.table)
	rows, err := q.Query(ctx, `
		WITH RECURSIVE tree AS (
		  SELECT c.oid, 0 AS level
		    FROM pg_catalog.pg_class c
		    JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		   WHERE n.nspname = $1::text
		     AND c.relname = $2::text
		  UNION ALL
		  SELECT i.inhrelid, tree.level + 1
		    FROM tree
		    JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
		)
		SELECT c.oid, pg_catalog.format('%I.%I', n.nspname, c.relname), c.relkind::text, c.relpersistence::text, c.relispartition, tree.level,
		       coalesce((SELECT p.inhparent::regclass::text
		                   FROM pg_catalog.pg_inherits p
		                  WHERE p.inhrelid = c.oid
		                  LIMIT 1), '')
		  FROM tree
		  JOIN pg_catalog.pg_class c ON c.oid = tree.oid
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 ORDER BY tree.level, 2`, s.schemaName, c.table)
	if err != nil {
		return translate(err, what)
	}
	var found sourceCandidate
	_, err = pgx.ForEachRow(rows, []any{&found.oid, &found.name, &found.kind, &found.persistence, &found.isPartition, &found.level, &found.parent}, func() error {
		if err := found.check(c.table); err != nil {
			return err
		}
		c.partitioned = c.partitioned || found.level == 0 && found.kind == "p"
		c.relations = append(c.relations, capturedRelation{oid: found.oid, name: found.name})
		return nil
	})
	if err != nil {
		return translate(err, what)
	}
	if len(c.relations) == 0 {
		return refuseSource(c.table, "there is no table of that name in schema %s", s.schema)
	}
	return nil
}

// sourceCandidate is the source or a table below it.
type sourceCandidate struct {
	oid                             uint32
	name, kind, persistence, parent string
	isPartition                     bool
	level                           int
}

func (f sourceCandidate) check(table string) error {
	subject := "it"
	if f.level > 0 {
		subject = "its partition " + f.name
	}
	switch what, other := kindNames[f.kind]; {
	case other:
		return refuseSource(table, "%s is %s, on which triggers do not see every change", subject, what)
	case f.persistence == "t":
		return refuseSource(table, "%s is temporary", subject)
	case f.persistence == "u":
		return refuseSource(table, "%s is unlogged: a crash of the server empties it, and no trigger sees that", subject)
	case f.level == 0 && f.isPartition:
		return refuseSource(table, "it is a partition of %s, whose statements change it without its own triggers", f.parent).
			WithHint("declare %s as the source", f.parent)
	case f.level == 0 && f.parent != "":
		return refuseSource(table, "it inherits from %s, whose statements change it without its own triggers", f.parent)
	case f.level > 0 && !f.isPartition:
		return refuseSource(table, "%s inherits from it: its rows are read as the source's, and statements on it fire none of its triggers", f.name)
	}
	return nil
}

// readCapturedKey checks that the declared key tells rows apart, since the log names them by it, and whether it does so at every moment.
func (s *Store) readCapturedKey(ctx context.Context, q querier, table storage.Table, c *captured) error {
	what := fmt.Sprintf("look at the key of the source %q", table.Name)
	if len(table.Key()) == 0 {
		return refuseSource(table.Name, "it declares no primary key, so its rows cannot be told apart")
	}
	physical := map[string]storage.PhysicalTable{}
	if err := s.readIndexes(ctx, q, []string{table.Name}, physical); err != nil {
		return translate(err, what)
	}
	found := physical[table.Name]
	declared := slices.Sorted(slices.Values(table.Key()))
	same := func(columns []string) bool { return slices.Equal(slices.Sorted(slices.Values(columns)), declared) }
	if slices.ContainsFunc(found.Unique, same) {
		return nil
	}
	if !same(found.Key) {
		return refuseSource(table.Name, "(%s) is neither its primary key nor unique without NULLs in the database", strings.Join(table.Key(), ", "))
	}
	err := q.QueryRow(ctx, `
		SELECT NOT i.indimmediate
		  FROM pg_catalog.pg_index i
		 WHERE i.indrelid = $1::bigint::oid
		   AND i.indisprimary`, int64(c.relations[0].oid)).Scan(&c.deferrable)
	return translate(err, what)
}

// capturedColumns are the columns of a source in their order.
type capturedColumns []foundColumn

type foundColumn struct {
	capturedColumn
	typeName  string // of the type, or of the type under a domain, if it comes with the server
	generated string // pg_attribute.attgenerated
}

func (s *Store) readCapturedColumns(ctx context.Context, q querier, c captured) (capturedColumns, error) {
	what := fmt.Sprintf("read the columns of the source %q", c.table)
	rows, err := q.Query(ctx, `
		SELECT a.attname::text,
		       a.attgenerated::text,
		       coalesce(base.typname, ''),
		       coalesce(base.typtype = 'e', false),
		       coalesce((SELECT l.collisdeterministic FROM pg_catalog.pg_collation l WHERE l.oid = a.attcollation), true)
		  FROM pg_catalog.pg_attribute a
		  LEFT JOIN LATERAL (
		    WITH RECURSIVE chain AS (
		      SELECT t.oid, t.typname, t.typtype, t.typbasetype, t.typnamespace
		        FROM pg_catalog.pg_type t
		       WHERE t.oid = a.atttypid
		      UNION ALL
		      SELECT t.oid, t.typname, t.typtype, t.typbasetype, t.typnamespace
		        FROM chain
		        JOIN pg_catalog.pg_type t ON t.oid = chain.typbasetype
		       WHERE chain.typtype = 'd'
		    )
		    SELECT CASE WHEN chain.typnamespace = 'pg_catalog'::regnamespace THEN chain.typname::text ELSE '' END AS typname, chain.typtype
		      FROM chain
		     WHERE chain.typtype <> 'd'
		  ) AS base ON true
		 WHERE a.attrelid = $1::bigint::oid
		   AND a.attnum > 0
		   AND NOT a.attisdropped
		 ORDER BY a.attnum`, int64(c.relations[0].oid))
	if err != nil {
		return nil, translate(err, what)
	}
	columns, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (foundColumn, error) {
		var f foundColumn
		var enum, deterministic bool
		if err := row.Scan(&f.name, &f.generated, &f.typeName, &enum, &deterministic); err != nil {
			return f, err
		}
		f.builtin = f.typeName != ""
		f.exact = exactTypes[f.typeName] && deterministic
		f.ordered = orderedTypes[f.typeName]
		f.settled = settledTypes[f.typeName] || enum
		return f, nil
	})
	return columns, translate(err, what)
}

func (columns capturedColumns) find(name string) (foundColumn, bool) {
	i := slices.IndexFunc(columns, func(c foundColumn) bool { return c.name == name })
	if i < 0 {
		return foundColumn{}, false
	}
	return columns[i], true
}

// virtualColumn is the attgenerated of a column that is computed when it is read. No trigger can compare what is not stored.
const virtualColumn = "v"

// keyColumn finds a column whose text goes into the log.
func (columns capturedColumns) keyColumn(table, name string) (capturedColumn, error) {
	column, ok := columns.find(name)
	switch {
	case !ok:
		return capturedColumn{}, refuseSource(table, "it has no column %q", name)
	case nameTypes[column.typeName]:
		return capturedColumn{}, refuseSource(table, "column %q is of type %s, whose text depends on the search_path", name, column.typeName)
	case column.generated == virtualColumn:
		return capturedColumn{}, refuseSource(table, "column %q is generated when it is read and has no value of its own", name)
	}
	return column.capturedColumn, nil
}

// partitionOf gives the rule by which rows belong to partitions. A row of a Syncular table belongs to the partition it names.
func (columns capturedColumns) partitionOf(table storage.Table) (capturedPartition, error) {
	name := table.Partition.Column
	if table.Layout == storage.Syncular {
		name = storage.ColumnPartition
	}
	if name == "" {
		return capturedPartition{slices: table.Partition.Hash}, nil
	}
	column, err := columns.keyColumn(table.Name, name)
	return capturedPartition{column: &column}, err
}

// counting gives the columns whose change is a change of the row. A generated column changes with the columns it is computed from.
func (columns capturedColumns) counting(c captured, named, targets []string) ([]capturedColumn, error) {
	for _, name := range named {
		column, ok := columns.find(name)
		switch {
		case !ok:
			return nil, refuseSource(c.table, "it has no column %q", name)
		case column.generated == virtualColumn:
			return nil, refuseSource(c.table, "source column %q is generated when it is read", name).WithHint("name the columns it is computed from")
		}
	}
	var counting []capturedColumn
	for _, column := range columns {
		always := c.partition.column != nil && c.partition.column.name == column.name ||
			slices.ContainsFunc(c.key, func(k capturedColumn) bool { return k.name == column.name })
		source := slices.Contains(named, column.name)
		if len(named) == 0 {
			source = !slices.Contains(targets, column.name) && column.generated == ""
		}
		if always || source {
			counting = append(counting, column.capturedColumn)
		}
	}
	return counting, nil
}
