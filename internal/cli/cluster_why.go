package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// whyOutput is what `why` says of a pod.
type whyOutput struct {
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// Ready is the pod's own condition, Held says that the serve gate, or the start gate, keeps it from serving.
	Ready bool `json:"ready"`
	Held  bool `json:"held"`
}

func (p *Program) whyCommand() *cobra.Command {
	var f clusterFlags
	cmd := &cobra.Command{
		Use:   "why POD",
		Short: "Say in one sentence why a pod is Ready, or is not",
		Long: `Reads a pod and says in one sentence whether the serve gate holds it, and what it waits for; or that something else does. What
it says of the database is what the operator wrote on the pod last, with the version and the database that it was about. Of a pod that is held it
also says which SyncSchema that it requires waits for a person, to whom may read those.`,
		Example: "  kubectl syncbarrier why clinic-7d4b9c6f5-x2x8k -n shop",
		Args:    cobra.ExactArgs(1),
	}
	f.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, c, end, err := p.openCluster(cmd.Context(), f)
		if err != nil {
			return err
		}
		defer end()
		pod, err := c.pod(ctx, strings.TrimPrefix(args[0], "pod/"))
		if err != nil {
			return err
		}
		out := why(pod)
		if out.Held {
			out.Message += c.stalledFor(ctx, pod)
		}
		return p.print(out, func(w io.Writer) { writeLine(w, "%s", out.Message) })
	}
	return cmd
}

// pod reads one pod.
func (c *cluster) pod(ctx context.Context, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, pod)
	if apierrors.IsNotFound(err) {
		return nil, &clusterError{"NotFound", exitOther, fmt.Errorf("namespace %s has no pod %q; kubectl get pods -n %s lists them", c.namespace, name, c.namespace)}
	}
	return pod, clusterFailure(ctx, fmt.Sprintf("read pod %s/%s", c.namespace, name), err)
}

// stalledFor says which of the SyncSchemas that a pod requires wait for a person, as the end of a sentence. One that cannot be read is passed over: the
// pod was asked about.
func (c *cluster) stalledFor(ctx context.Context, pod *corev1.Pod) string {
	required, err := podgate.ParseRequirements(pod.Annotations[v1alpha1.AnnotationRequires])
	if err != nil {
		return "" // the pod's own condition says so
	}
	text := ""
	for _, of := range required {
		schema, err := c.schema(ctx, of.Schema)
		if err != nil || !isStalled(schema) {
			continue
		}
		reason := meta.FindStatusCondition(schema.Status.Conditions, v1alpha1.ConditionStalled).Reason
		text += fmt.Sprintf("; SyncSchema %s is stalled: %s, a person must act (kubectl syncbarrier status %s)", schema.Name, reason, schema.Name)
	}
	return text
}

// why says in one sentence why a pod is Ready, or is not.
func why(pod *corev1.Pod) whyOutput {
	out := whyOutput{Namespace: pod.Namespace, Name: pod.Name, Ready: conditionOf(pod, corev1.PodReady).Status == corev1.ConditionTrue}
	gate := conditionOf(pod, v1alpha1.ReadinessGate)
	say := func(reason string, held bool, format string, arguments ...any) whyOutput {
		out.Reason, out.Held = reason, held
		out.Message = pod.Name + " " + fmt.Sprintf(format, arguments...)
		return out
	}
	asks, gated := pod.Labels[v1alpha1.LabelGate] == v1alpha1.GateEnabled, carriesServeGate(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return say("Terminating", false, "is being deleted")
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		return say("Ended", false, "has ended: %s", pod.Status.Phase)
	case hasStartGate(pod):
		return say("StartGate", true, "is not scheduled: its start gate waits until the database is migrated to what it requires, %s%s", requirementOf(pod), sentence(gate))
	case !gated && asks:
		return say(v1alpha1.ReasonPodsWithoutGate, false,
			"asks for the serve gate and was created without it, so nothing of Syncbarrier holds it; delete it, and the one that replaces it gets the gate%s", others(pod, out.Ready))
	case !gated && pod.Annotations[v1alpha1.AnnotationRequires] != "":
		return say("NotGated", false, "has the annotation %s, but %s, so the webhook left it alone and nothing of Syncbarrier holds it; label the template of the pod%s",
			v1alpha1.AnnotationRequires, wrongLabel(pod), others(pod, out.Ready))
	case !gated:
		return say("NotGated", false, "does not ask for the serve gate (label %s: %s), so nothing of Syncbarrier holds it%s",
			v1alpha1.LabelGate, v1alpha1.GateEnabled, others(pod, out.Ready))
	case gate.Status == "" && !asks:
		return say("NotJudged", true, "carries the serve gate without the label %s: %s, and was not judged yet; with the label it is, else when the operator starts",
			v1alpha1.LabelGate, v1alpha1.GateEnabled)
	case gate.Status == "":
		return say("NotJudged", true, "waits for the operator, which has not judged it yet; kubectl syncbarrier status shows whether it works")
	case gate.Status != corev1.ConditionTrue:
		return say(gate.Reason, true, "%s%s", labelled(asks, "is held by the serve gate"), sentence(gate))
	default:
		return say(gate.Reason, false, "%s%s%s", labelled(asks, "is let in by the serve gate"), sentence(gate), others(pod, out.Ready))
	}
}

