package storagetest

import (
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runGate(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"an empty database has a closed gate and no error", gateNoCatalog},
		{"a database of another program without our catalog has a closed gate", gateForeignDatabase},
		{"it is closed until the version is stored, and open then", gatePending},
		{"it is closed until every checkpoint is activated", gateBackfilling},
		{"what a lower version left open keeps it closed", gateLowerVersion},
		{"a version of before the checkpoint goes on reading, but cannot write", gateOlder},
		{"a version that can no longer read is kept out", gateReader},
		{"ten of the open rows are listed, and all are counted", gateListed},
		{"a recorded checkpoint whose row is missing keeps it closed", gateMissing},
		{"a marker without a record keeps it closed", gateNoRecord},
		{"a marker that another program raised keeps it closed", gateRaised},
		{"a fence without the row for all makes it read only", gateNoFenceRow},
		{"it says which database it read", gateIdentity},
		{"it says who manages the database, and is nobody else's", gateOwner},
		{"it is read in one snapshot", gateSnapshot},
	})
}

// wantGate reads the gate and checks its reason. Only GateOpen may be open.
func (f *fixture) wantGate(version int64, reason storage.GateReason) storage.ServeGate {
	f.Helper()
	gate, err := f.store.ReadServeGate(f.ctx, version)
	f.must(err, "read the gate")
	verdict := gate.Verdict()
	if verdict.Reason != reason || verdict.Open != (reason == storage.GateOpen) {
		f.Fatalf("the gate of version %d is %+v, want %s", version, verdict, reason)
	}
	return gate
}

func gateNoCatalog(f *fixture) {
	gate := f.wantGate(1, storage.GateSchemaNotFound)
	same(f, "catalog", gate.Catalog, false)
}

func gateOwner(f *fixture) {
	target := version1()
	target.Owner = storage.Owner{Cluster: "c1", Namespace: "shop", Name: "clinic", UID: "u1"}
	f.apply(target)
	gate := f.wantGate(1, storage.GateOpen)
	if gate.Owner == nil || *gate.Owner != target.Owner {
		f.Fatalf("the gate is of owner %v, want %+v", gate.Owner, target.Owner)
	}
	for _, c := range []struct {
		asks storage.Owner
		open bool
	}{
		{storage.Owner{}, true},
		{storage.Owner{Name: "clinic"}, true},
		{storage.Owner{Cluster: "c1", Namespace: "shop", Name: "clinic", UID: "u2"}, true},
		{storage.Owner{Name: "billing"}, false},
		{storage.Owner{Namespace: "other", Name: "clinic"}, false},
		{storage.Owner{Cluster: "c2", Namespace: "shop", Name: "clinic"}, false},
	} {
		verdict := gate.VerdictFor(c.asks)
		if verdict.Open != c.open || !c.open && (verdict.Reason != storage.GateConflict || verdict.Writable) {
			f.Fatalf("for %s the gate is %+v, want open %t", c.asks, verdict, c.open)
		}
	}
}

func gateForeignDatabase(f *fixture) {
	f.exec("CREATE TABLE sync_schema_meta (id integer PRIMARY KEY, schema_version bigint NOT NULL, layouts text NOT NULL DEFAULT '{}')")
	f.exec("INSERT INTO sync_schema_meta (id, schema_version) VALUES (1, 5)")
	f.wantGate(5, storage.GateSchemaNotFound)
}

func gatePending(f *fixture) {
	f.apply(version1())
	gate := f.wantGate(1, storage.GateOpen)
	same(f, "stored", gate.StoredVersion, 1)
	same(f, "writable", gate.Verdict().Writable, true)
	f.wantGate(2, storage.GateMigrationPending)
	f.apply(version2())
	f.wantGate(2, storage.GateOpen)
	f.wantGate(1, storage.GateOpen)
}

func gateBackfilling(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a", "b")))
	gate := f.wantGate(2, storage.GateBackfilling)
	same(f, "pending", gate.PendingTotal, 2)
	same(f, "first pending", gate.Pending[0], storage.PendingCheckpoint{Partition: "a", Name: "letters", Version: 2, State: storage.Declared})
	f.finishExternal("a", "letters")
	gate = f.wantGate(2, storage.GateBackfilling)
	same(f, "pending", gate.PendingTotal, 1)
	f.claimOf("b", "letters")
	gate = f.wantGate(2, storage.GateBackfilling)
	same(f, "state of the pending", gate.Pending[0].State, storage.Backfilling)
	f.finishExternal("b", "letters")
	f.wantGate(2, storage.GateOpen)
}

