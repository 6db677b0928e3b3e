package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// followEvery is how often a watched SyncSchema is read. Two reads a second are nothing to an API server, and unlike a
// watch they go on by themselves when it was away.
const followEvery = time.Second

func (p *Program) watchCommand() *cobra.Command {
	var f clusterFlags
	cmd := &cobra.Command{
		Use:   "watch NAME",
		Short: "Follow a SyncSchema until it is Ready, or a person must act",
		Long: `Prints a line for each change of a SyncSchema and of its backfills, and ends

  with 0         when it is Ready: the gate of its version is open
  with 20 to 29  when it is Stalled: nothing goes on before a person acts (1 for a reason that has no code)
  with 4         after --timeout

A verdict from before a 'retry' of the last 30 seconds ends nothing: the operator has that long to come to another.

An API server that is away for a while is waited for. With -o json each line is an object of its own.`,
		Example: "  kubectl syncbarrier watch clinic -n shop --timeout 30m",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, c, end, err := p.openCluster(cmd.Context(), f)
			if err != nil {
				return err
			}
			defer end()
			return (&follower{program: p, cluster: c, name: args[0]}).follow(ctx)
		},
	}
	f.add(cmd)
	return cmd
}

// follower prints what becomes of one SyncSchema.
type follower struct {
	program *Program
	cluster *cluster
	name    string
	said    string // the last line, so that nothing is said twice
	waited  bool   // for what the operator says to a request for another attempt
}

// retryWait is how long after a request for another attempt a verdict that is older than the request is not believed. An operator that comes
// to the same verdict again leaves its time as it was, so no more can be told.
const retryWait = 30 * time.Second

// beforeRetry says that the object is Stalled by a verdict of before the request of a person that was made just now.
func (f *follower) beforeRetry(schema *v1alpha1.SyncSchema) bool {
	asked, err := time.Parse(time.RFC3339, schema.Annotations[v1alpha1.AnnotationRetry])
	return err == nil && f.cluster.time.Now().Sub(asked).Abs() < retryWait && olderThanRetry(schema)
}

func olderThanRetry(schema *v1alpha1.SyncSchema) bool {
	asked, err := time.Parse(time.RFC3339, schema.Annotations[v1alpha1.AnnotationRetry])
	verdict := meta.FindStatusCondition(schema.Status.Conditions, v1alpha1.ConditionStalled)
	return err == nil && verdict != nil && verdict.Status == metav1.ConditionTrue && !verdict.LastTransitionTime.After(asked)
}

// follow reads and shows until the object is Ready or Stalled.
func (f *follower) follow(ctx context.Context) error {
	for {
		schema, checkpoints, err := f.read(ctx)
		var failed *clusterError
		switch {
		case errors.As(err, &failed) && failed.reason == "Unreachable":
			f.line(watchLine{Reason: failed.reason, Message: failed.Error()})
		case err != nil:
			return err
		default:
			out := newSchemaOutput(schema, checkpoints)
			if f.beforeRetry(schema) {
				f.line(watchLine{Reason: "Retried", Message: "another attempt was asked for; what the operator says is of before: " + out.Reason})
				f.waited = true
				break
			}
			if f.waited && isStalled(schema) && olderThanRetry(schema) {
				f.line(watchLine{Reason: "Retried", Message: fmt.Sprintf("%s after another attempt was asked for the verdict has not changed", retryWait)})
			}
			f.line(newWatchLine(out))
			if done, err := outcome(schema, out); done {
				return err
			}
		}
		if err := f.program.Clock.Sleep(ctx, followEvery); err != nil {
			return err
		}
	}
}

func (f *follower) read(ctx context.Context) (*v1alpha1.SyncSchema, []v1alpha1.BackfillCheckpoint, error) {
	schema, err := f.cluster.schema(ctx, f.name)
	if err != nil {
		return nil, nil, err
	}
	checkpoints, err := f.cluster.checkpoints(ctx, schema)
	return schema, checkpoints, err
}

// outcome says whether there is nothing more to wait for, and with which exit code.
func outcome(schema *v1alpha1.SyncSchema, out schemaOutput) (bool, error) {
	switch {
	case !out.Observed:
		return false, nil
	case out.Ready == "True":
		return true, nil
	case isStalled(schema):
		if code, known := exitOfClass[storage.Class(out.Reason)]; known {
			return true, reported{code}
		}
		return true, reported{exitOther}
	}
	return false, nil
}

// watchLine is what is said of one moment.
type watchLine struct {
	Reason      string            `json:"reason"`
	Message     string            `json:"message"`
	Ready       string            `json:"ready,omitempty"`
	Checkpoints map[string]string `json:"checkpoints,omitempty"`
	text        string
}

func newWatchLine(out schemaOutput) watchLine {
	line := watchLine{Reason: out.Reason, Message: out.Message, Ready: out.Ready}
	parts := []string{reasonAndMessage(out.Reason, out.Message)}
	for _, c := range out.Checkpoints {
		if c.Ready == "True" {
			continue
		}
		if line.Checkpoints == nil {
			line.Checkpoints = map[string]string{}
		}
		word := reasonAndMessage(c.Reason, unsaid(c.HoldReason, out.Message))
		if c.Rows != nil {
			word += ", rows " + progressWord(c.Rows)
		}
		line.Checkpoints[c.Checkpoint] = word
		parts = append(parts, c.Checkpoint+": "+word)
	}
	line.text = strings.Join(parts, "; ")
	return line
}

// line says what has not been said yet.
func (f *follower) line(line watchLine) {
	text := line.text
	if text == "" {
		text = reasonAndMessage(line.Reason, line.Message)
	}
	if text == f.said {
		return
	}
	f.said = text
	if !f.program.json() {
		writeLine(f.program.Out, "%s  %s", f.program.Clock.Now().Format(time.TimeOnly), text)
		return
	}
	encoder := json.NewEncoder(f.program.Out)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(line) // a closed terminal is no reason to stop
}
