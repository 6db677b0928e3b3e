package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// passFacts is what was true when a pass over a checkpoint row began (facts of its claim row, as JSON). If any of it differs
// later, rows may have changed in a way that no log shows, and the pass proves nothing.
type passFacts struct {
	LogEpoch string                `json:"logEpoch,omitempty"` // of a listed partition; those of '*' are the facts of its positions
	System   string                `json:"systemIdentifier,omitempty"`
	Tables   map[string]tableFacts `json:"tables,omitempty"`
	Position int64                 `json:"position,omitempty"` // in the log of a listed partition
	Restarts int                   `json:"restarts,omitempty"`
	Rows     int64                 `json:"rows,omitempty"` // there were to scan, for status
}

// tableFacts is the fingerprint of a table: a table put in the place of another has another first page, and nothing of that is in the
// log. VACUUM moves tables too, and so costs a pass.
type tableFacts struct {
	Root    int64             `json:"root"`
	Columns map[string]string `json:"columns"` // type, NOT NULL and place in the key of each column that counts
}

// begun says whether a pass has begun at all. Of a checkpoint that another program declared only that program knows.
func (f passFacts) begun() bool { return len(f.Tables) > 0 }

func decodeFacts(text string) (passFacts, error) {
	var facts passFacts
	if err := json.Unmarshal([]byte(text), &facts); err != nil {
		return facts, &storage.Error{Code: storage.CodeContentDrift, Message: "the stored facts of a claim cannot be read", Err: err}
	}
	return facts, nil
}

func (f passFacts) encode() string {
	text, _ := json.Marshal(f) // strings, numbers and maps of strings always encode
	return string(text)
}

// difference says in what the database differs now from what was true at the claim, "" if in nothing. The log epoch is compared apart.
func (f passFacts) difference(now passFacts) string {
	if f.System != now.System {
		return "this is another database than the one in which the pass began"
	}
	for _, name := range slices.Sorted(maps.Keys(f.Tables)) {
		was, is := f.Tables[name], now.Tables[name]
		if was.Root != is.Root {
			return fmt.Sprintf("table %q was made anew or moved within the file since the pass began (VACUUM moves tables)", name)
		}
		for _, column := range slices.Sorted(maps.Keys(was.Columns)) {
			if was.Columns[column] != is.Columns[column] {
				return fmt.Sprintf("column %q of table %q was changed or dropped since the pass began", column, name)
			}
		}
	}
	return ""
}

// readPassFacts reads database identity and fingerprints as they are now.
func readPassFacts(ctx context.Context, q querier, definition storage.Definition) (facts passFacts, err error) {
	facts.Tables = map[string]tableFacts{}
	err = q.QueryRowContext(ctx, `
		SELECT system_identifier
		  FROM main.sync_barrier_owner
		 WHERE id = 1`).Scan(&facts.System)
	if err != nil && !noRows(err) {
		return facts, translate(err, "read sync_barrier_owner")
	}
	for name, counts := range countingColumns(definition) {
		if facts.Tables[name], err = fingerprint(ctx, q, name, counts); err != nil {
			return facts, err
		}
	}
	return facts, nil
}

func fingerprint(ctx context.Context, q querier, table string, counts func(column string) bool) (tableFacts, error) {
	facts := tableFacts{Columns: map[string]string{}}
	var root sql.NullInt64
	err := q.QueryRowContext(ctx, `
		SELECT rootpage
		  FROM main.sqlite_schema
		 WHERE type = 'table'
		   AND name = ?1 COLLATE NOCASE`, table).Scan(&root)
	if err != nil && !noRows(err) {
		return facts, translate(err, "read the schema")
	}
	columns, err := readColumns(ctx, q, table)
	if err != nil {
		return facts, err
	}
	facts.Root = root.Int64
	for _, c := range columns {
		if counts(fold(c.name)) {
			facts.Columns[fold(c.name)] = fmt.Sprintf("%s %t %d", canonicalType(c.declared), c.notNull, c.position)
		}
	}
	return facts, nil
}

// countingColumns tells for each table of a checkpoint which columns its result depends on: those that a source names, or all that
// the backfill does not set itself; of a table that is no source, the key.
func countingColumns(definition storage.Definition) map[string]func(folded string) bool {
	contains := func(names []string, folded string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return fold(name) == folded })
	}
	var set []string
	if update := definition.Checkpoint.Backfill.Update; update != nil {
		set = sortedKeys(update.Set)
	}
	target := definition.Table
	counting := map[string]func(string) bool{}
	if target.Name != "" {
		counting[target.Name] = func(column string) bool { return contains(target.Key(), column) }
	}
	for _, source := range definition.Checkpoint.Sources {
		own, key := source.Table == target.Name, tableOf(definition, source.Table).Key()
		counting[source.Table] = func(column string) bool {
			if len(source.Columns) > 0 {
				return contains(source.Columns, column) || contains(key, column)
			}
			return !own || !contains(set, column)
		}
	}
	return counting
}

// tableOf finds the declaration of a source.
func tableOf(definition storage.Definition, name string) storage.Table {
	for _, table := range definition.SourceTables {
		if table.Name == name {
			return table
		}
	}
	return definition.Table
}

// changedSince says what is not as it was when the pass of a row began, "" if nothing is.
func (w *work) changedSince(ctx context.Context, row owned) (string, error) {
	now, err := readPassFacts(ctx, w.tx, w.definition)
	if err != nil {
		return "", err
	}
	return row.facts.difference(now), nil
}
