package sqlite

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

//go:embed catalog.sql
var catalogSQL string

// catalogStatements are the statements of catalog.sql, without comments.
var catalogStatements = parseCatalog(catalogSQL)

// catalogRevision names what this build installs. It is written down in the database with it: where it is the same, a difference is
// somebody's doing, and where it is not, an upgrade is due.
var catalogRevision = revisionOf(catalogSQL, fenceSQL, guardsSQL)

func revisionOf(texts ...string) string {
	hash := sha256.New()
	for _, text := range texts {
		_, _ = fmt.Fprintf(hash, "%d:%s", len(text), text) // a hash never fails
	}
	return hex.EncodeToString(hash.Sum(nil))[:16]
}

func parseCatalog(file string) []string {
	var text strings.Builder
	for line := range strings.Lines(file) {
		if !strings.HasPrefix(line, "--") {
			text.WriteString(line)
		}
	}
	var statements []string
	for statement := range strings.SplitSeq(text.String(), ";\n") {
		if statement = strings.TrimSpace(statement); statement != "" {
			statements = append(statements, statement)
		}
	}
	return statements
}

// catalogTables are the tables that are ours alone; the others in catalog.sql are the sync protocol's.
var catalogTables = []string{
	"sync_barrier_history", "sync_barrier_owner", "sync_backfill_definitions", "sync_backfill_progress", "sync_backfill_leftovers",
	"sync_barrier_replaced",
}

// emptyTables hold nothing that has to last: notes of the guards, and what no batch of ours ever leaves over.
var emptyTables = []string{"sync_barrier_replaced", "sync_backfill_leftovers"}

// catalogIndexes are our indexes on tables of the sync protocol.
var catalogIndexes = []string{"syncbarrier_checkpoints_open", "syncbarrier_checkpoints_by_name", "syncbarrier_changes_by_table"}

const addWriterVersion = "ALTER TABLE sync_commits ADD COLUMN writer_version INTEGER"

// protocolColumns are the columns that we use of the sync protocol's tables. A table found with other types is another program's choice
// and is checked by name.
var protocolColumns = map[string][]string{
	"sync_partitions":           {"partition", "max_commit_seq", "horizon_seq"},
	"sync_partition_registry":   {"partition", "log_epoch", "epoch_required", "last_authenticated_at_ms"},
	"sync_commits":              {"partition", "commit_seq", "client_id", "client_commit_id", "actor_id", "created_at_ms"},
	"sync_changes":              {"partition", "commit_seq", "idx", "tbl", "row_id", "op", "row_version", "scopes", "payload"},
	"sync_schema_meta":          {"id", "schema_version", "layouts"},
	"sync_backfill_checkpoints": {"partition", "name", "schema_version", "state", "watermark", "owner_epoch", "observed_rows", "updated_at_ms"},
	"sync_writer_fence":         {"partition", "required_writer_version"},
}

// catalogColumns tell our tables from those of another program that have their names.
var catalogColumns = map[string][]string{
	"sync_barrier_history":      {"version", "content_hash", "entries"},
	"sync_barrier_owner":        {"id", "protocol", "revision", "system_identifier"},
	"sync_backfill_definitions": {"name", "version", "hash", "definition", "settings"},
	"sync_backfill_progress":    {"checkpoint", "kind", "partition", "claim_token", "owner_epoch"},
	"sync_backfill_leftovers":   {"checkpoint", "partition", "row_key"},
	"sync_barrier_replaced":     {"tbl", "row_key", "first_value", "second_value"},
}

// installCatalog makes what is missing of the catalog, and with it the fence and the guards, in the caller's transaction. It is for a
// database without our catalog, or with an older one; the caller writes the owner, which holds the catalog's number.
func installCatalog(ctx context.Context, q querier, objects schemaObjects) (int, error) {
	statements := 0
	if objects.isTable("sync_commits") && !slices.Contains(objects.columns["sync_commits"], "writer_version") {
		if _, err := q.ExecContext(ctx, addWriterVersion); err != nil {
			return 0, translate(err, "add writer_version to sync_commits")
		}
		statements++
	}
	for _, statement := range catalogStatements {
		if _, err := q.ExecContext(ctx, statement); err != nil {
			return 0, translate(err, "install the catalog")
		}
		statements++
	}
	// The row must stand before the triggers that refuse everything without it. 0 is no limit.
	if _, err := q.ExecContext(ctx, `
		INSERT INTO sync_writer_fence(partition, required_writer_version)
		SELECT '*', 0
		WHERE NOT EXISTS (SELECT 1 FROM sync_writer_fence WHERE partition = '*')`); err != nil {
		return 0, translate(err, "install the fence")
	}
	installed, err := installTriggers(ctx, q, nil)
	return statements + 1 + len(installed), err
}

