package postgres

import (
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestIdentityNamesClusterDatabaseAndSchema(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	admin.run("CREATE SCHEMA clinic")
	identity, err := openStore(t, Config{URL: dsn, Schema: "clinic"}).Identity(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if identity.System != value[string](admin, "SELECT system_identifier::text FROM pg_control_system()") ||
		identity.Database != value[string](admin, "SELECT current_database()::text") || identity.Schema != "clinic" ||
		!strings.HasPrefix(identity.Server, "PostgreSQL ") {
		t.Errorf("identity %+v", identity)
	}
	other, err := openStore(t, Config{URL: testdb.Postgres(t)}).Identity(testContext(t))
	if err != nil || other.System != identity.System || other.Database == identity.Database {
		t.Errorf("another database of the same cluster: %+v, %v", other, err)
	}
}

func TestIdentityOfARoleThatIsNobody(t *testing.T) {
	dsn := testdb.Postgres(t)
	identity, err := openStore(t, Config{URL: testdb.Role(t, dsn, "nobody")}).Identity(testContext(t))
	if err != nil || identity.System == "" {
		t.Errorf("identity %+v, error %v", identity, err)
	}
	admin := connect(t, dsn)
	admin.run("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	identity, err = openStore(t, Config{URL: testdb.Role(t, dsn, "nobody")}).Identity(testContext(t))
	if err != nil || identity.System != "" || identity.Database == "" {
		t.Errorf("without the right: identity %+v, error %v", identity, err)
	}
}
