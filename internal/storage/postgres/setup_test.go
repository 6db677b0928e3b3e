package postgres

import (
	"context"
	"testing"
	"time"
)

// testContext ends well before the time limit of a test run, so that a wait without end fails by name.
func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func openStore(t testing.TB, config Config) *Store {
	t.Helper()
	store, err := Open(testContext(t), config)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(store.Close)
	return store
}
