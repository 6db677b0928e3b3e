package bench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// accounts declares pgbench_accounts as a captured source at version 2, partitioned as asked for.
func accounts(partition storage.Partition) storage.Target {
	table := storage.Table{
		Name: "pgbench_accounts", Layout: storage.Plain, PrimaryKey: []string{"aid"}, Partition: partition,
		Columns: []storage.Column{
			{Name: "aid", Type: storage.TypeInteger}, {Name: "abalance", Type: storage.TypeInteger}, {Name: "bid", Type: storage.TypeInteger},
			{Name: "note", Type: storage.TypeString, Nullable: true},
		},
	}
	return storage.Target{
		Version: 2, Tables: []storage.Table{table},
		Checkpoints: []storage.Checkpoint{{
			Name: "note", Version: 2, Sources: []storage.Source{{Table: table.Name, Changes: storage.Capture}},
			Backfill: storage.Backfill{Update: &storage.Update{Table: table.Name, Set: map[string]string{"note": "abalance::text"}}},
		}},
	}
}

// captured is a database with pgbench's tables at scale 10 whose accounts are captured.
func captured(bb *testing.B, partition storage.Partition) *bench {
	b := durable(bb)
	out, err := exec.CommandContext(b.Context(), testdb.Program(b, "pgbench"), "-i", "-q", "-s", "10", b.dsn).CombinedOutput()
	if err != nil {
		b.Fatalf("pgbench -i: %v\n%s", err, out)
	}
	b.ensure(storage.Target{Version: 1})
	b.ensure(accounts(partition))
	return b
}

// switched runs act with capture and fence of the accounts, and without any trigger.
func (b *bench) switched(act func() float64) (with, without float64) {
	b.Helper()
	with = act()
	var restore string // each trigger has a firing mode of its own
	err := b.conn.QueryRow(b.Context(), `
		SELECT string_agg(format('ALTER TABLE pgbench_accounts ENABLE %s TRIGGER %I',
		         CASE tgenabled WHEN 'A' THEN 'ALWAYS' WHEN 'R' THEN 'REPLICA' ELSE '' END, tgname), ';')
		  FROM pg_trigger
		 WHERE tgrelid = 'pgbench_accounts'::regclass
		   AND NOT tgisinternal
		   AND tgenabled <> 'D'`).Scan(&restore)
	if err != nil {
		b.Fatal(err)
	}
	b.exec(`ALTER TABLE pgbench_accounts DISABLE TRIGGER USER`)
	without = act()
	b.exec(restore)
	b.exec(`TRUNCATE sync_changes, sync_commits`)
	return with, without
}

var deadlocks = regexp.MustCompile(`(?i)deadlock detected`)

// load runs a workload of pgbench as a program of version 2.
func (b *bench) load(clients int, args ...string) (rate float64, deadlocked int) {
	b.Helper()
	args = append(args, "-n", "-c", strconv.Itoa(clients), "-j", "2", "-T", "4", b.dsn)
	cmd := exec.CommandContext(b.Context(), testdb.Program(b, "pgbench"), args...)
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c syncbarrier.writer_version=2")
	out, err := cmd.CombinedOutput()
	found := tps.FindSubmatch(out)
	if found == nil {
		b.Fatalf("pgbench: %v\n%s", err, out)
	}
	if rate, err = strconv.ParseFloat(string(found[1]), 64); err != nil {
		b.Fatal(err)
	}
	return rate, len(deadlocks.FindAll(out, -1))
}

func BenchmarkCaptureOfTheDefaultWorkload(bb *testing.B) {
	for name, partition := range map[string]storage.Partition{
		"hash 16": {Hash: 16}, "one partition": {}, "10 partitions by a column": {Column: "bid"},
	} {
		bb.Run(name, func(bb *testing.B) {
			b := captured(bb, partition)
			var ratios []float64
			for range rounds {
				with, without := b.switched(func() float64 {
					rate, _ := b.load(4)
					return rate
				})
				ratios = append(ratios, with/without)
			}
			target := "stated"
			if name == "hash 16" {
				target = ">= 0.85"
			}
			row(bb, "capture: pgbench default workload, "+name+", with / without, 4 clients", target, ratios, "%.2f")
		})
	}
}

func BenchmarkCaptureOfTwoUpdatesATransaction(bb *testing.B) {
	for name, slices := range map[string]int{"hash 16": 16, "one partition": 0, "1,000 partitions": 1000} {
		bb.Run(name, func(bb *testing.B) {
			b := captured(bb, storage.Partition{Hash: slices})
			script := filepath.Join(b.TempDir(), "two.sql")
			text := "\\set a random(1, 1000000)\n\\set b random(1, 1000000)\nBEGIN;\n" +
				"UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :a;\nUPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :b;\nCOMMIT;\n"
			if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
				b.Fatal(err)
			}
			var ratios []float64
			var met int
			for range rounds {
				with, without := b.switched(func() float64 {
					rate, deadlocked := b.load(8, "-f", script, "--max-tries=1")
					met += deadlocked
					return rate
				})
				ratios = append(ratios, with/without)
			}
			row(bb, fmt.Sprintf("capture: two random single-row updates, %s, with / without, 8 clients, %d deadlocks", name, met), ">= 0.35", ratios, "%.2f")
		})
	}
}

func BenchmarkCaptureOfOneLargeStatement(bb *testing.B) {
	b := captured(bb, storage.Partition{Hash: 16})
	b.exec(`SET syncbarrier.writer_version = 2`)
	var ratios []float64
	for range rounds {
		with, without := b.switched(func() float64 {
			b.exec(`VACUUM pgbench_accounts`)
			return timed(func() {
				b.exec(`UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid <= 100000`)
			}).Seconds()
		})
		ratios = append(ratios, with/without)
	}
	row(bb, "capture: one statement over 100,000 rows, with / without", "<= 2.0", ratios, "%.2f")
}
