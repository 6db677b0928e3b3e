package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// addGotIn counts the commits that were stored below the fence after it was raised. They stay a finding for as long as they are in the log:
// what they changed may be wrong, and only a person can say.
func addGotIn(ctx context.Context, q querier, objects schemaObjects, report *storage.FenceReport) error {
	const most = 10
	history, err := readHistory(ctx, q, objects)
	if err != nil {
		return err
	}
	floors, forAll, complete := raisedFloors(history)
	if len(floors) == 0 && forAll < 1 {
		return nil
	}
	counts, err := countBelow(ctx, q, floors, forAll, complete)
	if err != nil {
		return err
	}
	for i, partition := range sortedKeys(counts) {
		report.GotIn += counts[partition]
		if i < most {
			report.Findings = append(report.Findings, storage.FenceFinding{
				Object:  fmt.Sprintf("partition %q of sync_commits", partition),
				Problem: fmt.Sprintf("it has %d commits that were stored below the fence after it was raised", counts[partition]),
				Rows:    counts[partition],
			})
		}
	}
	return nil
}

// raisedFloor is where the log of a partition stood when a minimum was set. The minimum is the highest that this raise can have set; the
// partition's own fence says what it was.
type raisedFloor struct {
	Position int64 `json:"position"`
	Minimum  int64 `json:"minimum"`
}

// raisedFloors gives the raises that are in force: the newest for all partitions, with its minimum, and each partition's own newest. complete
// says that the positions of all partitions that had commits at the raise for all are among them.
func raisedFloors(history []storage.HistoryRow) (floors map[string]raisedFloor, forAll int64, complete bool) {
	floors, complete = map[string]raisedFloor{}, true
	for _, row := range history {
		if _, all := row.Raised[storage.AllPartitions]; all {
			floors, forAll, complete = map[string]raisedFloor{}, row.MinWriterVersion, isComplete(row.Raised)
		}
		for partition, position := range row.Raised {
			if partition != storage.AllPartitions {
				floors[partition] = raisedFloor{Position: position, Minimum: max(row.Version, row.MinWriterVersion)}
			}
		}
	}
	return floors, forAll, complete
}

// countBelow counts per partition. Partitions without a floor came after the raise for all if complete, so all their commits count then.
func countBelow(ctx context.Context, q querier, floors map[string]raisedFloor, forAll int64, complete bool) (map[string]int64, error) {
	const what = "count the commits below the fence"
	list, err := json.Marshal(floors)
	if err != nil {
		return nil, fmt.Errorf("encode the positions of the log: %w", err)
	}
	rows, err := q.QueryContext(ctx, `
		WITH floors(partition, position, minimum) AS (
		  SELECT f.key, f.value ->> 'position', min(f.value ->> 'minimum', max(?2, coalesce(w.required_writer_version, 0)))
		  FROM json_each(?1) AS f
		  LEFT JOIN sync_writer_fence AS w ON w.partition = f.key
		)
		SELECT c.partition, count(*)
		FROM sync_commits AS c
		LEFT JOIN floors AS f ON f.partition = c.partition
		WHERE c.commit_seq > coalesce(f.position, CASE WHEN ?3 THEN 0 ELSE 9223372036854775807 END)
		  AND coalesce(f.minimum, ?2) >= 1
		  AND (typeof(c.writer_version) <> 'integer' OR c.writer_version < coalesce(f.minimum, ?2))
		GROUP BY c.partition`, string(list), forAll, complete)
	if err != nil {
		return nil, translate(err, what)
	}
	defer func() { _ = rows.Close() }()
	counts := map[string]int64{}
	for rows.Next() {
		var partition string
		var count int64
		if err := rows.Scan(&partition, &count); err != nil {
			return nil, translate(err, what)
		}
		counts[partition] = count
	}
	return counts, translate(rows.Err(), what)
}
