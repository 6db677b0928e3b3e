package servegate

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestAClosedGateRunsNoQuery(t *testing.T) {
	c := onPostgres(t)
	c.migrate(6)
	c.migrate(7)
	g, err := ForDB(c.db, PostgreSQL, Options{Version: 7})
	if err != nil {
		t.Fatal(err)
	}
	err = g.Query(c.ctx, "", func(context.Context, *sql.Tx, Position) error {
		t.Error("the query ran")
		return nil
	})
	if answer, closed := IsClosed(err); !closed || answer.Reason != Backfilling {
		t.Errorf("the error is %v, want that the gate is closed for %s", err, Backfilling)
	}
}

// commit follows the protocol of a program of version 7, as one transaction.
const commit = `
	WITH next AS (
	  UPDATE sync_partitions SET max_commit_seq = max_commit_seq + 1 WHERE partition = 'north' RETURNING max_commit_seq
	), logged AS (
	  INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
	  SELECT 'north', max_commit_seq, 'c', 'c' || max_commit_seq, 'a', 0, 7 FROM next
	)
	INSERT INTO patients(id, ward, name) SELECT max_commit_seq, 'north', 'Ada' FROM next`

func TestAQuerySeesTheSnapshotOfItsGate(t *testing.T) {
	c := onPool(t)
	c.serving()
	mustExec(t, c.db, `INSERT INTO sync_partitions(partition) VALUES ('north') ON CONFLICT DO NOTHING`)
	mustExec(t, c.db, commit)
	g := poolGate(t, c, 7)
	err := g.Query(c.ctx, "north", func(ctx context.Context, tx pgx.Tx, position Position) error {
		mustExec(t, c.db, commit) // somebody else's, after the gate was read
		var patients int64
		if err := tx.QueryRow(ctx, `SELECT count(*) FROM patients`).Scan(&patients); err != nil {
			return err
		}
		if patients != 1 || position.MaxCommitSeq != 1 {
			t.Errorf("the query sees %d patients at position %d, want 1 at 1: not the snapshot of the gate", patients, position.MaxCommitSeq)
		}
		_, err := tx.Exec(ctx, `DELETE FROM patients`)
		if err == nil {
			t.Error("the query could write")
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func poolGate(t *testing.T, c clinic, version int64) *Gate[pgx.Tx] {
	t.Helper()
	made, ok := c.newGate(Options{Version: version}).(*Gate[pgx.Tx])
	if !ok {
		t.Fatal("the gate is not one over a pool")
	}
	return made
}

func TestAQueryThatABarrierPassedIsRunAgain(t *testing.T) {
	c := onPool(t)
	c.serving()
	g := poolGate(t, c, 7)
	var seen []int64
	err := g.Query(c.ctx, "north", func(ctx context.Context, tx pgx.Tx, _ Position) error {
		var stored int64
		if err := tx.QueryRow(ctx, `SELECT schema_version FROM sync_schema_meta`).Scan(&stored); err != nil {
			return err
		}
		if seen = append(seen, stored); len(seen) == 1 {
			c.migrate(8)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 || seen[0] != 7 || seen[1] != 8 {
		t.Errorf("the query saw versions %v, want 7 and, once more, 8", seen)
	}
}

func TestAQueryOfSQLiteSeesOneSnapshotAndCannotWrite(t *testing.T) {
	c := onSQLite(t)
	c.serving()
	mustExec(t, c.db, `PRAGMA journal_mode = wal`)
	mustExec(t, c.db, `INSERT INTO patients(id, ward, name) VALUES (1, 'north', 'Ada')`)
	g, err := ForDB(c.db, SQLite, Options{Version: 7})
	if err != nil {
		t.Fatal(err)
	}
	failure := errors.New("as the query wants")
	err = g.Query(c.ctx, "north", func(ctx context.Context, tx *sql.Tx, _ Position) error {
		mustExec(t, c.db, `INSERT INTO patients(id, ward, name) VALUES (2, 'north', 'Bob')`)
		var patients int64
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM patients`).Scan(&patients); err != nil {
			return err
		}
		if patients != 1 {
			t.Errorf("the query sees %d patients, want the 1 of the gate's snapshot", patients)
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM patients`); err == nil {
			t.Error("the query could write")
		}
		return failure
	})
	if !errors.Is(err, failure) {
		t.Errorf("the error is %v, want that of the query", err)
	}
	c.db.SetMaxOpenConns(1) // whichever connection it was can write again
	mustExec(t, c.db, `INSERT INTO patients(id, ward, name) VALUES (3, 'north', 'Cy')`)
}
