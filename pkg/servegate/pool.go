package servegate

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ForPool makes a gate that reads over a pgx pool. Each read takes one of its connections for a moment.
func ForPool(pool *pgxpool.Pool, o Options) (*Gate[pgx.Tx], error) {
	return newGate[pgx.Tx](poolSource{pool}, newPostgres(o.Schema), o)
}

type poolSource struct{ pool *pgxpool.Pool }

func (s poolSource) snapshot(ctx context.Context, run func(ctx context.Context, tx pgx.Tx, one queryRow) error) (err error) {
	tx, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("begin to read: %w", err)
	}
	defer func() {
		// Nothing was written, so nothing is lost; but a connection whose transaction does not end is no connection. A server that does not
		// answer is not waited for.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), DefaultTimeout)
		defer cancel()
		if ended := tx.Rollback(bounded); ended != nil && !errors.Is(ended, pgx.ErrTxClosed) && err == nil {
			err = fmt.Errorf("end reading: %w", ended)
		}
	}()
	return run(ctx, tx, func(ctx context.Context, targets []any, text string, arguments ...any) error {
		return tx.QueryRow(ctx, text, arguments...).Scan(targets...)
	})
}

func (s poolSource) one(ctx context.Context, targets []any, text string, arguments ...any) error {
	return s.pool.QueryRow(ctx, text, arguments...).Scan(targets...)
}
