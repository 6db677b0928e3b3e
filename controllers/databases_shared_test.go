package controllers

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

var _ = Describe("A pool of one database", func() {
	const schemas = 50
	var (
		ctx       context.Context
		dsn       string
		admin     *pgx.Conn
		opened    atomic.Int32
		databases *Databases
	)
	BeforeEach(func() {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(context.Background(), 3*time.Minute)
		DeferCleanup(end)
		dsn = testdb.Postgres(GinkgoTB())
		var err error
		admin, err = pgx.Connect(ctx, dsn)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(func() { _ = admin.Close(context.Background()) }) // it is thrown away with the database
		_, err = admin.Exec(ctx, fmt.Sprintf(`DO $$ BEGIN FOR i IN 0 .. %d LOOP EXECUTE 'CREATE SCHEMA s' || i; END LOOP; END $$`, schemas-1))
		Expect(err).NotTo(HaveOccurred())
		opened.Store(0)
		databases = NewDatabases(func(ctx context.Context, c Connection) (Database, error) {
			opened.Add(1)
			return openDatabase(ctx, c)
		}, nil)
		DeferCleanup(func() { databases.Close() })
	})
	in := func(dsn string, schema int) Connection {
		GinkgoHelper()
		var c Connection
		Expect(c.setURL(dsn, "shop")).To(Succeed())
		c.Schema = fmt.Sprint("s", schema)
		return c
	}
	acquire := func(c Connection) *Lease {
		GinkgoHelper()
		lease, err := databases.Acquire(ctx, c)
		Expect(err).NotTo(HaveOccurred())
		DeferCleanup(lease.Release)
		return lease
	}
	number := func(query string) (n int64) {
		GinkgoHelper()
		Expect(admin.QueryRow(ctx, query).Scan(&n)).To(Succeed())
		return n
	}
	// look reads all schemas but the first once, by as many workers as the manager has, and returns how long that took.
	look := func() time.Duration {
		GinkgoHelper()
		started := time.Now()
		var all sync.WaitGroup
		queue := make(chan int, schemas) // so that it ends where workers fail
		for range 16 {
			all.Go(func() {
				defer GinkgoRecover()
				for n := range queue {
					lease, err := databases.Acquire(ctx, in(dsn, n))
					Expect(err).NotTo(HaveOccurred())
					_, err = lease.Store.Status(ctx)
					lease.Release()
					Expect(err).NotTo(HaveOccurred())
				}
			})
		}
		for n := 1; n < schemas; n++ {
			queue <- n
		}
		close(queue)
		all.Wait()
		return time.Since(started)
	}

	It("is for all its schemas, which a barrier in one of them does not slow", func() {
		look() // makes the Stores
		usual := look()
		Expect(opened.Load()).To(BeEquivalentTo(1))
		Expect(number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'syncbarrier-manager'`)).
			To(BeNumerically("<=", PoolConnections))

		_, err := admin.Exec(ctx, `SELECT pg_advisory_lock(4711)`)
		Expect(err).NotTo(HaveOccurred())
		goOn := func() error {
			_, err := admin.Exec(ctx, `SELECT pg_advisory_unlock(4711)`)
			return err
		}
		DeferCleanup(goOn) // where this fails, the barrier must not keep its connection
		const untilTold = `DO $$ BEGIN WHILE NOT pg_try_advisory_xact_lock(4711) LOOP PERFORM pg_sleep(0.01); END LOOP; END $$`
		lease := acquire(in(dsn, 0))
		ended := make(chan error, 1)
		go func() {
			_, err := lease.Store.EnsureSchema(ctx, storage.Target{
				Version: 1, Owner: storage.Owner{Cluster: "c", Namespace: "n", Name: "clinic"},
				Migrations: []storage.Migration{{Version: 1, SQL: untilTold}},
			}, storage.Attempt{Number: 1})
			ended <- err
		}()
		Eventually(func() int64 {
			return number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'`)
		}, 90*time.Second).Should(BeNumerically(">", 0), "the barrier is under way")
		now := look()
		Expect(ended).NotTo(Receive(), "the barrier is still under way")
		AddReportEntry("a look at all schemas", fmt.Sprintf("%v before, %v beside a barrier", usual, now))
		Expect(now).To(BeNumerically("<", 3*usual+time.Second))
		Expect(goOn()).To(Succeed())
		Eventually(ended, 90*time.Second).Should(Receive(BeNil()))
		Expect(opened.Load()).To(BeEquivalentTo(1))
	})

	It("is not taken from one schema by what is wrong with another", func() {
		role := testdb.Role(GinkgoTB(), dsn, "reader")
		name := pgx.Identifier{testdb.RoleName(GinkgoTB(), role)}.Sanitize()
		_, err := admin.Exec(ctx, `GRANT USAGE ON SCHEMA s0 TO `+name+`; CREATE TABLE s1.sync_schema_meta (); CREATE TABLE s1.sync_barrier_owner ()`)
		Expect(err).NotTo(HaveOccurred())
		good := acquire(in(role, 0))
		pid := func() (pid int64) {
			GinkgoHelper()
			_, err := good.Store.Status(ctx)
			Expect(err).NotTo(HaveOccurred())
			return number(`SELECT min(pid) FROM pg_stat_activity WHERE usename LIKE 'reader%' AND datname = current_database()`)
		}
		before := pid()

		By("a right that is missing there")
		refused := acquire(in(role, 1))
		_, err = refused.Store.EnsureSchema(ctx, storage.Target{Version: 1}, storage.Attempt{Number: 1})
		Expect(storage.CodeOf(err)).To(Equal(storage.CodeRightMissing), "%v", err)
		refused.Report(err)

		By("a schema that does not exist, and connections that are all in use")
		_, err = databases.Acquire(ctx, in(role, schemas))
		Expect(storage.CodeOf(err)).To(Equal(storage.CodeInvalidSpec), "%v", err)
		refused.Report(storage.Refuse(storage.CodeConnectionsBusy, "none was free"))
		acquire(in(role, 2)).Release()
		Expect(opened.Load()).To(BeEquivalentTo(1))

		By("credentials that were changed to wrong ones, and to right ones")
		other := testdb.Role(GinkgoTB(), dsn, "other")
		parts := partsOf(other)
		wrong := fmt.Sprintf("postgres://%s:wrong@%s:%s/%s", parts["username"], parts["host"], parts["port"], parts["dbname"])
		_, err = databases.Acquire(ctx, in(wrong, 1))
		Expect(storage.CodeOf(err)).To(Equal(storage.CodeAuthenticationFailed), "%v", err)
		acquire(in(other, 1)).Release()
		acquire(in(role, 2)).Release()
		Expect(opened.Load()).To(BeEquivalentTo(3))
		Expect(pid()).To(Equal(before), "the session of before")
	})

	It("is for equal credentials and settings only", func() {
		one := in(dsn, 1)
		Expect(in(dsn, 2).key()).To(Equal(one.key()), "another schema")
		for what, change := range map[string]func(*Connection){
			"another CA":          func(c *Connection) { c.TLSCA = "PEM" },
			"another certificate": func(c *Connection) { c.TLSCert = "PEM" },
			"another key":         func(c *Connection) { c.TLSKey = "PEM" },
			"a pooler":            func(c *Connection) { c.Pooler = "Transaction" },
			"another parameter":   func(c *Connection) { *c = in(withQuery(dsn)+"&application_name=other", 1) },
		} {
			other := one
			change(&other)
			Expect(other.key()).NotTo(Equal(one.key()), what)
		}
		pooled := one
		pooled.Pooler = "Transaction"
		acquire(one)
		acquire(pooled)
		Expect(opened.Load()).To(BeEquivalentTo(2))
	})
})
