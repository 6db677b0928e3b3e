package controllers

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// refusingStatus is the operator's client while no status can be written. It counts what was tried.
func refusingStatus(tries *int) client.Client {
	return through(interceptor.Funcs{SubResourceApply: func(
		context.Context, client.Client, string, runtime.ApplyConfiguration, ...client.SubResourceApplyOption,
	) error {
		*tries++
		return apierrors.NewServiceUnavailable("away")
	}})
}

var _ = Describe("Events of what was done while no status could be written", func() {
	var w *world
	var tries int
	BeforeEach(func() { w, tries = newWorld(), 0 })

	// away makes passes whose status is not written.
	away := func() {
		GinkgoHelper()
		w.schemas.Client, w.checkpoints.Client = refusingStatus(&tries), refusingStatus(&tries)
		for range 3 {
			_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, "clinic"))
			Expect(err).To(HaveOccurred())
			_, err = w.checkpoints.Reconcile(w.ctx, request(w.namespace, child))
			Expect(err).To(HaveOccurred())
		}
		Expect(tries).To(Equal(6))
		Expect(w.jobs()).To(HaveLen(1))
		Expect(w.events.list).To(BeEmpty(), "an event comes after the status")
	}
	back := func() {
		GinkgoHelper()
		w.schemas.Client, w.checkpoints.Client = suite.operator, suite.operator
		for range 3 {
			w.pass()
			w.passCheckpoint(child)
			w.clock.advance(statusEvery)
		}
	}
	// toldOnce: the barrier, what it holds up, and the Job, each of them once.
	toldOnce := func() {
		GinkgoHelper()
		for _, reason := range []string{v1alpha1.ReasonMigrated, "WritesPaused", eventJobCreated} {
			Expect(w.events.of(reason)).To(Equal(1), "%s: %v", reason, w.events.list)
		}
	}

	It("are told by the pass that writes it, each once", func() {
		w.sql(`INSERT INTO patients SELECT n, 'ward-0', 'Name ' || n FROM generate_series(1001, 151000) n`)
		w.sql(`ANALYZE patients`)
		w.apply(w.clinic(7))
		away()
		back()
		toldOnce()
	})

	It("are told by the next operator where this one was killed, each once, however often the status is wiped", func() {
		w.sql(`INSERT INTO patients SELECT n, 'ward-0', 'Name ' || n FROM generate_series(1001, 151000) n`)
		w.sql(`ANALYZE patients`)
		w.apply(w.clinic(7))
		away()
		w.newOperator()
		back()
		toldOnce()
		for _, e := range []struct{ object, kind, reason, note string }{
			{"clinic", v1alpha1.KindSyncSchema, v1alpha1.ReasonMigrated, "version 0 -> 7 in one transaction"},
			{child, v1alpha1.KindBackfillCheckpoint, eventJobCreated, "made Job " + w.jobs()[0].Name + " for claim 1"},
		} {
			w.tellCluster(e.object, e.kind, e.reason, e.note)
		}
		w.wipe()
		w.newOperator()
		back()
		toldOnce()
	})
})

// tellCluster writes an event as the recorder of a manager does; that of the specs keeps them to itself.
func (w *world) tellCluster(name, kind, reason, note string) {
	GinkgoHelper()
	uid := w.schema().UID
	if kind == v1alpha1.KindBackfillCheckpoint {
		uid = w.checkpoint(name).UID
	}
	Expect(suite.admin.Create(w.ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: w.namespace, GenerateName: name + "-"},
		InvolvedObject: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind, Namespace: w.namespace, Name: name, UID: uid},
		Reason:         reason, Message: note, Type: corev1.EventTypeNormal,
	})).To(Succeed())
}

