package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/open-policy-agent/cert-controller/pkg/rotator"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

const (
	serveGate = "syncbarrier.dev/serve-gate"
	startGate = "syncbarrier.dev/start-gate"
)

// TestWebhook has an API server call the program's webhook, with the certificate that the program makes. Its parts come one after the other:
// before a manager runs, while one does, and once it is gone.
func TestWebhook(t *testing.T) {
	e := newEnvironment(t, "config/default")
	e.kubectl(t, kustomize(t, "config/start-gate"), "apply", "-f", "-")
	port := e.routeWebhook(t)
	e.kubectl(t, "", "create", "namespace", "shop")

	t.Run("without a manager only pods that ask for the gate are not created", e.testWebhookAway)
	gateAddress := freeAddress(t)
	m := e.startManager(t, 0, "--leader-election-name=webhook", "--start-gate", "--webhook-bind-address=127.0.0.1:"+strconv.Itoa(port),
		"--gate-bind-address="+gateAddress)
	m.awaitReady(t)
	e.awaitNewBundle(t, "") // the API server knows it a moment after it was written
	t.Run("pods get the gate that they ask for, once, and others stay as they are", e.testWebhookPods)
	t.Run("pods that others make get it too, and those of Jobs do not", e.testWebhookWorkloads)
	t.Run("an approval takes the right to approve, and carries the name of who made it", e.testApprovals)
	second := e.newReplica(t, "webhook")
	t.Run("of two replicas both serve the webhook and the gate, whoever leads", func(t *testing.T) { e.testReplicas(t, port, second) })
	t.Run("a certificate that ends, or is lost, is replaced while the manager goes on", e.testRotation)
	t.Run("a caBundle that was cleared comes back", e.testClearedBundle)
	t.Run("the other replica serves with the new certificate too", func(t *testing.T) { e.testReplicas(t, port, second) })
	second.end(t)
	t.Run("the manager may take a start gate away and change nothing else of a pod", e.testStartGatePolicy)
	t.Run("a pod with the start gate is scheduled once its database is migrated, and Ready later", e.testStartGate)
	t.Run("a bypass and the mode Report open pods, and not the gate of the database", e.testDecisionsAreOfPods)
	t.Run("tools that control rollouts wait for a closed gate and go on with an open one", func(t *testing.T) { e.testRolloutTools(t, gateAddress) })
	t.Run("each right was needed, and no other", e.testWebhookRights)
	t.Run("under other names it is the same", e.testOtherNames)
	select {
	case <-m.exited:
		t.Error("the manager ended meanwhile")
	default:
	}
	if err := m.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := m.awaitExit(t, 15*time.Second); code != 0 {
		t.Errorf("it ended with %d, want 0", code)
	}
	t.Run("where it may be ignored, pods are created without it while no manager runs", e.testIgnored)
	t.Run("a manager whose webhook was taken away is ready for all the rest, and serves it once it is back", e.testTakenAway)
}

