package storage

import (
	"encoding/json"
	"fmt"
	"slices"
)

// LayoutColumn is one column of a stored layout. In sync_schema_meta the first three fields are kept, as the sync
// protocol has them; SQLType and Created are ours and stand only in the history, for Plain tables.
type LayoutColumn struct {
	Name     string     `json:"name"`
	Type     ColumnType `json:"type"`
	Nullable bool       `json:"nullable"`
	SQLType  string     `json:"sqlType,omitempty"`
	Created  bool       `json:"created,omitempty"` // we made it, so it is checked exactly
}

// EncodeLayouts gives the JSON text of sync_schema_meta.layouts: exactly the Syncular tables.
func EncodeLayouts(tables []Table) (string, error) {
	layouts := map[string][]LayoutColumn{}
	for _, t := range tables {
		if t.Layout == Syncular {
			layouts[t.Name] = layoutOf(t)
		}
	}
	text, err := json.Marshal(layouts)
	if err != nil {
		return "", fmt.Errorf("encode layouts: %w", err)
	}
	return string(text), nil
}

// DecodeLayouts reads that text. Empty text is no layouts.
func DecodeLayouts(text string) (map[string][]LayoutColumn, error) {
	layouts := map[string][]LayoutColumn{}
	if text == "" {
		return layouts, nil
	}
	if err := json.Unmarshal([]byte(text), &layouts); err != nil {
		return nil, &Error{Code: CodeLayoutMismatch, Message: "the stored layouts are not the JSON of the sync protocol", Err: err}
	}
	return layouts, nil
}

func layoutOf(t Table) []LayoutColumn {
	columns := make([]LayoutColumn, len(t.Columns))
	for i, c := range t.Columns {
		columns[i] = LayoutColumn{Name: c.Name, Type: c.Type, Nullable: c.Nullable, SQLType: c.SQLType}
	}
	return columns
}

// compareLayouts says what is wrong if declared is not stored plus columns at its end; appended is how many those are.
func compareLayouts(stored, declared []LayoutColumn) (appended int, problem string) {
	for i, old := range stored {
		if i >= len(declared) {
			return 0, fmt.Sprintf("column %q was removed; columns are only ever appended", old.Name)
		}
		now := declared[i]
		switch {
		case now.Name != old.Name && slices.ContainsFunc(declared, func(c LayoutColumn) bool { return c.Name == old.Name }):
			return 0, fmt.Sprintf("column %q is not at its place %d any more; the order of columns is part of the layout", old.Name, i+1)
		case now.Name != old.Name:
			return 0, fmt.Sprintf("column %q was removed or renamed to %q; columns are only ever appended", old.Name, now.Name)
		case now.Type != old.Type || now.SQLType != old.SQLType:
			return 0, fmt.Sprintf("column %q changed its type from %s to %s", old.Name, typeName(old), typeName(now))
		case now.Nullable != old.Nullable:
			return 0, fmt.Sprintf("column %q changed nullable from %t to %t", old.Name, old.Nullable, now.Nullable)
		}
	}
	return len(declared) - len(stored), ""
}

func typeName(c LayoutColumn) string {
	if c.SQLType != "" {
		return c.SQLType
	}
	return string(c.Type)
}
