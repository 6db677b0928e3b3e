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

func TestAStatusReadsOfActivatedCheckpointsOnlyWhatTheyCameTo(t *testing.T) {
	db := todosDB(t, 100, "a", "b")
	statements := func() (int, storage.CheckpointProgress) {
		t.Helper()
		store := openStore(t, Config{URL: db.url})
		tracer := traced(t, store)
		status, err := store.Status(db.ctx)
		if err != nil || len(status.Checkpoints) == 0 {
			t.Fatalf("%+v, %v", status, err)
		}
		return len(tracer.statements), status.Checkpoints[0]
	}
	claim := db.mustClaim(false)
	if err := db.store.RecordError(db.ctx, claim, "got over"); err != nil {
		t.Fatal(err)
	}
	db.complete(claim)
	one, progress := statements()
	if progress.Definition.Hash == "" || progress.Activated != 2 || progress.RowsDone != 100 || progress.RowsEstimated != 100 || progress.RangesTotal == 0 ||
		progress.RangesDone != progress.RangesTotal || progress.ClaimToken != claim.Token || progress.LastError != "" || len(progress.Behind) != 0 {
		t.Errorf("%+v", progress)
	}
	wanted := target(3, plainTodos(titleNorm, storage.Column{Name: "other", Type: storage.TypeString, Nullable: true}))
	second := normCheckpoint("second", 3)
	second.Backfill.Update.Set = map[string]string{"other": "upper(title)"}
	second.Verify = nil
	wanted.Checkpoints = []storage.Checkpoint{normCheckpoint("norm", 2, "a", "b"), second}
	db.mustApply(wanted)
	db.name = "second"
	db.complete(db.mustClaim(false))
	if two, _ := statements(); two-one > 4 {
		t.Errorf("one more activated checkpoint takes %d statements more", two-one)
	}
}
