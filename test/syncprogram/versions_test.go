package syncprogram

import (
	"errors"
	"fmt"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func TestAtTheSameVersionBothProgramsAndWeAgree(t *testing.T) {
	eachScene(t, func(s *scene) {
		result := s.apply(targetAt(6))
		if result.Outcome == storage.Migrate {
			s.Errorf("outcome %s on a database of the same version", result.Outcome)
		}
		same(s, "the outcome of a second barrier", s.apply(targetAt(6)).Outcome, storage.Agreed)

		older := s.started(Options{Age: Older, Schema: schemaAt(6)})
		newer := s.started(Options{Age: Newer, Schema: schemaAt(6)})
		s.push(older, 6, "a", "by-older", "From the older")
		s.push(newer, 6, "a", "by-newer", "From the newer")
		s.push(newer, 6, "fresh", "by-newer", "In a new partition")
		s.readWhatTheProgramWrote("a", "by-newer", "From the newer")
		s.writeForTheProgram(newer, "a", "by-us", "From us")
		if _, err := PushDelete(s.ctx, newer, "notes", "a", "by-older"); err != nil {
			s.Errorf("delete a note: %v", err)
		}

		rows, position, err := newer.Query(s.ctx, "a", `SELECT title FROM notes WHERE _sync_partition = $1 AND _sync_row_id = 'by-us'`)
		s.must(err, "authoritative read")
		same(s, "rows of the authoritative read", len(rows), 1)
		same(s, "its position", position, s.observer.Number(`SELECT max_commit_seq FROM sync_partitions WHERE partition = 'a'`))
		same(s, "our gate", s.gate(6).Reason, storage.GateOpen)
		s.promisesKept()
	})
}

// readWhatTheProgramWrote reads a note through our Store.
func (s *scene) readWhatTheProgramWrote(partition, id, title string) {
	s.Helper()
	tx, err := s.store.Begin(s.ctx, partition, 6)
	s.must(err, "begin")
	defer func() { s.must(tx.Rollback(s.ctx), "roll back") }()
	row, ok, err := tx.GetRow(s.ctx, ours(notesAt(6)), id)
	s.must(err, "read a note")
	if !ok || row.Values["title"] != title {
		s.Errorf("note %s: got %v, want %q", id, row.Values, title)
	}
}

// writeForTheProgram writes a note and its commit through our Store, and reads it as the program.
func (s *scene) writeForTheProgram(p Process, partition, id, title string) {
	s.Helper()
	payload, err := EncodeRow(notesAt(6).Columns, noteValues(6, title))
	s.must(err, "encode")
	tx, err := s.store.Begin(s.ctx, partition, 6)
	s.must(err, "begin")
	defer func() { s.must(tx.Rollback(s.ctx), "roll back") }()
	s.must(tx.LockPartition(s.ctx), "lock the partition")
	s.must(tx.UpsertRow(s.ctx, ours(notesAt(6)), storage.Row{RowID: id, Version: 1, Payload: payload, Values: map[string]any{"title": title}}), "write a note")
	_, err = tx.AppendCommit(s.ctx, storage.Commit{ClientID: "us", ClientCommitID: id, ActorID: "us",
		Changes: []storage.Change{{Table: "notes", RowID: id, Op: storage.OpUpsert, Payload: payload}}})
	s.must(err, "append")
	s.must(tx.Commit(s.ctx), "commit")

	push, err := p.Begin(s.ctx, partition)
	s.must(err, "begin as the program")
	defer push.Rollback(s.ctx)
	row, ok, err := push.GetRow(s.ctx, "notes", id)
	s.must(err, "read as the program")
	if !ok || string(row.Payload) != string(payload) {
		s.Errorf("the program reads %x, want %x", row.Payload, payload)
	}
}

func TestBehindOurBarrierOldProgramsAreRefusedAndNewOnesWork(t *testing.T) {
	eachScene(t, func(s *scene) {
		older := s.started(Options{Age: Older, Schema: schemaAt(6)})
		newer := s.started(Options{Age: Newer, Schema: schemaAt(6)})
		before := s.observer.Number(`SELECT max_commit_seq FROM sync_partitions WHERE partition = 'a'`)
		s.apply(targetAt(7, noteWords(7)))

		for _, old := range []Process{older, newer} {
			for _, partition := range []string{"a", "new-" + s.Name()[len(s.Name())-3:]} {
				_, err := Push(s.ctx, old, notesAt(6), partition, "late", noteValues(6, "Late"))
				s.refusedBy(err, storage.CodeWriterFenceRejected, "an old push to "+partition)
			}
		}
		same(s, "old commits stored behind the barrier", s.storedBelow("a", 7, before), 0)
		for _, age := range []Age{Older, Newer} {
			err := s.process(Options{Age: age, Schema: schemaAt(6)}).EnsureSchema(s.ctx)
			if !errors.Is(err, ErrStoredNewer) {
				s.Errorf("the %s program of version 6 starts: %v", age, err)
			}
		}
		same(s, "the gate before the backfill", s.gate(7).Reason, storage.GateBackfilling)

		s.newVersionComesUp()
		s.promisesKept()
		s.wordsRight()
	})
}

// newVersionComesUp starts programs of version 7 before and after the checkpoint is activated, with writes in between.
func (s *scene) newVersionComesUp() {
	s.Helper()
	options := Options{Age: Newer, Schema: schemaAt(7)}
	if err := s.process(options).EnsureSchema(s.ctx); !errors.Is(err, ErrCheckpointIncomplete) {
		s.Errorf("a program that does not declare the open checkpoint starts: %v", err)
	}
	declared := Declaration{Partition: storage.AllPartitions, Name: "note-words", SchemaVersion: 7}
	declaring := s.started(options, declared)
	s.push(declaring, 7, "a", "note-00", "Changed Before The Scan")
	s.push(declaring, 7, "c", "first-of-c", "A New Partition")
	if _, err := PushDelete(s.ctx, declaring, "notes", "b", "note-01"); err != nil {
		s.Errorf("delete a note: %v", err)
	}
	if _, _, err := declaring.Query(s.ctx, "a", `SELECT title FROM notes WHERE _sync_partition = $1`); !errors.Is(err, ErrNotReady) {
		s.Errorf("an authoritative read before activation: %v", err)
	}
	gate, err := declaring.ReadServeGate(s.ctx, "a")
	s.must(err, "read the program's gate")
	same(s, "what the program's gate waits for", fmt.Sprint(gate.Pending), fmt.Sprint([]Declaration{{Partition: "*", Name: "note-words"}}))

	s.fill("note-words")
	same(s, "the gate after the backfill", s.gate(7).Reason, storage.GateOpen)
	s.started(options)
	if _, _, err := declaring.Query(s.ctx, "a", `SELECT title FROM notes WHERE _sync_partition = $1`); err != nil {
		s.Errorf("an authoritative read after activation: %v", err)
	}
}

func TestAnAdditiveVersionShutsNoProgramOut(t *testing.T) {
	ourScene(t, func(s *scene) {
		older := s.started(Options{Age: Older, Schema: schemaAt(6)})
		next := targetAt(6)
		next.Version = 7
		next.Tables = append(next.Tables, noteWordsTable)
		s.apply(next)
		s.push(older, 6, "a", "late", "Still welcome")
		same(s, "the gate of version 6", s.gate(6).Open, true)
		s.promisesKeptAt(6)
	})
}

// promisesKeptAt is promisesKept where the layouts are still those of a lower version.
func (s *scene) promisesKeptAt(layout int64) {
	s.Helper()
	report, err := s.store.CheckFence(s.ctx)
	s.must(err, "check the fence")
	if !report.Intact() {
		s.Errorf("the fence is not whole: %+v", report.Findings)
	}
	s.payloadsReadable(layout)
}

func TestAnOlderProgramThatRaisesTheMarkerItselfProvesNothingToOurGate(t *testing.T) {
	ourScene(t, func(s *scene) {
		s.started(Options{Age: Older, Schema: schemaAt(7)})
		same(s, "the marker", s.marker(), 7)
		verdict := s.gate(7)
		same(s, "the gate without a record", verdict.Open, false)
		same(s, "its reason", verdict.Reason, storage.GateCheckpointMissing)
		s.wantCode(s.attempt(targetAt(7, noteWords(7))), storage.CodeContentDrift)

		adopted := targetAt(7)
		adopted.Tables = adopted.Tables[:1]
		same(s, "the outcome of adopting it", s.apply(adopted).Outcome, storage.Adopt)
		same(s, "the gate of the adopted version", s.gate(7).Open, true)
		s.apply(targetAt(8, noteWords(8)))
		s.fill("note-words")
		s.promisesKept()
		s.wordsRight()
	})
}

func TestAProgramThatMovesTheMarkerPastOursLeavesOurGateToProof(t *testing.T) {
	ourScene(t, func(s *scene) {
		s.apply(targetAt(7, noteWords(7)))
		s.fill("note-words")
		own := Declaration{Partition: "a", Name: "its-own", SchemaVersion: 8}
		newer := s.started(Options{Age: Newer, Schema: schemaAt(8)}, own)
		same(s, "the marker", s.marker(), 8)
		same(s, "the gate of 7 at an unknown version", s.gate(7).Reason, storage.GateCheckpointMissing)
		same(s, "the gate of 8 at an unknown version", s.gate(8).Open, false)
		s.wantCode(s.attempt(targetAt(7, noteWords(7))), storage.CodeVersionRegression)
		s.wantCode(s.attempt(targetAt(8, noteWords(7))), storage.CodeCheckpointIncomplete)

		claim, err := newer.ClaimCheckpoint(s.ctx, "a", "its-own", 8)
		s.must(err, "claim its own checkpoint")
		position := s.observer.Number(`SELECT max_commit_seq FROM sync_partitions WHERE partition = 'a'`)
		outcome, err := newer.ActivateCheckpoint(s.ctx, "a", "its-own", claim.OwnerEpoch, position, []string{"notes"})
		s.must(err, "activate its own checkpoint")
		same(s, "the outcome of its activation", outcome, Activated)

		same(s, "our outcome at its version", s.apply(targetAt(8, noteWords(7))).Outcome, storage.Adopt)
		same(s, "the gate of 8 once it is recorded", s.gate(8).Reason, storage.GateOpen)
		same(s, "the gate of 7, whose payloads are gone", s.gate(7).Reason, storage.GateReaderTooOld)
		s.push(newer, 8, "a", "after", "After")
		s.promisesKept()
	})
}