func gateLowerVersion(f *fixture) {
	f.apply(version1())
	target := version2(external("letters", 2, "a"))
	f.apply(target)
	f.apply(next(target, external("more", 3, "a")))
	f.finishExternal("a", "more")
	gate := f.wantGate(3, storage.GateBackfilling)
	same(f, "pending", gate.Pending[0].Name, "letters")
	f.finishExternal("a", "letters")
	f.wantGate(3, storage.GateOpen)
}

func gateOlder(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	f.wantGate(2, storage.GateBackfilling)
	gate := f.wantGate(1, storage.GateOpen)
	same(f, "writable", gate.Verdict().Writable, false)
	same(f, "minimum writer", gate.MinWriterVersion, 2)
	same(f, "version asked for", gate.Running, 1)
}

func gateReader(f *fixture) {
	f.apply(version1())
	target := version2()
	target.MinReaderVersion = minimum(2)
	f.apply(target)
	f.wantGate(1, storage.GateReaderTooOld)
	f.wantGate(2, storage.GateOpen)
}

func gateListed(f *fixture) {
	f.apply(version1())
	var partitions []string
	for i := range 25 {
		partitions = append(partitions, fmt.Sprintf("p%02d", i))
	}
	f.apply(version2(external("letters", 2, partitions...)))
	gate := f.wantGate(2, storage.GateBackfilling)
	same(f, "pending", gate.PendingTotal, 25)
	same(f, "listed", len(gate.Pending), 10)
	same(f, "first", gate.Pending[0].Partition, "p00")
}

func gateMissing(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	f.vandalise("sync_backfill_checkpoints", "DELETE FROM sync_backfill_checkpoints")
	gate := f.wantGate(2, storage.GateCheckpointMissing)
	if len(gate.Missing) != 1 || gate.Missing[0].Name != "letters" || gate.Missing[0].Version != 2 {
		f.Errorf("missing: %+v", gate.Missing)
	}
	f.wantGate(1, storage.GateOpen)
	f.exec(`INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms) VALUES ('a', 'letters', 1, 'activated', 0)`)
	f.wantGate(2, storage.GateCheckpointMissing)
}

func gateNoRecord(f *fixture) {
	f.apply(version1())
	f.apply(version2())
	f.exec("DELETE FROM sync_barrier_history WHERE version = 2")
	f.wantGate(2, storage.GateCheckpointMissing)
}

func gateRaised(f *fixture) {
	f.apply(version1())
	f.exec("UPDATE sync_schema_meta SET schema_version = 2")
	f.wantGate(2, storage.GateCheckpointMissing)
	f.exec(`INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms) VALUES ('a', 'theirs', 2, 'declared', 0)`)
	f.wantGate(2, storage.GateCheckpointMissing)
}

func gateNoFenceRow(f *fixture) {
	f.apply(version1())
	f.vandalise("sync_writer_fence", "DELETE FROM sync_writer_fence")
	gate := f.wantGate(1, storage.GateOpen)
	same(f, "writable", gate.Verdict().Writable, false)
	f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
}

func gateIdentity(f *fixture) {
	f.apply(version1())
	gate := f.wantGate(1, storage.GateOpen)
	identity, err := f.store.Identity(f.ctx)
	f.must(err, "read the identity")
	same(f, "database", gate.Database, identity)
	same(f, "standby", gate.Standby, false)
}

// gateSnapshot flips marker and checkpoint together, over and over: whoever read them apart would see the marker of a version
// without its open checkpoint.
func gateSnapshot(f *fixture) {
	f.apply(version1())
	done := make(chan error, 1)
	migrator := f.db.OpenStore(f.T)
	const rounds = 15
	go func() {
		target := version1()
		for range rounds {
			target = next(target, external(fmt.Sprintf("letters-%d", target.Version+1), target.Version+1, "a"))
			if _, err := applyWith(f.ctx, migrator, target); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for reads := 0; ; reads++ {
		select {
		case err := <-done:
			f.must(err, "apply")
			same(f, "stored at the end", f.wantGate(rounds+1, storage.GateBackfilling).StoredVersion, rounds+1)
			return
		default:
		}
		for version := int64(2); version <= rounds+1; version++ {
			gate, err := f.store.ReadServeGate(f.ctx, version)
			f.must(err, "read the gate")
			if gate.Verdict().Open {
				f.Fatalf("the gate of version %d was open: %+v", version, gate)
			}
			if gate.StoredVersion >= version && gate.PendingTotal != version-1 {
				f.Fatalf("at marker %d version %d had %d open checkpoints, want %d", gate.StoredVersion, version, gate.PendingTotal, version-1)
			}
		}
	}
}
