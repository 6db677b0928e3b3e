package sqlite

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// namedKeys is how many wrong rows a failed verify query names.
const namedKeys = 10

// VerifyRow runs the verify queries of a checkpoint in full, in one snapshot and without a lock, restricted to the claimed row's partition
// where the table has one. Wrong rows that the same snapshot shows changed in the log above the position, or left over, are still to
// be done and do not count.
//
// In a file without a write-ahead log nobody can commit while somebody reads, so programs wait for these queries too.
//
// Errors: CodeVerificationFailed names the query, the count and at most ten keys; CodeUnverifiable if the log cannot say what is still to be
// done; CodeInvalidSQL; CodeOwnershipLost.
func (s *Store) VerifyRow(ctx context.Context, claim storage.Claim, partition string) error {
	what := fmt.Sprintf("verify checkpoint %q in partition %q", claim.Name, partition)
	return s.inTx(ctx, what, false, func(ctx context.Context, tx *sql.Conn) error {
		w, row, err := openWork(ctx, tx, claim, partition)
		if err != nil || row.State == storage.Activated {
			return err
		}
		if err := w.makeRelations(ctx); err != nil {
			return err
		}
		if err := w.collectPending(ctx, row); err != nil {
			return err
		}
		for _, verify := range w.definition.Checkpoint.Verify {
			if err := w.verify(ctx, verify, w.inFull(verify, w.partOf(partition))); err != nil {
				return err
			}
		}
		return w.dropRelations(ctx)
	})
}

// collectPending puts the keys that are still to be done into the keys relation.
func (w *work) collectPending(ctx context.Context, row owned) error {
	found, reason, err := w.readBehind(ctx, row, 0)
	for _, b := range found {
		if err == nil && reason == "" {
			_, reason, err = w.collectChanges(ctx, b, b.last)
		}
	}
	if err != nil {
		return err
	}
	if reason != "" {
		return storage.Refuse(storage.CodeUnverifiable, "checkpoint %q, partition %q: %s", row.Name, row.Partition, reason)
	}
	_, err = w.collectLeftovers(ctx, row, 0)
	return err
}

// selection is a FROM clause over a verify query named q, with its conditions.
type selection struct {
	from      string
	arguments []any
}

// inFull selects all wrong rows of a part but those that are still to be done.
func (w *work) inFull(verify storage.Verify, p part) selection {
	s := selection{from: subquery(verify.Query) + " AS q"}
	if p.column != "" {
		condition, arguments := p.condition("t.")
		s.from += " JOIN " + w.table() + " AS t ON " + w.key.matches("t.", "q.") + " AND " + condition
		s.arguments = arguments
	}
	s.from += " WHERE NOT EXISTS (SELECT 1 FROM " + keysRelation + " AS k WHERE " + w.key.matches("k.", "q.") + ")"
	return s
}

// ofKeys selects the wrong rows among the keys at hand.
func (w *work) ofKeys(verify storage.Verify) selection {
	return selection{from: subquery(verify.Query) + " AS q JOIN " + keysRelation + " AS k ON " + w.key.matches("k.", "q.")}
}

// verify runs one verify query. It holds when it finds nothing; only if it does not, the wrong rows are counted.
func (w *work) verify(ctx context.Context, verify storage.Verify, s selection) error {
	what := fmt.Sprintf("checkpoint %q: verify %q", w.definition.Name, verify.Name)
	var wrong [][]any
	var count int64
	err := contained(ctx, w.tx, what, &authorizer{readOnly: true}, func() error {
		rows, err := w.tx.QueryContext(ctx, "SELECT "+w.key.values("q.")+" FROM "+s.from+" LIMIT ?", append(s.arguments, namedKeys)...)
		if err != nil {
			return err
		}
		if _, wrong, err = collectResult(rows); err != nil || len(wrong) == 0 {
			return err
		}
		return w.tx.QueryRowContext(ctx, "SELECT count(*) FROM "+s.from, s.arguments...).Scan(&count)
	})
	if err != nil || len(wrong) == 0 {
		return err
	}
	names := make([]string, len(wrong))
	for i, key := range wrong {
		names[i] = storage.EncodeKey(keyTexts(key))
	}
	list := storage.ShownKeys(names)
	if more := count - int64(len(names)); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	return storage.Refuse(storage.CodeVerificationFailed, "checkpoint %q: verify %q finds %d wrong rows of table %q, with the keys %s",
		w.definition.Name, verify.Name, count, w.key.table, list)
}
