package postgres

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// backfillDB is a database with one declared checkpoint, and the steps of its worker.
type backfillDB struct {
	*barrierDB
	name string
}

// newBackfillDB brings an empty database to version 2, which declares the checkpoint. setup runs before, as the application that made the
// tables.
func newBackfillDB(t testing.TB, setup string, checkpoint storage.Checkpoint, tables ...storage.Table) *backfillDB {
	t.Helper()
	return declareBackfill(newBarrierDB(t), setup, checkpoint, tables...)
}

func declareBackfill(db *barrierDB, setup string, checkpoint storage.Checkpoint, tables ...storage.Table) *backfillDB {
	db.t.Helper()
	db.exec(setup)
	wanted := target(checkpoint.Version, tables...)
	wanted.Checkpoints = []storage.Checkpoint{checkpoint}
	db.mustApply(wanted)
	return &backfillDB{barrierDB: db, name: checkpoint.Name}
}

// todosDB has so many todos of two tenants, and a checkpoint that fills title_norm.
func todosDB(t testing.TB, rows int, partitions ...string) *backfillDB {
	t.Helper()
	return newBackfillDB(t, todosSQL(rows), normCheckpoint("norm", 2, partitions...), plainTodos(titleNorm))
}

func todosSQL(rows int) string {
	return fmt.Sprintf(`
		CREATE TABLE todos(id bigint PRIMARY KEY, tenant text NOT NULL, title text NOT NULL, title_norm text);
		INSERT INTO todos SELECT n, CASE n %% 2 WHEN 0 THEN 'a' ELSE 'b' END, 'Title ' || n FROM generate_series(1, %d) AS n;
		ANALYZE todos`, rows)
}

func (db *backfillDB) mustClaim(restart bool) storage.Claim {
	db.t.Helper()
	claim, err := db.store.ClaimAll(db.ctx, db.name, restart)
	if err != nil {
		db.t.Fatalf("claim: %v", err)
	}
	return claim
}

func (db *backfillDB) mustLeases(claim storage.Claim) []storage.Lease {
	db.t.Helper()
	leases, err := db.store.TakeRanges(db.ctx, claim, 0, 1)
	if err != nil {
		db.t.Fatalf("take the ranges: %v", err)
	}
	return leases
}

func (db *backfillDB) settings(settings storage.Settings) {
	db.t.Helper()
	if err := db.store.WriteSettings(db.ctx, db.name, settings); err != nil {
		db.t.Fatalf("write the settings: %v", err)
	}
}

// again repeats a step while it fails by what passes by itself.
func again[T any](ctx context.Context, step func() (T, error)) (T, error) {
	for {
		result, err := step()
		if err == nil || !storage.ClassOf(err).Retryable() || ctx.Err() != nil {
			return result, err
		}
	}
}

// scan does all batches of the leases and returns how many they were and how many rows they applied.
func (db *backfillDB) scan(claim storage.Claim, leases []storage.Lease) (batches int, rows int64) {
	db.t.Helper()
	for _, lease := range leases {
		for done := lease.Done; !done; batches++ {
			batch, err := again(db.ctx, func() (storage.Batch, error) { return db.store.ScanBatch(db.ctx, claim, lease) })
			if err != nil {
				db.t.Fatalf("scan: %v", err)
			}
			rows += batch.Rows
			done = batch.Done
		}
	}
	return batches, rows
}

// catchUp reads the log to its end and tries the leftovers until none is left.
func (db *backfillDB) catchUp(claim storage.Claim, partition string) {
	db.t.Helper()
	for done := false; !done; {
		batch, err := again(db.ctx, func() (storage.Batch, error) { return db.store.TailBatch(db.ctx, claim, partition, 1000) })
		if err != nil {
			db.t.Fatalf("tail: %v", err)
		}
		if batch.Unverifiable != "" {
			db.t.Fatalf("tail: unverifiable: %s", batch.Unverifiable)
		}
		if batch.Leftovers > 0 {
			if _, err := again(db.ctx, func() (storage.Batch, error) { return db.store.RetryLeftovers(db.ctx, claim, partition, 1000) }); err != nil {
				db.t.Fatalf("leftovers: %v", err)
			}
		}
		done = batch.Done && batch.Leftovers == 0
	}
}

