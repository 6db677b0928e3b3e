//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/test/gitops"
)

// recipes is where the manifests of docs/gitops.md lie.
const recipes = "examples/clinic/gitops/"

// tool is one that applies what is in Git: by what name, and what it thinks of an object.
type tool struct {
	manager       string
	judge         func(context.Context, *unstructured.Unstructured) (string, error)
	done, failing string // two of its verdicts
}

var (
	// argo waits for each wave. Of our kinds it knows what our script says; of the others kstatus says the same as its own scripts.
	argo = tool{
		manager: "argocd-controller", done: "Healthy", failing: "Degraded",
		judge: func(ctx context.Context, object *unstructured.Unstructured) (string, error) {
			if object.GroupVersionKind().Group == "syncbarrier.dev" {
				health, _, err := gitops.ArgoHealth(ctx, object)
				return health, err
			}
			verdict, err := status.Compute(object)
			if err != nil {
				return "", err
			}
			return map[status.Status]string{status.CurrentStatus: "Healthy", status.FailedStatus: "Degraded"}[verdict.Status], nil
		},
	}
	// flux waits for each Kustomization, by kstatus.
	flux = tool{
		manager: "kustomize-controller", done: status.CurrentStatus.String(), failing: status.FailedStatus.String(),
		judge: func(_ context.Context, object *unstructured.Unstructured) (string, error) {
			verdict, err := status.Compute(object)
			if err != nil {
				return "", err
			}
			return verdict.Status.String(), nil
		},
	}
)

var _ = Describe("The recipes of docs/gitops.md", Label("all"), func() {
	It("1, schema and program in one commit: the rollout waits and ends by itself; a revert is refused and hurts nobody", func(ctx context.Context) {
		c := newClinic(ctx, 3000)
		c.startLoad(ctx, 6)
		commit := c.rendered(ctx, recipes+"together", slowly)
		c.appliedBy(ctx, flux, commit)
		c.settled(ctx, flux, commit)
		Expect(count(c.pods(ctx, programs), "7", corev1.PodReady)).To(Equal(3), "for the tool all was done")
		c.seenOff(ctx, "6")

		By("the commit being reverted")
		before := c.rendered(ctx, "examples/clinic/app/deploy/v6", c.filled())
		c.appliedBy(ctx, flux, before)
		c.becomes(ctx, "False VersionRegression")
		for _, by := range []tool{flux, argo} {
			Expect(c.verdicts(ctx, by, before)).To(HaveKeyWithValue("SyncSchema/clinic", by.failing))
		}
		Eventually(func() int { return count(c.pods(ctx, programs), "6", corev1.ContainersReady) }).Should(Equal(3))
		Expect(count(c.pods(ctx, programs), "6", corev1.PodReady)).To(BeZero())
		Expect(count(c.pods(ctx, programs), "7", corev1.PodReady)).To(Equal(3))

		By("going forward again")
		c.appliedBy(ctx, flux, commit)
		c.settled(ctx, flux, commit)
		c.seenOff(ctx, "6")
		c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204")
		c.holds(ctx, 7)
	}, SpecTimeout(6*time.Minute))

	DescribeTable("2, the schema first: the program comes when its gate is open, and no pod of it ever waits",
		func(ctx context.Context, by tool, steps func(*clinic, context.Context, string) [][]unstructured.Unstructured) {
			c := newClinic(ctx, 3000)
			c.startLoad(ctx, 6)
			halves := steps(c, ctx, slowly)
			Expect(halves).To(HaveLen(2))
			c.appliedBy(ctx, by, halves[0])
			c.settled(ctx, by, halves[0])
			Expect(c.programsOf(ctx, "7")).To(BeEmpty(), "the program came before the tool was done with the schema")
			c.appliedBy(ctx, by, halves[1])
			c.settled(ctx, by, halves[1])
			serving := c.programsOf(ctx, "7")
			Expect(serving).To(HaveLen(3))
			for _, pod := range serving {
				Expect(waited(pod)).To(BeNumerically("<", 10*time.Second), pod.Name)
			}
			c.seenOff(ctx, "6")
			c.allowLoad(ctx, "read 6 200", "write 6 204", "write 6 409", "read 7 200", "write 7 204")
			c.holds(ctx, 7)
		},
		Entry("Argo CD, by sync waves", argo, (*clinic).waves, SpecTimeout(6*time.Minute)),
		Entry("Flux, by dependsOn", flux, (*clinic).dependencies, SpecTimeout(6*time.Minute)),
	)
})

// waves are the objects of recipe 2 as Argo CD applies them: one wave after the other.
func (c *clinic) waves(ctx context.Context, patches string) (ordered [][]unstructured.Unstructured) {
	GinkgoHelper()
	waves := map[int][]unstructured.Unstructured{}
	for _, object := range c.rendered(ctx, recipes+"schema-first", patches) {
		wave, err := strconv.Atoi(cmp.Or(object.GetAnnotations()["argocd.argoproj.io/sync-wave"], "0"))
		Expect(err).NotTo(HaveOccurred())
		waves[wave] = append(waves[wave], object)
	}
	for _, wave := range slices.Sorted(maps.Keys(waves)) {
		ordered = append(ordered, waves[wave])
	}
	return ordered
}

