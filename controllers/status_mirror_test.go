package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

var _ = Describe("A status that somebody else wrote to", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	condition := func(kind string) metav1.Condition {
		return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: "Restored", Message: "of another time", ObservedGeneration: 1, LastTransitionTime: metav1.Now()}
	}
	// restored is what a backup brings back that was made while something was in the way.
	restored := func() {
		GinkgoHelper()
		s := w.schema()
		s.Status.Conditions = append(s.Status.Conditions, condition(v1alpha1.ConditionStalled), condition(v1alpha1.ConditionReconciling), condition("example.com/Seen"))
		s.Status.Attempts, s.Status.ObservedGeneration = 17, 99
		s.Status.Plan = &v1alpha1.Plan{Hash: "000000000000", Version: 3, RowsRewritten: 5}
		Expect(suite.admin.Status().Update(w.ctx, s, client.FieldOwner("backup"))).To(Succeed())
		c := w.checkpoint(child)
		c.Status.Conditions = append(c.Status.Conditions, condition(v1alpha1.ConditionReconciling))
		rate := int64(5)
		c.Status.Rows.PerSecond, c.Status.HoldReason, c.Status.JobName = &rate, "held", "gone"
		Expect(suite.admin.Status().Update(w.ctx, c, client.FieldOwner("backup"))).To(Succeed())
	}
	statuses := func() (all []any) {
		GinkgoHelper()
		w.pass()
		w.passCheckpoint(child)
		s, c := w.schema().Status, w.checkpoint(child).Status
		s.Conditions, c.Conditions = ownConditions(s.Conditions), ownConditions(c.Conditions)
		return []any{s, c}
	}

	It("is what the database says again after the next pass, but for the conditions of other programs, and is then left alone", func() {
		w.apply(w.clinic(7))
		w.bring()
		right := statuses()
		restored()
		w.clock.advance(DefaultResync)
		Expect(statuses()).To(Equal(right))
		seen := w.schema()
		Expect(meta.FindStatusCondition(seen.Status.Conditions, "example.com/Seen")).NotTo(BeNil())

		writes := 0
		w.schemas.Client, w.checkpoints.Client = refusingStatus(&writes), refusingStatus(&writes)
		w.clock.advance(DefaultResync)
		Expect(statuses()).To(Equal(right))
		Expect(writes).To(BeZero(), "the condition of another program is no reason to write")
	})

	It("has room for the operator's conditions, however many stood there", func() {
		w.apply(w.clinic(7))
		w.bring()
		right := statuses()
		s := w.schema()
		s.Status.Conditions = nil
		for n := range 32 {
			s.Status.Conditions = append(s.Status.Conditions, condition(fmt.Sprintf("example.com/C%d", n)))
		}
		Expect(suite.admin.Status().Update(w.ctx, s, client.FieldOwner("backup"))).To(Succeed())
		w.clock.advance(DefaultResync)
		readies := func(all []any) []string {
			status, _ := all[0].(v1alpha1.SyncSchemaStatus)
			return []string{readyReason(status.Conditions), readyMessage(status.Conditions)}
		}
		Expect(readies(statuses())).To(Equal(readies(right)))
	})

	It("loses a condition that is over also where the records of field managers were taken away", func() {
		w.apply(w.clinic(7))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "")
		patch := client.RawPatch(types.JSONPatchType, []byte(`[{"op":"replace","path":"/metadata/managedFields","value":[{}]}]`))
		Expect(suite.admin.Patch(w.ctx, object, patch)).To(Succeed())
		Expect(w.bring().Status.Conditions).NotTo(ContainElement(HaveField("Type", v1alpha1.ConditionReconciling)))
	})

	It("is written anew where the cluster was restored and counts from an earlier number", func() {
		w.apply(w.clinic(7))
		w.bring()
		right := statuses()
		for _, writer := range []*statusWriter{&w.schemas.statuses, &w.checkpoints.statuses} {
			for uid, last := range writer.last {
				last.version = "9000000000000"
				writer.last[uid] = last
			}
		}
		w.wipe()
		w.clock.advance(DefaultResync)
		now := statuses()
		for i, status := range []any{&v1alpha1.SyncSchemaStatus{}, &v1alpha1.BackfillCheckpointStatus{}} {
			Expect(now[i]).NotTo(Equal(status))
			Expect(describeConditions(conditionsOf(now[i]))).To(Equal(describeConditions(conditionsOf(right[i]))))
		}
	})
})

