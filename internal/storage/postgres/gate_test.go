package postgres

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// external is a checkpoint that a program of its own fills.
func external(name string, version int64, partitions ...string) storage.Checkpoint {
	return storage.Checkpoint{
		Name: name, Version: version, Partitions: partitions,
		Sources:  []storage.Source{{Table: "todos", Changes: storage.CommitLog}},
		Backfill: storage.Backfill{Job: true},
	}
}

// externalDB is a database at version 2 with an external checkpoint "letters" in partition a.
func externalDB(t testing.TB) *barrierDB {
	t.Helper()
	db := newBarrierDB(t)
	db.mustApply(target(1, plainTodos()))
	second := target(2, plainTodos())
	second.Checkpoints = []storage.Checkpoint{external("letters", 2, "a")}
	db.mustApply(second)
	return db
}

func (db *barrierDB) wantGate(version int64, reason storage.GateReason) storage.ServeGate {
	db.t.Helper()
	gate, err := db.store.ReadServeGate(db.ctx, version)
	if err != nil {
		db.t.Fatalf("read the gate: %v", err)
	}
	if verdict := gate.Verdict(); verdict.Reason != reason || verdict.Open != (reason == storage.GateOpen) {
		db.t.Fatalf("the gate of version %d is %+v, want %s", version, verdict, reason)
	}
	return gate
}

// statementTracer collects the statements that a pool sends.
type statementTracer struct {
	mu         sync.Mutex
	statements []string
}

func (s *statementTracer) note(sql string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.statements = append(s.statements, sql)
}

func (s *statementTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s.note(data.SQL)
	return ctx
}

