package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// keyTable is a table as a backfill addresses its rows: by the texts of its key columns, which the database casts to the columns'
// own types. So every comparison and every order is the database's, in the columns' own collation.
type keyTable struct {
	declared  storage.Table
	sql       string // the qualified, quoted name
	oid       uint32
	columns   []keyColumn
	namespace []string // schemas of key types, beside pg_catalog and our own: their operators have to be found
	partition string   // SQL that gives the text of a row's partition; "": all rows are in DefaultPartition
}

// keyColumn is a key column as the database has it.
type keyColumn struct {
	name string // quoted
	// Its type with modifiers, as SQL text. Of a domain it is the type under it: a domain may refuse values that were there before its
	// check, and such a row has to be found all the same.
	kind     string
	oid      uint32 // of that type
	modifier int32
}

// readKeyTable finds a table's key in the database. CodeLayoutMismatch if the table or a key column is not there.
func (s *Store) readKeyTable(ctx context.Context, tx pgx.Tx, declared storage.Table) (keyTable, error) {
	t := keyTable{declared: declared, sql: s.schema + "." + quoteIdentifier(declared.Name)}
	names := slices.Clone(declared.Key())
	if declared.Partition.Column != "" {
		names = append(names, declared.Partition.Column)
	}
	rows, err := tx.Query(ctx, `
		SELECT c.oid, wanted.name, pg_catalog.format_type(base.oid, base.modifier), base.oid, base.modifier, n.nspname,
		       y.typcategory = 'S' AND y.typname <> 'bpchar'
		  FROM pg_catalog.pg_class c
		  JOIN unnest($3::text[]) WITH ORDINALITY AS wanted(name, place)
		    ON true
		  JOIN pg_catalog.pg_attribute a
		    ON a.attrelid = c.oid
		   AND a.attname = wanted.name
		   AND a.attnum > 0
		   AND NOT a.attisdropped
		 CROSS JOIN LATERAL (
		    WITH RECURSIVE chain AS (
		      SELECT a.atttypid AS oid, a.atttypmod AS modifier
		       UNION ALL
		      SELECT d.typbasetype, d.typtypmod
		        FROM chain
		        JOIN pg_catalog.pg_type d
		          ON d.oid = chain.oid
		       WHERE d.typtype = 'd'
		    )
		    SELECT chain.oid, chain.modifier
		      FROM chain) AS base
		  JOIN pg_catalog.pg_type y
		    ON y.oid = base.oid
		   AND y.typtype <> 'd'
		  JOIN pg_catalog.pg_namespace n
		    ON n.oid = y.typnamespace
		 WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1::text)
		   AND c.relname = $2::text
		   AND c.relkind IN ('r', 'p')
		 ORDER BY wanted.place`, s.schemaName, declared.Name, names)
	if err != nil {
		return t, fmt.Errorf("read the key of table %q: %w", declared.Name, err)
	}
	var found []string
	var name, namespace string
	var column keyColumn
	var isText bool
	_, err = pgx.ForEachRow(rows, []any{&t.oid, &name, &column.kind, &column.oid, &column.modifier, &namespace, &isText}, func() error {
		if len(found) < len(declared.Key()) {
			column.name = quoteIdentifier(name)
			t.columns = append(t.columns, column)
			if namespace != "pg_catalog" && namespace != s.schemaName && !slices.Contains(t.namespace, namespace) {
				t.namespace = append(t.namespace, namespace)
			}
		} else if t.partition = quoteIdentifier(name); !isText {
			t.partition += "::text"
		}
		found = append(found, name)
		return nil
	})
	if err != nil {
		return t, fmt.Errorf("read the key of table %q: %w", declared.Name, err)
	}
	if len(found) < len(names) || len(names) == 0 {
		return t, storage.Refuse(storage.CodeLayoutMismatch, "table %q: the database has not all of its key columns (%s)", declared.Name, strings.Join(names, ", "))
	}
	if declared.Layout == storage.Syncular {
		t.partition = quoteIdentifier(storage.ColumnPartition)
	}
	return t, nil
}

// list joins what f makes of each key column by commas.
func (t keyTable) list(f func(i int, c keyColumn) string) string { return t.join(", ", f) }

func (t keyTable) join(separator string, f func(i int, c keyColumn) string) string {
	parts := make([]string, len(t.columns))
	for i, c := range t.columns {
		parts[i] = f(i, c)
	}
	return strings.Join(parts, separator)
}

