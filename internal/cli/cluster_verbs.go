package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// verbOutput is what a verb that changed an object says.
type verbOutput struct {
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Changed   bool   `json:"changed"`
}

// clusterVerb makes a command that works on one SyncSchema of a cluster.
func (p *Program) clusterVerb(cmd *cobra.Command, run func(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema) (verbOutput, error)) *cobra.Command {
	var f clusterFlags
	f.add(cmd)
	cmd.Args = cobra.ExactArgs(1)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ctx, c, end, err := p.openCluster(cmd.Context(), f)
		if err != nil {
			return err
		}
		defer end()
		schema, err := c.schema(ctx, args[0])
		if err != nil {
			return err
		}
		out, err := run(ctx, c, schema)
		if err != nil {
			return err
		}
		out.Namespace, out.Name = schema.Namespace, schema.Name
		return p.print(out, func(w io.Writer) { writeLine(w, "%s", out.Message) })
	}
	return cmd
}

func (p *Program) suspendCommand() *cobra.Command {
	return p.clusterVerb(&cobra.Command{
		Use:   "suspend NAME",
		Short: "Stop barrier, Jobs and activation of a SyncSchema",
		Long: `Sets spec.suspend of a SyncSchema. No new barrier, Job or activation begins, and workers end after their batch. The serve gate
stays as it is, and so does the fence: programs that serve go on, and old writers stay out.

If a tool keeps the object as Git has it and Git has the field, the tool puts it back: then write it into Git.`,
		Example: "  kubectl syncbarrier suspend clinic -n shop",
	}, func(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema) (verbOutput, error) {
		if schema.Spec.Suspend {
			return verbOutput{Reason: v1alpha1.ReasonSuspended, Message: schema.Name + " is suspended already"}, nil
		}
		if err := p.setSuspend(ctx, c, schema, true); err != nil {
			return verbOutput{}, err
		}
		return verbOutput{Reason: v1alpha1.ReasonSuspended, Message: schema.Name + " is suspended; kubectl syncbarrier resume " + schema.Name + " lets it go on", Changed: true}, nil
	})
}

func (p *Program) resumeCommand() *cobra.Command {
	return p.clusterVerb(&cobra.Command{
		Use:     "resume NAME",
		Short:   "Let a suspended SyncSchema go on",
		Long:    "Sets spec.suspend of a SyncSchema to false. Work goes on from where the database says that it stopped.",
		Example: "  kubectl syncbarrier resume clinic -n shop",
	}, func(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema) (verbOutput, error) {
		if !schema.Spec.Suspend {
			return verbOutput{Reason: "Resumed", Message: schema.Name + " is not suspended"}, nil
		}
		if err := p.setSuspend(ctx, c, schema, false); err != nil {
			return verbOutput{}, err
		}
		return verbOutput{Reason: "Resumed", Message: schema.Name + " goes on", Changed: true}, nil
	})
}

// setSuspend writes spec.suspend, and warns if that will not last. Who else applies the field is seen before the write alone: it takes
// the field away from them, until they apply it again.
func (p *Program) setSuspend(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema, value bool) error {
	others := appliersOfSuspend(schema)
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, value))
	if err := c.client.Patch(ctx, schema, patch, client.FieldOwner(fieldManager)); err != nil {
		return clusterFailure(ctx, fmt.Sprintf("set spec.suspend of SyncSchema %s/%s", schema.Namespace, schema.Name), err)
	}
	for _, other := range others {
		writeLine(p.Err, "warning: %q applies spec.suspend too and may put it back; change it where that has it from", other)
	}
	return nil
}

// appliersOfSuspend names whoever else applies spec.suspend.
func appliersOfSuspend(schema *v1alpha1.SyncSchema) []string {
	var found []string
	for _, entry := range schema.ManagedFields {
		if entry.Operation != metav1.ManagedFieldsOperationApply || entry.Manager == fieldManager || entry.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Spec map[string]json.RawMessage `json:"f:spec"`
		}
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &fields); err != nil {
			continue // the fields of somebody else, in a form of their own: no reason to warn
		}
		if _, applies := fields.Spec["f:suspend"]; applies {
			found = append(found, entry.Manager)
		}
	}
	return found
}

