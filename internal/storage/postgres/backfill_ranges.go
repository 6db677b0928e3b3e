package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// rowsPerRange is the size that ranges are cut to, as far as it can be estimated.
	rowsPerRange = 50_000
	// rangesBound is how many ranges one checkpoint row has at most.
	rangesBound = 64
	// sampledRows is about how many rows are read to find where to cut.
	sampledRows = 20_000
)

// keyRange is a piece (lower, upper] of the scan; nil is no bound.
type keyRange struct {
	partition    string
	lower, upper []string
}

// cutRanges cuts the rows of each partition into ranges of about the same size, in the order of the key. The boundaries come
// from a sample of pages. They only share the work out: the outermost ranges have no bounds, so every row is in one.
func (s *Store) cutRanges(ctx context.Context, tx pgx.Tx, plan *backfillPlan, partitions []string) ([]keyRange, error) {
	estimated, err := estimateRows(ctx, tx, plan.table, "true")
	if err != nil {
		return nil, err
	}
	if estimated <= rowsPerRange {
		return wholeRanges(partitions), nil
	}
	sample, err := sampleKeys(ctx, tx, plan.table, estimated)
	if err != nil {
		return nil, err
	}
	var ranges []keyRange
	for _, partition := range partitions {
		keys := sample.keys[partition]
		if partition == storage.AllPartitions || plan.table.partition == "" && partition == storage.DefaultPartition {
			keys = sample.all
		}
		rows := estimated * int64(len(keys)) / max(1, int64(len(sample.all)))
		count := int(min(rangesBound, max(1, (rows+rowsPerRange-1)/rowsPerRange)))
		ranges = append(ranges, cutAt(partition, keys, count)...)
	}
	return ranges, nil
}

func wholeRanges(partitions []string) []keyRange {
	ranges := make([]keyRange, len(partitions))
	for i, partition := range partitions {
		ranges[i] = keyRange{partition: partition}
	}
	return ranges
}

// cutAt makes count ranges with boundaries at equal distances in a sorted sample.
func cutAt(partition string, sample [][]string, count int) []keyRange {
	count = min(count, len(sample)+1)
	ranges := make([]keyRange, 0, count)
	var lower []string
	for i := 1; i < count; i++ {
		upper := sample[i*len(sample)/count]
		ranges = append(ranges, keyRange{partition: partition, lower: lower, upper: upper})
		lower = upper
	}
	return append(ranges, keyRange{partition: partition, lower: lower})
}

// estimatePass estimates how many rows a pass goes over.
func (s *Store) estimatePass(ctx context.Context, q querier, plan *backfillPlan) (int64, error) {
	t, listed := plan.table, plan.definition.Checkpoint.Partitions
	if len(listed) == 0 || t.partition == "" {
		if rows, err := countedRows(ctx, q, t); rows > 0 || err != nil {
			return rows, err
		}
		return estimateRows(ctx, q, t, "true")
	}
	quoted := make([]string, len(listed))
	for i, partition := range listed {
		quoted[i] = quoteLiteral(partition)
	}
	return estimateRows(ctx, q, t, fmt.Sprintf("%s IN (%s)", t.partition, strings.Join(quoted, ", ")))
}

// countedRows gives the rows of a table that was never analyzed, as the server counted them when they were written; 0: it was analyzed, or
// nothing was counted. The planner knows only the size of such a table and guesses: 2,000 rows where there are 20, 222,000 for 200,000.
func countedRows(ctx context.Context, q querier, table keyTable) (rows int64, err error) {
	err = q.QueryRow(ctx, `
		WITH RECURSIVE tables(oid) AS (
		  SELECT $1::oid
		   UNION
		  SELECT i.inhrelid
		    FROM tables
		    JOIN pg_catalog.pg_inherits i ON i.inhparent = tables.oid
		)
		SELECT coalesce(sum(pg_catalog.pg_stat_get_live_tuples(c.oid)) FILTER (WHERE c.relkind = 'r'), 0)::bigint
		  FROM tables
		  JOIN pg_catalog.pg_class c ON c.oid = tables.oid
		HAVING bool_or(c.reltuples < 0) FILTER (WHERE c.relkind = 'r')`, table.oid).Scan(&rows)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("count the rows of table %q: %w", table.declared.Name, err)
	}
	return rows, nil
}

// estimateRows asks the planner how many rows of a table fulfil a condition. It knows the table's size today, also if it was never
// analyzed.
func estimateRows(ctx context.Context, q querier, table keyTable, condition string) (int64, error) {
	what := fmt.Sprintf("estimate the rows of table %q", table.declared.Name)
	var text string
	if err := q.QueryRow(ctx, fmt.Sprintf("EXPLAIN (FORMAT JSON) SELECT FROM %s WHERE %s", table.sql, condition)).Scan(&text); err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	var plans []struct {
		Plan struct {
			Rows float64 `json:"Plan Rows"`
		}
	}
	if err := json.Unmarshal([]byte(text), &plans); err != nil || len(plans) != 1 {
		return 0, fmt.Errorf("%s: the plan cannot be read: %w", what, err)
	}
	return int64(plans[0].Plan.Rows), nil
}

// keySample holds sorted keys, all of them and by partition.
type keySample struct {
	all  [][]string
	keys map[string][][]string
}

func sampleKeys(ctx context.Context, tx pgx.Tx, table keyTable, estimated int64) (keySample, error) {
	sample := keySample{keys: map[string][][]string{}}
	percent := min(100, 100*float64(sampledRows)/float64(estimated))
	partition := "''"
	if table.partition != "" {
		partition = "coalesce(t." + strings.TrimSuffix(table.partition, "::text") + "::text, '')"
	}
	rows, err := tx.Query(ctx, fmt.Sprintf(`
SELECT %s, %s
  FROM %s AS t
TABLESAMPLE SYSTEM (%f)
 ORDER BY %s`, table.texts("t."), partition, table.sql, percent, table.names("t.")))
	if err != nil {
		return sample, fmt.Errorf("sample the keys of table %q: %w", table.declared.Name, err)
	}
	var of string
	err = table.eachKey(rows, func(key []string) {
		sample.all = append(sample.all, key)
		sample.keys[of] = append(sample.keys[of], key)
	}, &of)
	if err != nil {
		return sample, fmt.Errorf("sample the keys of table %q: %w", table.declared.Name, err)
	}
	return sample, nil
}
