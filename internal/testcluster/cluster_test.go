package testcluster

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestAServiceAccountMayDoWhatItsRoleSaysAndTheAuditLogKnowsWhatItUsed(t *testing.T) {
	cluster := Start(t)
	admin := cluster.Clientset()
	rules := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps", "secrets"}, Verbs: []string{"get", "watch"}}}
	makeReader(t, admin, rules)

	reader := clientOf(t, cluster.ServiceAccount("default", "reader"))
	ctx := t.Context()
	if _, err := reader.CoreV1().ConfigMaps("default").Get(ctx, "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a get that the role allows: %v, want not found", err)
	}
	watch, err := reader.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatalf("a watch that the role allows: %v", err)
	}
	defer watch.Stop()
	if _, err := reader.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a list that no role allows: %v, want forbidden", err)
	}

	requests := cluster.Requests("default", "reader")
	if got := len(requests); got != 3 || requests[0].Name != "absent" || !requests[0].Allowed || requests[2].Allowed {
		t.Errorf("the audit log has %+v, want get and watch, allowed, and list, refused", requests)
	}
	unused := Unused(rules, requests)
	if want := []string{"get core/secrets", "watch core/secrets"}; len(unused) != 2 || unused[0] != want[0] || unused[1] != want[1] {
		t.Errorf("unused are %q, want %q", unused, want)
	}
}

func TestTheAPIServerCanBeFrozenAndKilledAndKeepsWhatItStored(t *testing.T) {
	cluster := Start(t)
	admin := cluster.Admin()
	admin.Timeout = 2 * time.Second
	clients := clientOf(t, admin)
	makeReader(t, clients, nil)
	look := func() error {
		_, err := clients.CoreV1().ServiceAccounts("default").Get(t.Context(), "reader", metav1.GetOptions{})
		return err
	}

	cluster.FreezeAPIServer()
	if err := look(); err == nil || !os.IsTimeout(err) {
		t.Errorf("a frozen API server answers %v, want a timeout", err)
	}
	cluster.ContinueAPIServer()
	if err := look(); err != nil {
		t.Errorf("after it was continued: %v", err)
	}
	cluster.KillAPIServer()
	if err := look(); err == nil || os.IsTimeout(err) {
		t.Errorf("a killed API server answers %v, want a refused connection", err)
	}
	cluster.RestartAPIServer()
	if err := look(); err != nil {
		t.Errorf("after it was restarted: %v", err)
	}
}

func TestTheRealJobControllerMakesThePodsOfAJob(t *testing.T) {
	cluster := Start(t)
	cluster.StartControllers()
	clients := cluster.Clientset()
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "work"},
		Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "work", Image: "none"}},
		}}},
	}
	if _, err := clients.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pods, err := clients.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: "job-name=work"})
	if err != nil {
		t.Fatal(err)
	}
	defer pods.Stop()
	select {
	case event, open := <-pods.ResultChan():
		if pod, isPod := event.Object.(*corev1.Pod); !open || !isPod || pod.OwnerReferences[0].Name != "work" {
			t.Errorf("the first event is %v of %+v, want a pod that the Job owns", event.Type, event.Object)
		}
	case <-ctx.Done():
		t.Errorf("the Job has no pod after a minute; the end of the log of the controllers:\n%s", tailOf(cluster.controllers.log()))
	}
}

func TestNothingIsLeftOfACluster(t *testing.T) {
	var folder string
	var running []*process
	t.Run("a test that leaves its API server frozen", func(t *testing.T) {
		cluster := Start(t)
		folder, running = cluster.folder, []*process{cluster.etcd, cluster.apiServer}
		cluster.FreezeAPIServer()
	})
	if _, err := os.Stat(filepath.Join(folder)); !os.IsNotExist(err) {
		t.Errorf("the folder %s is still there: %v", folder, err)
	}
	for _, program := range running {
		select {
		case <-program.exited:
		default:
			t.Errorf("%s still runs", program.name)
		}
	}
}

// TestTheGuardEndsWhatADyingTestLeft closes the pipe as the kernel does when the
// process that runs the tests is killed.
func TestTheGuardEndsWhatADyingTestLeft(t *testing.T) {
	folder := t.TempDir()
	guard, err := startGuard(folder)
	if err != nil {
		t.Fatal(err)
	}
	left := &process{
		name: "left", program: "sh", args: []string{"-c", "while :; do sleep 1; done", folder}, folder: folder,
		ready: func(context.Context) error { return nil },
	}
	if err := left.start(); err != nil {
		t.Fatal(err)
	}
	if err := guard.dismiss(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-left.exited:
	case <-time.After(stopTimeout):
		t.Errorf("the program still runs; stopping it: %v", left.kill())
	}
}

// makeReader makes a ServiceAccount that may do what the rules say.
func makeReader(t *testing.T, admin *kubernetes.Clientset, rules []rbacv1.PolicyRule) {
	t.Helper()
	ctx := t.Context()
	named := metav1.ObjectMeta{Name: "reader"}
	if _, err := admin.CoreV1().ServiceAccounts("default").Create(ctx, &corev1.ServiceAccount{ObjectMeta: named}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{ObjectMeta: named, Rules: rules}
	if _, err := admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: named,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}},
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}
