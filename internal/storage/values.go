package storage

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"unicode/utf8"
)

// CheckCommit refuses a commit that the log cannot hold, before anything is written. CodeInvalidSpec names the change by its place.
func CheckCommit(c Commit) error {
	for name, text := range map[string]string{"client": c.ClientID, "client commit": c.ClientCommitID, "actor": c.ActorID} {
		if !storable(text) {
			return Refuse(CodeInvalidSpec, "the %s id of the commit is not UTF-8 text without NUL", name)
		}
	}
	for i, change := range c.Changes {
		switch {
		case change.Table == "" || !storable(change.Table):
			return Refuse(CodeInvalidSpec, "change %d of the commit names no table", i)
		case !storable(change.RowID):
			return Refuse(CodeInvalidSpec, "change %d of the commit: the row id is not UTF-8 text without NUL", i)
		case change.Op != OpUpsert && change.Op != OpDelete:
			return Refuse(CodeInvalidSpec, "change %d of the commit: operation %d is neither upsert (%d) nor delete (%d)", i, change.Op, OpUpsert, OpDelete)
		case !validScopes(change.Scopes):
			return Refuse(CodeInvalidSpec, "change %d of the commit: scopes are no JSON", i)
		}
	}
	return nil
}

// CheckRow refuses a row that a Syncular table of this declaration cannot hold, and returns the values of its typed columns in the
// order of the declaration, each nil, string, int64, float64, bool or []byte. Without typed columns there are none.
// CodeInvalidSpec names table and column, never a value.
func CheckRow(t Table, row Row) ([]any, error) {
	if t.Layout != Syncular {
		return nil, Refuse(CodeInvalidSpec, "table %q is %s; rows of Syncular tables are written through a Store", t.Name, t.Layout)
	}
	if row.RowID == "" || !storable(row.RowID) {
		return nil, Refuse(CodeInvalidSpec, "table %q: the row id is empty or not UTF-8 text without NUL", t.Name)
	}
	if !validScopes(row.Scopes) {
		return nil, Refuse(CodeInvalidSpec, "table %q: the scopes of a row are no JSON", t.Name)
	}
	for name := range row.Values {
		if _, ok := t.Column(name); !ok {
			return nil, Refuse(CodeInvalidSpec, "table %q declares no column %q", t.Name, name)
		}
	}
	if !t.Materialize {
		return nil, nil
	}
	values := make([]any, len(t.Columns))
	for i, column := range t.Columns {
		value, err := column.canonical(row.Values[column.Name])
		if err != nil {
			return nil, Refuse(CodeInvalidSpec, "table %q: column %q: %s", t.Name, column.Name, err)
		}
		values[i] = value
	}
	return values, nil
}

// canonical brings a program's value to the one Go type that its declared type is read back as.
func (c Column) canonical(value any) (any, error) {
	if value == nil {
		if !c.Nullable {
			return nil, fmt.Errorf("it is not nullable and has no value")
		}
		return nil, nil
	}
	var ok bool
	switch c.Type {
	case TypeString, TypeBlobRef:
		var text string
		if text, ok = value.(string); ok && storable(text) {
			return text, nil
		}
	case TypeJSON:
		var text string
		if text, ok = value.(string); ok && json.Valid([]byte(text)) && storable(text) {
			return text, nil
		}
	case TypeInteger:
		return wholeNumber(value)
	case TypeFloat:
		return number(value)
	case TypeBoolean:
		if flag, is := value.(bool); is {
			return flag, nil
		}
	case TypeBytes, TypeCRDT:
		if bytes, is := value.([]byte); is {
			return bytes, nil
		}
	}
	return nil, fmt.Errorf("a value of Go type %T is no %s", value, c.Type)
}

func wholeNumber(value any) (any, error) {
	switch n := value.(type) {
	case int64:
		return n, nil
	case int:
		return int64(n), nil
	case int32:
		return int64(n), nil
	}
	return nil, fmt.Errorf("a value of Go type %T is no %s", value, TypeInteger)
}

func number(value any) (any, error) {
	switch n := value.(type) {
	case float64:
		if math.IsNaN(n) || math.IsInf(n, 0) {
			return nil, fmt.Errorf("it must be a finite number")
		}
		return n, nil
	case int64:
		return float64(n), nil
	case int:
		return float64(n), nil
	}
	return nil, fmt.Errorf("a value of Go type %T is no %s", value, TypeFloat)
}

func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

func validScopes(scopes string) bool {
	return scopes == "" || json.Valid([]byte(scopes)) && storable(scopes)
}

// ScopesOrEmpty gives the JSON to store for scopes: "" is the empty object.
func ScopesOrEmpty(scopes string) string {
	if scopes == "" {
		return "{}"
	}
	return scopes
}
