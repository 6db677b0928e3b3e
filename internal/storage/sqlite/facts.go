package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// maxOpenPartitions bounds how many partitions of an open checkpoint are named.
const maxOpenPartitions = 1000

// readFacts reads everything a decision needs, in the caller's transaction: under the write lock for a barrier, in one snapshot for a
// plan. A database without our catalog, or with some tables of the sync protocol only, is a fact like any other.
func readFacts(ctx context.Context, q querier, objects schemaObjects, target storage.Target) (storage.Facts, error) {
	f := &factReader{ctx: ctx, q: q, objects: objects, target: target}
	f.facts = storage.Facts{
		Dialect: storage.SQLite, Known: map[string]storage.KnownCheckpoint{},
		Tables: map[string]storage.PhysicalTable{}, CanonicalTypes: map[string]string{},
	}
	if err := f.readCatalog(); err != nil || f.facts.Protocol > storage.CatalogProtocol {
		return f.facts, err // the tables of a newer catalog may mean something else
	}
	for _, read := range []func() error{
		f.readMarker, f.readHistory, f.readDefinitions, f.readAbandoned, f.readCheckpoints, f.readOpen, f.readReserved, f.respell, f.readTables,
	} {
		if err := read(); err != nil {
			return storage.Facts{}, err
		}
	}
	for _, t := range target.Tables {
		for _, c := range t.Columns {
			if c.SQLType != "" && isType(c.SQLType) {
				f.facts.CanonicalTypes[c.SQLType] = canonicalType(c.SQLType)
			}
		}
	}
	return f.facts, nil
}

type factReader struct {
	ctx     context.Context
	q       querier
	objects schemaObjects
	target  storage.Target
	facts   storage.Facts
}

// each runs a query and hands each of its rows to scan.
func (f *factReader) each(what, query string, scan func(scan func(...any) error) error, arguments ...any) error {
	rows, err := f.q.QueryContext(f.ctx, query, arguments...)
	if err != nil {
		return translate(err, what)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := scan(rows.Scan); err != nil {
			return translate(err, what)
		}
	}
	return translate(rows.Err(), what)
}

func (f *factReader) readCatalog() error {
	recorded, err := readOwner(f.ctx, f.q, f.objects)
	f.facts.Owner, f.facts.Protocol = recorded.owner, recorded.protocol
	return err
}

func (f *factReader) readMarker() error {
	if f.facts.Protocol > 0 {
		fence, _, err := readFence(f.ctx, f.q)
		if err != nil {
			return err
		}
		f.facts.Fence = fence
	}
	marker, err := readMarker(f.ctx, f.q, f.objects)
	f.facts.Marker = marker
	return err
}

// readMarker gives the row of sync_schema_meta, nil if there is none.
func readMarker(ctx context.Context, q querier, objects schemaObjects) (*storage.Marker, error) {
	if !objects.isTable("sync_schema_meta") {
		return nil, nil
	}
	var marker storage.Marker
	var layouts string
	err := q.QueryRowContext(ctx, `
		SELECT schema_version, layouts
		FROM sync_schema_meta
		WHERE id = 1`).Scan(&marker.Version, &layouts)
	if noRows(err) {
		return nil, nil
	}
	if err != nil {
		return nil, translate(err, "read sync_schema_meta")
	}
	marker.Layouts, err = storage.DecodeLayouts(layouts)
	return &marker, err
}

func (f *factReader) readHistory() error {
	history, err := readHistory(f.ctx, f.q, f.objects)
	f.facts.History = history
	for _, row := range history {
		for name, entry := range row.Entries.Checkpoints {
			f.facts.Known[name] = storage.KnownCheckpoint{Version: row.Version, Hash: entry.Hash, Abandoned: entry.Abandoned != ""}
		}
	}
	return err
}

