package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/legible"
)

// clusterStatus shows one SyncSchema with its checkpoints, or all of a namespace or of the cluster.
func (p *Program) clusterStatus(cmd *cobra.Command, f clusterFlags, name string, everywhere bool) error {
	ctx, c, end, err := p.openCluster(cmd.Context(), f)
	if err != nil {
		return err
	}
	defer end()
	if name != "" {
		schema, err := c.schema(ctx, name)
		if err != nil {
			return err
		}
		checkpoints, err := c.checkpoints(ctx, schema)
		if err != nil {
			return err
		}
		out := newSchemaOutput(schema, checkpoints)
		return p.print(out, func(w io.Writer) { writeSchema(w, schema, out) })
	}
	if everywhere {
		c.namespace = metav1.NamespaceAll
	}
	return p.listSchemas(ctx, c)
}

func (p *Program) listSchemas(ctx context.Context, c *cluster) error {
	list := &v1alpha1.SyncSchemaList{}
	if err := c.client.List(ctx, list, client.InNamespace(c.namespace)); err != nil {
		return clusterFailure(ctx, "list SyncSchemas", err)
	}
	out := struct {
		Schemas []schemaOutput `json:"schemas"`
	}{Schemas: []schemaOutput{}}
	for i := range list.Items {
		out.Schemas = append(out.Schemas, newSchemaOutput(&list.Items[i], nil))
	}
	return p.print(out, func(w io.Writer) {
		if len(out.Schemas) == 0 {
			writeLine(w, "no SyncSchemas in %s", where(c.namespace))
			return
		}
		var rows [][]string
		for _, s := range out.Schemas {
			rows = append(rows, []string{
				s.Namespace, s.Name, strconv.Itoa(int(s.Version)), number(s.StoredVersion), gateWord(s.GateOpen), s.Ready, s.Reason,
			})
		}
		table(w, []string{"NAMESPACE", "NAME", "VERSION", "STORED", "GATE", "READY", "REASON"}, rows)
	})
}

func where(namespace string) string {
	if namespace == metav1.NamespaceAll {
		return "this cluster"
	}
	return "namespace " + namespace
}

// schemaOutput is what is shown of a SyncSchema. Reason and message are those of Ready.
type schemaOutput struct {
	Reason           string                 `json:"reason"`
	Message          string                 `json:"message"`
	Namespace        string                 `json:"namespace"`
	Name             string                 `json:"name"`
	Ready            string                 `json:"ready"`
	Observed         bool                   `json:"observed"`
	Version          int32                  `json:"version"`
	StoredVersion    *int64                 `json:"storedVersion,omitempty"`
	MinWriterVersion *int64                 `json:"minWriterVersion,omitempty"`
	MinReaderVersion *int64                 `json:"minReaderVersion,omitempty"`
	GateOpen         *bool                  `json:"gateOpen,omitempty"`
	Suspended        bool                   `json:"suspended,omitempty"`
	Attempts         int32                  `json:"attempts,omitempty"`
	Blockers         []v1alpha1.Blocker     `json:"blockers,omitempty"`
	Plan             *v1alpha1.Plan         `json:"plan,omitempty"`
	Conditions       []metav1.Condition     `json:"conditions"`
	Checkpoints      []clusterCheckpointOut `json:"checkpoints,omitempty"`
}

type clusterCheckpointOut struct {
	Name       string                    `json:"name"`
	Checkpoint string                    `json:"checkpoint"`
	Version    int32                     `json:"version"`
	State      v1alpha1.CheckpointState  `json:"state,omitempty"`
	Partitions *v1alpha1.PartitionCounts `json:"partitions,omitempty"`
	Rows       *v1alpha1.RowProgress     `json:"rows,omitempty"`
	HoldReason string                    `json:"holdReason,omitempty"`
	JobName    string                    `json:"jobName,omitempty"`
	Ready      string                    `json:"ready"`
	Reason     string                    `json:"reason"`
	Message    string                    `json:"message"`
}

// notObserved is what Ready is while the operator has not looked at the object's newest generation.
var notObserved = metav1.Condition{
	Type: v1alpha1.ConditionReady, Status: metav1.ConditionUnknown, Reason: "NotObserved",
	Message: "the operator has not looked at this generation yet",
}

