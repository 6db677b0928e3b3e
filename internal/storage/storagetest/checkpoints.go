package storagetest

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runCheckpoints(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a checkpoint is declared with row, definition and fence while the gate is closed", declareOne},
		{"a checkpoint of all partitions is declared as one row", declareAll},
		{"what is declared beside a barrier is required by the gate from then on", declareRequired},
		{"declared again with the same content it stays as it is, also once the gate is open", declareAgain},
		{"it is not declared while the gate is open", declareGateOpen},
		{"it is not declared at another version than the marker's", declareOtherVersion},
		{"a name belongs to its version and content", declareNameUsed},
		{"what cannot be carried out is refused with its field", declareInvalid},
		{"its SQL is tried before anything is written", declareBrokenSQL},
		{"the barrier of the same version agrees with what was declared beside it", declareThenApply},
		{"rows are read by partition, by name and partition", readRows},
		{"a definition is read back whole", readDefinition},
		{"settings change at any time and only they", writeSettings},
		{"an abandoned checkpoint opens the gate and keeps its name used", abandonOpensGate},
		{"what is done or not there is not abandoned", abandonRefused},
	})
}

// checkpoint reads one row.
func (f *fixture) checkpoint(partition, name string) storage.CheckpointRow {
	f.Helper()
	rows, err := f.store.ReadCheckpoints(f.ctx, partition)
	f.must(err, "read the checkpoints")
	for _, row := range rows {
		if row.Name == name && row.Partition == partition {
			return row
		}
	}
	f.Fatalf("there is no checkpoint %q in partition %q: %v", name, partition, rows)
	return storage.CheckpointRow{}
}

// closed brings the database to version 2 with a gate that one open checkpoint keeps closed.
func (f *fixture) closed() {
	f.Helper()
	f.apply(version1())
	f.apply(version2(external("first", 2, "z")))
	f.wantGate(2, storage.GateBackfilling)
}

func tables2() []storage.Table { return version2().Tables }

func declareOne(f *fixture) {
	f.closed()
	rows, err := f.store.DeclareCheckpoint(f.ctx, titleNorm(2, "a", "b"), tables2())
	f.must(err, "declare")
	var declared []string
	for _, row := range rows {
		declared = append(declared, fmt.Sprintf("%s %s %d %s", row.Partition, row.Name, row.Version, row.State))
	}
	if want := []string{"a title-norm 2 declared", "b title-norm 2 declared"}; !slices.Equal(declared, want) {
		f.Errorf("declared %v, want %v", declared, want)
	}
	definition, err := f.store.ReadDefinition(f.ctx, "title-norm")
	f.must(err, "read the definition")
	same(f, "hash", definition.Hash, titleNorm(2, "a", "b").Hash())
	f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
	f.must(f.oldWriter("c", 1), "write to a partition that is not fenced")
	gate := f.wantGate(2, storage.GateBackfilling)
	same(f, "pending", gate.PendingTotal, 3)
}

func declareRequired(f *fixture) {
	f.closed()
	_, err := f.store.DeclareCheckpoint(f.ctx, external("letters", 2, "a"), tables2())
	f.must(err, "declare")
	recorded, ok := f.lastVersion().Entries.Checkpoints["letters"]
	if want := (storage.HistoryCheckpoint{Hash: external("letters", 2, "a").Hash(), Rows: 1}); !ok || recorded != want {
		f.Errorf("the history says %+v, want %+v", recorded, want)
	}
	if _, kept := f.lastVersion().Entries.Checkpoints["first"]; !kept {
		f.Error("the history no longer knows what the barrier declared")
	}
	f.finishExternal("z", "first")
	f.vandalise("sync_backfill_checkpoints", "DELETE FROM sync_backfill_checkpoints WHERE name = 'letters'")
	f.wantGate(2, storage.GateCheckpointMissing)
}

func declareAll(f *fixture) {
	f.closed()
	f.must(f.oldWriter("c", 1), "write as version 1 before the declaration")
	rows, err := f.store.DeclareCheckpoint(f.ctx, titleNorm(2), tables2())
	f.must(err, "declare")
	if len(rows) != 1 || rows[0].Partition != storage.AllPartitions {
		f.Errorf("declared %v, want one row '*'", rows)
	}
	f.wantCode(f.oldWriter("c", 1), storage.CodeWriterFenceRejected)
	report, err := f.store.CheckFence(f.ctx)
	f.must(err, "check the fence")
	same(f, "minimum", report.MinWriterVersion, 2)
	if !report.Intact() {
		f.Errorf("findings: %+v", report.Findings)
	}
}

