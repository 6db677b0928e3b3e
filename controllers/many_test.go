package controllers

import (
	"fmt"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("Many SyncSchemas", func() {
	const healthy, dead, workers = maxPools + 4, 8, 16

	// pass reconciles all of them once, by so many workers as the manager has, and returns the longest time that a healthy one took.
	pass := func(w *world, names []string) (longest time.Duration) {
		GinkgoHelper()
		var mu sync.Mutex
		var all sync.WaitGroup
		queue := make(chan string)
		for range workers {
			all.Go(func() {
				defer GinkgoRecover()
				for name := range queue {
					started := time.Now()
					_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, name))
					Expect(err).NotTo(HaveOccurred())
					mu.Lock()
					if took := time.Since(started); name[:4] != "dead" {
						longest = max(longest, took)
					}
					mu.Unlock()
				}
			})
		}
		for _, name := range names {
			queue <- name
		}
		close(queue)
		all.Wait()
		return longest
	}

	It("share bounded connections, are not slowed by one dead database, and cost no writes at rest", func() {
		w := newWorld()
		w.secret("dead", map[string]string{"uri": "postgres://nobody:secret@127.0.0.1:1/none"})
		var names []string
		for n := range healthy + dead {
			name := fmt.Sprintf("live-%d", n)
			if n >= healthy {
				name = fmt.Sprintf("dead-%d", n)
			}
			w.apply(w.clinic(6, func(s *v1alpha1.SyncSchema) {
				s.Name = name
				s.Spec.Tables = nil
				s.Spec.Database.Postgres.Schema = name
				if n >= healthy {
					s.Spec.Database.Postgres.URLFrom.SecretKeyRef.Name = "dead"
				}
			}))
			w.sql(`CREATE SCHEMA "` + name + `"`)
			names = append(names, name)
		}
		// unready names those that are not Ready, and gives every resource version.
		unready := func() (left []string, versions map[string]string) {
			versions = map[string]string{}
			for _, name := range names[:healthy] {
				var object v1alpha1.SyncSchema
				Expect(suite.admin.Get(w.ctx, types.NamespacedName{Namespace: w.namespace, Name: name}, &object)).To(Succeed())
				if readyReason(object.Status.Conditions) != v1alpha1.ReasonGateOpen {
					left = append(left, name)
				}
				versions[name] = object.ResourceVersion
			}
			return left, versions
		}
		left := names
		for range healthy { // a server takes part in one barrier at a time: the others come again
			pass(w, left)
			w.clock.advance(time.Second)
			if left, _ = unready(); len(left) == 0 {
				break
			}
		}
		Expect(left).To(BeEmpty())
		pass(w, names)
		_, before := unready()
		Expect(len(w.databases.pools)).To(BeNumerically("<=", maxPools))
		Expect(w.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'syncbarrier-manager'`)).
			To(BeNumerically("<=", maxPools*PoolConnections))

		w.clock.advance(DefaultResync)
		longest := pass(w, names)
		Expect(longest).To(BeNumerically("<", 10*time.Second), "nobody waits for the dead one")
		_, after := unready()
		Expect(after).To(Equal(before))
	})
})
