package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// captureSpec declares a captured source for a test.
type captureSpec struct {
	table     string
	key       []string
	partition storage.Partition
	columns   []string // source columns; nil: all but the targets
	targets   []string
	minimum   int64
}

func (c captureSpec) declared() storage.Table {
	return storage.Table{Name: c.table, Layout: storage.Plain, PrimaryKey: c.key, Partition: c.partition}
}

func (c captureSpec) source() storage.Source {
	return storage.Source{Table: c.table, Changes: storage.Capture, Columns: c.columns}
}

// capture installs capture as a barrier does.
func capture(t testing.TB, store *Store, spec captureSpec) captured {
	t.Helper()
	var c captured
	err := store.inTx(testContext(t), "capture", txOptions{lockTimeout: 20 * time.Second}, func(ctx context.Context, tx pgx.Tx) error {
		var err error
		if c, err = store.readCaptured(ctx, tx, spec.declared(), spec.source(), spec.targets); err != nil {
			return err
		}
		return store.installCapture(ctx, tx, c, spec.minimum)
	})
	if err != nil {
		t.Fatalf("capture %q: %v", spec.table, err)
	}
	return c
}

// inStore runs f in a transaction of the store.
func inStore(t testing.TB, store *Store, f func(ctx context.Context, tx pgx.Tx) error) {
	t.Helper()
	if err := store.inTx(testContext(t), "test", txOptions{lockTimeout: 20 * time.Second}, f); err != nil {
		t.Fatal(err)
	}
}

// loggedSQL reads the log as lines "partition op key", in order, duplicates once.
const loggedSQL = `
	SELECT coalesce(array_agg(DISTINCT format('%s %s %s', c.partition, c.op, c.row_id) ORDER BY format('%s %s %s', c.partition, c.op, c.row_id)), '{}')
	  FROM sync_changes c
	 WHERE c.op <> 4`

// logged gives what the log holds and forgets it: the next call gives what came later. Announcements of partitions are no changes.
func (s *session) logged() []string {
	s.t.Helper()
	changes := value[[]string](s, loggedSQL)
	orphans := value[int](s, `
		SELECT count(*)
		  FROM sync_changes c
		 WHERE c.op <> 4 AND c.partition <> '*' -- what TRUNCATE writes there has none
		   AND NOT EXISTS (SELECT FROM sync_commits k WHERE k.partition = c.partition AND k.commit_seq = c.commit_seq)
		    OR c.partition <> '*' AND NOT EXISTS (SELECT FROM sync_partitions p WHERE p.partition = c.partition)
		                         AND NOT EXISTS (SELECT FROM sync_changes n WHERE n.op = 4 AND n.row_id = c.partition AND n.commit_seq = c.commit_seq)`)
	if orphans > 0 {
		s.t.Errorf("%d changes have no commit or no partition", orphans)
	}
	s.forgetLog()
	return changes
}

// forgetLog empties the log the way a prune does: rows for announced partitions, then the horizon.
func (s *session) forgetLog() {
	s.t.Helper()
	s.run(`INSERT INTO sync_partitions(partition) SELECT row_id FROM sync_changes WHERE op = 4 ON CONFLICT DO NOTHING`)
	s.run(`UPDATE sync_partitions SET horizon_seq = 9223372036854775807`)
	s.run(`DELETE FROM sync_changes`)
	s.run(`DELETE FROM sync_commits`)
}

// expectLog fails unless the log holds exactly these changes, in any order.
func (s *session) expectLog(want ...string) {
	s.t.Helper()
	got := s.logged()
	slices.Sort(want)
	if len(got) == 0 && len(want) == 0 {
		return
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		s.t.Errorf("the log holds\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// newSource gives a database with a catalog and a table, made by SQL, and a session of a program.
func newSource(t testing.TB, sql string) (*Store, *session) {
	t.Helper()
	store, url := newCatalog(t)
	program := connect(t, url)
	program.run(sql)
	return store, program
}

// otherRole opens a session of a role without any rights but those on the table.
func otherRole(t testing.TB, url string, admin *session, grants ...string) *session {
	t.Helper()
	roleURL := testdb.Role(t, url, "program")
	for _, grant := range grants {
		admin.run(fmt.Sprintf("GRANT %s TO %s", grant, quoteIdentifier(testdb.RoleName(t, roleURL))))
	}
	return connect(t, roleURL)
}
