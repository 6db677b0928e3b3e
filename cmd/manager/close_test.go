package main

import (
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/controllers"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// The lease may be another's soon after it was lost, so the time to end in is one for everything that is open.
func TestAllDatabasesAreClosedWithinOneBound(t *testing.T) {
	connection := controllers.Connection{
		Address: "database", Server: "database", User: "postgres", URL: controllers.Secret(testdb.Postgres(t)), Schema: "public",
	}
	var all []*controllers.Databases
	for range 4 {
		databases := controllers.NewDatabases(openDatabase, nil)
		lease, err := databases.Acquire(t.Context(), connection)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(lease.Release) // what keeps it open
		all = append(all, databases)
	}
	const limit = 2 * time.Second
	started := time.Now()
	if err := closeWithin(limit, all...); err == nil {
		t.Error("they are closed while they are in use")
	}
	if took := time.Since(started); took < limit || took > 3*limit {
		t.Errorf("it took %v, the bound is %v", took, limit)
	}
}
