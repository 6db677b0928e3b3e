package operator

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

var _ = Describe("A worker at work", func() {
	It("waits in its pod for a database that is away, which costs no retry, no claim and no row", func(ctx context.Context) {
		server := testdb.PostgresServer(GinkgoTB(), testdb.ServerOptions{})
		c := underWayIn(ctx, newClinicAt(ctx, server.Database(GinkgoTB())), counting, "")
		job, pod := c.jobs(ctx)[0], c.runningPod(ctx)
		done := c.rowsDone(ctx)

		By("the database going away")
		Expect(c.db.Close(ctx)).To(Succeed())
		server.Stop()
		c.says(ctx, "False ConnectionLost", "")
		c.becomes(ctx, "False ConnectionLost")
		Eventually(func() string { return suite.kubelet.Logs(pod.UID) }).Should(ContainSubstring(`"reason":"ConnectionLost"`))
		Consistently(func() corev1.PodPhase {
			Expect(suite.admin.Get(ctx, client.ObjectKeyFromObject(&pod), &pod)).To(Succeed())
			return pod.Status.Phase
		}, 5*time.Second).Should(Equal(corev1.PodRunning))

		By("it coming back")
		server.Start()
		var err error
		c.db, err = pgx.Connect(ctx, c.dsn)
		Expect(err).NotTo(HaveOccurred())
		Expect(c.rowsDone(ctx)).To(And(BeNumerically(">=", done), BeNumerically("<", rows)))
		c.theEnd(ctx)
		Expect(c.number(ctx, `SELECT count(*) FROM todos WHERE title_norm = '1'`)).To(BeEquivalentTo(rows), "a row was lost or applied twice")
		Expect(c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`)).To(BeEquivalentTo(1))
		Expect(c.jobs(ctx)).To(HaveLen(1))
		Expect(c.jobs(ctx)[0].UID).To(Equal(job.UID))
		pods := c.pods(ctx)
		Expect(pods).To(HaveLen(1), "the outage was counted against the worker's retries")
		Expect(pods[0].UID).To(Equal(pod.UID))
		Expect(pods[0].Annotations).To(HaveKeyWithValue(batchv1.JobIndexFailureCountAnnotation, "0"))
	}, SpecTimeout(6*time.Minute))

	It("ends with its namespace, from which the Secret went first, and the operator goes on with others", func(ctx context.Context) {
		other := newClinic(ctx)
		c := newClinic(ctx)
		c.startOperatorOf(image, other.namespace)
		c.apply(c.manifest(7, counting, ""))
		Eventually(func() bool { return c.jobsThere(ctx) && c.rowsDone(ctx) > 0 }).Should(BeTrue(), func() string { return c.story(ctx) })
		pod := c.runningPod(ctx)
		Expect(c.schema(ctx).Finalizers).To(BeEmpty())
		Expect(c.checkpoint(ctx).Finalizers).To(BeEmpty())

		Expect(suite.admin.Delete(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: "clinic-app"}})).To(Succeed())
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}
		Expect(suite.admin.Delete(ctx, namespace)).To(Succeed())
		Eventually(func() bool {
			return apierrors.IsNotFound(suite.admin.Get(ctx, client.ObjectKeyFromObject(namespace), namespace))
		}, 2*time.Minute).Should(BeTrue(), func() string { return fmt.Sprintf("%+v\n%s", namespace.Status, c.story(ctx)) })

		By("the worker having ended, and its claim with it")
		Expect(suite.kubelet.Logs(pod.UID)).To(Or(ContainSubstring(`"exitCode":143`), ContainSubstring(`"exitCode":10`)))
		Eventually(func() int64 { return c.number(ctx, `SELECT owner_epoch FROM sync_backfill_checkpoints`) }).
			Should(BeEquivalentTo(2), func() string { return c.story(ctx) })
		done := c.rowsDone(ctx)
		Expect(done).To(BeNumerically("<", rows), "the backfill was over before the namespace was deleted")

		By("the database keeping everything, and the other namespace being served")
		Expect(c.commit(ctx, 6, 2)).To(MatchError(ContainSubstring("writer_fence_rejected")))
		other.apply(other.manifest(6, "", ""))
		other.becomes(ctx, "True GateOpen")
		Expect(c.rowsDone(ctx)).To(Equal(done))
		Expect(c.exited).NotTo(BeClosed())
	}, SpecTimeout(6*time.Minute))
})
