package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestStatusOfADatabaseWithoutACatalogIsNoError(t *testing.T) {
	db := newBarrierDB(t)
	status, err := db.store.Status(db.ctx)
	if err != nil || status.Protocol != 0 || status.StoredVersion != 0 || status.Database.Database == "" || status.Database.System == "" {
		t.Errorf("%+v, %v", status, err)
	}
	t.Run("its marker is shown all the same", func(t *testing.T) {
		makeProtocolDatabase(db)
		status, err := db.store.Status(db.ctx)
		if err != nil || status.Protocol != 0 || status.StoredVersion != 6 {
			t.Errorf("%+v, %v", status, err)
		}
	})
}

func TestStatusShowsWhatBarriersDid(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(6, plainTodos()))
	wanted := target(7, plainTodos(titleNorm))
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 7, "a", "b")}
	six := int64(6)
	wanted.MinWriterVersion, wanted.MinReaderVersion = &six, &six
	db.mustApply(wanted)
	for range 3 {
		if _, err := db.conn.Exec(db.ctx, insertCommit, "c", 5); err == nil {
			t.Fatal("a writer below the fence was let in")
		}
	}
	db.exec(insertCommit, "c", 6)

	status, err := db.store.Status(db.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status.Protocol != storage.CatalogProtocol || status.StoredVersion != 7 || status.MinWriterVersion != 6 || status.MinReaderVersion != 6 ||
		status.ContentHash != wanted.ContentHash(7) || status.Partitions != 3 || status.Refused != 3 || *status.Owner != clinic {
		t.Errorf("%+v", status)
	}
	if len(status.History) != 2 || status.History[1].Version != 7 || status.History[1].Entries.Checkpoints["norm"].Rows != 2 ||
		status.History[1].Attempts != 1 || status.History[1].Raised["a"] != 0 || status.History[1].AppliedAt.IsZero() {
		t.Errorf("history %+v", status.History)
	}
	if len(status.Checkpoints) != 1 || status.Checkpoints[0].Definition.Name != "norm" || status.Checkpoints[0].Total != 2 || status.Checkpoints[0].Declared != 2 {
		t.Errorf("checkpoints %+v", status.Checkpoints)
	}
}

func TestANewerCatalogIsReportedAsSuch(t *testing.T) {
	db := newBarrierDB(t)
	db.mustApply(target(6, plainTodos()))
	db.exec("UPDATE sync_barrier_owner SET protocol = 99")
	_, err := db.store.Status(db.ctx)
	wantRefusal(t, err, storage.CodeNewerCatalog, "99")
	db.refuses(target(7, plainTodos()), storage.CodeNewerCatalog, "99")
	_, err = db.store.Plan(db.ctx, target(7, plainTodos()))
	wantRefusal(t, err, storage.CodeNewerCatalog, "99")
}
