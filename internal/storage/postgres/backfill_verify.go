package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// verifyStatement bounds one verify query in full.
	verifyStatement = time.Hour
	// verifyRest is how many keys may still be to be done while a row is verified in full.
	verifyRest = 200_000
	// namedKeys is how many keys an error names.
	namedKeys = 10
)

// VerifyRow runs the verify queries of a checkpoint in full, in one snapshot and without a lock, restricted to the partition of
// the claimed row where the backfilled table has one. A wrong row whose key the same snapshot shows in the log above the position, or
// among the leftovers, is still to be done and does not count.
//
// Errors: CodeVerificationFailed names the query, how many rows are wrong, and at most ten keys; CodeUnverifiable if the log cannot say
// what is still to be done; CodeNotConverging if that is very much; CodeInvalidSQL, CodeOwnershipLost.
func (s *Store) VerifyRow(ctx context.Context, claim storage.Claim, partition string) error {
	what := fmt.Sprintf("verify checkpoint %q, partition %q", claim.Name, partition)
	row, ok := claim.Row(partition)
	if !ok {
		return storage.Refuse(storage.CodeOwnershipLost, "%s: the claim has no row for the partition", what)
	}
	plan, err := s.plan(ctx, claim)
	if err != nil || len(plan.definition.Checkpoint.Verify) == 0 {
		return err
	}
	options := txOptions{iso: pgx.RepeatableRead, readOnly: true, statementTimeout: verifyStatement}
	err = s.inTx(ctx, what, options, func(ctx context.Context, tx pgx.Tx) error {
		closeConnection(ctx)
		b := &batchTx{Tx: tx, store: s, plan: plan, claim: claim, row: row}
		pending, err := b.readPending(ctx)
		if err != nil {
			return err
		}
		for _, verify := range plan.definition.Checkpoint.Verify {
			if err := b.verify(ctx, verify, b.notAmong(pending)); err != nil {
				return err
			}
		}
		return nil
	})
	if ended := (batchEnded{}); errors.As(err, &ended) {
		return nil // this claim has activated the row; what its programs write since is theirs
	}
	return err
}

// readPending reads the keys that are still to be done in the snapshot of the transaction.
func (b *batchTx) readPending(ctx context.Context) ([][]string, error) {
	var facts string
	reading := b.store.readingFacts(b.claim.Name, b.partition(), &facts)
	// A pause is for what writes; here everything has been read when it shows.
	var ended batchEnded
	if err := b.begin(ctx, batchWait, reading); err != nil && !(errors.As(err, &ended) && ended.batch.Settings.Paused) {
		return nil, err
	}
	pending, err := b.readRest(ctx, facts, verifyRest)
	switch {
	case err != nil:
		return nil, err
	case pending.reason != "":
		return nil, storage.Refuse(storage.CodeUnverifiable, "checkpoint %q, partition %q: %s", b.claim.Name, b.partition(), pending.reason)
	case !pending.complete:
		return nil, storage.Refuse(storage.CodeNotConverging, "checkpoint %q, partition %q: more than %d rows are still to be done", b.claim.Name, b.partition(), verifyRest)
	}
	return pending.keys, nil
}

// notAmong is the condition that a row of q is in the partition and not among keys.
func (b *batchTx) notAmong(keys [][]string) *where {
	t, w := b.plan.table, &where{}
	t.inPartition("t.", w, b.partition())
	if len(w.conditions) > 0 {
		w.conditions = []string{fmt.Sprintf("EXISTS (SELECT FROM %s AS t WHERE %s AND %s)", t.sql, t.equal("t.", "q."), w.sql())}
	}
	if len(keys) > 0 {
		w.add(fmt.Sprintf("NOT EXISTS (SELECT FROM %s AS pending WHERE %s)", t.set(w.next()), t.equal("pending.", "q.")), t.arrays(keys)...)
	}
	return w
}

// among is the condition that a row of q is among keys.
func (b *batchTx) among(keys [][]string) *where {
	t, w := b.plan.table, &where{}
	w.add(fmt.Sprintf("(%s) IN %s", t.names("q."), t.set(1)), t.arrays(keys)...)
	return w
}

// equal is the condition that two relations have the same key.
func (t keyTable) equal(left, right string) string {
	return t.join(" AND ", func(_ int, c keyColumn) string { return left + c.name + " = " + right + c.name })
}

// verify runs one query, restricted to rows for which the condition holds.
func (b *batchTx) verify(ctx context.Context, verify storage.Verify, condition *where) error {
	t := b.plan.table
	what := fmt.Sprintf("checkpoint %q: verify %q", b.claim.Name, verify.Name)
	rows, err := b.Query(ctx, fmt.Sprintf(`
SELECT %s, count(*) OVER ()
  FROM (%s
       ) AS q
 WHERE %s
 ORDER BY %s
 LIMIT %d`,
		t.list(func(_ int, c keyColumn) string { return fmt.Sprintf("coalesce(q.%s::text, 'NULL')", c.name) }),
		trimmed(verify.Query), condition.sql(), t.names("q."), namedKeys), condition.arguments...)
	if err != nil {
		return translateUserSQL(err, what)
	}
	var wrong int64
	var keys []string
	err = t.eachKey(rows, func(key []string) { keys = append(keys, storage.EncodeKey(key)) }, &wrong)
	if err != nil {
		return translateUserSQL(err, what)
	}
	if wrong == 0 {
		return nil
	}
	return storage.Refuse(storage.CodeVerificationFailed, "checkpoint %q, partition %q: verify %q finds %d wrong rows of table %q, with the keys %s",
		b.claim.Name, b.partition(), verify.Name, wrong, t.declared.Name, storage.ShownKeys(keys))
}
