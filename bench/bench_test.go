package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

const rounds = 5

// row prints one figure beside its target.
func row(b *testing.B, what, target string, figures []float64, format string) {
	b.Helper()
	slices.Sort(figures)
	median := figures[len(figures)/2]
	fmt.Printf("%-86s | "+format+" ("+format+" to "+format+") | %s\n", what, median, figures[0], figures[len(figures)-1], target)
	b.ReportMetric(median, "median")
	b.ReportMetric(0, "ns/op")
}

type bench struct {
	*testing.B
	dsn   string
	conn  *pgx.Conn
	store *postgres.Store
}

// durable is a server with durable settings and a database at version 1.
func durable(b *testing.B) *bench {
	b.Helper()
	server := testdb.PostgresServer(b, testdb.ServerOptions{Durable: true})
	dsn := server.Database(b)
	conn, err := pgx.Connect(b.Context(), dsn)
	if err != nil {
		b.Fatal(err)
	}
	store, err := postgres.Open(b.Context(), postgres.Config{URL: dsn, MaxConnections: 8})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		store.Close()
		_ = conn.Close(context.WithoutCancel(b.Context()))
	})
	return &bench{b, dsn, conn, store}
}

func (b *bench) exec(sql string, arguments ...any) {
	b.Helper()
	if _, err := b.conn.Exec(b.Context(), sql, arguments...); err != nil {
		b.Fatalf("%.80s: %v", sql, err)
	}
}

func (b *bench) ensure(target storage.Target) storage.BarrierResult {
	b.Helper()
	result, err := b.store.EnsureSchema(b.Context(), target, storage.Attempt{Number: 1})
	if err != nil {
		b.Fatal(err)
	}
	return result
}

func timed(act func()) time.Duration {
	started := time.Now()
	act()
	return time.Since(started)
}

func BenchmarkFenceCost(bb *testing.B) {
	b := durable(bb)
	b.ensure(storage.Target{Version: 7, MinWriterVersion: pointer(7)})
	script := filepath.Join(b.TempDir(), "commit.sql")
	text := `\set p random(1, 64)
WITH allocated AS (
  INSERT INTO sync_partitions(partition, max_commit_seq) VALUES ('p' || :p, 1)
  ON CONFLICT (partition) DO UPDATE SET max_commit_seq = sync_partitions.max_commit_seq + 1
  RETURNING max_commit_seq)
INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)
SELECT 'p' || :p, max_commit_seq, 'c', 'c', 'a', 0, 7 FROM allocated;
`
	if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	var ratios []float64
	for range rounds {
		with := b.pgbench(script)
		b.exec(`ALTER TABLE sync_commits DISABLE TRIGGER syncbarrier_fence`)
		without := b.pgbench(script)
		b.exec(`ALTER TABLE sync_commits ENABLE ALWAYS TRIGGER syncbarrier_fence`)
		ratios = append(ratios, with/without)
	}
	row(bb, "fence: commits/s with the trigger / without, pgbench, 4 clients", ">= 0.97", ratios, "%.2f")
}

var tps = regexp.MustCompile(`tps = ([0-9.]+)`)

