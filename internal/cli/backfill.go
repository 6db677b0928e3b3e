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
A worker that is started again takes its own ranges back at once and goes on at their cursors. It waits for a database that cannot be
reached, reads --database-file again when the credentials are refused or changed, logs in lines (-o json: as JSON), and ends with 0
only if the database says that its share is done.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if share.Of < 1 || share.Index < 0 || share.Index >= share.Of {
				return usagef("--index is 0 to %d for --of %d", share.Of-1, share.Of)
			}
			if token == "" && share.Of > 1 {
				return usagef("--index and --of need --claim: workers share one claim")
			}
			if token != "" {
				return p.newWorker(args[0], token, share).run(cmd.Context())
			}
			ctx, s, end, err := p.open(cmd.Context(), need{connections: 4, waits: lockOnly})
			if err != nil {
				return err
			}
			defer end()
			return p.backfill(ctx, s, args[0])
		},
	}
	cmd.PreRunE = notEmpty("claim")
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

// runnable refuses what a program of the user's own fills.
func runnable(definition storage.Definition) error {
	if !definition.Checkpoint.Backfill.External() {
		return nil
	}
	return storage.Refuse(storage.CodeInvalidSpec, "checkpoint %q is filled by a program of your own, so there is nothing to run here", definition.Name).
		WithHint("that program uses syncbarrier checkpoint claim, advance and activate")
}

func (p *Program) backfill(ctx context.Context, s *session, name string) error {
	definition, err := s.store.ReadDefinition(ctx, name)
	if err != nil {
		return err
	}
	if err := runnable(definition); err != nil {
		return err
	}
	err = p.runBackfill(ctx, s, name, func(r *backfill.Runner) error { return r.RunAll(ctx, name) })
	if err != nil {
		return err
	}
	progress, err := s.store.ReadProgress(ctx, name)
	if err != nil {
		return err
	}
	out := backfillOutput{Reason: "Activated", Checkpoint: name, Total: progress.Total, Activated: progress.Activated, RowsDone: progress.RowsDone,
		Message: fmt.Sprintf("checkpoint %q is activated", name)}
	return p.print(out, func(w io.Writer) { writeLine(w, "%s", out.Message) })
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
	shown.finished()
	return nil
}

// estimated is what a bar goes up to: the database's estimate, but never less than what is done.
func estimated(progress storage.CheckpointProgress) int64 {
	return max(progress.RowsEstimated, progress.RowsDone, 1)
}
