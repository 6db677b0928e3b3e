package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod is one pod that is run here.
type pod struct {
	*corev1.Pod
	kubelet *Kubelet
	folder  string
	ctx     context.Context
	cancel  context.CancelCauseFunc

	mu       sync.Mutex
	mounts   map[string]string // volume to folder
	statuses map[string]*corev1.ContainerState
	deleted  bool
	last     corev1.PodPhase                  // that was reported
	gates    map[corev1.PodConditionType]bool // readiness gates whose condition is True

	reporting sync.Mutex // statuses are written in the order in which they were
}

// ending is the cause of a pod's end, with the time that its processes get for it.
type ending struct{ grace time.Duration }

func (e ending) Error() string { return "the pod is being deleted" }

// end begins the pod's end.
func (p *pod) end(grace time.Duration) {
	p.mu.Lock()
	p.deleted = true
	p.mu.Unlock()
	p.cancel(ending{grace})
}

// run takes the pod from its binding to its end.
func (p *pod) run() {
	if !p.kubelet.bind(p.Pod) {
		return
	}
	p.statuses = map[string]*corev1.ContainerState{}
	for _, container := range p.containers() {
		p.set(container.Name, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}})
	}
	p.report(corev1.PodPending)
	if p.start() {
		follow, stop := context.WithCancel(p.ctx)
		p.kubelet.done.Go(func() { p.followSecrets(follow) })
		p.work()
		stop()
	}
	if p.kubelet.ctx.Err() != nil {
		return
	}
	p.report(p.phase())
	p.remove()
}

func (p *pod) containers() []corev1.Container {
	return append(append([]corev1.Container{}, p.Spec.InitContainers...), p.Spec.Containers...)
}

// start waits for volumes and images. It returns false if the pod ended first.
func (p *pod) start() bool {
	for {
		err := p.writeVolumes()
		if err == nil {
			break
		}
		if !sleep(p.ctx, retryPause) {
			return false
		}
	}
	for _, container := range p.containers() {
		if _, known := p.kubelet.images[container.Image]; known {
			continue
		}
		p.set(container.Name, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason: "ImagePullBackOff", Message: fmt.Sprintf("Back-off pulling image %q", container.Image),
		}})
		p.report(corev1.PodPending)
		<-p.ctx.Done()
		return false
	}
	return true
}

// work runs the init containers one after the other, and then the containers together.
func (p *pod) work() {
	for _, container := range p.Spec.InitContainers {
		if !p.runContainer(container) {
			return
		}
	}
	var all sync.WaitGroup
	for _, container := range p.Spec.Containers {
		all.Go(func() { p.runContainer(container) })
	}
	all.Wait()
}

// followSecrets writes the volumes again as their Secrets change.
func (p *pod) followSecrets(ctx context.Context) {
	for sleep(ctx, syncPeriod) {
		// A Secret that is gone leaves the files as they were, as with a kubelet.
		_ = p.writeVolumes()
	}
}

// runContainer runs one container to its end and says whether it ended well.
func (p *pod) runContainer(container corev1.Container) bool {
	if p.ctx.Err() != nil {
		return false
	}
	command, err := p.command(container)
	if err != nil {
		p.set(container.Name, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerConfigError", Message: err.Error()}})
		p.report(corev1.PodPending)
		<-p.ctx.Done()
		return false
	}
	started := metav1.Now()
	code := command.run(p.ctx, func() {
		p.set(container.Name, corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: started}})
		p.report(corev1.PodRunning)
	})
	reason := "Completed"
	if code != 0 {
		reason = "Error"
	}
	p.set(container.Name, corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: int32(code), Reason: reason, StartedAt: started, FinishedAt: metav1.Now(), Message: terminationMessage(container, code, command.log),
	}})
	return code == 0
}

// terminationMessage is the end of the log of a container that failed, if it asks for that.
func terminationMessage(container corev1.Container, code int, log string) string {
	if code == 0 || container.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		return ""
	}
	const most = 2048
	content, err := os.ReadFile(log)
	if err != nil {
		return err.Error()
	}
	if len(content) > most {
		content = content[len(content)-most:]
	}
	return strings.ToValidUTF8(string(content), "?")
}

