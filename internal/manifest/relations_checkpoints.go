package manifest

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (r *relations) checkCheckpoints() {
	names := map[string]bool{}
	for _, c := range r.checkpoints {
		if names[c.Name] {
			r.errs = append(r.errs, field.Duplicate(c.path.Child("name"), c.Name))
		}
		names[c.Name] = true
		if c.Version > r.spec.Version && !c.standalone {
			r.invalid(c.path.Child("version"), c.Version, "it is higher than spec.version, %d", r.spec.Version)
		}
		r.checkSources(c)
		r.checkBackfill(c)
		r.checkPartitions(c)
		r.checkVerify(c)
	}
	r.checkColumnsApart()
}

// backfilledTable is the table whose keys the backfill goes over, "" for a container of the user's own.
func backfilledTable(c checkpoint) string {
	switch {
	case c.Backfill.Update != nil:
		return c.Backfill.Update.Table
	case c.Backfill.Statement != nil:
		return c.Backfill.Statement.Table
	default:
		return ""
	}
}

func (r *relations) checkSources(c checkpoint) {
	target := backfilledTable(c)
	seen := map[string]bool{}
	for i := range c.Sources {
		source, at := &c.Sources[i], c.path.Child("sources").Index(i)
		if seen[source.Table] {
			r.errs = append(r.errs, field.Duplicate(at.Child("table"), source.Table))
		}
		seen[source.Table] = true
		if source.Keys == "" && target != "" && source.Table != target {
			r.errs = append(r.errs, field.Required(at.Child("keys"),
				"the backfill goes over "+target+", so a query must map changed keys of this source to keys of that table"))
		}
		if source.Keys != "" {
			r.checkSQL(at.Child("keys"), source.Keys)
		}
		if table := r.keyedTable(at.Child("table"), source.Table); table != nil {
			r.checkSourceOf(at, source, table)
		}
	}
}

// checkSourceOf checks a source against its table.
func (r *relations) checkSourceOf(at *field.Path, source *v1alpha1.Source, table *v1alpha1.Table) {
	for j, name := range source.Columns {
		if findColumn(table, name) == nil {
			r.invalid(at.Child("columns").Index(j), name, "table %q declares no such column", table.Name)
		}
	}
	if source.Changes == v1alpha1.ChangesCommitLog && table.Partition != nil && table.Partition.Hash != nil {
		r.invalid(at.Child("changes"), source.Changes, "table %q is partitioned by hash, and the program's commits name its own partitions, "+
			"never those of a hash; use partition.column, or leave partition out", table.Name)
	}
}

// keyedTable finds a table that a checkpoint goes over or reads. Without a key, rows cannot be told apart nor paged.
func (r *relations) keyedTable(path *field.Path, name string) *v1alpha1.Table {
	table := r.tables[name]
	switch {
	case table == nil && slices.Contains(r.spec.RetiredTables, name):
		r.invalid(path, name, "the table stands in spec.retiredTables, so it is dropped")
	case table == nil:
		r.invalid(path, name, "spec.tables declares no such table")
	case !isSyncular(table) && len(table.PrimaryKey) == 0:
		r.invalid(path, name, "the table declares no primaryKey, so its rows cannot be told apart")
	case isBatchRelation(name):
		r.invalid(path, name, "backfills know a relation of their own by this name, which would hide the table")
	}
	return table
}

func (r *relations) checkBackfill(c checkpoint) {
	path := c.path.Child("backfill")
	switch {
	case c.Backfill.Update != nil:
		r.checkUpdate(path.Child("update"), c.Backfill.Update)
	case c.Backfill.Statement != nil:
		statement, at := c.Backfill.Statement, path.Child("statement")
		r.keyedTable(at.Child("table"), statement.Table)
		r.checkSQL(at.Child("apply"), statement.Apply)
		if statement.Remove != "" {
			r.checkSQL(at.Child("remove"), statement.Remove)
		}
	case c.Backfill.Job != nil && r.online():
		r.forbidden(path.Child("job"), "strategy Online needs a backfill that we can run inside its last step: update or statement")
	}
}

