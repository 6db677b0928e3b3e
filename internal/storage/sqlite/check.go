package sqlite

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// protocolTrigger is the sync protocol's own fence. A program that follows the protocol creates it at each start; it is left alone.
const protocolTrigger = "sync_commits_writer_fence"

// CheckFence finds each way in which fence and guards are weakened, and counts the commits that were stored below the fence since it was
// raised, which no check of triggers would show. CodeFenceBroken without a catalog, CodeNewerCatalog.
func (s *Store) CheckFence(ctx context.Context) (report storage.FenceReport, err error) {
	err = s.inTx(ctx, "check the fence of "+s.path, false, func(ctx context.Context, tx *sql.Conn) error {
		report, err = s.fenceReport(ctx, tx)
		return err
	})
	return report, err
}

// fenceReport is CheckFence inside somebody's transaction.
func (s *Store) fenceReport(ctx context.Context, q querier) (storage.FenceReport, error) {
	objects, err := readObjects(ctx, q)
	if err != nil {
		return storage.FenceReport{}, err
	}
	recorded, err := readOwner(ctx, q, objects)
	switch {
	case err != nil:
		return storage.FenceReport{}, err
	case recorded.protocol == 0:
		return storage.FenceReport{}, storage.Refuse(storage.CodeFenceBroken, "%s has no Syncbarrier catalog, so it has no fence", s.path).
			WithHint("apply a schema version first")
	case recorded.protocol > storage.CatalogProtocol:
		return storage.FenceReport{}, newerCatalog(recorded.protocol)
	}
	findings, err := checkTriggers(ctx, q, objects)
	if err != nil {
		return storage.FenceReport{}, err
	}
	report := storage.FenceReport{Findings: findings}
	if !objects.isTable("sync_writer_fence") {
		return report, nil
	}
	report.MinWriterVersion, _, err = readFence(ctx, q)
	if err != nil && storage.CodeOf(err) != storage.CodeFenceBroken { // that is among the findings
		return storage.FenceReport{}, err
	}
	if !objects.hasVersions() { // among the findings too, and there is nothing to count by
		return report, nil
	}
	err = addGotIn(ctx, q, objects, &report)
	return report, err
}

func newerCatalog(protocol int) error {
	return storage.Refuse(storage.CodeNewerCatalog, "the catalog of this database has protocol %d, this program knows up to %d",
		protocol, storage.CatalogProtocol).WithHint("use the newer Syncbarrier that wrote it")
}

// checkTriggers finds what is not as we installed it, without looking at the log: it is cheap enough for every barrier.
func checkTriggers(ctx context.Context, q querier, objects schemaObjects) ([]storage.FenceFinding, error) {
	standing, err := readTriggers(ctx, q)
	if err != nil {
		return nil, err
	}
	findings := missingObjects(objects)
	for _, t := range triggers {
		have, exists := standing[t.name]
		switch {
		case !exists:
			findings = append(findings, missingTrigger(t))
		case have != t:
			findings = append(findings, storage.FenceFinding{
				Object: "trigger " + t.name + " on " + have.table, Repairable: true, Problem: "it is not the one that was installed",
			})
		}
	}
	for _, name := range sortedKeys(standing) {
		if finding, found := foreignTrigger(standing[name]); found {
			findings = append(findings, finding)
		}
	}
	if !objects.isTable("sync_writer_fence") {
		return findings, nil // the rest compares with what stands there
	}
	history, err := readHistory(ctx, q, objects)
	if err != nil {
		return nil, err
	}
	marker, err := readMarker(ctx, q, objects)
	if err != nil {
		return nil, err
	}
	findings = append(findings, checkMarker(marker, history)...)
	for _, check := range []func(context.Context, querier, []storage.HistoryRow) ([]storage.FenceFinding, error){checkVersionColumn, checkFenceRow} {
		more, err := check(ctx, q, history)
		if err != nil {
			return nil, err
		}
		findings = append(findings, more...)
	}
	listed, err := checkListedFences(ctx, q, objects)
	return append(findings, listed...), err
}

// missingObjects finds tables and indexes of the catalog that were dropped. Only those that hold nothing of their own can be made again.
func missingObjects(objects schemaObjects) []storage.FenceFinding {
	var findings []storage.FenceFinding
	for _, table := range slices.Concat(catalogTables, sortedKeys(protocolColumns)) {
		if !objects.isTable(table) {
			findings = append(findings, storage.FenceFinding{
				Object: "table " + table, Repairable: slices.Contains(emptyTables, table), Problem: "it is missing",
			})
		}
	}
	for _, index := range catalogIndexes {
		if objects.kinds[index] != "index" {
			findings = append(findings, storage.FenceFinding{
				Object: "index " + index, Repairable: true, Problem: "it is missing, so what is asked under a lock takes long",
			})
		}
	}
	return findings
}

