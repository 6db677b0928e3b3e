package sqlite

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestAFileWithoutACatalogDeclaresNoCheckpoint(t *testing.T) {
	t.Parallel()
	removed := openStore(t, newFile(t))
	apply(t, removed, version6())
	apply(t, removed, version7())
	if _, err := removed.Remove(testContext(t), true); err != nil {
		t.Fatal(err)
	}
	for state, store := range map[string]*Store{"an empty file": openStore(t, newFile(t)), "after a removal": removed} {
		for name, do := range map[string]func() error{
			"claim all":       func() error { _, err := store.ClaimAll(testContext(t), "title-norm", false); return err },
			"claim one":       func() error { _, err := store.ClaimCheckpoint(testContext(t), "p", "title-norm"); return err },
			"read progress":   func() error { _, err := store.ReadProgress(testContext(t), "title-norm"); return err },
			"read definition": func() error { _, err := store.ReadDefinition(testContext(t), "title-norm"); return err },
			"write settings":  func() error { return store.WriteSettings(testContext(t), "title-norm", storage.Settings{}) },
			"advance": func() error {
				_, err := store.AdvanceCheckpoint(testContext(t), storage.Advance{Ownership: storage.Ownership{Partition: "p", Name: "title-norm"}})
				return err
			},
		} {
			t.Run(state+", "+name, func(t *testing.T) {
				err := do()
				wantCode(t, err, storage.CodeCheckpointNotDeclared)
				wantText(t, err, "title-norm", "the file has no Syncbarrier catalog")
			})
		}
	}
}

func TestTheLastErrorOfAnActivatedCheckpointIsNotShown(t *testing.T) {
	t.Parallel()
	store, p := guardedFile(t)
	p.exec(`INSERT INTO sync_backfill_progress(checkpoint, kind, partition, owner_epoch, last_error, updated_at_ms)
		VALUES ('title-norm', 'claim', '*', 3, 'it failed', 0), ('title-norm', 'proof', '*', 3, '', 0)`)
	lastError := func() string {
		progress, err := store.ReadProgress(testContext(t), "title-norm")
		if err != nil {
			t.Fatal(err)
		}
		return progress.LastError
	}
	same(t, "last error", lastError(), "it failed")
	p.exec("UPDATE sync_backfill_checkpoints SET state = 'activated' WHERE name = 'title-norm'")
	same(t, "last error once activated", lastError(), "")
}