// dependencies are the objects of recipe 2 as Flux applies them: a Kustomization after the one that it depends on.
func (c *clinic) dependencies(ctx context.Context, patches string) [][]unstructured.Unstructured {
	GinkgoHelper()
	text, err := os.ReadFile(filepath.Join(suite.root, recipes, "schema-first/flux.yaml"))
	Expect(err).NotTo(HaveOccurred())
	kustomizations := objectsOf(string(text))
	depends := func(k unstructured.Unstructured) int {
		on, _, err := unstructured.NestedSlice(k.Object, "spec", "dependsOn")
		Expect(err).NotTo(HaveOccurred())
		return len(on)
	}
	slices.SortStableFunc(kustomizations, func(a, b unstructured.Unstructured) int { return depends(a) - depends(b) })
	var ordered [][]unstructured.Unstructured
	for _, kustomization := range kustomizations {
		path, _, err := unstructured.NestedString(kustomization.Object, "spec", "path")
		Expect(err).NotTo(HaveOccurred())
		// A patch without its target is an error to kustomize.
		if strings.HasSuffix(path, "program") {
			patches = ""
		}
		ordered = append(ordered, c.rendered(ctx, strings.TrimPrefix(path, "./"), patches))
	}
	return ordered
}

// rendered are the objects of a folder, in the namespace of the story and with the images that were built.
func (c *clinic) rendered(ctx context.Context, folder, patches string) []unstructured.Unstructured {
	GinkgoHelper()
	if patches != "" {
		patches = "patches:" + patches
	}
	name := c.namespace + "/" + filepath.Base(folder)
	return objectsOf(kubectl(ctx, "", "kustomize", overlay(name, folder, c.namespace, patches)))
}

// objectsOf parses manifests.
func objectsOf(text string) (objects []unstructured.Unstructured) {
	GinkgoHelper()
	for _, document := range strings.Split(text, "\n---\n") {
		var object unstructured.Unstructured
		Expect(yaml.Unmarshal([]byte(document), &object.Object)).To(Succeed())
		objects = append(objects, object)
	}
	return objects
}

// appliedBy applies objects as a tool does: on the server, and what another has set before is the tool's now.
func (c *clinic) appliedBy(ctx context.Context, by tool, objects []unstructured.Unstructured) {
	GinkgoHelper()
	var manifests strings.Builder
	for _, object := range objects {
		text, err := yaml.Marshal(object.Object)
		Expect(err).NotTo(HaveOccurred())
		manifests.WriteString("---\n" + string(text))
	}
	kubectl(ctx, manifests.String(), "apply", "--server-side", "--force-conflicts", "--field-manager="+by.manager, "-f", "-")
}

// settled waits until a tool is done with every object. On the way it may not call one of them failed, nor the schema or the program
// done before the database proves it.
func (c *clinic) settled(ctx context.Context, by tool, objects []unstructured.Unstructured) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		verdicts := c.verdicts(ctx, by, objects)
		// Read after the tool looked: what is proven by now may have been proven then.
		proven := c.number(ctx, `SELECT count(*) FROM sync_backfill_checkpoints WHERE state = 'activated'`) > 0
		for name, verdict := range verdicts {
			if verdict == by.failing {
				StopTrying("the tool calls " + name + " failed").Now()
			}
			if verdict == by.done && !proven && !strings.HasPrefix(name, "Service/") {
				StopTrying("the tool calls " + name + " done before the activation").Now()
			}
			g.Expect(verdict).To(Equal(by.done), name)
		}
	}).WithContext(ctx).Should(Succeed())
}

// verdicts are what a tool thinks of objects, as the API server has them now.
func (c *clinic) verdicts(ctx context.Context, by tool, objects []unstructured.Unstructured) map[string]string {
	GinkgoHelper()
	found := map[string]string{}
	for _, object := range objects {
		var now unstructured.Unstructured
		now.SetGroupVersionKind(object.GroupVersionKind())
		Expect(suite.admin.Get(ctx, client.ObjectKeyFromObject(&object), &now)).To(Succeed())
		verdict, err := by.judge(ctx, &now)
		Expect(err).NotTo(HaveOccurred())
		found[object.GetKind()+"/"+object.GetName()] = verdict
	}
	return found
}

// waited is for how long a pod that serves ran and was only held by its gate, to the second in which conditions are written.
func waited(pod corev1.Pod) time.Duration {
	GinkgoHelper()
	times := map[corev1.PodConditionType]time.Time{}
	for _, condition := range pod.Status.Conditions {
		Expect(condition.Status).To(Equal(corev1.ConditionTrue), "%s of %s", condition.Type, pod.Name)
		times[condition.Type] = condition.LastTransitionTime.Time
	}
	Expect(times).To(And(HaveKey(serveGate), HaveKey(corev1.ContainersReady)))
	return times[serveGate].Sub(times[corev1.ContainersReady])
}
