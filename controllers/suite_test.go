package controllers

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// The operator's account, as config/rbac has it.
const (
	operatorNamespace = "syncbarrier-system"
	operatorAccount   = "syncbarrier-manager"
)

// suite is what all specs share: one real API server with the CustomResourceDefinitions and the generated roles.
//
// Reconcilers work as the operator's ServiceAccount, so a right that is missing fails the spec that needs it. What the specs themselves do is
// done by the administrator.
var suite struct {
	cluster *testcluster.Cluster
	scheme  *runtime.Scheme
	// admin reads from the API server and may do everything.
	admin client.Client
	// operator reads from the API server and may do what the generated role says.
	operator client.WithWatch
	// nobody may do nothing.
	nobody client.Client
	// operatorConfig is for a manager that a spec starts.
	operatorConfig *rest.Config
	// identity is the cluster's, as an owner of databases.
	identity string
	// failed says that some spec failed.
	failed bool
}

func TestControllers(t *testing.T) {
	// Caches begin with a list, as they do on API servers that do not stream it: the right to list is for those.
	t.Setenv("KUBE_FEATURE_WatchListClient", "false")
	RegisterFailHandler(Fail)
	RunSpecs(t, "Controllers")
}

var _ = BeforeSuite(func(ctx context.Context) {
	ctrl.SetLogger(GinkgoLogr)
	suite.scheme = runtime.NewScheme()
	Expect(clientgoscheme.AddToScheme(suite.scheme)).To(Succeed())
	Expect(v1alpha1.AddToScheme(suite.scheme)).To(Succeed())

	suite.cluster = testcluster.Start(GinkgoTB())
	suite.cluster.InstallOperator()
	suite.operatorConfig = suite.cluster.ServiceAccount(operatorNamespace, operatorAccount)

	var err error
	suite.admin, err = client.New(suite.cluster.Admin(), client.Options{Scheme: suite.scheme})
	Expect(err).NotTo(HaveOccurred())
	suite.operator, err = client.NewWithWatch(suite.operatorConfig, client.Options{Scheme: suite.scheme})
	Expect(err).NotTo(HaveOccurred())
	suite.nobody, err = client.New(suite.cluster.ServiceAccount("kube-public", nobodyAccount(ctx)), client.Options{Scheme: suite.scheme})
	Expect(err).NotTo(HaveOccurred())
	suite.identity, err = ClusterIdentity(ctx, suite.operator)
	Expect(err).NotTo(HaveOccurred())
}, NodeTimeout(5*time.Minute))

// nobodyAccount makes a ServiceAccount that no role is bound to.
func nobodyAccount(ctx context.Context) string {
	GinkgoHelper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "nobody"}}
	Expect(suite.admin.Create(ctx, account)).To(Succeed())
	return account.Name
}

var _ = ReportAfterEach(func(report SpecReport) {
	suite.failed = suite.failed || report.Failed()
})

// A rule that no spec needs is a right that the operator should not have, or a use of it that is not tested.
var _ = AfterSuite(func() {
	if suite.failed || isSelection() || suite.cluster == nil {
		return
	}
	unused := testcluster.Unused(managerRules(), suite.cluster.Requests(operatorNamespace, operatorAccount))
	Expect(unused).To(BeEmpty(), "rules of config/rbac/role.yaml that no request of the operator needed")
})

// isSelection says that only some of the specs were asked for.
func isSelection() bool {
	config, _ := GinkgoConfiguration()
	return len(config.FocusStrings)+len(config.SkipStrings)+len(config.FocusFiles)+len(config.SkipFiles) > 0 || config.LabelFilter != ""
}

// managerRules returns what the generated ClusterRole allows.
func managerRules() []rbacv1.PolicyRule {
	GinkgoHelper()
	content, err := os.ReadFile("../config/rbac/role.yaml")
	Expect(err).NotTo(HaveOccurred())
	for _, document := range bytes.Split(content, []byte("\n---\n")) {
		var role rbacv1.ClusterRole
		Expect(yaml.Unmarshal(document, &role)).To(Succeed())
		if role.Kind == "ClusterRole" {
			return role.Rules
		}
	}
	Fail("config/rbac/role.yaml has no ClusterRole")
	return nil
}

// newNamespace makes a namespace for one spec, in which pods have to be as restricted as they can be.
func newNamespace(ctx context.Context) string {
	GinkgoHelper()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "spec-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}}
	Expect(suite.admin.Create(ctx, namespace)).To(Succeed())
	return namespace.Name
}

// writerSample is how long a plan looks at the writers: whoever a spec has write holds its lock all that time.
const writerSample = 300 * time.Millisecond

// openDatabase is the Opener of specs: the real backend. cmd/manager has its own, which also knows certificates.
func openDatabase(ctx context.Context, c Connection) (Database, error) {
	database, err := postgres.OpenDatabase(ctx, postgres.Config{
		URL: string(c.URL), Name: c.Name, Pooler: c.Pooler, MaxConnections: PoolConnections, ApplicationName: "syncbarrier-manager",
		WriterSample: writerSample,
	})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", c.Name, err)
	}
	return database, nil
}

// openPostgres opens a Store for a spec alone.
func openPostgres(ctx context.Context, c Connection) (storage.Store, error) {
	return postgres.Open(ctx, postgres.Config{URL: string(c.URL), Schema: c.Schema, WriterSample: writerSample})
}

// wrapping is an Opener whose Stores are wrapped.
func wrapping(wrap func(storage.Store) storage.Store) Opener {
	return func(ctx context.Context, c Connection) (Database, error) {
		database, err := openDatabase(ctx, c)
		return &wrapped{database, wrap}, err
	}
}

type wrapped struct {
	Database
	wrap func(storage.Store) storage.Store
}

func (w *wrapped) Store(ctx context.Context, schema string) (storage.Store, error) {
	store, err := w.Database.Store(ctx, schema)
	if err != nil {
		return nil, err
	}
	return w.wrap(store), nil
}