func (p *Program) retryCommand() *cobra.Command {
	return p.clusterVerb(&cobra.Command{
		Use:   "retry NAME",
		Short: "Try a SyncSchema again now, without its pause",
		Long: `Writes the annotation ` + v1alpha1.AnnotationRetry + ` with the present time. The operator looks again at once. Use it after
something outside the object was put right, such as the fence by 'syncbarrier fence repair'; what only has to wait is tried again
without it.`,
		Example: "  kubectl syncbarrier retry clinic -n shop",
	}, func(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema) (verbOutput, error) {
		at := c.time.Now().UTC().Format(time.RFC3339)
		if err := c.annotate(ctx, schema, v1alpha1.AnnotationRetry, at); err != nil {
			return verbOutput{}, err
		}
		return verbOutput{Reason: "Retried", Message: schema.Name + " is tried again; kubectl syncbarrier watch " + schema.Name + " shows how it goes", Changed: true}, nil
	})
}

func (p *Program) approveCommand() *cobra.Command {
	var hash string
	cmd := p.clusterVerb(&cobra.Command{
		Use:   "approve NAME",
		Short: "Release the plan that a SyncSchema waits with",
		Long: `Releases the plan in status.plan of a SyncSchema with strategy.cutover: OnApproval, by the annotation
` + v1alpha1.AnnotationApprove + `: <version>@<plan hash>. It releases exactly that plan: if spec or database change before the operator
acts on it, another plan waits, for another approval.

Look at the plan first, with 'kubectl syncbarrier status NAME'. --hash makes sure that the plan released is the one that you looked at.`,
		Example: "  kubectl syncbarrier status clinic -n shop\n  kubectl syncbarrier approve clinic -n shop --hash 0123456789ab",
	}, func(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema) (verbOutput, error) {
		plan, err := planToApprove(schema, hash)
		if err != nil {
			return verbOutput{}, err
		}
		if err := c.annotate(ctx, schema, v1alpha1.AnnotationApprove, fmt.Sprintf("%d@%s", plan.Version, plan.Hash)); err != nil {
			return verbOutput{}, err
		}
		if !p.json() {
			writePlanned(p.Out, plan)
		}
		return verbOutput{Reason: "Approved", Message: fmt.Sprintf("plan %s of %s to version %d is approved", plan.Hash, schema.Name, plan.Version), Changed: true}, nil
	})
	cmd.Flags().StringVar(&hash, "hash", "", "approve only if the plan that waits has this hash")
	return cmd
}

// planToApprove gives the plan that waits, or says why none can be approved.
func planToApprove(schema *v1alpha1.SyncSchema, hash string) (*v1alpha1.Plan, error) {
	ready := readyOf(schema.Generation, schema.Status.ObservedGeneration, schema.Status.Conditions)
	plan := schema.Status.Plan
	switch {
	case ready.Reason == notObserved.Reason:
		return nil, &clusterError{notObserved.Reason, exitOther, fmt.Errorf("nothing of %s can be approved yet: %s", schema.Name, notObserved.Message)}
	case plan == nil:
		return nil, &clusterError{"NothingToApprove", exitOther, fmt.Errorf("%s has no plan that waits for an approval: Ready is %s, %s", schema.Name, ready.Status, reasonAndMessage(ready.Reason, ready.Message))}
	case hash != "" && hash != plan.Hash:
		return nil, &clusterError{"OtherPlan", exitOther, fmt.Errorf("the plan of %s that waits has the hash %s, not %s; look at it again with kubectl syncbarrier status %s", schema.Name, plan.Hash, hash, schema.Name)}
	}
	return plan, nil
}
