package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// passFacts is what was true when a pass over a checkpoint row began (facts of its claim row, as JSON). If any of it differs
// later, rows may have changed in a way that no log shows, and the pass proves nothing.
type passFacts struct {
	LogEpoch string                `json:"logEpoch,omitempty"` // of a listed partition; those of '*' stand with their positions
	System   string                `json:"systemIdentifier,omitempty"`
	Tables   map[string]tableFacts `json:"tables,omitempty"`
	Restarts int                   `json:"restarts,omitempty"`
	Rows     int64                 `json:"rows,omitempty"` // of all partitions of the checkpoint, estimated; later the pass itself spoils the estimate
}

// tableFacts is the fingerprint of a table: TRUNCATE, a rewrite, ATTACH and DETACH change its files, and none of them is in the log.
type tableFacts struct {
	Files   string            `json:"files"`             // oid:relfilenode of the table and each of its partitions
	Columns map[string]string `json:"columns"`           // number and type of each column that counts
	Capture []string          `json:"capture,omitempty"` // of a captured source, its triggers, each with the transaction that last changed it
}

// begun says whether a pass has begun at all. A claim of a single row by other means has no facts.
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
		return "the database is a copy of the one in which the pass began"
	}
	for _, name := range slices.Sorted(maps.Keys(f.Tables)) {
		was, is := f.Tables[name], now.Tables[name]
		if was.Files != is.Files {
			return fmt.Sprintf("table %q was rewritten, truncated, or made of other partitions since the pass began", name)
		}
		for _, column := range slices.Sorted(maps.Keys(was.Columns)) {
			if was.Columns[column] != is.Columns[column] {
				return fmt.Sprintf("column %q of table %q was changed or dropped since the pass began", column, name)
			}
		}
		if !slices.Equal(was.Capture, is.Capture) {
			return fmt.Sprintf("the triggers that write the log of table %q were switched off, dropped or changed since the pass began", name)
		}
	}
	return ""
}

// readPassFacts reads system identifier and fingerprints as they are now.
func (s *Store) readPassFacts(ctx context.Context, tx pgx.Tx, plan *backfillPlan) (passFacts, error) {
	counting := plan.countingColumns()
	facts := passFacts{Tables: map[string]tableFacts{}}
	var err error
	if facts.System, err = systemIdentifier(ctx, tx); err != nil {
		return facts, err
	}
	rows, err := tx.Query(ctx, `
		SELECT c.relname,
		       (SELECT string_agg(format('%s:%s', f.oid::oid, coalesce(pg_catalog.pg_relation_filenode(f.oid), 0)), ' ' ORDER BY f.oid::oid)
		          FROM (SELECT c.oid::regclass
		                UNION
		                SELECT relid FROM pg_catalog.pg_partition_tree(c.oid)) AS f(oid)),
		       (SELECT coalesce(json_object_agg(a.attname, format('%s %s %s%s', a.attnum, a.atttypid::oid, a.atttypmod, CASE WHEN `+neverNull+` THEN ' never null' END)), '{}')::text
		          FROM pg_catalog.pg_attribute a
		         WHERE a.attrelid = c.oid
		           AND a.attnum > 0
		           AND NOT a.attisdropped)
		  FROM pg_catalog.pg_class c
		 WHERE c.relnamespace = (SELECT oid FROM pg_catalog.pg_namespace WHERE nspname = $1::text)
		   AND c.relname = ANY ($2::text[])`, s.schemaName, slices.Sorted(maps.Keys(counting)))
	if err != nil {
		return facts, fmt.Errorf("read the fingerprints: %w", err)
	}
	var name, files, columns string
	_, err = pgx.ForEachRow(rows, []any{&name, &files, &columns}, func() error {
		all := map[string]string{}
		if err := json.Unmarshal([]byte(columns), &all); err != nil {
			return err
		}
		maps.DeleteFunc(all, func(column, _ string) bool { return !counting[name](column) })
		for column, kind := range all {
			if !plan.isKey(name, column) {
				all[column] = strings.TrimSuffix(kind, " never null") // only of a key does it count: rows without one are passed over
			}
		}
		facts.Tables[name] = tableFacts{Files: files, Columns: all}
		return nil
	})
	if err != nil {
		return facts, fmt.Errorf("read the fingerprints: %w", err)
	}
	return facts, s.addCaptureFacts(ctx, tx, plan, facts)
}

// countingColumns tells for each table of a backfill which columns its result depends on: those that a source names, or all that
// the backfill does not set itself; of a table that is no source, the key.
func (p *backfillPlan) countingColumns() map[string]func(column string) bool {
	set := map[string]string{}
	if update := p.definition.Checkpoint.Backfill.Update; update != nil {
		set = update.Set
	}
	target := p.table.declared
	counting := map[string]func(string) bool{
		target.Name: func(column string) bool { return slices.Contains(target.Key(), column) },
	}
	for _, source := range p.sources {
		named, key, own := source.Columns, source.table.declared.Key(), source.Table == target.Name
		counting[source.Table] = func(column string) bool {
			if len(named) > 0 {
				return slices.Contains(named, column) || slices.Contains(key, column)
			}
			_, ours := set[column]
			return !own || !ours
		}
	}
	return counting
}

// isKey says whether a column is in the key of the backfilled table or of a source.
func (p *backfillPlan) isKey(table, column string) bool {
	if table == p.table.declared.Name && slices.Contains(p.table.declared.Key(), column) {
		return true
	}
	source, ok := p.source(table)
	return ok && slices.Contains(source.table.declared.Key(), column)
}

// checkFacts compares the facts of a claim with the database. It gives the reason why the pass proves nothing, "" if it still does.
func (s *Store) checkFacts(ctx context.Context, tx pgx.Tx, plan *backfillPlan, stored string) (reason string, err error) {
	facts, err := decodeFacts(stored)
	if err != nil {
		return "", err
	}
	if !facts.begun() {
		return "no pass has begun under this claim", nil
	}
	now, err := s.readPassFacts(ctx, tx, plan)
	if err != nil {
		return "", err
	}
	return facts.difference(now), nil
}

// epochChanged is the reason for a log with another epoch.
func epochChanged(partition string) string {
	return fmt.Sprintf("the log of partition %q was replaced since its position was noted (its log epoch is another one)", partition)
}
