package storage

import (
	"reflect"
	"testing"
)

func TestLayoutsAreTheTextOfTheSyncProtocol(t *testing.T) {
	text, err := EncodeLayouts([]Table{todosAt(), notesAt(), {Name: "bare", Layout: Syncular}})
	want := `{"bare":[],"notes":[{"name":"body","type":"string","nullable":false},{"name":"size","type":"integer","nullable":true}]}`
	if err != nil || text != want {
		t.Errorf("got %s, %v, want %s", text, err, want)
	}
	decoded, err := DecodeLayouts(text)
	if err != nil || !reflect.DeepEqual(decoded["notes"], layoutOf(notesAt())) || decoded["bare"] == nil {
		t.Errorf("got %v, %v", decoded, err)
	}
}

func TestLayoutsOfAnotherProgramAreRead(t *testing.T) {
	for text, tables := range map[string]int{"": 0, "{}": 0, `{"a":[{"type":"json","nullable":true,"name":"x","more":1}]}`: 1} {
		layouts, err := DecodeLayouts(text)
		if err != nil || len(layouts) != tables {
			t.Errorf("%s: %v, %v", text, layouts, err)
		}
	}
	for _, text := range []string{"[]", "nonsense", `{"a":{}}`} {
		if _, err := DecodeLayouts(text); CodeOf(err) != CodeLayoutMismatch {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func TestLayoutsAreComparedColumnByColumn(t *testing.T) {
	stored := []LayoutColumn{{Name: "a", Type: TypeString}, {Name: "b", SQLType: "inet", Nullable: true}}
	more := append(append([]LayoutColumn{}, stored...), LayoutColumn{Name: "c"}, LayoutColumn{Name: "d"})
	if appended, problem := compareLayouts(stored, more); appended != 2 || problem != "" {
		t.Errorf("got %d, %q", appended, problem)
	}
	if appended, problem := compareLayouts(nil, stored); appended != 2 || problem != "" {
		t.Errorf("got %d, %q", appended, problem)
	}
	for want, declared := range map[string][]LayoutColumn{
		`column "b" was removed; columns are only ever appended`:                                stored[:1],
		`column "a" is not at its place 1 any more; the order of columns is part of the layout`: {stored[1], stored[0]},
		`column "b" was removed or renamed to "x"; columns are only ever appended`:              {stored[0], {Name: "x"}},
		`column "a" changed its type from string to json`:                                       {{Name: "a", Type: TypeJSON}, stored[1]},
		`column "b" changed its type from inet to cidr`:                                         {stored[0], {Name: "b", SQLType: "cidr", Nullable: true}},
		`column "b" changed nullable from true to false`:                                        {stored[0], {Name: "b", SQLType: "inet"}},
	} {
		if appended, problem := compareLayouts(stored, declared); problem != want || appended != 0 {
			t.Errorf("got %d, %q, want %q", appended, problem, want)
		}
	}
}