func declareAgain(f *fixture) {
	f.closed()
	first, err := f.store.DeclareCheckpoint(f.ctx, external("letters", 2, "a"), tables2())
	f.must(err, "declare")
	again, err := f.store.DeclareCheckpoint(f.ctx, external("letters", 2, "a"), tables2())
	f.must(err, "declare again")
	if !reflect.DeepEqual(first, again) {
		f.Errorf("declared again it is %v, was %v", again, first)
	}
	changedSettings := external("letters", 2, "a")
	changedSettings.Settings.BatchRows = 7
	_, err = f.store.DeclareCheckpoint(f.ctx, changedSettings, tables2())
	f.must(err, "declare with other settings, which are no part of the content")
	f.finishExternal("z", "first")
	f.finishExternal("a", "letters")
	f.wantGate(2, storage.GateOpen)
	done, err := f.store.DeclareCheckpoint(f.ctx, external("letters", 2, "a"), tables2())
	f.must(err, "declare what is activated")
	if len(done) != 1 || done[0].State != storage.Activated {
		f.Errorf("the rows are %v, want one that is activated", done)
	}
	f.wantGate(2, storage.GateOpen)
}

func declareGateOpen(f *fixture) {
	f.apply(version1())
	f.apply(version2())
	f.wantGate(2, storage.GateOpen)
	_, err := f.store.DeclareCheckpoint(f.ctx, external("letters", 2, "a"), tables2())
	f.wantCode(err, storage.CodeConflict)
	f.wantMessage(err, "letters", "gate")
	f.wantGate(2, storage.GateOpen)
	f.must(f.oldWriter("a", 1), "write as version 1: the fence must not have moved")
}

func declareOtherVersion(f *fixture) {
	_, err := f.store.DeclareCheckpoint(f.ctx, external("letters", 2, "a"), tables2())
	f.wantCode(err, storage.CodeConflict)
	f.closed()
	for _, version := range []int64{1, 3} {
		_, err := f.store.DeclareCheckpoint(f.ctx, external("letters", version, "a"), tables2())
		f.wantCode(err, storage.CodeConflict)
		f.wantMessage(err, "letters", "2")
	}
	same(f, "rows", f.number("SELECT count(*) FROM sync_backfill_checkpoints"), 1)
	same(f, "definitions", f.number("SELECT count(*) FROM sync_backfill_definitions"), 1)
}

func declareNameUsed(f *fixture) {
	f.closed()
	_, err := f.store.DeclareCheckpoint(f.ctx, external("first", 2, "z", "y"), tables2())
	f.wantCode(err, storage.CodeContentDrift)
	f.wantMessage(err, "first")
	f.apply(next(version2(external("first", 2, "z"))))
	_, err = f.store.DeclareCheckpoint(f.ctx, external("first", 3, "z"), tables2())
	f.wantCode(err, storage.CodeContentDrift)
	f.exec(`INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms) VALUES ('a', 'theirs', 2, 'declared', 0)`)
	_, err = f.store.DeclareCheckpoint(f.ctx, external("theirs", 3, "a"), tables2())
	f.wantCode(err, storage.CodeContentDrift)
}