func (p *pod) set(container string, state corev1.ContainerState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.statuses[container] = &state
}

// phase is where a pod with restart policy Never stands once its processes have ended.
func (p *pod) phase() corev1.PodPhase {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, container := range p.containers() {
		done := p.statuses[container.Name].Terminated
		if done == nil || done.ExitCode != 0 {
			return corev1.PodFailed
		}
	}
	return corev1.PodSucceeded
}

// report writes the status.
func (p *pod) report(phase corev1.PodPhase) {
	p.reporting.Lock()
	defer p.reporting.Unlock()
	status := p.status(phase)
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		p.kubelet.t.Errorf("kubelet: encode the status of pod %s: %v", p.Name, err)
		return
	}
	p.kubelet.write("write the status of pod "+p.Name, func(ctx context.Context) error {
		_, err := p.kubelet.clients.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, text, metav1.PatchOptions{}, "status")
		return err
	})
}

func (p *pod) status(phase corev1.PodPhase) corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = phase
	now := metav1.Now()
	started, ready := corev1.ConditionFalse, corev1.ConditionFalse
	if phase == corev1.PodRunning {
		started = corev1.ConditionTrue
		if p.gatesOpen() {
			ready = corev1.ConditionTrue
		}
	}
	status := corev1.PodStatus{Phase: phase, StartTime: &now, Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: started, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: ready, LastTransitionTime: now},
	}}
	of := func(container corev1.Container) corev1.ContainerStatus {
		state := *p.statuses[container.Name]
		running := state.Running != nil
		return corev1.ContainerStatus{Name: container.Name, Image: container.Image, ImageID: container.Image, State: state, Ready: running, Started: &running}
	}
	for _, container := range p.Spec.InitContainers {
		status.InitContainerStatuses = append(status.InitContainerStatuses, of(container))
	}
	for _, container := range p.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, of(container))
	}
	return status
}

// gatesOpen says whether the condition of every readiness gate is True. It is called with the lock held.
func (p *pod) gatesOpen() bool {
	for _, gate := range p.Spec.ReadinessGates {
		if !p.gates[gate.ConditionType] {
			return false
		}
	}
	return true
}

// seeGates notes what others wrote about the pod's readiness gates, and reports readiness anew where that changed.
func (p *pod) seeGates(found *corev1.Pod) {
	gates := map[corev1.PodConditionType]bool{}
	for _, condition := range found.Status.Conditions {
		gates[condition.Type] = condition.Status == corev1.ConditionTrue
	}
	p.mu.Lock()
	before := p.gatesOpen()
	p.gates = gates
	changed := before != p.gatesOpen() && p.last == corev1.PodRunning && !p.deleted
	p.mu.Unlock()
	if changed {
		p.kubelet.done.Go(p.reportGates)
	}
}

// reportGates writes readiness anew, unless the pod has ended since.
func (p *pod) reportGates() {
	p.mu.Lock()
	running := p.last == corev1.PodRunning
	p.mu.Unlock()
	if running {
		p.report(corev1.PodRunning)
	}
}

// remove lets a deleted pod go, now or when its deletion comes.
func (p *pod) remove() {
	<-p.ctx.Done()
	p.mu.Lock()
	deleted := p.deleted
	p.mu.Unlock()
	if !deleted {
		return
	}
	now := int64(0)
	p.kubelet.write("remove pod "+p.Name, func(ctx context.Context) error {
		return p.kubelet.clients.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
			GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID},
		})
	})
}

// graceOf reads how long the processes of an ended pod get; none if the test itself has ended.
func graceOf(ctx context.Context) time.Duration {
	var why ending
	if errors.As(context.Cause(ctx), &why) {
		return why.grace
	}
	return 0
}

// logOf is where a container's output goes.
func (p *pod) logOf(container string) string { return filepath.Join(p.folder, container+".log") }
