package controllers

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

var _ = Describe("A SyncSchema does what a person asks for:", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	suspend := func(s *v1alpha1.SyncSchema) { s.Spec.Suspend = true }

	It("suspend keeps it Ready when there is nothing left to do", func() {
		w.apply(w.clinic(6))
		w.bring()
		w.apply(w.clinic(6, suspend))
		object, _ := w.pass()
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen))
		Expect(meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionSuspended)).To(BeTrue())
	})

	It("suspend stops the barrier, and resume lets it go on", func() {
		w.apply(w.clinic(7, suspend))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSuspended, "no barrier")
		Expect(*object.Status.StoredVersion).To(BeZero())
		child, _ := w.passCheckpoint("clinic-name-search")
		expectWaiting(child.Status.Conditions, v1alpha1.ReasonPreviousVersionOpen, "version 7")
		w.apply(w.clinic(7))
		object = w.bring()
		Expect(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionSuspended)).To(BeNil())
	})

	It("suspend stops Jobs and workers, never the gate, and resume lets the same Job go on", func() {
		w.apply(w.clinic(6))
		w.bring()
		w.apply(w.clinic(7))
		w.pass()
		w.passCheckpoint("clinic-name-search")
		w.apply(w.clinic(7, suspend))
		child, _ := w.passCheckpoint("clinic-name-search")
		expectWaiting(child.Status.Conditions, v1alpha1.ReasonSuspended, "")
		Expect(child.Status.HoldReason).NotTo(BeEmpty())
		Expect(*w.jobs()[0].Spec.Suspend).To(BeTrue())
		Expect(w.number(`SELECT count(*) FROM sync_backfill_definitions WHERE settings::json ->> 'paused' = 'true'`)).To(BeEquivalentTo(1))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSuspended, "name-search")
		Expect(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionGateOpen).Reason).To(Equal(v1alpha1.ReasonBackfilling))

		w.apply(w.clinic(7))
		w.passCheckpoint("clinic-name-search")
		Expect(*w.jobs()[0].Spec.Suspend).To(BeFalse())
		w.bring()
		Expect(w.number(`SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1))
	})

	It("cutover OnApproval waits for the approval of exactly the plan that is shown", func() {
		onApproval := func(s *v1alpha1.SyncSchema) {
			s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverOnApproval}
		}
		w.apply(w.clinic(6))
		w.bring()
		w.sql(`ANALYZE patients`)
		w.apply(w.clinic(7, onApproval))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonApprovalPending, "approve")
		plan := object.Status.Plan
		Expect(plan).NotTo(BeNil())
		Expect(plan.Version).To(BeEquivalentTo(7))
		Expect(plan.RowsBackfilled).To(BeNumerically(">", 0))
		Expect(plan.Locks).NotTo(BeEmpty())
		Expect(plan.ExpectedPauseMilliseconds).To(BeNumerically(">", 0))

		w.annotate(object, AnnotationApprove, "7@000000000000")
		w.clock.advance(statusEvery)
		object, _ = w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonApprovalPending, "another plan")
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(6))

		w.annotate(object, AnnotationApprove, "7@"+plan.Hash)
		object, _ = w.pass()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7))
		Expect(object.Status.Plan).To(BeNil())
	})

	It("cutover OnApproval carries out no other plan than was approved, whatever is decided under the locks", func() {
		onApproval := func(s *v1alpha1.SyncSchema) {
			s.Spec.Strategy = &v1alpha1.Strategy{Cutover: v1alpha1.CutoverOnApproval}
		}
		w.apply(w.clinic(6))
		w.bring()
		w.apply(w.clinic(7, onApproval))
		object, _ := w.pass()
		w.annotate(object, AnnotationApprove, "7@"+object.Status.Plan.Hash)
		// The Job is tried between the look at the approval and the barrier.
		w.schemas.Client = through(interceptor.Funcs{Create: func(
			ctx context.Context, through client.WithWatch, object client.Object, options ...client.CreateOption,
		) error {
			w.sql(`ALTER TABLE patients ADD COLUMN IF NOT EXISTS name_search text`)
			return through.Create(ctx, object, options...)
		}})
		object, again := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSerialization, "was approved")
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(6))
		w.clock.advance(max(again.RequeueAfter, statusEvery))
		object, _ = w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonApprovalPending, "approves another plan")
		w.annotate(object, AnnotationApprove, "7@"+object.Status.Plan.Hash)
		object, _ = w.pass()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7))
	})

	It("take-over names the owner that it takes the database schema from", func() {
		store, err := openPostgres(w.ctx, Connection{URL: Secret(w.dsn)})
		Expect(err).NotTo(HaveOccurred())
		defer store.Close()
		target := storage.Target{Version: 5, Owner: storage.Owner{Cluster: "elsewhere", Namespace: "shop", Name: "clinic"}}
		_, err = store.EnsureSchema(w.ctx, target, storage.Attempt{Number: 1})
		Expect(err).NotTo(HaveOccurred())

		w.apply(w.clinic(6))
		object, _ := w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonConflict, "elsewhere/shop/clinic")
		w.annotate(object, AnnotationTakeOver, "elsewhere/shop/other")
		object, _ = w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonConflict, "elsewhere/shop/clinic")
		w.annotate(object, AnnotationTakeOver, "elsewhere/shop/clinic")
		object = w.bring()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(6))
		Expect(w.events.of("TakenOver")).To(Equal(1))
		Expect(w.number(`SELECT count(*) FROM sync_barrier_owner WHERE cluster = $1`, suite.identity)).To(BeEquivalentTo(1))
	})

	It("a command line of the same namespace and name is taken over from without a word", func() {
		store, err := openPostgres(w.ctx, Connection{URL: Secret(w.dsn)})
		Expect(err).NotTo(HaveOccurred())
		defer store.Close()
		target := storage.Target{Version: 5, Owner: storage.Owner{Namespace: w.namespace, Name: "clinic"}}
		_, err = store.EnsureSchema(w.ctx, target, storage.Attempt{Number: 1})
		Expect(err).NotTo(HaveOccurred())
		w.apply(w.clinic(6))
		Expect(*w.bring().Status.StoredVersion).To(BeEquivalentTo(6))
	})

	It("retry makes an attempt at once instead of after its pause", func() {
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Lock = &v1alpha1.Lock{TimeoutMilliseconds: 100} }))
		release := w.hold()
		object, again := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonLockTimeout, "")
		Expect(again.RequeueAfter).To(BeNumerically(">", 0))
		release()
		object, _ = w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonLockTimeout, "")
		Expect(object.Status.Attempts).To(BeEquivalentTo(1), "the pause is not over")
		w.annotate(object, AnnotationRetry, time.Now().UTC().Format(time.RFC3339))
		object, _ = w.pass()
		Expect(*object.Status.StoredVersion).To(BeEquivalentTo(7))
	})

	It("SQL that fails under the locks is not run again before a resync, or before somebody asks", func() {
		w.sql(`CREATE SEQUENCE tries`) // what it counts survives a rollback
		tries := func() int64 { return w.number(`SELECT last_value FROM tries`) }
		w.apply(w.clinic(7, withSQL(7, "SELECT nextval('tries'); SELECT nonsense")))
		w.pass()
		Expect(tries()).To(BeEquivalentTo(1))
		for range 3 {
			w.clock.advance(time.Minute)
			object, again := w.pass()
			expectStalled(object.Status.Conditions, v1alpha1.ReasonInvalidSQL, "nonsense")
			Expect(again.RequeueAfter).To(BeNumerically("<", DefaultResync))
			Expect(tries()).To(BeEquivalentTo(1))
		}
		w.clock.advance(2 * time.Minute)
		w.pass()
		Expect(tries()).To(BeEquivalentTo(2))
		w.annotate(w.schema(), AnnotationRetry, time.Now().UTC().Format(time.RFC3339))
		w.pass()
		Expect(tries()).To(BeEquivalentTo(3))

		failed := attemptState{}.refused(errors.New("late"), time.Minute, w.clock.Now(), DefaultResync)
		Expect(failed.due).To(Equal(w.clock.Now().Add(20*time.Minute)), "what holds writers up for a minute rests for twenty")
	})

	It("whatever a barrier is refused for under its locks is not tried again by an event, but at once with another spec", func() {
		// The SQL counts how often the locks were had; what makes the attempt fail comes after it.
		w.sql(`CREATE SEQUENCE tries`)
		w.sql(`UPDATE patients SET name = 'same'`)
		tries := func() int64 { return w.number(`SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM tries`) }
		refused := func(reason, message, sql string, changes ...func(s *v1alpha1.SyncSchema)) {
			GinkgoHelper()
			before := tries()
			w.apply(w.clinic(7, append([]func(s *v1alpha1.SyncSchema){withSQL(7, "SELECT nextval('tries');"+sql)}, changes...)...))
			for range 3 {
				object, again := w.pass()
				expectStalled(object.Status.Conditions, reason, message)
				Expect(again.RequeueAfter).To(BeNumerically("~", DefaultResync, time.Minute))
				w.clock.advance(statusEvery)
			}
			Expect(tries()).To(Equal(before+1), reason)
		}
		refused(v1alpha1.ReasonInvalidSpec, "same values", `CREATE TABLE other (i int)`, func(s *v1alpha1.SyncSchema) {
			s.Spec.Tables[0].Indexes = []v1alpha1.Index{{Name: "patients_name", Columns: []string{"name"}, Unique: true}}
		})
		refused(v1alpha1.ReasonLayoutMismatch, "name_search", `ALTER TABLE patients DROP COLUMN name_search`)
		refused(v1alpha1.ReasonFenceBroken, "is disabled", `ALTER TABLE sync_commits DISABLE TRIGGER ALL`)
		before := tries()
		w.annotate(w.schema(), AnnotationRetry, time.Now().UTC().Format(time.RFC3339))
		w.pass()
		Expect(tries()).To(Equal(before+1), "somebody asked")
		w.apply(w.clinic(7))
		w.bring()
	})

	It("a barrier that its time limit ended rests for twenty times as long as it held its locks, and says what to do", func() {
		slow := func(s *v1alpha1.SyncSchema) {
			withSQL(7, "SELECT pg_sleep(60)")(s)
			s.Spec.Lock = &v1alpha1.Lock{StatementTimeoutSeconds: 1}
		}
		w.apply(w.clinic(7, slow))
		object, again := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonCancelled, "raise lock.statementTimeoutSeconds")
		Expect(again.RequeueAfter).To(BeNumerically(">=", 20*time.Second))
		w.apply(w.clinic(7))
		w.bring()

		pass := &schemaPass{object: w.schema(), now: w.clock.Now(), attempt: attemptState{next: storage.Attempt{Number: 1}}}
		pass.attempt = pass.attempt.failed(storage.Refuse(storage.CodeCancelled, "late"), 5*time.Minute, 5*time.Minute, pass.now, 0)
		v := reconciling(0, v1alpha1.ReasonCancelled, "late")
		pass.rest(v)
		Expect(v.after).To(Equal(100 * time.Minute))
		Expect(v.message).To(ContainSubstring("not tried again before " + pass.now.Add(100*time.Minute).UTC().Format(time.RFC3339)))
	})

	It("live settings of an entry reach its workers, and another number of workers gets another Job", func() {
		w.apply(w.clinic(7))
		w.pass()
		w.passCheckpoint("clinic-name-search")
		first := w.jobs()[0].Name
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Checkpoints[0].Backfill.BatchRows = 25
			s.Spec.Checkpoints[0].Backfill.MaxRowsPerSecond = 5000
			s.Spec.Checkpoints[0].Backfill.Parallelism = 3
		}))
		w.pass()
		w.passCheckpoint("clinic-name-search")
		Expect(w.number(`SELECT (settings::json ->> 'batchRows')::bigint FROM sync_backfill_definitions`)).To(BeEquivalentTo(25))
		jobs := w.jobs()
		Expect(jobs).To(HaveLen(1))
		Expect(jobs[0].Name).NotTo(Equal(first))
		Expect(*jobs[0].Spec.Completions).To(BeEquivalentTo(3))

		w.apply(w.clinic(7)) // back to the defaults: a zero is a value too
		w.pass()
		Expect(w.checkpoint("clinic-name-search").Spec.Backfill.MaxRowsPerSecond).To(BeZero())
		w.bring()
	})
})

var _ = Describe("A SyncSchema waits", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	It("for a lock, names who holds it, counts, and goes on when it is free", func() {
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Lock = &v1alpha1.Lock{TimeoutMilliseconds: 100} }))
		release := w.hold()
		var last time.Duration
		for attempt := 1; attempt <= 3; attempt++ {
			object, again := w.pass()
			expectWaiting(object.Status.Conditions, v1alpha1.ReasonLockTimeout, "pid")
			Expect(object.Status.Attempts).To(BeEquivalentTo(attempt))
			Expect(object.Status.Blockers).To(HaveLen(1))
			Expect(object.Status.Blockers[0].PID).To(BeNumerically(">", 0))
			Expect(*object.Status.StoredVersion).To(BeZero())
			last = again.RequeueAfter
			Expect(last).To(BeNumerically(">=", 4*100*time.Millisecond))
			w.clock.advance(max(last, statusEvery))
		}
		release()
		object := w.bring()
		Expect(object.Status.Attempts).To(BeEquivalentTo(3), "as the database recorded them")
		Expect(object.Status.Blockers).To(BeEmpty())
	})

	It("for a Secret, a key and a value in it, and sees them as soon as they are there", func() {
		Expect(suite.admin.Delete(w.ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "clinic-app"}})).To(Succeed())
		w.apply(w.clinic(6))
		object, again := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSecretMissing, `no Secret "clinic-app"`)
		Expect(again.RequeueAfter).To(Equal(secretRetry))
		Expect(meta.FindStatusCondition(object.Status.Conditions, v1alpha1.ConditionGateOpen).Status).To(Equal(metav1.ConditionUnknown))
		w.secret("clinic-app", map[string]string{"url": w.dsn})
		w.clock.advance(statusEvery)
		object, _ = w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSecretMissing, `no key "uri"`)
		w.secret("clinic-app", map[string]string{"uri": "\n"})
		w.clock.advance(statusEvery)
		object, _ = w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSecretMissing, "is empty")
		w.secret("clinic-app", map[string]string{"uri": w.dsn + "\n"})
		w.bring()
	})

	It("for a ConfigMap with SQL, and an edit after the apply is ContentDrift that closes no gate", func() {
		withSQL := func(s *v1alpha1.SyncSchema) {
			part := func(key string) v1alpha1.ConfigMapValue {
				return v1alpha1.ConfigMapValue{ConfigMapKeyRef: v1alpha1.KeyReference{Name: "sql", Key: key}}
			}
			s.Spec.Migrations = []v1alpha1.Migration{{Version: 6, SQLFrom: []v1alpha1.ConfigMapValue{part("1.sql"), part("2.sql")}}}
		}
		w.apply(w.clinic(6, withSQL))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonSecretMissing, `no ConfigMap "sql"`)
		config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "sql"}}
		config.BinaryData = map[string][]byte{"1.sql": {0xff, 0xfe, 'C', 0}} // what kubectl makes of a file in UTF-16
		w.apply(config)
		w.clock.advance(statusEvery)
		object, _ = w.pass()
		Expect(readyMessage(object.Status.Conditions)).To(ContainSubstring(`key "1.sql" of ConfigMap "sql" stands in binaryData`))
		config.BinaryData = nil
		config.Data = map[string]string{"1.sql": "CREATE TABLE wards (ward text);", "2.sql": "INSERT INTO wards VALUES ('a');"}
		w.apply(config)
		w.bring()
		Expect(w.number(`SELECT count(*) FROM wards`)).To(BeEquivalentTo(1))
		config.Data["2.sql"] = "INSERT INTO wards VALUES ('b');"
		w.apply(config)
		object, _ = w.pass()
		expectStalled(object.Status.Conditions, v1alpha1.ReasonContentDrift, "version 6")
		Expect(*object.Status.GateOpen).To(BeTrue())
		Expect(w.number(`SELECT count(*) FROM wards`)).To(BeEquivalentTo(1))
	})

	It("for right credentials, and takes rotated ones without a restart", func() {
		parts := partsOf(testdb.Role(GinkgoTB(), w.dsn, "rotated"))
		role := pgx.Identifier{parts["username"]}.Sanitize()
		w.sql(`ALTER ROLE ` + role + ` SUPERUSER`)
		right := parts["password"]
		parts["password"] = "wrong p@ss/w#rd%"
		w.secret("clinic-parts", parts)
		w.apply(w.clinic(6, withParts))
		object, again := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonAuthenticationFailed, "")
		Expect(again.RequeueAfter).To(BeNumerically("<=", secretRetry))
		Expect(readyMessage(object.Status.Conditions)).NotTo(ContainSubstring("p@ss"))
		parts["password"] = right
		w.secret("clinic-parts", parts)
		w.bring()

		w.sql(`ALTER ROLE ` + role + ` PASSWORD 'p@ss/w#rd%?sslmode=disable'`)
		parts["password"] = "p@ss/w#rd%?sslmode=disable"
		w.secret("clinic-parts", parts)
		w.clock.advance(DefaultResync)
		object, _ = w.pass()
		Expect(readyReason(object.Status.Conditions)).To(Equal(v1alpha1.ReasonGateOpen), describeConditions(object.Status.Conditions))
	})

	It("while the server takes no writes, and goes on afterwards", func() {
		w.apply(w.clinic(6))
		w.bring()
		w.sql(`ALTER DATABASE ` + databaseOf(w.dsn) + ` SET default_transaction_read_only = on`)
		w.newOperator()
		w.apply(w.clinic(7))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonReadOnly, "")
		w.sql(`SET default_transaction_read_only = off`)
		w.sql(`ALTER DATABASE ` + databaseOf(w.dsn) + ` RESET default_transaction_read_only`)
		w.clock.advance(time.Minute)
		w.bring()
	})
})