// names are the key columns behind a qualifier: t."region", t."id".
func (t keyTable) names(qualifier string) string {
	return t.list(func(_ int, c keyColumn) string { return qualifier + c.name })
}

// texts are the key columns behind a qualifier as text.
func (t keyTable) texts(qualifier string) string {
	return t.list(func(_ int, c keyColumn) string { return qualifier + c.name + "::text" })
}

// cast are the parameters from number first on, cast to the key's types. They pass through text, so that the driver never has
// to know the type.
func (t keyTable) cast(first int) string {
	return t.list(func(i int, c keyColumn) string { return fmt.Sprintf("$%d::text::%s", first+i, c.kind) })
}

// set is a relation with the key columns under their own names, made of one text array for each, parameters first and on.
func (t keyTable) set(first int) string {
	columns := t.list(func(i int, c keyColumn) string { return fmt.Sprintf("u.k%d::%s AS %s", i, c.kind, c.name) })
	arrays := t.list(func(i int, _ keyColumn) string { return fmt.Sprintf("$%d::text[]", first+i) })
	aliases := t.list(func(i int, _ keyColumn) string { return fmt.Sprintf("k%d", i) })
	return fmt.Sprintf("(SELECT %s FROM unnest(%s) AS u(%s))", columns, arrays, aliases)
}

// arrays turns keys into the arguments of set.
func (t keyTable) arrays(keys [][]string) []any {
	columns := make([]any, len(t.columns))
	for i := range t.columns {
		column := make([]string, len(keys))
		for j, key := range keys {
			column[j] = key[i]
		}
		columns[i] = column
	}
	return columns
}

// where collects the conditions of a statement together with its arguments.
type where struct {
	conditions []string
	arguments  []any
}

func (w *where) add(condition string, arguments ...any) {
	w.conditions = append(w.conditions, condition)
	w.arguments = append(w.arguments, arguments...)
}

func (w *where) next() int { return len(w.arguments) + 1 }

func (w *where) sql() string {
	if len(w.conditions) == 0 {
		return "true"
	}
	return strings.Join(w.conditions, "\n   AND ")
}

// inRange is the condition that a row lies above lower and not above upper, and in the partition. nil is no bound. The qualifier
// stands before each column; in an UPDATE there is none, so that the user's expressions can name the table by its own name.
func (t keyTable) inRange(qualifier string, lower, upper []string, partition string) *where {
	w := &where{}
	names := t.names(qualifier)
	if lower != nil {
		w.add(fmt.Sprintf("(%s) > (%s)", names, t.cast(w.next())), anySlice(lower)...)
	}
	if upper != nil {
		w.add(fmt.Sprintf("(%s) <= (%s)", names, t.cast(w.next())), anySlice(upper)...)
	}
	t.inPartition(qualifier, w, partition)
	return w
}

// inPartition adds the condition that a row belongs to the partition of a checkpoint row.
func (t keyTable) inPartition(qualifier string, w *where, partition string) {
	switch {
	case partition == storage.AllPartitions:
	case t.partition != "":
		w.add(fmt.Sprintf("%s%s = $%d::text", qualifier, t.partition, w.next()), partition)
	case partition != storage.DefaultPartition:
		w.add("false") // without a partition column all rows are in DefaultPartition
	}
}

func anySlice(texts []string) []any {
	values := make([]any, len(texts))
	for i, text := range texts {
		values[i] = text
	}
	return values
}

// decode reads a key that EncodeKey wrote; nil for nil.
func (t keyTable) decode(text *string) ([]string, error) {
	if text == nil {
		return nil, nil
	}
	key, ok := storage.DecodeKey(*text, len(t.columns))
	if !ok {
		return nil, storage.Refuse(storage.CodeInternal, "a stored key of table %q has not %d columns", t.declared.Name, len(t.columns))
	}
	return key, nil
}

// collectKeys reads rows of the texts of keys.
func (t keyTable) collectKeys(rows pgx.Rows) ([][]string, error) {
	var keys [][]string
	err := t.eachKey(rows, func(key []string) { keys = append(keys, key) })
	return keys, err
}

// eachKey reads rows that begin with the texts of a key and go on with what beside points to.
func (t keyTable) eachKey(rows pgx.Rows, f func(key []string), beside ...any) error {
	key := make([]string, len(t.columns))
	targets := make([]any, 0, len(key)+len(beside))
	for i := range key {
		targets = append(targets, &key[i])
	}
	targets = append(targets, beside...)
	_, err := pgx.ForEachRow(rows, targets, func() error {
		f(slices.Clone(key))
		return nil
	})
	return err
}
