package syncprogram

import (
	"errors"
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestItsOwnCheckpointsAreItsToActivate(t *testing.T) {
	eachScene(t, func(s *scene) {
		next := targetAt(7)
		s.apply(next)
		program := s.started(Options{Age: Newer, Schema: schemaAt(7)})
		declared, err := program.DeclareCheckpoint(s.ctx, "a", "theirs", 7)
		s.must(err, "declare")
		same(s, "the declared state", declared.State, "declared")
		same(s, "our gate while theirs is open", s.gate(7).Reason, storage.GateBackfilling)

		_, err = s.store.ClaimAll(s.ctx, "theirs", false)
		s.wantCode(err, storage.CodeCheckpointDefinitionMissing)
		first, err := program.ClaimCheckpoint(s.ctx, "a", "theirs", 7)
		s.must(err, "claim")
		second, err := program.ClaimCheckpoint(s.ctx, "a", "theirs", 7)
		s.must(err, "claim again")
		same(s, "the epoch of the second claim", second.OwnerEpoch, first.OwnerEpoch+1)
		s.theirOwnershipHolds(program, first.OwnerEpoch, second.OwnerEpoch)

		// Asked for by us, it stays theirs.
		_, err = s.store.ActivateCheckpoint(s.ctx, storage.Ownership{Partition: "a", Name: "theirs", OwnerEpoch: second.OwnerEpoch}, 6)
		s.wantCode(err, storage.CodeCheckpointDefinitionMissing)
		s.theyActivate(program, second.OwnerEpoch)
		s.promisesKept()
	})
}

func (s *scene) theirOwnershipHolds(program Process, lost, owner int64) {
	s.Helper()
	for epoch, want := range map[int64]bool{lost: false, owner: true} {
		moved, err := program.AdvanceCheckpoint(s.ctx, "a", "theirs", epoch, 3, 10)
		s.must(err, "advance")
		same(s, fmt.Sprintf("advance with epoch %d", epoch), moved, want)
	}
	moved, err := program.AdvanceCheckpoint(s.ctx, "a", "theirs", owner, 2, 10)
	s.must(err, "advance backwards")
	same(s, "an advance that lowers the watermark", moved, false)
	tx, err := program.Begin(s.ctx, "a")
	s.must(err, "begin")
	defer tx.Rollback(s.ctx)
	moved, err = tx.AdvanceCheckpoint(s.ctx, "theirs", owner, 4, 12)
	s.must(err, "advance inside a push")
	same(s, "an advance inside a push", moved, true)
	s.must(tx.Commit(s.ctx), "commit")
}

func (s *scene) theyActivate(program Process, owner int64) {
	s.Helper()
	outcome, err := program.ActivateCheckpoint(s.ctx, "a", "theirs", owner, 4, []string{"notes"})
	s.must(err, "activate with a change above the watermark")
	same(s, "activation with a change above the watermark", outcome, Stale)
	position, err := program.SourceCoverageSeq(s.ctx, "a", []string{"notes"})
	s.must(err, "read the newest source change")
	outcome, err = program.ActivateCheckpoint(s.ctx, "a", "theirs", owner, position, []string{"notes"})
	s.must(err, "activate")
	same(s, "activation", outcome, Activated)

	moved, err := program.AdvanceCheckpoint(s.ctx, "a", "theirs", owner, position+10, 99)
	s.must(err, "advance after activation")
	same(s, "an advance after activation", moved, false)
	if _, err := program.ClaimCheckpoint(s.ctx, "a", "theirs", 7); !errors.Is(err, ErrCheckpointNotDeclared) {
		s.Errorf("claim after activation: %v", err)
	}
	again, err := program.DeclareCheckpoint(s.ctx, "a", "theirs", 7)
	s.must(err, "declare again")
	same(s, "the state after declaring again", again.State, Activated)
	same(s, "the watermark after declaring again", again.Watermark, position)
	same(s, "our gate", s.gate(7).Reason, storage.GateOpen)
}

func TestACheckpointWithOurDefinitionIsNotItsToActivate(t *testing.T) {
	eachScene(t, func(s *scene) {
		s.apply(targetAt(7, noteWords(7, "a", "b")))
		program := s.started(Options{Age: Newer, Schema: schemaAt(7)},
			Declaration{Partition: "a", Name: "note-words"}, Declaration{Partition: "b", Name: "note-words"})
		old := s.process(Options{Age: Newer, Schema: schemaAt(6)})
		_, err := Push(s.ctx, old, notesAt(6), "a", "old", noteValues(6, "Old"))
		s.refusedBy(err, storage.CodeWriterFenceRejected, "an old push to a listed partition")

		if _, err := program.ClaimCheckpoint(s.ctx, "a", "note-words", 8); !errors.Is(err, ErrCheckpointNotDeclared) {
			s.Errorf("a claim that moves our checkpoint to another version: %v", err)
		}
		// A claim of ours notes the position, so that the program need not move the watermark, which it may not either.
		_, err = s.store.ClaimAll(s.ctx, "note-words", false)
		s.must(err, "claim before the program does")
		claim, err := program.ClaimCheckpoint(s.ctx, "a", "note-words", 7)
		s.must(err, "claim")
		position := s.observer.Number(`SELECT max_commit_seq FROM sync_partitions WHERE partition = 'a'`)
		same(s, "the watermark that the program finds", claim.Watermark, position)
		outcome, err := program.ActivateCheckpoint(s.ctx, "a", "note-words", claim.OwnerEpoch, position, []string{"notes"})
		s.must(err, "activate")
		same(s, "its activation, which would prove nothing", outcome, Stale)
		outcome, err = program.ActivateCheckpoint(s.ctx, "a", "note-words", claim.OwnerEpoch, position, nil)
		s.must(err, "activate without sources")
		same(s, "its activation without sources", outcome, Stale)
		same(s, "its state", s.observer.Text(`SELECT state FROM sync_backfill_checkpoints WHERE partition = 'a' AND name = 'note-words'`), "backfilling")
		same(s, "our gate", s.gate(7).Reason, storage.GateBackfilling)

		s.fill("note-words")
		same(s, "our gate after the backfill", s.gate(7).Reason, storage.GateOpen)
		s.promisesKept()
		s.wordsRight()
	})
}

// A claim of the program takes the checkpoint from our worker; that it moves the watermark is no proof that the log up to there was applied.
func TestAWatermarkThatTheProgramMovedIsNoProofForUs(t *testing.T) {
	ourScene(t, func(s *scene) {
		s.apply(targetAt(7, noteWords(7, "a", "b")))
		program := s.started(Options{Age: Newer, Schema: schemaAt(7)},
			Declaration{Partition: "a", Name: "note-words"}, Declaration{Partition: "b", Name: "note-words"})
		ours, err := s.store.ClaimAll(s.ctx, "note-words", false)
		s.must(err, "claim")
		leases, err := s.store.TakeRanges(s.ctx, ours, 0, 1)
		s.must(err, "take the ranges")
		for _, lease := range leases {
			for done := false; !done; {
				batch, err := s.store.ScanBatch(s.ctx, ours, lease)
				s.must(err, "scan")
				done = batch.Done
			}
		}
		s.push(program, 7, "a", "note-00", "Changed After The Scan")
		s.push(program, 7, "a", "born-late", "Born After The Scan")

		claim, err := program.ClaimCheckpoint(s.ctx, "a", "note-words", 7)
		s.must(err, "the program claims")
		_, err = s.store.TailBatch(s.ctx, ours, "a", 100)
		s.wantCode(err, storage.CodeOwnershipLost)
		position := s.observer.Number(`SELECT max_commit_seq FROM sync_partitions WHERE partition = 'a'`)
		if _, err := program.AdvanceCheckpoint(s.ctx, "a", "note-words", claim.OwnerEpoch, position, 0); err != nil {
			s.Errorf("the program advances: %v", err)
		}

		s.fill("note-words")
		same(s, "our gate after the backfill", s.gate(7).Reason, storage.GateOpen)
		s.promisesKept()
		s.wordsRight()
	})
}

func TestBothKindsOfCheckpointsTogetherHoldTheGate(t *testing.T) {
	ourScene(t, func(s *scene) {
		s.apply(targetAt(7, noteWords(7)))
		program := s.started(Options{Age: Newer, Schema: schemaAt(7)}, Declaration{Partition: "*", Name: "note-words"})
		_, err := program.DeclareCheckpoint(s.ctx, "b", "theirs", 7)
		s.must(err, "declare")
		s.fill("note-words")
		same(s, "our gate while theirs is open", s.gate(7).Reason, storage.GateBackfilling)
		if _, _, err := program.Query(s.ctx, "b", `SELECT title FROM notes WHERE _sync_partition = $1`); !errors.Is(err, ErrNotReady) {
			s.Errorf("an authoritative read while theirs is open: %v", err)
		}
		s.wantCode(s.attempt(targetAt(8, noteWords(7))), storage.CodeCheckpointIncomplete)

		claim, err := program.ClaimCheckpoint(s.ctx, "b", "theirs", 7)
		s.must(err, "claim")
		position, err := program.SourceCoverageSeq(s.ctx, "b", []string{"notes"})
		s.must(err, "read the newest source change")
		outcome, err := program.ActivateCheckpoint(s.ctx, "b", "theirs", claim.OwnerEpoch, position, []string{"notes"})
		s.must(err, "activate")
		same(s, "its activation", outcome, Activated)
		same(s, "our gate", s.gate(7).Reason, storage.GateOpen)
		all, err := program.ReadCheckpoints(s.ctx, "b")
		s.must(err, "read its checkpoints")
		same(s, "its checkpoints of b", len(all), 1)
	})
}

func TestARejectedPushKeepsItsResultAndNothingElse(t *testing.T) {
	ourScene(t, func(s *scene) {
		s.apply(targetAt(7, noteWords(7)))
		program := s.started(Options{Age: Newer, Schema: schemaAt(7)}, Declaration{Partition: "*", Name: "note-words"})
		s.must(program.TouchPartition(s.ctx, "a", "epoch-of-the-program"), "touch the partition")
		tx, err := program.Begin(s.ctx, "a")
		s.must(err, "begin")
		defer tx.Rollback(s.ctx)
		s.must(tx.LockPartition(s.ctx), "lock the partition")
		payload, err := EncodeRow(notesAt(7).Columns, noteValues(7, "Rejected"))
		s.must(err, "encode")
		s.must(tx.UpsertRow(s.ctx, "notes", Row{RowID: "rejected", ServerVersion: 1, Scopes: `{}`, Payload: payload}), "write a note")
		s.must(tx.Reject(s.ctx, "client", "rejected", `{"status":"rejected","results":[]}`), "reject")

		same(s, "rejected notes", s.observer.Number(`SELECT count(*) FROM notes WHERE _sync_row_id = 'rejected'`), 0)
		same(s, "kept results", s.observer.Number(`SELECT count(*) FROM sync_push_results WHERE client_commit_id = 'rejected'`), 1)
		s.fill("note-words")
		s.promisesKept()
		s.wordsRight()
	})
}
