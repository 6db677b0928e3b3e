package sqlite

import (
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// scopedTables are tables that a program of the sync protocol may have. We only delete the rows of a retired table from them.
var scopedTables = []string{"sync_row_scopes", "sync_change_scopes", "sync_blob_refs", "sync_tombstones"}

// renderStep gives the statements of one step: what a barrier runs, and what a plan shows.
func renderStep(step storage.Step, objects schemaObjects) []string {
	table := quoteIdentifier(step.Table)
	switch step.Kind {
	case storage.StepDropTable:
		return renderDrop(step.Table, objects)
	case storage.StepCreateTable:
		return []string{renderCreate(step.Declared)}
	case storage.StepAddColumn:
		return []string{"ALTER TABLE " + table + " ADD COLUMN " + renderColumn(step.Column, step.Column.Nullable)}
	case storage.StepRewritePayload:
		payload := quoteIdentifier(storage.ColumnPayload)
		return []string{fmt.Sprintf("UPDATE %s\nSET %s = %s(%s, %d, %d)", table, payload, rewriteFunction, payload, step.OldColumns, step.NewColumns)}
	case storage.StepDropIndex:
		return []string{"DROP INDEX " + quoteIdentifier(step.Index.Name)}
	case storage.StepRunSQL:
		return []string{step.SQL}
	case storage.StepCreateIndex:
		unique := ""
		if step.Index.Unique {
			unique = "UNIQUE "
		}
		return []string{"CREATE " + unique + "INDEX " + quoteIdentifier(step.Index.Name) + "\nON " + table + "(" + quoteAll(step.Index.Columns) + ")"}
	}
	return nil
}

// renderDrop drops a table if it is still there, and its rows in the tables of the sync protocol.
func renderDrop(name string, objects schemaObjects) []string {
	var statements []string
	for _, scoped := range scopedTables {
		if objects.isTable(scoped) {
			statements = append(statements, "DELETE FROM "+scoped+"\nWHERE tbl = "+quoteLiteral(name)+" COLLATE NOCASE")
		}
	}
	if objects.isTable(name) {
		statements = append(statements, "DROP TABLE "+quoteIdentifier(name))
	}
	return statements
}

// renderCreate makes a declared table. Key columns are NOT NULL: SQLite by itself would allow NULL in a primary key.
func renderCreate(t storage.Table) string {
	var lines []string
	if t.Layout == storage.Syncular {
		for _, c := range storage.SQLite.SyncularColumns(t) {
			line := quoteIdentifier(c.Name) + " " + c.Type
			if c.NotNull {
				line += " NOT NULL"
			}
			lines = append(lines, line)
		}
	} else {
		key := spellingOf(storage.Table{PrimaryKey: t.PrimaryKey})
		for _, c := range t.Columns {
			_, isKey := key[fold(c.Name)]
			lines = append(lines, renderColumn(c, c.Nullable && !isKey))
		}
	}
	lines = append(lines, "PRIMARY KEY("+quoteAll(t.Key())+")")
	return "CREATE TABLE " + quoteIdentifier(t.Name) + "(\n  " + strings.Join(lines, ",\n  ") + "\n)"
}

func renderColumn(c storage.Column, nullable bool) string {
	line := quoteIdentifier(c.Name) + " " + storage.SQLite.SQLTypeOf(c)
	if !nullable {
		line += " NOT NULL"
	}
	return line
}

func quoteAll(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range names {
		quoted[i] = quoteIdentifier(name)
	}
	return strings.Join(quoted, ", ")
}

// stepName says in words what a step does to what, for errors.
func stepName(step storage.Step) string {
	switch step.Kind {
	case storage.StepAddColumn:
		return fmt.Sprintf("add column %q to table %q", step.Column.Name, step.Table)
	case storage.StepDropIndex:
		return fmt.Sprintf("drop index %q of table %q", step.Index.Name, step.Table)
	case storage.StepCreateIndex:
		return fmt.Sprintf("create index %q on table %q", step.Index.Name, step.Table)
	case storage.StepRunSQL:
		return userSQLName(step.Version)
	}
	return fmt.Sprintf("%s %q", step.Kind, step.Table)
}

// renderMarker moves the marker, with the layouts that belong to it.
func renderMarker(decision storage.Decision, exists bool) string {
	layouts := quoteLiteral(decision.Layouts)
	if !exists {
		return fmt.Sprintf("INSERT INTO sync_schema_meta(id, schema_version, layouts)\nVALUES (1, %d, %s)", decision.Version, layouts)
	}
	return fmt.Sprintf("UPDATE sync_schema_meta\nSET schema_version = %d,\n    layouts = %s\nWHERE id = 1", decision.Version, layouts)
}
