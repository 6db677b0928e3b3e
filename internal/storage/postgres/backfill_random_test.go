package postgres

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// randomWriter follows the sync protocol: it locks its partitions in order, changes rows in them, and appends a commit to each. With
// owners it renames them now and then.
type randomWriter struct {
	partitions []string
	owners     bool
}

func (w randomWriter) transaction(ctx context.Context, tx pgx.Tx, random *rand.Rand) error {
	partitions := []string{w.partitions[random.IntN(len(w.partitions))]}
	if random.IntN(4) == 0 {
		partitions = append(partitions, w.partitions[random.IntN(len(w.partitions))])
		slices.Sort(partitions)
		partitions = slices.Compact(partitions)
	}
	for _, partition := range partitions {
		_, err := tx.Exec(ctx, `INSERT INTO sync_partitions(partition) VALUES ($1) ON CONFLICT DO NOTHING`, partition)
		if err == nil {
			_, err = tx.Exec(ctx, `SELECT FROM sync_partitions WHERE partition = $1 FOR UPDATE`, partition)
		}
		if err != nil {
			return err
		}
	}
	for _, partition := range partitions {
		changed, err := w.change(ctx, tx, random, partition, partitions)
		if err == nil && len(changed) > 0 {
			err = appendChanges(ctx, tx, partition, "todos", changed...)
		}
		if err != nil {
			return err
		}
	}
	if w.owners && random.IntN(3) == 0 {
		if err := rename(ctx, tx, random, partitions[0]); err != nil {
			return err
		}
	}
	if random.IntN(10) == 0 {
		return errRolledBack
	}
	return nil
}

var errRolledBack = errors.New("rolled back by the program")

// rename is the last a transaction does, and only once: the rows of owners are everybody's, and the program must not deadlock by itself.
func rename(ctx context.Context, tx pgx.Tx, random *rand.Rand, partition string) error {
	owner := strconv.Itoa(1 + random.IntN(10))
	_, err := tx.Exec(ctx, "UPDATE owners SET name = 'Owner ' || $2::text WHERE id = $1::text::bigint", owner, strconv.Itoa(random.IntN(1000)))
	if err != nil {
		return err
	}
	return appendChanges(ctx, tx, partition, "owners", owner)
}

// change does a few things to rows of one partition and says which keys they concern. A row is only touched while it belongs to a partition
// that is locked; a row that is new has a key of its own.
func (w randomWriter) change(ctx context.Context, tx pgx.Tx, random *rand.Rand, partition string, locked []string) (changed []string, err error) {
	const one = " WHERE id = (SELECT id FROM todos WHERE tenant = ANY ($1) ORDER BY random() LIMIT 1) RETURNING id"
	for range 1 + random.IntN(3) {
		title := "Title " + strconv.Itoa(random.IntN(1000))
		statement, arguments := "UPDATE todos SET title = $2"+one, []any{[]string{partition}, title}
		switch random.IntN(8) {
		case 0:
			statement, arguments = "DELETE FROM todos"+one, []any{[]string{partition}}
		case 1:
			statement, arguments = "INSERT INTO todos(id, tenant, title) VALUES (nextval('new_ids'), $1, $2) RETURNING id", []any{partition, title}
		case 2:
			statement, arguments = "UPDATE todos SET title = $2, tenant = $3"+one, []any{locked, title, partition}
		case 3:
			statement = `WITH old AS (SELECT id FROM todos WHERE tenant = ANY ($1) ORDER BY random() LIMIT 1),
				moved AS (UPDATE todos SET title = $2, id = nextval('new_ids') FROM old WHERE todos.id = old.id RETURNING todos.id)
				SELECT id::text FROM old UNION ALL SELECT id::text FROM moved`
			arguments = []any{[]string{partition}, title}
		}
		keys, err := changedIDs(ctx, tx, statement, arguments...)
		if err != nil {
			return nil, err
		}
		changed = append(changed, keys...)
	}
	return changed, nil
}

