package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestOpenConnects(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	if !store.settings.connectionCheck {
		t.Error("client_connection_check_interval was not found to work")
	}
}
