package gate

import (
	"context"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"github.com/onsi/gomega/gbytes"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
	"github.com/syncbarrier/syncbarrier/internal/testcluster/kubelet"
)

const (
	image = "registry.example/syncbarrier:test"
	// resync is that of the operator; a hold of twice as long shows that it is no accident.
	resync = 5 * time.Second
	// buildBound bounds the building of both programs on a machine that has built nothing of them yet.
	buildBound = 10 * time.Minute
)

// suite is what all specs share: one cluster, and one operator that works on all of it.
var suite struct {
	cluster *testcluster.Cluster
	admin   client.Client
	gate    string // address of the gate by HTTP
}

func TestGate(t *testing.T) {
	RegisterFailHandler(Fail)
	RunSpecs(t, "Gate")
}

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	SetDefaultEventuallyTimeout(time.Minute)
	SetDefaultEventuallyPollingInterval(100 * time.Millisecond)

	programs := GinkgoT().TempDir()
	build := exec.CommandContext(ctx, "go", "build", "-o", programs, "../../cmd/manager", "../../cmd/syncbarrier")
	output, err := build.CombinedOutput()
	Expect(err).NotTo(HaveOccurred(), string(output))

	suite.cluster = testcluster.Start(GinkgoTB())
	suite.cluster.InstallOperator()
	suite.cluster.StartControllers()
	sleep, err := exec.LookPath("sleep")
	Expect(err).NotTo(HaveOccurred())
	kubelet.Start(GinkgoTB(), suite.cluster.Admin(), kubelet.Images{
		image:             {"/syncbarrier": filepath.Join(programs, "syncbarrier")},
		programImage("6"): {"/program": sleep},
		programImage("7"): {"/program": sleep},
	})
	scheme := runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(scheme)).To(Succeed())
	suite.admin, err = client.New(suite.cluster.Admin(), client.Options{Scheme: scheme})
	Expect(err).NotTo(HaveOccurred())
	startOperator(filepath.Join(programs, "manager"))
}, NodeTimeout(buildBound))

func programImage(version string) string { return "registry.example/clinic:" + version }

// startOperator starts the manager with the rights of its ServiceAccount, for the whole suite.
func startOperator(program string) {
	GinkgoHelper()
	port, err := testcluster.FreePort()
	Expect(err).NotTo(HaveOccurred())
	suite.gate = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	kubeconfig := suite.cluster.Kubeconfig("manager", suite.cluster.ServiceAccount("syncbarrier-system", "syncbarrier-manager"))
	log := gbytes.NewBuffer()
	operator := exec.Command(program, "--kubeconfig", kubeconfig, "--worker-image", image, "--resync", resync.String(), "--leader-elect=false",
		"--health-bind-address=0", "--metrics-bind-address=0", "--gate-bind-address", suite.gate)
	operator.Stderr, operator.Stdout = log, log
	Expect(operator.Start()).To(Succeed())
	exited := make(chan struct{})
	go func() {
		_ = operator.Wait() // its exit code is read below
		close(exited)
	}()
	DeferCleanup(func() {
		Expect(operator.Process.Signal(syscall.SIGTERM)).To(Succeed())
		Eventually(exited, 30*time.Second).Should(BeClosed(), "the operator does not end:\n%s", log.Contents())
		Expect(operator.ProcessState.ExitCode()).To(BeZero(), "the operator's log:\n%s", log.Contents())
	})
}
