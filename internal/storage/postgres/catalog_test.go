package postgres

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// installCatalog does what a barrier does first.
func installCatalog(t testing.TB, store *Store) {
	t.Helper()
	err := store.inTx(testContext(t), "install", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		return store.ensureCatalog(ctx, tx)
	})
	if err != nil {
		t.Fatalf("install the catalog: %v", err)
	}
}

func TestAFreshCatalogIsIntact(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	installCatalog(t, store)
	report, err := store.CheckFence(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if !report.Intact() {
		t.Errorf("findings: %+v", report.Findings)
	}
}
