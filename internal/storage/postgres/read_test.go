package postgres

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestWithoutACatalogNoCheckpointIsDeclared(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	ctx := testContext(t)
	for name, ask := range map[string]func() error{
		"claim all":        func() error { _, err := store.ClaimAll(ctx, "c", false); return err },
		"claim a row":      func() error { _, err := store.ClaimCheckpoint(ctx, "p", "c"); return err },
		"read progress":    func() error { _, err := store.ReadProgress(ctx, "c"); return err },
		"read definition":  func() error { _, err := store.ReadDefinition(ctx, "c"); return err },
		"read checkpoints": func() error { _, err := store.ReadCheckpoints(ctx, "p"); return err },
		"write settings":   func() error { return store.WriteSettings(ctx, "c", storage.Settings{}) },
		"advance":          func() error { _, err := store.AdvanceCheckpoint(ctx, storage.Advance{}); return err },
		"abandon": func() error {
			_, err := store.AbandonCheckpoint(ctx, "c", 1, "alice", "a mistake")
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := ask()
			expectCode(t, err, storage.CodeCheckpointNotDeclared)
			if err != nil && !strings.Contains(err.Error(), "schema public has no Syncbarrier catalog") {
				t.Errorf("%v does not say that there is no catalog", err)
			}
		})
	}
}
