package storage

import (
	"fmt"
	"testing"
)

// One read for all versions answers for each of them as a read for that version would.
func TestAReadForAllVersionsAnswersForEachOfThem(t *testing.T) {
	all := ServeGate{
		Running: AllVersions, Catalog: true, Marker: true, StoredVersion: 8, HistoryKnown: true, PendingTotal: 12,
		Missing: []PendingCheckpoint{{Name: "gone", Version: 8}},
	}
	for i := range 10 { // of twelve, the ten with the lowest versions
		all.Pending = append(all.Pending, PendingCheckpoint{Partition: fmt.Sprintf("p%d", i), Name: "words", Version: 7, State: Declared})
	}
	for version, want := range map[int64]GateReason{6: GateOpen, 7: GateBackfilling, 8: GateCheckpointMissing, 9: GateMigrationPending} {
		got := all.For(version)
		if verdict := got.Verdict(); verdict.Reason != want {
			t.Errorf("version %d: %s (%s), want %s", version, verdict.Reason, verdict.Message, want)
		}
		if version == 6 && (got.PendingTotal != 0 || len(got.Missing) != 0) {
			t.Errorf("version 6 is told of others' checkpoints: %+v", got)
		}
	}
	if len(all.Pending) != 10 || all.Running != AllVersions {
		t.Errorf("the read itself was changed: %+v", all)
	}
}
