package postgres

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// textResult asks for values as text in every execution mode, so that a result is the same whichever way it came.
var textResult = pgx.QueryResultFormats{pgx.TextFormatCode}

// collectResult reads a result asked for as text: column names and rows. Integers are int64, floats float64, booleans bool, bytea
// []byte, NULL nil, and everything else is PostgreSQL's own text for it, in the settings that a transaction of ours pins.
func collectResult(rows pgx.Rows) (columns []string, values [][]any, err error) {
	defer rows.Close()
	fields := rows.FieldDescriptions()
	for _, field := range fields {
		columns = append(columns, field.Name)
	}
	for rows.Next() {
		row := make([]any, len(fields))
		for i, raw := range rows.RawValues() {
			if row[i], err = decodeText(fields[i], raw); err != nil {
				return nil, nil, err
			}
		}
		values = append(values, row)
	}
	return columns, values, rows.Err()
}

func decodeText(field pgconn.FieldDescription, raw []byte) (any, error) {
	if raw == nil {
		return nil, nil
	}
	text := string(raw)
	var value any
	var err error
	switch field.DataTypeOID {
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID:
		value, err = strconv.ParseInt(text, 10, 64)
	case pgtype.Float4OID, pgtype.Float8OID:
		value, err = strconv.ParseFloat(text, 64)
	case pgtype.BoolOID:
		value = text == "t"
	case pgtype.ByteaOID:
		value, err = hex.DecodeString(strings.TrimPrefix(text, `\x`))
	default:
		value = text
	}
	if err != nil {
		return nil, fmt.Errorf("read column %q as type %d: it is not of that form", field.Name, field.DataTypeOID)
	}
	return value, nil
}