func conditionsOf(status any) []metav1.Condition {
	switch typed := status.(type) {
	case v1alpha1.SyncSchemaStatus:
		return typed.Conditions
	case v1alpha1.BackfillCheckpointStatus:
		return typed.Conditions
	}
	return nil
}

var _ = Describe("A definition in the cluster that is older than the operator", func() {
	It("keeps back only what it has no field for", func() {
		w := newWorld()
		lacking := []string{"storedVersion", "attempts", "workloads"}
		w.schemas.Client = w.checkLacking(lacking)
		w.apply(w.clinic(7))
		object, _ := w.pass()
		expectWaiting(object.Status.Conditions, v1alpha1.ReasonBackfilling, "")
		Expect(object.Status.StoredVersion).To(BeNil())
		Expect(object.Status.MinWriterVersion).NotTo(BeNil())
	})
})

// checkLacking has the real API server judge statuses by a definition of its own that lacks fields: it is SyncSchema's, under another group.
func (w *world) checkLacking(fields []string) client.Client {
	GinkgoHelper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	Expect(suite.admin.Get(w.ctx, types.NamespacedName{Name: "syncschemas.syncbarrier.dev"}, crd)).To(Succeed())
	older := olderDefinition(crd, fields)
	Expect(suite.admin.Create(w.ctx, older)).To(Succeed())
	DeferCleanup(func(ctx context.Context) { Expect(suite.admin.Delete(ctx, older)).To(Succeed()) })

	under := func(object *unstructured.Unstructured) *unstructured.Unstructured {
		twin := object.DeepCopy()
		twin.SetAPIVersion("older.syncbarrier.dev/v1alpha1")
		return twin
	}
	twin := under(&unstructured.Unstructured{Object: map[string]any{"spec": jsonOf(w.clinic(7).Spec)}})
	twin.SetKind(v1alpha1.KindSyncSchema)
	twin.SetNamespace(w.namespace)
	twin.SetName("clinic")
	Eventually(func() error { return suite.admin.Create(w.ctx, twin.DeepCopy()) }, 90*time.Second, 100*time.Millisecond).Should(Succeed())
	return through(interceptor.Funcs{SubResourceApply: func(
		ctx context.Context, c client.Client, sub string, applied runtime.ApplyConfiguration, options ...client.SubResourceApplyOption,
	) error {
		asked := &unstructured.Unstructured{Object: jsonOf(applied)}
		other := under(asked)
		other.SetUID("")
		if err := suite.admin.SubResource(sub).Apply(ctx, client.ApplyConfigurationFromUnstructured(other), options...); err != nil {
			return err
		}
		return c.SubResource(sub).Apply(ctx, applied, options...)
	}})
}

func olderDefinition(crd *unstructured.Unstructured, without []string) *unstructured.Unstructured {
	GinkgoHelper()
	older := &unstructured.Unstructured{Object: map[string]any{"spec": runtime.DeepCopyJSONValue(crd.Object["spec"])}}
	older.SetGroupVersionKind(crd.GroupVersionKind())
	older.SetName("syncschemas.older.syncbarrier.dev")
	Expect(unstructured.SetNestedField(older.Object, "older.syncbarrier.dev", "spec", "group")).To(Succeed())
	for _, key := range []string{"shortNames", "categories"} {
		unstructured.RemoveNestedField(older.Object, "spec", "names", key)
	}
	versions, _, err := unstructured.NestedSlice(older.Object, "spec", "versions")
	Expect(err).NotTo(HaveOccurred())
	for _, version := range versions {
		fields, ok := version.(map[string]any)
		Expect(ok).To(BeTrue())
		for _, field := range without {
			unstructured.RemoveNestedField(fields, "schema", "openAPIV3Schema", "properties", "status", "properties", field)
		}
		delete(fields, "additionalPrinterColumns")
	}
	Expect(unstructured.SetNestedSlice(older.Object, slices.Clone(versions), "spec", "versions")).To(Succeed())
	return older
}

func jsonOf(value any) (fields map[string]any) {
	GinkgoHelper()
	text, err := json.Marshal(value)
	Expect(err).NotTo(HaveOccurred())
	Expect(json.Unmarshal(text, &fields)).To(Succeed())
	return fields
}
