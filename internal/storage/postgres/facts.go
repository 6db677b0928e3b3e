package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// readFacts reads all that a decision depends on. It works without a catalog, and stops at a newer one, whose tables may mean
// something else. A barrier calls it under its locks; a plan inside one snapshot. types are the canonical types of the target
// (canonicalTypes), which cannot be read in the same transaction.
func (s *Store) readFacts(ctx context.Context, q querier, target storage.Target, types map[string]string) (storage.Facts, error) {
	r := factsReader{store: s, q: q, target: target, facts: storage.Facts{
		Dialect: storage.PostgreSQL, CanonicalTypes: types, Known: map[string]storage.KnownCheckpoint{},
	}}
	if err := r.readCatalog(ctx); err != nil {
		return storage.Facts{}, err
	}
	if r.facts.Protocol > storage.CatalogProtocol {
		return r.facts, nil
	}
	for _, read := range []func(context.Context) error{
		r.readMarker, r.readHistory, r.readDefinitions, r.readAbandoned, r.readCheckpointNames, r.readOpen, r.readFence, r.readReserved, r.readTables,
	} {
		if err := read(ctx); err != nil {
			return storage.Facts{}, err
		}
	}
	return r.facts, nil
}

type factsReader struct {
	store  *Store
	q      querier
	target storage.Target
	exists map[string]bool // which of the catalog's tables are there
	facts  storage.Facts
}

// readCatalog finds out which tables there are, the number of the catalog, and the owner.
func (r *factsReader) readCatalog(ctx context.Context) error {
	rows, err := r.q.Query(ctx, `
		SELECT c.relname::text
		  FROM pg_catalog.pg_class c
		  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
		 WHERE n.nspname = $1::text
		   AND c.relname LIKE 'sync\_%'
		   AND c.relkind IN ('r', 'p')`, r.store.schemaName)
	if err != nil {
		return fmt.Errorf("look for the catalog: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for the catalog: %w", err)
	}
	r.exists = map[string]bool{}
	for _, name := range names {
		r.exists[name] = true
	}
	if !r.exists["sync_barrier_owner"] {
		return nil
	}
	var owner storage.Owner
	err = r.q.QueryRow(ctx, r.store.sql(`
		SELECT protocol, cluster, namespace, name, uid
		  FROM {schema}.sync_barrier_owner
		 WHERE id = 1`)).Scan(&r.facts.Protocol, &owner.Cluster, &owner.Namespace, &owner.Name, &owner.UID)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the owner: %w", err)
	}
	if owner.Name != "" {
		r.facts.Owner = &owner
	}
	return nil
}

func (r *factsReader) readMarker(ctx context.Context) error {
	if !r.exists["sync_schema_meta"] {
		return nil
	}
	var marker storage.Marker
	var layouts string
	err := r.q.QueryRow(ctx, r.store.sql(`
		SELECT schema_version, layouts
		  FROM {schema}.sync_schema_meta
		 WHERE id = 1`)).Scan(&marker.Version, &layouts)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the marker: %w", err)
	}
	if marker.Layouts, err = storage.DecodeLayouts(layouts); err != nil {
		return err
	}
	r.facts.Marker = &marker
	return nil
}

func (r *factsReader) readHistory(ctx context.Context) error {
	if !r.exists["sync_barrier_history"] {
		return nil
	}
	history, err := r.store.readHistory(ctx, r.q)
	if err != nil {
		return err
	}
	r.facts.History = history
	for _, row := range history {
		for name, entry := range row.Entries.Checkpoints {
			r.facts.Known[name] = storage.KnownCheckpoint{Version: row.Version, Hash: entry.Hash, Abandoned: entry.Abandoned != ""}
		}
	}
	return nil
}

