package syncprogram

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
)

// A payload is a null bitmap of ceil(columns/8) bytes, least significant bit first, bit set = NULL, padding bits 0, then the
// values that are not NULL in column order. Numbers are little endian; texts and bytes carry their length.

// EncodeRow packs the values of a row: nil, string, int64, float64, bool or []byte by the type of the column.
func EncodeRow(columns []Column, values []any) ([]byte, error) {
	if len(values) != len(columns) {
		return nil, fmt.Errorf("a row of %d columns has %d values", len(columns), len(values))
	}
	bitmap := make([]byte, (len(columns)+7)/8)
	var body []byte
	for i, column := range columns {
		if values[i] == nil {
			if !column.Nullable {
				return nil, fmt.Errorf("column %q has no value", column.Name)
			}
			bitmap[i/8] |= 1 << (i % 8)
			continue
		}
		encoded, err := encodeValue(column, values[i])
		if err != nil {
			return nil, err
		}
		body = append(body, encoded...)
	}
	return append(bitmap, body...), nil
}

func encodeValue(column Column, value any) ([]byte, error) {
	switch column.Type {
	case "string", "blob_ref", "json":
		if text, ok := value.(string); ok {
			return sized([]byte(text)), nil
		}
	case "bytes", "crdt":
		if content, ok := value.([]byte); ok {
			return sized(content), nil
		}
	case "integer":
		if number, ok := value.(int64); ok {
			return binary.LittleEndian.AppendUint64(nil, uint64(number)), nil
		}
	case "float":
		if number, ok := value.(float64); ok {
			return binary.LittleEndian.AppendUint64(nil, math.Float64bits(number)), nil
		}
	case "boolean":
		if flag, ok := value.(bool); ok {
			if flag {
				return []byte{1}, nil
			}
			return []byte{0}, nil
		}
	}
	return nil, fmt.Errorf("column %q: a %T is no %s", column.Name, value, column.Type)
}

func sized(content []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(content))), content...)
}

var errShort = errors.New("the payload ends too early")

// DecodeRow unpacks a payload. It is strict: a payload with set padding bits, or bytes left over, was not written with these columns.
func DecodeRow(columns []Column, payload []byte) ([]any, error) {
	size := (len(columns) + 7) / 8
	if len(payload) < size {
		return nil, errShort
	}
	bitmap, reader := payload[:size], bytes.NewReader(payload[size:])
	for bit := len(columns); bit < size*8; bit++ {
		if bitmap[bit/8]&(1<<(bit%8)) != 0 {
			return nil, fmt.Errorf("padding bit %d of the null bitmap is set", bit)
		}
	}
	values := make([]any, len(columns))
	for i, column := range columns {
		if bitmap[i/8]&(1<<(i%8)) != 0 {
			if !column.Nullable {
				return nil, fmt.Errorf("column %q is not nullable and NULL in the payload", column.Name)
			}
			continue
		}
		value, err := decodeValue(column, reader)
		if err != nil {
			return nil, fmt.Errorf("column %q: %w", column.Name, err)
		}
		values[i] = value
	}
	if reader.Len() != 0 {
		return nil, fmt.Errorf("%d bytes are left over", reader.Len())
	}
	return values, nil
}

func decodeValue(column Column, reader *bytes.Reader) (any, error) {
	switch column.Type {
	case "string", "blob_ref", "json", "bytes", "crdt":
		length, err := take(reader, 4)
		if err != nil {
			return nil, err
		}
		content, err := take(reader, int(binary.LittleEndian.Uint32(length)))
		if err != nil {
			return nil, err
		}
		if column.Type == "bytes" || column.Type == "crdt" {
			return content, nil
		}
		return string(content), nil
	case "integer", "float":
		content, err := take(reader, 8)
		if err != nil {
			return nil, err
		}
		bits := binary.LittleEndian.Uint64(content)
		if column.Type == "float" {
			return math.Float64frombits(bits), nil
		}
		return int64(bits), nil
	case "boolean":
		content, err := take(reader, 1)
		if err != nil {
			return nil, err
		}
		if content[0] > 1 {
			return nil, fmt.Errorf("%d is no boolean", content[0])
		}
		return content[0] == 1, nil
	}
	return nil, fmt.Errorf("unknown type %q", column.Type)
}

func take(reader *bytes.Reader, count int) ([]byte, error) {
	if count < 0 || count > reader.Len() {
		return nil, errShort
	}
	content := make([]byte, count)
	_, err := reader.Read(content)
	if count == 0 {
		err = nil // an empty read at the end is no failure
	}
	return content, err
}

// migratePayload brings a payload from the columns it was written with to the table's: the appended ones are NULL.
func (t Table) migratePayload(old []Column, payload []byte) ([]byte, error) {
	values, err := DecodeRow(old, payload)
	if err != nil {
		return nil, fmt.Errorf("table %q: %w", t.Name, err)
	}
	for len(values) < len(t.Columns) {
		values = append(values, nil)
	}
	return EncodeRow(t.Columns, values)
}

// boundValues are the values of a row's physical columns, read back from its payload so that the two cannot drift apart.
func (t Table) boundValues(d dialect, payload []byte) ([]any, error) {
	if !t.Materialize {
		return nil, nil
	}
	values, err := DecodeRow(t.Columns, payload)
	if err != nil {
		return nil, fmt.Errorf("table %q: %w", t.Name, err)
	}
	for i, column := range t.Columns {
		switch {
		case column.Type == "boolean" && d.scopes == "TEXT" && values[i] != nil:
			values[i] = map[bool]int64{false: 0, true: 1}[values[i] == true]
		case column.Type == "json" && d.scopes == "JSONB" && values[i] != nil && !json.Valid([]byte(values[i].(string))):
			values[i] = nil
		}
	}
	return values, nil
}
