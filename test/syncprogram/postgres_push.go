package syncprogram

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Begin opens a transaction on a connection of its own, as the process's isolation level says.
func (p *postgres) Begin(ctx context.Context, partition string) (Transaction, error) {
	tx, err := p.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(p.Isolation)})
	if err != nil {
		return nil, err
	}
	return &postgresPush{process: p, tx: tx, partition: partition}, nil
}

type postgresPush struct {
	process   *postgres
	tx        pgx.Tx
	partition string
}

// postgresLock makes the partition's row if it is missing, then locks it.
func postgresLock(ctx context.Context, q queryable, partition string) error {
	if _, err := q.Exec(ctx, `INSERT INTO sync_partitions(partition) VALUES ($1) ON CONFLICT (partition) DO NOTHING`, partition); err != nil {
		return err
	}
	_, err := q.Exec(ctx, `SELECT max_commit_seq FROM sync_partitions WHERE partition=$1 FOR UPDATE`, partition)
	return err
}

func (t *postgresPush) LockPartition(ctx context.Context) error {
	if err := postgresLock(ctx, t.tx, t.partition); err != nil {
		return err
	}
	_, err := t.tx.Exec(ctx, `SAVEPOINT syncular_push_apply`)
	return err
}

func (t *postgresPush) UpsertRow(ctx context.Context, name string, row Row) error {
	table, err := t.process.Schema.table(name)
	if err != nil {
		return err
	}
	values, err := table.boundValues(postgresDialect, row.Payload)
	if err != nil {
		return err
	}
	names := table.columnNames()
	places, updates := make([]string, len(names)), make([]string, 0, len(names))
	for i, column := range names {
		places[i] = fmt.Sprintf("$%d", i+1)
		if i >= 2 {
			updates = append(updates, quote(column)+"=EXCLUDED."+quote(column))
		}
	}
	statement := fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s) ON CONFLICT (%s, %s) DO UPDATE SET %s", quote(table.Name), quoteAll(names),
		strings.Join(places, ","), quote(partitionColumn), quote(rowIDColumn), strings.Join(updates, ", "))
	arguments := append([]any{t.partition, row.RowID}, values...)
	if _, err := t.tx.Exec(ctx, statement, append(arguments, row.ServerVersion, row.Scopes, row.Payload)...); err != nil {
		return err
	}
	scopes := map[string]string{}
	if err := json.Unmarshal([]byte(row.Scopes), &scopes); err != nil {
		return err
	}
	if _, err := t.tx.Exec(ctx, `DELETE FROM sync_row_scopes WHERE partition=$1 AND tbl=$2 AND row_id=$3`, t.partition, name, row.RowID); err != nil {
		return err
	}
	for variable, value := range scopes {
		if _, err := t.tx.Exec(ctx, `
			INSERT INTO sync_row_scopes(partition, tbl, var, value, row_id)
			VALUES ($1,$2,$3,$4,$5) ON CONFLICT DO NOTHING`, t.partition, name, variable, value, row.RowID); err != nil {
			return err
		}
	}
	return nil
}

func (t *postgresPush) GetRow(ctx context.Context, table, rowID string) (row Row, ok bool, err error) {
	err = t.tx.QueryRow(ctx, selectRowSQL(table, "$1", "$2"), t.partition, rowID).Scan(&row.RowID, &row.ServerVersion, &row.Scopes, &row.Payload)
	if errors.Is(err, pgx.ErrNoRows) {
		return Row{}, false, nil
	}
	return row, err == nil, err
}

func selectRowSQL(table, partition, rowID string) string {
	return fmt.Sprintf("SELECT %s, %s, %s, %s FROM %s WHERE %s=%s AND %s=%s", quote(rowIDColumn), quote(versionColumn), quote(scopesColumn),
		quote(payloadColumn), quote(table), quote(partitionColumn), partition, quote(rowIDColumn), rowID)
}

func (t *postgresPush) DeleteRow(ctx context.Context, table, rowID string) error {
	statement := fmt.Sprintf("DELETE FROM %s WHERE %s=$1 AND %s=$2", quote(table), quote(partitionColumn), quote(rowIDColumn))
	if _, err := t.tx.Exec(ctx, statement, t.partition, rowID); err != nil {
		return err
	}
	for _, statement := range []string{
		`DELETE FROM sync_row_scopes WHERE partition=$1 AND tbl=$2 AND row_id=$3`,
		`DELETE FROM sync_blob_refs WHERE partition=$1 AND tbl=$2 AND row_id=$3`,
	} {
		if _, err := t.tx.Exec(ctx, statement, t.partition, table, rowID); err != nil {
			return err
		}
	}
	return nil
}

