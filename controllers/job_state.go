package controllers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// jobNext is what is to be done about a Job. Whether the work is complete is never asked of it: the database says that.
type jobNext string

// What can be done.
const (
	jobWait         jobNext = "Wait"         // it works, or will
	jobReplace      jobNext = "Replace"      // there is none, or it cannot go on: claim again and make another, at once
	jobReplaceLater jobNext = "ReplaceLater" // the same after a pause, since the next one may fare no better
	jobRestart      jobNext = "Restart"      // claim again and begin the pass again: the log could not answer
	jobStall        jobNext = "Stall"        // a person must act
)

// jobOutlook is what became of a Job, and what is to be done.
type jobOutlook struct {
	Next    jobNext
	Reason  string // of the condition: v1alpha1.Reason...
	Message string // one sentence; the worker's or the cluster's own words in it
	Running int    // pods at work
}

// jobState reads what became of a Job from it, its pods, and the events of what keeps it waiting: of itself while it has no pod, for a quota or an
// admission that refuses pods says so nowhere else, or of a pod. nil is a Job that is not there. It is a pure function.
func jobState(job *batchv1.Job, pods []corev1.Pod, events []corev1.Event, now time.Time) jobOutlook {
	switch {
	case job == nil:
		return jobOutlook{Next: jobReplace, Reason: v1alpha1.ReasonBackfilling, Message: "its Job is gone"}
	case job.DeletionTimestamp != nil:
		// It makes no pods any more, and another's finalizer may keep it for as long as it likes.
		return jobOutlook{Next: jobReplace, Reason: v1alpha1.ReasonBackfilling, Message: fmt.Sprintf("Job %s is being deleted", job.Name)}
	case jobHas(job, batchv1.JobComplete):
		return jobOutlook{Next: jobReplaceLater, Reason: v1alpha1.ReasonBackfilling,
			Message: fmt.Sprintf("the workers of Job %s ended well, but the database does not say that all is done", job.Name)}
	case jobHas(job, batchv1.JobFailed):
		return jobFailed(job, pods)
	case job.Spec.Suspend != nil && *job.Spec.Suspend:
		if suspendedByUs(job) {
			return jobOutlook{Next: jobWait, Reason: v1alpha1.ReasonSuspended, Message: fmt.Sprintf("Job %s is suspended", job.Name)}
		}
		return jobOutlook{Next: jobWait, Reason: v1alpha1.ReasonWorkerPending, Message: fmt.Sprintf(
			"Job %s is suspended, and not by spec.suspend: it goes on when whoever did it resumes it, and another one is made if it is deleted", job.Name)}
	}
	if pod := neverEnding(pods, now); pod != "" {
		return jobOutlook{Next: jobReplace, Reason: v1alpha1.ReasonWorkerPending,
			Message: fmt.Sprintf("pod %s of Job %s does not come to its end, as on a node that is lost, and is not replaced before it does", pod, job.Name)}
	}
	return jobUnderWay(job, pods, events)
}

// endingBound is how long after the time that it has to end a pod is still waited for.
const endingBound = time.Minute

// neverEnding names a pod that should have ended long ago and has not; empty: there is none. The Job waits for it for ever (podReplacementPolicy
// Failed), and its share of the work is nobody else's. That it may still be at work is no matter: its claim is taken from it.
func neverEnding(pods []corev1.Pod, now time.Time) string {
	for _, pod := range sortedByName(pods) {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !ended && pod.DeletionTimestamp != nil && now.Sub(pod.DeletionTimestamp.Time) > endingBound {
			return pod.Name
		}
	}
	return ""
}

func jobHas(job *batchv1.Job, kind batchv1.JobConditionType) bool {
	return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == kind && c.Status == corev1.ConditionTrue
	})
}

// jobUnderWay tells a Job that works from one whose pods do not start, in the cluster's own words.
func jobUnderWay(job *batchv1.Job, pods []corev1.Pod, events []corev1.Event) jobOutlook {
	outlook := jobOutlook{Next: jobWait, Reason: v1alpha1.ReasonBackfilling}
	var pending string
	live := 0
	for _, pod := range sortedByName(pods) {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		case workerRuns(pod) && pod.DeletionTimestamp == nil: // one on a node that is lost is called running for ever
			outlook.Running++
			live++
		default:
			live++
			pending = cmp.Or(pending, fmt.Sprintf("pod %s: %s", pod.Name, podWords(pod, events)))
		}
	}
	switch {
	case outlook.Running > 0:
		outlook.Message = fmt.Sprintf("%d of %d workers of Job %s are at work", outlook.Running, wantedPods(job), job.Name)
		if pending != "" {
			outlook.Message += "; " + pending
		}
	case live > 0:
		outlook.Reason, outlook.Message = v1alpha1.ReasonWorkerPending, pending
	default:
		outlook.Reason, outlook.Message = v1alpha1.ReasonWorkerPending, withoutPods(job, pods, events)
	}
	return outlook
}