// readyOf gives Ready if it speaks of the object as it is now.
func readyOf(generation, observed int64, conditions []metav1.Condition) metav1.Condition {
	ready := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if ready == nil || observed != generation {
		return notObserved
	}
	return *ready
}

func newSchemaOutput(schema *v1alpha1.SyncSchema, checkpoints []v1alpha1.BackfillCheckpoint) schemaOutput {
	s := &schema.Status
	ready := readyOf(schema.Generation, s.ObservedGeneration, s.Conditions)
	out := schemaOutput{
		Reason: ready.Reason, Message: ready.Message, Namespace: schema.Namespace, Name: schema.Name, Ready: string(ready.Status),
		Observed: ready.Reason != notObserved.Reason, Version: schema.Spec.Version, StoredVersion: s.StoredVersion,
		MinWriterVersion: s.MinWriterVersion, MinReaderVersion: s.MinReaderVersion, GateOpen: s.GateOpen,
		Suspended: schema.Spec.Suspend, Attempts: s.Attempts, Blockers: s.Blockers, Plan: s.Plan,
		Conditions: append([]metav1.Condition{}, s.Conditions...),
	}
	for i := range checkpoints {
		b := &checkpoints[i]
		ready := readyOf(b.Generation, b.Status.ObservedGeneration, b.Status.Conditions)
		out.Checkpoints = append(out.Checkpoints, clusterCheckpointOut{
			Name: b.Name, Checkpoint: b.Spec.Name, Version: b.Spec.Version, State: b.Status.State, Partitions: b.Status.Partitions,
			Rows: b.Status.Rows, HoldReason: b.Status.HoldReason, JobName: b.Status.JobName,
			Ready: string(ready.Status), Reason: ready.Reason, Message: ready.Message,
		})
	}
	return out
}

func writeSchema(w io.Writer, schema *v1alpha1.SyncSchema, out schemaOutput) {
	writeLine(w, "%s in namespace %s asks for version %d", out.Name, out.Namespace, out.Version)
	writeLine(w, "")
	lines := [][2]string{{"ready", fmt.Sprintf("%s: %s", out.Ready, reasonAndMessage(out.Reason, out.Message))}, {"stored", "not read yet"}}
	if out.StoredVersion != nil {
		lines[1][1] = "version " + number(out.StoredVersion)
	}
	if out.MinWriterVersion != nil {
		lines = append(lines, [2]string{"fence", fenceWord(*out.MinWriterVersion)})
	}
	if out.MinReaderVersion != nil {
		lines = append(lines, [2]string{"readers", readersWord(*out.MinReaderVersion)})
	}
	lines = append(lines, [2]string{"gate", gateWord(out.GateOpen)})
	if out.Suspended {
		lines = append(lines, [2]string{"suspended", "yes; kubectl syncbarrier resume " + out.Name + " lets it go on"})
	}
	if out.Attempts > 0 {
		lines = append(lines, [2]string{"attempts", strconv.Itoa(int(out.Attempts))})
	}
	for _, condition := range worthShowing(out.Conditions) {
		lines = append(lines, [2]string{"note", condition.Type + "=" + string(condition.Status) + ": " + reasonAndMessage(condition.Reason, condition.Message)})
	}
	for _, line := range lines {
		writeLine(w, "%-9s %s", line[0], line[1])
	}
	writeBlockers(w, out.Blockers, schema.Status.BlockersTotal)
	if out.Plan != nil {
		writeClusterPlan(w, out.Name, out.Plan)
	}
	writeClusterCheckpoints(w, out.Checkpoints, out.Message)
}

// worthShowing are the conditions that say more than Ready does.
func worthShowing(conditions []metav1.Condition) []metav1.Condition {
	said := []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled, v1alpha1.ConditionMigrated,
		v1alpha1.ConditionFenced, v1alpha1.ConditionGateOpen, v1alpha1.ConditionSuspended,
	}
	var found []metav1.Condition
	for _, condition := range conditions {
		good := condition.Status == metav1.ConditionFalse
		if condition.Type == v1alpha1.ConditionWorkloadsSafe {
			good = condition.Status == metav1.ConditionTrue
		}
		if !slices.Contains(said, condition.Type) && !good {
			found = append(found, condition)
		}
	}
	return found
}

