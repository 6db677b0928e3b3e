package sqlite

import (
	"context"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// listedFence is what the fence of a partition that checkpoints list must require, and what its row says.
type listedFence struct {
	partition string
	required  int64
	stored    int64
	kind      string // the type of what is stored; "null" without a row
}

// readListedFences gives the fences that stand lower than the checkpoints that list their partitions over the log say. What the row for all
// covers is left out, as the barrier leaves it out. In order of the partitions.
func readListedFences(ctx context.Context, q querier, objects schemaObjects) ([]listedFence, error) {
	const what = "read the fences of listed partitions"
	if !objects.isTable("sync_backfill_definitions") || !objects.isTable("sync_writer_fence") {
		return nil, nil
	}
	rows, err := q.QueryContext(ctx, `
		WITH readable AS (
		  SELECT version, CASE WHEN json_valid(definition) THEN definition ELSE '{}' END AS definition
		  FROM sync_backfill_definitions
		),
		listed(partition, required) AS (
		  SELECT p.value, max(d.version)
		  FROM readable AS d
		  JOIN json_each(d.definition, '$.checkpoint.partitions') AS p
		  WHERE NOT EXISTS (
		    SELECT 1
		    FROM json_each(d.definition, '$.checkpoint.sources') AS s
		    WHERE s.value ->> 'changes' <> ?1)
		  GROUP BY p.value
		)
		SELECT l.partition, l.required, typeof(w.required_writer_version), coalesce(CAST(w.required_writer_version AS INTEGER), 0)
		FROM listed AS l
		LEFT JOIN sync_writer_fence AS w ON w.partition = l.partition
		WHERE l.required > coalesce((SELECT CAST(required_writer_version AS INTEGER) FROM sync_writer_fence WHERE partition = ?2), 0)
		  AND (typeof(w.required_writer_version) <> 'integer' OR w.required_writer_version < l.required)
		ORDER BY l.partition`, string(storage.CommitLog), storage.AllPartitions)
	if err != nil {
		return nil, translate(err, what)
	}
	defer func() { _ = rows.Close() }()
	var low []listedFence
	for rows.Next() {
		var f listedFence
		if err := rows.Scan(&f.partition, &f.required, &f.kind, &f.stored); err != nil {
			return nil, translate(err, what)
		}
		low = append(low, f)
	}
	return low, translate(rows.Err(), what)
}

func (f listedFence) object() string { return fmt.Sprintf("row %q of sync_writer_fence", f.partition) }

// isRepairable: a row that holds no number is for a person to mend.
func (f listedFence) isRepairable() bool { return f.kind == "null" || f.kind == "integer" }

// checkListedFences finds partitions whose own fence is gone or lower than it was raised to.
func checkListedFences(ctx context.Context, q querier, objects schemaObjects) ([]storage.FenceFinding, error) {
	low, err := readListedFences(ctx, q, objects)
	var findings []storage.FenceFinding
	for _, f := range low {
		finding := storage.FenceFinding{Object: f.object(), Repairable: f.isRepairable()}
		switch f.kind {
		case "null":
			finding.Problem = fmt.Sprintf("it is missing, but a checkpoint of version %d lists the partition", f.required)
		case "integer":
			finding.Problem = fmt.Sprintf("it requires version %d, but a checkpoint of version %d lists the partition", f.stored, f.required)
		default:
			finding.Problem = "it holds no number, so nobody knows what it requires"
		}
		findings = append(findings, finding)
	}
	return findings, err
}

// repairListedFences raises them to what they must require, and names them.
func repairListedFences(ctx context.Context, q querier, objects schemaObjects) ([]string, error) {
	low, err := readListedFences(ctx, q, objects)
	if err != nil {
		return nil, err
	}
	var repaired []string
	for _, f := range low {
		if !f.isRepairable() {
			continue
		}
		if _, err := raiseFence(ctx, q, map[string]int64{f.partition: f.required}); err != nil {
			return nil, err
		}
		repaired = append(repaired, f.object())
	}
	return repaired, nil
}
