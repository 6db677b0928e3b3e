package postgres

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// Each barrier wants a connection for itself and one for its watch. More of them than there are connections do not wait for each other.
func TestBarriersOfManySchemasAtOnceEndOnFewConnections(t *testing.T) {
	dsn := testdb.Postgres(t)
	database, err := OpenDatabase(testContext(t), Config{URL: dsn, MaxConnections: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	admin := connect(t, dsn)
	var all sync.WaitGroup
	for n := range 9 {
		schema := fmt.Sprint("many_", n)
		admin.run("CREATE SCHEMA " + schema)
		all.Go(func() {
			store, err := database.Store(testContext(t), schema)
			if err != nil {
				t.Error(err)
				return
			}
			defer store.Close() // takes nothing from the others
			if _, err := store.EnsureSchema(testContext(t), withSQL(6, "CREATE TABLE six(i int)"), storage.Attempt{Number: 1}); err != nil {
				t.Errorf("%s: %v", schema, err)
				return
			}
			if status, err := store.Status(testContext(t)); err != nil || status.StoredVersion != 6 {
				t.Errorf("%s: %+v, %v", schema, status, err)
			}
		})
	}
	all.Wait()
	if most := database.pool.Stat().MaxConns(); most != 3 || len(database.slots) != 0 {
		t.Errorf("of %d connections %d are still in use", most, len(database.slots))
	}
}

func TestATransactionGetsNoSecondConnection(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	err := store.inTx(testContext(t), "first", txOptions{}, func(ctx context.Context, tx pgx.Tx) error {
		_, err := store.Identity(ctx)
		return err
	})
	expectCode(t, err, storage.CodeInternal)
	if _, err := store.Identity(testContext(t)); err != nil {
		t.Error(err)
	}
}

func TestAStoreIsThatOfItsSchema(t *testing.T) {
	dsn := testdb.Postgres(t)
	connect(t, dsn).run(`CREATE SCHEMA "Two"`)
	database, err := OpenDatabase(testContext(t), Config{URL: dsn})
	if err != nil {
		t.Fatal(err)
	}
	defer database.Close()
	for _, name := range []string{"", "Two"} {
		store, err := database.Store(testContext(t), name)
		if err != nil {
			t.Fatal(err)
		}
		again, err := database.Store(testContext(t), name)
		if err != nil || again != store {
			t.Errorf("%q: another one, %v", name, err)
		}
		if _, err := store.EnsureSchema(testContext(t), withSQL(6, "CREATE TABLE six()"), storage.Attempt{Number: 1}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	connect(t, dsn).run(`TABLE public.six; TABLE "Two".six`)
	_, err = database.Store(testContext(t), "two")
	wantRefusal(t, err, storage.CodeInvalidSpec, `"two"`, "create it")
}
