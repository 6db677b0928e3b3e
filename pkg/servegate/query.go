package servegate

import (
	"context"
	"fmt"
)

// queryTries is how often Query reads again because a barrier was committed while it read.
const queryTries = 3

// Position is where a partition's commit log stood in the snapshot.
type Position struct {
	// MaxCommitSeq is the sequence of the last commit, 0 for none.
	MaxCommitSeq int64
	// LogEpoch is the identity of the log; another one means that the database was restored. Empty if there is none.
	LogEpoch string
}

// Query calls read on the same snapshot in which the gate was open, and returns its error. tx can only read; read must not end it, and
// neither tx nor rows from it outlive the call. position is that of the partition's log in the snapshot; with partition "" it is zero.
//
// On PostgreSQL a table that a barrier rewrites after a snapshot was taken looks empty in it (PostgreSQL manual, "Caveats" of concurrency
// control). So the stored version is read again afterwards, and if it has moved, read is called again: up to three times. What an earlier
// call returned or kept is then void.
//
// Errors: *ClosedError if the gate was closed (read was not called; see IsClosed); that of read; or what kept the gate from being read. Reads of
// the gate are bounded by Options.Timeout, read itself by ctx alone.
func (g *Gate[Tx]) Query(ctx context.Context, partition string, read func(ctx context.Context, tx Tx, position Position) error) error {
	for range queryTries {
		stored, err := g.queryOnce(ctx, partition, read)
		if err != nil {
			return err
		}
		moved, err := g.moved(ctx, stored)
		if err != nil || !moved {
			return err
		}
	}
	return fmt.Errorf("query version %d: the schema version changed each of the %d times that it was read", g.options.Version, queryTries)
}

// queryOnce is one try. It returns the version that its snapshot showed.
func (g *Gate[Tx]) queryOnce(ctx context.Context, partition string, read func(ctx context.Context, tx Tx, position Position) error) (int64, error) {
	var stored int64
	err := g.source.snapshot(ctx, func(ctx context.Context, tx Tx, one queryRow) error {
		position, answer, err := g.gateAndPosition(ctx, one, partition)
		if err != nil {
			return fmt.Errorf("query version %d: read the serve gate: %w", g.options.Version, err)
		}
		if !answer.Open {
			return &ClosedError{Answer: answer}
		}
		stored = answer.StoredVersion
		return read(ctx, tx, position)
	})
	return stored, err
}

// gateAndPosition reads what comes before the caller's own reads.
func (g *Gate[Tx]) gateAndPosition(ctx context.Context, one queryRow, partition string) (position Position, answer Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeout)
	defer cancel()
	answer, _, err = g.judge(ctx, one)
	if err != nil || !answer.Open || partition == "" {
		return position, answer, err
	}
	err = one(ctx, []any{&position.MaxCommitSeq, &position.LogEpoch}, g.dialect.positionSQL(), partition)
	return position, answer, err
}

// moved says whether the stored version is another one by now.
func (g *Gate[Tx]) moved(ctx context.Context, stored int64) (bool, error) {
	text := g.dialect.versionSQL()
	if text == "" {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, g.options.Timeout)
	defer cancel()
	var now int64
	if err := g.source.one(ctx, []any{&now}, text); err != nil {
		return false, fmt.Errorf("query version %d: read the schema version again: %w", g.options.Version, err)
	}
	return now != stored, nil
}
