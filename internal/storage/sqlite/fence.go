package sqlite

import (
	"context"
	_ "embed"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

//go:embed fence.sql
var fenceSQL string

//go:embed guards.sql
var guardsSQL string

// trigger is one of our triggers as it must stand in sqlite_master.
type trigger struct {
	name  string
	table string
	sql   string
}

// triggers are all of ours, in the order in which they are installed.
var triggers = append(parseTriggers(fenceSQL), parseTriggers(guardsSQL)...)

const triggerPrefix = "syncbarrier_"

// parseTriggers splits a file of ours into its statements. SQLite keeps the text of a trigger from its name on, byte for byte.
func parseTriggers(file string) []trigger {
	var parsed []trigger
	for part := range strings.SplitSeq(file, "\nEND;\n") {
		start := strings.Index(part, "\nCREATE TRIGGER ")
		if start < 0 {
			continue
		}
		text := part[start+1:] + "\nEND"
		words := strings.Fields(text) // CREATE TRIGGER name BEFORE INSERT ON table
		parsed = append(parsed, trigger{name: words[2], table: words[6], sql: text})
	}
	return parsed
}

// installTriggers puts fence and guards in place and returns the names of those that it had to put back. One that stands as it should is not
// touched; one that differs is replaced inside the caller's transaction, so that no other connection ever sees the table without it. Those on
// tables in without are left out.
func installTriggers(ctx context.Context, q querier, without []string) ([]string, error) {
	standing, err := readTriggers(ctx, q)
	if err != nil {
		return nil, err
	}
	var installed []string
	for _, t := range triggers {
		have, exists := standing[t.name]
		if have == t || slices.Contains(without, t.table) {
			continue
		}
		if exists {
			if _, err := q.ExecContext(ctx, "DROP TRIGGER "+quoteIdentifier(t.name)); err != nil {
				return nil, translate(err, "replace trigger "+t.name)
			}
		}
		if _, err := q.ExecContext(ctx, t.sql); err != nil {
			return nil, translate(err, "create trigger "+t.name+" on "+t.table)
		}
		installed = append(installed, t.name)
	}
	return installed, nil
}

// readTriggers gives the triggers of the file by name.
func readTriggers(ctx context.Context, q querier) (map[string]trigger, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT name, tbl_name, sql
		FROM sqlite_master
		WHERE type = 'trigger'`)
	if err != nil {
		return nil, translate(err, "read the triggers")
	}
	defer func() { _ = rows.Close() }()
	standing := map[string]trigger{}
	for rows.Next() {
		var t trigger
		if err := rows.Scan(&t.name, &t.table, &t.sql); err != nil {
			return nil, translate(err, "read the triggers")
		}
		standing[t.name] = t
	}
	return standing, translate(rows.Err(), "read the triggers")
}

// readFence gives the minimum writer version for all; exists is false where the row '*' is missing. CodeFenceBroken if it holds no number,
// which only a program that had removed the guards can have written.
func readFence(ctx context.Context, q querier) (minimum int64, exists bool, err error) {
	var kind string
	err = q.QueryRowContext(ctx, `
		SELECT typeof(required_writer_version), CAST(required_writer_version AS INTEGER)
		FROM sync_writer_fence
		WHERE partition = ?`, storage.AllPartitions).Scan(&kind, &minimum)
	switch {
	case noRows(err):
		return 0, false, nil
	case err != nil:
		return 0, false, translate(err, "read sync_writer_fence")
	case kind != "integer":
		return 0, true, storage.Refuse(storage.CodeFenceBroken, "row '*' of sync_writer_fence holds %s instead of a number", kind)
	}
	return minimum, true, nil
}

// raiseFence raises the minimum writer versions, the one for all and those of single partitions, and gives the positions of the log at
// which that happened. Nothing goes down: what is higher already stays.
func raiseFence(ctx context.Context, q querier, raise map[string]int64) (map[string]int64, error) {
	raised := map[string]int64{}
	for _, partition := range sortedKeys(raise) {
		if _, err := q.ExecContext(ctx, `
			INSERT INTO sync_writer_fence(partition, required_writer_version)
			VALUES (?, ?)
			ON CONFLICT(partition) DO UPDATE
			SET required_writer_version = excluded.required_writer_version
			WHERE excluded.required_writer_version > sync_writer_fence.required_writer_version`,
			partition, raise[partition]); err != nil {
			return nil, translate(err, "raise the fence of partition "+partition)
		}
		if err := recordPositions(ctx, q, partition, raised); err != nil {
			return nil, err
		}
	}
	return raised, nil
}

// maxRecordedPositions is up to how many partitions a raise for all notes the log position of each, so that commits that got past a
// weakened fence later can be counted. The lock must not be held longer the more partitions there are.
const maxRecordedPositions = 1000

// recordPositions notes where the log of a partition stands. For all partitions that is the sum under storage.AllPartitions and, of up to
// 1,000 partitions, each that is above 0. So where the single ones add up to the sum, the list is complete.
func recordPositions(ctx context.Context, q querier, partition string, raised map[string]int64) error {
	if partition != storage.AllPartitions {
		var position int64
		err := q.QueryRowContext(ctx, `
			SELECT coalesce(max(max_commit_seq), 0)
			FROM sync_partitions
			WHERE partition = ?`, partition).Scan(&position)
		raised[partition] = position
		return translate(err, "read the position of partition "+partition)
	}
	var partitions, sum int64
	err := q.QueryRowContext(ctx, `
		SELECT count(*), coalesce(sum(max_commit_seq), 0)
		FROM sync_partitions
		WHERE max_commit_seq > 0`).Scan(&partitions, &sum)
	if err != nil {
		return translate(err, "read the positions of all partitions")
	}
	raised[storage.AllPartitions] = sum
	if partitions > maxRecordedPositions {
		return nil
	}
	positions, err := readPositions(ctx, q)
	for key, position := range positions {
		raised[key] = position
	}
	return err
}

// isComplete says whether positions of a raise for all name every partition that had commits.
func isComplete(raised map[string]int64) bool {
	var sum int64
	for partition, position := range raised {
		if partition != storage.AllPartitions {
			sum += position
		}
	}
	return sum == raised[storage.AllPartitions]
}

// readPositions gives the last commit of every partition that has any.
func readPositions(ctx context.Context, q querier) (map[string]int64, error) {
	rows, err := q.QueryContext(ctx, `
		SELECT partition, max_commit_seq
		FROM sync_partitions
		WHERE max_commit_seq > 0
		  AND partition IS NOT NULL`)
	if err != nil {
		return nil, translate(err, "read sync_partitions")
	}
	defer func() { _ = rows.Close() }()
	positions := map[string]int64{}
	for rows.Next() {
		var partition string
		var position int64
		if err := rows.Scan(&partition, &position); err != nil {
			return nil, translate(err, "read sync_partitions")
		}
		positions[partition] = position
	}
	return positions, translate(rows.Err(), "read sync_partitions")
}