func (s *statementTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (s *statementTracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *statementTracer) TraceBatchQuery(_ context.Context, _ *pgx.Conn, data pgx.TraceBatchQueryData) {
	s.note(data.SQL)
}

func (s *statementTracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// traced gives the store a pool that notes what it sends.
func traced(t testing.TB, store *Store) *statementTracer {
	t.Helper()
	tracer := &statementTracer{}
	config := store.pool.Config()
	config.ConnConfig.Tracer = tracer
	pool, err := pgxpool.NewWithConfig(testContext(t), config)
	if err != nil {
		t.Fatalf("make a pool: %v", err)
	}
	store.pool.Close()
	store.pool = pool
	return tracer
}

// readingStatements leaves out what only makes settings.
func (s *statementTracer) readingStatements() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var reading []string
	for _, statement := range s.statements {
		if statement != readSettings {
			reading = append(reading, statement)
		}
	}
	return reading
}

func TestTheGateAndCoverageAreOneStatementEach(t *testing.T) {
	db := externalDB(t)
	for name, read := range map[string]func() error{
		"gate":        func() error { _, err := db.store.ReadServeGate(db.ctx, 2); return err },
		"checkpoints": func() error { _, err := db.store.ReadCheckpoints(db.ctx, "*"); return err },
		"coverage": func() error {
			_, err := db.store.HasSourceChangesAbove(db.ctx, "a", []string{"todos", "notes"}, 0)
			return err
		},
		"newest change": func() error { _, err := db.store.SourceCoverageSeq(db.ctx, "a", []string{"todos"}); return err },
	} {
		tracer := traced(t, db.store)
		if err := read(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if sent := tracer.readingStatements(); len(sent) != 1 {
			t.Errorf("%s: %d statements were sent: %q", name, len(sent), sent)
		}
	}
}

func TestTheGateOfAStandbyIsClosed(t *testing.T) {
	primary := testdb.PostgresServer(t, testdb.ServerOptions{})
	db := newBarrierDB(t, Config{URL: primary.Database(t)})
	db.mustApply(target(1, plainTodos()))
	db.wantGate(1, storage.GateOpen)
	standby := primary.Standby(t)
	copied := openStore(t, Config{URL: standby.DSN(db.conn.Config().Database)})
	eventually(t, "the standby has the marker", func() bool {
		gate, err := copied.ReadServeGate(db.ctx, 1)
		return err == nil && gate.StoredVersion == 1
	})
	gate, err := copied.ReadServeGate(db.ctx, 1)
	if err != nil {
		t.Fatalf("read the gate of the standby: %v", err)
	}
	if verdict := gate.Verdict(); verdict.Open || verdict.Reason != storage.GateStandby || !gate.Standby {
		t.Errorf("the gate of a standby is %+v", verdict)
	}
	_, err = copied.DeclareCheckpoint(db.ctx, external("more", 1, "a"), []storage.Table{plainTodos()})
	expectCode(t, err, storage.CodeReadOnly)
	standby.Promote()
	eventually(t, "the gate opens once the standby is a primary", func() bool {
		gate, err := copied.ReadServeGate(db.ctx, 1)
		return err == nil && gate.Verdict().Open
	})
}

func TestRowsThatAPolicyHidesAreAnErrorAndNoOpenGate(t *testing.T) {
	db := externalDB(t)
	db.wantGate(2, storage.GateBackfilling)
	reader := testdb.Role(t, db.url, "reader")
	role := quoteIdentifier(testdb.RoleName(t, reader))
	db.exec("GRANT SELECT ON ALL TABLES IN SCHEMA public TO " + role)
	store := openStore(t, Config{URL: reader})
	gate, err := store.ReadServeGate(db.ctx, 2)
	if err != nil || gate.PendingTotal != 1 {
		t.Fatalf("a role with the right to read sees %+v, %v", gate, err)
	}
	db.exec("ALTER TABLE sync_backfill_checkpoints ENABLE ROW LEVEL SECURITY")
	gate, err = store.ReadServeGate(db.ctx, 2)
	if err == nil {
		t.Fatalf("rows that a policy hides were read as none: %+v", gate.Verdict())
	}
}

func TestTheGateNeedsNoRightToReadTheSystemIdentifier(t *testing.T) {
	server := testdb.PostgresServer(t, testdb.ServerOptions{})
	db := newBarrierDB(t, Config{URL: server.Database(t)})
	db.mustApply(target(1, plainTodos()))
	db.exec("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
	reader := testdb.Role(t, db.url, "reader")
	db.exec("GRANT SELECT ON ALL TABLES IN SCHEMA public TO " + quoteIdentifier(testdb.RoleName(t, reader)))
	store := openStore(t, Config{URL: reader, Queries: []storage.RegisteredQuery{{Name: "one", SQL: "SELECT $1::text"}}})
	gate, err := store.ReadServeGate(db.ctx, 1)
	if err != nil || !gate.Verdict().Open || gate.Database.System != "" {
		t.Errorf("the gate is %+v, %v", gate, err)
	}
	if _, err := store.Query(db.ctx, "a", "one", 1); err != nil {
		t.Errorf("query: %v", err)
	}
}

func TestTheGateDoesNotLookAtActivatedRows(t *testing.T) {
	db := externalDB(t)
	claim, err := db.store.ClaimCheckpoint(db.ctx, "a", "letters")
	if err != nil {
		t.Fatalf("claim: %v", err)
	}
	owner := storage.Ownership{Partition: "a", Name: "letters", OwnerEpoch: claim.Rows[0].OwnerEpoch, Token: claim.Token}
	if outcome, err := db.store.ActivateCheckpoint(db.ctx, owner, 0); err != nil || outcome != storage.OutcomeActivated {
		t.Fatalf("activate: %v, %v", outcome, err)
	}
	db.exec(`
		INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
		SELECT 'p' || n, 'theirs', 1, 'activated', 0
		  FROM generate_series(1, 100000) AS n`)
	db.exec("VACUUM ANALYZE sync_backfill_checkpoints")
	db.wantGate(2, storage.GateOpen)
	rows, err := db.conn.Query(db.ctx, "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) "+db.store.gateStatement(true), int64(2), "")
	if err != nil {
		t.Fatalf("explain the gate: %v", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("explain the gate: %v", err)
	}
	plan := strings.Join(lines, "\n")
	if strings.Contains(plan, "Seq Scan on sync_backfill_checkpoints") {
		t.Errorf("the gate reads all rows:\n%s", plan)
	}
	// The first line with buffers is of the whole statement.
	var hit int
	total := strings.TrimSpace(lines[slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "Buffers:") })])
	if _, err := fmt.Sscanf(total, "Buffers: shared hit=%d", &hit); err != nil || hit > 100 {
		t.Errorf("the gate reads %d blocks (%v):\n%s", hit, err, plan)
	}
}