// schemaObjects is what sqlite_master holds. Names compare as SQLite compares them: without regard to the case of ASCII letters.
type schemaObjects struct {
	kinds   map[string]string   // folded name to type: table, view, index, trigger
	names   map[string]string   // folded name to the name as it stands
	sql     map[string]string   // folded name to the text that made it
	columns map[string][]string // folded names of the sync protocol's tables to their columns
}

// hasVersions says whether commits have a column for the writer version.
func (o schemaObjects) hasVersions() bool {
	return slices.Contains(o.columns["sync_commits"], "writer_version")
}

func (o schemaObjects) isTable(name string) bool { return o.kinds[fold(name)] == "table" }

// fold is the form in which SQLite compares names.
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'A' && r <= 'Z' {
			return r + ('a' - 'A')
		}
		return r
	}, name)
}

// readObjects reads what there is, and refuses tables that only have the names of the sync protocol's or ours. CodeLayoutMismatch.
func readObjects(ctx context.Context, q querier) (schemaObjects, error) {
	objects := schemaObjects{kinds: map[string]string{}, names: map[string]string{}, sql: map[string]string{}, columns: map[string][]string{}}
	rows, err := q.QueryContext(ctx, `
		SELECT type, name, coalesce(sql, '')
		FROM sqlite_master`)
	if err != nil {
		return objects, translate(err, "read the schema")
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var kind, name, text string
		if err := rows.Scan(&kind, &name, &text); err != nil {
			return objects, translate(err, "read the schema")
		}
		if !strings.HasPrefix(fold(name), "sqlite_") && (kind == "table" || kind == "view") && storage.IsSQLiteName(name) {
			return objects, storage.Refuse(storage.CodeInvalidSpec, "the %s %q stands in for a function of SQLite's own that Syncbarrier needs", kind, name).
				WithHint("rename it")
		}
		objects.kinds[fold(name)], objects.names[fold(name)], objects.sql[fold(name)] = kind, name, text
	}
	if err := rows.Err(); err != nil {
		return objects, translate(err, "read the schema")
	}
	if err := objects.checkTables(ctx, q, protocolColumns, "the sync protocol"); err != nil {
		return objects, err
	}
	return objects, objects.checkTables(ctx, q, catalogColumns, "Syncbarrier")
}

// checkTables compares tables by the names of columns that they must have. whose says who else would have made them.
func (o schemaObjects) checkTables(ctx context.Context, q querier, wanted map[string][]string, whose string) error {
	for _, table := range sortedKeys(wanted) {
		kind, exists := o.kinds[table]
		if !exists {
			continue
		}
		if kind != "table" {
			return storage.Refuse(storage.CodeLayoutMismatch, "%s is a %s; in %s it is a table", table, kind, whose)
		}
		columns, err := readColumnNames(ctx, q, table)
		if err != nil {
			return err
		}
		o.columns[table] = columns
		for _, column := range wanted[table] {
			if !slices.Contains(columns, column) {
				return storage.Refuse(storage.CodeLayoutMismatch, "the table %s has no column %q, so it is not the one of %s", table, column, whose).
					WithHint("tables that begin with sync_ belong to the sync protocol and to Syncbarrier; keep this program's tables in another file")
			}
		}
	}
	return nil
}

// readColumnNames gives the folded names of a table's columns.
func readColumnNames(ctx context.Context, q querier, table string) ([]string, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT name
		FROM pragma_table_xinfo(?)
		ORDER BY cid`, table)
	if err != nil {
		return nil, translate(err, "read the columns of "+table)
	}
	defer func() { _ = rows.Close() }()
	var columns []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, translate(err, "read the columns of "+table)
		}
		columns = append(columns, fold(name))
	}
	return columns, translate(rows.Err(), "read the columns of "+table)
}

// sortedKeys gives the keys of a map in order, so that what is done for each is done in the same order every time.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// countOf runs a query for one number.
func countOf(ctx context.Context, q querier, what, query string, arguments ...any) (int64, error) {
	var count int64
	err := q.QueryRowContext(ctx, query, arguments...).Scan(&count)
	return count, translate(err, fmt.Sprintf("count %s", what))
}
