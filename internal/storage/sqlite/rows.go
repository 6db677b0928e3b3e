package sqlite

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
	payload := row.Payload
	if payload == nil {
		payload = []byte{} // the column is NOT NULL
	}
	arguments := []any{w.partition, row.RowID}
	for _, value := range values {
		arguments = append(arguments, notNil(value))
	}
	arguments = append(arguments, row.Version, storage.ScopesOrEmpty(row.Scopes), payload)

	names := rowColumns(table)
	updates := make([]string, 0, len(names))
	for _, name := range names[2:] {
		updates = append(updates, fmt.Sprintf("%s = excluded.%s", name, name))
	}
	statement := fmt.Sprintf("INSERT INTO main.%s (%s) VALUES %s ON CONFLICT (%s, %s) DO UPDATE SET %s",
		quoteIdentifier(table.Name), strings.Join(names, ", "), places(1, len(names)), names[0], names[1], strings.Join(updates, ", "))
	return w.run(fmt.Sprintf("write a row of table %q", table.Name), func() error {
		_, err := w.tx.ExecContext(ctx, statement, arguments...)
		return err
	})
}

// rowColumns gives the quoted columns of a Syncular table in order.
func rowColumns(table storage.Table) []string {
	columns := storage.SQLite.SyncularColumns(table)
	names := make([]string, len(columns))
	for i, column := range columns {
		names[i] = quoteIdentifier(column.Name)
	}
	return names
}

// GetRow reads a row of a Syncular table in the transaction's partition; ok is false if there is none.
func (w *writer) GetRow(ctx context.Context, table storage.Table, rowID string) (row storage.Row, ok bool, err error) {
	if table.Layout != storage.Syncular {
		return row, false, storage.Refuse(storage.CodeInvalidSpec, "table %q is %s; rows of Syncular tables are read through a Store", table.Name, table.Layout)
	}
	statement := fmt.Sprintf("SELECT %s FROM main.%s WHERE %s = ?1 AND %s = ?2",
		strings.Join(rowColumns(table)[2:], ", "), quoteIdentifier(table.Name),
		quoteIdentifier(storage.ColumnPartition), quoteIdentifier(storage.ColumnRowID))
	err = w.run(fmt.Sprintf("read a row of table %q", table.Name), func() error {
		rows, err := w.tx.QueryContext(ctx, statement, w.partition, rowID)
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
			row.Values[table.Columns[i].Name] = typedValue(table.Columns[i].Type, found[i])
		}
	}
	return row
}

// typedValue gives a boolean back as one: SQLite keeps it as a number.
func typedValue(columnType storage.ColumnType, value any) any {
	if number, ok := value.(int64); ok && columnType == storage.TypeBoolean {
		return number != 0
	}
	return value
}

// DeleteRow deletes a row of a Syncular table in the transaction's partition; deleting none is no error.
func (w *writer) DeleteRow(ctx context.Context, table storage.Table, rowID string) error {
	if table.Layout != storage.Syncular {
		return storage.Refuse(storage.CodeInvalidSpec, "table %q is %s; rows of Syncular tables are deleted through a Store", table.Name, table.Layout)
	}
	statement := fmt.Sprintf("DELETE FROM main.%s WHERE %s = ?1 AND %s = ?2",
		quoteIdentifier(table.Name), quoteIdentifier(storage.ColumnPartition), quoteIdentifier(storage.ColumnRowID))
	return w.run(fmt.Sprintf("delete a row of table %q", table.Name), func() error {
		_, err := w.tx.ExecContext(ctx, statement, w.partition, rowID)
		return err
	})
}

var _ storage.Tx = (*writer)(nil)
