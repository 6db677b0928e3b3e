package controllers

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// PodRefusals remembers what the API server did not let us write of single pods, so that each is tried again at its own pace, the other pods do
// not wait for it, and the SyncSchema says so. PodReconciler notes them, SyncSchemaReconciler shows them.
type PodRefusals struct {
	mu sync.Mutex
	of map[podWriteKey]podRefusal
}

// podWriteKey is one thing that is written of one pod.
type podWriteKey struct {
	uid  types.UID
	what string
}

// What is written of a pod, in words.
const (
	writesCondition = "condition"
	writesStart     = "start gate"
)

type podRefusal struct {
	pod     types.NamespacedName
	schemas []types.NamespacedName
	why     string
	lasting bool // a decision, such as a missing right or a policy: it does not pass by itself
	tries   int
	next    time.Time
}

// Pauses after refusals. A decision is asked about again too: a person may change it.
const (
	firstRefusalPause = time.Second
	mostRefusalPause  = 30 * time.Second
	// passingTries is how often something that may pass by itself is tried before it is shown.
	passingTries = 3
)

// isAnotherPod says that a write was refused because the pod is gone, or its name is another pod's by now. A UID that differs is reported as 422
// for that field; a policy that refuses is a 422 without it.
func isAnotherPod(err error) bool {
	if apierrors.IsNotFound(err) {
		return true
	}
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	for _, cause := range status.Status().Details.Causes {
		if cause.Field == "metadata.uid" {
			return true
		}
	}
	return false
}

// wants says whether a write is to be tried now. A refusal of one that is wanted no more is forgotten: it may have been made although the answer
// was a failure, somebody else made it, or what was to be written is not to be any more.
func (p *PodRefusals) wants(wanted bool, uid types.UID, what string, now time.Time) bool {
	if !wanted {
		p.done(uid, what)
		return false
	}
	return p.due(uid, what, now)
}

// due says whether a write may be tried now.
func (p *PodRefusals) due(uid types.UID, what string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.of[podWriteKey{uid, what}]
	return !ok || !now.Before(known.next)
}

// note keeps a refusal. It says whether it is to be told: the first time that it is shown, or that it has other words.
func (p *PodRefusals) note(pod *corev1.Pod, what string, err error, now time.Time) (news bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[podWriteKey]podRefusal{}
	}
	was := p.of[podWriteKey{pod.UID, what}]
	is := podRefusal{
		pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, schemas: schemasOfPod(pod), why: cut(err.Error(), 512), tries: was.tries + 1,
		lasting: apierrors.IsForbidden(err) || apierrors.IsInvalid(err),
	}
	is.next = now.Add(min(firstRefusalPause<<min(was.tries, 10), mostRefusalPause))
	p.of[podWriteKey{pod.UID, what}] = is
	return is.shown() && (!was.shown() || was.why != is.why)
}

func (r podRefusal) shown() bool { return r.lasting && r.tries > 0 || r.tries >= passingTries }

// done forgets a refusal: the write was made, or is wanted no more.
func (p *PodRefusals) done(uid types.UID, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.of, podWriteKey{uid, what})
}

// keep forgets the refusals of pods of a SyncSchema that are not there any more, and gives the time of the next try; zero: there is none.
func (p *PodRefusals) keep(schema types.NamespacedName, pods []judgedPod) (next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, refusal := range p.of {
		if !slices.Contains(refusal.schemas, schema) {
			continue
		}
		if !slices.ContainsFunc(pods, func(judged judgedPod) bool { return judged.pod.UID == key.uid }) {
			delete(p.of, key)
			continue
		}
		if next.IsZero() || refusal.next.Before(next) {
			next = refusal.next
		}
	}
	return next
}

// shown lists what is refused of the pods of a SyncSchema, in the order of their names. nil has nothing.
func (p *PodRefusals) shown(schema types.NamespacedName) []string {
	if p == nil {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for key, refusal := range p.of {
		if refusal.shown() && slices.Contains(refusal.schemas, schema) {
			out = append(out, fmt.Sprintf("%s of pod %s: %s", key.what, refusal.pod.Name, refusal.why))
		}
	}
	slices.Sort(out)
	return out
}
