package postgres

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// statement is SQL of a barrier that stands for a step, or for several tables dropped together.
type statement struct {
	what string // what it does to what, for errors
	sql  string
	step storage.Step
}

// renderer turns the steps of a decision into SQL. Names are always quoted, and nothing of the user's stands in it unquoted but SQL
// that is run as such and types that the database itself spelled.
type renderer struct {
	store    *Store
	types    map[string]string // canonical spelling of each SQLType
	protocol []string          // which of protocolRows exist
}

// rendererFor finds out which tables hold rows of retired ones.
func (s *Store) rendererFor(ctx context.Context, q querier, types map[string]string) (renderer, error) {
	rows, err := q.Query(ctx, `
		SELECT c.relname::text
		  FROM pg_catalog.pg_class c
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		  JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tbl' AND NOT a.attisdropped
		 WHERE n.nspname = $1::text
		   AND c.relname = ANY ($2::text[])
		   AND c.relkind IN ('r', 'p')
		 ORDER BY c.relname`, s.schemaName, protocolRows)
	if err != nil {
		return renderer{}, fmt.Errorf("look for the tables of the sync protocol: %w", err)
	}
	protocol, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return renderer{}, fmt.Errorf("look for the tables of the sync protocol: %w", err)
	}
	return renderer{store: s, types: types, protocol: protocol}, nil
}

func (r renderer) table(name string) string {
	return r.store.schema + "." + quoteIdentifier(name)
}

// steps renders all steps in order.
func (r renderer) steps(steps []storage.Step) []statement {
	var statements []statement
	for i := 0; i < len(steps); i++ {
		if steps[i].Kind != storage.StepDropTable {
			statements = append(statements, r.step(steps[i]))
			continue
		}
		last := i
		for last+1 < len(steps) && steps[last+1].Kind == storage.StepDropTable {
			last++
		}
		statements = append(statements, r.dropTables(steps[i:last+1])...)
		i = last
	}
	return statements
}

func (r renderer) step(step storage.Step) statement {
	s := statement{step: step, what: fmt.Sprintf("%s %q", step.Kind, step.Table)}
	switch step.Kind {
	case storage.StepCreateTable:
		s.sql = r.createTable(step.Declared)
	case storage.StepAddColumn:
		s.what = fmt.Sprintf("add column %q to table %q", step.Column.Name, step.Table)
		s.sql = fmt.Sprintf("ALTER TABLE %s ADD COLUMN %s", r.table(step.Table), r.column(step.Column))
	case storage.StepRewritePayload:
		s.what = fmt.Sprintf("rewrite the payloads of table %q", step.Table)
		s.sql = r.rewritePayload(step)
	case storage.StepDropIndex:
		s.what = fmt.Sprintf("drop index %q of table %q", step.Index.Name, step.Table)
		s.sql = fmt.Sprintf("DROP INDEX %s.%s", r.store.schema, quoteIdentifier(step.Index.Name))
	case storage.StepCreateIndex:
		s.what = fmt.Sprintf("create index %q on table %q", step.Index.Name, step.Table)
		s.sql = r.createIndex(step)
	case storage.StepRunSQL:
		s.what = fmt.Sprintf("the SQL of version %d", step.Version)
		s.sql = step.SQL
	}
	return s
}

// dropTables drops retired tables together, since they may refer to each other. There is no CASCADE: what else depends on them is not
// ours to drop, and the error names it. The rows that the sync protocol keeps of them go along.
func (r renderer) dropTables(steps []storage.Step) []statement {
	var statements []statement
	var tables, names []string
	for _, step := range steps {
		for _, rows := range r.protocol {
			statements = append(statements, statement{
				step: step, what: fmt.Sprintf("delete the rows of table %q from %s", step.Table, rows),
				sql: fmt.Sprintf("DELETE FROM %s WHERE tbl = %s", r.table(rows), quoteLiteral(step.Table)),
			})
		}
		tables, names = append(tables, r.table(step.Table)), append(names, fmt.Sprintf("%q", step.Table))
	}
	return append(statements, statement{
		step: steps[0], what: "drop table " + strings.Join(names, ", "),
		sql: "DROP TABLE IF EXISTS " + strings.Join(tables, ", "),
	})
}

func (r renderer) createTable(t storage.Table) string {
	var parts []string
	if t.Layout == storage.Syncular {
		for _, c := range storage.PostgreSQL.SyncularColumns(t) {
			parts = append(parts, quoteIdentifier(c.Name)+" "+c.Type+notNull(c.NotNull))
		}
	} else {
		for _, c := range t.Columns {
			parts = append(parts, r.column(c))
		}
	}
	if len(t.Key()) > 0 {
		parts = append(parts, "PRIMARY KEY ("+quoteAll(t.Key())+")")
	}
	return fmt.Sprintf("CREATE TABLE %s (\n  %s\n)", r.table(t.Name), strings.Join(parts, ",\n  "))
}

