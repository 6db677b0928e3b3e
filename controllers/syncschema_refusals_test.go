package controllers

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// refusal is a situation in which a person must act, and the way out of it.
type refusal struct {
	before  func(w *world)               // what is there already; nil: nothing
	spec    func(s *v1alpha1.SyncSchema) // what is wrong with the spec of version 7; nil: nothing
	version int32                        // 0: 7
	reason  string
	message string
	mend    func(w *world) // what a person does; nil: the right spec is applied
	again   time.Duration  // when it is looked at again; 0: at the next resync
}

func atVersion6(w *world) {
	w.apply(w.clinic(6))
	w.bring()
}

func atVersion7(w *world) {
	w.apply(w.clinic(7))
	w.bring()
}

func withSQL(version int32, sql string) func(s *v1alpha1.SyncSchema) {
	return func(s *v1alpha1.SyncSchema) { s.Spec.Migrations = []v1alpha1.Migration{{Version: version, SQL: sql}} }
}

var _ = Describe("A SyncSchema is Stalled, changes nothing, and goes on once it is put right:", func() {
	DescribeTable("for", func(c refusal) {
		w := newWorld()
		if c.before != nil {
			c.before(w)
		}
		if c.version == 0 {
			c.version = 7
		}
		wrong := w.clinic(c.version)
		if c.spec != nil {
			c.spec(wrong)
		}
		w.apply(wrong)
		w.clock.advance(DefaultResync)
		before := w.snapshot()
		object, again := w.pass()
		expectStalled(object.Status.Conditions, c.reason, c.message)
		Expect(again.RequeueAfter).To(Equal(cmp.Or(c.again, DefaultResync)), "it is looked at again at every resync")
		w.clock.advance(DefaultResync)
		object, _ = w.pass()
		expectStalled(object.Status.Conditions, c.reason, c.message)
		Expect(w.snapshot()).To(Equal(before))
		Expect(w.events.of(c.reason)).To(Equal(1), "%v", w.events.list)

		if c.mend != nil {
			c.mend(w)
		} else {
			w.apply(w.clinic(7))
		}
		w.clock.advance(DefaultResync)
		w.bring()
	},
		Entry("a relation between lists that cannot hold", refusal{
			spec:   func(s *v1alpha1.SyncSchema) { s.Spec.Checkpoints[0].Sources[0].Table = "absent" },
			reason: v1alpha1.ReasonInvalidSpec, message: "spec.checkpoints[0]",
		}),
		Entry("a cutover that is not available", refusal{
			spec: func(s *v1alpha1.SyncSchema) {
				s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverWhenPodsWait}
			},
			reason: v1alpha1.ReasonInvalidSpec, message: "WhenPodsWait is not available",
		}),
		Entry("a database schema that does not exist", refusal{
			spec:   func(s *v1alpha1.SyncSchema) { s.Spec.Database.Postgres.Schema = "absent" },
			reason: v1alpha1.ReasonInvalidSpec, message: `no schema "absent"`, again: secretRetry,
		}),
		Entry("a worker template that the API server refuses", refusal{
			spec: func(s *v1alpha1.SyncSchema) {
				s.Spec.Worker = &v1alpha1.Worker{Template: &runtime.RawExtension{Raw: []byte(`{"spec":{"priorityClassName":"no such class!"}}`)}}
			},
			reason: v1alpha1.ReasonInvalidSpec, message: "spec.worker.template",
		}),
		Entry("a template of a standalone checkpoint that the API server refuses", refusal{
			before: func(w *world) {
				mine := standaloneOf(w, "mine", "of-my-own")
				mine.Spec.Backfill = v1alpha1.Backfill{Job: &v1alpha1.JobBackfill{Template: runtime.RawExtension{Raw: []byte(
					`{"spec":{"priorityClassName":"no such class!","containers":[{"name":"worker","image":"own:1"}]}}`)}}}
				w.apply(mine)
			},
			reason: v1alpha1.ReasonInvalidSpec, message: "BackfillCheckpoint mine: spec.backfill.job.template",
			mend: func(w *world) { Expect(suite.admin.Delete(w.ctx, w.checkpoint("mine"))).To(Succeed()) },
		}),
		Entry("a connection string that reads the operator's disk", refusal{
			before: func(w *world) { w.secret("clinic-app", map[string]string{"uri": w.dsn + "&passfile=/etc/passwd"}) },
			reason: v1alpha1.ReasonInvalidSpec, message: "passfile", again: secretRetry,
			mend: func(w *world) { w.secret("clinic-app", map[string]string{"uri": w.dsn}) },
		}),
		Entry("SQL that the database refuses", refusal{
			spec: withSQL(7, "CREATE TABLE t (id nonsense)"), reason: v1alpha1.ReasonInvalidSQL, message: "nonsense",
		}),
		Entry("SQL that would end the transaction", refusal{
			spec: withSQL(7, "CREATE TABLE t (id int); COMMIT"), reason: v1alpha1.ReasonNotTransactional, message: "",
		}),
		Entry("SQL that cannot run in a transaction", refusal{
			spec: withSQL(7, "VACUUM patients"), reason: v1alpha1.ReasonNotTransactional, message: "",
		}),
		Entry("a version below the stored one", refusal{
			before: atVersion7, version: 6, reason: v1alpha1.ReasonVersionRegression, message: "version 7",
		}),
		Entry("an applied version that was edited", refusal{
			before: atVersion7, spec: func(s *v1alpha1.SyncSchema) {
				s.Spec.Tables[0].Indexes = []v1alpha1.Index{{Name: "i", Columns: []string{"ward"}}}
			},
			reason: v1alpha1.ReasonContentDrift, message: "version 7",
		}),
		Entry("a checkpoint that an applied version did not have", refusal{
			before: atVersion7, spec: func(s *v1alpha1.SyncSchema) {
				more := nameSearch()
				more.Name = "once-more"
				s.Spec.Checkpoints = append(s.Spec.Checkpoints, more)
			},
			reason: v1alpha1.ReasonContentDrift, message: "once-more",
		}),
		Entry("a table that is not as the spec says", refusal{
			spec:   func(s *v1alpha1.SyncSchema) { s.Spec.Tables[0].Columns[2].Type = "integer" },
			reason: v1alpha1.ReasonLayoutMismatch, message: "name",
		}),
		Entry("a column that went away behind our back", refusal{
			before: func(w *world) { atVersion7(w); w.sql(`ALTER TABLE patients DROP COLUMN name_search`) },
			reason: v1alpha1.ReasonLayoutMismatch, message: "name_search",
			mend: func(w *world) { w.sql(`ALTER TABLE patients ADD COLUMN name_search text`) },
		}),
		Entry("an owner of the same database schema", refusal{
			before: func(w *world) {
				atVersion6(w)
				w.sql(`UPDATE sync_barrier_owner SET cluster = 'elsewhere', namespace = 'shop', name = 'mine'`)
			},
			reason: v1alpha1.ReasonConflict, message: "elsewhere/shop/mine",
			mend: func(w *world) { w.annotate(w.schema(), AnnotationTakeOver, "elsewhere/shop/mine") },
		}),
		Entry("an object that has the name of one of its checkpoints", refusal{
			before: func(w *world) {
				other := standaloneOf(w, "clinic-name-search", "of-its-own")
				other.Spec.SchemaRef.Name = "another-schema"
				w.apply(other)
			},
			reason: v1alpha1.ReasonConflict, message: "clinic-name-search",
			mend: func(w *world) { Expect(suite.admin.Delete(w.ctx, w.checkpoint("clinic-name-search"))).To(Succeed()) },
		}),
		Entry("a fence that was taken away", refusal{
			before: func(w *world) { atVersion7(w); w.sql(`ALTER TABLE sync_commits DISABLE TRIGGER ALL`) },
			reason: v1alpha1.ReasonFenceBroken, message: "sync_commits",
			mend: repairFence,
		}),
		Entry("a fence that was taken away before the barrier", refusal{
			before: func(w *world) { atVersion6(w); w.sql(`ALTER TABLE sync_commits DISABLE TRIGGER ALL`) },
			reason: v1alpha1.ReasonFenceBroken, message: "sync_commits",
			mend: repairFence,
		}),
	)

	It("an address is looked at again within seconds, and a database that is not there with a pause that grows", func() {
		w := newWorld()
		w.apply(w.clinic(6))
		refused := func(uri, message string) {
			GinkgoHelper()
			w.secret("clinic-app", map[string]string{"uri": uri})
			object, again := w.pass()
			expectStalled(object.Status.Conditions, v1alpha1.ReasonInvalidSpec, message)
			Expect(again.RequeueAfter).To(Equal(secretRetry))
		}
		refused("postgres:/nowhere", "cannot be read")
		other := strings.Replace(w.dsn, "/"+partsOf(w.dsn)["dbname"], "/"+w.namespace, 1)
		w.clock.advance(statusEvery)
		refused(other, "3D000")
		opened := w.opened.Load()
		refused(other, "3D000")
		Expect(w.opened.Load()).To(Equal(opened), "the server is not asked again before its pause ends")

		w.secret("clinic-app", map[string]string{"uri": w.dsn})
		w.bring()

		w.secret("clinic-app", map[string]string{"uri": other})
		database := pgx.Identifier{w.namespace}.Sanitize()
		w.sql(`CREATE DATABASE ` + database)
		DeferCleanup(func() { w.sql(`DROP DATABASE ` + database + ` WITH (FORCE)`) })
		w.clock.advance(2 * shortestRefusal)
		object, _ := w.pass()
		Expect(readyMessage(object.Status.Conditions)).NotTo(ContainSubstring("3D000"))
		Expect(w.opened.Load()).To(BeNumerically(">", opened))
	})

	It("a database of another owner is neither its migration, nor its fence, nor its gate, until it takes it over", func() {
		w := newWorld()
		atVersion7(w)
		w.sql(`UPDATE sync_barrier_owner SET cluster = 'elsewhere', namespace = 'shop', name = 'mine'`)
		kinds := []string{v1alpha1.ConditionMigrated, v1alpha1.ConditionFenced, v1alpha1.ConditionGateOpen}
		object, _ := w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonConflict, "elsewhere/shop/mine")
		for _, kind := range kinds {
			condition := meta.FindStatusCondition(object.Status.Conditions, kind)
			Expect(condition.Status).To(Equal(metav1.ConditionFalse), kind)
			Expect(condition.Reason).To(Equal(v1alpha1.ReasonConflict), kind)
			Expect(condition.Message).To(ContainSubstring("elsewhere/shop/mine"), kind)
		}
		Expect(*object.Status.GateOpen).To(BeFalse())

		w.annotate(object, AnnotationTakeOver, "elsewhere/shop/mine")
		object = w.bring()
		for _, kind := range kinds {
			Expect(meta.IsStatusConditionTrue(object.Status.Conditions, kind)).To(BeTrue(), kind)
		}
		Expect(*object.Status.GateOpen).To(BeTrue())
	})

	It("a version that is refused closes no gate and touches no Job of the stored one", func() {
		w := newWorld()
		atVersion7(w)
		w.apply(w.clinic(6))
		object, _ := w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonVersionRegression, "")
		Expect(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionMigrated).Reason).To(Equal(v1alpha1.ReasonMigrationPending))
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7))
		child, _ := w.passCheckpoint("clinic-name-search")
		Expect(readyReason(child.Status.Conditions)).To(Equal(v1alpha1.ReasonActivated))
	})
})

