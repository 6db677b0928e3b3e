package manifest

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// Relations checks what one part of a SyncSchema says against another, and standalone checkpoints of the schema against it. It
// presumes that the schema of the CustomResourceDefinition holds for each object by itself, but panics for none.
//
// Paths begin with spec for the SyncSchema, and with BackfillCheckpoint[<name>].spec for a standalone one. The list is nil
// where all is right. docs/design.md sections 3 and 5 to 7 have the rules.
func Relations(spec *v1alpha1.SyncSchemaSpec, standalone ...v1alpha1.BackfillCheckpoint) field.ErrorList {
	r := &relations{spec: spec, root: field.NewPath("spec"), tables: map[string]*v1alpha1.Table{}}
	for i := range spec.Tables {
		r.tables[spec.Tables[i].Name] = &spec.Tables[i]
	}
	r.collectCheckpoints(standalone)

	r.checkDatabase()
	r.checkMinimums()
	r.checkStrategy()
	r.checkTables()
	r.checkRetired()
	r.checkMigrations()
	r.checkCheckpoints()
	return r.errs
}

// relations is one run of Relations.
type relations struct {
	spec        *v1alpha1.SyncSchemaSpec
	root        *field.Path
	tables      map[string]*v1alpha1.Table // by name
	checkpoints []checkpoint
	errs        field.ErrorList
}

// checkpoint is an entry of spec.checkpoints or a standalone BackfillCheckpoint.
type checkpoint struct {
	*v1alpha1.Checkpoint
	path       *field.Path
	standalone bool
}

func (r *relations) collectCheckpoints(standalone []v1alpha1.BackfillCheckpoint) {
	for i := range r.spec.Checkpoints {
		r.checkpoints = append(r.checkpoints, checkpoint{
			Checkpoint: &r.spec.Checkpoints[i],
			path:       r.root.Child("checkpoints").Index(i),
		})
	}
	for i := range standalone {
		r.checkpoints = append(r.checkpoints, checkpoint{
			Checkpoint: &standalone[i].Spec.Checkpoint,
			path:       field.NewPath(v1alpha1.KindBackfillCheckpoint).Key(standalone[i].Name).Child("spec"),
			standalone: true,
		})
	}
}

func (r *relations) invalid(path *field.Path, value any, format string, args ...any) {
	r.errs = append(r.errs, field.Invalid(path, value, fmt.Sprintf(format, args...)))
}

func (r *relations) forbidden(path *field.Path, format string, args ...any) {
	r.errs = append(r.errs, field.Forbidden(path, fmt.Sprintf(format, args...)))
}

func (r *relations) checkDatabase() {
	if r.spec.Database.Postgres == nil || r.spec.Database.Postgres.Schema == "" {
		return
	}
	path, name := r.root.Child("database", "postgres", "schema"), r.spec.Database.Postgres.Schema
	if problem := ProblemOfSchema(name); problem != "" {
		r.invalid(path, name, "%s", problem)
	}
}

func (r *relations) checkMinimums() {
	for _, minimum := range []struct {
		name  string
		value *int32
	}{{"minWriterVersion", r.spec.MinWriterVersion}, {"minReaderVersion", r.spec.MinReaderVersion}} {
		if minimum.value != nil && *minimum.value > r.spec.Version {
			r.invalid(r.root.Child(minimum.name), *minimum.value, "it is higher than spec.version, %d, so no program could meet it", r.spec.Version)
		}
	}
}

func (r *relations) online() bool { return r.spec.EffectiveStrategy().Type == v1alpha1.StrategyOnline }

func (r *relations) checkStrategy() {
	if r.online() {
		r.errs = append(r.errs, onlineUnavailable(r.root))
	}
}

func (r *relations) checkRetired() {
	path := r.root.Child("retiredTables")
	seen := map[string]bool{}
	for i, name := range r.spec.RetiredTables {
		at := path.Index(i)
		r.checkTableName(at, name)
		if r.tables[name] != nil {
			r.invalid(at, name, "a table cannot be retired and declared in spec.tables at once")
		}
		if seen[name] {
			r.errs = append(r.errs, field.Duplicate(at, name))
		}
		seen[name] = true
	}
}

func (r *relations) checkMigrations() {
	path := r.root.Child("migrations")
	seen := map[int32]bool{}
	for i := range r.spec.Migrations {
		migration, at := &r.spec.Migrations[i], path.Index(i)
		if migration.Version > r.spec.Version {
			r.invalid(at.Child("version"), migration.Version, "it is higher than spec.version, %d", r.spec.Version)
		}
		if seen[migration.Version] {
			r.errs = append(r.errs, field.Duplicate(at.Child("version"), migration.Version))
		}
		seen[migration.Version] = true
		if migration.Phase != "" && !r.online() {
			r.forbidden(at.Child("phase"), "phase is for strategy Online only; with Barrier all SQL runs in the barrier")
		}
		if len(migration.SQLFrom) == 0 {
			r.checkSQL(at.Child("sql"), migration.SQL)
		}
	}
}
