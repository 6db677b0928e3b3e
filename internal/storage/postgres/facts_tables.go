package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// familyOf gives the declared types that a type of PostgreSQL is of the family of (docs/design.md section 7): a column that
// was there before us is compared by family only.
var familyOf = map[string][]storage.ColumnType{
	"text":    {storage.TypeString, storage.TypeBlobRef},
	"varchar": {storage.TypeString, storage.TypeBlobRef},
	"bpchar":  {storage.TypeString, storage.TypeBlobRef},
	"uuid":    {storage.TypeString, storage.TypeBlobRef},
	"int2":    {storage.TypeInteger},
	"int4":    {storage.TypeInteger},
	"int8":    {storage.TypeInteger},
	"float4":  {storage.TypeFloat},
	"float8":  {storage.TypeFloat},
	"bool":    {storage.TypeBoolean},
	"json":    {storage.TypeJSON},
	"jsonb":   {storage.TypeJSON},
	"bytea":   {storage.TypeBytes, storage.TypeCRDT},
}

// kindNames are the words for what a name can stand for instead of a table.
var kindNames = map[string]string{
	"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence", "i": "an index", "I": "an index",
	"c": "a composite type", "t": "a TOAST table",
}

// neverNull says of a column a of pg_attribute that no row has NULL in it. From PostgreSQL 18 on a column can be marked as NOT NULL while
// such rows are still there, until its constraint is validated: in a key they would be passed over.
const neverNull = `a.attnotnull
		         AND NOT EXISTS (
		           SELECT
		             FROM pg_catalog.pg_constraint invalid
		            WHERE invalid.conrelid = a.attrelid
		              AND invalid.contype = 'n'
		              AND invalid.conkey = ARRAY[a.attnum]
		              AND NOT invalid.convalidated)`

// physicalTables reads the tables of these names as they are. A name that stands for something else is CodeInvalidSpec.
func (s *Store) physicalTables(ctx context.Context, q querier, names []string) (map[string]storage.PhysicalTable, error) {
	tables := map[string]storage.PhysicalTable{}
	if len(names) == 0 {
		return tables, nil
	}
	if err := s.readColumns(ctx, q, names, tables); err != nil {
		return nil, err
	}
	if err := s.readIndexes(ctx, q, names, tables); err != nil {
		return nil, err
	}
	return tables, nil
}

// readColumns reads columns in their order. A domain is of the family of the type under it.
func (s *Store) readColumns(ctx context.Context, q querier, names []string, tables map[string]storage.PhysicalTable) error {
	rows, err := q.Query(ctx, `
		SELECT c.relname::text,
		       c.relkind::text,
		       coalesce(a.attname::text, ''),
		       coalesce(pg_catalog.format_type(a.atttypid, a.atttypmod), ''),
		       coalesce(`+neverNull+`, false),
		       coalesce(a.attgenerated <> '', false),
		       coalesce((WITH RECURSIVE base(typname, typtype, typbasetype, typnamespace) AS (
		                   SELECT t.typname, t.typtype, t.typbasetype, t.typnamespace
		                   UNION ALL
		                   SELECT b.typname, b.typtype, b.typbasetype, b.typnamespace
		                     FROM base
		                     JOIN pg_catalog.pg_type b ON b.oid = base.typbasetype
		                    WHERE base.typtype = 'd')
		                 SELECT base.typname::text
		                   FROM base
		                  WHERE base.typtype <> 'd'
		                    AND base.typnamespace = 'pg_catalog'::regnamespace), '')
		  FROM pg_catalog.pg_class c
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		  LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		  LEFT JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
		 WHERE n.nspname = $1::text
		   AND c.relname = ANY ($2::text[])
		 ORDER BY c.relname, a.attnum`, s.schemaName, names)
	if err != nil {
		return fmt.Errorf("read columns: %w", err)
	}
	var table, kind, base string
	var column storage.PhysicalColumn
	_, err = pgx.ForEachRow(rows, []any{&table, &kind, &column.Name, &column.Type, &column.NotNull, &column.Generated, &base}, func() error {
		if what, other := kindNames[kind]; other {
			return storage.Refuse(storage.CodeInvalidSpec, "tables: %q is %s in this database, not a table", table, what)
		}
		physical := tables[table]
		if column.Name != "" {
			column.Fits = familyOf[base]
			physical.Columns = append(physical.Columns, column)
		}
		tables[table] = physical
		return nil
	})
	if err != nil {
		return fmt.Errorf("read columns: %w", err)
	}
	return nil
}

