package controllers

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// aJob is the Job of aClaim with a condition, if one is given, in the words of the Job controller.
func aJob(t *testing.T, condition batchv1.JobConditionType, reason, message string) *batchv1.Job {
	t.Helper()
	job, err := newWorkerJob(aClaim())
	if err != nil {
		t.Fatal(err)
	}
	job.UID = "job"
	if condition != "" {
		job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: reason, Message: message}}
	}
	return job
}

// ended is a pod whose worker ended with a code, so many seconds after the first.
func ended(name string, code int32, after int, log string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{
		Phase: corev1.PodFailed,
		ContainerStatuses: []corev1.ContainerStatus{
			{Name: "sidecar", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 25}}},
			{Name: workerContainer, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: code, Reason: "Error", Message: log, FinishedAt: metav1.NewTime(time.Unix(1000+int64(after), 0)),
			}}},
		},
	}}
}

func pending(name string, status corev1.PodStatus) corev1.Pod {
	status.Phase = corev1.PodPending
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("pod-" + name)}, Status: status}
}

func notStarted(reason, message string) corev1.PodStatus {
	return corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
		{Name: workerContainer, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}},
	}}
}

func atWork(name string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.PodStatus{
		Phase:             corev1.PodRunning,
		ContainerStatuses: []corev1.ContainerStatus{{Name: workerContainer, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
	}}
}

// line is the last line of a worker's log.
func line(reason, message string) string {
	return `{"level":"INFO","msg":"at work"}` + "\n" + `{"level":"ERROR","msg":"` + message + `","reason":"` + reason + `","exitCode":1}` + "\n"
}

const (
	usedUp      = "FailedIndexes"
	byPolicy    = "PodFailurePolicy"
	policyWords = "Container worker for pod shop/clinic-0-abcde failed with exit code %s matching FailJob rule at index 1"
)

func TestTheStateOfAJobSaysWhatIsToBeDone(t *testing.T) {
	failed := func(reason, message string) *batchv1.Job { return aJob(t, batchv1.JobFailed, reason, message) }
	works := aJob(t, "", "", "")
	suspended := aJob(t, "", "", "")
	*suspended.Spec.Suspend = true
	queued := suspended.DeepCopy()
	suspended.Annotations[annotationSuspended] = "true"
	going := aJob(t, "", "", "")
	going.DeletionTimestamp = &metav1.Time{Time: time.Unix(1000, 0)}
	goingPod := pending("a", corev1.PodStatus{})
	goingPod.DeletionTimestamp = going.DeletionTimestamp
	goingWorker := atWork("a")
	goingWorker.DeletionTimestamp = going.DeletionTimestamp
	quota := corev1.Event{Type: corev1.EventTypeWarning, Reason: "FailedCreate", Message: `pods "x" is forbidden: exceeded quota: small`,
		InvolvedObject: corev1.ObjectReference{UID: "job"}, LastTimestamp: metav1.NewTime(time.Unix(2000, 0))}
	mount := corev1.Event{Type: corev1.EventTypeWarning, Reason: "FailedMount", Message: `configmap "rules" not found`, InvolvedObject: corev1.ObjectReference{UID: "pod-a"}}
	older := quota
	older.Message, older.LastTimestamp = "older", metav1.NewTime(time.Unix(1999, 0))
	foreign := quota
	foreign.Message, foreign.InvolvedObject.UID, foreign.LastTimestamp = "foreign", "other", metav1.NewTime(time.Unix(2001, 0))

	for name, c := range map[string]struct {
		job    *batchv1.Job
		pods   []corev1.Pod
		events []corev1.Event
		next   jobNext
		reason string
		says   string
	}{
		"no Job":                         {nil, nil, nil, jobReplace, v1alpha1.ReasonBackfilling, "gone"},
		"being deleted":                  {going, []corev1.Pod{atWork("a")}, nil, jobReplace, v1alpha1.ReasonBackfilling, "being deleted"},
		"suspended":                      {suspended, nil, nil, jobWait, v1alpha1.ReasonSuspended, "suspended"},
		"suspended by another":           {queued, nil, nil, jobWait, v1alpha1.ReasonWorkerPending, "not by spec.suspend"},
		"complete, which proves nothing": {aJob(t, batchv1.JobComplete, "", ""), nil, nil, jobReplaceLater, v1alpha1.ReasonBackfilling, "database does not say"},
		"at work":                        {works, []corev1.Pod{atWork("a"), atWork("b")}, nil, jobWait, v1alpha1.ReasonBackfilling, "2 of 2 workers"},
		"one at work, one not":           {works, []corev1.Pod{atWork("a"), pending("b", notStarted("ErrImagePull", "no such image"))}, nil, jobWait, v1alpha1.ReasonBackfilling, "1 of 2 workers of Job clinic-title-norm-a96d788c-3 are at work; pod b: ErrImagePull: no such image"},
		"not scheduled": {works, []corev1.Pod{pending("a", corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available: 3 Insufficient memory."}}})},
			nil, jobWait, v1alpha1.ReasonWorkerPending, "pod a: Unschedulable: 0/3 nodes are available: 3 Insufficient memory."},
		"image cannot be had":         {works, []corev1.Pod{pending("a", notStarted("ImagePullBackOff", "Back-off pulling image"))}, nil, jobWait, v1alpha1.ReasonWorkerPending, "ImagePullBackOff: Back-off pulling image"},
		"container cannot be created": {works, []corev1.Pod{pending("a", notStarted("CreateContainerConfigError", "image has non-numeric user"))}, nil, jobWait, v1alpha1.ReasonWorkerPending, "CreateContainerConfigError: image has non-numeric user"},
		"volume cannot be mounted":    {works, []corev1.Pod{pending("a", notStarted("ContainerCreating", ""))}, []corev1.Event{quota, mount}, jobWait, v1alpha1.ReasonWorkerPending, `pod a: FailedMount: configmap "rules" not found`},
		"pod being ended":             {works, []corev1.Pod{goingPod}, nil, jobWait, v1alpha1.ReasonWorkerPending, "being ended"},
		"worker being ended":          {works, []corev1.Pod{goingWorker}, nil, jobWait, v1alpha1.ReasonWorkerPending, "pod a: it is being ended, and replaced once"},
		"pods refused by a quota":     {works, nil, []corev1.Event{older, quota, foreign}, jobWait, v1alpha1.ReasonWorkerPending, `FailedCreate: pods "x" is forbidden: exceeded quota: small`},
		"no pod yet":                  {works, nil, nil, jobWait, v1alpha1.ReasonWorkerPending, "no pod yet"},
		"between two tries":           {works, []corev1.Pod{ended("a", 1, 0, ""), ended("b", 4, 9, line("GaveUp", "too slow"))}, nil, jobWait, v1alpha1.ReasonWorkerPending, "worker b ended with exit code 4: too slow, and is started again"},

		"used up":                  {failed(usedUp, "Job has failed indexes"), []corev1.Pod{ended("a", 1, 0, "panic: S3CRET")}, nil, jobReplaceLater, v1alpha1.ReasonBackfilling, "worker a ended with exit code 1"},
		"used up, pods gone":       {failed(usedUp, "Job has failed indexes"), nil, nil, jobReplaceLater, v1alpha1.ReasonBackfilling, "FailedIndexes: Job has failed indexes"},
		"older than the catalog":   {failed(usedUp, ""), []corev1.Pod{ended("a", 11, 0, line("NewerCatalog", "protocol 2"))}, nil, jobReplaceLater, v1alpha1.ReasonBackfilling, "older than the catalog"},
		"ownership lost":           {failed(byPolicy, ""), []corev1.Pod{ended("a", 10, 0, line("OwnershipLost", "another claim"))}, nil, jobReplaceLater, v1alpha1.ReasonBackfilling, "another claim"},
		"SQL refused":              {failed(byPolicy, ""), []corev1.Pod{ended("a", 1, 9, ""), ended("b", 10, 8, ""), ended("c", 21, 0, line("InvalidSQL", "key 17"))}, nil, jobStall, v1alpha1.ReasonInvalidSQL, "worker c ended with exit code 21: key 17"},
		"SQL refused, pods gone":   {failed(byPolicy, strings.Replace(policyWords, "%s", "21", 1)), nil, nil, jobStall, v1alpha1.ReasonInvalidSQL, "shop/clinic-0-abcde ended with exit code 21"},
		"lost, pods gone":          {failed(byPolicy, strings.Replace(policyWords, "%s", "10", 1)), nil, nil, jobReplaceLater, v1alpha1.ReasonBackfilling, "exit code 10"},
		"wrong rows found":         {failed(byPolicy, ""), []corev1.Pod{ended("a", 28, 0, line("VerificationFailed", "3 rows"))}, nil, jobStall, v1alpha1.ReasonVerificationFailed, "3 rows"},
		"the log cannot answer":    {failed(byPolicy, ""), []corev1.Pod{ended("a", 29, 0, line("Unverifiable", "pruned"))}, nil, jobRestart, v1alpha1.ReasonSourceChanged, "pruned"},
		"it does not converge":     {failed(byPolicy, ""), []corev1.Pod{ended("a", 29, 0, line("NotConverging", "500 attempts"))}, nil, jobStall, v1alpha1.ReasonNotConverging, "500 attempts"},
		"a sidecar ends by itself": {failed(usedUp, "x"), []corev1.Pod{ended("a", 0, 0, "")}, nil, jobReplaceLater, v1alpha1.ReasonBackfilling, "FailedIndexes"},
	} {
		t.Run(name, func(t *testing.T) {
			got := jobState(c.job, c.pods, c.events, time.Unix(1060, 0))
			if got.Next != c.next || got.Reason != c.reason || !strings.Contains(got.Message, c.says) {
				t.Errorf("%+v, want %s with %s and %q", got, c.next, c.reason, c.says)
			}
			if strings.Contains(got.Message, "S3CRET") {
				t.Errorf("what another program printed is repeated: %s", got.Message)
			}
		})
	}
}

func TestEveryPermanentExitCodeHasAReasonOfItsOwn(t *testing.T) {
	for code := int32(exitFirstPermanent); code <= exitLastPermanent; code++ {
		got := jobState(aJob(t, batchv1.JobFailed, byPolicy, ""), []corev1.Pod{ended("a", code, 0, "")}, nil, time.Unix(1060, 0))
		if got.Next != jobStall || got.Reason == "" {
			t.Errorf("exit code %d: %+v", code, got)
		}
	}
}

func TestWordsOfOthersAreBounded(t *testing.T) {
	got := jobState(aJob(t, "", "", ""), []corev1.Pod{pending("a", notStarted("ErrImagePull", strings.Repeat("long ", 1000)))}, nil, time.Unix(1060, 0))
	if len(got.Message) > 600 {
		t.Errorf("the message has %d bytes", len(got.Message))
	}
}
