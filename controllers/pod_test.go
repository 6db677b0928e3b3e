package controllers

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

var _ = Describe("The condition of a pod", func() {
	var g *gate
	BeforeEach(func() { g = newGate() })

	It("follows the database from before a barrier to the withdrawal of older pods", func() {
		g.apply(g.clinic(6))
		g.bring()
		deployment, of := g.deployment("clinic", 1)
		old := g.pod("old", "clinic=6", of("6"))
		fresh := g.pod("fresh", "clinic=7", of("7"))
		g.look()
		Expect(g.state(old)).To(Equal(open))
		Expect(g.state(fresh)).To(Equal(unmigrated))

		g.apply(g.clinic(7))
		g.pass()
		late := g.pod("late", "clinic=6", of("6"))
		Expect(g.look().RequeueAfter).To(Equal(hotGate), "a pod waits")
		Expect(g.state(old)).To(Equal(open))
		Expect(g.state(late)).To(Equal(open), "old pods read while the backfill runs")
		Expect(g.state(fresh)).To(Equal(backfilling))
		Expect(g.condition(fresh).Message).To(ContainSubstring(`checkpoint "name-search"`))

		g.bring()
		later := g.pod("later", "clinic=6", of("6"))
		Expect(g.look().RequeueAfter).To(BeNumerically("~", coldGate, coldGate/4), "nothing waits")
		Expect(g.state(fresh)).To(Equal(open))
		Expect(g.condition(fresh).Message).To(And(ContainSubstring("clinic=7"), ContainSubstring("/"+partsOf(g.dsn)["dbname"]+"/public")))
		Expect(g.state(old)).To(Equal(open))
		Expect(g.state(later)).To(Equal("False WriterBelowFence"))
		Expect(g.condition(later).Message).To(ContainSubstring("from version 7 on, this pod is of version 6"))

		By("making enough pods of the new version Ready")
		g.started(old, late, fresh)
		g.look()
		Expect(g.state(old)).To(Equal("False Superseded"))
		Expect(g.state(late)).To(Equal("False Superseded"))
		Expect(g.state(fresh)).To(Equal(open))
		Expect(deployment.Name).To(Equal("clinic"))
		Expect(g.events.of("Superseded")).To(Equal(3))
	})

	It("takes out at the barrier's commit who cannot read what it made, and nobody where a version only adds", func() {
		g.apply(g.clinic(6))
		g.bring()
		_, of := g.deployment("clinic", 1)
		old := g.pod("old", "clinic=6", of("6"))
		g.look()
		adds := func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints = nil }
		g.apply(g.clinic(7, adds))
		g.bring()
		newest := g.pod("newest", "clinic=7", of("7"))
		g.look()
		g.started(old, newest)
		late := g.pod("late", "clinic=6", of("6"))
		g.look()
		for _, pod := range []*corev1.Pod{old, newest, late} {
			Expect(g.state(pod)).To(Equal(open), pod.Name)
		}

		By("a version with a backfill, whose rows older programs cannot read")
		eight := int32(8)
		g.apply(g.clinic(8, func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Name, s.Spec.Checkpoints[0].Version = "name-again", 8
			s.Spec.MinReaderVersion = &eight
		}))
		g.pass()
		fresh := g.pod("fresh", "clinic=8", of("8"))
		g.look()
		Expect(g.state(fresh)).To(Equal(backfilling))
		for _, pod := range []*corev1.Pod{old, newest, late} {
			Expect(g.state(pod)).To(Equal("False ReaderTooOld"), pod.Name)
		}
		g.bring()
		g.look()
		Expect(g.state(fresh)).To(Equal(open))
		Expect(g.state(newest)).To(Equal("False ReaderTooOld"))
	})

	It("keeps older pods where that is asked for, and until enough of the workload's own pods are Ready", func() {
		g.apply(g.clinic(6))
		g.bring()
		_, of := g.deployment("clinic", 2)
		_, other := g.deployment("reports", 1)
		old := g.pod("old", "clinic=6", of("6"))
		report := g.pod("report", "clinic=6", other("6"))
		g.look()
		g.apply(g.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Gate = &v1alpha1.Gate{Mode: v1alpha1.GateEnforce, OlderPods: v1alpha1.OlderPodsKeep, WithdrawAtPercent: 100}
		}))
		g.bring()
		first := g.pod("first", "clinic=7", of("7"))
		second := g.pod("second", "clinic=7", of("7"))
		g.look()
		g.started(first, second)
		g.look()
		Expect(g.state(old)).To(Equal(open), "Keep")

		By("asking for Withdraw with one of two pods Ready")
		g.patchStatus(second, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`)
		g.apply(g.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints = []v1alpha1.Checkpoint{nameSearch()} }))
		g.clock.advance(detailsKept)
		g.look()
		Expect(g.state(old)).To(Equal(open))
		g.started(second)
		g.look()
		Expect(g.state(old)).To(Equal("False Superseded"))
		Expect(g.state(report)).To(Equal(open), "no pod of its own workload takes its place")
	})

	It("is held by every requirement of the pod, and says which is wanting", func() {
		g.serving()
		both := g.pod("both", "clinic=7,billing=3")
		g.look()
		Expect(g.state(both)).To(Equal("False SchemaNotFound"))
		Expect(g.condition(both).Message).To(HavePrefix("billing=3: "))

		billing := g.clinic(3, func(s *v1alpha1.SyncSchema) {
			s.Name = "billing"
			s.Spec.Database.Postgres.Schema = "billing"
		})
		g.sql(`CREATE SCHEMA billing`)
		g.sql(`CREATE TABLE billing.patients (LIKE public.patients INCLUDING ALL)`)
		g.sql(`ALTER TABLE billing.patients DROP COLUMN name_search`)
		g.apply(billing)
		g.look()
		Expect(g.state(both)).To(Equal(unmigrated))
		_, err := g.schemas.Reconcile(g.ctx, request(g.namespace, "billing"))
		Expect(err).NotTo(HaveOccurred())
		g.look()
		Expect(g.state(both)).To(Equal(open))
		Expect(g.condition(both).Message).To(And(ContainSubstring("billing=3 GateOpen"), ContainSubstring("clinic=7 GateOpen")))
	})

	It("is False for a requirement that is missing, malformed or edited, and says so", func() {
		g.serving()
		missing := g.pod("missing", "", func(p *corev1.Pod) { p.Annotations = nil })
		malformed := g.pod("malformed", "clinic")
		edited := g.pod("edited", "clinic=6", func(p *corev1.Pod) {
			p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: v1alpha1.EnvironmentRequires, Value: "clinic=7"}}
		})
		for _, name := range []string{"", "clinic"} {
			g.clock.advance(hotGate)
			_, err := g.pods.Reconcile(g.ctx, request(g.namespace, name))
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(g.state(missing)).To(Equal("False RequirementMissing"))
		Expect(g.state(malformed)).To(Equal("False RequirementMalformed"))
		Expect(g.state(edited)).To(Equal("False VersionEdited"))

		g.annotate(edited, v1alpha1.AnnotationRequires, "clinic=7")
		g.look()
		Expect(g.state(edited)).To(Equal(open))
		g.annotate(edited, v1alpha1.AnnotationRequires, "clinic=8")
		g.look()
		Expect(g.state(edited)).To(Equal("False VersionEdited"), "although it was True")
	})

	It("holds nothing with mode Report, and shows what it would", func() {
		g.apply(g.clinic(6))
		g.bring()
		g.apply(g.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Gate = &v1alpha1.Gate{Mode: v1alpha1.GateReport} }))
		g.pass()
		fresh := g.pod("fresh", "clinic=7")
		g.look()
		Expect(g.state(fresh)).To(Equal("True ReportOnly"))
		Expect(g.condition(fresh).Message).To(ContainSubstring("else it would be closed: Backfilling"))
	})

	It("is True while a person's bypass lasts, for pods that come meanwhile, and no longer", func() {
		g.apply(g.clinic(7))
		g.pass()
		held := g.pod("held", "clinic=7")
		g.look()
		Expect(g.state(held)).To(Equal(backfilling))
		until := g.clock.Now().Add(time.Hour).UTC().Format(time.RFC3339)
		g.annotate(g.schema(), v1alpha1.AnnotationBypass, until+";the backfill is stuck")
		Expect(g.look().RequeueAfter).To(BeNumerically("<=", time.Hour))
		Expect(g.state(held)).To(Equal("True Bypassed"))
		Expect(g.condition(held).Message).To(And(ContainSubstring(until), ContainSubstring("the backfill is stuck")))

		object, _ := g.pass()
		bypassed := condition(object, v1alpha1.ConditionGateBypassed)
		Expect(bypassed).NotTo(BeNil())
		Expect(bypassed.Message).To(And(ContainSubstring(until), ContainSubstring("the backfill is stuck")))
		Expect(g.events.of(v1alpha1.ReasonBypassed)).To(BeNumerically(">=", 2), "one on the pod, one on the SyncSchema")
		Expect(g.number(`SELECT required_writer_version FROM sync_writer_fence WHERE partition = '*'`)).To(BeEquivalentTo(7))

		g.clock.advance(time.Hour)
		late := g.pod("late", "clinic=7")
		g.look()
		Expect(g.state(late)).To(Equal(backfilling))
		Expect(g.state(held)).To(Equal("True Bypassed"), "a pod that is True stays so")
		object, _ = g.pass()
		Expect(condition(object, v1alpha1.ConditionGateBypassed)).To(BeNil())
	})

	It("opens nothing for a bypass without an end or a reason, and says so once", func() {
		g.apply(g.clinic(7))
		g.pass()
		held := g.pod("held", "clinic=7")
		for _, text := range []string{"for ever;because", g.clock.Now().Add(time.Hour).UTC().Format(time.RFC3339), ";"} {
			g.annotate(g.schema(), v1alpha1.AnnotationBypass, text)
			g.look()
			Expect(g.state(held)).To(Equal(backfilling), text)
		}
		g.pass()
		g.pass()
		Expect(g.events.heard(v1alpha1.ReasonBypassed)).To(HaveLen(1))
	})

	It("stays with what was proven while the database is away, whoever reads it, and is proven anew when it is back", func() {
		g.serving()
		var proven []*corev1.Pod
		for _, name := range []string{"a", "b", "c"} {
			proven = append(proven, g.pod(name, "clinic=7"))
		}
		g.look()
		versions := map[string]string{}
		for _, pod := range proven {
			Expect(g.state(pod)).To(Equal(open))
			versions[pod.Name] = g.read(pod).ResourceVersion
		}
		By("the address being one where nothing listens, and the operator starting anew")
		dead := partsOf(g.dsn)
		g.secret("clinic-app", map[string]string{"uri": "postgres://" + dead["username"] + ":x@127.0.0.1:1/" + dead["dbname"]})
		g.restart()
		fresh := g.pod("fresh", "clinic=7")
		for range 5 {
			g.look()
			g.clock.advance(time.Minute)
		}
		Expect(g.state(fresh)).To(Equal(unreachable))
		object, _ := g.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonConnectionLost, `the database of key "uri" of Secret "clinic-app": connection refused`)
		for _, pod := range proven {
			Expect(g.read(pod).ResourceVersion).To(Equal(versions[pod.Name]), "nothing was written")
		}
		g.secret("clinic-app", map[string]string{"uri": g.dsn})
		g.clock.advance(time.Minute)
		g.look()
		Expect(g.state(fresh)).To(Equal(open))
	})

	It("is never opened by an answer that proves nothing, and not closed by it either", func() {
		g.serving()
		serving := g.pod("serving", "clinic=7")
		g.look()
		count := 0
		stays := func(what, reason string) {
			GinkgoHelper()
			count++
			fresh := g.pod("fresh-"+decimal(int64(count)), "clinic=7")
			g.clock.advance(time.Minute)
			g.look()
			Expect(g.state(fresh)).To(HavePrefix("False "+reason), what)
			Expect(g.state(serving)).To(Equal(open), what)
		}
		g.sql(`ALTER TABLE sync_schema_meta DISABLE TRIGGER ALL`)
		g.sql(`DELETE FROM sync_schema_meta`)
		stays("an emptied table", "MigrationPending")
		g.sql(`INSERT INTO sync_schema_meta (id, schema_version, layouts) VALUES (1, 7, '{}')`)

		g.sql(`ALTER TABLE sync_backfill_checkpoints DISABLE TRIGGER ALL`)
		g.sql(`CREATE TABLE kept AS TABLE sync_backfill_checkpoints`)
		g.sql(`DELETE FROM sync_backfill_checkpoints`)
		stays("a table without its checkpoints", "CheckpointMissing")
		g.sql(`INSERT INTO sync_backfill_checkpoints TABLE kept`)

		reader := testdb.Role(GinkgoTB(), g.dsn, "reader")
		g.secret("clinic-app", map[string]string{"uri": reader})
		stays("no right to SELECT", "Unreachable")

		elsewhere := testdb.Postgres(GinkgoTB())
		g.secret("clinic-app", map[string]string{"uri": elsewhere})
		stays("another database", "MigrationPending")

		g.secret("clinic-app", map[string]string{"uri": g.dsn})
		Expect(suite.admin.Delete(g.ctx, g.schema())).To(Succeed())
		stays("a SyncSchema that is gone", "SchemaNotFound")
	})

	It("is False for a pod that serves only when the same database shows an older version", func() {
		g.serving()
		serving := g.pod("serving", "clinic=7")
		g.look()
		g.sql(`ALTER TABLE sync_schema_meta DISABLE TRIGGER ALL`)
		g.sql(`UPDATE sync_schema_meta SET schema_version = 6`)
		g.look()
		Expect(g.state(serving)).To(Equal(unmigrated))
	})

	It("is never opened by a standby", func() {
		primary := testdb.PostgresServer(GinkgoTB(), testdb.ServerOptions{})
		g.dsn = primary.Database(GinkgoTB())
		g.db = connectTo(g.ctx, g.dsn)
		g.sql(`CREATE TABLE patients (id bigint PRIMARY KEY, ward text NOT NULL, name text NOT NULL)`)
		g.secret("clinic-app", map[string]string{"uri": g.dsn})
		g.apply(g.clinic(6))
		g.bring()
		serving := g.pod("serving", "clinic=6")
		g.look()
		Expect(g.state(serving)).To(Equal(open))
		standby := primary.Standby(GinkgoTB())
		g.secret("clinic-app", map[string]string{"uri": standby.DSN(partsOf(g.dsn)["dbname"])})
		fresh := g.pod("fresh", "clinic=6")
		g.clock.advance(time.Minute)
		Eventually(func() string { g.look(); return g.state(fresh) }, "20s", "200ms").Should(Equal("False Standby"))
		Expect(g.state(serving)).To(Equal(open))
	})

	It("is served by a SyncSchema that is suspended, wrong or stalled", func() {
		g.serving()
		for i, change := range []func(*v1alpha1.SyncSchema){
			func(s *v1alpha1.SyncSchema) { s.Spec.Suspend = true },
			func(s *v1alpha1.SyncSchema) { s.Spec.Version = 6; s.Spec.Checkpoints = nil },
			func(s *v1alpha1.SyncSchema) { s.Spec.Tables[0].PrimaryKey = []string{"nothing"} },
		} {
			g.apply(g.clinic(7, change))
			_, err := g.schemas.Reconcile(g.ctx, request(g.namespace, "clinic"))
			Expect(err).NotTo(HaveOccurred())
			fresh := g.pod("fresh-"+decimal(int64(i)), "clinic=7")
			g.look()
			Expect(g.state(fresh)).To(Equal(open))
		}
	})
})

var _ = Describe("Writing the condition of a pod", func() {
	var g *gate
	BeforeEach(func() {
		g = newGate()
		g.serving()
	})

	It("changes that condition only, also while a kubelet writes others, and nothing when nothing changed", func() {
		pod := g.pod("program", "clinic=7")
		g.patchStatus(pod, `{"status":{"conditions":[{"type":"PodScheduled","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"},
			{"type":"other.example/gate","status":"True","lastTransitionTime":"2026-01-02T00:00:00Z"}]}}`)
		const looks = 60
		var kubelet sync.WaitGroup
		ended := make(chan struct{})
		end := sync.OnceFunc(func() { close(ended) })
		defer end()            // also where an expectation fails
		seen := pod.DeepCopy() // an answer is written into the object that was sent
		kubelet.Go(func() {
			defer GinkgoRecover()
			for i := 0; ; i++ {
				status := []string{"True", "False"}[i%2]
				g.patchStatus(seen, `{"status":{"conditions":[{"type":"ContainersReady","status":"`+status+`"},{"type":"Ready","status":"False"}]}}`)
				select {
				case <-ended:
					return
				default:
				}
			}
		})
		for i := range looks {
			g.annotate(pod, v1alpha1.AnnotationRequires, []string{"clinic=8", "clinic=7"}[i%2])
			g.look()
		}
		end()
		kubelet.Wait()
		found := g.read(pod)
		Expect(g.state(pod)).To(Equal(open))
		Expect(found.Status.Conditions).To(HaveLen(5))
		Expect(podCondition(found, "other.example/gate").LastTransitionTime.UTC().Day()).To(Equal(2))
		Expect(podCondition(found, corev1.PodScheduled).LastTransitionTime.UTC().Day()).To(Equal(1))
		Expect(isTrue(podCondition(found, corev1.PodReady))).To(BeFalse(), "the kubelet's own")

		for range 3 {
			g.clock.advance(coldGate)
			g.look()
		}
		g.restart()
		g.look()
		Expect(g.read(pod).ResourceVersion).To(Equal(found.ResourceVersion))
	})

	It("never reaches another pod of the same name", func() {
		pod := g.pod("program", "clinic=7")
		stale := judgedPod{pod: pod.DeepCopy()}
		stale.verdict.Open, stale.verdict.Reason = true, v1alpha1.ReasonGateOpen
		now := int64(0)
		Expect(suite.admin.Delete(g.ctx, pod, &client.DeleteOptions{GracePeriodSeconds: &now})).To(Succeed())
		second := g.pod("program", "clinic=8")
		wrote, err := g.pods.write(g.ctx, stale, g.clock.Now())
		Expect(err).NotTo(HaveOccurred())
		Expect(wrote).To(BeFalse())
		Expect(g.state(second)).To(Equal("none"))
	})

	It("is all that the operator may change of a pod, and of what made it", func() {
		pod := g.pod("program", "clinic=7")
		deployment, _ := g.deployment("clinic", 1)
		for what, try := range map[string]func(context.Context) error{
			"read a pod": func(ctx context.Context) error {
				return suite.operator.Get(ctx, client.ObjectKeyFromObject(pod), &corev1.Pod{})
			},
			"label a pod":        func(ctx context.Context) error { return suite.operator.Patch(ctx, pod.DeepCopy(), labelled()) },
			"change its image":   func(ctx context.Context) error { return suite.operator.Update(ctx, pod.DeepCopy()) },
			"replace its status": func(ctx context.Context) error { return suite.operator.Status().Update(ctx, pod.DeepCopy()) },
			"delete a pod":       func(ctx context.Context) error { return suite.operator.Delete(ctx, pod.DeepCopy()) },
			"make a pod": func(ctx context.Context) error {
				return suite.operator.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: g.namespace, Name: "x"}})
			},
			"evict a pod": func(ctx context.Context) error {
				return suite.operator.SubResource("eviction").Create(ctx, pod.DeepCopy(), eviction(pod))
			},
			"change a Deployment": func(ctx context.Context) error { return suite.operator.Patch(ctx, deployment.DeepCopy(), labelled()) },
			"scale a Deployment": func(ctx context.Context) error {
				return suite.operator.SubResource("scale").Patch(ctx, deployment.DeepCopy(), labelled())
			},
			"list Deployments": func(ctx context.Context) error {
				return suite.operator.List(ctx, deploymentList(), client.InNamespace(g.namespace))
			},
		} {
			Expect(apierrors.IsForbidden(try(g.ctx))).To(BeTrue(), what)
		}
	})
})

// condition finds a condition of a SyncSchema; nil: it has none of that type.
func condition(object *v1alpha1.SyncSchema, kind string) *metav1.Condition {
	for i := range object.Status.Conditions {
		if object.Status.Conditions[i].Type == kind {
			return &object.Status.Conditions[i]
		}
	}
	return nil
}

func labelled() client.Patch {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{"x": "y"}}})
	Expect(err).NotTo(HaveOccurred())
	return client.RawPatch(types.MergePatchType, patch)
}

func eviction(pod *corev1.Pod) *policyv1.Eviction {
	return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
}

func deploymentList() *appsv1.DeploymentList { return &appsv1.DeploymentList{} }
