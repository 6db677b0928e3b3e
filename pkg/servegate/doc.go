// Package servegate is the serve gate for applications: may this program, built
// for schema version V, serve from this database? (docs/design.md sections 2 and
// 8, docs/gates.md.)
//
//	gate, err := servegate.ForPool(pool, servegate.Options{Version: 7, Name: "clinic"})
//	...
//	http.Handle("/readyz", gate.Handler())
//
// Check answers from one read of the database. Query runs a function only if the
// gate is open, on the very snapshot in which it was: what the function reads is
// what the proof speaks of. Handler is for a readiness probe.
//
// Only the database opens the gate. An error, a standby, a lost right, another
// database, an emptied table and a missing catalog never do, and neither does what
// a person decides in a cluster: gate.mode Report and a bypass are of the pods'
// condition, and this package knows no cluster.
//
// It works on a pgx pool, and on database/sql for PostgreSQL and SQLite with
// whatever driver the application has.
package servegate
