package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// weakFence is the fence of one partition that is missing or lower than a checkpoint over its log requires.
type weakFence struct {
	partition string
	stored    *int64 // nil: it has no row
	required  int64
}

// weakFences finds them by the definitions that list partitions, sorted. What the fence for all partitions says already needs no row
// (docs/design.md section 3, "Fence").
func (s *Store) weakFences(ctx context.Context, q querier, found foundCatalog) ([]weakFence, error) {
	if !found.readable("sync_writer_fence") || !found.readable("sync_backfill_definitions") {
		return nil, nil // which is a finding of its own
	}
	required, err := s.requiredOfPartitions(ctx, q)
	if err != nil || len(required) == 0 {
		return nil, err
	}
	const what = "read the fences of single partitions"
	partitions := slices.Sorted(maps.Keys(required))
	rows, err := q.Query(ctx, s.sql(`
		SELECT partition, required_writer_version::bigint
		  FROM {schema}.sync_writer_fence
		 WHERE partition = ANY($1::text[])`), partitions)
	if err != nil {
		return nil, translate(err, what)
	}
	stored := map[string]int64{}
	var partition string
	var version int64
	if _, err = pgx.ForEachRow(rows, []any{&partition, &version}, func() error {
		stored[partition] = version
		return nil
	}); err != nil {
		return nil, translate(err, what)
	}
	var weak []weakFence
	for _, partition := range partitions {
		version, exists := stored[partition]
		switch {
		case required[partition] <= found.required() || exists && version >= required[partition]:
		case exists:
			weak = append(weak, weakFence{partition, &version, required[partition]})
		default:
			weak = append(weak, weakFence{partition, nil, required[partition]})
		}
	}
	return weak, nil
}

// requiredOfPartitions gives the highest version of the checkpoints that list a partition. A captured source is fenced for all.
func (s *Store) requiredOfPartitions(ctx context.Context, q querier) (map[string]int64, error) {
	const what = "read the definitions of checkpoints"
	rows, err := q.Query(ctx, s.sql(`
		SELECT name, version::bigint, hash, definition, settings
		  FROM {schema}.sync_backfill_definitions`))
	if err != nil {
		return nil, translate(err, what)
	}
	required := map[string]int64{}
	var name, hash, text, settings string
	var version int64
	_, err = pgx.ForEachRow(rows, []any{&name, &version, &hash, &text, &settings}, func() error {
		definition, err := storage.DecodeDefinition(name, version, hash, text, settings)
		if err != nil {
			return err
		}
		captured := func(source storage.Source) bool { return source.Changes == storage.Capture }
		if slices.ContainsFunc(definition.Checkpoint.Sources, captured) {
			return nil
		}
		for _, partition := range definition.Checkpoint.Partitions {
			required[partition] = max(required[partition], version)
		}
		return nil
	})
	return required, translate(err, what)
}

func (s *Store) fenceRow(partition string) string {
	return fmt.Sprintf("row %q of %s", partition, s.named("sync_writer_fence"))
}

func (s *Store) partitionFindings(ctx context.Context, q querier, found foundCatalog) ([]storage.FenceFinding, error) {
	weak, err := s.weakFences(ctx, q, found)
	var findings []storage.FenceFinding
	for _, fence := range weak {
		problem := fmt.Sprintf("is missing, required is version %d", fence.required)
		if fence.stored != nil {
			problem = fmt.Sprintf("says version %d, required is %d", *fence.stored, fence.required)
		}
		findings = append(findings, storage.FenceFinding{Object: s.fenceRow(fence.partition), Problem: problem, Repairable: true})
	}
	return findings, err
}

// repairPartitions puts the fences of single partitions back.
func (s *Store) repairPartitions(ctx context.Context, tx pgx.Tx, found foundCatalog) ([]string, error) {
	weak, err := s.weakFences(ctx, tx, found)
	if err != nil {
		return nil, err
	}
	var repaired []string
	for _, fence := range weak {
		if err := s.writeMinimum(ctx, tx, fence.partition, fence.required); err != nil {
			return nil, lockError(err, fmt.Sprintf("write the fence of partition %q", fence.partition), "sync_writer_fence")
		}
		repaired = append(repaired, s.fenceRow(fence.partition))
	}
	return repaired, nil
}

// versionFindings: without the column, or with one that holds no numbers, the fence's function fails for every writer. Nobody but a
// person knows where the versions went.
func (s *Store) versionFindings(found foundCatalog) []storage.FenceFinding {
	if !found.hasTable("sync_commits") || found.countable {
		return nil
	}
	finding := storage.FenceFinding{Object: "column writer_version of " + s.named("sync_commits"), Problem: "is missing, so the fence cannot judge a commit"}
	if found.version {
		finding.Problem = "is of another type than bigint, so the fence cannot judge a commit"
	}
	return []storage.FenceFinding{finding}
}

// markerFindings: a marker below the history was taken back past its guard.
func (s *Store) markerFindings(ctx context.Context, q querier, found foundCatalog) ([]storage.FenceFinding, error) {
	if !found.readable("sync_schema_meta") || !found.readable("sync_barrier_history") {
		return nil, nil
	}
	var marker, newest *int64
	err := q.QueryRow(ctx, s.sql(`
		SELECT (SELECT schema_version FROM {schema}.sync_schema_meta WHERE id = 1),
		       (SELECT max(version) FROM {schema}.sync_barrier_history)`)).Scan(&marker, &newest)
	if err != nil || marker == nil || newest == nil || *marker >= *newest {
		return nil, translate(err, "compare the marker with the history")
	}
	return []storage.FenceFinding{{
		Object:  "marker in " + s.named("sync_schema_meta"),
		Problem: fmt.Sprintf("says version %d, but the barrier of version %d was committed: somebody took it back", *marker, *newest),
	}}, nil
}