func (b *bench) pgbench(script string) float64 {
	b.Helper()
	cmd := exec.CommandContext(b.Context(), testdb.Program(b, "pgbench"), "-n", "-c", "4", "-j", "2", "-T", "4", "-f", script, b.dsn)
	out, err := cmd.CombinedOutput()
	if err != nil {
		b.Fatalf("pgbench: %v\n%s", err, out)
	}
	found := tps.FindSubmatch(out)
	if found == nil {
		b.Fatalf("pgbench says nothing of tps:\n%s", out)
	}
	rate, err := strconv.ParseFloat(string(found[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	return rate
}

func BenchmarkLockHeldByAnAppendOnlyMigration(bb *testing.B) {
	for _, partitions := range []int{1, 1000, 100_000} {
		bb.Run(strconv.Itoa(partitions), func(bb *testing.B) {
			b := durable(bb)
			b.ensure(storage.Target{Version: 1, Tables: []storage.Table{todos()}})
			b.exec(`INSERT INTO sync_partitions(partition) SELECT 'p' || n FROM generate_series(1, $1::int) n`, partitions)
			var held []float64
			table := todos()
			for round := range rounds {
				table.Columns = append(table.Columns, storage.Column{Name: fmt.Sprintf("c%d", round), Type: storage.TypeString, Nullable: true})
				version := int64(round + 2)
				result := b.ensure(storage.Target{Version: version, Tables: []storage.Table{table}, Checkpoints: []storage.Checkpoint{external(version)}})
				held = append(held, float64(result.LockHold.Microseconds())/1000)
				if _, err := b.store.AbandonCheckpoint(b.Context(), external(version).Name, version, "bench", "measured"); err != nil {
					b.Fatal(err)
				}
			}
			row(bb, fmt.Sprintf("lock held by an append-only migration, %d partitions, checkpoint of all (ms)", partitions), "flat, <= 50 ms", held, "%.1f")
		})
	}
}

func BenchmarkBackfillAgainstOneUpdate(bb *testing.B) {
	for _, workers := range []int{1, 2} {
		bb.Run(fmt.Sprintf("%d workers", workers), func(bb *testing.B) {
			b := durable(bb)
			table := todos()
			table.Columns = append(table.Columns, storage.Column{Name: "title_norm", Type: storage.TypeString, Nullable: true})
			var ratios []float64
			for round := range rounds {
				name := fmt.Sprintf("todos_%d", round)
				b.exec(fmt.Sprintf(`CREATE TABLE %s AS SELECT n::bigint AS id, 'tenant-' || n %% 16 AS tenant, 'Title Nr. ' || n AS title, NULL::text AS title_norm
					FROM generate_series(1, 1000000) n`, name))
				b.exec(fmt.Sprintf(`CREATE TABLE plain_%d AS SELECT * FROM %s`, round, name))
				for _, t := range []string{name, fmt.Sprintf("plain_%d", round)} {
					b.exec(fmt.Sprintf(`ALTER TABLE %s ADD PRIMARY KEY (id)`, t))
					b.exec(`VACUUM ANALYZE ` + t)
				}
				b.exec(`CHECKPOINT`)
				one := timed(func() { b.exec(fmt.Sprintf(`UPDATE plain_%d SET title_norm = lower(title)`, round)) })
				b.exec(`CHECKPOINT`)
				table.Name = name
				checkpoint := storage.Checkpoint{
					Name: fmt.Sprintf("norm-%d", round), Version: int64(round + 1), Sources: []storage.Source{{Table: name, Changes: storage.CommitLog}},
					Backfill: storage.Backfill{Update: &storage.Update{Table: name, Set: map[string]string{"title_norm": "lower(title)"}}},
					Settings: storage.Settings{Parallelism: workers, BatchRows: 5000},
				}
				b.ensure(storage.Target{Version: int64(round + 1), Tables: []storage.Table{table}, Checkpoints: []storage.Checkpoint{checkpoint}})
				runner := &backfill.Runner{Store: b.store}
				batches := timed(func() {
					if err := runner.RunAll(b.Context(), checkpoint.Name); err != nil {
						b.Fatal(err)
					}
				})
				ratios = append(ratios, one.Seconds()/batches.Seconds())
				b.exec(`DROP TABLE plain_` + strconv.Itoa(round))
			}
			target := map[int]string{1: ">= 0.90", 2: ">= 1.2"}[workers]
			row(bb, fmt.Sprintf("backfill: rows/s against one UPDATE, 1,000,000 rows, %d workers", workers), target, ratios, "%.2f")
		})
	}
}

func BenchmarkPayloadRewrite(bb *testing.B) {
	b := durable(bb)
	const rows = 50_000
	table := storage.Table{Name: "notes", Layout: storage.Syncular, Materialize: false}
	for n := range 8 {
		table.Columns = append(table.Columns, storage.Column{Name: fmt.Sprintf("c%d", n), Type: storage.TypeString, Nullable: true})
	}
	b.ensure(storage.Target{Version: 1, Tables: []storage.Table{table}})
	b.exec(`INSERT INTO notes(_sync_partition, _sync_row_id, _sync_server_version, _sync_scopes, _sync_payload)
		SELECT 'p' || n % 16, 'r' || n, 1, '{}', '\x00'::bytea || convert_to(repeat('payload ', 20), 'UTF8') FROM generate_series(1, $1::int) n`, rows)
	var ratios []float64
	for round := range rounds {
		single := timed(func() { b.rewriteRowByRow(len(table.Columns), len(table.Columns)+1) })
		table.Columns = append(slices.Clone(table.Columns), storage.Column{Name: fmt.Sprintf("n%d", round), Type: storage.TypeString, Nullable: true})
		set := timed(func() { b.ensure(storage.Target{Version: int64(round + 2), Tables: []storage.Table{table}}) })
		ratios = append(ratios, single.Seconds()/set.Seconds())
	}
	row(bb, fmt.Sprintf("Syncular payload rewrite, %d rows: row by row / the whole barrier", rows), ">= 10", ratios, "%.1f")
}

// rewriteRowByRow does what a program would that has no set-based statement, and rolls it back.
func (b *bench) rewriteRowByRow(old, now int) {
	b.Helper()
	tx, err := b.conn.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = tx.Rollback(b.Context()) }()
	rows, err := tx.Query(b.Context(), `SELECT _sync_partition, _sync_row_id, _sync_payload FROM notes`)
	if err != nil {
		b.Fatal(err)
	}
	type note struct {
		Partition, Row string
		Payload        []byte
	}
	notes, err := pgx.CollectRows(rows, pgx.RowToStructByPos[note])
	if err != nil {
		b.Fatal(err)
	}
	for _, n := range notes {
		payload, _ := storage.RewritePayload(n.Payload, old, now)
		if _, err := tx.Exec(b.Context(), `UPDATE notes SET _sync_payload = $1 WHERE _sync_partition = $2 AND _sync_row_id = $3`, payload, n.Partition, n.Row); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGateRead(bb *testing.B) {
	b := durable(bb)
	b.ensure(storage.Target{Version: 7, Tables: []storage.Table{todos()}})
	b.exec(`INSERT INTO sync_backfill_checkpoints(partition, name, schema_version, state, updated_at_ms)
		SELECT 'p' || n, 'norm', 7, 'activated', 0 FROM generate_series(1, 100000) n`)
	b.exec(`VACUUM ANALYZE sync_backfill_checkpoints`)
	const reads = 500
	var ratios []float64
	for range rounds {
		gate := timed(func() {
			for range reads {
				if _, err := b.store.ReadServeGate(b.Context(), 7); err != nil {
					b.Fatal(err)
				}
			}
		})
		one := timed(func() {
			for range reads {
				b.exec(`SELECT 1`)
			}
		})
		ratios = append(ratios, gate.Seconds()/one.Seconds())
	}
	row(bb, "serve gate read with 100,000 checkpoints, none pending / SELECT 1", "<= 2", ratios, "%.2f")
}

func todos() storage.Table {
	return storage.Table{
		Name: "todos", Layout: storage.Plain, PrimaryKey: []string{"id"}, Partition: storage.Partition{Column: "tenant"},
		Columns: []storage.Column{
			{Name: "id", Type: storage.TypeInteger}, {Name: "tenant", Type: storage.TypeString}, {Name: "title", Type: storage.TypeString},
		},
	}
}

// external is a checkpoint of all partitions whose work is somebody else's.
func external(version int64) storage.Checkpoint {
	return storage.Checkpoint{
		Name: fmt.Sprintf("work-%d", version), Version: version,
		Sources: []storage.Source{{Table: "todos", Changes: storage.CommitLog}}, Backfill: storage.Backfill{Job: true},
	}
}

func pointer(n int64) *int64 { return &n }
