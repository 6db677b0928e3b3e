package postgres

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// sourceNeed is what checkpoints need of a source.
type sourceNeed struct {
	table   storage.Table
	source  storage.Source // with the columns of all checkpoints that capture it
	targets []string       // the columns that their backfills set
	capture bool           // an open checkpoint needs its changes logged by triggers
	unused  bool           // no open checkpoint reads it: it keeps its fence alone
	fenced  bool           // it is or was captured
	version int64          // of the newest definition that declares the table
}

// sourceNeeds joins what definitions need of their sources, by table. open says which checkpoints are not activated in all their
// partitions. A source that its program logs itself needs its TRUNCATE logged as long as a checkpoint is open.
//
// Errors: CodeInvalidSpec where two open checkpoints declare a source with different keys or partitions: the log can be written in one way
// only.
func sourceNeeds(definitions []storage.Definition, open map[string]bool) ([]*sourceNeed, error) {
	needs := map[string]*sourceNeed{}
	for _, d := range definitions {
		for _, source := range d.Checkpoint.Sources {
			i := slices.IndexFunc(d.SourceTables, func(t storage.Table) bool { return t.Name == source.Table })
			if i < 0 {
				continue // a definition always has its tables; one that has not cannot be carried out, which its workers say
			}
			need := needs[source.Table]
			if need == nil {
				need = &sourceNeed{source: storage.Source{Table: source.Table, Changes: source.Changes}, unused: true}
				needs[source.Table] = need
			}
			if err := need.add(d, source, d.SourceTables[i], open[d.Name]); err != nil {
				return nil, err
			}
		}
	}
	for _, d := range definitions {
		if update := d.Checkpoint.Backfill.Update; update != nil && open[d.Name] && needs[update.Table] != nil {
			need := needs[update.Table]
			need.targets = append(need.targets, slices.Sorted(maps.Keys(update.Set))...)
		}
	}
	sorted := make([]*sourceNeed, 0, len(needs))
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		sorted = append(sorted, needs[name])
	}
	return sorted, nil
}

func (n *sourceNeed) add(d storage.Definition, source storage.Source, table storage.Table, open bool) error {
	captures := source.Changes == storage.Capture
	n.fenced = n.fenced || captures
	if open && captures && n.capture && (!slices.Equal(n.table.Key(), table.Key()) || n.table.Partition != table.Partition) {
		return storage.Refuse(storage.CodeInvalidSpec, "checkpoint %q declares source %q with another key or partition than a checkpoint that is still open",
			d.Name, source.Table).WithHint("its log can be written in one way at a time: let the older checkpoint be activated first")
	}
	// What an open checkpoint says of the table weighs more than what a finished one said.
	if n.unused && open || (n.unused == !open && d.Version >= n.version) {
		n.table, n.version = table, d.Version
	}
	if open && captures {
		n.addColumns(source.Columns)
		n.source.Changes = storage.Capture
	}
	n.capture = n.capture || open && captures
	n.unused = n.unused && !open
	return nil
}

// addColumns joins the source columns of another checkpoint: without any, all count that no backfill sets.
func (n *sourceNeed) addColumns(columns []string) {
	switch {
	case n.capture && len(n.source.Columns) == 0 || len(columns) == 0:
		n.source.Columns = nil
	default:
		for _, column := range columns {
			if !slices.Contains(n.source.Columns, column) {
				n.source.Columns = append(n.source.Columns, column)
			}
		}
	}
}

// readSourceNeeds reads what the stored definitions need.
func (s *Store) readSourceNeeds(ctx context.Context, q querier) ([]*sourceNeed, error) {
	const what = "read what checkpoints need of their sources"
	rows, err := q.Query(ctx, s.sql(`
		SELECT d.name, d.version, d.hash, d.definition, d.settings,
		       EXISTS (
		         SELECT
		           FROM {schema}.sync_backfill_checkpoints c
		          WHERE c.name = d.name
		            AND c.schema_version = d.version
		            AND c.state <> 'activated')
		  FROM {schema}.sync_backfill_definitions d
		 ORDER BY d.version, d.name`))
	if err != nil {
		return nil, translate(err, what)
	}
	open := map[string]bool{}
	definitions, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (storage.Definition, error) {
		var name, hash, definition, settings string
		var version int64
		var isOpen bool
		if err := row.Scan(&name, &version, &hash, &definition, &settings, &isOpen); err != nil {
			return storage.Definition{}, err
		}
		open[name] = isOpen
		return storage.DecodeDefinition(name, version, hash, definition, settings)
	})
	if err != nil {
		return nil, translate(err, what)
	}
	return sourceNeeds(definitions, open)
}

