package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// testPods looks at the pods that the Deployment got in a namespace that lets in restricted ones only, and tries to evict them.
func (e *environment) testPods(t *testing.T) {
	var namespace corev1.Namespace
	if err := e.client.Get(t.Context(), types.NamespacedName{Name: systemNamespace}, &namespace); err != nil {
		t.Fatal(err)
	}
	if level := namespace.Labels["pod-security.kubernetes.io/enforce"]; level != "restricted" {
		t.Errorf("its namespace enforces the pod security standard %q, want restricted", level)
	}
	pods := make([]*corev1.Pod, len(e.pods))
	ready := func(n int, status corev1.ConditionStatus) {
		t.Helper()
		pods[n] = &corev1.Pod{}
		if err := e.client.Get(t.Context(), types.NamespacedName{Namespace: systemNamespace, Name: e.pods[n]}, pods[n]); err != nil {
			t.Fatal(err)
		}
		pods[n].Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
		if err := e.client.Status().Update(t.Context(), pods[n]); err != nil {
			t.Fatal(err)
		}
	}
	healthy := func(want int32) {
		t.Helper()
		var budget policyv1.PodDisruptionBudget
		waitFor(t, "the budget to count the pods", func(ctx context.Context) (bool, error) {
			err := e.client.Get(ctx, types.NamespacedName{Namespace: systemNamespace, Name: "syncbarrier-manager"}, &budget)
			return budget.Status.CurrentHealthy == want && budget.Status.ObservedGeneration == budget.Generation, err
		})
	}
	evict := func(n int) error {
		eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		return e.client.SubResource("eviction").Create(t.Context(), pods[n], eviction, client.DryRunAll)
	}
	ready(0, corev1.ConditionTrue)
	ready(1, corev1.ConditionTrue)
	healthy(2)
	if err := evict(0); err != nil {
		t.Errorf("one of two that are ready cannot be evicted: %v", err)
	}
	ready(1, corev1.ConditionFalse)
	healthy(1)
	if err := evict(0); !apierrors.IsTooManyRequests(err) {
		t.Errorf("the last one that is ready is evicted: %v", err)
	}
	if err := evict(1); err != nil {
		t.Errorf("the one that is not ready keeps a node from being emptied: %v", err)
	}
}

// testMake runs the targets of the Makefile that work on a cluster. It takes the operator away, so it comes last.
func (e *environment) testMake(t *testing.T) {
	const image = "registry.example/tools/syncbarrier:7"
	namespace := e.namespace(t)
	e.database(t, namespace)
	e.apply(t, namespace, 1, "")

	root, err := testcluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	e.kubectl(t, "", "apply", "-f", filepath.Join(root, "config", "namespaced", "cluster_identity.yaml")) // of an installation that goes on
	e.make(t, "undeploy")
	const clusterWide = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations"
	const others = "clusterrole.rbac.authorization.k8s.io/syncbarrier-cluster-identity\nclusterrolebinding.rbac.authorization.k8s.io/syncbarrier-cluster-identity"
	if left := e.kubectl(t, "", "get", clusterWide, "-l", "app.kubernetes.io/name=syncbarrier", "-o", "name"); strings.TrimSpace(left) != others {
		t.Errorf("make undeploy leaves %s, want what is another installation's", left)
	}
	if left := e.kubectl(t, "", "get", "namespace", systemNamespace, "--ignore-not-found", "-o", "name"); left != "" {
		t.Errorf("make undeploy leaves %s", left)
	}
	e.kubectl(t, "", "get", "syncschema", "clinic", "-n", namespace) // it stays

	e.make(t, "dist", "IMG="+image)
	images, err := os.ReadFile(filepath.Join(root, "dist", "images.txt"))
	if err != nil || string(images) != image+"\n" {
		t.Errorf("dist/images.txt has %q, %v, want the one image", images, err)
	}
	e.make(t, "install")
	e.make(t, "deploy", "IMG="+image)
	if again := e.kubectl(t, "", "diff", "--server-side", "-f", "dist/install.yaml"); again != "" {
		t.Errorf("dist/install.yaml is not what make deploy installs: %s", again)
	}
	waitFor(t, "pods of the image", func(context.Context) (bool, error) {
		running, err := e.cluster.Kubectl("", "get", "pods", "-n", systemNamespace, "-o", "jsonpath={.items[*].spec.containers[*].image}")
		return running == image+" "+image, err
	})
	e.make(t, "undeploy") // before somebody needs its webhook

	health := freeAddress(t)
	run := e.makeCommand("run", "IMG="+image, "ARGS=--health-bind-address="+health)
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // make does not pass a signal on
	var log bytes.Buffer
	run.Stdout, run.Stderr = &log, &log
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = syscall.Kill(-run.Process.Pid, syscall.SIGTERM) // it may have ended
		_ = run.Wait()                                      // with make's exit code for a signal
		if t.Failed() {
			t.Logf("make run: %s", log.String())
		}
	}()
	const build = 5 * time.Minute // on a busy machine
	waitWithin(t, build, "make run to be ready", func(ctx context.Context) (bool, error) {
		return status(ctx, "http://"+health+"/readyz") == http.StatusOK, nil
	})
	e.status(t, namespace, "GateOpen")
}

func (e *environment) makeCommand(target string, variables ...string) *exec.Cmd {
	command := exec.Command("make", append([]string{"--no-print-directory", "-C", filepath.Join("..", ".."), target}, variables...)...)
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "MAKE") && !strings.HasPrefix(variable, "MFLAGS") { // of the make that runs the tests
			command.Env = append(command.Env, variable)
		}
	}
	command.Env = append(command.Env, "KUBECONFIG="+e.cluster.AdminKubeconfig(),
		"PATH="+e.cluster.KubectlFolder()+string(os.PathListSeparator)+os.Getenv("PATH"))
	return command
}

func (e *environment) make(t *testing.T, target string, variables ...string) {
	t.Helper()
	if output, err := e.makeCommand(target, variables...).CombinedOutput(); err != nil {
		t.Fatalf("make %s: %v: %s", target, err, output)
	}
}