func (db *backfillDB) mustActivate(claim storage.Claim, partition string) storage.ActivationReport {
	db.t.Helper()
	report, err := again(db.ctx, func() (storage.ActivationReport, error) {
		return db.store.Activate(db.ctx, claim, storage.Activation{Partition: partition})
	})
	if err != nil || report.Outcome != storage.OutcomeActivated {
		db.t.Fatalf("activate partition %q: %+v, %v", partition, report, err)
	}
	return report
}

// complete runs a claim to its end.
func (db *backfillDB) complete(claim storage.Claim) {
	db.t.Helper()
	db.scan(claim, db.mustLeases(claim))
	for _, row := range claim.Rows {
		db.catchUp(claim, row.Partition)
		if err := db.store.VerifyRow(db.ctx, claim, row.Partition); err != nil {
			db.t.Fatalf("verify partition %q: %v", row.Partition, err)
		}
		db.mustActivate(claim, row.Partition)
	}
}

// wrong counts rows of todos whose derived column is not what its definition says.
const wrong = `SELECT count(*) FROM todos WHERE title_norm IS DISTINCT FROM lower(title)`

// programTx is a program that follows the sync protocol, in a transaction.
type programTx struct {
	db        *barrierDB
	tx        pgx.Tx
	partition string
}

// begin locks the partition, as the protocol asks before rows are written.
func (db *barrierDB) begin(conn *pgx.Conn, partition string) *programTx {
	db.t.Helper()
	tx, err := conn.Begin(db.ctx)
	if err != nil {
		db.t.Fatalf("begin: %v", err)
	}
	w := &programTx{db: db, tx: tx, partition: partition}
	w.exec(`INSERT INTO sync_partitions(partition) VALUES ($1) ON CONFLICT DO NOTHING`, partition)
	w.exec(`SELECT FROM sync_partitions WHERE partition = $1 FOR UPDATE`, partition)
	return w
}

func (w *programTx) exec(sql string, arguments ...any) {
	w.db.t.Helper()
	if _, err := w.tx.Exec(w.db.ctx, sql, arguments...); err != nil {
		w.db.t.Fatalf("%s: %v", sql, err)
	}
}

// log appends a commit that names rows of a table.
func (w *programTx) log(table string, rowIDs ...string) {
	w.db.t.Helper()
	if err := appendChanges(w.db.ctx, w.tx, w.partition, table, rowIDs...); err != nil {
		w.db.t.Fatalf("append: %v", err)
	}
}

func (w *programTx) commit() {
	w.db.t.Helper()
	if err := w.tx.Commit(w.db.ctx); err != nil {
		w.db.t.Fatalf("commit: %v", err)
	}
}

// appendChanges appends one commit of writer version 2.
func appendChanges(ctx context.Context, tx pgx.Tx, partition, table string, rowIDs ...string) error {
	var seq int64
	if err := tx.QueryRow(ctx, appendSQL, partition, 2).Scan(&seq); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `
		INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, scopes)
		SELECT $1, $2, place, $3, row_id, 1, '{}'
		  FROM unnest($4::text[]) WITH ORDINALITY AS changed(row_id, place)`, partition, seq, table, rowIDs)
	return err
}

// write changes a todo and logs it, in one transaction.
func (db *barrierDB) write(partition string, id int64, sql string, arguments ...any) {
	db.t.Helper()
	w := db.begin(db.conn, partition)
	w.exec(sql, arguments...)
	w.log("todos", strconv.FormatInt(id, 10))
	w.commit()
}
