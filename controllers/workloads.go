package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
)

// +kubebuilder:rbac:groups=apps,resources=deployments;replicasets;statefulsets;daemonsets,verbs=get
// +kubebuilder:rbac:groups=argoproj.io,resources=rollouts,verbs=get

// Workloads says which workload made a pod and how that rolls out. It reads from the API server and remembers for a while; there is no watch on
// workloads.
type Workloads struct {
	// Live reads from the API server.
	Live  client.Reader
	Clock clock.Clock // nil: the real one

	mu      sync.Mutex
	makers  map[types.UID]keptOwner
	details map[types.UID]keptWorkload
}

const (
	makerKept   = time.Minute     // who made a ReplicaSet
	detailsKept = 5 * time.Second // how many replicas a workload has, and how it rolls out
)

type keptOwner struct {
	owner *metav1.OwnerReference // nil: nobody
	at    time.Time
}

type keptWorkload struct {
	workload workload
	at       time.Time
}

// workload is what made a pod.
type workload struct {
	kind, name string
	uid        types.UID
	replicas   int32 // wanted; 0: none, or not known
	hold       v1alpha1.WorkloadHold
	why        string // of a hold that is not Lossless, in words
	atOnce     int32  // pods of a new version that a rollout has while none of them is Ready; 0: not known
	deadline   int32  // progressDeadlineSeconds; 0: none
	object     client.Object
	unread     error // why it could not be read, so that nothing but its name is known; nil: it was
}

// of gives the workload that made a pod. A pod that nobody made is its own.
//
// Errors: those of the API server, with what the workload is called. An object that is gone is none.
func (w *Workloads) of(ctx context.Context, pod *corev1.Pod) (workload, error) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil {
		return workload{kind: "Pod", name: pod.Name, uid: pod.UID, object: pod}, nil
	}
	if owner.Kind == "ReplicaSet" && isGroup(owner.APIVersion, "apps") {
		above, err := w.makerOf(ctx, pod.Namespace, owner)
		if err != nil {
			return unread(owner, err), fmt.Errorf("read ReplicaSet %s: %w", owner.Name, err)
		}
		if above != nil {
			owner = above
		}
	}
	return w.detailsOf(ctx, pod.Namespace, owner)
}

// unread is what is known of a workload that could not be read.
func unread(owner *metav1.OwnerReference, err error) workload {
	return workload{kind: owner.Kind, name: owner.Name, uid: owner.UID, unread: err}
}

func isGroup(apiVersion, group string) bool {
	parsed, err := schema.ParseGroupVersion(apiVersion)
	return err == nil && parsed.Group == group
}

// makerOf gives what owns a ReplicaSet, nil for nothing. Errors: those of the API server.
func (w *Workloads) makerOf(ctx context.Context, namespace string, replicaSet *metav1.OwnerReference) (*metav1.OwnerReference, error) {
	now := clock.Or(w.Clock).Now()
	w.mu.Lock()
	kept, ok := w.makers[replicaSet.UID]
	w.mu.Unlock()
	if ok && now.Sub(kept.at) < makerKept {
		return kept.owner, nil
	}
	found := &metav1.PartialObjectMetadata{}
	found.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
	err := w.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: replicaSet.Name}, found)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	kept = keptOwner{at: now}
	if err == nil && found.UID == replicaSet.UID {
		kept.owner = metav1.GetControllerOf(found)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.makers == nil {
		w.makers = map[types.UID]keptOwner{}
	}
	for uid, other := range w.makers {
		if now.Sub(other.at) > makerKept {
			delete(w.makers, uid)
		}
	}
	w.makers[replicaSet.UID] = kept
	return kept.owner, nil
}

// detailsOf reads a workload.
func (w *Workloads) detailsOf(ctx context.Context, namespace string, owner *metav1.OwnerReference) (workload, error) {
	now := clock.Or(w.Clock).Now()
	w.mu.Lock()
	kept, ok := w.details[owner.UID]
	w.mu.Unlock()
	if ok && now.Sub(kept.at) < detailsKept {
		return kept.workload, nil
	}
	out, err := w.readWorkload(ctx, namespace, owner)
	if err != nil {
		return unread(owner, err), fmt.Errorf("read %s %s: %w", owner.Kind, owner.Name, err)
	}
	out.kind, out.name, out.uid = owner.Kind, owner.Name, owner.UID
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.details == nil {
		w.details = map[types.UID]keptWorkload{}
	}
	for uid, other := range w.details {
		if now.Sub(other.at) > detailsKept {
			delete(w.details, uid)
		}
	}
	w.details[owner.UID] = keptWorkload{workload: out, at: now}
	return out, nil
}

// readWorkload reads how a workload rolls out, if its kind is one that we know.
func (w *Workloads) readWorkload(ctx context.Context, namespace string, owner *metav1.OwnerReference) (workload, error) {
	object := newWorkloadObject(owner)
	if object == nil {
		return workload{}, nil
	}
	err := w.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: owner.Name}, object)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return workload{}, nil
	}
	if err != nil {
		return workload{}, err
	}
	if object.GetUID() != owner.UID {
		return workload{}, nil
	}
	var out workload
	switch found := object.(type) {
	case *appsv1.Deployment:
		out = holdOfDeployment(found)
	case *appsv1.StatefulSet:
		out = holdOfStatefulSet(found)
	case *appsv1.DaemonSet:
		out = holdOfDaemonSet(found)
	case *unstructured.Unstructured:
		out = holdOfRollout(found)
	}
	out.object = object
	return out, nil
}

// newWorkloadObject gives an empty object of a kind that we know; nil for another one, of which nothing is said.
func newWorkloadObject(owner *metav1.OwnerReference) client.Object {
	switch {
	case isGroup(owner.APIVersion, "apps") && owner.Kind == "Deployment":
		return &appsv1.Deployment{}
	case isGroup(owner.APIVersion, "apps") && owner.Kind == "StatefulSet":
		return &appsv1.StatefulSet{}
	case isGroup(owner.APIVersion, "apps") && owner.Kind == "DaemonSet":
		return &appsv1.DaemonSet{}
	case isGroup(owner.APIVersion, "argoproj.io") && owner.Kind == "Rollout":
		rollout := &unstructured.Unstructured{}
		rollout.SetGroupVersionKind(schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind))
		return rollout
	}
	return nil
}