func wantedPods(job *batchv1.Job) int32 {
	if job.Spec.Parallelism == nil {
		return 1
	}
	return *job.Spec.Parallelism
}

// withoutPods says why a Job has no live pod: none can be made, or the last one ended and the next one is still to come.
func withoutPods(job *batchv1.Job, pods []corev1.Pod, events []corev1.Event) string {
	if ended, ok := lastEnded(pods); ok {
		return fmt.Sprintf("%s, and is started again", ended.sentence())
	}
	if last := lastWarning(events, job.UID); last != "" {
		return fmt.Sprintf("Job %s has no pod: %s", job.Name, last)
	}
	if wantedPods(job) == 0 {
		return fmt.Sprintf("Job %s asks for no pod: somebody set its parallelism to 0", job.Name)
	}
	return fmt.Sprintf("Job %s has no pod yet", job.Name)
}

// lastWarning is the newest warning about an object, in the words of who gave it; empty: there is none.
func lastWarning(events []corev1.Event, uid types.UID) string {
	var last *corev1.Event
	for i, event := range events {
		if event.Type == corev1.EventTypeWarning && event.InvolvedObject.UID == uid && (last == nil || !eventTime(event).Before(eventTime(*last))) {
			last = &events[i]
		}
	}
	if last == nil {
		return ""
	}
	return words(last.Reason, last.Message)
}

// waitsFor gives the first pod by name that neither works nor has ended; nil: there is none.
func waitsFor(pods []corev1.Pod) *corev1.Pod {
	for _, pod := range sortedByName(pods) {
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !ended && !workerRuns(pod) {
			return &pod
		}
	}
	return nil
}

func workerRuns(pod corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == workerContainer && c.State.Running != nil
	})
}

// podWords says why a pod does not run, in the scheduler's or the kubelet's words. What keeps a container from being created, such as a volume that
// cannot be mounted, stands in events alone.
func podWords(pod corev1.Pod, events []corev1.Event) string {
	if pod.DeletionTimestamp != nil {
		return "it is being ended, and replaced once it has ended"
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return words(condition.Reason, condition.Message)
		}
	}
	for _, container := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := container.State.Waiting
		if waiting != nil && waiting.Reason != "" && waiting.Reason != "PodInitializing" && waiting.Reason != "ContainerCreating" {
			return words(waiting.Reason, waiting.Message)
		}
	}
	if last := lastWarning(events, pod.UID); last != "" {
		return last
	}
	if pod.Spec.NodeName == "" {
		return "it is not scheduled yet"
	}
	return "it is being started"
}

func words(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + short(message)
}

// short bounds words that are not ours.
func short(text string) string {
	const limit = 512
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > limit {
		return string(runes[:limit]) + "..."
	}
	return text
}

// jobFailed decides by the exit code that ended the Job, if one did; else the Job has used up its retries.
func jobFailed(job *batchv1.Job, pods []corev1.Pod) jobOutlook {
	ended, ok := decidingEnd(job, pods)
	if !ok {
		return jobOutlook{Next: jobReplaceLater, Reason: v1alpha1.ReasonBackfilling, Message: fmt.Sprintf("Job %s failed: %s", job.Name, failedWords(job))}
	}
	outlook := jobOutlook{Next: jobReplaceLater, Reason: v1alpha1.ReasonBackfilling, Message: ended.sentence()}
	switch {
	case ended.code == exitNewerCatalog:
		outlook.Message = "the worker is older than the catalog of the database: " + outlook.Message
	case ended.class() == storage.ClassUnverifiable:
		outlook.Next, outlook.Reason = jobRestart, v1alpha1.ReasonSourceChanged
	case ended.permanent():
		outlook.Next, outlook.Reason = jobStall, string(ended.class())
	}
	return outlook
}

func failedWords(job *batchv1.Job) string {
	for _, condition := range job.Status.Conditions {
		if condition.Type == batchv1.JobFailed {
			return words(condition.Reason, condition.Message)
		}
	}
	return "it does not say why"
}

// workerEnd is how a worker ended.
type workerEnd struct {
	pod    string
	code   int32
	reason string // of the kubelet, such as OOMKilled
	said   workerWords
}

