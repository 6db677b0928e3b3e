package storage

import (
	"strings"
	"testing"
)

func TestOpenCheckpointsKeepTheirColumnsApart(t *testing.T) {
	setter := Checkpoint{
		Name: "title-norm", Version: 7,
		Sources:  []Source{{Table: "todos", Changes: CommitLog}},
		Backfill: Backfill{Update: &Update{Table: "todos", Set: map[string]string{"title_norm": "lower(title)"}}},
	}
	reader := func(table string, columns ...string) Checkpoint {
		return Checkpoint{Name: "words", Version: 8, Sources: []Source{{Table: table, Changes: CommitLog, Columns: columns}}}
	}
	for name, test := range map[string]struct {
		open []Checkpoint
		want string
	}{
		"one alone":                                  {[]Checkpoint{setter}, ""},
		"another that names no columns":              {[]Checkpoint{setter, reader("todos")}, ""},
		"another that reads other columns":           {[]Checkpoint{setter, reader("todos", "title")}, ""},
		"another that reads another table's":         {[]Checkpoint{setter, reader("notes", "title_norm")}, ""},
		"another that reads what the one sets":       {[]Checkpoint{setter, reader("todos", "title", "title_norm")}, `"title-norm" sets column "title_norm" of table "todos", which checkpoint "words" reads`},
		"the same in the other order":                {[]Checkpoint{reader("todos", "title_norm"), setter}, `which checkpoint "words" reads`},
		"one that reads what it sets":                {[]Checkpoint{{Name: "x", Sources: reader("todos", "title_norm").Sources, Backfill: setter.Backfill}}, `which checkpoint "x" reads`},
		"one that reads what only a statement knows": {[]Checkpoint{{Name: "x", Backfill: Backfill{Statement: &Statement{Table: "todos"}}}, reader("todos", "title_norm")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := CheckColumnsApart(test.open)
			if test.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if CodeOf(err) != CodeInvalidSpec || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error is %v, want InvalidSpec with %q", err, test.want)
			}
		})
	}
}
