package storagetest

import "github.com/syncbarrier/syncbarrier/internal/storage"

// barrierApproved: from an empty database, where a barrier installs the catalog first, and from a version.
func barrierApproved(f *fixture) {
	approved := func(target storage.Target) storage.Target {
		plan, err := f.store.Plan(f.ctx, target)
		f.must(err, "plan")
		target.PlanHash = plan.Hash
		return target
	}
	same(f, "outcome on an empty database", f.apply(approved(version1())).Outcome, storage.Migrate)

	second := approved(version2(titleNorm(2)))
	f.exec("ALTER TABLE todos ADD COLUMN title_norm TEXT") // by hand: the plan has one step less, and no lock that it did not have
	result, err := f.store.EnsureSchema(f.ctx, second, storage.Attempt{Number: 1})
	f.wantCode(err, storage.CodeSerialization)
	f.wantMessage(err, second.PlanHash, approved(second).PlanHash)
	same(f, "version", result.Version, 0)
	same(f, "stored version", f.number("SELECT schema_version FROM sync_schema_meta"), 1)
	same(f, "outcome once it is approved anew", f.apply(approved(second)).Outcome, storage.Migrate)
	same(f, "outcome of what is done", f.apply(second).Outcome, storage.Agreed)
}