// ensureCapture brings all sources to what the stored definitions need, under the barrier's locks and after its checkpoints are declared
// and its steps have run: capture and fence where an open checkpoint captures, the TRUNCATE trigger where one reads a
// source that its program logs, and the capture of what nobody reads any more switched off. It is idempotent, and puts back what is
// missing on partitions that came later. captured are the tables whose log is written from now on.
//
// Errors: those of readCaptured and installCapture.
func (s *Store) ensureCapture(ctx context.Context, tx pgx.Tx, minimum int64) (captured []string, err error) {
	needs, err := s.readSourceNeeds(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, need := range needs {
		if err := s.ensureSource(ctx, tx, need, minimum); err != nil {
			return nil, err
		}
		if need.capture {
			captured = append(captured, need.table.Name)
		}
	}
	return captured, nil
}

func (s *Store) ensureSource(ctx context.Context, tx pgx.Tx, need *sourceNeed, minimum int64) error {
	if need.unused {
		return s.disableCapture(ctx, tx, need.table.Name)
	}
	c, err := s.readCaptured(ctx, tx, need.table, need.source, need.targets)
	if err != nil {
		return err
	}
	if !need.capture {
		return s.installTruncate(ctx, tx, c)
	}
	if err := s.keepsWatching(ctx, tx, need); err != nil {
		return err
	}
	return s.installCapture(ctx, tx, c, minimum)
}

// keepsWatching refuses to leave a column out of what is captured because a backfill sets it, when an open checkpoint that names no columns
// may read it: it watches all that were there when it was declared, and its pass relies on that.
func (s *Store) keepsWatching(ctx context.Context, tx pgx.Tx, need *sourceNeed) error {
	if len(need.source.Columns) > 0 {
		return nil
	}
	sources, err := s.readSources(ctx, tx, []string{need.table.Name})
	if err != nil {
		return err
	}
	source := sources[need.table.Name]
	if source == nil || source.function == nil || source.function.installed == "" || !source.writesRows() {
		return nil
	}
	for _, column := range need.targets {
		if slices.Contains(source.function.description.Columns, column) {
			return storage.Refuse(storage.CodeInvalidSpec, "a backfill sets column %q of table %q, whose changes an open checkpoint reads without naming its columns",
				column, need.table.Name).WithHint("let the open checkpoint be activated first, or name the columns that it reads")
		}
	}
	return nil
}

// idleCaptures are the tables whose capture is switched off and waits for dropCapture.
func (s *Store) idleCaptures(ctx context.Context, q querier) ([]string, error) {
	sources, err := s.readSources(ctx, q, nil)
	if err != nil {
		return nil, err
	}
	var idle []string
	for _, source := range sortedSources(sources) {
		if !source.capturing() && len(s.captureRemoval(source, false)) > 0 {
			idle = append(idle, source.table)
		}
	}
	return idle, nil
}

// checkCapture finds each way in which capture and the fences of sources are weakened: what open checkpoints need is there, fires and is as
// it was installed, on every partition, and a fence stays for ever. required is the minimum of the fence on the log, which
// those of the sources must not be below; owner is the role that owns the catalog.
func (s *Store) checkCapture(ctx context.Context, q querier, required int64, owner string) ([]storage.FenceFinding, error) {
	needs, err := s.readSourceNeeds(ctx, q)
	if err != nil {
		return nil, err
	}
	sources, err := s.readSources(ctx, q, tablesOfNeeds(needs))
	if err != nil {
		return nil, err
	}
	var findings []storage.FenceFinding
	for _, need := range needs {
		source := sources[need.table.Name]
		if source == nil {
			if !need.unused {
				findings = append(findings, storage.FenceFinding{Object: "table " + s.named(need.table.Name), Problem: "is gone, but an open checkpoint reads it"})
			}
			continue
		}
		found, err := s.checkSource(ctx, q, need, source, required, owner)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
		delete(sources, need.table.Name)
	}
	for _, source := range sortedSources(sources) { // those that no definition names any more
		if source.fenced() {
			findings = append(findings, s.triggerFindings(source, source.fences(required))...)
			findings = append(findings, heirFindings(source)...)
		}
	}
	return findings, nil
}

// heirFindings: rows of a table that inherits from a fenced one are read as the fenced one's.
func heirFindings(source *foundSource) []storage.FenceFinding {
	var findings []storage.FenceFinding
	for _, relation := range source.relations {
		for _, heir := range relation.heirs {
			findings = append(findings, storage.FenceFinding{
				Object: "table " + heir, Problem: "inherits from " + relation.name + ", which has a fence: its rows are read as that table's, and no fence judges them"})
		}
	}
	return findings
}

func (s *Store) checkSource(ctx context.Context, q querier, need *sourceNeed, source *foundSource, required int64, owner string) ([]storage.FenceFinding, error) {
	var findings []storage.FenceFinding
	if need.fenced {
		findings = append(s.triggerFindings(source, source.fences(required)), heirFindings(source)...)
	}
	if need.unused {
		return findings, nil
	}
	watched := need.source
	if f := source.function; need.capture && f != nil && f.installed != "" {
		watched.Columns = f.description.Columns // a column that the program adds later is not what an older checkpoint reads
	}
	c, err := s.readCaptured(ctx, q, need.table, watched, need.targets)
	if storage.CodeOf(err) == storage.CodeInvalidSpec {
		// The program may have renamed or dropped a column that no checkpoint names. The function then logs more than it has to.
		c, err = s.readCaptured(ctx, q, need.table, need.source, need.targets)
	}
	if storage.CodeOf(err) == storage.CodeInvalidSpec {
		return append(findings, storage.FenceFinding{Object: "table " + s.named(need.table.Name), Problem: err.Error()}), nil
	}
	if err != nil {
		return nil, err
	}
	if !need.capture {
		return append(findings, s.triggerFindings(source, []sourceTrigger{c.truncateTrigger()})...), nil
	}
	findings = append(findings, s.functionFindings(source, c, need.source.Columns, owner)...)
	writing := slices.DeleteFunc(c.sourceTriggers(required), func(t sourceTrigger) bool { return !t.capture })
	return append(findings, s.triggerFindings(source, writing)...), nil
}

func (s *Store) functionFindings(source *foundSource, c captured, named []string, owner string) []storage.FenceFinding {
	object := "function " + s.named(captureFunction(c.table))
	problems := []string{"is missing"}
	if source.function != nil {
		problems = s.captureFunctionProblems(source.function, c, owner)
		if ignored := source.function.ignores(c, named); len(ignored) > 0 {
			problems = append(problems, "does not watch "+strings.Join(ignored, ", "))
		}
	}
	findings := make([]storage.FenceFinding, len(problems))
	for i, problem := range problems {
		findings[i] = storage.FenceFinding{Object: object, Problem: problem, Repairable: true}
	}
	return findings
}

// ignores says what of the table the installed function was not made for. named are the source columns that checkpoints name.
func (f *foundCaptureFunction) ignores(c captured, named []string) []string {
	if f.installed == "" {
		return nil // which is a finding of its own
	}
	var ignored []string
	want := c.description()
	if !slices.Equal(f.description.Key, want.Key) {
		ignored = append(ignored, fmt.Sprintf("the key (%s)", strings.Join(want.Key, ", ")))
	}
	if f.description.Column != want.Column || f.description.Slices != want.Slices {
		ignored = append(ignored, "the partitions as they are declared")
	}
	for _, column := range named {
		if !slices.Contains(f.description.Columns, column) {
			ignored = append(ignored, fmt.Sprintf("column %q", column))
		}
	}
	return ignored
}

// triggerFindings compares the triggers of a source with what they should be. A partition that has neither of those that are put on each
// partition came later; the next barrier puts them there, and its fingerprint tells of a TRUNCATE meanwhile.
func (s *Store) triggerFindings(source *foundSource, declared []sourceTrigger) []storage.FenceFinding {
	var findings []storage.FenceFinding
	for i, relation := range source.relations {
		_, fenced := relation.triggers[fenceSourceTrigger]
		_, truncates := relation.triggers[captureTruncateTrigger]
		for _, t := range declared {
			found, exists := relation.triggers[t.name]
			isNew := i > 0 && t.everywhere && !fenced && !truncates
			if isNew {
				continue
			}
			problems := []string{"is missing"}
			if exists {
				problems = t.differences(found, true)
			}
			for _, problem := range problems {
				findings = append(findings, storage.FenceFinding{
					Object: fmt.Sprintf("trigger %s on %s", t.name, relation.name), Problem: problem, Repairable: true})
			}
		}
	}
	return findings
}

// sourceChanges gives, for tables by name, the state of the triggers that write their log, for the fingerprint of a source that a claim
// takes and an activation compares.
func (s *Store) sourceChanges(ctx context.Context, q querier, tables []string) (map[string][]string, error) {
	sources, err := s.readSources(ctx, q, tables)
	if err != nil {
		return nil, err
	}
	changes := map[string][]string{}
	for _, table := range tables {
		if source := sources[table]; source != nil {
			changes[table] = source.changes()
		}
	}
	return changes, nil
}