// readIndexes reads keys and indexes. An index is plain if CREATE INDEX with columns alone would make the same one. The column
// indnullsnotdistinct exists from PostgreSQL 15 on, so it is read through the row's JSON.
func (s *Store) readIndexes(ctx context.Context, q querier, names []string, tables map[string]storage.PhysicalTable) error {
	rows, err := q.Query(ctx, `
		SELECT c.relname::text,
		       x.relname::text,
		       ARRAY(SELECT a.attname::text
		               FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, position)
		               JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
		              WHERE k.position <= i.indnkeyatts
		              ORDER BY k.position),
		       i.indisunique,
		       am.amname = 'btree'
		         AND i.indpred IS NULL
		         AND i.indexprs IS NULL
		         AND i.indnatts = i.indnkeyatts
		         AND 0 = ALL (i.indoption::int2[])
		         AND NOT coalesce((to_jsonb(i) ->> 'indnullsnotdistinct')::boolean, false)
		         AND NOT EXISTS (
		           SELECT
		             FROM unnest(i.indkey::int2[], i.indclass::oid[], i.indcollation::oid[]) k(attnum, class, collation_used)
		             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
		             JOIN pg_catalog.pg_opclass o ON o.oid = k.class
		            WHERE NOT o.opcdefault OR k.collation_used <> a.attcollation),
		       i.indisvalid AND i.indisready,
		       EXISTS (
		         SELECT
		           FROM pg_catalog.pg_constraint con
		          WHERE con.conindid = i.indexrelid
		            AND con.contype IN ('p', 'u', 'x')),
		       i.indisprimary,
		       i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
		         AND NOT EXISTS (
		           SELECT
		             FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, position)
		             JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
		            WHERE k.position <= i.indnkeyatts
		              AND NOT (`+neverNull+`))
		  FROM pg_catalog.pg_class c
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		  JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
		  JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
		  JOIN pg_catalog.pg_am am ON am.oid = x.relam
		 WHERE n.nspname = $1::text
		   AND c.relname = ANY ($2::text[])
		 ORDER BY c.relname, x.relname`, s.schemaName, names)
	if err != nil {
		return fmt.Errorf("read indexes: %w", err)
	}
	var table string
	var index storage.PhysicalIndex
	var primary, key bool
	_, err = pgx.ForEachRow(rows, []any{
		&table, &index.Name, &index.Columns, &index.Unique, &index.Plain, &index.Valid, &index.Constraint, &primary, &key,
	}, func() error {
		physical := tables[table]
		physical.Indexes = append(physical.Indexes, index)
		switch {
		case primary:
			physical.Key = index.Columns
		case key:
			physical.Unique = append(physical.Unique, index.Columns)
		}
		tables[table] = physical
		index.Columns = nil // the next row gets an array of its own
		return nil
	})
	if err != nil {
		return fmt.Errorf("read indexes: %w", err)
	}
	return nil
}

// canonicalTypes asks the database how it spells each SQLType of the target. A type it does not know is left out. Each question
// is a transaction of its own, since an unknown type is an error that would end the asker's.
func (s *Store) canonicalTypes(ctx context.Context, target storage.Target) (map[string]string, error) {
	types := map[string]string{}
	asked := map[string]bool{}
	for _, t := range target.Tables {
		for _, c := range t.Columns {
			if c.SQLType == "" || asked[c.SQLType] {
				continue
			}
			asked[c.SQLType] = true
			canonical, err := s.canonicalType(ctx, c.SQLType)
			if err != nil {
				return nil, err
			}
			if canonical != "" {
				types[c.SQLType] = canonical
			}
		}
	}
	return types, nil
}

// canonicalType gives the database's own spelling of a type, modifiers included, "" if it knows none. to_regtype parses its argument as
// the name of a type and nothing else, so after it the text can stand in a statement; but it drops the modifiers, which only the
// description of a result tells (to_regtypemod is new in PostgreSQL 17).
func (s *Store) canonicalType(ctx context.Context, sqlType string) (string, error) {
	var canonical string
	what := fmt.Sprintf("look up the type %q", sqlType)
	err := s.inTx(ctx, what, txOptions{readOnly: true}, func(ctx context.Context, tx pgx.Tx) error {
		canonical = ""
		var known bool
		if err := tx.QueryRow(ctx, "SELECT to_regtype($1::text) IS NOT NULL", sqlType).Scan(&known); err != nil || !known {
			return err
		}
		rows, err := tx.Query(ctx, "SELECT NULL::"+sqlType)
		if err != nil {
			return err
		}
		rows.Close()
		if err := rows.Err(); err != nil {
			return err
		}
		field := rows.FieldDescriptions()[0]
		return tx.QueryRow(ctx, "SELECT pg_catalog.format_type($1::bigint::oid, $2::integer)",
			int64(field.DataTypeOID), field.TypeModifier).Scan(&canonical)
	})
	switch state := sqlState(err); {
	case err == nil:
		return canonical, nil
	case len(state) == 5 && (state[:2] == "42" || state[:2] == "22" || state[:2] == "0A"):
		return "", nil // it is no type, or its modifiers cannot be
	default:
		return "", err
	}
}
