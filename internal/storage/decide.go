package storage

import (
	"fmt"
	"slices"
	"strings"
)

// DecisionOutcome says what a barrier has to do.
type DecisionOutcome string

// The outcomes.
const (
	// Agreed: the database is at this version with this content already.
	Agreed DecisionOutcome = "agreed"
	// Migrate: carry the steps out and move the marker.
	Migrate DecisionOutcome = "migrate"
	// Adopt: another program brought the database to this version; record it.
	Adopt DecisionOutcome = "adopt"
)

// Decision is what Decide found: everything the barrier's transaction does, in domain words.
type Decision struct {
	Outcome      DecisionOutcome
	Stored       int64
	Version      int64
	Steps        []Step
	Declare      []Checkpoint     // checkpoints to declare, with their rows, in version order
	Raise        map[string]int64 // partition, or AllPartitions, to the minimum writer version it is raised to
	MinWriter    int64            // the fence for all after this barrier
	MinReader    int64
	Layouts      string                    // the JSON for sync_schema_meta
	PlainLayouts map[string][]LayoutColumn // for the history
	Passed       []HistoryRow              // the history rows to write: version, hash, entries, layouts, minimums
	// LockPartitions asks for sync_partitions EXCLUSIVE: writers of the sync protocol must be kept out.
	LockPartitions bool
	Warnings       []string
}

// StepKind is what a step does.
type StepKind string

// The kinds, in the order in which a barrier carries them out.
const (
	StepDropTable      StepKind = "drop table"      // Table, and its rows in the tables of the sync protocol
	StepCreateTable    StepKind = "create table"    // Declared
	StepAddColumn      StepKind = "add column"      // Table, Column
	StepRewritePayload StepKind = "rewrite payload" // Table, OldColumns, NewColumns
	StepDropIndex      StepKind = "drop index"      // Table, Index.Name as it is in the database
	StepRunSQL         StepKind = "run SQL"         // Version, SQL
	StepCreateIndex    StepKind = "create index"    // Table, Index with its name in the database
)

// Step is one thing a barrier does.
type Step struct {
	Kind       StepKind
	Table      string
	Declared   Table
	Column     Column
	Index      Index
	OldColumns int
	NewColumns int
	Version    int64
	SQL        string
}

// Decide judges whether and how the facts are brought to the target. It reads nothing and changes nothing.
//
// Errors: CodeNewerCatalog, CodeConflict (another owner), CodeVersionRegression, CodeContentDrift, CodeLayoutMismatch,
// CodeCheckpointIncomplete, CodeInvalidSpec.
func Decide(target Target, facts Facts) (Decision, error) {
	d := &decider{target: target, facts: facts}
	d.decision = Decision{Stored: facts.stored(), Version: target.Version, Raise: map[string]int64{}}
	for _, rule := range []func() error{
		d.checkTarget, d.checkCatalog, d.checkOwner, d.checkVersion, d.checkAppliedEntries, d.checkIncomplete, d.checkRetired,
		d.checkStoredLayouts, d.chooseOutcome,
	} {
		if err := rule(); err != nil {
			return Decision{}, err
		}
	}
	if d.decision.Outcome != Migrate {
		return d.finishUnchanged()
	}
	for _, rule := range []func() error{
		d.checkNames, d.planTables, d.planMigrations, d.planCheckpoints, d.planFence, d.planReaders, d.planHistory,
	} {
		if err := rule(); err != nil {
			return Decision{}, err
		}
	}
	return d.decision, nil
}

// DecidePlan is Decide for a Plan, which only reads: where the target asks for it, a database schema of another owner is judged as if it had been
// taken over, and a warning says whose it is (docs/design.md section 7). Errors: those of Decide.
func DecidePlan(target Target, facts Facts) (Decision, error) {
	if owner := facts.Owner; target.OfAnyOwner && !target.Owner.Has(owner) && target.TakeOver != owner.String() {
		target.TakeOver = owner.String()
		decision, err := Decide(target, facts)
		decision.Warnings = append(decision.Warnings, fmt.Sprintf(
			"this database schema is owned by %s; apply from here would be refused without --take-over %s", owner, owner))
		return decision, err
	}
	return Decide(target, facts)
}

type decider struct {
	target   Target
	facts    Facts
	decision Decision
	drops    []Step // drop table, drop index: all drops come before all creates
	changes  []Step // create table, add column, rewrite payload
	indexes  []Step
	created  map[string]map[string]bool // table to columns that we create or created
}

func (d *decider) checkCatalog() error {
	if d.facts.Protocol > CatalogProtocol {
		return Refuse(CodeNewerCatalog, "the catalog of this database has protocol %d, this program knows up to %d",
			d.facts.Protocol, CatalogProtocol).WithHint("use the newer Syncbarrier that wrote it")
	}
	if d.facts.Protocol == 0 && len(d.facts.Reserved) > 0 {
		return Refuse(CodeInvalidSpec, "partition key %q is in use, but %q and keys beginning with %q are reserved",
			d.facts.Reserved[0], AllPartitions, CapturePrefix)
	}
	return nil
}

