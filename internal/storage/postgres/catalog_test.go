package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

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
