package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// waiting is something that passes by itself: a reason of Reconciling, and when to look again.
type waiting struct {
	reason  string
	message string
	after   time.Duration
}

func (w *waiting) Error() string { return w.message }

// verdict is what a pass found out: the one reason that Ready carries.
type verdict struct {
	state   verdictState
	reason  string
	message string
	after   time.Duration // when to look again; 0: at the next resync
}

type verdictState int

const (
	stateDone        verdictState = iota // Ready
	stateReconciling                     // goes on without a person
	stateStalled                         // a person must act
)

func done(reason, format string, args ...any) *verdict {
	return &verdict{state: stateDone, reason: reason, message: fmt.Sprintf(format, args...)}
}

func reconciling(after time.Duration, reason, format string, args ...any) *verdict {
	return &verdict{state: stateReconciling, reason: reason, message: fmt.Sprintf(format, args...), after: after}
}

func stalled(reason, format string, args ...any) *verdict {
	return &verdict{state: stateStalled, reason: reason, message: fmt.Sprintf(format, args...)}
}

// stalledReasons are the classes of storage that need a person, by their reasons.
var stalledReasons = map[storage.Class]string{
	storage.ClassInvalidSpec:        v1alpha1.ReasonInvalidSpec,
	storage.ClassInvalidSQL:         v1alpha1.ReasonInvalidSQL,
	storage.ClassNotTransactional:   v1alpha1.ReasonNotTransactional,
	storage.ClassVersionRegression:  v1alpha1.ReasonVersionRegression,
	storage.ClassContentDrift:       v1alpha1.ReasonContentDrift,
	storage.ClassLayoutMismatch:     v1alpha1.ReasonLayoutMismatch,
	storage.ClassConflict:           v1alpha1.ReasonConflict,
	storage.ClassFenceBroken:        v1alpha1.ReasonFenceBroken,
	storage.ClassVerificationFailed: v1alpha1.ReasonVerificationFailed,
	storage.ClassNotConverging:      v1alpha1.ReasonNotConverging,
	storage.ClassUnverifiable:       v1alpha1.ReasonUnverifiable,
	// A guard refused because another program did the conflicting work; a newer catalog belongs to a newer operator.
	storage.ClassGuarded:      v1alpha1.ReasonConflict,
	storage.ClassNewerCatalog: v1alpha1.ReasonConflict,
	storage.ClassFenced:       v1alpha1.ReasonFenceBroken,
	// A defect, or what the database says and this program has no word for: nobody can say that it passes by itself.
	storage.ClassInternal: v1alpha1.ReasonInternal,
}

// defaultRetry is the pause after something that passes and says nothing of its own about when.
const defaultRetry = 5 * time.Second

// judge turns the error of a phase into a verdict. underway is the reason of what was being done, for a failure that has no class of its
// own. An error of the Kubernetes API gives nil: it is returned to be tried again, and the status stays as it is.
func judge(err error, underway string) *verdict {
	var wait *waiting
	var refused *storage.Error
	switch {
	case errors.As(err, &wait):
		return reconciling(cmp.Or(wait.after, defaultRetry), wait.reason, "%s", wait.message)
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return reconciling(defaultRetry, underway, "the namespace is being deleted, so nothing is made in it any more")
	case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
		// The API server refuses what we make of the spec: one that was stored under another definition may hold anything.
		return stalled(v1alpha1.ReasonInvalidSpec, "%s", err)
	case !errors.As(err, &refused):
		if apierrors.IsForbidden(err) {
			// A right that the operator lacks, or an admission: nobody hears of it unless it is shown. Its words name the right.
			return reconciling(defaultRetry, underway, "the API server does not let the operator do its work: %s", err)
		}
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
			return reconciling(defaultRetry, v1alpha1.ReasonCancelled, "%s", err)
		}
		return nil
	}
	class := storage.ClassOf(err)
	if reason, ok := stalledReasons[class]; ok {
		return stalled(reason, "%s", err)
	}
	if class.Retryable() {
		return reconciling(defaultRetry, string(class), "%s", err)
	}
	return reconciling(defaultRetry, underway, "%s", err)
}

// maxTableName is what a table has at most with its schema before it: twice the longest name, and a dot.
const maxTableName = 2*63 + 1

// maxMessage is what a condition's message may have (metav1.Condition).
const maxMessage = 32768

// conditionSet collects the conditions of a pass.
type conditionSet struct {
	generation int64
	conditions []metav1.Condition
}

func (s *conditionSet) add(kind string, status metav1.ConditionStatus, reason, message string) {
	s.conditions = append(s.conditions, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: said(message, maxMessage), ObservedGeneration: s.generation,
	})
}

func (s *conditionSet) addBool(kind string, holds bool, reason, message string) {
	status := metav1.ConditionFalse
	if holds {
		status = metav1.ConditionTrue
	}
	s.add(kind, status, reason, message)
}

// addVerdict adds Ready, and Reconciling or Stalled while true.
func (s *conditionSet) addVerdict(v verdict) {
	s.addBool(v1alpha1.ConditionReady, v.state == stateDone, v.reason, v.message)
	switch v.state {
	case stateReconciling:
		s.add(v1alpha1.ConditionReconciling, metav1.ConditionTrue, v.reason, v.message)
	case stateStalled:
		s.add(v1alpha1.ConditionStalled, metav1.ConditionTrue, v.reason, v.message)
	}
}

// over gives the conditions in the order of their types, each with the time at which its status last flipped: that of the condition before,
// or now.
func (s *conditionSet) over(before []metav1.Condition, now time.Time) []metav1.Condition {
	out := slices.Clone(s.conditions)
	slices.SortFunc(out, func(a, b metav1.Condition) int { return strings.Compare(a.Type, b.Type) })
	for i := range out {
		out[i].LastTransitionTime = metav1.NewTime(now.Truncate(time.Second))
		if was := meta.FindStatusCondition(before, out[i].Type); was != nil && was.Status == out[i].Status {
			out[i].LastTransitionTime = was.LastTransitionTime
		}
	}
	return out
}

// flipped says whether two sets differ in more than messages: what people and tools wait for.
func flipped(before, after []metav1.Condition) bool {
	if len(before) != len(after) {
		return true
	}
	for _, condition := range after {
		was := meta.FindStatusCondition(before, condition.Type)
		if was == nil || was.Status != condition.Status || was.Reason != condition.Reason || was.ObservedGeneration != condition.ObservedGeneration {
			return true
		}
	}
	return false
}

// cut bounds a text in bytes and keeps it valid UTF-8.
func cut(text string, most int) string { return legible.Cut(text, most) }

// said is a text for people, who read it on a terminal: what keys and names of a database hold shows, and does nothing.
func said(text string, most int) string { return cut(legible.Text(text), most) }
