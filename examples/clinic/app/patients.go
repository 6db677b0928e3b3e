package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// firstDerived is the first version that derives a column. Each version from it on adds one.
const firstDerived = 7

// derivedColumn is the column that a version adds.
func derivedColumn(version int) string {
	if version == firstDerived {
		return "name_search"
	}
	return fmt.Sprintf("name_search_%d", version)
}

// definition is what that column holds, as SQL over a name.
func definition(version int, name string) string {
	if version == firstDerived {
		return "lower(" + name + ")"
	}
	return fmt.Sprintf("lower(%s) || ' %d'", name, version)
}

// patients is the clinic's access to its database.
type patients struct {
	pool    *pgxpool.Pool
	version int
	ending  atomic.Bool // the program is about to end, or too old: clients are told to leave
	vitals  *vitals     // nil: it keeps none
}

// openPatients prepares connections; the first request makes the first.
func openPatients(address string, version int) (*patients, error) {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return nil, errors.New("DATABASE_URL is no address of a PostgreSQL") // the address itself may hold a password
	}
	// This is all that a program has to do: every connection says which version it writes for.
	config.ConnConfig.RuntimeParams["syncbarrier.writer_version"] = strconv.Itoa(version)
	config.ConnConfig.RuntimeParams["application_name"] = fmt.Sprintf("clinic version %d", version)
	config.ConnConfig.ConnectTimeout = requestTimeout
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		return nil, fmt.Errorf("prepare connections: %w", err)
	}
	return &patients{pool: pool, version: version}, nil
}

// createWithin makes and fills the table of version 6, if it is not there. The database may have been started at the same time, and what
// the operator makes may come later.
func (p *patients) createWithin(ctx context.Context, limit time.Duration, rows int) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := p.create(ctx, rows)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create the patients: %w", err)
		case <-time.After(time.Second):
		}
	}
}

// create makes the table, unless the operator was first to, and fills it if nobody has. Several programs may start at once: the lock
// makes one of them the first.
func (p *patients) create(ctx context.Context, rows int) error {
	tx, err := p.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // committed or not, it is over
	for _, statement := range []string{
		`SELECT pg_advisory_xact_lock(6)`,
		`CREATE TABLE IF NOT EXISTS patients(id BIGINT PRIMARY KEY, ward TEXT NOT NULL, name TEXT NOT NULL)`,
	} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return err
		}
	}
	// Asked first: once there is a newer version, the database refuses an INSERT of this one, even of nothing.
	var filled bool
	if err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM patients)`).Scan(&filled); err != nil || filled {
		return err
	}
	_, err = tx.Exec(ctx, `
		INSERT INTO patients(id, ward, name)
		SELECT n, (ARRAY['north', 'south', 'east', 'west'])[1 + n % 4], 'Patient Nr. ' || n
		  FROM generate_series(1, $1::bigint) n`, rows)
	if err != nil {
		return err
	}
	if p.vitals != nil {
		if err := fillVitals(ctx, tx, rows); err != nil {
			return err
		}
	}
	// So that whoever asks how many there are need not guess.
	if _, err := tx.Exec(ctx, `ANALYZE patients`); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

// patient is what is read of one.
type patient struct {
	ID     int64  `json:"id"`
	Name   string `json:"name"`
	Search string `json:"search,omitempty"`
}

// errStale says that a derived value is missing or wrong: what must never be served.
var errStale = errors.New("the derived value is not what its definition says")

// read returns a patient with the column of this version.
func (p *patients) read(ctx context.Context, id int64) (patient, error) {
	found := patient{ID: id}
	if p.version < firstDerived {
		err := p.pool.QueryRow(ctx, `SELECT name FROM patients WHERE id = $1`, id).Scan(&found.Name)
		return found, err
	}
	var right bool
	column := derivedColumn(p.version)
	query := fmt.Sprintf(`SELECT name, coalesce(%[1]s, ''), %[1]s IS NOT DISTINCT FROM %[2]s FROM patients WHERE id = $1`,
		column, definition(p.version, "name"))
	err := p.pool.QueryRow(ctx, query, id).Scan(&found.Name, &found.Search, &right)
	if err == nil && !right {
		return found, errStale
	}
	return found, err
}

// write sets a patient's name, with every column that this version derives from it.
func (p *patients) write(ctx context.Context, id int64, name string) error {
	columns, values := []string{"name"}, []string{"$2::text"}
	for version := firstDerived; version <= p.version; version++ {
		columns = append(columns, derivedColumn(version))
		values = append(values, definition(version, "$2::text"))
	}
	var sets []string
	for _, column := range columns {
		sets = append(sets, "EXCLUDED."+column)
	}
	statement := fmt.Sprintf(`
		INSERT INTO patients(id, ward, %[1]s)
		VALUES ($1, 'north', %[2]s)
		ON CONFLICT (id) DO UPDATE SET (%[1]s) = ROW(%[3]s)`,
		strings.Join(columns, ", "), strings.Join(values, ", "), strings.Join(sets, ", "))
	_, err := p.pool.Exec(ctx, statement, id, name)
	return err
}
