package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// podStrays are pods that carry the gate and have not the label any more: it was taken away to opt out, and a pod keeps its readiness gates for
// life. Nobody else would ever set their condition, so it is kept up until they are replaced. The cache has pods with the label only, so these
// are read from the API server.
type podStrays struct {
	mu sync.Mutex
	of map[types.UID]stray
}

type stray struct {
	pod corev1.Pod
	at  time.Time // of the last read; zero: the cache has lost it, and whether it is still there is not known
}

// strayKept is how long what was read of a stray is good for: there is no watch on it.
const strayKept = 5 * time.Second

// strayPage is how many pods are read at a time when strays are looked for.
const strayPage = 500

// departures is a predicate that lets every event through, and notes the pods that leave the cache.
func (r *PodReconciler) departures() predicate.Predicate {
	return predicate.Funcs{DeleteFunc: func(e event.DeleteEvent) bool {
		if pod, ok := e.Object.(*corev1.Pod); ok && carriesGate(pod) && !atEnd(pod) && r.Live != nil {
			r.strays.suspect(pod)
		}
		return true
	}}
}

// suspect keeps a pod that left the cache, until it is looked at.
func (s *podStrays) suspect(pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.of == nil {
		s.of = map[types.UID]stray{}
	}
	s.of[pod.UID] = stray{pod: *pod.DeepCopy()}
}

func (s *podStrays) in(namespace string) []stray {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []stray
	for _, known := range s.of {
		if known.pod.Namespace == namespace {
			out = append(out, known)
		}
	}
	return out
}

func (s *podStrays) keep(uid types.UID, pod *corev1.Pod, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if pod == nil {
		delete(s.of, uid)
		return
	}
	s.of[uid] = stray{pod: *pod, at: now}
}

// current gives the strays of a namespace, as they were not long ago. One that is gone, at its end, or has the label again is forgotten. With an
// error it gives those that are known all the same.
func (s *podStrays) current(ctx context.Context, live client.Reader, namespace string, now time.Time) ([]corev1.Pod, error) {
	var out []corev1.Pod
	var failures []error
	for _, known := range s.in(namespace) {
		if known.at.IsZero() || now.Sub(known.at) >= strayKept {
			found, err := readStray(ctx, live, &known.pod)
			switch {
			case err != nil:
				failures = append(failures, err)
			case found == nil:
				s.keep(known.pod.UID, nil, now)
			default:
				s.keep(known.pod.UID, found, now)
				known = stray{pod: *found, at: now}
			}
			if err == nil && found == nil || known.at.IsZero() {
				continue
			}
		}
		out = append(out, known.pod)
	}
	return out, errors.Join(failures...)
}

// readStray reads a pod again, by a list of one: the operator may list pods and not get them. nil: it is no stray.
func readStray(ctx context.Context, live client.Reader, pod *corev1.Pod) (*corev1.Pod, error) {
	var list corev1.PodList
	err := live.List(ctx, &list, client.InNamespace(pod.Namespace), client.MatchingFieldsSelector{Selector: fields.OneTermEqualSelector("metadata.name", pod.Name)})
	if err != nil {
		return nil, fmt.Errorf("read pod %s/%s, which has lost its label: %w", pod.Namespace, pod.Name, err)
	}
	if len(list.Items) == 0 || list.Items[0].UID != pod.UID || !isStray(&list.Items[0]) {
		return nil, nil
	}
	return stripped(&list.Items[0]), nil
}

func isStray(pod *corev1.Pod) bool {
	return pod.Labels[v1alpha1.LabelGate] != v1alpha1.GateEnabled && carriesGate(pod) && !atEnd(pod)
}

// strayRetry is the pause after strays could not be looked for.
const strayRetry = 10 * time.Second

// findStrays looks once through the pods without the label for such that carry the gate: they lost it while no operator watched. It sends each,
// and goes on trying until ctx ends.
func (r *PodReconciler) findStrays(ctx context.Context, found chan<- event.GenericEvent) error {
	if r.Live == nil {
		return nil
	}
	for {
		err := r.findStraysOnce(ctx, found)
		if err == nil || ctx.Err() != nil {
			return nil
		}
		ctrl.LoggerFrom(ctx).Error(err, "pods without the label are looked at again", "after", strayRetry)
		select {
		case <-time.After(strayRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *PodReconciler) findStraysOnce(ctx context.Context, found chan<- event.GenericEvent) error {
	unlabelled, err := labels.NewRequirement(v1alpha1.LabelGate, selection.NotEquals, []string{v1alpha1.GateEnabled})
	if err != nil {
		return err
	}
	namespaces := r.Namespaces
	if len(namespaces) == 0 {
		namespaces = []string{""}
	}
	for _, namespace := range namespaces {
		var page corev1.PodList
		for more := true; more; more = page.Continue != "" {
			err := r.Live.List(ctx, &page, client.InNamespace(namespace), client.Limit(strayPage), client.Continue(page.Continue),
				client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*unlabelled)})
			if err != nil {
				return fmt.Errorf("look for pods that carry the gate and have lost the label: %w", err)
			}
			for i := range page.Items {
				if !isStray(&page.Items[i]) {
					continue
				}
				r.strays.suspect(stripped(&page.Items[i]))
				select {
				case found <- event.GenericEvent{Object: &page.Items[i]}:
				case <-ctx.Done():
					return nil
				}
			}
		}
	}
	return nil
}
