package storagetest

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runClaims(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"a claim raises the owner epoch, draws a token and begins the backfill", claimOne},
		{"a second claim takes the work from the first", claimTwice},
		{"only what is declared and not activated is claimed", claimNothing},
		{"a claim of all rows leaves out what is activated", claimAllRows},
		{"what another program declared is not claimed with all", claimForeign},
		{"a worker that knows only its token reads its claim back", claimReadBack},
		{"advancing moves forward only, and only for the owner", claimAdvance},
		{"the watermark of what SQL fills is not the owner's to move", claimAdvanceSQL},
		{"no claim is equal to one of before an abandon", claimAfterAbandon},
		{"of eight claimers at once each gets its own epoch and one is the owner", claimContention},
	})
}

func ownership(claim storage.Claim, partition string) storage.Ownership {
	row, _ := claim.Row(partition)
	return storage.Ownership{Partition: partition, Name: claim.Name, OwnerEpoch: row.OwnerEpoch, Token: claim.Token}
}

func containsText(text, part string) bool { return strings.Contains(text, part) }

func (f *fixture) claimOf(partition, name string) storage.Claim {
	f.Helper()
	claim, err := f.store.ClaimCheckpoint(f.ctx, partition, name)
	f.must(err, "claim "+name)
	return claim
}

func (f *fixture) claimAll(name string) storage.Claim {
	f.Helper()
	claim, err := f.store.ClaimAll(f.ctx, name, false)
	f.must(err, "claim all of "+name)
	return claim
}

// advance tries to move a watermark and says whether it did.
func (f *fixture) advance(owner storage.Ownership, watermark, rows int64) bool {
	f.Helper()
	moved, err := f.store.AdvanceCheckpoint(f.ctx, storage.Advance{Ownership: owner, Watermark: watermark, ObservedRows: rows})
	f.must(err, "advance")
	return moved
}

func claimOne(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a", "b")))
	before := f.checkpoint("a", "letters")
	claim := f.claimOf("a", "letters")
	row, ok := claim.Row("a")
	if !ok || len(claim.Rows) != 1 {
		f.Fatalf("the claim has the rows %v, want that of a", claim.Rows)
	}
	same(f, "name", claim.Name, "letters")
	same(f, "version", claim.Version, 2)
	same(f, "owner epoch", row.OwnerEpoch, before.OwnerEpoch+1)
	same(f, "state", row.State, storage.Backfilling)
	if len(claim.Token) < 16 {
		f.Errorf("the token %q could be guessed", claim.Token)
	}
	stored := f.checkpoint("a", "letters")
	same(f, "stored epoch", stored.OwnerEpoch, row.OwnerEpoch)
	same(f, "stored state", stored.State, storage.Backfilling)
	same(f, "state of the other row", f.checkpoint("b", "letters").State, storage.Declared)
}

func claimTwice(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	first := f.claimOf("a", "letters")
	same(f, "the owner advances", f.advance(ownership(first, "a"), 0, 1), true)
	second := f.claimOf("a", "letters")
	if first.Token == second.Token || second.Rows[0].OwnerEpoch <= first.Rows[0].OwnerEpoch {
		f.Errorf("the claims are %v and %v", first, second)
	}
	same(f, "who lost it advances", f.advance(ownership(first, "a"), 0, 2), false)
	outcome, err := f.store.ActivateCheckpoint(f.ctx, ownership(first, "a"), 0)
	f.must(err, "activate with the lost claim")
	same(f, "outcome for who lost it", outcome, storage.OutcomeLost)
	same(f, "the new owner advances", f.advance(ownership(second, "a"), 0, 3), true)
}

func claimNothing(f *fixture) {
	f.activated()
	for partition, name := range map[string]string{"a": "letters", "b": "letters", "*": "nothing"} {
		_, err := f.store.ClaimCheckpoint(f.ctx, partition, name)
		f.wantCode(err, storage.CodeCheckpointNotDeclared)
		f.wantMessage(err, name)
	}
	_, err := f.store.ClaimAll(f.ctx, "nothing", false)
	f.wantCode(err, storage.CodeCheckpointNotDeclared)
}

func claimAllRows(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a", "b", "c")))
	f.finishExternal("b", "letters")
	claim := f.claimAll("letters")
	var claimed []string
	for _, row := range claim.Rows {
		claimed = append(claimed, row.Partition)
		same(f, "state", row.State, storage.Backfilling)
		same(f, "the owner advances", f.advance(ownership(claim, row.Partition), row.Watermark, 1), true)
	}
	same(f, "claimed", fmt.Sprint(claimed), "[a c]")
	f.finishExternal("a", "letters")
	f.finishExternal("c", "letters")
	claim = f.claimAll("letters")
	same(f, "rows of a claim of what is done", len(claim.Rows), 0)
}

func claimForeign(f *fixture) {
	f.apply(version1())
	f.exec(`INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms) VALUES ('a', 'theirs', 1, 'declared', 0)`)
	_, err := f.store.ClaimAll(f.ctx, "theirs", false)
	f.wantCode(err, storage.CodeCheckpointDefinitionMissing)
	same(f, "state", f.checkpoint("a", "theirs").State, storage.Declared)
}

