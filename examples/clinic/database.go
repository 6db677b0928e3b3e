package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "modernc.org/sqlite"             // the driver sqlite
)

// database is the clinic's own access to its database. It knows nothing of Syncbarrier.
type database struct {
	*sql.DB
	postgres bool
	schema   string
}

func open(ctx context.Context, address, schema string) (*database, error) {
	if path, ok := strings.CutPrefix(address, "sqlite:"); ok {
		db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(10000)&_txlock=immediate")
		if err != nil {
			return nil, err
		}
		return &database{DB: db}, nil
	}
	parsed, err := url.Parse(address)
	if err != nil {
		return nil, errors.New("-database is no address") // the address itself may hold a password
	}
	query := parsed.Query()
	query.Set("search_path", pgx.Identifier{schema}.Sanitize())
	parsed.RawQuery = query.Encode()
	db, err := sql.Open("pgx", parsed.String())
	if err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, "CREATE SCHEMA IF NOT EXISTS "+pgx.Identifier{schema}.Sanitize()); err != nil {
		return nil, fmt.Errorf("create schema: %w", err)
	}
	return &database{DB: db, postgres: true, schema: schema}, nil
}

// q turns ? into the driver's placeholders.
func (d *database) q(text string) string {
	if !d.postgres {
		return text
	}
	for n := 1; strings.Contains(text, "?"); n++ {
		text = strings.Replace(text, "?", fmt.Sprintf("$%d", n), 1)
	}
	return text
}

var wards = []string{"north", "south", "east", "west"}

// createPatients makes the table of version 6 and fills it.
func (d *database) createPatients(ctx context.Context, rows int) error {
	tx, err := d.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, `CREATE TABLE patients(id BIGINT PRIMARY KEY, ward TEXT NOT NULL, name TEXT NOT NULL)`); err != nil {
		return fmt.Errorf("create patients: %w", err)
	}
	insert, err := tx.PrepareContext(ctx, d.q(`INSERT INTO patients(id, ward, name) VALUES (?, ?, ?)`))
	if err != nil {
		return err
	}
	defer func() { _ = insert.Close() }()
	for id := range rows {
		if _, err := insert.ExecContext(ctx, id, wards[id%len(wards)], fmt.Sprintf("Patient Nr. %d", id)); err != nil {
			return fmt.Errorf("insert patient %d: %w", id, err)
		}
	}
	return tx.Commit()
}

// rename writes one patient and one commit of the log, as the sync protocol says: the partition's row is locked first, the
// commit takes the next number of its partition, and it carries the version of the program that wrote it.
func (d *database) rename(ctx context.Context, n int, version int64) error {
	tx, err := d.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	id := n % 1000
	ward := wards[id%len(wards)]
	seq, err := d.nextSeq(ctx, tx, ward)
	if err != nil {
		return err
	}
	statements := []struct {
		sql       string
		arguments []any
	}{
		{`UPDATE patients SET name = ? WHERE id = ?`, []any{fmt.Sprintf("Renamed Patient %d.%d", id, n), id}},
		{`INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			[]any{ward, seq, "clinic", fmt.Sprintf("%d-%d", version, n), "nurse", time.Now().UnixMilli(), version}},
		{`INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes) VALUES (?, ?, 0, 'patients', ?, 1, '{}')`,
			[]any{ward, seq, fmt.Sprint(id)}},
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, d.q(s.sql), s.arguments...); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (d *database) nextSeq(ctx context.Context, tx *sql.Tx, partition string) (seq int64, err error) {
	if _, err := tx.ExecContext(ctx, d.q(`INSERT INTO sync_partitions(partition) VALUES (?) ON CONFLICT (partition) DO NOTHING`), partition); err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, d.q(`UPDATE sync_partitions SET max_commit_seq = max_commit_seq + 1 WHERE partition = ? RETURNING max_commit_seq`),
		partition).Scan(&seq)
	return seq, err
}

func (d *database) wrongRows(ctx context.Context) (wrong int64, err error) {
	err = d.QueryRowContext(ctx, `SELECT count(*) FROM patients WHERE name_search IS NULL OR name_search <> lower(name)`).Scan(&wrong)
	return wrong, err
}

func (d *database) dropSchema(ctx context.Context) error {
	if !d.postgres || !strings.HasPrefix(d.schema, "clinic_demo_") {
		return errors.New("only a database schema of the demo's own, clinic_demo_*, is dropped")
	}
	_, err := d.ExecContext(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{d.schema}.Sanitize()+" CASCADE")
	return err
}
