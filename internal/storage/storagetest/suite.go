// Package storagetest is the contract of storage.Store: what both backends must do, and do alike. A backend's own test file
// opens databases and calls Run; everything else is here, one file a subject.
//
// Where backends truly differ a Capability says so, with its reason beside it. No subject is left out for any other cause.
package storagetest

import (
	"context"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Opener gives a fresh, empty database for one test.
type Opener func(t *testing.T) Database

// Database is one database that a test may fill. Everything in it ends with the test.
type Database struct {
	Dialect      storage.Dialect
	Capabilities Capabilities
	// OpenStore opens one more Store on the database, as another process would. The database may still be empty.
	OpenStore func(t testing.TB, queries ...storage.RegisteredQuery) storage.Store
	// Connect opens a connection of a program that knows nothing of Syncbarrier. Unqualified names mean the tables of the database.
	Connect func(t testing.TB) Connection
}

// Connection is a plain connection, for one goroutine. Placeholders are $1, $2 and so on, in the order of the arguments, in
// both products.
type Connection interface {
	Exec(ctx context.Context, sql string, arguments ...any) (affected int64, err error)
	Query(ctx context.Context, sql string, arguments ...any) ([][]any, error)
}

// Capabilities are the differences between products that the contract knows.
type Capabilities struct {
	// ConcurrentWriters: two writers can hold transactions at once. SQLite has one writer at a time, by its nature.
	ConcurrentWriters bool
	// RowLocks: a program can hold single rows, which a batch then passes over. SQLite locks the whole file.
	RowLocks bool
	// Contenders is how many goroutines write to one partition at once in the test that counts holes and duplicates. 100
	// where a waiting writer is woken; fewer where it has to ask again and again.
	Contenders int
}

// Run checks every operation and outcome that storage.Store documents.
func Run(t *testing.T, open Opener) {
	for _, s := range []struct {
		name string
		run  func(*testing.T, Opener)
	}{
		{"barrier", runBarrier},
		{"layouts", runLayouts},
		{"writer", runWriter},
		{"fence", runFence},
		{"guards", runGuards},
		{"checkpoints", runCheckpoints},
		{"claims", runClaims},
		{"activation", runActivation},
		{"coverage", runCoverage},
		{"gate", runGate},
		{"query", runQuery},
		{"prune", runPrune},
		{"scan", runScan},
		{"tail", runTail},
		{"verify and activate", runFinish},
		{"contention", runContention},
		{"hostile names", runHostile},
		{"status", runStatus},
	} {
		t.Run(s.name, func(t *testing.T) { s.run(t, open) })
	}
}

// test is one sentence of the contract.
type test struct {
	name string
	run  func(f *fixture)
}

func runTests(t *testing.T, open Opener, tests []test) {
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(newFixture(t, open))
		})
	}
}