func (r *relations) checkUpdate(path *field.Path, update *v1alpha1.Update) {
	table := r.keyedTable(path.Child("table"), update.Table)
	if table != nil && isSyncular(table) {
		r.invalid(path.Child("table"), update.Table, "update is for Plain tables: in a Syncular table the payload is what counts, and changing it is the program's commit")
		return
	}
	for _, name := range slices.Sorted(maps.Keys(update.Set)) {
		at := path.Child("set").Key(name)
		r.checkSQL(at, string(update.Set[name]))
		if table == nil {
			continue
		}
		switch {
		case findColumn(table, name) == nil:
			r.invalid(at, name, "table %q declares no such column", table.Name)
		case slices.Contains(table.PrimaryKey, name):
			r.invalid(at, name, "it is a key column, by which the backfill finds its rows")
		case table.Partition != nil && table.Partition.Column == name:
			r.invalid(at, name, "it is the partition column, so rows would move from one partition to another")
		}
	}
}

// checkPartitions: partitions can be listed only where each row says which one it belongs to.
func (r *relations) checkPartitions(c checkpoint) {
	path := c.path.Child("partitions")
	seen := map[string]bool{}
	onlyDefault := true
	for i, key := range c.Partitions {
		r.checkPartition(path.Index(i), key)
		if seen[key] {
			r.errs = append(r.errs, field.Duplicate(path.Index(i), key))
		}
		seen[key] = true
		onlyDefault = onlyDefault && key == storage.DefaultPartition
	}
	if len(c.Partitions) == 0 || onlyDefault {
		return
	}
	for _, name := range tablesOf(c) {
		table := r.tables[name]
		if table != nil && !isSyncular(table) && !isPartitioned(table) {
			r.forbidden(path, "table %q declares no partition.column, so its rows cannot be told apart by partition; "+
				"give it one, list %q only, or leave partitions out", name, storage.DefaultPartition)
		}
	}
}

// isPartitioned says whether the rows of a Plain table have a partition that a checkpoint can list: a column's text. The slices of a hash only
// spread the log.
func isPartitioned(table *v1alpha1.Table) bool {
	return table.Partition != nil && table.Partition.Column != ""
}

// tablesOf lists the tables of a checkpoint, each once, the backfilled one first.
func tablesOf(c checkpoint) []string {
	var names []string
	if target := backfilledTable(c); target != "" {
		names = append(names, target)
	}
	for i := range c.Sources {
		if !slices.Contains(names, c.Sources[i].Table) {
			names = append(names, c.Sources[i].Table)
		}
	}
	return names
}

func (r *relations) checkVerify(c checkpoint) {
	seen := map[string]bool{}
	for i := range c.Verify {
		verify, at := &c.Verify[i], c.path.Child("verify").Index(i)
		r.checkText(at.Child("name"), verify.Name)
		r.checkSQL(at.Child("query"), verify.Query)
		if seen[verify.Name] {
			r.errs = append(r.errs, field.Duplicate(at.Child("name"), verify.Name))
		}
		seen[verify.Name] = true
	}
}

// checkColumnsApart: a column that one open checkpoint sets cannot be read by another, since the one's own writes would be the
// other's source changes. Checkpoints of one version are open together; those of different versions may not be, which only the
// database knows.
func (r *relations) checkColumnsApart() {
	for _, setter := range r.checkpoints {
		if setter.Backfill.Update == nil {
			continue
		}
		for _, reader := range r.checkpoints {
			if setter.Version == reader.Version {
				r.checkReads(setter, reader)
			}
		}
	}
}

func (r *relations) checkReads(setter, reader checkpoint) {
	for i := range reader.Sources {
		source := &reader.Sources[i]
		if source.Table != setter.Backfill.Update.Table {
			continue
		}
		for j, name := range source.Columns {
			if _, sets := setter.Backfill.Update.Set[name]; sets {
				r.invalid(reader.path.Child("sources").Index(i).Child("columns").Index(j), name,
					"checkpoint %q sets this column, so it cannot be a source column of %q at the same version", setter.Name, reader.Name)
			}
		}
	}
}
