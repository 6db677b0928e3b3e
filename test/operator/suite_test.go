package operator

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
	"github.com/syncbarrier/syncbarrier/internal/testcluster/kubelet"
)

const (
	operatorNamespace = "syncbarrier-system"
	operatorAccount   = "syncbarrier-manager"
	image             = "registry.example/syncbarrier:test"
	ownImage          = "registry.example/backfill:7"
	// buildBound bounds the building of both programs on a machine that has built nothing of them yet.
	buildBound = 10 * time.Minute
)

// suite is what all specs share.
var suite struct {
	cluster *testcluster.Cluster
	kubelet *kubelet.Kubelet
	admin   client.Client
	manager string // the program
}

func TestOperator(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Operator")
}

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(2 * time.Minute)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)
	SetDefaultConsistentlyPollingInterval(100 * time.Millisecond)

	programs := GinkgoT().TempDir()
	build := exec.CommandContext(ctx, "go", "build", "-o", programs, "../../cmd/manager", "../../cmd/syncbarrier")
	output, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(output))
	suite.manager = filepath.Join(programs, "manager")

	suite.cluster = testcluster.Start(GinkgoTB())
	suite.cluster.InstallOperator()
	suite.cluster.StartControllers()
	suite.kubelet = kubelet.Start(GinkgoTB(), suite.cluster.Admin(), kubelet.Images{
		image:    {"/syncbarrier": filepath.Join(programs, "syncbarrier")},
		ownImage: {"/bin/sh": "/bin/sh"},
	})
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	suite.admin, err = client.New(suite.cluster.Admin(), client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
}, NodeTimeout(buildBound))
