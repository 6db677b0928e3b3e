package main

import (
	"fmt"
	"strings"
	"testing"
)

const schemaV6 = `
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic}
spec:
  version: 6
  tables:
  - name: todos
    columns:
    - {name: id, type: integer}
    - {name: tenant, type: string}
    - {name: title, type: string}
    primaryKey: [id]
    partition: {column: tenant}
`

const schemaV7 = `
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic}
spec:
  version: 7
  tables:
  - name: todos
    columns:
    - {name: id, type: integer}
    - {name: tenant, type: string}
    - {name: title, type: string}
    - {name: title_norm, type: string, nullable: true}
    primaryKey: [id]
    partition: {column: tenant}
    indexes:
    - {name: todos_norm, columns: [title_norm]}
  checkpoints:
  - name: title-norm
    version: 7
    sources: [{table: todos, changes: CommitLog}]
    backfill: {update: {table: todos, set: {title_norm: lower(title)}}, batchRows: 100}
    verify: [{name: none-missing, query: SELECT id FROM todos WHERE title_norm IS NULL}]
`

// clinicAtV6 is a database with so many rows whose application runs version 6.
func clinicAtV6(t *testing.T, d target, rows int) {
	t.Helper()
	d.exec(t, `CREATE TABLE todos(id BIGINT PRIMARY KEY, tenant TEXT NOT NULL, title TEXT NOT NULL)`)
	for id := range rows {
		d.write(t, id, fmt.Sprintf("Todo Nr. %d", id))
	}
	run(t, d, schemaV6, "apply", "-f", "-").must(t, 0)
}

func (d target) write(t *testing.T, id int, title string) {
	t.Helper()
	_, err := d.db.ExecContext(t.Context(), d.q(`INSERT INTO todos(id, tenant, title) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET title = excluded.title`),
		id, fmt.Sprintf("tenant-%d", id%4), title)
	if err != nil {
		t.Fatal(err)
	}
}

// commit writes a todo and its commit as a program of the version, by the sync protocol.
func (d target) commit(version any, id int, title string) error {
	tx, err := d.db.Begin()
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	tenant := fmt.Sprintf("tenant-%d", id%4)
	var seq int64
	if _, err := tx.Exec(d.q(`INSERT INTO sync_partitions(partition) VALUES (?) ON CONFLICT (partition) DO NOTHING`), tenant); err != nil {
		return err
	}
	if err := tx.QueryRow(d.q(`UPDATE sync_partitions SET max_commit_seq = max_commit_seq + 1 WHERE partition = ? RETURNING max_commit_seq`), tenant).Scan(&seq); err != nil {
		return err
	}
	if _, err := tx.Exec(d.q(`INSERT INTO todos(id, tenant, title) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET title = excluded.title`), id, tenant, title); err != nil {
		return err
	}
	// Until activation even a program of version 7 leaves the column to the backfill here, so that a change which the tail misses
	// shows. From activation on it fills the column itself; holding its partition it cannot miss the moment.
	var activated int
	if err := tx.QueryRow(`SELECT count(*) FROM sync_backfill_checkpoints WHERE name = 'title-norm' AND state = 'activated'`).Scan(&activated); err != nil {
		return err
	}
	if activated > 0 {
		if _, err := tx.Exec(d.q(`UPDATE todos SET title_norm = lower(title) WHERE id = ?`), id); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(d.q(`INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version) VALUES (?, ?, 'c', ?, 'a', 0, ?)`),
		tenant, seq, fmt.Sprintf("%s-%d", tenant, seq), version); err != nil {
		return err
	}
	if _, err := tx.Exec(d.q(`INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes) VALUES (?, ?, 0, 'todos', ?, 1, '{}')`),
		tenant, seq, fmt.Sprint(id)); err != nil {
		return err
	}
	return tx.Commit()
}

const wrongRows = `SELECT count(*) FROM todos WHERE title_norm IS NULL OR title_norm <> lower(title)`

func TestTheMainJobFromVersion6ToAnOpenGateOfVersion7(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 1000)
		run(t, d, "", "gate", "--version", "6").must(t, 0)
		if err := d.commit(6, 1, "written before the barrier"); err != nil {
			t.Fatal(err)
		}

		plan := run(t, d, schemaV7, "plan", "-f", "-").must(t, 0)
		for _, want := range []string{"version 6 -> 7", "title_norm", "title-norm", "every writer below version 7 is refused"} {
			if !strings.Contains(plan.out, want) {
				t.Errorf("the plan does not say %q:\n%s", want, plan.out)
			}
		}
		run(t, d, "", "gate", "--version", "7").must(t, 3)

		run(t, d, schemaV7, "apply", "-f", "-", "--barrier-only").must(t, 0)
		err := d.commit(6, 1, "an old program")
		if err == nil || !strings.Contains(err.Error(), "sync.storage.writer_fence_rejected") {
			t.Errorf("the old writer got %v", err)
		}
		if err := d.commit(7, 2, "A New Program"); err != nil {
			t.Errorf("the new writer got %v", err)
		}
		closed := run(t, d, "", "gate", "--version", "7", "-o", "json").must(t, 3).json(t)
		if closed["open"] != false || closed["reason"] != "Backfilling" || closed["storedVersion"] != float64(7) {
			t.Errorf("the closed gate says %v", closed)
		}

		applied := run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		if !strings.HasSuffix(applied.out, "gate open: clinic version 7\n") {
			t.Errorf("apply ends with:\n%s", applied.out)
		}
		if wrong := d.number(t, wrongRows); wrong != 0 {
			t.Errorf("%d rows are wrong", wrong)
		}
		open := run(t, d, "", "gate", "--version", "7", "-o", "json").must(t, 0).json(t)
		if open["open"] != true || open["writable"] != true || open["reason"] != "GateOpen" {
			t.Errorf("the open gate says %v", open)
		}
		old := run(t, d, "", "gate", "--version", "6", "-o", "json").must(t, 0).json(t)
		if old["open"] != true || old["writable"] != false {
			t.Errorf("the gate of version 6 says %v", old)
		}
		run(t, d, "", "fence", "check").must(t, 0)
	})
}

