package capture

import (
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	oldProgram = ""
	newProgram = "-c syncbarrier.writer_version=2"
)

// An unmodified third-party program in its old and its new version, all the time: the old one is shut out whole by the barrier, the new one sees
// nothing, and the backfill ends.
func TestAMillionAccountsUnderTheLoadOfPgbench(t *testing.T) {
	b := newBank(t, 1_000_000)
	old := b.oldProgram()
	current := load{options: newProgram, clients: 4}.begin(b)

	applied := make(chan struct{})
	var code int
	var output string
	go func() {
		defer close(applied)
		code, output = b.run("apply", "-f", b.file(change{}.yaml()))
	}()
	committed := b.atBarrier(applied)
	<-applied
	done := current.end()
	old.end(committed)
	if code != 0 {
		t.Fatalf("apply: exit %d\n%s", code, output)
	}
	if done.output != "" || done.serialization+b.deadlocks() > 0 || done.done == 0 {
		t.Errorf("the new program: %d transactions, %d deadlocks, %d serialization failures\n%s", done.done, b.deadlocks(), done.serialization, done.output)
	}
	t.Logf("the new program committed %d transactions", done.done)
	b.wantCovered(1)
	b.wantFilled()
}

// atBarrier waits until the barrier is committed and gives how many transactions the old program has committed: no more can come.
func (b *bank) atBarrier(applied <-chan struct{}) int64 {
	b.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		var version, committed int64
		err := b.conn.QueryRow(b.ctx, `
			SELECT (SELECT schema_version FROM sync_schema_meta), (SELECT count(*) FROM pgbench_history WHERE writer = '')`).Scan(&version, &committed)
		if err != nil {
			b.Fatal(err)
		}
		if version == 2 {
			return committed
		}
		select {
		case <-applied:
			b.Fatal("apply has ended without a barrier")
		case <-ticker.C:
		}
	}
}

// oldRuns is the old program, started again and again.
type oldRuns struct {
	*bank
	stop  chan struct{}
	ended sync.WaitGroup
	last  result
}

func (b *bank) oldProgram() *oldRuns {
	o := &oldRuns{bank: b, stop: make(chan struct{})}
	o.ended.Go(func() {
		for {
			select {
			case <-o.stop:
				return
			default:
			}
			// Its clients give up at the first error; so this run ends with the barrier.
			o.last = load{options: oldProgram, clients: 4}.run(b.ctx, b, b, "-T", "2")
		}
	})
	return o
}

// end expects that the last run of the old program was refused in all its clients, and that nothing has come from it since the barrier.
func (o *oldRuns) end(committed int64) {
	o.Helper()
	close(o.stop)
	o.ended.Wait()
	refused := load{options: oldProgram, clients: 4}.run(o.ctx, o, o.bank, "-t", "1")
	if refused.code == 0 || refused.done != 0 || strings.Count(refused.output, "sync.storage.writer_fence_rejected") != 4 {
		o.Errorf("the old program was not refused as a whole: exit %d\n%s", refused.code, refused.output)
	}
	if now := o.count(`SELECT count(*) FROM pgbench_history WHERE writer = ''`); now != committed || committed == 0 {
		o.Errorf("the old program committed %d transactions, and after the barrier there were %d", now, committed)
	}
}
