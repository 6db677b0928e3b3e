package postgres

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// addGotIn counts the commits that were stored below the fence after it was raised.
func (s *Store) addGotIn(ctx context.Context, q querier, found foundCatalog, report *storage.FenceReport) error {
	const most = 10
	for _, table := range []string{"sync_barrier_history", "sync_writer_fence", "sync_commits"} {
		if !found.readable(table) {
			return nil // which is a finding of its own
		}
	}
	if !found.countable {
		return nil
	}
	floors, incomplete, err := s.raisedFloors(ctx, q)
	if err != nil || len(floors) == 0 {
		return err
	}
	counts, err := s.countBelow(ctx, q, floors, !incomplete)
	if err != nil {
		return err
	}
	for i, partition := range slices.Sorted(maps.Keys(counts)) {
		report.GotIn += counts[partition]
		if i < most {
			report.Findings = append(report.Findings, storage.FenceFinding{
				Object:  fmt.Sprintf("partition %q of %s", partition, s.named("sync_commits")),
				Problem: fmt.Sprintf("has %d commits that were stored below the fence after it was raised", counts[partition]),
				Rows:    counts[partition],
			})
		}
	}
	return nil
}

// raisedFloor is where the log of a partition stood when a minimum was set. The minimum is the highest that this raise can have set; the
// partition's own fence says what it was.
type raisedFloor struct{ position, minimum int64 }

// raisedFloors reads the raises that are in force: the newest for all partitions, and each partition's own newest. incomplete says that
// there were too many partitions to note each position at the raise for all.
func (s *Store) raisedFloors(ctx context.Context, q querier) (floors map[string]raisedFloor, incomplete bool, err error) {
	rows, err := q.Query(ctx, s.sql(`
		SELECT version, min_writer_version, raised
		  FROM {schema}.sync_barrier_history
		 ORDER BY version`))
	if err != nil {
		return nil, false, translate(err, "read the raises of the fence")
	}
	floors = map[string]raisedFloor{}
	var version, minimum int64
	var text string
	_, err = pgx.ForEachRow(rows, []any{&version, &minimum, &text}, func() error {
		raised := map[string]int64{}
		if err := json.Unmarshal([]byte(text), &raised); err != nil {
			return fmt.Errorf("raises of version %d: %w", version, err)
		}
		total, forAll := raised[storage.AllPartitions]
		delete(raised, storage.AllPartitions)
		if forAll {
			floors = map[string]raisedFloor{storage.AllPartitions: {minimum: minimum}}
			for partition, position := range raised {
				if partition != storage.CapturePrefix {
					total -= position
				}
			}
			incomplete = total != 0
		}
		for partition, position := range raised {
			floors[partition] = raisedFloor{position: position, minimum: max(version, minimum)}
		}
		return nil
	})
	return floors, incomplete, translate(err, "read the raises of the fence")
}

// countBelow counts per partition. others asks for the partitions that are not in floors too: they came after the raise for all, so all
// their commits count.
func (s *Store) countBelow(ctx context.Context, q querier, floors map[string]raisedFloor, others bool) (map[string]int64, error) {
	partitions, positions, minimums := []string{}, []int64{}, []int64{} // empty arrays, not NULL
	for _, partition := range slices.Sorted(maps.Keys(floors)) {
		if partition == storage.AllPartitions || partition == storage.CapturePrefix {
			continue
		}
		partitions = append(partitions, partition)
		positions = append(positions, floors[partition].position)
		minimums = append(minimums, floors[partition].minimum)
	}
	forAll, raisedForAll := floors[storage.AllPartitions]
	captured, anyCaptured := floors[storage.CapturePrefix]
	rows, err := q.Query(ctx, s.sql(`
		SELECT f.partition, count(*)
		  FROM (
			SELECT f.partition, f.position, least(f.minimum, greatest($4::bigint, w.required_writer_version)) AS minimum
			  FROM unnest($1::text[], $2::bigint[], $3::bigint[]) AS f(partition, position, minimum)
			  LEFT JOIN {schema}.sync_writer_fence AS w ON w.partition = f.partition
		       ) AS f
		  JOIN {schema}.sync_commits AS c
		    ON c.partition = f.partition
		   AND c.commit_seq > f.position
		 WHERE coalesce(c.writer_version < f.minimum, f.minimum > 0)
		 GROUP BY f.partition
		UNION ALL
		SELECT c.partition, count(*)
		  FROM {schema}.sync_commits AS c
		 WHERE $5::boolean
		   AND c.partition <> ALL ($1::text[])
		   AND c.partition <> '*'
		   AND NOT starts_with(c.partition, 'capture:')
		   AND coalesce(c.writer_version < $4::bigint, $4::bigint > 0)
		 GROUP BY c.partition
		UNION ALL
		SELECT c.partition, count(*)
		  FROM {schema}.sync_commits AS c
		 WHERE $6::boolean
		   AND (c.partition = '*' OR starts_with(c.partition, 'capture:'))
		   AND c.commit_seq > $7::bigint
		   AND coalesce(c.writer_version < $4::bigint, $4::bigint > 0)
		 GROUP BY c.partition`), partitions, positions, minimums, forAll.minimum, others && raisedForAll, anyCaptured && raisedForAll, captured.position)
	if err != nil {
		return nil, translate(err, "count the commits below the fence")
	}
	counts := map[string]int64{}
	var partition string
	var count int64
	_, err = pgx.ForEachRow(rows, []any{&partition, &count}, func() error {
		counts[partition] = count
		return nil
	})
	return counts, translate(err, "count the commits below the fence")
}