// workerWords are the last line of a worker's log. Only lines of this form are repeated: what another program prints may be anything.
type workerWords struct {
	Reason  string `json:"reason"`
	Message string `json:"msg"`
}

func (e workerEnd) permanent() bool {
	return e.code >= exitFirstPermanent && e.code <= exitLastPermanent
}

var classOfExit = map[int32]storage.Class{
	exitOwnershipLost: storage.ClassOwnershipLost, exitNewerCatalog: storage.ClassNewerCatalog,
	20: storage.ClassInvalidSpec, 21: storage.ClassInvalidSQL, 22: storage.ClassNotTransactional, 23: storage.ClassVersionRegression,
	24: storage.ClassContentDrift, 25: storage.ClassLayoutMismatch, 26: storage.ClassConflict, 27: storage.ClassFenceBroken,
	28: storage.ClassVerificationFailed, 29: storage.ClassNotConverging,
}

// class of the exit code. Two classes share the last code, and the worker's words tell them apart.
func (e workerEnd) class() storage.Class {
	if e.code == exitLastPermanent && e.said.Reason == string(storage.ClassUnverifiable) {
		return storage.ClassUnverifiable
	}
	return classOfExit[e.code]
}

func (e workerEnd) sentence() string {
	text := fmt.Sprintf("worker %s ended with exit code %d", e.pod, e.code)
	switch {
	case e.said.Message != "":
		text += ": " + short(e.said.Message)
	case e.reason != "" && e.reason != "Error":
		text += " (" + e.reason + ")"
	}
	return text
}

// decidingEnd finds the end that decides about a failed Job: a permanent one before lost ownership, and any of these before the rest. Where the
// pods are gone already, the Job's own words hold the exit code.
func decidingEnd(job *batchv1.Job, pods []corev1.Pod) (workerEnd, bool) {
	ends := workerEnds(pods)
	for _, decides := range []func(workerEnd) bool{
		workerEnd.permanent,
		func(e workerEnd) bool { return e.code == exitOwnershipLost },
		func(e workerEnd) bool { return e.code == exitNewerCatalog },
	} {
		if i := slices.IndexFunc(ends, decides); i >= 0 {
			return ends[i], true
		}
	}
	if found := codeInWords.FindStringSubmatch(failedWords(job)); found != nil {
		if code, err := strconv.ParseInt(found[2], 10, 32); err == nil {
			return workerEnd{pod: found[1], code: int32(code)}, true
		}
	}
	if len(ends) > 0 {
		return ends[0], true
	}
	return workerEnd{}, false
}

// codeInWords reads the message of a Job that the failure policy ended (Kubernetes source, pkg/controller/job/pod_failure_policy.go).
var codeInWords = regexp.MustCompile(`for pod (\S+) failed with exit code (\d+)`)

// workerEnds gives how the workers ended, the latest first.
func workerEnds(pods []corev1.Pod) []workerEnd {
	var ends []workerEnd
	var at []int64
	for _, pod := range sortedByName(pods) {
		for _, container := range pod.Status.ContainerStatuses {
			done := container.State.Terminated
			if container.Name != workerContainer || done == nil || done.ExitCode == 0 {
				continue
			}
			end := workerEnd{pod: pod.Name, code: done.ExitCode, reason: done.Reason, said: lastWords(done.Message)}
			place := slices.IndexFunc(at, func(t int64) bool { return done.FinishedAt.Unix() > t })
			if place < 0 {
				place = len(at)
			}
			ends, at = slices.Insert(ends, place, end), slices.Insert(at, place, done.FinishedAt.Unix())
		}
	}
	return ends
}

func lastEnded(pods []corev1.Pod) (workerEnd, bool) {
	ends := workerEnds(pods)
	if len(ends) == 0 {
		return workerEnd{}, false
	}
	return ends[0], true
}

// lastWords finds the worker's own words at the end of its log.
func lastWords(message string) workerWords {
	lines := strings.Split(strings.TrimSpace(message), "\n")
	for _, line := range slices.Backward(lines) {
		var said workerWords
		if json.Unmarshal([]byte(line), &said) == nil && said.Reason != "" && said.Message != "" {
			return said
		}
	}
	return workerWords{}
}

func sortedByName(pods []corev1.Pod) []corev1.Pod {
	return slices.SortedFunc(slices.Values(pods), func(a, b corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
}

// eventTime is when an event was last seen. Its two forms keep it in two places.
func eventTime(event corev1.Event) time.Time {
	if !event.LastTimestamp.IsZero() {
		return event.LastTimestamp.Time
	}
	return event.EventTime.Time
}
