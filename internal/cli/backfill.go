package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) backfillCommand() *cobra.Command {
	var token string
	var share backfill.Share
	cmd := &cobra.Command{
		Use:   "backfill CHECKPOINT",
		Short: "Run one declared backfill to its activation; the worker that Jobs run",
		Long: `Run one declared backfill to its activation. Its definition is read from the database.

Alone it claims the checkpoint and does all of it; a worker that runs already loses its ownership and leaves nothing behind.
With --claim it does one share of a claim made before (syncbarrier checkpoint claim): the key ranges r with r mod --of = --index.
A worker that is started again takes its own ranges back at once and goes on at their cursors.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if share.Of < 1 || share.Index < 0 || share.Index >= share.Of {
				return usagef("--index is 0 to %d for --of %d", share.Of-1, share.Of)
			}
			if token == "" && share.Of > 1 {
				return usagef("--index and --of need --claim: workers share one claim")
			}
			ctx, s, end, err := p.open(cmd.Context(), need{connections: 4})
			if err != nil {
				return err
			}
			defer end()
			return p.backfill(ctx, s, args[0], token, share)
		},
	}
	cmd.Flags().StringVar(&token, "claim", "", "token of the claim to work for")
	cmd.Flags().IntVar(&share.Index, "index", 0, "this worker's number, from 0")
	cmd.Flags().IntVar(&share.Of, "of", 1, "how many workers share the claim")
	return cmd
}

type backfillOutput struct {
	Reason     string `json:"reason"`
	Message    string `json:"message"`
	Checkpoint string `json:"checkpoint"`
	Total      int    `json:"partitions"`
	Activated  int    `json:"activated"`
	RowsDone   int64  `json:"rowsDone"`
}

func (p *Program) backfill(ctx context.Context, s *session, name, token string, share backfill.Share) error {
	definition, err := s.store.ReadDefinition(ctx, name)
	if err != nil {
		return err
	}
	if definition.Checkpoint.Backfill.External() {
		return storage.Refuse(storage.CodeInvalidSpec, "checkpoint %q is filled by a program of your own, so there is nothing to run here", name).
			WithHint("that program uses syncbarrier checkpoint claim, advance and activate")
	}
	err = p.runBackfill(ctx, s, name, func(r *backfill.Runner) error {
		if token == "" {
			return r.RunAll(ctx, name)
		}
		claim, err := s.store.ReadClaim(ctx, name, token)
		if err != nil {
			return err
		}
		return r.Run(ctx, claim, share)
	})
	if err != nil {
		return err
	}
	progress, err := s.store.ReadProgress(ctx, name)
	if err != nil {
		return err
	}
	out := backfillOutput{Reason: "Activated", Checkpoint: name, Total: progress.Total, Activated: progress.Activated, RowsDone: progress.RowsDone,
		Message: fmt.Sprintf("checkpoint %q is activated", name)}
	if progress.Activated < progress.Total {
		out.Reason, out.Message = "Backfilling", fmt.Sprintf("this worker's share of checkpoint %q is done, %d of %d partitions are activated",
			name, progress.Activated, progress.Total)
	}
	return p.print(out, func(w io.Writer) { _, _ = fmt.Fprintln(w, out.Message) })
}

// runBackfill shows the progress of a run, whoever does it.
func (p *Program) runBackfill(ctx context.Context, s *session, name string, run func(*backfill.Runner) error) error {
	progress, err := s.store.ReadProgress(ctx, name)
	if err != nil {
		return err
	}
	shown := p.newProgress(name, progress, func() int64 {
		now, err := s.store.ReadProgress(ctx, name)
		if err != nil {
			return 0 // only the end of the bar is lost; the run itself meets the error
		}
		return estimated(now)
	})
	defer shown.end()
	runner := &backfill.Runner{Store: s.store, Clock: p.Clock, Report: shown.event}
	if err := run(runner); err != nil {
		return fmt.Errorf("backfill %q: %w", name, err)
	}
	return nil
}

// estimated is what a bar goes up to: the database's estimate, but never less than what is done.
func estimated(progress storage.CheckpointProgress) int64 {
	return max(progress.RowsEstimated, progress.RowsDone, 1)
}