func (f *factReader) readDefinitions() error {
	if !f.objects.isTable("sync_backfill_definitions") {
		return nil
	}
	return f.each("read the definitions of checkpoints", `
		SELECT name, version, hash, definition, settings
		FROM sync_backfill_definitions`, func(scan func(...any) error) error {
		var name, hash, text, settings string
		var version int64
		if err := scan(&name, &version, &hash, &text, &settings); err != nil {
			return err
		}
		definition, err := storage.DecodeDefinition(name, version, hash, text, settings)
		if err != nil {
			return err
		}
		known := f.facts.Known[name]
		known.Version, known.Hash, known.Tables = version, hash, tablesOf(definition.Checkpoint)
		f.facts.Known[name] = known
		return nil
	})
}

// tablesOf are the tables that a checkpoint needs.
func tablesOf(c storage.Checkpoint) []string {
	var names []string
	if table := c.Backfill.Table(); table != "" {
		names = append(names, table)
	}
	for _, source := range c.Sources {
		if !slices.Contains(names, source.Table) {
			names = append(names, source.Table)
		}
	}
	return names
}

// readAbandoned: the names of abandoned checkpoints stay used, also where no version's history has them.
func (f *factReader) readAbandoned() error {
	if !f.objects.isTable("sync_backfill_progress") {
		return nil
	}
	return f.each("read abandoned checkpoints", `
		SELECT DISTINCT checkpoint
		FROM sync_backfill_progress
		WHERE kind = 'abandoned'`, func(scan func(...any) error) error {
		var name string
		if err := scan(&name); err != nil {
			return err
		}
		known := f.facts.Known[name]
		known.Abandoned = true
		f.facts.Known[name] = known
		return nil
	})
}

// readCheckpoints adds the names that another program declared, which have rows but no definition. It steps from name to name through the
// index instead of reading every partition's row: a file can have 100,000 of them.
func (f *factReader) readCheckpoints() error {
	if !f.objects.isTable("sync_backfill_checkpoints") {
		return nil
	}
	return f.each("read checkpoint names", `
		WITH RECURSIVE names(name) AS (
		  SELECT min(name)
		  FROM sync_backfill_checkpoints
		  UNION ALL
		  SELECT (
		    SELECT min(c.name)
		    FROM sync_backfill_checkpoints AS c
		    WHERE c.name > names.name
		  )
		  FROM names
		  WHERE name IS NOT NULL
		)
		SELECT name, (
		  SELECT max(c.schema_version)
		  FROM sync_backfill_checkpoints AS c
		  WHERE c.name = names.name
		)
		FROM names
		WHERE name IS NOT NULL`, func(scan func(...any) error) error {
		var name string
		var version int64
		if err := scan(&name, &version); err != nil {
			return err
		}
		known, ok := f.facts.Known[name]
		if !ok || known.Hash == "" && !known.Abandoned {
			known.Version = version
		}
		f.facts.Known[name] = known
		return nil
	})
}

// readOpen finds the checkpoints with rows that are not activated.
func (f *factReader) readOpen() error {
	if !f.objects.isTable("sync_backfill_checkpoints") {
		return nil
	}
	err := f.each("read open checkpoints", `
		SELECT DISTINCT name, schema_version
		FROM sync_backfill_checkpoints
		WHERE state <> 'activated'
		ORDER BY schema_version, name`, func(scan func(...any) error) error {
		var open storage.OpenCheckpoint
		if err := scan(&open.Name, &open.Version); err != nil {
			return err
		}
		f.facts.Open = append(f.facts.Open, open)
		known := f.facts.Known[open.Name]
		known.Open = true
		f.facts.Known[open.Name] = known
		return nil
	})
	for i := range f.facts.Open {
		if err == nil {
			err = f.readOpenPartitions(&f.facts.Open[i])
		}
	}
	return err
}

