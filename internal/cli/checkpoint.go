package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List, declare, claim, advance, activate or abandon checkpoints: the protocol for a program of your own",
		Long: `A checkpoint whose backfill is a program of your own is worked on like this:

  syncbarrier checkpoint claim NAME                      prints a token and, for each partition, owner epoch and watermark
  ... your program fills the rows of a partition ...
  syncbarrier checkpoint advance NAME --partition P --epoch E --claim TOKEN --watermark W --rows N
  syncbarrier checkpoint activate NAME --partition P --epoch E --claim TOKEN --watermark W

activate answers activated, changed (fill what the log shows above the watermark and try again), lost (another claim owns it)
or unverifiable (claim again and start over).

In a Job of the operator (backfill.job) the container named worker finds this program at $SYNCBARRIER, the database's address as files
in $SYNCBARRIER_DATABASE_FILE, which these verbs read by themselves, and its claim in $SYNCBARRIER_CLAIM for $SYNCBARRIER_CHECKPOINT:

  $SYNCBARRIER checkpoint claim $SYNCBARRIER_CHECKPOINT --claim $SYNCBARRIER_CLAIM     reads that claim back, with epochs and watermarks

It is one of $SYNCBARRIER_WORKERS, the one with the number $JOB_COMPLETION_INDEX. Exit codes 10 and 20 to 29 end its Job for good.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(p.checkpointList(), p.checkpointDeclare(), p.checkpointClaim(), p.checkpointAdvance(), p.checkpointActivate(),
		p.abandonCommand())
	return cmd
}

// onCheckpoint makes a verb that works on the database with one named checkpoint.
func (p *Program) onCheckpoint(use, short string, n need, do func(ctx context.Context, s *session, name string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, s, end, err := p.open(cmd.Context(), n)
			if err != nil {
				return err
			}
			defer end()
			return do(ctx, s, args[0])
		},
	}
}

func (p *Program) checkpointList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the checkpoints with their progress", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, end, err := p.open(cmd.Context(), need{connections: 1})
			if err != nil {
				return err
			}
			defer end()
			status, err := s.store.Status(ctx)
			if err != nil {
				return err
			}
			checkpoints := []checkpointOutput{}
			for _, c := range status.Checkpoints {
				checkpoints = append(checkpoints, newCheckpointOutput(c))
			}
			out := listOutput{Reason: "Listed", Message: countOf(int64(len(checkpoints)), "checkpoint", "checkpoints"), Checkpoints: checkpoints}
			return p.print(out, func(w io.Writer) { writeCheckpoints(w, checkpoints) })
		},
	}
}

func (p *Program) checkpointDeclare() *cobra.Command {
	return p.onCheckpoint("declare NAME -f FILE", "Declare a standalone checkpoint of the file outside a barrier", need{file: true, connections: 1},
		func(ctx context.Context, s *session, name string) error {
			for _, c := range s.target.Checkpoints {
				if c.Name != name {
					continue
				}
				rows, err := s.store.DeclareCheckpoint(ctx, c, s.target.Tables)
				if err != nil {
					return err
				}
				out := declareOutput{Reason: "Declared", Message: fmt.Sprintf("checkpoint %q is declared", name), Rows: rows}
				return p.print(out, func(w io.Writer) { writeRows(w, rows) })
			}
			return storage.Refuse(storage.CodeInvalidSpec, "%s has no checkpoint %q", s.file.Name, name)
		})
}

type listOutput struct {
	Reason      string             `json:"reason"`
	Message     string             `json:"message"`
	Checkpoints []checkpointOutput `json:"checkpoints"`
}

type declareOutput struct {
	Reason  string                  `json:"reason"`
	Message string                  `json:"message"`
	Rows    []storage.CheckpointRow `json:"rows"`
}

type claimOutput struct {
	Reason  string                  `json:"reason"`
	Message string                  `json:"message"`
	Name    string                  `json:"name"`
	Token   string                  `json:"claim"`
	Rows    []storage.CheckpointRow `json:"rows"`
}

func (p *Program) checkpointClaim() *cobra.Command {
	var partition, token string
	var restart bool
	cmd := p.onCheckpoint("claim NAME", "Claim a checkpoint: whoever worked on it before can change nothing any more", need{connections: 1},
		func(ctx context.Context, s *session, name string) error {
			var claim storage.Claim
			var err error
			if token != "" {
				claim, err = s.store.ReadClaim(ctx, name, token)
			} else if partition != "" {
				claim, err = s.store.ClaimCheckpoint(ctx, partition, name)
			} else {
				claim, err = s.store.ClaimAll(ctx, name, restart)
			}
			if err != nil {
				return err
			}
			out := claimOutput{Reason: "Claimed", Name: claim.Name, Token: claim.Token, Rows: claim.Rows,
				Message: fmt.Sprintf("this claim has %s of checkpoint %q", countOf(int64(len(claim.Rows)), "row", "rows"), claim.Name)}
			return p.print(out, func(w io.Writer) {
				writeLine(w, "claim %s", claim.Token)
				writeRows(w, claim.Rows)
			})
		})
	cmd.Flags().StringVar(&partition, "partition", "", "claim this partition's row only")
	cmd.Flags().StringVar(&token, "claim", "", "read back the claim with this token instead of making another: a container of yours in a Job has it in SYNCBARRIER_CLAIM")
	cmd.Flags().BoolVar(&restart, "restart", false, "begin the pass again, after an unverifiable verdict")
	cmd.MarkFlagsMutuallyExclusive("claim", "partition", "restart")
	cmd.PreRunE = notEmpty("claim", "partition")
	return cmd
}

// notEmpty refuses flags that were given and say nothing, as an unset variable of a script does: taken for left out, --claim "" would take the
// work from whoever is at it.
func notEmpty(names ...string) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, _ []string) error {
		for _, name := range names {
			if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
				return usagef("--%s is empty", name)
			}
		}
		return nil
	}
}

// ownershipFlags are those that name a claimed row.
func ownershipFlags(cmd *cobra.Command, o *storage.Ownership, watermark *int64) {
	cmd.Flags().StringVar(&o.Partition, "partition", storage.AllPartitions, "the row's partition; "+storage.AllPartitions+" where the checkpoint covers all")
	cmd.Flags().Int64Var(&o.OwnerEpoch, "epoch", 0, "owner epoch of the claim")
	cmd.Flags().StringVar(&o.Token, "claim", "", "token of the claim")
	cmd.Flags().Int64Var(watermark, "watermark", 0, "position in the log up to which every change is in the data")
	for _, name := range []string{"epoch", "claim", "watermark"} {
		_ = cmd.MarkFlagRequired(name) // the flags exist
	}
	cmd.PreRunE = notEmpty("claim", "partition")
}

func (p *Program) checkpointAdvance() *cobra.Command {
	var advance storage.Advance
	cmd := p.onCheckpoint("advance NAME", "Move a claimed row's watermark", need{connections: 1},
		func(ctx context.Context, s *session, name string) error {
			advance.Name = name
			owned, err := s.store.AdvanceCheckpoint(ctx, advance)
			if err != nil {
				return err
			}
			if !owned {
				return storage.Refuse(storage.CodeOwnershipLost, "checkpoint %q, partition %q: not advanced: another claim owns it, it is activated, or the watermark would go down",
					name, advance.Partition)
			}
			return p.print(map[string]any{"reason": "Advanced", "message": "advanced", "watermark": advance.Watermark}, func(w io.Writer) {
				writeLine(w, "advanced to %d", advance.Watermark)
			})
		})
	ownershipFlags(cmd, &advance.Ownership, &advance.Watermark)
	cmd.Flags().Int64Var(&advance.ObservedRows, "rows", 0, "rows done so far, for status")
	return cmd
}

func (p *Program) checkpointActivate() *cobra.Command {
	var owner storage.Ownership
	var watermark int64
	cmd := p.onCheckpoint("activate NAME", "Activate a claimed row if the log shows no change above the watermark", need{connections: 1},
		func(ctx context.Context, s *session, name string) error {
			owner.Name = name
			outcome, err := s.store.ActivateCheckpoint(ctx, owner, watermark)
			if err != nil {
				return err
			}
			if err := p.print(map[string]any{"reason": string(outcome), "message": activationSentence[outcome]}, func(w io.Writer) {
				writeLine(w, "%s: %s", outcome, activationSentence[outcome])
			}); err != nil {
				return err
			}
			return activationExit[outcome]
		})
	ownershipFlags(cmd, &owner, &watermark)
	return cmd
}

var activationSentence = map[storage.Outcome]string{
	storage.OutcomeActivated:    "every source change is in the data",
	storage.OutcomeChanged:      "the log shows source changes above the watermark; apply them and try again",
	storage.OutcomeLost:         "another claim owns this row",
	storage.OutcomeUnverifiable: "the log cannot answer; claim again with --restart and start over",
}

var activationExit = map[storage.Outcome]error{
	storage.OutcomeChanged:      reported{exitGaveUp},
	storage.OutcomeLost:         reported{exitOwnershipLost},
	storage.OutcomeUnverifiable: reported{29},
}

func writeRows(w io.Writer, rows []storage.CheckpointRow) {
	var lines [][]string
	for _, r := range rows {
		lines = append(lines, []string{cell(r.Name), cell(r.Partition), strconv.FormatInt(r.Version, 10), string(r.State),
			strconv.FormatInt(r.Watermark, 10), strconv.FormatInt(r.OwnerEpoch, 10), strconv.FormatInt(r.ObservedRows, 10)})
	}
	table(w, []string{"CHECKPOINT", "PARTITION", "VERSION", "STATE", "WATERMARK", "EPOCH", "ROWS"}, lines)
}
