package capture

import (
	"context"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"
)

// fewAccounts are gone over in a hundred batches, each of which meets the program, as more accounts are in larger ones. The program comes back
// to a row the sooner.
const (
	fewAccounts = 20_000
	fewRows     = fewAccounts / 100
)

// Scripts of programs that have no deadlock without us.
const (
	// transfers is pgbench's own workload for so few accounts.
	transfers = `
\set aid random(1, 20000)
\set tid random(1, 10)
\set delta random(-5000, 5000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + :delta WHERE aid = :aid;
SELECT abalance FROM pgbench_accounts WHERE aid = :aid;
UPDATE pgbench_tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE pgbench_branches SET bbalance = bbalance + :delta WHERE bid = 1;
INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (:tid, 1, :aid, :delta, CURRENT_TIMESTAMP);
END;
`
	// hotRow: each transaction changes a row of its own and then the one row that all want.
	hotRow = `
\set aid random(2, 20000)
BEGIN;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = 1;
COMMIT;
`
	// opposite: two of a few rows in the order of their keys, or the second one alone. A partition that is locked in the program's
	// transaction would be in between them, and so in a cycle.
	opposite = `
\set aid random(1, 50)
\set next random(:aid + 1, 51)
\set both random(0, 1)
BEGIN;
\if :both
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :aid;
\endif
UPDATE pgbench_accounts SET abalance = abalance + 1 WHERE aid = :next;
COMMIT;
`
)

const (
	repeatableRead = newProgram + ` -c default_transaction_isolation=repeatable\ read`
	serializable   = newProgram + ` -c default_transaction_isolation=serializable`
	tenants        = "[t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15]"
	byTenant       = "{column: tenant}"
)

func TestBackfillsEndUnderEachKindOfLoad(t *testing.T) {
	for _, test := range []struct {
		name        string
		change      change
		load        load
		activations int64
		snapshots   bool // its transactions fail where rows changed under them, also without us
	}{
		{name: "16 tenants, all at once", change: change{partition: byTenant}, load: load{clients: 4, script: transfers}, activations: 1},
		{name: "16 tenants, each by itself", change: change{partition: byTenant, listed: tenants}, load: load{clients: 4, script: transfers}, activations: 16},
		{name: "16 slices", change: change{partition: "{hash: 16}"}, load: load{clients: 4, script: transfers}, activations: 1},
		{name: "16 slices, by locks of rows", change: change{partition: "{hash: 16}", listed: "[default]"}, load: load{clients: 4, script: transfers}, activations: 1},
		{name: "one partition, by locks of rows", change: change{listed: "[default]"}, load: load{clients: 4, script: transfers}, activations: 1},
		{name: "a hot row", change: change{listed: "[default]"}, load: load{clients: 8, script: hotRow}, activations: 1},
		{name: "a hot row, each tenant by itself", change: change{partition: byTenant, listed: tenants}, load: load{clients: 8, script: hotRow}, activations: 16},
		{name: "two rows in opposite orders", change: change{listed: "[default]"}, load: load{clients: 8, script: opposite}, activations: 1},
		{name: "repeatable read", change: change{partition: "{hash: 16}"}, load: load{clients: 4, script: transfers, options: repeatableRead}, activations: 1, snapshots: true},
		{name: "serializable", change: change{partition: byTenant}, load: load{clients: 4, script: transfers, options: serializable}, activations: 1, snapshots: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // two at a time: most of the time goes by in pauses
			b := newBank(t, fewAccounts)
			test.change.batchRows = fewRows
			if test.load.options == "" {
				test.load.options = newProgram
			}
			without := test.load.run(b.ctx, t, b, "-T", "1")
			current := test.load.begin(b)
			code, output := b.run("apply", "-f", b.file(test.change.yaml()))
			with := current.end()
			if code != 0 {
				t.Fatalf("apply: exit %d\n%s", code, output)
			}
			t.Logf("without us %d transactions, %d serialization failures; with us %d, %d; %d deadlocks",
				without.done, without.serialization, with.done, with.serialization, b.deadlocks())
			if with.output != "" || with.done == 0 {
				t.Errorf("the program failed:\n%s", with.output)
			}
			if found := b.deadlocks(); found > 0 {
				t.Errorf("%d deadlocks", found)
			}
			if !test.snapshots && with.serialization > 0 {
				t.Errorf("%d serialization failures", with.serialization)
			}
			b.wantCovered(test.activations)
			b.wantFilled()
		})
	}
}

// A worker that is killed leaves nothing half done: the next one goes on, and what is activated is right.
func TestKilledApplies(t *testing.T) {
	b := newBank(t, 100_000)
	current := load{options: newProgram, clients: 4}.begin(b)
	file := b.file(change{partition: byTenant, batchRows: 500, perSecond: 15_000}.yaml())
	random := rand.New(rand.NewPCG(3, 20))
	for range 20 {
		ctx, cancel := context.WithTimeout(b.ctx, time.Duration(100+random.IntN(600))*time.Millisecond)
		cmd, _ := command(ctx, "apply", "-f", file, "--database", b.url)
		cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGKILL) }
		_ = exitCode(t, cmd.Run()) // killed, unless it had ended
		cancel()
	}
	code, output := b.run("apply", "-f", file)
	done := current.end()
	if code != 0 {
		t.Fatalf("apply: exit %d\n%s", code, output)
	}
	if done.output != "" || done.serialization+b.deadlocks() > 0 {
		t.Errorf("the program: %d deadlocks, %d serialization failures\n%s", b.deadlocks(), done.serialization, done.output)
	}
	b.wantCovered(1)
	b.wantFilled()
}