// The statement that allocates the next number and inserts the commit, at the two ages.
const (
	postgresAllocate = `
WITH allocated AS (
  INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ($1, 1)
  ON CONFLICT (partition) DO UPDATE
     SET max_commit_seq = sync_partitions.max_commit_seq + 1
   RETURNING max_commit_seq
)`
	postgresAppendOlder = postgresAllocate + `
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms)
SELECT $1, max_commit_seq, $2, $3, $4, $5 FROM allocated
RETURNING commit_seq`
	postgresAppendNewer = postgresAllocate + `
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
SELECT $1, max_commit_seq, $2, $3, $4, $5, $6 FROM allocated
RETURNING commit_seq`
)

func (t *postgresPush) AppendCommit(ctx context.Context, c Commit) (seq int64, err error) {
	statement, arguments := postgresAppendOlder, []any{t.partition, c.ClientID, c.ClientCommitID, c.ActorID, c.CreatedAtMs}
	if t.process.Age == Newer {
		statement, arguments = postgresAppendNewer, append(arguments, t.process.Schema.Version)
	}
	if err := t.tx.QueryRow(ctx, statement, arguments...).Scan(&seq); err != nil {
		return 0, err
	}
	for i, change := range c.Changes {
		scopes, err := json.Marshal(change.Scopes)
		if err != nil {
			return 0, err
		}
		if change.Scopes == nil {
			scopes = []byte("{}")
		}
		if _, err := t.tx.Exec(ctx, `
			INSERT INTO sync_changes(partition, commit_seq, idx, tbl, row_id, op, row_version, scopes, payload)
			VALUES ($1,$2,$3,$4,$5,$6,$7,$8,$9)`,
			t.partition, seq, i, change.Table, change.RowID, change.op(), change.RowVersion, string(scopes), change.Payload); err != nil {
			return 0, err
		}
		if change.Delete {
			if _, err := t.tx.Exec(ctx, `
				INSERT INTO sync_tombstones(partition, tbl, row_id, commit_seq) VALUES ($1,$2,$3,$4)
				ON CONFLICT (partition, tbl, row_id) DO UPDATE SET commit_seq=EXCLUDED.commit_seq`, t.partition, change.Table, change.RowID, seq); err != nil {
				return 0, err
			}
		}
		for variable, value := range change.Scopes {
			if _, err := t.tx.Exec(ctx, `
				INSERT INTO sync_change_scopes(partition, tbl, var, value, commit_seq)
				VALUES ($1,$2,$3,$4,$5) ON CONFLICT DO NOTHING`, t.partition, change.Table, variable, value, seq); err != nil {
				return 0, err
			}
		}
	}
	return seq, nil
}

func (t *postgresPush) PutPushResult(ctx context.Context, clientID, clientCommitID, result string) error {
	_, err := t.tx.Exec(ctx, `
		INSERT INTO sync_push_results(partition, client_id, client_commit_id, result) VALUES ($1,$2,$3,$4)
		ON CONFLICT (partition, client_id, client_commit_id) DO UPDATE SET result=EXCLUDED.result`, t.partition, clientID, clientCommitID, result)
	return err
}

func (t *postgresPush) AdvanceCheckpoint(ctx context.Context, name string, ownerEpoch, watermark, observedRows int64) (bool, error) {
	return postgresAdvance(ctx, t.tx, t.partition, name, ownerEpoch, watermark, observedRows)
}

func (t *postgresPush) ReadServeGate(ctx context.Context) (Gate, error) {
	return postgresGate(ctx, t.tx, t.partition, t.process.Schema.Version)
}

func (t *postgresPush) Query(ctx context.Context, sql string) ([][]any, int64, error) {
	return postgresAuthoritative(ctx, t.tx, t.partition, sql)
}

func (t *postgresPush) Reject(ctx context.Context, clientID, clientCommitID, result string) error {
	if _, err := t.tx.Exec(ctx, `ROLLBACK TO SAVEPOINT syncular_push_apply`); err != nil {
		return err
	}
	if err := t.PutPushResult(ctx, clientID, clientCommitID, result); err != nil {
		return err
	}
	return t.Commit(ctx)
}

func (t *postgresPush) Commit(ctx context.Context) error { return t.tx.Commit(ctx) }

// Rollback after Commit does nothing; a failed one ends the connection, which rolls back too.
func (t *postgresPush) Rollback(ctx context.Context) { _ = t.tx.Rollback(context.WithoutCancel(ctx)) }
