package controllers

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// countedSecrets counts the Secrets that are read.
type countedSecrets struct {
	client.Reader
	reads atomic.Int32
}

func (c *countedSecrets) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, ok := object.(*corev1.Secret); ok {
		c.reads.Add(1)
	}
	return c.Reader.Get(ctx, key, object, options...)
}

// goroutinesIn gives the stacks that go through one of some packages or types.
func goroutinesIn(names ...string) []string {
	text := make([]byte, 8<<20)
	var found []string
	for stack := range strings.SplitSeq(string(text[:runtime.Stack(text, true)]), "\n\n") {
		if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(stack, name) }) {
			found = append(found, stack)
		}
	}
	return found
}

var _ = Describe("A database that accepts connections and never answers", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	in := func(secret, schema string) *v1alpha1.SyncSchema {
		return w.clinic(6, func(s *v1alpha1.SyncSchema) {
			s.Name = secret + "-" + schema
			s.Spec.Database.Postgres.Schema = schema
			s.Spec.Database.Postgres.URLFrom.SecretKeyRef.Name = secret
		})
	}

	It("takes nothing from the freshness of other gates, is asked by one at a time, and leaves nothing behind", func() {
		const silent, workers = 40, 16
		way := testdb.NewWay(GinkgoTB(), testdb.Postgres(GinkgoTB()))
		w.secret("silent", map[string]string{"uri": way.URL})
		databases := NewDatabases(openDatabase, nil)
		DeferCleanup(databases.Close)
		gates := &Gates{Live: suite.operator, Databases: databases}
		objects := make(chan *v1alpha1.SyncSchema, silent+1)
		hung := func(n int) *v1alpha1.SyncSchema {
			object := in("silent", "public")
			object.Name = fmt.Sprint("silent-", n)
			return object
		}
		for n := range silent {
			objects <- hung(n)
		}
		good := in("clinic-app", "public")
		objects <- good
		expectAnswer := func(object *v1alpha1.SyncSchema) {
			GinkgoHelper()
			Eventually(func() string { return gates.Read(w.ctx, object, hotGate).Problem }, 90*time.Second, hotGate).Should(BeEmpty())
		}
		expectAnswer(good)
		expectAnswer(hung(0))

		// As a manager does: so many workers take objects from a queue, into which each comes back after a while.
		var answers, refusals atomic.Int32
		ctx, stop := context.WithCancel(w.ctx)
		var working sync.WaitGroup
		for range workers {
			working.Go(func() {
				for {
					select {
					case <-ctx.Done():
						return
					case object := <-objects:
						read := gates.Read(ctx, object, hotGate*4/5)
						switch {
						case object != good && read.Gate == nil:
							refusals.Add(1)
						case object == good && read.Gate != nil:
							answers.Add(1)
						}
						time.AfterFunc(hotGate, func() { objects <- object })
					}
				}
			})
		}
		const some = 16                    // four seconds' worth: the silence must be met within them
		answered := func() time.Duration { // how long so many answers take
			GinkgoHelper()
			started, enough := time.Now(), answers.Load()+some
			Eventually(answers.Load, 90*time.Second, hotGate/10).Should(BeNumerically(">=", enough))
			return time.Since(started)
		}
		usual := answered()
		refused := refusals.Load()
		way.Freeze()
		now := answered()
		AddReportEntry("reads of the other gate", fmt.Sprintf("%d in %v before, in %v after", some, usual, now))
		Expect(refusals.Load()).To(BeNumerically(">", refused))
		Expect(now).To(BeNumerically("<", 3*usual), "for as many answers as took %v before", usual)
		stop()
		working.Wait()

		By("refusing at once while the server is left alone")
		Eventually(func() time.Duration {
			started := time.Now()
			for n := range silent {
				Expect(gates.Read(w.ctx, hung(n), hotGate).Gate).To(BeNil())
			}
			return time.Since(started)
		}, 90*time.Second).Should(BeNumerically("<", readTimeout))
		Eventually(goroutinesIn, 90*time.Second).WithArguments("pgx/v5/pgconn.", "controllers.(*gateDatabase)").Should(BeEmpty())

		By("answering again once it does")
		way.Thaw()
		expectAnswer(hung(0))
		expectAnswer(good)
	})

	It("has its Secret read no more often than every five seconds, and a changed one takes effect then", func() {
		secrets := &countedSecrets{Reader: suite.operator}
		gates := &Gates{Live: secrets, Databases: w.databases, Clock: w.clock}
		w.secret("silent", map[string]string{"uri": "postgres://nobody:secret@127.0.0.1:1/nothing"})
		for _, object := range []*v1alpha1.SyncSchema{in("silent", "public"), in("missing", "public")} {
			secrets.reads.Store(0)
			for range 4 * int(addressKept/hotGate) {
				Expect(gates.Read(w.ctx, object, hotGate*4/5).Gate).To(BeNil())
				w.clock.advance(hotGate)
			}
			Expect(secrets.reads.Load()).To(BeNumerically("<=", 5), "in four times five seconds")
		}
		w.secret("silent", map[string]string{"uri": w.dsn})
		w.secret("missing", map[string]string{"uri": w.dsn})
		w.clock.advance(addressKept)
		Expect(gates.Read(w.ctx, in("silent", "public"), hotGate).Problem).To(BeEmpty())
		Expect(gates.Read(w.ctx, in("missing", "public"), hotGate).Problem).To(BeEmpty())
	})

	It("is found out by one pass, whatever number of pools lead to it", func() {
		const pools = 5
		acquire := func(n int) (*Lease, error) {
			var c Connection
			Expect(c.setURL(fmt.Sprintf("%s&application_name=program-%d", withQuery(w.dsn), n), "shop")).To(Succeed())
			return w.databases.Acquire(w.ctx, c)
		}
		for n := range pools {
			lease, err := acquire(n)
			Expect(err).NotTo(HaveOccurred())
			lease.Release()
		}
		lease, err := acquire(0)
		Expect(err).NotTo(HaveOccurred())
		lease.Report(storage.Refuse(storage.CodeConnectionLost, "no answer"))
		lease.Release()
		opened := w.opened.Load()
		for n := range pools {
			_, err := acquire(n)
			Expect(storageClass(err)).To(Equal(v1alpha1.ReasonConnectionLost), "pool %d", n)
		}
		w.clock.advance(2 * shortestBreak)
		for n := range pools {
			lease, err := acquire(n)
			Expect(err).NotTo(HaveOccurred())
			lease.Release()
		}
		Expect(w.opened.Load()).To(BeEquivalentTo(opened+pools), "no pool of before was given out")
	})
})

// storageClass is the reason that a status would give for an error.
func storageClass(err error) string {
	if v := judge(err, "none"); v != nil {
		return v.reason
	}
	return fmt.Sprint(err)
}

var _ = Describe("A barrier that has to wait", func() {
	It("has its workers tried once for a generation and an image, not with each attempt", func() {
		w := newWorld()
		var tried atomic.Int32
		w.schemas.Client = countTries(&tried)
		w.apply(w.clinic(7))
		release := w.hold()
		for range 3 {
			w.pass()
			w.clock.advance(time.Minute) // longer than any pause
		}
		Expect(tried.Load()).To(BeEquivalentTo(1))
		w.schemas.Image = "syncbarrier:next"
		w.pass()
		Expect(tried.Load()).To(BeEquivalentTo(2))
		release()
		w.bring()
	})
})

// countTries gives the operator's client, which counts the Jobs that are tried.
func countTries(tried *atomic.Int32) client.Client {
	return through(interceptor.Funcs{Create: func(
		ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption,
	) error {
		if _, job := object.(*batchv1.Job); job && isDryRun(options) {
			tried.Add(1)
		}
		return c.Create(ctx, object, options...)
	}})
}
