package controllers

import (
	"fmt"
	"strings"
	"sync"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
)

var _ = Describe("A hundred and fifty objects at rest", func() {
	const each = 25 // checkpoints of a SyncSchema, each with a Job
	schemas := []string{"done", "pending", "stalled"}

	var w *world
	// clinic is a SyncSchema with a column to fill for each of its checkpoints.
	clinic := func(name string) *v1alpha1.SyncSchema {
		return w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Name, s.Spec.Database.Postgres.Schema, s.Spec.Checkpoints = name, name, nil
			for n := range each {
				column := fmt.Sprintf("c%d", n)
				s.Spec.Tables[0].Columns = append(s.Spec.Tables[0].Columns, v1alpha1.Column{Name: column, Type: "string", Nullable: true})
				checkpoint := nameSearch()
				checkpoint.Name, checkpoint.Verify = column, nil
				checkpoint.Backfill.Update.Set = map[string]v1alpha1.Expression{column: "lower(name)"}
				s.Spec.Checkpoints = append(s.Spec.Checkpoints, checkpoint)
			}
		})
	}
	// passes looks at every object once, as a manager with 16 workers does.
	passes := func() {
		GinkgoHelper()
		for _, name := range schemas {
			_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, name))
			Expect(err).NotTo(HaveOccurred())
		}
		var list v1alpha1.BackfillCheckpointList
		Expect(suite.admin.List(w.ctx, &list, client.InNamespace(w.namespace))).To(Succeed())
		queue := make(chan string)
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				defer GinkgoRecover()
				for name := range queue {
					_, err := w.checkpoints.Reconcile(w.ctx, request(w.namespace, name))
					Expect(err).NotTo(HaveOccurred())
				}
			})
		}
		for i := range list.Items {
			queue <- list.Items[i].Name
		}
		close(queue)
		all.Wait()
	}
	// seen gives, by reason of Ready, how many objects there are, and what a write to any of them would change.
	seen := func() (reasons map[string]int, versions string) {
		GinkgoHelper()
		reasons = map[string]int{}
		var of v1alpha1.SyncSchemaList
		Expect(suite.admin.List(w.ctx, &of, client.InNamespace(w.namespace))).To(Succeed())
		for i := range of.Items {
			checkStatus(w.ctx, &of.Items[i])
			reasons[readyReason(of.Items[i].Status.Conditions)]++
			versions += of.Items[i].ResourceVersion + " "
		}
		var checkpoints v1alpha1.BackfillCheckpointList
		Expect(suite.admin.List(w.ctx, &checkpoints, client.InNamespace(w.namespace))).To(Succeed())
		for i := range checkpoints.Items {
			reasons[readyReason(checkpoints.Items[i].Status.Conditions)]++
			versions += checkpoints.Items[i].ResourceVersion + " "
		}
		for _, job := range w.jobs() {
			versions += job.ResourceVersion + " "
		}
		return reasons, versions
	}
	// gitops applies them as a tool does every few seconds: without what the API server added.
	gitops := func() {
		GinkgoHelper()
		for _, name := range schemas {
			text, err := yaml.Marshal(map[string]any{
				"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.KindSyncSchema,
				"metadata": map[string]any{"name": name, "namespace": w.namespace}, "spec": clinic(name).Spec,
			})
			Expect(err).NotTo(HaveOccurred())
			_, err = suite.cluster.Kubectl(string(text), "apply", "--server-side", "--force-conflicts", "--field-manager=gitops", "-f", "-")
			Expect(err).NotTo(HaveOccurred())
		}
	}

	It("are not written, whether they are done, wait for workers, or are Stalled, however often they are looked at and applied", func() {
		w = newWorld()
		for _, name := range schemas {
			w.sql(`CREATE SCHEMA "` + name + `"`)
			w.sql(`CREATE TABLE "` + name + `".patients (id bigint PRIMARY KEY, ward text NOT NULL, name text NOT NULL)`)
			w.sql(`INSERT INTO "` + name + `".patients VALUES (1, 'a', 'B')`)
		}
		gitops()
		passes()
		jobs := w.jobs()
		Expect(jobs).To(HaveLen(3 * each))
		store, err := postgres.Open(w.ctx, postgres.Config{URL: w.dsn, Schema: "done"})
		Expect(err).NotTo(HaveOccurred())
		defer store.Close()
		for i := range jobs {
			switch jobs[i].Labels[labelSchema] {
			case "done":
				_, token, _ := jobClaim(&jobs[i])
				claim, err := store.ReadClaim(w.ctx, strings.TrimPrefix(jobs[i].Labels[labelCheckpoint], "done-"), token)
				Expect(err).NotTo(HaveOccurred())
				Expect((&backfill.Runner{Store: store}).Run(w.ctx, claim, backfill.Share{Index: 0, Of: 1})).To(Succeed())
				w.completeJob(&jobs[i])
			case "stalled":
				w.failJob(&jobs[i], 28)
			}
		}
		for range 2 {
			w.clock.advance(statusEvery)
			passes()
		}
		gitops() // the first one beside the operator's status: the API server sorts who owns which fields
		reasons, before := seen()
		Expect(reasons).To(Equal(map[string]int{
			v1alpha1.ReasonGateOpen: 1, v1alpha1.ReasonActivated: each,
			v1alpha1.ReasonBackfilling: 1, v1alpha1.ReasonWorkerPending: each,
			v1alpha1.ReasonVerificationFailed: 1 + each,
		}))
		told := len(w.events.list)
		for range 2 {
			w.clock.advance(statusEvery)
			passes()
		}
		w.newOperator()
		passes()
		gitops()
		_, after := seen()
		Expect(after).To(Equal(before))
		Expect(w.events.list).To(HaveLen(told))
	})
})
