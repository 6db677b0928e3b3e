package postgres

import (
	"context"
	"fmt"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// UpsertRow writes a row of a Syncular table in the transaction's partition. CodeInvalidSpec for a row that the declaration does not allow.
func (w *writer) UpsertRow(ctx context.Context, table storage.Table, row storage.Row) error {
	values, err := storage.CheckRow(table, row)
	if err != nil {
		return err
	}
	names, places := rowColumns(table)
	arguments := []any{w.partition, row.RowID}
	arguments = append(arguments, values...)
	payload := row.Payload
	if payload == nil {
		payload = []byte{} // the column is NOT NULL
	}
	arguments = append(arguments, row.Version, storage.ScopesOrEmpty(row.Scopes), payload)

	updates := make([]string, 0, len(names))
	for _, name := range names[2:] {
		updates = append(updates, fmt.Sprintf("%s = EXCLUDED.%s", name, name))
	}
	statement := fmt.Sprintf("INSERT INTO %s.%s (%s) VALUES (%s) ON CONFLICT (%s, %s) DO UPDATE SET %s",
		w.store.schema, quoteIdentifier(table.Name), strings.Join(names, ", "), strings.Join(places, ", "),
		names[0], names[1], strings.Join(updates, ", "))
	return w.run(fmt.Sprintf("write a row of table %q", table.Name), func() error {
		_, err := w.tx.Exec(ctx, statement, arguments...)
		return err
	})
}

// rowColumns gives the quoted columns of a Syncular table in order and a cast placeholder for each.
func rowColumns(table storage.Table) (names, places []string) {
	for i, column := range storage.PostgreSQL.SyncularColumns(table) {
		names = append(names, quoteIdentifier(column.Name))
		cast := "::" + column.Type
		if column.Type == "jsonb" {
			cast = "::text::jsonb" // the argument is JSON text already, not a value to encode
		}
		places = append(places, fmt.Sprintf("$%d%s", i+1, cast))
	}
	return names, places
}

// GetRow reads a row of a Syncular table in the transaction's partition; ok is false if there is none.
func (w *writer) GetRow(ctx context.Context, table storage.Table, rowID string) (row storage.Row, ok bool, err error) {
	if table.Layout != storage.Syncular {
		return row, false, storage.Refuse(storage.CodeInvalidSpec, "table %q is %s; rows of Syncular tables are read through a Store", table.Name, table.Layout)
	}
	columns := storage.PostgreSQL.SyncularColumns(table)[2:]
	selected := make([]string, len(columns))
	for i, column := range columns {
		selected[i] = quoteIdentifier(column.Name)
		if column.Type == "jsonb" {
			selected[i] += "::text"
		}
	}
	statement := fmt.Sprintf("SELECT %s FROM %s.%s WHERE %s = $1::text AND %s = $2::text",
		strings.Join(selected, ", "), w.store.schema, quoteIdentifier(table.Name),
		quoteIdentifier(storage.ColumnPartition), quoteIdentifier(storage.ColumnRowID))
	err = w.run(fmt.Sprintf("read a row of table %q", table.Name), func() error {
		rows, err := w.tx.Query(ctx, statement, textResult, w.partition, rowID)
		if err != nil {
			return err
		}
		_, found, err := collectResult(rows)
		if err != nil || len(found) == 0 {
			return err
		}
		row, ok = rowOf(table, rowID, found[0]), true
		return nil
	})
	return row, ok, err
}

// rowOf makes a row of the columns after the key: typed columns, version, scopes, payload.
func rowOf(table storage.Table, rowID string, found []any) storage.Row {
	typed := len(found) - 3
	row := storage.Row{RowID: rowID}
	row.Version, _ = found[typed].(int64)
	row.Scopes, _ = found[typed+1].(string)
	row.Payload, _ = found[typed+2].([]byte)
	if typed > 0 {
		row.Values = make(map[string]any, typed)
		for i := range typed {
			row.Values[table.Columns[i].Name] = found[i]
		}
	}
	return row
}

// DeleteRow deletes a row of a Syncular table in the transaction's partition; deleting none is no error.
func (w *writer) DeleteRow(ctx context.Context, table storage.Table, rowID string) error {
	if table.Layout != storage.Syncular {
		return storage.Refuse(storage.CodeInvalidSpec, "table %q is %s; rows of Syncular tables are deleted through a Store", table.Name, table.Layout)
	}
	statement := fmt.Sprintf("DELETE FROM %s.%s WHERE %s = $1::text AND %s = $2::text",
		w.store.schema, quoteIdentifier(table.Name), quoteIdentifier(storage.ColumnPartition), quoteIdentifier(storage.ColumnRowID))
	return w.run(fmt.Sprintf("delete a row of table %q", table.Name), func() error {
		_, err := w.tx.Exec(ctx, statement, w.partition, rowID)
		return err
	})
}

var _ storage.Tx = (*writer)(nil)