func (e *environment) testTakenAway(t *testing.T) {
	port, err := testcluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	configuration := e.kubectl(t, "", "get", "mutatingwebhookconfiguration", "syncbarrier", "-o", "json")
	e.kubectl(t, "", "delete", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-l", "app.kubernetes.io/name=syncbarrier")
	m := e.startManager(t, 1, "--leader-election-name=taken-away", "--webhook-bind-address=127.0.0.1:"+strconv.Itoa(port))
	m.awaitReady(t)
	var back admissionregistrationv1.MutatingWebhookConfiguration
	if err := json.Unmarshal([]byte(configuration), &back); err != nil {
		t.Fatal(err)
	}
	back.ResourceVersion, back.UID, back.ManagedFields = "", "", nil
	number := int32(port)
	fail := admissionregistrationv1.Fail
	for i := range back.Webhooks {
		back.Webhooks[i].ClientConfig.Service.Port = &number
		back.Webhooks[i].ClientConfig.CABundle = nil
		back.Webhooks[i].FailurePolicy = &fail
	}
	if err := e.client.Create(t.Context(), &back); err != nil {
		t.Fatal(err)
	}
	e.awaitNewBundle(t, "")
}

func (e *environment) testIgnored(t *testing.T) {
	if err := e.client.Create(t.Context(), newPod("shop", true)); err == nil {
		t.Error("without the overlay a pod that asks for the gate is created")
	}
	var built struct {
		Webhooks []map[string]any `json:"webhooks"`
	}
	for _, document := range strings.Split(kustomize(t, "config/webhook-ignore"), "\n---\n") {
		if strings.Contains(document, "\nkind: MutatingWebhookConfiguration\n") {
			if err := yaml.Unmarshal([]byte(document), &built); err != nil {
				t.Fatal(err)
			}
		}
	}
	if len(built.Webhooks) != 2 {
		t.Fatalf("the overlay has %d webhooks, want 2", len(built.Webhooks))
	}
	for i, hook := range built.Webhooks {
		e.kubectl(t, "", "patch", "mutatingwebhookconfiguration", "syncbarrier", "--type=json",
			"-p", fmt.Sprintf(`[{"op": "test", "path": "/webhooks/%d/name", "value": %q}, {"op": "replace", "path": "/webhooks/%d/failurePolicy", "value": %q}]`,
				i, hook["name"], i, hook["failurePolicy"]))
	}
	waitFor(t, "a pod to be created without its gate", func(ctx context.Context) (bool, error) {
		pod := newPod("shop", true)
		err := e.client.Create(ctx, pod)
		return err == nil && len(pod.Spec.ReadinessGates) == 0, err
	})
	if _, err := e.cluster.Kubectl("", "annotate", "syncschema", "clinic", "-n", "shop", "--overwrite", "syncbarrier.dev/approve=7@aaaaaaaaaaaa"); err == nil {
		t.Error("a plan was approved while nobody could check who did")
	}
}

// routeWebhook has the API server reach a port of this machine by the names of the Service, since no node routes to it.
func (e *environment) routeWebhook(t *testing.T) int {
	t.Helper()
	port, err := testcluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	e.kubectl(t, "", "delete", "service", "syncbarrier-webhook", "-n", systemNamespace)
	e.kubectl(t, "", "create", "service", "externalname", "syncbarrier-webhook", "-n", systemNamespace, "--external-name=localhost")
	e.routeTo(t, port)
	return port
}

// routeTo has the API server reach the webhook at a port.
func (e *environment) routeTo(t *testing.T, port int) {
	t.Helper()
	for kind, hooks := range map[string]int{"mutatingwebhookconfiguration": 2, "validatingwebhookconfiguration": 1} {
		for i := range hooks {
			e.kubectl(t, "", "patch", kind, "syncbarrier", "--type=json",
				"-p", fmt.Sprintf(`[{"op": "replace", "path": "/webhooks/%d/clientConfig/service/port", "value": %d}]`, i, port))
		}
	}
}

// newPod is a pod that nothing forbids; labelled, it asks for the gate.
func newPod(namespace string, labelled bool, change ...func(*corev1.Pod)) *corev1.Pod {
	yes, no := true, false
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "clinic-", Annotations: map[string]string{"syncbarrier.dev/requires": "clinic=7"}},
		Spec: corev1.PodSpec{
			SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			Containers: []corev1.Container{{Name: "app", Image: "clinic:7", SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			}}},
		},
	}
	if labelled {
		pod.Labels = map[string]string{"syncbarrier.dev/gate": "enabled"}
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

// gatesOf are the readiness gates of a pod, in their order.
func gatesOf(pod *corev1.Pod) (types []string) {
	for _, gate := range pod.Spec.ReadinessGates {
		types = append(types, string(gate.ConditionType))
	}
	return types
}

func (e *environment) testWebhookAway(t *testing.T) {
	for name, pod := range map[string]*corev1.Pod{
		"kube-system":                           newPod("kube-system", true),
		"the manager's namespace":               newPod(systemNamespace, true),
		"an unrelated namespace":                newPod("default", false),
		"a pod beside those that ask for it":    newPod("shop", false),
		"a pod that says no to it in its label": newPod("shop", false, func(p *corev1.Pod) { p.Labels = map[string]string{"syncbarrier.dev/gate": "disabled"} }),
	} {
		if err := e.client.Create(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if len(pod.Spec.ReadinessGates) > 0 {
			t.Errorf("%s: it has %q", name, gatesOf(pod))
		}
	}
	begun := time.Now()
	err := e.client.Create(t.Context(), newPod("shop", true))
	if err == nil || !strings.Contains(err.Error(), "pods.syncbarrier.dev") {
		t.Errorf("a pod that asks for the gate: %v, want an error that names the webhook", err)
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("the refusal took %v", took)
	}
}

func (e *environment) testWebhookPods(t *testing.T) {
	gate := func(types ...string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			for _, conditionType := range types {
				pod.Spec.ReadinessGates = append(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: corev1.PodConditionType(conditionType)})
			}
		}
	}
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want []string
	}{
		"a bare pod that asks":         {newPod("shop", true), []string{serveGate}},
		"a bare pod that does not":     {newPod("shop", false), nil},
		"a gate that is there already": {newPod("shop", true, gate("a.example/b", serveGate)), []string{"a.example/b", serveGate}},
		"gates of others":              {newPod("shop", true, gate("a.example/b")), []string{"a.example/b", serveGate}},
	} {
		if err := e.client.Create(t.Context(), c.pod); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := gatesOf(c.pod); !slices.Equal(got, c.want) {
			t.Errorf("%s has the gates %q, want %q", name, got, c.want)
		}
		if env := c.pod.Spec.Containers[0].Env; (len(env) == 1 && env[0].Value == "clinic=7") != (c.want != nil) {
			t.Errorf("%s has the environment %v", name, env)
		}
	}
	dry := newPod("shop", true, func(p *corev1.Pod) { p.GenerateName, p.Name = "", "dry" })
	if err := e.client.Create(t.Context(), dry, client.DryRunAll); err != nil || len(gatesOf(dry)) != 1 {
		t.Errorf("a dry run gives %q, %v", gatesOf(dry), err)
	}
}