func (r *factsReader) readDefinitions(ctx context.Context) error {
	if !r.exists["sync_backfill_definitions"] {
		return nil
	}
	rows, err := r.q.Query(ctx, r.store.sql(`
		SELECT name, version, hash, definition, settings
		  FROM {schema}.sync_backfill_definitions`))
	if err != nil {
		return fmt.Errorf("read definitions: %w", err)
	}
	var name, hash, text, settings string
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&name, &version, &hash, &text, &settings}, func() error {
		definition, err := storage.DecodeDefinition(name, version, hash, text, settings)
		if err != nil {
			return err
		}
		known := r.facts.Known[name]
		known.Version, known.Hash, known.Tables = version, hash, tablesOf(definition.Checkpoint)
		r.facts.Known[name] = known
		return nil
	})
	if err != nil {
		return fmt.Errorf("read definitions: %w", err)
	}
	return nil
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
func (r *factsReader) readAbandoned(ctx context.Context) error {
	if !r.exists["sync_backfill_progress"] {
		return nil
	}
	rows, err := r.q.Query(ctx, r.store.sql(`
		SELECT DISTINCT checkpoint
		  FROM {schema}.sync_backfill_progress
		 WHERE kind = 'abandoned'`))
	if err != nil {
		return fmt.Errorf("read abandoned checkpoints: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("read abandoned checkpoints: %w", err)
	}
	for _, name := range names {
		known := r.facts.Known[name]
		known.Abandoned = true
		r.facts.Known[name] = known
	}
	return nil
}

// readCheckpointNames adds the names that another program declared, which have rows but no definition. It steps from name to name through the index
// instead of reading every partition's row: a database can have 100,000 of them.
func (r *factsReader) readCheckpointNames(ctx context.Context) error {
	if !r.exists["sync_backfill_checkpoints"] {
		return nil
	}
	rows, err := r.q.Query(ctx, r.store.sql(`
		WITH RECURSIVE names(name, schema_version) AS (
		  (SELECT name, schema_version
		     FROM {schema}.sync_backfill_checkpoints
		    ORDER BY name, schema_version
		    LIMIT 1)
		  UNION ALL
		  SELECT following.name, following.schema_version
		    FROM names
		   CROSS JOIN LATERAL (
		     SELECT c.name, c.schema_version
		       FROM {schema}.sync_backfill_checkpoints c
		      WHERE (c.name, c.schema_version) > (names.name, names.schema_version)
		      ORDER BY c.name, c.schema_version
		      LIMIT 1) following
		)
		SELECT name, schema_version
		  FROM names
		 ORDER BY name, schema_version DESC`))
	if err != nil {
		return fmt.Errorf("read checkpoint names: %w", err)
	}
	var name string
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&name, &version}, func() error {
		known, ok := r.facts.Known[name]
		if !ok || known.Hash == "" && !known.Abandoned {
			known.Version = version
		}
		r.facts.Known[name] = known
		return nil
	})
	if err != nil {
		return fmt.Errorf("read checkpoint names: %w", err)
	}
	return nil
}

// readOpen finds the checkpoints with rows that are not activated, by the partial index. Of each it takes those partitions first that the
// target does not list, so that the limit never hides one.
func (r *factsReader) readOpen(ctx context.Context) error {
	if !r.exists["sync_backfill_checkpoints"] {
		return nil
	}
	rows, err := r.q.Query(ctx, r.store.sql(`
		SELECT DISTINCT name, schema_version
		  FROM {schema}.sync_backfill_checkpoints
		 WHERE state <> 'activated'
		 ORDER BY schema_version, name`))
	if err != nil {
		return fmt.Errorf("read open checkpoints: %w", err)
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (storage.OpenCheckpoint, error) {
		var c storage.OpenCheckpoint
		return c, row.Scan(&c.Name, &c.Version)
	})
	if err != nil {
		return fmt.Errorf("read open checkpoints: %w", err)
	}
	for _, c := range open {
		if c.Partitions, err = r.openPartitions(ctx, c); err != nil {
			return fmt.Errorf("read the open partitions of checkpoint %q: %w", c.Name, err)
		}
		r.facts.Open = append(r.facts.Open, c)
		known := r.facts.Known[c.Name]
		known.Open = true
		r.facts.Known[c.Name] = known
	}
	return nil
}