// checkOwner: one database schema has one owner. A cluster object takes over from a command line of the same name.
func (d *decider) checkOwner() error {
	owner, want := d.facts.Owner, d.target.Owner
	if want.Has(owner) || d.target.TakeOver == owner.String() {
		return nil
	}
	return Refuse(CodeConflict, "this database schema is managed by %s (cluster %q), not by %s", owner, owner.Cluster, want).
		WithHint("take it over by naming its owner: --take-over %s, or the annotation syncbarrier.dev/take-over", owner)
}

func (d *decider) checkVersion() error {
	stored := d.facts.stored()
	if stored > d.target.Version {
		return Refuse(CodeVersionRegression, "the database is at version %d, which is newer than version %d", stored, d.target.Version).
			WithHint("versions never go down; roll forward with a higher version")
	}
	return nil
}

// checkAppliedEntries: what belongs to an applied version matches what was recorded, or is absent. Of versions that another program brought the
// database past there is no record: their SQL is taken as run, for the marker says so, but that a backfill was done has to be shown.
func (d *decider) checkAppliedEntries() error {
	for _, m := range d.target.Migrations {
		row, ok := d.facts.historyOf(m.Version)
		if m.Version > d.facts.stored() || !ok && d.beforeOurRecord(m.Version) {
			continue
		}
		if row.Entries.Migration != m.Hash() {
			return Refuse(CodeContentDrift, "migrations: the SQL of version %d is not what was applied", m.Version).
				WithHint("an applied version does not change; put it back, or write a new version")
		}
	}
	for _, c := range d.target.Checkpoints {
		if c.Version > d.facts.stored() {
			continue
		}
		if err := d.checkAppliedCheckpoint(c); err != nil {
			return err
		}
	}
	return nil
}

func (d *decider) checkAppliedCheckpoint(c Checkpoint) error {
	row, known := d.facts.historyOf(c.Version)
	if !known && d.beforeOurRecord(c.Version) {
		if declared, ok := d.facts.Known[c.Name]; c.Standalone || ok && declared.Version == c.Version {
			return nil
		}
		return Refuse(CodeContentDrift, "checkpoints: the database reached version %d without checkpoint %q: nothing shows that its backfill was done",
			c.Version, c.Name).
			WithHint("give it a new name and a higher version; or, if its data is known to be complete, take it out of the file")
	}
	recorded, ok := row.Entries.Checkpoints[c.Name]
	switch {
	case !ok && c.Standalone: // declared later, by DeclareCheckpoint, or refused there
	case !ok:
		return Refuse(CodeContentDrift, "checkpoints: %q was not part of version %d when it was applied", c.Name, c.Version).
			WithHint("give it a new, higher version")
	case recorded.Hash != c.Hash():
		return Refuse(CodeContentDrift, "checkpoints: %q of version %d is not what was applied", c.Name, c.Version).
			WithHint("an applied version does not change; give the new backfill a new name and a higher version")
	}
	return nil
}

// beforeOurRecord: another program brought the database past this version before we knew it, or our record of it was removed.
func (d *decider) beforeOurRecord(version int64) bool {
	if len(d.facts.History) == 0 {
		return true
	}
	first := d.facts.History[0]
	return version < first.Version && !first.Entries.Fresh
}

// checkIncomplete: what a lower version left unfinished must be declared by the caller, or it would be forgotten.
func (d *decider) checkIncomplete() error {
	for _, open := range d.facts.Open {
		if open.Version > d.target.Version {
			continue
		}
		declared := slices.IndexFunc(d.target.Checkpoints, func(c Checkpoint) bool { return c.Name == open.Name })
		if declared >= 0 && coversRows(d.target.Checkpoints[declared], open.Partitions) {
			continue
		}
		return Refuse(CodeCheckpointIncomplete, "checkpoint %q of version %d is not activated in partition %q, and version %d does not declare it",
			open.Name, open.Version, firstUncovered(d.target.Checkpoints, declared, open), d.target.Version).
			WithHint("keep its entry until it is activated, or abandon it")
	}
	return nil
}

func coversRows(c Checkpoint, partitions []string) bool {
	if len(c.Partitions) == 0 {
		return true
	}
	listed := setOf(c.Partitions)
	return !slices.ContainsFunc(partitions, func(p string) bool { return !listed[p] })
}

func firstUncovered(checkpoints []Checkpoint, declared int, open OpenCheckpoint) string {
	listed := map[string]bool{}
	if declared >= 0 {
		listed = setOf(checkpoints[declared].Partitions)
	}
	for _, partition := range open.Partitions {
		if !listed[partition] {
			return partition
		}
	}
	return ""
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, name := range names {
		set[name] = true
	}
	return set
}