func (e *environment) testWebhookWorkloads(t *testing.T) {
	template := func(labelled bool, app string) corev1.PodTemplateSpec {
		pod := newPod("shop", labelled)
		if pod.Labels == nil {
			pod.Labels = map[string]string{}
		}
		pod.Labels["app"] = app
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec}
	}
	objects := []client.Object{}
	for app, labelled := range map[string]bool{"asks": true, "other": false} {
		objects = append(objects, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: app},
			Spec: appsv1.DeploymentSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}, Template: template(labelled, app),
			},
		})
	}
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "job"}, Spec: batchv1.JobSpec{Template: template(true, "job")}}
	job.Spec.Template.Spec.RestartPolicy = corev1.RestartPolicyNever
	for _, object := range append(objects, job) {
		if err := e.client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	for app, want := range map[string][]string{"asks": {serveGate}, "other": nil, "job": nil} {
		var pods corev1.PodList
		waitFor(t, "the pod of "+app, func(ctx context.Context) (bool, error) {
			err := e.client.List(ctx, &pods, client.InNamespace("shop"), client.MatchingLabels{"app": app})
			return len(pods.Items) == 1, err
		})
		if got := gatesOf(&pods.Items[0]); !slices.Equal(got, want) {
			t.Errorf("the pod of %s has the gates %q, want %q", app, got, want)
		}
	}
}

func (e *environment) testApprovals(t *testing.T) {
	for user, roles := range map[string][]string{"eve": {"syncbarrier-editor"}, "ada": {"syncbarrier-approver"}} {
		for _, role := range roles {
			e.kubectl(t, "", "create", "rolebinding", user, "-n", "shop", "--clusterrole="+role, "--user="+user)
		}
	}
	e.apply(t, "shop", 7, "")
	annotate := func(user string, values ...string) error {
		_, err := e.cluster.Kubectl("", append([]string{"annotate", "syncschema", "clinic", "-n", "shop", "--overwrite", "--as=" + user}, values...)...)
		return err
	}
	names := func() string {
		return e.kubectl(t, "", "get", "syncschema", "clinic", "-n", "shop", "-o",
			`jsonpath={.metadata.annotations.syncbarrier\.dev/approve} {.metadata.annotations.syncbarrier\.dev/approved-by} {.metadata.annotations.syncbarrier\.dev/bypassed-by}`)
	}
	if err := annotate("eve", "syncbarrier.dev/approve=7@0123456789ab"); err == nil || !strings.Contains(err.Error(), "eve may not approve") {
		t.Errorf("who may not approve: %v, want to be told so", err)
	}
	if err := annotate("eve", "note=harmless"); err != nil {
		t.Errorf("who may edit cannot: %v", err)
	}
	if err := annotate("ada", "syncbarrier.dev/approve=7@0123456789ab", "syncbarrier.dev/approved-by=eve"); err != nil {
		t.Errorf("who may approve cannot: %v", err)
	}
	if got := names(); got != "7@0123456789ab ada " {
		t.Errorf("after ada's approval the annotations are %q", got)
	}
	if err := annotate("eve", "syncbarrier.dev/approved-by=eve", "syncbarrier.dev/bypass=2026-01-01T00:00:00Z;why"); err != nil {
		t.Error(err)
	}
	if got := names(); got != "7@0123456789ab ada eve" {
		t.Errorf("after eve's bypass the annotations are %q", got)
	}
}

// bundle is the caBundle of the webhook for pods.
func (e *environment) bundle(ctx context.Context) (string, error) {
	var configuration admissionregistrationv1.MutatingWebhookConfiguration
	err := e.client.Get(ctx, types.NamespacedName{Name: "syncbarrier"}, &configuration)
	if err != nil {
		return "", err
	}
	return string(configuration.Webhooks[0].ClientConfig.CABundle), nil
}

