package servegate

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
)

// ForDB makes a gate that reads over database/sql. Each read takes one connection for a moment.
func ForDB(db *sql.DB, d Dialect, o Options) (*Gate[*sql.Tx], error) {
	switch d {
	case PostgreSQL:
		options := sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
		return newGate[*sql.Tx](dbSource{db: db, options: options}, newPostgres(o.Schema), o)
	case SQLite:
		// Every transaction of SQLite has one snapshot, and drivers differ in which levels they know.
		return newGate[*sql.Tx](dbSource{db: db, options: sql.TxOptions{ReadOnly: true}, queryOnly: true}, sqliteDialect{}, o)
	default:
		return nil, fmt.Errorf("make a serve gate: there is none for %q, only for %s and %s", d, PostgreSQL, SQLite)
	}
}

type dbSource struct {
	db      *sql.DB
	options sql.TxOptions
	// queryOnly: the connection itself refuses to write while the snapshot lasts, because a transaction of SQLite cannot.
	queryOnly bool
}

func (s dbSource) snapshot(ctx context.Context, run func(ctx context.Context, tx *sql.Tx, one queryRow) error) (err error) {
	conn, err := s.db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }() // gives it back to the pool
	if s.queryOnly {
		if _, err := conn.ExecContext(ctx, `PRAGMA query_only = on`); err != nil {
			return fmt.Errorf("let the connection read only: %w", err)
		}
		defer s.writable(ctx, conn)
	}
	tx, err := conn.BeginTx(ctx, &s.options)
	if err != nil {
		return fmt.Errorf("begin to read: %w", err)
	}
	defer func() {
		if ended := tx.Rollback(); ended != nil && !errors.Is(ended, sql.ErrTxDone) && err == nil {
			err = fmt.Errorf("end reading: %w", ended)
		}
	}()
	return run(ctx, tx, func(ctx context.Context, targets []any, text string, arguments ...any) error {
		return tx.QueryRowContext(ctx, text, arguments...).Scan(targets...)
	})
}

// writable lets the connection write again, for whoever gets it next; if that fails it is thrown away.
func (s dbSource) writable(ctx context.Context, conn *sql.Conn) {
	if _, err := conn.ExecContext(context.WithoutCancel(ctx), `PRAGMA query_only = off`); err != nil {
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // says the same back
	}
}

func (s dbSource) one(ctx context.Context, targets []any, text string, arguments ...any) error {
	return s.db.QueryRowContext(ctx, text, arguments...).Scan(targets...)
}
