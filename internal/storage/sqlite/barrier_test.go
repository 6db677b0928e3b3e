package sqlite

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestFirstBarrierMakesEverything(t *testing.T) {
	path := newFile(t)
	store := openStore(t, path)
	result := apply(t, store, version6())
	same(t, "outcome", result.Outcome, storage.Migrate)
	p := openProgram(t, path)
	same(t, "marker", p.number("SELECT schema_version FROM sync_schema_meta WHERE id = 1"), 6)
	result = apply(t, store, version6())
	same(t, "outcome", result.Outcome, storage.Agreed)
	result = apply(t, store, version7())
	same(t, "outcome", result.Outcome, storage.Migrate)
	same(t, "fence", p.number("SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'"), 7)
	t.Log(p.dump())
}