// wrongLabel says what a pod has in place of the label that asks for the gate.
func wrongLabel(pod *corev1.Pod) string {
	if value, labelled := pod.Labels[v1alpha1.LabelGate]; labelled {
		return fmt.Sprintf("its label %s is %q, not %q", v1alpha1.LabelGate, value, v1alpha1.GateEnabled)
	}
	return fmt.Sprintf("not the label %s: %s", v1alpha1.LabelGate, v1alpha1.GateEnabled)
}

// labelled adds to what the gate does that the pod asks for it no more: the operator sets its condition all the same, until it is gone.
func labelled(asks bool, gateDoes string) string {
	if asks {
		return gateDoes
	}
	return fmt.Sprintf("has lost the label %s: %s and %s, which it keeps until it is replaced", v1alpha1.LabelGate, v1alpha1.GateEnabled, gateDoes)
}

// sentence is a condition's reason and message, as the end of a sentence.
func sentence(condition corev1.PodCondition) string {
	if condition.Reason == "" {
		return ""
	}
	message := strings.TrimSuffix(condition.Message, ".")
	if strings.Contains(message, " "+condition.Reason+" on ") { // the operator's own sentence has the reason behind the name and version
		return ": " + message
	}
	return ": " + reasonAndMessage(condition.Reason, message)
}

// others says what else keeps a pod from being Ready.
func others(pod *corev1.Pod, ready bool) string {
	if ready {
		return "; it is Ready"
	}
	var waits []string
	types := []corev1.PodConditionType{corev1.PodScheduled, corev1.PodInitialized, corev1.ContainersReady}
	for _, gate := range pod.Spec.ReadinessGates {
		if gate.ConditionType != v1alpha1.ReadinessGate {
			types = append(types, gate.ConditionType)
		}
	}
	for _, conditionType := range types {
		if condition := conditionOf(pod, conditionType); condition.Status != corev1.ConditionTrue {
			waits = append(waits, string(conditionType)+sentence(condition))
			if conditionType == corev1.PodScheduled || conditionType == corev1.PodInitialized {
				break // what comes after it cannot be true yet
			}
		}
	}
	if len(waits) == 0 {
		return "; the kubelet is about to make it Ready"
	}
	return "; it is not Ready for want of " + strings.Join(waits, ", ")
}

// conditionOf is a condition of a pod; without one its status is empty.
func conditionOf(pod *corev1.Pod, conditionType corev1.PodConditionType) corev1.PodCondition {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == conditionType {
			return condition
		}
	}
	return corev1.PodCondition{}
}

func carriesServeGate(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.ReadinessGates, corev1.PodReadinessGate{ConditionType: v1alpha1.ReadinessGate})
}

func hasStartGate(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.StartGate})
}

func requirementOf(pod *corev1.Pod) string {
	if text := strings.TrimSpace(pod.Annotations[v1alpha1.AnnotationRequires]); text != "" {
		return text
	}
	return "which it does not name (" + v1alpha1.AnnotationRequires + ")"
}