var _ = Describe("A BackfillCheckpoint in trouble", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })
	epoch := func() int64 { return w.number(`SELECT max(owner_epoch) FROM sync_backfill_checkpoints`) }
	begin := func(change ...func(*v1alpha1.SyncSchema)) {
		GinkgoHelper()
		w.apply(w.clinic(7, change...))
		w.pass()
		w.passCheckpoint(child)
		Expect(w.jobs()).To(HaveLen(1))
	}

	It("that is deleted after a restart of the operator, its Secret gone before it, takes its claim from the workers all the same", func() {
		begin()
		w.newOperator()
		w.passCheckpoint(child)
		Expect(suite.admin.Delete(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "clinic-app"}})).To(Succeed())
		Expect(suite.admin.Delete(w.ctx, w.checkpoint(child))).To(Succeed())
		_, err := w.checkpoints.Reconcile(w.ctx, request(w.namespace, child))
		Expect(err).NotTo(HaveOccurred())
		Expect(epoch()).To(BeEquivalentTo(2))
		_, token, _ := jobClaim(&w.jobs()[0])
		store, err := openPostgres(w.ctx, Connection{URL: Secret(w.dsn)})
		Expect(err).NotTo(HaveOccurred())
		defer store.Close()
		_, err = store.ReadClaim(w.ctx, "name-search", token)
		Expect(storage.ClassOf(err)).To(Equal(storage.ClassOwnershipLost), "a worker of the Job finds its claim over: %v", err)
	})

	It("whose immutable Secret is deleted and made again with another password takes that one in the next pass, and keeps its Job", func() {
		parts := partsOf(testdb.Role(GinkgoTB(), w.dsn, "rotated"))
		role := pgx.Identifier{parts["username"]}.Sanitize()
		w.sql(`ALTER ROLE ` + role + ` SUPERUSER`)
		yes := true
		secret := func() *corev1.Secret {
			return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "clinic-parts"}, StringData: parts, Immutable: &yes}
		}
		Expect(suite.admin.Create(w.ctx, secret())).To(Succeed())
		begin(withParts)
		first := w.jobs()[0]

		w.sql(`ALTER ROLE ` + role + ` PASSWORD 'another'`)
		parts["password"] = "another"
		Expect(suite.admin.Update(w.ctx, secret())).To(MatchError(ContainSubstring("immutable")))
		Expect(suite.admin.Delete(w.ctx, secret())).To(Succeed())
		object, again := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSecretMissing, `no Secret "clinic-parts"`)
		Expect(again.RequeueAfter).To(Equal(secretRetry))
		Expect(suite.admin.Create(w.ctx, secret())).To(Succeed())
		object, _ = w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonWorkerPending, "")
		w.bring()
		Expect(w.jobs()).To(HaveLen(1))
		Expect(w.jobs()[0].UID).To(Equal(first.UID))
	})

	It("deletes its Job where the namespace is being deleted, for the Job's pod would keep it there", func() {
		begin()
		Expect(suite.admin.Delete(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "clinic-app"}})).To(Succeed())
		w.passCheckpoint(child)
		Expect(w.jobs()).To(HaveLen(1), "a Secret that is gone for a while ends no Job")
		Expect(suite.admin.Delete(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}})).To(Succeed())
		object, _ := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "the namespace is being deleted")
		Expect(w.jobs()).To(BeEmpty())
	})

	It("whose retry is asked for at a time to come is tried then, and not at each pass until then", func() {
		begin(func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Verify = []v1alpha1.Verify{{Name: "no-seven", Query: "SELECT id FROM patients WHERE name_search = 'name 7'"}}
		})
		w.runWorkers()
		w.annotate(w.checkpoint(child), AnnotationRetry, w.clock.Now().Add(time.Minute).UTC().Format(time.RFC3339))
		for range 3 {
			object, again := w.passCheckpoint(child)
			expectStalled(object.Status.Conditions, v1alpha1.ReasonVerificationFailed, "no-seven")
			Expect(again.RequeueAfter).To(BeNumerically("<=", time.Minute))
			Expect(epoch()).To(BeEquivalentTo(1))
			w.clock.advance(15 * time.Second)
		}
		w.clock.advance(15 * time.Second)
		w.passCheckpoint(child)
		Expect(epoch()).To(BeEquivalentTo(2))
		w.clock.advance(time.Second)
		w.runWorkers()
		for range 2 {
			object, _ := w.passCheckpoint(child)
			expectStalled(object.Status.Conditions, v1alpha1.ReasonVerificationFailed, "no-seven")
			w.clock.advance(statusEvery)
		}
		Expect(epoch()).To(BeEquivalentTo(2), "one request, one attempt")
	})

	It("that a user wrote late is declared only if a worker can be made for it", func() {
		begin()
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Worker = &v1alpha1.Worker{Template: &runtime.RawExtension{Raw: []byte(`{"spec":{"priorityClassName":"no such class!"}}`)}}
		}))
		late := standaloneOf(w, "late", "late")
		late.Spec.Backfill.Update.Set = map[string]v1alpha1.Expression{"name": "name"}
		w.apply(late)
		object, _ := w.passCheckpoint("late")
		expectStalled(object.Status.Conditions, v1alpha1.ReasonInvalidSpec, "spec.worker.template")
		Expect(w.number(`SELECT count(*) FROM sync_backfill_checkpoints WHERE name = 'late'`)).To(BeZero(), "it would close the gate")
		w.apply(w.clinic(7))
		w.passCheckpoint("late")
		w.bring()
		object, _ = w.passCheckpoint("late")
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
	})

	It("that a user wrote and that is activated stays so when a later version retires its table", func() {
		w.sql(`CREATE TABLE visits (id bigint PRIMARY KEY, note text)`)
		w.sql(`INSERT INTO visits SELECT n, 'Note ' || n FROM generate_series(1, 20) n`)
		visits := v1alpha1.Table{Name: "visits", PrimaryKey: []string{"id"}, Columns: []v1alpha1.Column{
			{Name: "id", Type: "integer"}, {Name: "note", Type: "string", Nullable: true},
		}}
		mine := standaloneOf(w, "mine", "of-visits")
		mine.Spec.Sources[0].Table, mine.Spec.Verify = "visits", nil
		mine.Spec.Backfill.Update = &v1alpha1.Update{Table: "visits", Set: map[string]v1alpha1.Expression{"note": "upper(note)"}}
		w.apply(mine)
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints, s.Spec.Tables = nil, append(s.Spec.Tables, visits)
		}))
		w.bring()
		w.apply(w.clinic(8, func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints, s.Spec.RetiredTables = nil, []string{"visits"} }))
		w.bring()
		Expect(w.number(`SELECT count(*) FROM pg_tables WHERE tablename = 'visits'`)).To(BeZero())
		for range 2 {
			object, _ := w.passCheckpoint("mine")
			Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated), describeConditions(object.Status.Conditions))
			w.newOperator()
		}
	})

	It("whose operator lacks a right says so with the right's name, and goes on when it has it", func() {
		begin()
		w.checkpoints.Live, w.schemas.Live = suite.nobody, suite.nobody
		object, again := w.passCheckpoint(child)
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSecretMissing, `cannot get resource "secrets" in API group "" in the namespace`)
		Expect(again.RequeueAfter).To(Equal(secretRetry))
		schema, _ := w.pass()
		expectWaiting(schema.Status.Conditions, v1alpha1.ReasonSecretMissing, `"clinic-app"`)

		w.checkpoints.Live, w.schemas.Live = suite.operator, suite.operator
		w.clock.advance(statusEvery)
		w.bring()
	})

	It("shows what the database says and nobody has a word for as what it is, and looks again at a resync", func() {
		w.sql(`CREATE FUNCTION broken() RETURNS event_trigger LANGUAGE plpgsql AS $$
			BEGIN RAISE EXCEPTION 'the moon is in the way' USING ERRCODE = 'XX000'; END $$`)
		w.sql(`CREATE EVENT TRIGGER broken ON ddl_command_start EXECUTE FUNCTION broken()`)
		w.apply(w.clinic(7))
		object, again := w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonInternal, "a function of the database raised an error of its own in broken()")
		Expect(readyMessage(object.Status.Conditions)).To(ContainSubstring("XX000"))
		Expect(again.RequeueAfter).To(Equal(DefaultResync))
		w.sql(`DROP EVENT TRIGGER broken`)
		w.clock.advance(DefaultResync)
		w.bring()
	})
})