func declareInvalid(f *fixture) {
	f.closed()
	change := func(edit func(c *storage.Checkpoint)) storage.Checkpoint {
		c := titleNorm(2, "a")
		edit(&c)
		return c
	}
	for name, c := range map[string]storage.Checkpoint{
		"no name":          change(func(c *storage.Checkpoint) { c.Name = "" }),
		"no sources":       change(func(c *storage.Checkpoint) { c.Sources = nil }),
		"unknown changes":  change(func(c *storage.Checkpoint) { c.Sources[0].Changes = "Guess" }),
		"unknown table":    change(func(c *storage.Checkpoint) { c.Sources[0].Table = "nowhere" }),
		"reserved key":     change(func(c *storage.Checkpoint) { c.Partitions = []string{"*"} }),
		"captured key":     change(func(c *storage.Checkpoint) { c.Partitions = []string{"capture:x"} }),
		"empty key":        change(func(c *storage.Checkpoint) { c.Partitions = []string{""} }),
		"partition twice":  change(func(c *storage.Checkpoint) { c.Partitions = []string{"a", "a"} }),
		"sets a key":       change(func(c *storage.Checkpoint) { c.Backfill.Update.Set = map[string]string{"id": "1"} }),
		"sets a partition": change(func(c *storage.Checkpoint) { c.Backfill.Update.Set = map[string]string{"tenant": "'x'"} }),
		"unknown column":   change(func(c *storage.Checkpoint) { c.Backfill.Update.Set = map[string]string{"nothing": "1"} }),
		"Syncular update": change(func(c *storage.Checkpoint) {
			c.Backfill.Update = &storage.Update{Table: "notes", Set: map[string]string{"title": "'x'"}}
			c.Sources[0].Table = "notes"
		}),
		"source without keys": change(func(c *storage.Checkpoint) {
			c.Sources = append(c.Sources, storage.Source{Table: "notes", Changes: storage.CommitLog})
		}),
		"verify twice": change(func(c *storage.Checkpoint) { c.Verify = append(c.Verify, c.Verify[0]) }),
		"settings":     change(func(c *storage.Checkpoint) { c.Settings.BatchRows = -1 }),
	} {
		_, err := f.store.DeclareCheckpoint(f.ctx, c, tables2())
		if code := storage.CodeOf(err); code != storage.CodeInvalidSpec {
			f.Errorf("%s: got code %q (%v), want %q", name, code, err, storage.CodeInvalidSpec)
		}
	}
	same(f, "rows", f.number("SELECT count(*) FROM sync_backfill_checkpoints"), 1)
}

func declareBrokenSQL(f *fixture) {
	f.closed()
	broken := titleNorm(2, "a")
	broken.Backfill.Update.Set = map[string]string{"title_norm": "no_such_function(title)"}
	_, err := f.store.DeclareCheckpoint(f.ctx, broken, tables2())
	f.wantCode(err, storage.CodeInvalidSQL)
	keyless := titleNorm(2, "a")
	keyless.Verify[0].Query = "SELECT title FROM todos"
	_, err = f.store.DeclareCheckpoint(f.ctx, keyless, tables2())
	f.wantCode(err, storage.CodeInvalidSpec)
	f.wantMessage(err, "title-norm", "none-wrong")
	same(f, "rows", f.number("SELECT count(*) FROM sync_backfill_checkpoints"), 1)
	f.must(f.oldWriter("a", 1), "write as version 1: the fence must not have moved")
}

func declareThenApply(f *fixture) {
	f.closed()
	later := external("letters", 2, "a")
	later.Standalone = true
	_, err := f.store.DeclareCheckpoint(f.ctx, later, tables2())
	f.must(err, "declare")
	same(f, "outcome", f.apply(version2(external("first", 2, "z"), later)).Outcome, storage.Agreed)
	forgotten := next(version2(external("first", 2, "z")))
	err = f.refuse(forgotten, storage.CodeCheckpointIncomplete)
	f.wantMessage(err, "letters")
}

func readRows(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2, "b", "a"), external("letters", 2, "a"), external("all", 2)))
	names := func(partition string) []string {
		rows, err := f.store.ReadCheckpoints(f.ctx, partition)
		f.must(err, "read the checkpoints")
		var listed []string
		for _, row := range rows {
			listed = append(listed, row.Name+" "+row.Partition)
		}
		return listed
	}
	if got, want := names("*"), []string{"all *", "letters a", "title-norm a", "title-norm b"}; !slices.Equal(got, want) {
		f.Errorf("all rows are %v, want %v", got, want)
	}
	if got, want := names("a"), []string{"letters a", "title-norm a"}; !slices.Equal(got, want) {
		f.Errorf("the rows of a are %v, want %v", got, want)
	}
	if got := names("nowhere"); len(got) != 0 {
		f.Errorf("the rows of a partition without any are %v", got)
	}
}