func claimReadBack(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a", "b")))
	claim := f.claimAll("letters")
	read, err := f.store.ReadClaim(f.ctx, "letters", claim.Token)
	f.must(err, "read the claim")
	same(f, "claim", fmt.Sprint(read), fmt.Sprint(claim))
	outcome, err := f.store.ActivateCheckpoint(f.ctx, ownership(claim, "a"), 0)
	f.must(err, "activate")
	same(f, "outcome", outcome, storage.OutcomeActivated)
	read, err = f.store.ReadClaim(f.ctx, "letters", claim.Token)
	f.must(err, "read the claim after an activation")
	if len(read.Rows) != 1 || read.Rows[0].Partition != "b" {
		f.Errorf("the claim still has %v, want the row of b", read.Rows)
	}
	f.claimAll("letters")
	_, err = f.store.ReadClaim(f.ctx, "letters", claim.Token)
	f.wantCode(err, storage.CodeOwnershipLost)
	_, err = f.store.ReadClaim(f.ctx, "nothing", claim.Token)
	f.wantCode(err, storage.CodeCheckpointNotDeclared)
	f.finishExternal("b", "letters")
	read, err = f.store.ReadClaim(f.ctx, "letters", f.lastToken("letters"))
	f.must(err, "read the claim of what is done")
	same(f, "rows", len(read.Rows), 0)
}

// lastToken is the token of the newest claim, as status shows it.
func (f *fixture) lastToken(name string) string {
	f.Helper()
	progress, err := f.store.ReadProgress(f.ctx, name)
	f.must(err, "read the progress")
	return progress.ClaimToken
}

func claimAdvance(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	same(f, "advance of what nobody claimed", f.advance(storage.Ownership{Partition: "a", Name: "letters"}, 1, 1), false)
	owner := ownership(f.claimOf("a", "letters"), "a")
	same(f, "up", f.advance(owner, 5, 10), true)
	same(f, "again", f.advance(owner, 5, 11), true)
	same(f, "down", f.advance(owner, 4, 12), false)
	row := f.checkpoint("a", "letters")
	same(f, "watermark", row.Watermark, 5)
	same(f, "rows", row.ObservedRows, 11)
	for name, other := range map[string]storage.Ownership{
		"another epoch":     {Partition: "a", Name: "letters", OwnerEpoch: owner.OwnerEpoch + 1, Token: owner.Token},
		"another token":     {Partition: "a", Name: "letters", OwnerEpoch: owner.OwnerEpoch, Token: "guess"},
		"another partition": {Partition: "b", Name: "letters", OwnerEpoch: owner.OwnerEpoch, Token: owner.Token},
		"another name":      {Partition: "a", Name: "other", OwnerEpoch: owner.OwnerEpoch, Token: owner.Token},
	} {
		same(f, name, f.advance(other, 6, 1), false)
	}
	same(f, "watermark after all that", f.checkpoint("a", "letters").Watermark, 5)
}

// claimAdvanceSQL: the tail alone knows how far the log is applied; a watermark moved past it would hide changes from the activation.
func claimAdvanceSQL(f *fixture) {
	f.filling(5, "a")
	claim := f.claimAll("title-norm")
	f.scan(claim)
	f.write("a", 2, 1, "CHANGED")
	_, err := f.store.AdvanceCheckpoint(f.ctx, storage.Advance{Ownership: ownership(claim, "a"), Watermark: 1})
	f.wantCode(err, storage.CodeInvalidSpec)
	same(f, "watermark", f.checkpoint("a", "title-norm").Watermark, 0)
	same(f, "outcome", f.activate(ownership(claim, "a"), 1), storage.OutcomeChanged)
	f.tail(claim, "a")
	same(f, "outcome after the tail", f.activate(ownership(claim, "a"), 0), storage.OutcomeActivated)
	f.derivedIn("a")
}

func claimAfterAbandon(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a", "b")))
	f.claimOf("a", "letters")
	frozen := f.claimOf("a", "letters")
	_, err := f.store.AbandonCheckpoint(f.ctx, "letters", 2, "alice", "a mistake")
	f.must(err, "abandon")
	// A program of the sync protocol declares the name again and claims it, as it may.
	f.exec(`INSERT INTO sync_backfill_checkpoints (partition, name, schema_version, state, updated_at_ms) VALUES ('a', 'letters', 2, 'declared', 0)`)
	f.exec(`UPDATE sync_backfill_checkpoints SET owner_epoch = owner_epoch + 1, state = 'backfilling' WHERE partition = 'a' AND name = 'letters'`)
	if epoch := f.checkpoint("a", "letters").OwnerEpoch; epoch <= frozen.Rows[0].OwnerEpoch {
		f.Errorf("the new claim has epoch %d, the one of before the abandon %d", epoch, frozen.Rows[0].OwnerEpoch)
	}
	same(f, "the worker of before advances", f.advance(ownership(frozen, "a"), 1, 1), false)
}

func claimContention(f *fixture) {
	f.apply(version1())
	f.apply(version2(external("letters", 2, "a")))
	const claimers = 8
	claims := make([]storage.Claim, claimers)
	failures := make([]error, claimers)
	var group sync.WaitGroup
	for i := range claimers {
		store := f.db.OpenStore(f.T)
		group.Go(func() {
			failures[i] = retry(f.ctx, func() (err error) {
				claims[i], err = store.ClaimCheckpoint(f.ctx, "a", "letters")
				return err
			})
		})
	}
	group.Wait()
	epochs, tokens, owners := map[int64]bool{}, map[string]bool{}, 0
	for i, claim := range claims {
		f.must(failures[i], fmt.Sprintf("claimer %d", i))
		epochs[claim.Rows[0].OwnerEpoch], tokens[claim.Token] = true, true
		if f.advance(ownership(claim, "a"), 0, int64(i)) {
			owners++
		}
	}
	same(f, "different epochs", len(epochs), claimers)
	same(f, "different tokens", len(tokens), claimers)
	same(f, "owners", owners, 1)
}
