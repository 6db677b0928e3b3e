package kubelet

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

const (
	// nodeName is the node that every pod is bound to.
	nodeName = "stand-in"
	// syncPeriod is how often mounted Secrets are read again. A kubelet takes a minute.
	syncPeriod = 250 * time.Millisecond
	// writeBound bounds a write to the API server, which may be away for a while in a test that stops it.
	writeBound = 2 * time.Minute
	// retryPause is the pause between two tries of one.
	retryPause = 100 * time.Millisecond
)

// Images says what runs: for each image the programs in it, by their path in the image, as paths of this machine. A pod with another
// image waits with ImagePullBackOff.
type Images map[string]map[string]string

// Kubelet runs the pods of one cluster.
type Kubelet struct {
	t       testing.TB
	clients kubernetes.Interface
	images  Images
	folder  string
	ctx     context.Context

	mu   sync.Mutex
	pods map[types.UID]*pod
	done sync.WaitGroup
}

// Start runs pods until the test ends; then every process is killed.
func Start(t testing.TB, config *rest.Config, images Images) *Kubelet {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	k := &Kubelet{t: t, clients: clients, images: images, folder: t.TempDir(), ctx: ctx, pods: map[types.UID]*pod{}}
	factory := informers.NewSharedInformerFactory(clients, 0)
	informer := factory.Core().V1().Pods().Informer()
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { k.seen(object) },
		UpdateFunc: func(_, object any) { k.seen(object) },
		DeleteFunc: func(object any) { k.gone(object) },
	})
	if err != nil {
		stop()
		t.Fatalf("watch pods: %v", err)
	}
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		stop()
		factory.Shutdown()
		k.done.Wait()
	})
	return k
}

// seen takes a pod that nobody runs yet, and ends one that is being deleted.
func (k *Kubelet) seen(object any) {
	found, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	running, known := k.pods[found.UID]
	switch {
	case known && found.DeletionTimestamp != nil:
		running.end(grace(found))
	case known:
		running.seeGates(found)
	case !known && found.DeletionTimestamp == nil && found.Spec.NodeName == "" && found.Status.Phase == corev1.PodPending:
		ctx, cancel := context.WithCancelCause(k.ctx)
		p := &pod{kubelet: k, Pod: found.DeepCopy(), folder: filepath.Join(k.folder, string(found.UID)), ctx: ctx, cancel: cancel}
		k.pods[found.UID] = p
		k.done.Go(p.run)
	}
}

// gone kills what still runs of a pod that was removed by force.
func (k *Kubelet) gone(object any) {
	if last, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	found, ok := object.(*corev1.Pod)
	if !ok {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if running, known := k.pods[found.UID]; known {
		running.end(0)
	}
}

func grace(found *corev1.Pod) time.Duration {
	if found.DeletionGracePeriodSeconds == nil {
		return 30 * time.Second
	}
	return time.Duration(*found.DeletionGracePeriodSeconds) * time.Second
}

// Logs returns what a pod's containers have printed, also after the pod is gone.
func (k *Kubelet) Logs(uid types.UID) string {
	k.t.Helper()
	logs, err := filepath.Glob(filepath.Join(k.folder, string(uid), "*.log"))
	if err != nil {
		k.t.Fatal(err)
	}
	var all string
	for _, path := range logs {
		content, err := os.ReadFile(path)
		if err != nil {
			k.t.Fatal(err)
		}
		all += string(content)
	}
	return all
}

// AllLogs returns what all containers have printed so far.
func (k *Kubelet) AllLogs() string {
	k.mu.Lock()
	var uids []types.UID
	for uid := range k.pods {
		uids = append(uids, uid)
	}
	k.mu.Unlock()
	var all string
	for _, uid := range uids {
		all += k.Logs(uid)
	}
	return all
}

// write repeats a write until it succeeds, the pod is gone, or the bound is reached. It goes on after the test's end has begun, since how
// a process ended is worth writing down.
func (k *Kubelet) write(what string, do func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(k.ctx, writeBound)
	defer cancel()
	for {
		err := do(ctx)
		if err == nil || apierrors.IsNotFound(err) || k.ctx.Err() != nil {
			return
		}
		if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || ctx.Err() != nil {
			k.t.Errorf("kubelet: %s: %v", what, err)
			return
		}
		if !sleep(ctx, retryPause) {
			return
		}
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// bind gives the pod its node. It returns false if the pod is gone.
func (k *Kubelet) bind(p *corev1.Pod) bool {
	bound := false
	k.write(fmt.Sprintf("bind pod %s", p.Name), func(ctx context.Context) error {
		err := k.clients.CoreV1().Pods(p.Namespace).Bind(ctx, &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: nodeName},
		}, metav1.CreateOptions{})
		bound = err == nil || apierrors.IsConflict(err) // a lost answer: it is bound already
		if bound {
			return nil
		}
		return err
	})
	return bound
}