func (d *decider) checkRetired() error {
	for _, name := range d.target.RetiredTables {
		if slices.ContainsFunc(d.target.Tables, func(t Table) bool { return t.Name == name }) {
			return Refuse(CodeInvalidSpec, "retiredTables: table %q is also declared in tables", name)
		}
		for checkpoint, known := range d.facts.Known {
			if known.Open && slices.Contains(known.Tables, name) {
				return Refuse(CodeCheckpointIncomplete, "retiredTables: table %q is still needed by checkpoint %q of version %d, which is not activated",
					name, checkpoint, known.Version)
			}
		}
	}
	return nil
}

// checkStoredLayouts: tables only ever grow at their end, and a Syncular table goes only by being named.
func (d *decider) checkStoredLayouts() error {
	last := d.facts.last()
	for _, t := range d.target.Tables {
		stored, known := last.PlainLayouts[t.Name]
		if d.facts.Marker != nil {
			if syncular, ok := d.facts.Marker.Layouts[t.Name]; ok {
				if t.Layout != Syncular {
					return Refuse(CodeLayoutMismatch, "tables: %q is a Syncular table in this database and declared %s", t.Name, t.Layout)
				}
				stored, known = syncular, true
			} else if t.Layout == Syncular && known {
				return Refuse(CodeLayoutMismatch, "tables: %q is a Plain table in this database and declared Syncular", t.Name)
			}
		}
		if !known {
			if t.Layout == Syncular && d.facts.Marker != nil && d.facts.stored() == d.target.Version {
				return Refuse(CodeLayoutMismatch, "tables: the Syncular table %q is not among the stored layouts of version %d", t.Name, d.target.Version)
			}
			continue
		}
		appended, problem := compareLayouts(stored, layoutOf(t))
		if problem == "" && appended > 0 && d.facts.stored() == d.target.Version {
			problem = fmt.Sprintf("it has %d columns more than version %d was applied with", appended, d.target.Version)
		}
		if problem != "" {
			return Refuse(CodeLayoutMismatch, "tables: %q: %s", t.Name, problem)
		}
	}
	if d.facts.Marker == nil {
		return nil
	}
	for _, name := range sortedKeys(d.facts.Marker.Layouts) {
		declared := slices.ContainsFunc(d.target.Tables, func(t Table) bool { return t.Name == name })
		if !declared && !slices.Contains(d.target.RetiredTables, name) {
			return Refuse(CodeLayoutMismatch, "tables: the Syncular table %q of version %d is neither declared nor retired", name, d.facts.stored()).
				WithHint("declare it, or name it in retiredTables to drop it")
		}
	}
	return nil
}

func (d *decider) chooseOutcome() error {
	if d.facts.stored() < d.target.Version {
		d.decision.Outcome = Migrate
		return nil
	}
	row, known := d.facts.historyOf(d.target.Version)
	if !known {
		d.decision.Outcome = Adopt
		d.warnOfAdoption()
		return nil
	}
	if hash := d.target.ContentHash(d.target.Version); row.ContentHash != hash {
		return Refuse(CodeContentDrift, "version %d was applied with other content (hash %.12s, now %.12s)", d.target.Version, row.ContentHash, hash).
			WithHint("put the content of version %d back, or write version %d", d.target.Version, d.target.Version+1)
	}
	d.decision.Outcome = Agreed
	return nil
}

// warnOfAdoption: what another program did at this version cannot be known.
func (d *decider) warnOfAdoption() {
	for _, m := range d.target.Migrations {
		if m.Version == d.target.Version {
			d.decision.Warnings = append(d.decision.Warnings,
				fmt.Sprintf("the SQL of version %d is taken as already run: another program brought the database there", m.Version))
		}
	}
}

func (d *decider) finishUnchanged() (Decision, error) {
	last := d.facts.last()
	d.created = createdColumns(last)
	if err := CheckPhysical(d.target, d.facts, d.created); err != nil {
		return Decision{}, err
	}
	d.decision.MinWriter, d.decision.MinReader = d.facts.Fence, last.MinReaderVersion
	if d.decision.Outcome == Adopt {
		if err := d.adoptReaders(); err != nil {
			return Decision{}, err
		}
		return d.decision, d.planHistory()
	}
	return d.decision, nil
}

// planMigrations puts the SQL of every version passed between the columns and the indexes: it may use new columns, and
// an index may need what it wrote.
func (d *decider) planMigrations() error {
	var run []Step
	for _, m := range d.target.Migrations {
		if m.Version > d.facts.stored() && m.Version <= d.target.Version && strings.TrimSpace(m.SQL) != "" {
			run = append(run, Step{Kind: StepRunSQL, Version: m.Version, SQL: m.SQL})
		}
	}
	slices.SortStableFunc(run, func(a, b Step) int { return int(a.Version - b.Version) })
	d.decision.Steps = slices.Concat(d.drops, d.changes, run, d.indexes)
	return nil
}