func repairFence(w *world) {
	GinkgoHelper()
	store, err := openPostgres(w.ctx, Connection{URL: Secret(w.dsn)})
	Expect(err).NotTo(HaveOccurred())
	defer store.Close()
	_, err = store.RepairFence(w.ctx)
	Expect(err).NotTo(HaveOccurred())
}

// snapshot is what a refusal must not change: structure, version, fence, checkpoints.
func (w *world) snapshot() string {
	GinkgoHelper()
	text := w.text(`
		SELECT string_agg(format('%s.%s %s', table_name, column_name, data_type), E'\n' ORDER BY table_name, ordinal_position)
		  FROM information_schema.columns
		 WHERE table_schema = 'public'
		   AND table_name NOT LIKE 'sync%'`)
	for table, columns := range map[string]string{
		"sync_schema_meta": "schema_version, layouts", "sync_writer_fence": "partition, required_writer_version",
		"sync_backfill_checkpoints": "partition, name, state, owner_epoch", "sync_barrier_history": "version, content_hash",
	} {
		if w.number(`SELECT count(*) FROM pg_tables WHERE tablename = $1`, table) == 1 {
			// The catalog may be there before the first version: empty, and with a fence that refuses nobody.
			text += w.text(`SELECT string_agg(concat_ws(' ', ` + columns + `), E'\n') FROM ` + table + ` t WHERE t::text <> '(*,0)'`)
		}
	}
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (w *world) text(query string) string {
	GinkgoHelper()
	var text *string
	Expect(w.db.QueryRow(w.ctx, query).Scan(&text)).To(Succeed())
	if text == nil {
		return ""
	}
	return "\n" + *text
}

// standaloneOf is a checkpoint that a user wrote for version 7 of the clinic.
func standaloneOf(w *world, object, name string) *v1alpha1.BackfillCheckpoint {
	checkpoint := &v1alpha1.BackfillCheckpoint{}
	checkpoint.Namespace, checkpoint.Name = w.namespace, object
	checkpoint.Spec.SchemaRef.Name = "clinic"
	checkpoint.Spec.Checkpoint = nameSearch()
	checkpoint.Spec.Name = name
	checkpoint.Spec.Backfill.Update.Set = map[string]v1alpha1.Expression{"name_search": "upper(name)"}
	checkpoint.Spec.Verify = nil
	return checkpoint
}

var _ = Describe("One dead database", func() {
	It("slows nobody: its server is dialled once in its pause, and others reconcile meanwhile", func() {
		w := newWorld()
		w.apply(w.clinic(6))
		w.bring()
		w.secret("dead", map[string]string{"uri": "postgres://nobody:secret@127.0.0.1:1/none"})
		var names []string
		for _, name := range []string{"dead-a", "dead-b", "dead-c"} {
			dead := w.clinic(6, func(s *v1alpha1.SyncSchema) {
				s.Name = name
				s.Spec.Database.Postgres.URLFrom.SecretKeyRef.Name = "dead"
			})
			w.apply(dead)
			names = append(names, name)
		}
		opened := w.opened.Load()
		for _, name := range names {
			_, err := w.schemas.Reconcile(w.ctx, request(w.namespace, name))
			Expect(err).NotTo(HaveOccurred())
		}
		Expect(w.opened.Load()).To(Equal(opened+1), "the second and third are told what the first met")
		started := time.Now()
		object, _ := w.pass()
		Expect(time.Since(started)).To(BeNumerically("<", 2*time.Second))
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen))
		var dead v1alpha1.SyncSchema
		Expect(suite.admin.Get(w.ctx, request(w.namespace, "dead-c").NamespacedName, &dead)).To(Succeed())
		checkStatus(w.ctx, &dead)
		expectWaiting(dead.Status.Conditions, v1alpha1.ReasonConnectionLost, "")
		Expect(readyMessage(dead.Status.Conditions)).NotTo(ContainSubstring("secret"))
		Expect(meta.FindStatusCondition(dead.Status.Conditions, v1alpha1.ConditionGateOpen).Reason).To(Equal(v1alpha1.ReasonUnreachable))
	})
})
