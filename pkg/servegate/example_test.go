package servegate_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/pkg/servegate"
)

// A program serves its readiness from the gate, and reads under it.
func ExampleForPool() {
	serve := func(ctx context.Context, pool *pgxpool.Pool) error {
		gate, err := servegate.ForPool(pool, servegate.Options{Version: 7, Name: "clinic"})
		if err != nil {
			return err
		}
		http.Handle("/readyz", gate.Handler())
		return gate.Query(ctx, "north", func(ctx context.Context, tx pgx.Tx, at servegate.Position) error {
			var patients int64
			if err := tx.QueryRow(ctx, `SELECT count(*) FROM patients WHERE name_search LIKE 'ada%'`).Scan(&patients); err != nil {
				return err
			}
			fmt.Println(patients, "at", at.MaxCommitSeq)
			return nil
		})
	}
	_ = serve
}

// A program on SQLite waits with its first answer until the gate is open.
func ExampleForDB() {
	mayServe := func(ctx context.Context, db *sql.DB) bool {
		gate, err := servegate.ForDB(db, servegate.SQLite, servegate.Options{Version: 7, Name: "clinic"})
		if err != nil {
			return false
		}
		answer, err := gate.Check(ctx)
		return err == nil && answer.Open
	}
	_ = mayServe
}