func TestApplyAgainChangesNothingAndSaysSo(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 10)
		run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		before := d.contents(t)
		again := run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		if !strings.Contains(again.out, "version 7 is applied already") {
			t.Errorf("it says:\n%s", again.out)
		}
		if after := d.contents(t); after != before {
			t.Errorf("something was changed:\n%s\n--- before\n%s", after, before)
		}
	})
}

func TestASuspendedFileBeginsNothingAndSaysSo(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 10)
		before := d.contents(t)
		suspended := strings.Replace(schemaV7, "  version: 7\n", "  version: 7\n  suspend: true\n", 1)
		for _, verb := range [][]string{{"apply", "-f", "-"}, {"apply", "-f", "-", "--barrier-only"}} {
			held := run(t, d, suspended, append(verb, "-o", "json")...).must(t, 3).json(t)
			if message, _ := held["message"].(string); held["reason"] != "Suspended" || held["open"] != false || !strings.Contains(message, "spec.suspend is true") {
				t.Errorf("%v says %v", verb, held)
			}
		}
		if plan := run(t, d, suspended, "plan", "-f", "-").must(t, 0); !strings.Contains(plan.out, "version 6 -> 7") || !strings.Contains(plan.out, "spec.suspend is true") {
			t.Errorf("plan says:\n%s", plan.out)
		}
		if after := d.contents(t); after != before {
			t.Errorf("something was changed:\n%s\n--- before\n%s", after, before)
		}
		run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		open := run(t, d, suspended, "apply", "-f", "-").must(t, 0)
		if !strings.Contains(open.out, "spec.suspend is true") || !strings.HasSuffix(open.out, "gate open: clinic version 7\n") {
			t.Errorf("with nothing left to do it says:\n%s", open.out)
		}
	})
}

func TestRemoveShowsBeforeItDropsAndKeepsTheApplicationsData(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 10)
		run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		before := d.contents(t)
		shown := run(t, d, "", "remove").must(t, 0)
		if !strings.Contains(shown.out, "sync_barrier_history") {
			t.Errorf("it shows:\n%s", shown.out)
		}
		if d.contents(t) != before {
			t.Error("showing changed something")
		}
		run(t, d, "", "remove", "--yes").must(t, 0)
		if again := run(t, d, "", "remove", "--yes").must(t, 0); !strings.Contains(again.out, "nothing of Syncbarrier's is here") {
			t.Errorf("a second remove says %q", again.out)
		}
		if n := d.number(t, wrongRows); n != 0 {
			t.Errorf("%d rows are wrong", n)
		}
		if err := d.commit(nil, 3, "nobody is refused any more"); err != nil {
			t.Error(err)
		}
		if rest := d.contents(t); strings.Contains(rest, "syncbarrier") || strings.Contains(rest, "sync_barrier_history") {
			t.Errorf("left behind:\n%s", rest)
		}
	})
}

func TestTheGateOfAFileIsClosedOnAnotherSyncSchemasDatabase(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 10)
		other := strings.Replace(schemaV6, "name: clinic", "name: billing", 1)
		closed := run(t, d, other, "gate", "-f", "-").must(t, 3)
		for _, want := range []string{"Conflict", "/default/clinic", "billing"} {
			if !strings.Contains(closed.out, want) {
				t.Errorf("the answer does not say %q: %s", want, closed.out)
			}
		}
		planned := run(t, d, other, "plan", "-f", "-").must(t, 0)
		if !strings.Contains(planned.out, "owned by /default/clinic") {
			t.Errorf("the plan does not say whose the database is: %s", planned.out)
		}
		waited := run(t, d, other, "gate", "-f", "-", "--wait", "--timeout", "1s").must(t, 4)
		if !strings.Contains(waited.out, "Conflict") {
			t.Errorf("it waited for another reason: %s", waited.out)
		}
		// A pipeline waits for what the operator migrates: whose cluster it is cannot be in the file, and the namespace need not.
		d.exec(t, `UPDATE sync_barrier_owner SET cluster = 'c1', namespace = 'shop'`)
		run(t, d, schemaV6, "gate", "-f", "-").must(t, 0)
		run(t, d, strings.Replace(schemaV6, "name: clinic", "namespace: shop, name: clinic", 1), "gate", "-f", "-").must(t, 0)
		run(t, d, strings.Replace(schemaV6, "name: clinic", "namespace: default, name: clinic", 1), "gate", "-f", "-").must(t, 3)
		run(t, d, "", "gate", "--version", "6").must(t, 0)
	})
}