func missingTrigger(t trigger) storage.FenceFinding {
	return storage.FenceFinding{Object: "trigger " + t.name + " on " + t.table, Repairable: true, Problem: "it is missing"}
}

// foreignTrigger finds another program's trigger that comes before the fence or has to do with the writer version. No trigger of SQLite can
// change a row before it is judged, and ours judges what a trigger writes afterwards; but one that runs before may skip the commit in
// silence, and whoever wrote one about versions means to get round the fence.
func foreignTrigger(t trigger) (storage.FenceFinding, bool) {
	ours := strings.HasPrefix(t.name, triggerPrefix) || t.name == protocolTrigger
	if ours || fold(t.table) != "sync_commits" {
		return storage.FenceFinding{}, false
	}
	finding := storage.FenceFinding{Object: "trigger " + t.name + " on " + t.table}
	switch {
	case strings.Contains(fold(t.sql), "writer_version"):
		finding.Problem = "it is another program's and has to do with writer_version"
	case !afterTrigger.MatchString(t.sql):
		finding.Problem = "it is another program's and runs before the row is stored, so it can skip a commit in silence"
	default:
		return storage.FenceFinding{}, false
	}
	return finding, true
}

// afterTrigger knows the beginning of a trigger that runs once the row is stored: a name, quoted in any of SQLite's ways or bare, and AFTER.
// Whatever else a text looks like is taken for the other kind, which is also what SQLite makes of one that names no time.
var afterTrigger = regexp.MustCompile("(?i)^CREATE\\s+TRIGGER\\s+(\"([^\"]|\"\")*\"|`([^`]|``)*`|'([^']|'')*'|\\[[^\\]]*\\]|[^\\s\"'`\\[]+)\\s+AFTER\\s")

// checkVersionColumn: a default would hand a version to a writer that has none.
func checkVersionColumn(ctx context.Context, q querier, _ []storage.HistoryRow) ([]storage.FenceFinding, error) {
	var value sql.NullString
	var hidden int
	err := q.QueryRowContext(ctx, `
		SELECT dflt_value, hidden
		FROM pragma_table_xinfo('sync_commits')
		WHERE name = 'writer_version' COLLATE NOCASE`).Scan(&value, &hidden)
	finding := storage.FenceFinding{Object: "column sync_commits.writer_version"}
	switch {
	case noRows(err):
		finding.Problem = "it is missing, so no commit can carry a writer version"
	case err != nil:
		return nil, translate(err, "read the columns of sync_commits")
	case hidden != 0:
		finding.Problem = "it is generated, so a writer does not set it"
	case value.Valid && fold(value.String) != "null":
		finding.Problem = "it has a default, which hides that a writer gave no version"
	default:
		return nil, nil
	}
	return []storage.FenceFinding{finding}, nil
}

// checkFenceRow compares the fence for all with the highest that a barrier ever raised it to.
func checkFenceRow(ctx context.Context, q querier, history []storage.HistoryRow) ([]storage.FenceFinding, error) {
	finding := storage.FenceFinding{Object: "row '*' of sync_writer_fence", Repairable: true}
	minimum, exists, err := readFence(ctx, q)
	wanted := highestFence(history)
	switch {
	case storage.CodeOf(err) == storage.CodeFenceBroken:
		finding.Problem, finding.Repairable = "it holds no number, so nobody knows what it requires", false
	case err != nil:
		return nil, err
	case !exists:
		finding.Problem = "it is missing, so every writer is refused"
	case minimum < wanted:
		finding.Problem = fmt.Sprintf("it requires version %d, but was raised to %d", minimum, wanted)
	default:
		return nil, nil
	}
	return []storage.FenceFinding{finding}, nil
}

// highestFence is what the history says that the fence for all was raised to, 0 if never.
func highestFence(history []storage.HistoryRow) (highest int64) {
	for _, row := range history {
		highest = max(highest, row.MinWriterVersion)
	}
	return highest
}

// checkMarker: a marker below what was applied would make a barrier run a version again.
func checkMarker(marker *storage.Marker, history []storage.HistoryRow) []storage.FenceFinding {
	if len(history) == 0 {
		return nil
	}
	finding := storage.FenceFinding{Object: "table sync_schema_meta"}
	applied := history[len(history)-1].Version
	switch {
	case marker == nil:
		finding.Problem = fmt.Sprintf("the marker is missing, but version %d was applied", applied)
	case marker.Version < applied:
		finding.Problem = fmt.Sprintf("the marker is at version %d, but version %d was applied", marker.Version, applied)
	default:
		return nil
	}
	return []storage.FenceFinding{finding}
}

// refuseWeakened refuses to go on beside a fence or guards that are not as they were installed. CodeFenceBroken names the findings.
func refuseWeakened(ctx context.Context, q querier, objects schemaObjects) error {
	findings, err := checkTriggers(ctx, q, objects)
	if err != nil {
		return err
	}
	return storage.FenceReport{Findings: findings}.Refusal()
}
