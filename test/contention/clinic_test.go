package contention

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/barrier"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/test/databases"
)

// testTimeout bounds one test: a wait without end fails by its name.
const testTimeout = 4 * time.Minute

// firstVersion is where the clinic of these tests begins. Each later version adds a column to todos and fills it.
const firstVersion = 6

// partitions of the clinic.
var partitions = func() []string {
	var names []string
	for i := range 16 {
		names = append(names, fmt.Sprintf("tenant-%02d", i))
	}
	return names
}()

// columnOf is the column that a version adds. derivedBy is its definition.
func columnOf(version int64) string { return fmt.Sprintf("title_%d", version) }

func derivedBy(version int64) string { return fmt.Sprintf("lower(title) || ':%d'", version) }

func fillName(version int64) string { return fmt.Sprintf("fill-%d", version) }

// fill is the checkpoint of a version: of all partitions, or of listed ones.
func fill(version int64, listed ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: fillName(version), Version: version, Partitions: listed,
		Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Update: &storage.Update{Table: "todos", Set: map[string]string{columnOf(version): derivedBy(version)}}},
		Verify:   []storage.Verify{{Name: "none-wrong", Query: "SELECT id FROM todos WHERE " + wrong(version)}},
		Settings: storage.Settings{BatchRows: 40},
	}
}

func wrong(version int64) string {
	return fmt.Sprintf("%[1]s IS NULL OR %[1]s <> %[2]s", columnOf(version), derivedBy(version))
}

// targetAt is the schema of a version. Above the first, its SQL notes the position of every log under the barrier's locks.
func targetAt(version int64, checkpoints ...storage.Checkpoint) storage.Target {
	todos := storage.Table{
		Name: "todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
		Columns: []storage.Column{
			{Name: "id", Type: storage.TypeInteger}, {Name: "tenant", Type: storage.TypeString}, {Name: "title", Type: storage.TypeString},
		},
	}
	target := storage.Target{Version: version, Checkpoints: checkpoints, Owner: storage.Owner{Namespace: "default", Name: "clinic"}}
	for v := int64(firstVersion + 1); v <= version; v++ {
		todos.Columns = append(todos.Columns, storage.Column{Name: columnOf(v), Type: storage.TypeString, Nullable: true})
	}
	target.Tables = []storage.Table{todos}
	return target
}

// scene is a database at the first version with some todos.
type scene struct {
	*testing.T
	ctx      context.Context
	db       databases.Database
	store    storage.Store
	observer *databases.Session
}

func newScene(t *testing.T, db databases.Database, todos int) *scene {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	s := &scene{T: t, ctx: ctx, db: db, store: db.Store(t)}
	s.apply(targetAt(firstVersion))
	s.observer = db.Session(t)
	for first := 0; first < todos; first += 500 {
		var values []string
		for id := first; id < min(first+500, todos); id++ {
			values = append(values, fmt.Sprintf("(%d, '%s', 'Todo %d')", id, partitions[id%len(partitions)], id))
		}
		s.observer.Exec(`INSERT INTO todos(id, tenant, title) VALUES ` + strings.Join(values, ", "))
	}
	return s
}

func (s *scene) must(err error, doing string) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", doing, err)
	}
}

func (s *scene) wantCode(err error, code storage.Code) {
	s.Helper()
	if storage.CodeOf(err) != code {
		s.Errorf("got %v, want %s", err, code)
	}
}

func same[T comparable](s *scene, what string, got, want T) {
	s.Helper()
	if got != want {
		s.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// apply runs a barrier to its end.
func (s *scene) apply(target storage.Target) storage.BarrierResult {
	s.Helper()
	result, err := (&barrier.Engine{Store: s.store}).Apply(s.ctx, target)
	s.must(err, fmt.Sprintf("apply version %d", target.Version))
	return result
}

// finish runs a backfill to its activation.
func (s *scene) finish(version int64) {
	s.Helper()
	s.must((&backfill.Runner{Store: s.store}).RunAll(s.ctx, fillName(version)), fmt.Sprintf("run the backfill of version %d", version))
}

// derivedRight compares derived data with its definition.
func (s *scene) derivedRight(version int64) {
	s.Helper()
	same(s, fmt.Sprintf("wrong rows of version %d", version), s.observer.Number(`SELECT count(*) FROM todos WHERE `+wrong(version)), 0)
}

// filled counts the rows that a version's backfill has reached.
func (s *scene) filled(version int64) int64 {
	s.Helper()
	return s.observer.Number(fmt.Sprintf(`SELECT count(*) FROM todos WHERE %s IS NOT NULL`, columnOf(version)))
}

func (s *scene) gateOpen(version int64) bool {
	s.Helper()
	gate, err := s.store.ReadServeGate(s.ctx, version)
	s.must(err, "read the gate")
	return gate.Verdict().Open
}

// logDense checks that no commit number is missing.
func (s *scene) logDense() {
	s.Helper()
	same(s, "partitions whose log has holes", s.observer.Number(`
		SELECT count(*) FROM sync_partitions AS p
		WHERE p.max_commit_seq - p.horizon_seq <> (SELECT count(*) FROM sync_commits AS c WHERE c.partition = p.partition)`), 0)
}

func (s *scene) fenceWhole() {
	s.Helper()
	report, err := s.store.CheckFence(s.ctx)
	s.must(err, "check the fence")
	if !report.Intact() || report.GotIn != 0 {
		s.Errorf("the fence is not whole: %+v", report)
	}
}

// todo is one write of a program built for a version: it sets the columns it knows.
type todo struct {
	partition string
	id        int64
	title     string
	deleted   bool
}

// write puts or deletes a todo and appends its commit in one transaction.
func write(ctx context.Context, store storage.Store, version int64, w todo) (seq int64, err error) {
	tx, err := store.Begin(ctx, w.partition, version)
	if err != nil {
		return 0, err
	}
	defer func() {
		if ended := tx.Rollback(context.WithoutCancel(ctx)); err == nil {
			err = ended
		}
	}()
	if err := tx.LockPartition(ctx); err != nil {
		return 0, err
	}
	op := storage.OpUpsert
	if w.deleted {
		op = storage.OpDelete
		_, err = tx.Exec(ctx, `DELETE FROM todos WHERE id = $1`, w.id)
	} else {
		_, err = tx.Exec(ctx, upsertOf(version), w.id, w.partition, w.title)
	}
	if err != nil {
		return 0, err
	}
	seq, err = tx.AppendCommit(ctx, storage.Commit{ClientID: "client", ClientCommitID: w.title, ActorID: "actor",
		Changes: []storage.Change{{Table: "todos", RowID: fmt.Sprint(w.id), Op: op}}})
	if err != nil {
		return 0, err
	}
	return seq, tx.Commit(ctx)
}

func upsertOf(version int64) string {
	columns, values, updates := []string{"id", "tenant", "title"}, []string{"$1", "$2", "$3"}, []string{"title = excluded.title"}
	for v := int64(firstVersion + 1); v <= version; v++ {
		columns = append(columns, columnOf(v))
		values = append(values, strings.ReplaceAll(derivedBy(v), "title", "CAST($3 AS TEXT)"))
		updates = append(updates, fmt.Sprintf("%[1]s = excluded.%[1]s", columnOf(v)))
	}
	return fmt.Sprintf(`INSERT INTO todos(%s) VALUES (%s) ON CONFLICT (id) DO UPDATE SET %s`,
		strings.Join(columns, ", "), strings.Join(values, ", "), strings.Join(updates, ", "))
}