func writeBlockers(w io.Writer, blockers []v1alpha1.Blocker, total int32) {
	if len(blockers) == 0 {
		return
	}
	writeLine(w, "")
	writeLine(w, "%d held the locks that the last attempt did not get:", max(total, int32(len(blockers))))
	var rows [][]string
	for _, b := range blockers {
		rows = append(rows, []string{b.Kind, strconv.Itoa(int(b.PID)), cell(b.Name), cell(b.User), cell(b.Table), fmt.Sprintf("%d s", b.HeldSeconds)})
	}
	table(w, []string{"KIND", "PID", "NAME", "USER", "TABLE", "OPEN FOR"}, rows)
}

func writeClusterPlan(w io.Writer, name string, plan *v1alpha1.Plan) {
	writeLine(w, "")
	writeLine(w, "plan %s to version %d waits for an approval: kubectl syncbarrier approve %s", plan.Hash, plan.Version, name)
	writePlanned(w, plan)
}

// writePlanned says what a plan would do.
func writePlanned(w io.Writer, plan *v1alpha1.Plan) {
	var locks []string
	for _, lock := range plan.Locks {
		locks = append(locks, legible.Name(lock.Table)+" "+lock.Mode)
	}
	if more := int(plan.LocksTotal) - len(locks); more > 0 {
		locks = append(locks, fmt.Sprintf("and %d more", more))
	}
	if len(locks) == 0 {
		locks = append(locks, "none")
	}
	writeLine(w, "  locks             %s", strings.Join(locks, ", "))
	writeLine(w, "  rows rewritten    about %d, under the locks", plan.RowsRewritten)
	writeLine(w, "  rows backfilled   about %d", plan.RowsBackfilled)
	writeLine(w, "  old programs out  for about %s", milliseconds(plan.ExpectedPauseMilliseconds))
}

func writeClusterCheckpoints(w io.Writer, checkpoints []clusterCheckpointOut, said string) {
	if len(checkpoints) == 0 {
		return
	}
	writeLine(w, "")
	var rows [][]string
	for _, c := range checkpoints {
		state := string(c.State)
		if state == "" {
			state = "not declared"
		}
		rows = append(rows, []string{cell(c.Checkpoint), strconv.Itoa(int(c.Version)), state, activatedWord(c.Partitions), progressWord(c.Rows), c.Reason, holdOr(unsaid(c.HoldReason, said), c.JobName)})
	}
	table(w, []string{"CHECKPOINT", "VERSION", "STATE", "ACTIVATED", "ROWS", "REASON", "JOB"}, rows)
}

func holdOr(hold, job string) string {
	if hold != "" {
		return strings.TrimSpace(job + " (held: " + hold + ")")
	}
	return job
}

// unsaid is a text, or nothing where what was said before has it.
func unsaid(text, said string) string {
	if strings.Contains(said, strings.TrimSuffix(text, ".")) {
		return ""
	}
	return text
}

func activatedWord(counts *v1alpha1.PartitionCounts) string {
	if counts == nil {
		return "-"
	}
	return fmt.Sprintf("%d/%d", counts.Activated, counts.Total)
}

func progressWord(rows *v1alpha1.RowProgress) string {
	if rows == nil {
		return "-"
	}
	word := strconv.FormatInt(rows.Done, 10)
	if rows.Estimated != nil {
		word += " of about " + number(rows.Estimated)
	}
	if rows.SecondsLeft != nil {
		word += ", " + milliseconds(*rows.SecondsLeft*1000) + " left"
	}
	return word
}

func reasonAndMessage(reason, message string) string {
	if message == "" {
		return reason
	}
	return reason + ": " + message
}

func gateWord(open *bool) string {
	switch {
	case open == nil:
		return "not read yet"
	case *open:
		return "open"
	default:
		return "closed"
	}
}

func number(value *int64) string {
	if value == nil {
		return "-"
	}
	return strconv.FormatInt(*value, 10)
}

// milliseconds writes a duration for people.
func milliseconds(value int64) string {
	d := time.Duration(value) * time.Millisecond
	if d >= time.Second {
		d = d.Round(time.Second)
	}
	return d.String()
}

func isStalled(schema *v1alpha1.SyncSchema) bool {
	return meta.IsStatusConditionTrue(schema.Status.Conditions, v1alpha1.ConditionStalled)
}
