package controllers

import (
	"fmt"
	"strings"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("Many SyncSchemas", func() {
	const healthy, dead, workers = 24, 8, 16 // so many workers as the manager has

	// pass reconciles all of them once, by so many workers, and returns the longest time that a healthy one took.
	pass := func(w *world, names []string, workers int) (longest time.Duration) {
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
			var list v1alpha1.SyncSchemaList
			Expect(suite.admin.List(w.ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
			Expect(list.Items).To(HaveLen(len(names)))
			for _, object := range list.Items {
				if strings.HasPrefix(object.Name, "dead") {
					continue
				}
				if readyReason(object.Status.Conditions) != v1alpha1.ReasonGateOpen {
					left = append(left, object.Name)
				}
				versions[object.Name] = object.ResourceVersion
			}
			return left, versions
		}
		pass(w, names, workers) // a server takes part in one barrier at a time: the others come again
		left, _ := unready()
		w.clock.advance(time.Minute) // longer than any pause
		pass(w, left, 1)             // one after the other, as their turns come
		left, _ = unready()
		Expect(left).To(BeEmpty())
		pass(w, names, workers)
		_, before := unready()
		Expect(w.databases.pools).To(HaveLen(1), "all schemas of a database share its pool")
		Expect(w.number(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'syncbarrier-manager'`)).
			To(BeNumerically("<=", PoolConnections))

		w.clock.advance(DefaultResync)
		longest := pass(w, names, workers)
		Expect(longest).To(BeNumerically("<", 10*time.Second), "nobody waits for the dead one")
		_, after := unready()
		Expect(after).To(Equal(before))
	})
})
