package controllers

import (
	"fmt"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// longSQL is SQL of at least so many bytes, whose last statement leaves a mark.
func longSQL(size int, mark string) string {
	var text strings.Builder
	for text.Len() < size {
		text.WriteString("-- a line of a dump; with a semicolon, and more of the kind, as such files have them\nSELECT 1;\n")
	}
	return text.String() + fmt.Sprintf("CREATE TABLE %s (i int);\n", mark)
}

var _ = Describe("Large SQL", func() {
	var w *world
	BeforeEach(func() { w = newWorld() })

	manifest := func(s *v1alpha1.SyncSchema) string {
		GinkgoHelper()
		s.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindSyncSchema))
		s.Status = v1alpha1.SyncSchemaStatus{}
		text, err := yaml.Marshal(s)
		Expect(err).NotTo(HaveOccurred())
		return string(text)
	}

	It("of 300 KB in the object is too much for a client-side apply, runs by a server-side one, and stands in no status", func() {
		s := w.clinic(7, func(s *v1alpha1.SyncSchema) {
			s.Spec.Migrations = []v1alpha1.Migration{{Version: 6, SQL: longSQL(150<<10, "first")}, {Version: 7, SQL: longSQL(150<<10, "second")}}
		})
		output, err := suite.cluster.Kubectl(manifest(s), "apply", "-f", "-")
		Expect(err).To(HaveOccurred(), output)
		Expect(err.Error() + output).To(ContainSubstring("Too long"))
		_, err = suite.cluster.Kubectl(manifest(s), "apply", "--server-side", "--field-manager=argocd", "-f", "-")
		Expect(err).NotTo(HaveOccurred())
		w.bring()
		Expect(w.number(`SELECT count(*) FROM pg_tables WHERE tablename IN ('first', 'second')`)).To(BeEquivalentTo(2))
		for _, object := range []any{w.schema().Status, w.checkpoint(child).Status} {
			status, err := yaml.Marshal(object)
			Expect(err).NotTo(HaveOccurred())
			Expect(string(status)).NotTo(ContainSubstring("a line of a dump"))
			Expect(len(status)).To(BeNumerically("<", 8<<10))
		}
		Expect(w.schema().Status.ContentHash).To(HaveLen(64))
	})

	It("of 1.2 MB is refused in the object with its bound, and runs whole from ConfigMaps", func() {
		s := w.clinic(7, withSQL(7, longSQL(1200<<10, "late")))
		_, err := suite.cluster.Kubectl(manifest(s), "apply", "--server-side", "-f", "-")
		Expect(err).To(MatchError(ContainSubstring("spec.migrations[0].sql: Too long: may not be more than 262144 bytes")))
		var parts []v1alpha1.ConfigMapValue
		for _, name := range []string{"early", "late"} {
			Expect(suite.admin.Create(w.ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Data: map[string]string{"sql": longSQL(600<<10, name)},
			})).To(Succeed())
			parts = append(parts, v1alpha1.ConfigMapValue{ConfigMapKeyRef: v1alpha1.KeyReference{Name: name, Key: "sql"}})
		}
		w.apply(w.clinic(7, func(s *v1alpha1.SyncSchema) { s.Spec.Migrations = []v1alpha1.Migration{{Version: 7, SQLFrom: parts}} }))
		w.bring()
		Expect(w.number(`SELECT count(*) FROM pg_tables WHERE tablename IN ('early', 'late')`)).To(BeEquivalentTo(2), "it was read to its end")
	})
})