func readDefinition(f *fixture) {
	f.apply(version1())
	c := titleNorm(2)
	c.Settings = storage.Settings{BatchRows: 10, MaxRowsPerSecond: 100, Parallelism: 2}
	f.apply(version2(c))
	got, err := f.store.ReadDefinition(f.ctx, "title-norm")
	f.must(err, "read the definition")
	if want := storage.NewDefinition(c, tables2()); !reflect.DeepEqual(got, want) {
		f.Errorf("the definition is\n%+v, want\n%+v", got, want)
	}
	_, err = f.store.ReadDefinition(f.ctx, "nothing")
	f.wantCode(err, storage.CodeCheckpointNotDeclared)
}

func writeSettings(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2)))
	settings := storage.Settings{BatchRows: 5, MaxRowsPerSecond: 50, MaxReplicationLagSeconds: 3, Parallelism: 4, Paused: true}
	f.must(f.store.WriteSettings(f.ctx, "title-norm", settings), "change the settings")
	definition, err := f.store.ReadDefinition(f.ctx, "title-norm")
	f.must(err, "read the definition")
	same(f, "settings", definition.Checkpoint.Settings, settings)
	same(f, "hash", definition.Hash, titleNorm(2).Hash())
	f.wantCode(f.store.WriteSettings(f.ctx, "title-norm", storage.Settings{Parallelism: -1}), storage.CodeInvalidSpec)
	f.wantCode(f.store.WriteSettings(f.ctx, "nothing", settings), storage.CodeCheckpointNotDeclared)
	same(f, "outcome of the same target", f.apply(version2(titleNorm(2))).Outcome, storage.Agreed)
}

func abandonOpensGate(f *fixture) {
	f.apply(version1())
	f.apply(version2(titleNorm(2, "a", "b")))
	claim, err := f.store.ClaimAll(f.ctx, "title-norm", false)
	f.must(err, "claim")
	f.wantGate(2, storage.GateBackfilling)
	count, err := f.store.AbandonCheckpoint(f.ctx, "title-norm", 2, "alice", "not needed")
	f.must(err, "abandon")
	same(f, "rows", count, 2)
	f.wantGate(2, storage.GateOpen)

	entry := f.lastVersion().Entries.Checkpoints["title-norm"]
	if entry.Abandoned == "" || entry.Hash == "" {
		f.Errorf("the history says %+v", entry)
	}
	for _, word := range []string{"alice", "not needed"} {
		if !containsText(entry.Abandoned, word) {
			f.Errorf("the history does not say %q: %q", word, entry.Abandoned)
		}
	}
	moved, err := f.store.AdvanceCheckpoint(f.ctx, storage.Advance{Ownership: ownership(claim, "a"), Watermark: 100})
	f.must(err, "advance what is abandoned")
	same(f, "moved", moved, false)
	_, err = f.store.ReadDefinition(f.ctx, "title-norm")
	f.wantCode(err, storage.CodeCheckpointNotDeclared)
	_ = f.refuse(next(version2(titleNorm(3, "a"))), storage.CodeContentDrift)
	same(f, "outcome of the same target", f.apply(version2(titleNorm(2, "a", "b"))).Outcome, storage.Agreed)
	f.wantGate(2, storage.GateOpen)
	f.wantCode(f.oldWriter("a", 1), storage.CodeWriterFenceRejected)
}

func abandonRefused(f *fixture) {
	f.activated()
	_, err := f.store.AbandonCheckpoint(f.ctx, "letters", 2, "alice", "by mistake")
	f.wantCode(err, storage.CodeCheckpointActivated)
	same(f, "state", f.checkpoint("a", "letters").State, storage.Activated)
	_, err = f.store.AbandonCheckpoint(f.ctx, "letters", 1, "alice", "another version")
	f.wantCode(err, storage.CodeCheckpointNotDeclared)
	_, err = f.store.AbandonCheckpoint(f.ctx, "nothing", 2, "alice", "no such name")
	f.wantCode(err, storage.CodeCheckpointNotDeclared)
	for _, said := range [][2]string{{"", "by nobody"}, {"alice", ""}} { // without a word of who or why
		_, err = f.store.AbandonCheckpoint(f.ctx, "letters", 2, said[0], said[1])
		f.wantCode(err, storage.CodeInvalidSpec)
	}
}
