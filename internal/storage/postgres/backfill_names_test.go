package postgres

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// randomText is a text that no index can store in fewer bytes.
func randomText(bytes int) string {
	source, text := rand.New(rand.NewPCG(uint64(bytes), 0)), make([]byte, bytes)
	for i := range text {
		text[i] = byte('!' + source.IntN(90))
	}
	return string(text)
}

// The longest names fit together into the indexes of ours. A key that is held by a program is written down beside them if it fits too, and waited
// for if it does not.
func TestKeysThatAreHeldFitBesideTheLongestNamesOrAreWaitedFor(t *testing.T) {
	db := newBarrierDB(t)
	partition, name := randomText(1200), randomText(253)
	fits, long := randomText(1100), randomText(1200)
	table := plainTodos(titleNorm)
	table.Columns[0].Type = storage.TypeString
	checkpoint := normCheckpoint(name, 2, partition, randomText(storage.MaxPartitionBytes))
	setup := `CREATE TABLE todos(id text PRIMARY KEY, tenant text NOT NULL, title text NOT NULL, title_norm text)`
	b := declareBackfill(db, setup, checkpoint, table)
	for _, key := range []string{"a", fits, long} {
		db.exec(`INSERT INTO todos VALUES ($1, $2, 'Title')`, key, partition)
	}
	claim := b.mustClaim(false)
	leases := b.mustLeases(claim)
	leases = slices.DeleteFunc(leases, func(l storage.Lease) bool { return l.Partition != partition })
	holder, other := db.connect(), db.connect()
	db.execOn(holder, `BEGIN`)
	db.execOn(holder, `SELECT FROM todos WHERE id = $1 FOR UPDATE`, fits)
	db.execOn(other, `BEGIN`)
	db.execOn(other, `SELECT FROM todos WHERE id = $1 FOR UPDATE`, long)
	_, err := db.store.ScanBatch(db.ctx, claim, leases[0])
	wantRefusal(t, err, storage.CodeLockTimeout, "todos", "too long")
	db.execOn(other, `ROLLBACK`)
	b.scan(claim, leases)
	db.wantText(fits, `SELECT string_agg(row_key, ', ') FROM sync_backfill_leftovers`)
	db.execOn(holder, `ROLLBACK`)
	b.complete(claim)
	db.wantText("0", wrong)
}