func (r *factsReader) openPartitions(ctx context.Context, c storage.OpenCheckpoint) ([]string, error) {
	listed := []string{}
	for _, declared := range r.target.Checkpoints {
		if declared.Name == c.Name {
			listed = append(listed, declared.Partitions...)
		}
	}
	rows, err := r.q.Query(ctx, r.store.sql(`
		SELECT partition
		  FROM {schema}.sync_backfill_checkpoints
		 WHERE state <> 'activated'
		   AND name = $1::text
		   AND schema_version = $2::bigint
		 ORDER BY partition = ANY ($3::text[]), partition
		 LIMIT 1000`), c.Name, c.Version, listed)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func (r *factsReader) readFence(ctx context.Context) error {
	if r.facts.Protocol == 0 || !r.exists["sync_writer_fence"] {
		return nil
	}
	err := r.q.QueryRow(ctx, r.store.sql(`
		SELECT coalesce(max(required_writer_version), 0)
		  FROM {schema}.sync_writer_fence
		 WHERE partition = $1::text`), storage.AllPartitions).Scan(&r.facts.Fence)
	if err != nil {
		return fmt.Errorf("read the fence: %w", err)
	}
	return nil
}

// readReserved looks for keys that are ours in a database that another program made.
func (r *factsReader) readReserved(ctx context.Context) error {
	if r.facts.Protocol != 0 {
		return nil
	}
	for _, table := range []string{"sync_partitions", "sync_writer_fence", "sync_backfill_checkpoints"} {
		if !r.exists[table] {
			continue
		}
		rows, err := r.q.Query(ctx, r.store.sql(`
			SELECT DISTINCT partition
			  FROM {schema}.{table}
			 WHERE partition = $1::text
			    OR partition LIKE $2::text
			 ORDER BY partition
			 LIMIT 10`, "table", table), storage.AllPartitions, storage.CapturePrefix+"%")
		if err != nil {
			return fmt.Errorf("look for reserved partition keys in %s: %w", table, err)
		}
		reserved, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return fmt.Errorf("look for reserved partition keys in %s: %w", table, err)
		}
		r.facts.Reserved = append(r.facts.Reserved, reserved...)
	}
	return nil
}

// readTables reads the physical tables among those that the target, its retired tables and the stored layouts name.
func (r *factsReader) readTables(ctx context.Context) error {
	names := slices.Clone(r.target.RetiredTables)
	for _, t := range r.target.Tables {
		names = append(names, t.Name)
	}
	if r.facts.Marker != nil {
		for name := range r.facts.Marker.Layouts {
			names = append(names, name)
		}
	}
	tables, err := r.store.physicalTables(ctx, r.q, names)
	if err != nil {
		return err
	}
	for _, t := range r.target.Tables {
		table, exists := tables[t.Name]
		if !exists || !needsRowCheck(t, table) {
			continue
		}
		err := r.q.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+r.store.tableSQL(t.Name)+")").Scan(&table.HasRows)
		if err != nil {
			return fmt.Errorf("look for rows in table %q: %w", t.Name, err)
		}
		tables[t.Name] = table
	}
	r.facts.Tables = tables
	return nil
}

// needsRowCheck: whether a table has rows matters only where a column is missing that may not be NULL.
func needsRowCheck(t storage.Table, physical storage.PhysicalTable) bool {
	return slices.ContainsFunc(t.Columns, func(c storage.Column) bool {
		return !c.Nullable && !slices.ContainsFunc(physical.Columns, func(have storage.PhysicalColumn) bool { return have.Name == c.Name })
	})
}

// decodeJSON reads a JSON text of the catalog. what names it in the error.
func decodeJSON(text, what string, into any) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return &storage.Error{Code: storage.CodeContentDrift, Message: what + " is not what Syncbarrier wrote", Err: err}
	}
	return nil
}