// readOpenPartitions takes those partitions first that the target does not list, so that the limit never hides one.
func (f *factReader) readOpenPartitions(open *storage.OpenCheckpoint) error {
	listed := []string{}
	for _, declared := range f.target.Checkpoints {
		if declared.Name == open.Name {
			listed = append(listed, declared.Partitions...)
		}
	}
	list, err := json.Marshal(listed)
	if err != nil {
		return fmt.Errorf("encode the partitions of checkpoint %q: %w", open.Name, err)
	}
	return f.each("read the open partitions of checkpoint "+open.Name, `
		SELECT partition
		FROM sync_backfill_checkpoints
		WHERE name = ?
		  AND schema_version = ?
		  AND state <> 'activated'
		ORDER BY partition IN (SELECT value FROM json_each(?)), partition
		LIMIT ?`, func(scan func(...any) error) error {
		var partition string
		if err := scan(&partition); err != nil {
			return err
		}
		open.Partitions = append(open.Partitions, partition)
		return nil
	}, open.Name, open.Version, string(list), maxOpenPartitions)
}

// readReserved looks for partition keys that are ours in a database that is not: they would mean something else from now on.
func (f *factReader) readReserved() error {
	if f.facts.Protocol > 0 {
		return nil
	}
	for _, table := range []string{"sync_partitions", "sync_partition_registry", "sync_commits", "sync_writer_fence", "sync_backfill_checkpoints"} {
		if !f.objects.isTable(table) {
			continue
		}
		err := f.each("look for reserved partition keys in "+table, fmt.Sprintf(`
			SELECT DISTINCT partition
			FROM %s
			WHERE partition = ?
			   OR (partition >= ? AND partition < ?)
			ORDER BY partition
			LIMIT 10`, table), func(scan func(...any) error) error {
			var partition string
			if err := scan(&partition); err != nil {
				return err
			}
			f.facts.Reserved = append(f.facts.Reserved, partition)
			return nil
		}, storage.AllPartitions, storage.CapturePrefix, afterCapturePrefix)
		if err != nil {
			return err
		}
	}
	return nil
}

// afterCapturePrefix is the first text after all that begin with storage.CapturePrefix: ';' follows ':'.
const afterCapturePrefix = "capture;"

// respell gives tables that were recorded in the case in which the target writes them. They are the same tables, and decisions compare names
// byte for byte: a retired TODOS would not be the todos that an open checkpoint needs.
func (f *factReader) respell() error {
	names := slices.Clone(f.target.RetiredTables)
	for _, t := range f.target.Tables {
		names = append(names, t.Name)
	}
	spelled := spelling{}
	for _, name := range names {
		if other, taken := spelled[fold(name)]; taken && other != name {
			return storage.Refuse(storage.CodeInvalidSpec, "tables: %q and %q are one table in SQLite, which does not tell case apart", other, name)
		}
		spelled[fold(name)] = name
	}
	if f.facts.Marker != nil {
		f.facts.Marker.Layouts = respelled(spelled, f.facts.Marker.Layouts)
	}
	for i := range f.facts.History {
		f.facts.History[i].PlainLayouts = respelled(spelled, f.facts.History[i].PlainLayouts)
	}
	for _, known := range f.facts.Known {
		for i, name := range known.Tables {
			known.Tables[i] = spelled.of(name)
		}
	}
	return nil
}

func respelled[V any](spelled spelling, recorded map[string]V) map[string]V {
	out := make(map[string]V, len(recorded))
	for name, value := range recorded {
		out[spelled.of(name)] = value
	}
	return out
}

// readTables reads the tables that target and stored layouts name.
func (f *factReader) readTables() error {
	names := map[string]storage.Table{}
	for _, t := range f.target.Tables {
		names[t.Name] = t
	}
	for _, name := range f.namedOnly() {
		if _, declared := names[name]; !declared {
			names[name] = storage.Table{Name: name}
		}
	}
	for _, name := range sortedKeys(names) {
		if _, exists := f.objects.kinds[fold(name)]; !exists {
			continue
		}
		physical, err := readTable(f.ctx, f.q, f.objects, name, names[name])
		if err != nil {
			return err
		}
		f.facts.Tables[name] = physical
	}
	return nil
}

// namedOnly gives the tables that are named without being declared: retired ones, and those of the stored layouts.
func (f *factReader) namedOnly() []string {
	names := slices.Clone(f.target.RetiredTables)
	if f.facts.Marker != nil {
		names = append(names, sortedKeys(f.facts.Marker.Layouts)...)
	}
	return names
}
