package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

const (
	benchPods   = 100
	benchRounds = 5
	// benchAtOnce is how many pods are written at a time by the plain writes, as many as the manager writes at a time.
	benchAtOnce = 20
)

// BenchmarkOpeningPods is how long pods wait after the commit that opens their gate: from there to the condition True of the 99th of 100, as a
// watch shows it, beside as many plain writes of a condition. Its figures are in docs/performance.md.
//
//	go test ./cmd/manager -run '^$' -bench OpeningPods -benchtime 1x -timeout 30m
func BenchmarkOpeningPods(b *testing.B) {
	e := newEnvironment(b, "config/no-webhook")
	e.startManager(b, 0, "--leader-election-name=opening")
	for b.Loop() {
		var opened, plain []time.Duration
		for range benchRounds {
			o, p := e.openPods(b)
			opened, plain = append(opened, o), append(plain, p)
		}
		slices.Sort(opened)
		slices.Sort(plain)
		fmt.Printf("%-86s | %v (%v to %v); plain writes %v | <= 1 s\n", "the commit that opens the gate to the condition True, the 99th of 100 pods",
			opened[benchRounds/2], opened[0], opened[benchRounds-1], plain[benchRounds/2])
		b.ReportMetric(opened[benchRounds/2].Seconds(), "median-s")
		b.ReportMetric(0, "ns/op")
	}
}

// openPods makes pods of version 2 that wait, has the database brought to it, and measures. plain is what as many writes take for who only writes.
func (e *environment) openPods(b *testing.B) (opened, plain time.Duration) {
	b.Helper()
	namespace := e.namespace(b)
	url := testdb.Postgres(b)
	e.secret(b, namespace, "clinic", url)
	if _, err := open(b, url).ExecContext(b.Context(), `CREATE TABLE todos (id bigint PRIMARY KEY, title text NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	e.apply(b, namespace, 1, "")
	e.status(b, namespace, "GateOpen")
	for range benchPods {
		pod := newPod(namespace, true, func(p *corev1.Pod) {
			p.Annotations["syncbarrier.dev/requires"] = "clinic=2"
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: serveGate}}
		})
		if err := e.client.Create(b.Context(), pod); err != nil {
			b.Fatal(err)
		}
	}
	var pods corev1.PodList
	waitFor(b, "the pods to wait", func(ctx context.Context) (bool, error) {
		err := e.client.List(ctx, &pods, client.InNamespace(namespace))
		waiting := slices.DeleteFunc(slices.Clone(pods.Items), func(p corev1.Pod) bool { return gateStatus(&p) != corev1.ConditionFalse })
		return len(waiting) == benchPods, err
	})
	plain = e.writePlainly(b, pods.Items)
	seen := e.watchOpened(b, namespace)
	target := e.versionTwo(b, namespace)
	store, err := postgres.Open(b.Context(), postgres.Config{URL: url})
	if err != nil {
		b.Fatal(err)
	}
	defer store.Close()
	if _, err := store.EnsureSchema(b.Context(), target, storage.Attempt{Number: 1}); err != nil {
		b.Fatal(err)
	}
	committed := time.Now()
	var took []time.Duration
	for range benchPods {
		select {
		case at := <-seen:
			took = append(took, at.Sub(committed))
		case <-time.After(patience):
			b.Fatalf("%d of %d pods were opened within %v", len(took), benchPods, patience)
		}
	}
	slices.Sort(took)
	return took[benchPods*99/100-1].Round(time.Millisecond), plain.Round(time.Millisecond)
}

// versionTwo is version 2 of the SyncSchema clinic, as its own cluster would apply it.
func (e *environment) versionTwo(b *testing.B, namespace string) storage.Target {
	b.Helper()
	file, err := manifest.Parse(strings.NewReader(fmt.Sprintf(`
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic, namespace: %s}
spec:
  version: 2
  tables:
  - {name: todos, columns: [{name: id, type: integer}, {name: title, type: string}], primaryKey: [id]}
`, namespace)), "clinic")
	if err != nil {
		b.Fatal(err)
	}
	target, _, err := manifest.Convert(file)
	if err != nil {
		b.Fatal(err)
	}
	var system corev1.Namespace
	if err := e.client.Get(b.Context(), types.NamespacedName{Name: "kube-system"}, &system); err != nil {
		b.Fatal(err)
	}
	target.Owner.Cluster = string(system.UID)
	return target
}

func gateStatus(pod *corev1.Pod) corev1.ConditionStatus {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == serveGate {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}

// watchOpened gives the times at which pods of a namespace are seen with the condition True, each once.
func (e *environment) watchOpened(b *testing.B, namespace string) <-chan time.Time {
	b.Helper()
	admin, err := kubernetes.NewForConfig(e.cluster.Admin())
	if err != nil {
		b.Fatal(err)
	}
	watching, err := admin.CoreV1().Pods(namespace).Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(watching.Stop)
	seen := make(chan time.Time, benchPods)
	go func() {
		once := map[types.UID]bool{}
		for change := range watching.ResultChan() {
			pod, ok := change.Object.(*corev1.Pod)
			if ok && !once[pod.UID] && gateStatus(pod) == corev1.ConditionTrue {
				once[pod.UID] = true
				seen <- time.Now()
			}
		}
	}()
	return seen
}

// writePlainly writes a condition that nobody looks at into each pod.
func (e *environment) writePlainly(b *testing.B, pods []corev1.Pod) time.Duration {
	b.Helper()
	patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"other.example/plain","status":"True"}]}}`))
	places := make(chan struct{}, benchAtOnce)
	var all sync.WaitGroup
	started := time.Now()
	for i := range pods {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if err := e.client.Status().Patch(b.Context(), pods[i].DeepCopy(), patch); err != nil {
				b.Errorf("write plainly: %v", err)
			}
		})
	}
	all.Wait()
	return time.Since(started)
}
