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
	if owner == nil {
		return nil
	}
	same := owner.Cluster == want.Cluster && owner.Namespace == want.Namespace && owner.Name == want.Name
	fromCommandLine := owner.Cluster == "" && owner.Namespace == want.Namespace && owner.Name == want.Name
	if same || fromCommandLine || d.target.TakeOver == owner.String() {
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

// checkAppliedEntries: what belongs to an applied version matches what was recorded, or is absent. A database that was
// never ours below its marker has no record, and such entries are taken as done.
func (d *decider) checkAppliedEntries() error {
	if len(d.facts.History) == 0 {
		return nil
	}
	for _, m := range d.target.Migrations {
		if m.Version > d.facts.stored() {
			continue
		}
		row, ok := d.facts.historyOf(m.Version)
		if !ok && d.beforeOurRecord(m.Version) {
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
		row, known := d.facts.historyOf(c.Version)
		if !known && d.beforeOurRecord(c.Version) {
			continue
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
	}
	return nil
}

// beforeOurRecord: another program brought the database past this version before we knew it.
func (d *decider) beforeOurRecord(version int64) bool {
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
		return d.checkAdoption()
	}
	if hash := d.target.ContentHash(d.target.Version); row.ContentHash != hash {
		return Refuse(CodeContentDrift, "version %d was applied with other content (hash %.12s, now %.12s)", d.target.Version, row.ContentHash, hash).
			WithHint("put the content of version %d back, or write version %d", d.target.Version, d.target.Version+1)
	}
	d.decision.Outcome = Agreed
	return nil
}

// checkAdoption: what another program did at this version cannot be known, but what it must have declared can.
func (d *decider) checkAdoption() error {
	for _, c := range d.target.Checkpoints {
		if known, ok := d.facts.Known[c.Name]; !c.Standalone && c.Version == d.target.Version && (!ok || known.Version != c.Version) {
			return Refuse(CodeContentDrift, "checkpoints: the database reached version %d without checkpoint %q", c.Version, c.Name).
				WithHint("give it a new, higher version")
		}
	}
	for _, m := range d.target.Migrations {
		if m.Version == d.target.Version {
			d.decision.Warnings = append(d.decision.Warnings,
				fmt.Sprintf("the SQL of version %d is taken as already run: another program brought the database there", m.Version))
		}
	}
	return nil
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

// adoptReaders: what another program ran and rewrote on the way to this version is not known, so nothing proves that a lower version
// can still read the database, unless the spec says so.
func (d *decider) adoptReaders() error {
	explicit, err := d.explicitReaders()
	if explicit == nil {
		d.decision.MinReader = d.target.Version
	}
	return err
}

// explicitReaders takes the oldest version that may serve from the spec, nil if it says nothing.
func (d *decider) explicitReaders() (*int64, error) {
	minimum, explicit := d.facts.last().MinReaderVersion, d.target.MinReaderVersion
	if explicit == nil {
		return nil, nil
	}
	if *explicit < minimum {
		return explicit, Refuse(CodeInvalidSpec, "minReaderVersion: %d is lower than %d, which this database already needs", *explicit, minimum)
	}
	d.decision.MinReader = *explicit
	return explicit, nil
}

// protocolInUse says whether writers of the sync protocol have to be kept out by the lock on sync_partitions.
func (d *decider) protocolInUse() bool {
	if d.facts.Marker != nil && len(d.facts.Marker.Layouts) > 0 {
		return true
	}
	if slices.ContainsFunc(d.target.Tables, func(t Table) bool { return t.Layout == Syncular }) {
		return true
	}
	return slices.ContainsFunc(d.target.Checkpoints, func(c Checkpoint) bool {
		return slices.ContainsFunc(c.Sources, func(s Source) bool { return s.Changes == CommitLog })
	})
}

// checkNames: a checkpoint name belongs to its version for ever.
func (d *decider) checkNames() error {
	for _, c := range d.target.Checkpoints {
		if c.Version <= d.facts.stored() {
			continue
		}
		known, ok := d.facts.Known[c.Name]
		switch {
		case !ok:
		case known.Abandoned:
			return Refuse(CodeContentDrift, "checkpoints: the name %q was used by version %d and abandoned", c.Name, known.Version).
				WithHint("give it a new name")
		case known.Version != c.Version || known.Hash != "" && known.Hash != c.Hash():
			return Refuse(CodeContentDrift, "checkpoints: the name %q belongs to version %d", c.Name, known.Version).WithHint("give it a new name")
		}
	}
	return nil
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

// planCheckpoints declares every entry above the marker, so that a jump skips nothing.
func (d *decider) planCheckpoints() error {
	for _, c := range d.target.Checkpoints {
		if c.Version <= d.facts.stored() || c.Version > d.target.Version {
			continue
		}
		if err := CheckDeclaration(c, d.target.Tables); err != nil {
			return err
		}
		if err := d.checkKeyOf(c); err != nil {
			return err
		}
		if listed := len(c.Partitions); listed > manyPartitions {
			d.decision.Warnings = append(d.decision.Warnings, fmt.Sprintf(
				"checkpoint %q lists %d partitions: the lock is held about %d ms longer for their rows; leave partitions out to cover all with one row",
				c.Name, listed, listed*24/1000))
		}
		d.decision.Declare = append(d.decision.Declare, c)
	}
	slices.SortStableFunc(d.decision.Declare, func(a, b Checkpoint) int { return int(a.Version - b.Version) })
	d.decision.LockPartitions = d.protocolInUse()
	return CheckColumnsApart(d.openAfter())
}

// openAfter lists the target's checkpoints that are open once the barrier is done: those it declares, and those that still are.
func (d *decider) openAfter() []Checkpoint {
	open := slices.Clone(d.decision.Declare)
	for _, c := range d.target.Checkpoints {
		isOpen := slices.ContainsFunc(d.facts.Open, func(o OpenCheckpoint) bool { return o.Name == c.Name })
		if c.Version <= d.facts.stored() && isOpen {
			open = append(open, c)
		}
	}
	return open
}

// manyPartitions is the number of listed partitions from which a plan warns: their rows and fences cost about 2.4 s under the
// lock for each 100,000 (measured).
const manyPartitions = 10000

// checkKeyOf: paging needs a key that is unique and never NULL, or rows would be skipped in silence.
func (d *decider) checkKeyOf(c Checkpoint) error {
	table, _ := findTable(d.target.Tables, c.Backfill.Table())
	physical, exists := d.facts.Tables[table.Name]
	if !exists {
		return nil // an external backfill, or a table that this barrier creates with its key
	}
	isKey := slices.Equal(physical.Key, table.Key()) || slices.ContainsFunc(physical.Unique, func(u []string) bool { return slices.Equal(u, table.Key()) })
	if !isKey {
		return Refuse(CodeInvalidSpec, "tables: %q: (%s) is no primary key or unique NOT NULL key of the table, so checkpoint %q cannot go over it",
			table.Name, strings.Join(table.Key(), ", "), c.Name)
	}
	if physical.NullKey {
		return Refuse(CodeInvalidSpec, "tables: %q has rows whose key (%s) is NULL, so checkpoint %q cannot go over it",
			table.Name, strings.Join(table.Key(), ", "), c.Name)
	}
	return nil
}

// planFence computes the minimum writer versions (docs/design.md section 3, "Fence").
func (d *decider) planFence() error {
	var all int64
	var because string
	for _, c := range d.decision.Declare {
		captured := slices.ContainsFunc(c.Sources, func(s Source) bool { return s.Changes == Capture })
		if len(c.Partitions) == 0 || captured {
			if c.Version > all {
				all, because = c.Version, c.Name
			}
			continue
		}
		for _, partition := range c.Partitions {
			d.decision.Raise[partition] = max(d.decision.Raise[partition], c.Version)
		}
	}
	if explicit := d.target.MinWriterVersion; explicit != nil {
		switch {
		case *explicit < d.facts.Fence:
			return Refuse(CodeInvalidSpec, "minWriterVersion: %d is lower than the fence of this database, %d, and a fence never goes down", *explicit, d.facts.Fence)
		case *explicit < all:
			return Refuse(CodeInvalidSpec, "minWriterVersion: %d is lower than version %d of checkpoint %q, which could then never be activated", *explicit, all, because)
		}
		all = *explicit
	}
	d.decision.MinWriter = max(all, d.facts.Fence)
	if d.decision.MinWriter > d.facts.Fence {
		d.decision.Raise[AllPartitions] = d.decision.MinWriter
	}
	for partition, version := range d.decision.Raise {
		if partition != AllPartitions && version <= d.decision.MinWriter {
			delete(d.decision.Raise, partition) // the fence for all says it already
		}
	}
	return nil
}

// planReaders computes the oldest version that may serve: rewrites and SQL shut older readers out unless the spec says not.
func (d *decider) planReaders() error {
	if explicit, err := d.explicitReaders(); explicit != nil || err != nil {
		return err
	}
	minimum := d.facts.last().MinReaderVersion
	for _, step := range d.decision.Steps {
		switch step.Kind {
		case StepRunSQL:
			minimum = max(minimum, step.Version)
		case StepRewritePayload:
			minimum = max(minimum, d.target.Version)
		}
	}
	d.decision.MinReader = minimum
	return nil
}

// maxPassed bounds the history rows of one jump; beyond it only versions that brought something get a row.
const maxPassed = 1000

// planHistory writes one row per version passed, so that what a jump ran can be told later.
func (d *decider) planHistory() error {
	layouts, err := EncodeLayouts(d.target.Tables)
	if err != nil {
		return err
	}
	d.decision.Layouts = layouts
	d.decision.PlainLayouts = d.plainLayouts()
	for _, version := range d.passedVersions() {
		row := HistoryRow{
			Version: version, ContentHash: d.target.ContentHash(version), State: HistoryApplied,
			Entries:      HistoryEntries{Checkpoints: map[string]HistoryCheckpoint{}},
			PlainLayouts: d.decision.PlainLayouts, MinWriterVersion: d.decision.MinWriter, MinReaderVersion: d.decision.MinReader,
		}
		for _, m := range d.target.Migrations {
			if m.Version == version {
				row.Entries.Migration = m.Hash()
			}
		}
		for _, c := range d.target.Checkpoints {
			if c.Version == version {
				row.Entries.Checkpoints[c.Name] = HistoryCheckpoint{Hash: c.Hash(), Rows: len(c.Rows())}
			}
		}
		d.decision.Passed = append(d.decision.Passed, row)
	}
	d.decision.Passed[0].Entries.Fresh = d.decision.Outcome == Migrate && d.decision.Stored == 0
	return nil
}

func (d *decider) passedVersions() []int64 {
	stored, wanted := d.facts.stored(), d.target.Version
	passed := map[int64]bool{wanted: true}
	if d.decision.Outcome == Migrate {
		if stored > 0 && wanted-stored <= maxPassed {
			for v := stored + 1; v <= wanted; v++ {
				passed[v] = true
			}
		}
		for _, m := range d.target.Migrations {
			passed[m.Version] = passed[m.Version] || m.Version > stored && m.Version <= wanted
		}
		for _, c := range d.target.Checkpoints {
			passed[c.Version] = passed[c.Version] || c.Version > stored && c.Version <= wanted
		}
	}
	var versions []int64
	for version, yes := range passed {
		if yes {
			versions = append(versions, version)
		}
	}
	slices.Sort(versions)
	return versions
}

// plainLayouts keeps the layouts of Plain tables, of those no longer declared too, and which of their columns we made.
func (d *decider) plainLayouts() map[string][]LayoutColumn {
	layouts := map[string][]LayoutColumn{}
	for name, columns := range d.facts.last().PlainLayouts {
		if !slices.Contains(d.target.RetiredTables, name) {
			layouts[name] = columns
		}
	}
	for _, t := range d.target.Tables {
		if t.Layout != Plain {
			continue
		}
		columns := layoutOf(t)
		for i := range columns {
			columns[i].Created = d.created[t.Name][columns[i].Name]
		}
		layouts[t.Name] = columns
	}
	return layouts
}

func createdColumns(row HistoryRow) map[string]map[string]bool {
	created := map[string]map[string]bool{}
	for table, columns := range row.PlainLayouts {
		created[table] = map[string]bool{}
		for _, c := range columns {
			created[table][c.Name] = c.Created
		}
	}
	return created
}
