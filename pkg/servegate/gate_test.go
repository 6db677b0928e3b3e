package servegate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestTheGateFollowsTheDatabase(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			c.want(Options{Version: 6}, SchemaNotFound)
			c.migrate(6)
			c.want(Options{Version: 6, Name: "clinic"}, GateOpen)
			c.want(Options{Version: 7}, MigrationPending)
			c.migrate(7)
			closed := c.want(Options{Version: 7}, Backfilling)
			if closed.StoredVersion != 7 || closed.Writable || !strings.Contains(closed.Message, "name-search") {
				t.Errorf("the closed gate is %+v, want stored version 7, not writable, and the name of the checkpoint", closed)
			}
			if older := c.want(Options{Version: 6}, GateOpen); older.Writable {
				t.Error("version 6 is behind the fence and is said to be able to write")
			}
			c.activate()
			if answer := c.want(Options{Version: 7, Name: "clinic"}, GateOpen); !answer.Writable {
				t.Error("version 7 is said not to be able to write")
			}
		})
	}
}

func TestAnotherApplicationsDatabaseNeverOpensIt(t *testing.T) {
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			c.serving()
			c.want(Options{Version: 7}, GateOpen)
			for _, other := range []Options{{Name: "billing"}, {Name: "clinic", Namespace: "other"}, {Namespace: "other"}} {
				other.Version = 7
				answer := c.want(other, Conflict)
				if !strings.Contains(answer.Message, "shop/clinic") || answer.StoredVersion != 0 {
					t.Errorf("%+v: the answer is %+v, want the owner's name and no version", other, answer)
				}
			}
			c.want(Options{Version: 7, Name: "clinic", Namespace: "shop", Cluster: "any: a command line migrated it"}, GateOpen)
			mustExec(t, c.db, "UPDATE "+c.table("sync_barrier_owner")+" SET cluster = 'c1'")
			c.want(Options{Version: 7, Name: "clinic", Namespace: "shop", Cluster: "c1"}, GateOpen)
			c.want(Options{Version: 7, Name: "clinic", Namespace: "shop", Cluster: "c2"}, Conflict)
			mustExec(t, c.db, "UPDATE "+c.table("sync_barrier_owner")+" SET name = ''")
			c.want(Options{Version: 7, Name: "clinic"}, Conflict)
			c.want(Options{Version: 7}, GateOpen)
		})
	}
}

// emptied are ways to lose what the gate rests on, with the reason that is right for each. The guards refuse them, so they go first.
var emptied = map[string]struct {
	table  string
	reason Reason
}{
	"the checkpoints":   {"sync_backfill_checkpoints", CheckpointMissing},
	"the history":       {"sync_barrier_history", CheckpointMissing},
	"the marker":        {"sync_schema_meta", MigrationPending},
	"the catalog's row": {"sync_barrier_owner", SchemaNotFound},
}

func TestAnEmptiedTableNeverOpensIt(t *testing.T) {
	for name, c := range emptied {
		t.Run(name+" in PostgreSQL", func(t *testing.T) {
			clinic := onPool(t)
			clinic.serving()
			clinic.want(Options{Version: 7}, GateOpen)
			mustExec(t, clinic.db, "ALTER TABLE "+c.table+" DISABLE TRIGGER ALL")
			mustExec(t, clinic.db, "DELETE FROM "+c.table)
			clinic.want(Options{Version: 7}, c.reason)
		})
		t.Run(name+" in SQLite", func(t *testing.T) {
			clinic := onSQLite(t)
			clinic.serving()
			clinic.want(Options{Version: 7}, GateOpen)
			for _, trigger := range triggersOf(t, clinic, c.table) {
				mustExec(t, clinic.db, `DROP TRIGGER "`+trigger+`"`)
			}
			mustExec(t, clinic.db, "DELETE FROM "+c.table)
			clinic.want(Options{Version: 7}, c.reason)
		})
	}
}

