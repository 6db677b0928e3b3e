package storagetest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func runContention(t *testing.T, open Opener) {
	runTests(t, open, []test{
		{"many writers of one partition number their commits without hole or duplicate", contendNumbers},
		{"writers of many partitions lose nothing while barriers follow one another", contendBarriers},
		{"two writers of different partitions do not wait for each other", contendApart},
	})
}

func contendNumbers(f *fixture) {
	f.apply(version1())
	writers := f.db.Capabilities.Contenders
	const each = 3
	stores := []storage.Store{f.store, f.db.OpenStore(f.T), f.db.OpenStore(f.T)}
	numbers := make(chan int64, writers*each)
	failures := make(chan error, writers)
	var group sync.WaitGroup
	for i := range writers {
		store := stores[i%len(stores)]
		group.Go(func() {
			for range each {
				err := retry(f.ctx, func() error {
					seq, err := writeTodo(f.ctx, store, "a", 1, int64(i), "x")
					if err == nil {
						numbers <- seq
					}
					return err
				})
				if err != nil {
					failures <- fmt.Errorf("writer %d: %w", i, err)
					return
				}
			}
		})
	}
	group.Wait()
	close(numbers)
	close(failures)
	for err := range failures {
		f.must(err, "write")
	}
	seen := map[int64]bool{}
	for seq := range numbers {
		if seen[seq] {
			f.Errorf("number %d was given out twice", seq)
		}
		seen[seq] = true
	}
	total := int64(writers * each)
	for seq := int64(1); seq <= total; seq++ {
		if !seen[seq] {
			f.Errorf("number %d is a hole", seq)
		}
	}
	same(f, "position", f.position("a"), total)
	same(f, "verdict of a whole log", f.coverage("a", 0, "others").Verdict, storage.Clean)
}

// contendBarriers has a program of each version write to 16 partitions while the versions are applied: whatever a writer was told
// it had committed is in the log, and no commit of a version below the fence came after the fence.
func contendBarriers(f *fixture) {
	f.apply(version1())
	const partitions, versions = 16, 5
	stop := make(chan struct{})
	var group sync.WaitGroup
	committed := make([]int64, partitions)
	failures := make(chan error, partitions)
	stores := []storage.Store{f.db.OpenStore(f.T), f.db.OpenStore(f.T)}
	for p := range partitions {
		group.Go(func() {
			for version := int64(1); ; {
				select {
				case <-stop:
					return
				default:
				}
				_, err := writeTodo(f.ctx, stores[p%len(stores)], fmt.Sprint("p", p), version, int64(p), "x")
				switch code := storage.CodeOf(err); {
				case err == nil:
					committed[p]++
				case code == storage.CodeWriterFenceRejected:
					version++ // the program of the next version takes over
				case !storage.ClassOf(err).Retryable():
					failures <- err
					return
				}
			}
		})
	}
	target := version1()
	for version := int64(2); version <= versions; version++ {
		target = next(target, external(fmt.Sprint("letters-", version), version))
		f.apply(target)
		below := f.number("SELECT count(*) FROM sync_commits WHERE writer_version < $1", version)
		f.write("late", version, 1000, "x")
		same(f, "commits of old writers after the fence", f.number("SELECT count(*) FROM sync_commits WHERE writer_version < $1", version), below)
	}
	close(stop)
	group.Wait()
	close(failures)
	for err := range failures {
		f.must(err, "write")
	}
	for p := range partitions {
		partition := fmt.Sprint("p", p)
		same(f, "commits of "+partition, f.number("SELECT count(*) FROM sync_commits WHERE partition = $1", partition), committed[p])
		same(f, "position of "+partition, f.position(partition), committed[p])
	}
}

func contendApart(f *fixture) {
	if !f.db.Capabilities.ConcurrentWriters {
		f.wantOneWriter()
		return
	}
	f.apply(version1())
	first, second := f.begin("a", 1), f.begin("b", 1)
	f.must(first.LockPartition(f.ctx), "lock a")
	f.must(second.LockPartition(f.ctx), "lock b while a is locked")
	_, err := second.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.must(err, "append to b")
	f.must(second.Commit(f.ctx), "commit b")
	_, err = first.AppendCommit(f.ctx, commitOf("todos", "1", storage.OpUpsert))
	f.must(err, "append to a")
	f.must(first.Commit(f.ctx), "commit a")
	third, fourth := f.begin("a", 1), f.db.OpenStore(f.T)
	f.must(third.LockPartition(f.ctx), "lock a again")
	other, err := fourth.Begin(f.ctx, "a", 1)
	f.must(err, "begin")
	defer func() { f.must(other.Rollback(f.ctx), "roll back") }()
	f.wantCode(other.LockPartition(f.ctx), storage.CodeLockTimeout)
}

// wantOneWriter checks what takes the place of row locks where a product has one writer: the second is told so in bounded time.
func (f *fixture) wantOneWriter() {
	f.Helper()
	f.apply(version1())
	first := f.begin("a", 1)
	f.must(first.LockPartition(f.ctx), "lock a")
	second, err := f.db.OpenStore(f.T).Begin(f.ctx, "b", 1)
	if err == nil {
		err = second.LockPartition(f.ctx)
		f.must(second.Rollback(f.ctx), "roll back")
	}
	f.wantCode(err, storage.CodeLockTimeout)
	f.must(first.Commit(f.ctx), "commit")
	f.must(f.oldWriter("b", 1), "write once the first has ended")
}
