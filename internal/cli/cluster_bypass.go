package cli

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

const (
	// longestBypass is more than any incident takes: what lasts longer is gate.mode Report, in Git.
	longestBypass = 7 * 24 * time.Hour
	// longestReason is what of a reason the condition of a pod has room for.
	longestReason = 200
)

func (p *Program) bypassCommand() *cobra.Command {
	var lasts time.Duration
	var reason string
	var end bool
	cmd := p.clusterVerb(&cobra.Command{
		Use:   "bypass NAME --for DURATION --reason TEXT",
		Short: "Open the gate of a SyncSchema for pods, by decision and not by proof, until a time",
		Long: `Writes the annotation ` + v1alpha1.AnnotationBypass + `: the time at which it ends, and why. Until then every pod that requires the
SyncSchema is let into its Services, whatever the database shows. Condition GateBypassed, an event and a metric say so.

The fence is not touched: the database goes on refusing programs that are too old to write. A program that asks the database itself, by
'syncbarrier gate' or the package servegate, is not answered otherwise than before.

--end takes a bypass back before its time. Pods that were let in by it are judged anew.`,
		Example: "  kubectl syncbarrier bypass clinic -n shop --for 1h --reason 'INC-4711: reads of half-filled names are acceptable'\n" +
			"  kubectl syncbarrier bypass clinic -n shop --end",
	}, func(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema) (verbOutput, error) {
		if end {
			return p.endBypass(ctx, c, schema)
		}
		until := c.time.Now().Add(lasts).UTC().Truncate(time.Second)
		value := until.Format(time.RFC3339) + ";" + reason
		if err := c.annotate(ctx, schema, v1alpha1.AnnotationBypass, value); err != nil {
			return verbOutput{}, err
		}
		return verbOutput{Reason: v1alpha1.ReasonBypassed, Changed: true, Message: fmt.Sprintf(
			"the gate of %s is open for pods until %s; kubectl syncbarrier bypass %s --end ends it before", schema.Name, until.Format(time.RFC3339), schema.Name)}, nil
	})
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long, such as 30m or 1h; at most 168h")
	cmd.Flags().StringVar(&reason, "reason", "", "why; it stands in the condition of every pod")
	cmd.Flags().BoolVar(&end, "end", false, "take a bypass back")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		reason = strings.TrimSpace(reason)
		if err := checkBypass(lasts, reason, end); err != nil {
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// checkBypass says what of a bypass cannot be.
func checkBypass(lasts time.Duration, reason string, end bool) error {
	switch {
	case end && (lasts != 0 || reason != ""):
		return usagef("--end takes neither --for nor --reason")
	case end:
		return nil
	case lasts < time.Second:
		return usagef("--for is required, such as 1h: a bypass must end")
	case lasts > longestBypass:
		return usagef("--for %s is longer than %s; what is to last is spec.gate.mode: Report", lasts, longestBypass)
	case reason == "":
		return usagef("--reason says why, to whoever sees the pods")
	case len(reason) > longestReason:
		return usagef("--reason has %d bytes, more than %d", len(reason), longestReason)
	case strings.ContainsFunc(reason, unicode.IsControl):
		return usagef("--reason is one line of text")
	}
	return nil
}

func (p *Program) endBypass(ctx context.Context, c *cluster, schema *v1alpha1.SyncSchema) (verbOutput, error) {
	if _, given := schema.Annotations[v1alpha1.AnnotationBypass]; !given {
		return verbOutput{Reason: "NotBypassed", Message: "the gate of " + schema.Name + " has no bypass"}, nil
	}
	if err := c.removeAnnotation(ctx, schema, v1alpha1.AnnotationBypass); err != nil {
		return verbOutput{}, err
	}
	return verbOutput{Reason: "BypassEnded", Message: "the bypass of " + schema.Name + " is taken back", Changed: true}, nil
}
