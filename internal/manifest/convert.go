package manifest

import (
	"cmp"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Convert makes the engine's input from a file. The owner is the command line's: the file's namespace and name, and no cluster.
//
// Standalone checkpoints above the schema's version are not part of the target: they wait until the schema has that version,
// and are returned beside it.
//
// Errors: storage.CodeInvalidSpec with what Relations finds, and with each migration whose SQL only a cluster can read.
func Convert(f *File) (storage.Target, []v1alpha1.BackfillCheckpoint, error) {
	errs := Relations(&f.Schema.Spec, f.Checkpoints...)
	path := field.NewPath("spec", "migrations")
	for i := range f.Schema.Spec.Migrations {
		if len(f.Schema.Spec.Migrations[i].SQLFrom) > 0 {
			errs = append(errs, field.Forbidden(path.Index(i).Child("sqlFrom"),
				"a ConfigMap can be read in a cluster only; on the command line put the SQL into sql"))
		}
	}
	if len(errs) > 0 {
		return storage.Target{}, nil, fieldProblems(errs, f.lineOf).invalid(f.Name)
	}
	var waiting []v1alpha1.BackfillCheckpoint
	for i := range f.Checkpoints {
		if f.Checkpoints[i].Spec.Version > f.Schema.Spec.Version {
			waiting = append(waiting, f.Checkpoints[i])
		}
	}
	return Target(&f.Schema, nil, f.Checkpoints...), waiting, nil
}

// Target makes the engine's input from objects that Relations finds right. sqlFrom has the SQL, by version, of the migrations that
// take it from ConfigMaps. Standalone checkpoints above the schema's version are left out. The owner has no cluster; a
// controller adds its own.
func Target(schema *v1alpha1.SyncSchema, sqlFrom map[int32]string, standalone ...v1alpha1.BackfillCheckpoint) storage.Target {
	spec := &schema.Spec
	lock := spec.EffectiveLock()
	target := storage.Target{
		Version:          int64(spec.Version),
		MinWriterVersion: optional(spec.MinWriterVersion),
		MinReaderVersion: optional(spec.MinReaderVersion),
		RetiredTables:    slices.Clone(spec.RetiredTables),
		Owner: storage.Owner{
			Namespace: cmp.Or(schema.Namespace, metav1.NamespaceDefault),
			Name:      schema.Name,
			UID:       string(schema.UID),
		},
		Lock: storage.LockLimits{
			TimeoutMilliseconds:     int(lock.TimeoutMilliseconds),
			StatementTimeoutSeconds: int(lock.StatementTimeoutSeconds),
		},
	}
	for i := range spec.Tables {
		target.Tables = append(target.Tables, convertTable(&spec.Tables[i]))
	}
	for i := range spec.Migrations {
		target.Migrations = append(target.Migrations, convertMigration(&spec.Migrations[i], sqlFrom))
	}
	slices.SortStableFunc(target.Migrations, func(a, b storage.Migration) int { return cmp.Compare(a.Version, b.Version) })
	for i := range spec.Checkpoints {
		target.Checkpoints = append(target.Checkpoints, convertCheckpoint(&spec.Checkpoints[i]))
	}
	for i := range standalone {
		if standalone[i].Spec.Version <= spec.Version {
			checkpoint := convertCheckpoint(&standalone[i].Spec.Checkpoint)
			checkpoint.Standalone = true
			target.Checkpoints = append(target.Checkpoints, checkpoint)
		}
	}
	return target
}

func optional(version *int32) *int64 {
	if version == nil {
		return nil
	}
	wide := int64(*version)
	return &wide
}

func convertTable(in *v1alpha1.Table) storage.Table {
	out := storage.Table{
		Name:       in.Name,
		Layout:     storage.Layout(cmp.Or(in.Layout, v1alpha1.LayoutPlain)),
		PrimaryKey: slices.Clone(in.PrimaryKey),
	}
	out.Materialize = out.Layout == storage.Syncular && in.Materialized()
	for i := range in.Columns {
		column := &in.Columns[i]
		out.Columns = append(out.Columns, storage.Column{
			Name: column.Name, Type: storage.ColumnType(column.Type), SQLType: column.SQLType, Nullable: column.Nullable,
		})
	}
	if in.Partition != nil {
		out.Partition.Column = in.Partition.Column
		if in.Partition.Hash != nil {
			out.Partition.Hash = int(*in.Partition.Hash)
		}
	}
	for i := range in.Indexes {
		index := &in.Indexes[i]
		out.Indexes = append(out.Indexes, storage.Index{Name: index.Name, Columns: slices.Clone(index.Columns), Unique: index.Unique})
	}
	return out
}

func convertMigration(in *v1alpha1.Migration, sqlFrom map[int32]string) storage.Migration {
	out := storage.Migration{Version: int64(in.Version), SQL: in.SQL}
	if len(in.SQLFrom) > 0 {
		out.SQL = sqlFrom[in.Version]
	}
	return out
}

func convertCheckpoint(in *v1alpha1.Checkpoint) storage.Checkpoint {
	out := storage.Checkpoint{
		Name:       in.Name,
		Version:    int64(in.Version),
		Partitions: slices.Clone(in.Partitions),
		Backfill:   convertBackfill(&in.Backfill),
		Settings:   Settings(&in.Backfill),
	}
	for i := range in.Sources {
		source := &in.Sources[i]
		out.Sources = append(out.Sources, storage.Source{
			Table: source.Table, Changes: storage.Changes(source.Changes), Columns: slices.Clone(source.Columns), Keys: source.Keys,
		})
	}
	for i := range in.Verify {
		out.Verify = append(out.Verify, storage.Verify{Name: in.Verify[i].Name, Query: in.Verify[i].Query})
	}
	return out
}

func convertBackfill(in *v1alpha1.Backfill) storage.Backfill {
	out := storage.Backfill{}
	if in.Job != nil {
		out.Job, out.JobTemplate = true, canonicalTemplate(in.Job.Template.Raw)
	}
	if in.Update != nil {
		out.Update = &storage.Update{Table: in.Update.Table, Set: make(map[string]string, len(in.Update.Set))}
		for column, expression := range in.Update.Set {
			out.Update.Set[column] = string(expression)
		}
	}
	if in.Statement != nil {
		out.Statement = &storage.Statement{Table: in.Statement.Table, Apply: in.Statement.Apply, Remove: in.Statement.Remove}
	}
	return out
}

// canonicalTemplate writes a pod template so that only its content counts, not the order of its keys; "" for an empty one.
func canonicalTemplate(raw []byte) string {
	var template map[string]any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &template); err != nil || len(template) == 0 {
		return "" // the schema admits objects only
	}
	canonical, err := json.Marshal(template)
	if err != nil {
		return string(raw) // what was read from JSON can be written as JSON
	}
	return string(canonical)
}

// Settings are the live settings of a backfill, with every omitted one at its default. They are never paused: what
// spec.suspend stops is the caller's to say.
func Settings(in *v1alpha1.Backfill) storage.Settings {
	return storage.Settings{
		BatchRows:                int(cmp.Or(in.BatchRows, v1alpha1.DefaultBatchRows)),
		MaxRowsPerSecond:         int(in.MaxRowsPerSecond),
		MaxReplicationLagSeconds: int(in.MaxReplicationLagSeconds),
		Parallelism:              int(cmp.Or(in.Parallelism, v1alpha1.DefaultParallelism)),
	}
}