func (r renderer) column(c storage.Column) string {
	columnType := storage.PostgreSQL.SQLTypeOf(c)
	if c.SQLType != "" {
		columnType = r.types[c.SQLType]
	}
	return quoteIdentifier(c.Name) + " " + columnType + notNull(!c.Nullable)
}

func notNull(yes bool) string {
	if yes {
		return " NOT NULL"
	}
	return ""
}

func (r renderer) createIndex(step storage.Step) string {
	unique := ""
	if step.Index.Unique {
		unique = "UNIQUE "
	}
	return fmt.Sprintf("CREATE %sINDEX %s ON %s (%s)", unique, quoteIdentifier(step.Index.Name), r.table(step.Table), quoteAll(step.Index.Columns))
}

func quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quoteIdentifier(name)
	}
	return strings.Join(quoted, ", ")
}

// rewritePayload appends NULL columns to every payload of a table in one statement: only the null bitmap changes
// (storage.PayloadAppend). Run twice it would corrupt them, which is why it stands in the transaction that moves the marker.
func (r renderer) rewritePayload(step storage.Step) string {
	payload, bitmap := quoteIdentifier(storage.ColumnPayload), storage.PayloadBitmapBytes(step.OldColumns)
	mask, inserted := storage.PayloadAppend(step.OldColumns, step.NewColumns)
	var parts []string
	if bitmap > 0 {
		head := fmt.Sprintf("substr(%s, 1, %d)", payload, bitmap)
		if mask != 0 {
			head = fmt.Sprintf("set_byte(%s, %d, get_byte(%s, %d) | %d)", head, bitmap-1, payload, bitmap-1, mask)
		}
		parts = append(parts, head)
	}
	if len(inserted) > 0 {
		parts = append(parts, fmt.Sprintf(`'\x%s'::bytea`, hex.EncodeToString(inserted)))
	}
	parts = append(parts, fmt.Sprintf("substr(%s, %d)", payload, bitmap+1))
	return fmt.Sprintf("UPDATE %s SET %s = %s", r.table(step.Table), payload, strings.Join(parts, " || "))
}

// shortPayloads counts the payloads of a table that are shorter than their own bitmap: the rewrite would fail on them with an error that
// names nothing. It is "" where none can be.
func (r renderer) shortPayloads(step storage.Step) string {
	bitmap := storage.PayloadBitmapBytes(step.OldColumns)
	if bitmap == 0 {
		return ""
	}
	return fmt.Sprintf("SELECT count(*) FROM %s WHERE octet_length(%s) < %d", r.table(step.Table), quoteIdentifier(storage.ColumnPayload), bitmap)
}

// planned lists all statements of a decision for people, as they run, in order. What follows the steps is ours and written as it is
// meant: it has parameters, and the raise of the fence is of several statements.
func (r renderer) planned(decision storage.Decision) []string {
	var planned []string
	for _, s := range r.steps(decision.Steps) {
		planned = append(planned, s.sql)
	}
	if decision.Outcome == storage.Migrate {
		planned = append(planned, fmt.Sprintf("UPDATE %s SET schema_version = %d, layouts = %s WHERE id = 1",
			r.table("sync_schema_meta"), decision.Version, quoteLiteral(decision.Layouts)))
	}
	for _, c := range decision.Declare {
		planned = append(planned, fmt.Sprintf("-- declare checkpoint %q of version %d in %s", c.Name, c.Version, partitionsOf(c)))
	}
	for _, partition := range slices.Sorted(maps.Keys(decision.Raise)) {
		whose := "all partitions"
		if partition != storage.AllPartitions {
			whose = fmt.Sprintf("partition %q", partition)
		}
		planned = append(planned, fmt.Sprintf("-- raise the fence of %s to writer version %d", whose, decision.Raise[partition]))
	}
	return planned
}

func partitionsOf(c storage.Checkpoint) string {
	if len(c.Partitions) == 0 {
		return "all partitions"
	}
	const shown = 10
	names := make([]string, 0, shown)
	for _, partition := range c.Partitions[:min(len(c.Partitions), shown)] {
		names = append(names, fmt.Sprintf("%q", partition))
	}
	text := strings.Join(names, ", ")
	if more := len(c.Partitions) - shown; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