func triggersOf(t *testing.T, c clinic, table string) (names []string) {
	t.Helper()
	rows, err := c.db.QueryContext(c.ctx, `SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?`, table)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestALostRightNeverOpensIt(t *testing.T) {
	url := testdb.Postgres(t)
	admin := openClinic(t, url, "", newPool(t, url))
	admin.serving()
	roleURL := testdb.Role(t, url, "reader")
	role := pgx.Identifier{testdb.RoleName(t, roleURL)}.Sanitize()
	reader := openClinic(t, roleURL, "", newPool(t, roleURL))
	reader.want(Options{Version: 7}, Unreachable)

	mustExec(t, admin.db, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+role)
	reader.want(Options{Version: 7, Name: "clinic"}, GateOpen)
	for _, table := range []string{"sync_schema_meta", "sync_barrier_history", "sync_backfill_checkpoints", "sync_writer_fence"} {
		mustExec(t, admin.db, "REVOKE SELECT ON "+table+" FROM "+role)
		reader.want(Options{Version: 7}, Unreachable)
		mustExec(t, admin.db, "GRANT SELECT ON "+table+" TO "+role)
	}
	reader.want(Options{Version: 7}, GateOpen)
}

func TestAStandbyNeverOpensIt(t *testing.T) {
	server := testdb.PostgresServer(t, testdb.ServerOptions{})
	url := server.Database(t)
	primary := openClinic(t, url, "", newPool(t, url))
	primary.serving()
	primary.want(Options{Version: 7}, GateOpen)

	database := primary.value(`SELECT current_database()::text`)
	written := primary.value(`SELECT pg_current_wal_lsn()::text`)
	standby := server.Standby(t)
	copied := openClinic(t, standby.DSN(database), "", newPool(t, standby.DSN(database)))
	waitFor(t, "the standby to have it all", func() bool {
		return copied.value(`SELECT coalesce(pg_last_wal_replay_lsn() >= '`+written+`'::pg_lsn, false)::text`) == "true"
	})
	copied.want(Options{Version: 7}, Standby)
	standby.Promote()
	copied.want(Options{Version: 7}, GateOpen)
}

func (c clinic) value(query string) (text string) {
	c.t.Helper()
	if err := c.db.QueryRowContext(c.ctx, query).Scan(&text); err != nil {
		c.t.Fatalf("%s: %v", query, err)
	}
	return text
}

func waitFor(t *testing.T, what string, reached func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for !reached() {
		select {
		case <-deadline:
			t.Fatalf("waited a minute for %s", what)
		case <-ticker.C:
		}
	}
}

func TestALockedTableIsWaitedForNoLongerThanTheTimeout(t *testing.T) {
	for name, open := range map[string]func(*testing.T) clinic{"a pgx pool": onPool, "database/sql": onPostgres} {
		t.Run(name, func(t *testing.T) {
			c := open(t)
			c.serving()
			tx, err := c.db.BeginTx(c.ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = tx.Rollback() }() // it only holds the lock
			if _, err := tx.ExecContext(c.ctx, `LOCK TABLE sync_backfill_checkpoints`); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
			defer cancel()
			c.ctx = ctx
			c.want(Options{Version: 7, Timeout: 200 * time.Millisecond}, Unreachable)
			if ctx.Err() != nil {
				t.Error("only the caller's own time limit ended the wait")
			}
		})
	}
}

func TestAVersionThatCannotBeIsRefused(t *testing.T) {
	c := onSQLite(t)
	for _, o := range []Options{{}, {Version: -1}, {Version: 1 << 31}, {Version: 7, Timeout: -1}} {
		if made, err := c.gate(o); err == nil {
			t.Errorf("a gate was made of %+v: %v", o, made)
		}
	}
	if _, err := ForDB(c.db, "MySQL", Options{Version: 7}); err == nil {
		t.Error("a gate was made for MySQL")
	}
}
