package testdb

import "testing"

// Program returns the path of a client program that belongs to the shared server's PostgreSQL, for instance pgbench.
func Program(t testing.TB, name string) string {
	t.Helper()
	found, err := findBinaries(0)
	if err != nil {
		t.Fatalf("find %s: %v", name, err)
	}
	return found.path(name)
}
