package controllers

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

var _ = Describe("Databases", func() {
	var (
		clock     *stillClock
		opened    atomic.Int32
		databases *Databases
		ctx       context.Context
	)
	BeforeEach(func() {
		ctx = context.Background()
		clock = newStillClock()
		opened.Store(0)
		databases = NewDatabases(func(ctx context.Context, c Connection) (Database, error) {
			opened.Add(1)
			return openDatabase(ctx, c)
		}, clock)
		DeferCleanup(func() { databases.Close() })
	})
	at := func(dsn string) Connection {
		GinkgoHelper()
		var c Connection
		Expect(c.setURL(dsn, "shop")).To(Succeed())
		return c
	}
	acquire := func(c Connection) *Lease {
		GinkgoHelper()
		lease, err := databases.Acquire(ctx, c)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(lease.Release) // a spec that fails would have Close wait for ever
		return lease
	}
	reasonOf := func(err error) string {
		if v := judge(err, "none"); v != nil {
			return v.reason
		}
		return fmt.Sprint(err)
	}

	It("open a connection once for all who ask at the same time, and close it after a minute without use", func() {
		c := at(testdb.Postgres(GinkgoTB()))
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				defer GinkgoRecover()
				lease, err := databases.Acquire(ctx, c)
				Expect(err).NotTo(HaveOccurred())
				defer lease.Release()
				_, err = lease.Store.Identity(ctx)
				Expect(err).NotTo(HaveOccurred())
			})
		}
		all.Wait()
		Expect(opened.Load()).To(BeEquivalentTo(1))
		clock.advance(poolIdle - time.Second)
		databases.CloseIdle()
		acquire(c).Release()
		Expect(opened.Load()).To(BeEquivalentTo(1))
		used := acquire(c)
		clock.advance(2 * poolIdle)
		databases.CloseIdle()
		_, err := used.Store.Identity(ctx)
		Expect(err).NotTo(HaveOccurred(), "it is in use")
		used.Release()
		clock.advance(poolIdle)
		databases.CloseIdle()
		acquire(c).Release()
		Expect(opened.Load()).To(BeEquivalentTo(2))
	})

	It("dial a dead server once in its pause, which grows, whoever asks", func() {
		dead := at("postgres://nobody:secret@127.0.0.1:1/none")
		ask := func() {
			var all sync.WaitGroup
			for n := range 10 {
				all.Go(func() {
					defer GinkgoRecover()
					other := dead
					other.Schema = fmt.Sprint("schema-", n)
					_, err := databases.Acquire(ctx, other)
					Expect(reasonOf(err)).To(Equal("ConnectionLost"))
					Expect(err.Error()).NotTo(ContainSubstring("secret"))
				})
			}
			all.Wait()
		}
		ask()
		Expect(opened.Load()).To(BeEquivalentTo(1))
		clock.advance(shortestBreak * 3 / 2)
		ask()
		Expect(opened.Load()).To(BeEquivalentTo(2))
		clock.advance(shortestBreak * 3 / 2)
		ask()
		Expect(opened.Load()).To(BeEquivalentTo(2), "the second pause is longer")
		clock.advance(shortestBreak * 3 / 2)
		ask()
		Expect(opened.Load()).To(BeEquivalentTo(3))
	})

	It("do not keep anybody waiting for a server that swallows what is sent to it", func() {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(listener.Close)
		good := at(testdb.Postgres(GinkgoTB()))
		silent := at("postgres://nobody:secret@" + listener.Addr().String() + "/none")
		ended := make(chan error, 1)
		go func() {
			_, err := databases.Acquire(ctx, silent)
			ended <- err
		}()
		Eventually(opened.Load).Should(BeEquivalentTo(1))
		acquire(good).Release()
		Expect(ended).NotTo(Receive(), "the other one is still being dialled")
		var err2 error
		Eventually(ended, 10*time.Second).Should(Receive(&err2))
		Expect(reasonOf(err2)).To(Equal("ConnectionLost"))
		_, err = databases.Acquire(ctx, silent)
		Expect(reasonOf(err)).To(Equal("ConnectionLost"))
		Expect(opened.Load()).To(BeEquivalentTo(2), "the silent server is left alone")
	})

	It("leave refused credentials alone for a while, and try other ones at once", func() {
		dsn := testdb.Postgres(GinkgoTB())
		role := testdb.Role(GinkgoTB(), dsn, "known")
		parts := partsOf(role)
		wrong := at(fmt.Sprintf("postgres://%s:wrong@%s:%s/%s", parts["username"], parts["host"], parts["port"], parts["dbname"]))
		for range 3 {
			_, err := databases.Acquire(ctx, wrong)
			Expect(reasonOf(err)).To(Equal("AuthenticationFailed"))
		}
		Expect(opened.Load()).To(BeEquivalentTo(1))
		acquire(at(role)).Release()
		Expect(opened.Load()).To(BeEquivalentTo(2))
	})

	It("are never more than 64, and make room by closing what was not used for longest", func() {
		dsn := testdb.Postgres(GinkgoTB())
		connection := func(n int) Connection { return at(fmt.Sprintf("%s&application_name=program-%d", withQuery(dsn), n)) }
		for n := range maxPools {
			acquire(connection(n)).Release()
			clock.advance(time.Second)
		}
		held := acquire(connection(0)) // the oldest, and in use
		Expect(opened.Load()).To(BeEquivalentTo(maxPools))
		acquire(connection(maxPools)).Release()
		Expect(databases.pools).To(HaveLen(maxPools))
		_, err := held.Store.Identity(ctx)
		Expect(err).NotTo(HaveOccurred())
		held.Release()
		acquire(connection(0)).Release()
		Expect(opened.Load()).To(BeEquivalentTo(maxPools+1), "it was kept")
		acquire(connection(1)).Release()
		Expect(opened.Load()).To(BeEquivalentTo(maxPools+2), "it had to go")
	})

	It("let a server take part in one barrier attempt at a time", func() {
		dsn := testdb.Postgres(GinkgoTB())
		one, two := acquire(at(dsn)), acquire(at(withQuery(dsn)+"&application_name=other"))
		defer one.Release()
		defer two.Release()
		var woken []string
		wake := func(name string) func() { return func() { woken = append(woken, name) } }
		finish, _ := one.TryBarrier("one", nil)
		Expect(finish).NotTo(BeNil())
		for n, name := range []string{"two", "three", "two"} {
			refused, ahead := two.TryBarrier(types.UID(name), wake(name))
			Expect(refused).To(BeNil())
			Expect(ahead).To(Equal(n%2), "who comes again keeps its place")
		}
		Expect(woken).To(BeEmpty())
		finish()
		Expect(woken).To(Equal([]string{"two"}), "one at a time, in order")
		finish, _ = two.TryBarrier("two", wake("two"))
		Expect(finish).NotTo(BeNil())
		finish()
		Expect(woken).To(Equal([]string{"two", "three"}))
		finish, _ = one.TryBarrier("one", nil)
		Expect(finish).NotTo(BeNil(), "one that was woken and does not come keeps nobody back")
		finish()
	})

	It("replace a pool whose server was lost, and close it with its last lease", func() {
		c := at(testdb.Postgres(GinkgoTB()))
		first, second := acquire(c), acquire(c)
		first.Report(storage.Refuse(storage.CodeReadOnly, "cannot execute in a read-only transaction"))
		third := acquire(c)
		Expect(opened.Load()).To(BeEquivalentTo(2))
		first.Release()
		_, err := second.Store.Identity(ctx)
		Expect(err).NotTo(HaveOccurred())
		second.Release()
		Eventually(func() error {
			_, err := second.Store.Identity(ctx)
			return err
		}, time.Minute).Should(HaveOccurred())
		third.Release()
	})

	It("wait when they are closed for what is in use, and give nothing out afterwards", func() {
		c := at(testdb.Postgres(GinkgoTB()))
		lease := acquire(c)
		closed := make(chan struct{})
		go func() {
			databases.Close()
			close(closed)
		}()
		Eventually(func() string {
			other, err := databases.Acquire(ctx, c)
			if err == nil {
				other.Release()
			}
			return reasonOf(err)
		}).Should(Equal("Cancelled"))
		Expect(closed).NotTo(BeClosed())
		_, err := lease.Store.Identity(ctx)
		Expect(err).NotTo(HaveOccurred())
		lease.Release()
		Eventually(closed).Should(BeClosed())
	})
})

// withQuery gives a URL that has a parameter already, so that more can be appended.
func withQuery(dsn string) string {
	for _, r := range dsn {
		if r == '?' {
			return dsn
		}
	}
	return dsn + "?sslmode=disable"
}