// awaitNewBundle waits until the webhook has a caBundle other than one, and pods are created with it again.
func (e *environment) awaitNewBundle(t *testing.T, other string) {
	t.Helper()
	waitFor(t, "another caBundle", func(ctx context.Context) (bool, error) {
		now, err := e.bundle(ctx)
		return now != "" && now != other, err
	})
	waitFor(t, "pods to be created", func(ctx context.Context) (bool, error) {
		pod := newPod("shop", true)
		err := e.client.Create(ctx, pod)
		return err == nil && slices.Equal(gatesOf(pod), []string{serveGate}), err
	})
}

func (e *environment) testRotation(t *testing.T) {
	was, err := e.bundle(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// One that ends tomorrow.
	usages := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	maker := &rotator.CertRotator{CAName: "syncbarrier-webhook-ca", DNSName: "syncbarrier-webhook." + systemNamespace + ".svc", ExtKeyUsages: &usages}
	begin, end := time.Now().Add(-time.Hour), time.Now().Add(24*time.Hour)
	authority, err := maker.CreateCACert(begin, end)
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := maker.CreateCertPEM(authority, begin, end)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{"data": map[string][]byte{
		"ca.crt": authority.CertPEM, "ca.key": authority.KeyPEM, "tls.crt": certificate, "tls.key": key,
	}})
	if err != nil {
		t.Fatal(err)
	}
	e.kubectl(t, "", "patch", "secret", "syncbarrier-webhook", "-n", systemNamespace, "--type=merge", "-p", string(data))
	waitFor(t, "a new certificate in the Secret", func(ctx context.Context) (bool, error) {
		var secret corev1.Secret
		err := e.client.Get(ctx, types.NamespacedName{Namespace: systemNamespace, Name: "syncbarrier-webhook"}, &secret)
		return len(secret.Data["tls.crt"]) > 0 && string(secret.Data["tls.crt"]) != string(certificate), err
	})
	e.awaitNewBundle(t, was)

	if was, err = e.bundle(t.Context()); err != nil {
		t.Fatal(err)
	}
	e.kubectl(t, "", "patch", "secret", "syncbarrier-webhook", "-n", systemNamespace, "--type=merge", "-p", `{"data": null}`)
	e.awaitNewBundle(t, was)
}

func (e *environment) testClearedBundle(t *testing.T) {
	for _, kind := range []string{"mutatingwebhookconfiguration", "validatingwebhookconfiguration"} {
		e.kubectl(t, "", "patch", kind, "syncbarrier", "--type=json", "-p", `[{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]`)
	}
	e.awaitNewBundle(t, "")
	waitFor(t, "approvals to be checked again", func(ctx context.Context) (bool, error) {
		_, err := e.cluster.Kubectl("", "annotate", "syncschema", "clinic", "-n", "shop", "--overwrite", "--as=eve", "syncbarrier.dev/approve=7@ffffffffffff")
		return err != nil && strings.Contains(err.Error(), "eve may not approve"), nil
	})
}

func (e *environment) testWebhookRights(t *testing.T) {
	e.expectRightsUsed(t, "syncbarrier-manager", "syncbarrier-self", "syncbarrier-metrics-auth") // TestManager looks at these
}

// testOtherNames builds the overlay that a user writes, and has the API server check all of it.
func (e *environment) testOtherNames(t *testing.T) {
	built := overlay(t, "namespace: ops\nnamePrefix: x-\nresources: [CONFIG/start-gate]\ntransformers: [CONFIG/webhook/names]\n")
	for _, left := range []string{"syncbarrier-system", "\n  name: syncbarrier"} {
		if strings.Contains(built, left) {
			t.Errorf("the old name %q is still in it", left)
		}
	}
	// The selector, the policy, and the rights on both configurations.
	for needed, times := range map[string]int{"- ops\n": 1, "'''system:serviceaccount:ops:x-syncbarrier-manager:'' ==": 1, "- x-syncbarrier\n": 2} {
		if got := strings.Count(built, needed); got != times {
			t.Errorf("%q is in it %d times, want %d", needed, got, times)
		}
	}
	e.kubectl(t, "", "create", "namespace", "ops")
	e.kubectl(t, built, "apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")
}

// overlay builds a kustomization of a user's own, in which CONFIG stands for the folder config of this checkout.
func overlay(t *testing.T, kustomization string) string {
	t.Helper()
	root, err := testcluster.Root()
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	relative, err := filepath.Rel(folder, filepath.Join(root, "config"))
	if err != nil {
		t.Fatal(err)
	}
	content := strings.ReplaceAll(kustomization, "CONFIG", relative)
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	fromRoot, err := filepath.Rel(root, folder)
	if err != nil {
		t.Fatal(err)
	}
	return kustomize(t, fromRoot)
}