func changedIDs(ctx context.Context, tx pgx.Tx, statement string, arguments ...any) ([]string, error) {
	rows, err := tx.Query(ctx, strings.Replace(statement, "RETURNING id", "RETURNING id::text", 1), arguments...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

// While writers do what they like by the protocol, workers scan and tail at once. At the commit that activates, all derived data is what
// its definition says, seen inside that transaction.
func TestAtTheCommitThatActivatesEverythingIsCovered(t *testing.T) {
	type form struct {
		name       string
		setup      string
		checkpoint func(partitions ...string) storage.Checkpoint
		tables     []storage.Table
		owners     bool
		wrong      func(partition string) string
	}
	of := func(check string) func(string) string {
		return func(partition string) string {
			if partition == "*" {
				return check
			}
			return check + " AND t.tenant = 'a'"
		}
	}
	forms := []form{
		{"an update", todosSQL(100), func(partitions ...string) storage.Checkpoint { return normCheckpoint("norm", 2, partitions...) },
			[]storage.Table{plainTodos(titleNorm)}, false,
			of("SELECT count(*) FROM todos t WHERE title_norm IS DISTINCT FROM lower(title)")},
		{"an update that reads another source", labelledSQL, labelCheckpoint, []storage.Table{labelledTodos(), ownersTable()}, true, of(wrongLabels)},
		{"a statement", wordsSQL, wordsCheckpoint, []storage.Table{plainTodos()}, false, func(partition string) string {
			if partition == "*" {
				return wrongWords
			}
			return wrongWords + " AND coalesce(t.tenant, 'a') = 'a' AND NOT (t.id IS NULL)"
		}},
	}
	for _, f := range forms {
		for _, partition := range []string{"a", "*"} {
			if f.owners && partition != "*" {
				continue // a rename that partition b logs concerns rows of a: such a backfill is one for all partitions
			}
			t.Run(f.name+", row "+partition, func(t *testing.T) {
				var listed []string
				if partition != "*" {
					listed = []string{partition}
				}
				db := newBackfillDB(t, f.setup, f.checkpoint(listed...), f.tables...)
				db.exec("CREATE SEQUENCE new_ids START 1000")
				db.settings(storage.Settings{BatchRows: 7})
				writers := db.startProgram(4, randomWriter{partitions: []string{"a", "b", "c"}, owners: f.owners}.transaction)
				for round := range 3 {
					if round > 0 {
						db.openAgain()
					}
					db.eventually("the writers write", func() bool { return writers.transactions.Load() > int64(20*round) })
					db.workUntilActivated(partition, f.wrong(partition))
				}
				writers.end(t)
				t.Logf("%d transactions of the program", writers.transactions.Load())
			})
		}
	}
}

// openAgain puts the checkpoint, and what it derived, back to before its first claim, so that one load serves several rounds.
func (db *backfillDB) openAgain() {
	db.t.Helper()
	db.exec(`
		BEGIN;
		ALTER TABLE sync_backfill_checkpoints DISABLE TRIGGER ALL;
		UPDATE sync_backfill_checkpoints SET state = 'declared', watermark = 0;
		ALTER TABLE sync_backfill_checkpoints ENABLE TRIGGER ALL;
		DELETE FROM sync_backfill_progress;
		CREATE TABLE IF NOT EXISTS words(id bigint);
		DELETE FROM words;
		COMMIT`)
}

// workUntilActivated runs two scanning workers and one that tails, then activates.
func (db *backfillDB) workUntilActivated(partition, check string) {
	db.t.Helper()
	claim := db.mustClaim(true)
	leases := db.mustLeases(claim)
	ctx, stopTailing := context.WithCancel(db.ctx)
	failures := make(chan error, 2)
	var group sync.WaitGroup
	group.Go(func() {
		for ctx.Err() == nil {
			_, err := again(db.ctx, func() (storage.Batch, error) { return db.store.TailBatch(db.ctx, claim, partition, 5) })
			if err == nil {
				_, err = again(db.ctx, func() (storage.Batch, error) { return db.store.RetryLeftovers(db.ctx, claim, partition, 5) })
			}
			if err != nil {
				failures <- err
				return
			}
		}
	})
	db.scan(claim, leases)
	stopTailing()
	group.Wait()
	select {
	case err := <-failures:
		db.t.Fatalf("tail: %v", err)
	default:
	}
	attempts, held := db.activateUnderLoad(claim, partition, check)
	if held > 10*time.Second {
		db.t.Errorf("the locks were held for %s (attempt %d)", held, attempts)
	}
}
