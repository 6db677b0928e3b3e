package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// kills is how often each test kills the program; the kills are spread over its whole run.
const kills = 25

// TestApplyKilledAtRandomPointsLosesNothing: apply is killed -9 again and again while a program of the new version and one of the
// old one write. In the end every row is right and nothing of the old program was stored after the barrier.
func TestApplyKilledAtRandomPointsLosesNothing(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 4000)
		stop := hammer(t, d, 6, 7)
		random := rand.New(rand.NewPCG(1, 7))
		for n := range kills {
			killAfter(t, d, time.Duration(random.IntN(120+20*n))*time.Millisecond, schemaV7, "apply", "-f", "-")
		}
		run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
		stop()
		checkAfterwards(t, d)
	})
}

// TestABackfillKilledAtRandomPointsGoesOnAtItsCursor: the same for a worker of its own.
func TestABackfillKilledAtRandomPointsGoesOnAtItsCursor(t *testing.T) {
	onBoth(t, func(t *testing.T, d target) {
		clinicAtV6(t, d, 4000)
		run(t, d, schemaV7, "apply", "-f", "-", "--barrier-only").must(t, 0)
		stop := hammer(t, d, 7)
		random := rand.New(rand.NewPCG(2, 7))
		for range kills {
			killAfter(t, d, time.Duration(20+random.IntN(150))*time.Millisecond, "", "backfill", "title-norm")
		}
		run(t, d, "", "backfill", "title-norm").must(t, 0)
		stop()
		checkAfterwards(t, d)
	})
}

// checkAfterwards compares all derived data with its definition, and the log with the fence.
func checkAfterwards(t *testing.T, d target) {
	t.Helper()
	run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
	run(t, d, "", "fence", "check").must(t, 0)
	run(t, d, "", "gate", "--version", "7").must(t, 0)
	if wrong := d.number(t, wrongRows); wrong != 0 {
		t.Errorf("%d rows are wrong", wrong)
	}
	// The log is in the order of commits, partition by partition: below the fence nothing may stand above where it was raised.
	raised := d.strings(t, `SELECT raised FROM sync_barrier_history WHERE version = 7`)
	var positions map[string]int64
	if err := json.Unmarshal([]byte(raised[0]), &positions); err != nil {
		t.Fatal(err)
	}
	if below := d.number(t, `SELECT count(*) FROM sync_commits WHERE writer_version < 7`); below > positions["*"] {
		t.Errorf("%d commits of version 6 are stored, but only %d were there when the fence was raised", below, positions["*"])
	}
	holes := d.number(t, `SELECT count(*) FROM sync_partitions p WHERE p.max_commit_seq <> (SELECT count(*) FROM sync_commits c WHERE c.partition = p.partition)`)
	if holes != 0 {
		t.Errorf("the log of %d partitions has holes", holes)
	}
}

// killAfter starts the program and kills it -9 after a time, if it has not ended by itself.
func killAfter(t *testing.T, d target, after time.Duration, stdin string, args ...string) {
	t.Helper()
	cmd := command(t.Context(), append([]string{"--database", d.address}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // killed or done, both are right
}

// hammer writes as programs of the given versions until stopped. Version 7 fills the new column once it exists; refusals are what
// the fence is for.
func hammer(t *testing.T, d target, versions ...int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	for _, version := range versions {
		done.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				err := d.commit(version, n%4000, fmt.Sprintf("Version %d wrote %d", version, n))
				if err != nil && !strings.Contains(err.Error(), "writer_fence_rejected") && !isBusy(err) {
					t.Errorf("a program of version %d got: %v", version, err)
					return
				}
				pause(ctx, 2*time.Millisecond)
			}
		})
	}
	return func() { cancel(); done.Wait() }
}

func isBusy(err error) bool {
	return strings.Contains(err.Error(), "SQLITE_BUSY") || strings.Contains(err.Error(), "database is locked")
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func TestSignalsEndTheProgramCleanly(t *testing.T) {
	for _, c := range []struct {
		signal os.Signal
		code   int
	}{{os.Interrupt, 130}, {syscall.SIGTERM, 143}} {
		t.Run(c.signal.String(), func(t *testing.T) {
			onBoth(t, func(t *testing.T, d target) {
				clinicAtV6(t, d, 3000)
				slow := strings.Replace(schemaV7, "batchRows: 100", "batchRows: 100, maxRowsPerSecond: 200", 1)
				cmd := command(t.Context(), "--database", d.address, "apply", "-f", "-")
				var errors strings.Builder
				cmd.Stdin, cmd.Stderr = strings.NewReader(slow), &errors
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				waitUntil(t, func() bool {
					return d.tableExists(t, "sync_backfill_progress") && d.number(t, `SELECT coalesce(sum(rows_done), 0) FROM sync_backfill_progress`) > 0
				})
				if err := cmd.Process.Signal(c.signal); err != nil {
					t.Fatal(err)
				}
				exited := make(chan struct{})
				go func() {
					_ = cmd.Wait() // its exit code is read below
					close(exited)
				}()
				select {
				case <-exited:
				case <-time.After(15 * time.Second):
					_ = cmd.Process.Kill() // the test fails either way
					t.Fatal("it still runs 15 s after the signal")
				}
				if code := cmd.ProcessState.ExitCode(); code != c.code {
					t.Errorf("exit code %d, want %d: %s", code, c.code, errors.String())
				}
				fast := run(t, d, schemaV7, "apply", "-f", "-").must(t, 0)
				if wrong := d.number(t, wrongRows); wrong != 0 {
					t.Errorf("%d rows are wrong after %s", wrong, fast.out)
				}
			})
		})
	}
}

func (d target) tableExists(t *testing.T, name string) bool {
	t.Helper()
	catalog := `SELECT count(*) FROM sqlite_master WHERE name = '` + name + `'`
	if !d.sqlite {
		catalog = `SELECT count(*) FROM pg_tables WHERE schemaname = 'public' AND tablename = '` + name + `'`
	}
	return d.number(t, catalog) == 1
}

// waitUntil waits for something the program does, 30 s at most.
func waitUntil(t *testing.T, reached func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for !reached() {
		pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			t.Fatal("it did not happen within 30 s")
		}
	}
}
