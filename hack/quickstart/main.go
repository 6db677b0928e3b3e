// Command quickstart draws the clinic on its way from one version to the next, until its schema is Ready and its rollout has ended: pods, gate,
// fence and backfill, as they are in the cluster now. In a terminal the picture stays in place; elsewhere each change is a line.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// redraw is the pause between two looks.
const redraw = 250 * time.Millisecond

func main() {
	namespace := flag.String("namespace", "shop", "where the clinic is")
	limit := flag.Duration("timeout", 10*time.Minute, "how long it is looked at")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	if err := watch(ctx, *namespace); err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
}

// watch draws until the end.
func watch(ctx context.Context, namespace string) error {
	reader, err := connect()
	if err != nil {
		return err
	}
	screen := newScreen(os.Stdout)
	start := time.Now()
	for {
		now, err := look(ctx, reader, namespace)
		if err != nil {
			return err
		}
		if err := screen.draw(now, time.Since(start)); err != nil {
			return err
		}
		if now.over() {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.New("it did not come to an end; look at it with: kubectl describe syncschema clinic -n " + namespace)
		case <-time.After(redraw):
		}
	}
}

func connect() (client.Client, error) {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, fmt.Errorf("find out how to reach the API server: %w", err)
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	return client.New(config, client.Options{Scheme: scheme})
}

// state is all that the picture shows.
type state struct {
	schema      v1alpha1.SyncSchema
	checkpoints []v1alpha1.BackfillCheckpoint
	deployment  appsv1.Deployment
	pods        []corev1.Pod
}

// look reads the state as it is now.
func look(ctx context.Context, reader client.Client, namespace string) (state, error) {
	var now state
	var checkpoints v1alpha1.BackfillCheckpointList
	var pods corev1.PodList
	key := client.ObjectKey{Namespace: namespace, Name: "clinic"}
	in := client.InNamespace(namespace)
	err := errors.Join(
		reader.Get(ctx, key, &now.schema), reader.Get(ctx, key, &now.deployment),
		reader.List(ctx, &checkpoints, in), reader.List(ctx, &pods, in, client.MatchingLabels{"app": "clinic"}))
	now.checkpoints, now.pods = checkpoints.Items, pods.Items
	if err != nil {
		return now, fmt.Errorf("read the clinic in namespace %s: %w", namespace, err)
	}
	return now, nil
}

// over says that the schema is Ready as its spec wants it, and that the rollout has ended.
func (s state) over() bool {
	ready := meta.IsStatusConditionTrue(s.schema.Status.Conditions, v1alpha1.ConditionReady)
	rollout := s.deployment.Status
	replicas := *s.deployment.Spec.Replicas
	return ready && s.schema.Status.ObservedGeneration == s.schema.Generation &&
		rollout.ObservedGeneration == s.deployment.Generation &&
		rollout.UpdatedReplicas == replicas && rollout.Replicas == replicas && rollout.AvailableReplicas == replicas
}

// lines are the picture, without the time.
func (s state) lines() []string {
	stored := "nothing yet"
	if s.schema.Status.StoredVersion != nil {
		stored = fmt.Sprintf("version %d", *s.schema.Status.StoredVersion)
	}
	fence := "none"
	if fenced := s.schema.Status.MinWriterVersion; fenced != nil && *fenced > 0 {
		fence = fmt.Sprintf("writes of programs below version %d are refused", *fenced)
	}
	picture := []string{"database   " + stored, "fence      " + fence}
	for _, checkpoint := range s.checkpoints {
		picture = append(picture, "backfill   "+progress(checkpoint))
	}
	picture = append(picture, "gate       "+s.gate())
	for _, version := range versions(s.pods) {
		picture = append(picture, fmt.Sprintf("pods of %s  %s", version, podRow(s.pods, version)))
	}
	return picture
}

// versions are those of the pods, the older first.
func versions(pods []corev1.Pod) []string {
	seen := map[string]bool{}
	for _, pod := range pods {
		seen[versionOf(pod)] = true
	}
	return slices.SortedFunc(maps.Keys(seen), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b))
	})
}

// gate is what the gate says of the version that is wanted now.
func (s state) gate() string {
	for _, found := range s.schema.Status.Conditions {
		switch {
		case found.Type != v1alpha1.ConditionGateOpen:
		case found.ObservedGeneration != s.schema.Generation:
			return fmt.Sprintf("version %d was not looked at yet", s.schema.Spec.Version)
		case found.Status == "True":
			return fmt.Sprintf("open for version %d", s.schema.Spec.Version)
		default:
			return fmt.Sprintf("closed for version %d: %s", s.schema.Spec.Version, found.Reason)
		}
	}
	return "not known yet"
}

// progress is the bar of a backfill.
func progress(checkpoint v1alpha1.BackfillCheckpoint) string {
	const width = 30
	if checkpoint.Status.State == v1alpha1.StateActivated {
		return fmt.Sprintf("[%s] %s is activated", strings.Repeat("#", width), checkpoint.Spec.Name)
	}
	rows := checkpoint.Status.Rows
	if rows == nil || rows.Estimated == nil || *rows.Estimated <= 0 {
		return fmt.Sprintf("[%s] %s waits", strings.Repeat(".", width), checkpoint.Spec.Name)
	}
	full := int(min(width, width*rows.Done / *rows.Estimated))
	return fmt.Sprintf("[%s%s] %s, %d rows of about %d", strings.Repeat("#", full), strings.Repeat(".", width-full),
		checkpoint.Spec.Name, rows.Done, *rows.Estimated)
}

// podRow shows the pods of a version: filled is Ready, empty is not.
func podRow(pods []corev1.Pod, version string) string {
	var marks []string
	var serving, held, other int
	for _, pod := range pods {
		if versionOf(pod) != version {
			continue
		}
		switch {
		case pod.DeletionTimestamp != nil:
			other++
			marks = append(marks, "x")
		case is(pod, corev1.PodReady):
			serving++
			marks = append(marks, "●")
		case is(pod, corev1.ContainersReady):
			held++
			marks = append(marks, "◐")
		default:
			other++
			marks = append(marks, "○")
		}
	}
	var said []string
	for _, group := range []struct {
		pods int
		what string
	}{{serving, "serving"}, {held, "running, held by the gate"}, {other, "starting or ending"}} {
		if group.pods > 0 {
			said = append(said, fmt.Sprintf("%d %s", group.pods, group.what))
		}
	}
	return strings.Join(marks, " ") + "   " + strings.Join(said, ", ")
}

func is(pod corev1.Pod, kind corev1.PodConditionType) bool {
	for _, found := range pod.Status.Conditions {
		if found.Type == kind {
			return found.Status == corev1.ConditionTrue
		}
	}
	return false
}

// versionOf is the version of the program in a pod.
func versionOf(pod corev1.Pod) string {
	for _, variable := range pod.Spec.Containers[0].Env {
		if variable.Name == "APP_VERSION" {
			return variable.Value
		}
	}
	return ""
}
