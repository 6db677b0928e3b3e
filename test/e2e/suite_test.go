//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// ownNamespace is the operator's.
const ownNamespace = "syncbarrier-system"

// suite is what all stories share.
var suite struct {
	root    string            // of this checkout
	kubectl string            // the program
	images  map[string]string // by name: operator, clinic, postgres
	admin   client.Client
}

func TestStoriesOnARealCluster(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Stories on a real cluster")
}

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(2 * time.Minute)
	EnforceDefaultTimeoutsWhenUsingContexts()
	SetDefaultEventuallyPollingInterval(200 * time.Millisecond)
	var err error
	suite.root, err = testcluster.Root()
	Expect(err).NotTo(HaveOccurred())
	suite.kubectl = findKubectl(ctx)
	suite.images = readImages(filepath.Join(suite.root, "dist", "images", "references"), "operator", "clinic", "postgres")

	kubeconfig := os.Getenv("KUBECONFIG")
	Expect(kubeconfig).NotTo(BeEmpty(), "KUBECONFIG names no cluster: run make e2e, which starts one")
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	Expect(err).NotTo(HaveOccurred())
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	config.QPS = -1
	suite.admin, err = client.New(config, client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	installOperator(ctx)
}, NodeTimeout(6*time.Minute))

// findKubectl prefers the one that was built with the control plane.
func findKubectl(ctx context.Context) string {
	GinkgoHelper()
	output, err := exec.CommandContext(ctx, filepath.Join(suite.root, "hack", "controlplane.sh"), "--find", "kubectl").Output()
	if path, found := strings.CutPrefix(strings.TrimSpace(string(output)), "kubectl="); err == nil && found {
		return path
	}
	path, err := exec.LookPath("kubectl")
	Expect(err).NotTo(HaveOccurred(), "there is no kubectl on PATH")
	return path
}

// readImages reads what hack/images.sh printed: the names that are wanted at least.
func readImages(file string, wanted ...string) map[string]string {
	GinkgoHelper()
	opened, err := os.Open(file)
	Expect(err).NotTo(HaveOccurred(), "the images are not built: run make images")
	defer opened.Close()
	images := map[string]string{}
	lines := bufio.NewScanner(opened)
	for lines.Scan() {
		name, reference, _ := strings.Cut(lines.Text(), "=")
		images[name] = reference
	}
	for _, name := range wanted {
		Expect(images).To(HaveKey(name), "%s is not complete: run make images", file)
	}
	return images
}

// installOperator does what a user does: kubectl apply -k, with the image of this checkout.
func installOperator(ctx context.Context) {
	GinkgoHelper()
	applyOperator(ctx, overlay("operator", "config/default", "", ""))
}

// applyOperator applies the manifests of an operator, and waits until it has taken over from the one before.
func applyOperator(ctx context.Context, folder string) {
	GinkgoHelper()
	kubectl(ctx, "", "apply", "--server-side", "--force-conflicts", "-k", folder)
	kubectl(ctx, "", "rollout", "status", "deployment/syncbarrier-manager", "-n", ownNamespace, "--timeout=180s")
}

// kubectl runs one command with an input and returns its output. It fails the story if the command fails.
func kubectl(ctx context.Context, stdin string, args ...string) string {
	GinkgoHelper()
	output, err := tryKubectl(ctx, stdin, args...)
	Expect(err).NotTo(HaveOccurred())
	return output
}

func tryKubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	command := exec.CommandContext(ctx, suite.kubectl, args...)
	command.Stdin = strings.NewReader(stdin)
	var problems strings.Builder
	command.Stderr = &problems
	output, err := command.Output()
	if err != nil {
		return string(output), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, problems.String())
	}
	return string(output), nil
}

// overlay writes a kustomization of its own over a folder of this checkout and returns its folder. The images are those of `make images`.
func overlay(name, base, namespace, patches string) string {
	GinkgoHelper()
	return overlayWith(suite.images, name, base, namespace, patches)
}

// overlayWith is overlay with other images.
func overlayWith(images map[string]string, name, base, namespace, patches string) string {
	GinkgoHelper()
	folder := filepath.Join(suite.root, "dist", "e2e", name)
	Expect(os.MkdirAll(folder, 0o755)).To(Succeed())
	content := fmt.Sprintf("resources: [%q]\nimages:\n", filepath.Join(strings.Repeat("../", strings.Count(name, "/")+3), base))
	for manifests, image := range map[string]string{"ghcr.io/syncbarrier/syncbarrier": "operator", "clinic": "clinic", "postgres": "postgres"} {
		repository, tag, found := strings.Cut(images[image], ":")
		if !found {
			continue
		}
		content += fmt.Sprintf("- {name: %s, newName: %s, newTag: %q}\n", manifests, repository, tag)
	}
	if namespace != "" {
		content += "namespace: " + namespace + "\n"
	}
	Expect(os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(content+patches), 0o600)).To(Succeed())
	return folder
}
