package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"os/user"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
)

func (p *Program) abandonCommand() *cobra.Command {
	var version int64
	var reason string
	var yes bool
	cmd := p.onCheckpoint("abandon NAME --version V --reason R --yes",
		"Give a checkpoint up: the gate no longer needs it, its name stays used, its data stays as it is", need{connections: 2},
		func(ctx context.Context, s *session, name string) error {
			rows, err := s.store.AbandonCheckpoint(ctx, name, version, whoami(), reason)
			if err != nil {
				return err
			}
			return p.print(map[string]any{"reason": "Abandoned", "message": fmt.Sprintf("checkpoint %q is abandoned", name), "rows": rows}, func(w io.Writer) {
				writeLine(w, "%s", abandonedWord(name, version, rows))
			})
		})
	cmd.PreRunE = func(_ *cobra.Command, args []string) error {
		switch {
		case reason == "" || version == 0:
			return usagef("--version and --reason are needed; they are kept in the history")
		case strings.ContainsFunc(reason, unicode.IsControl):
			return usagef("--reason is one line of text")
		case !yes:
			return usagef("rows that checkpoint %q has not filled stay unfilled, and the gate opens without them; say --yes", args[0])
		}
		return nil
	}
	cmd.Flags().Int64Var(&version, "version", 0, "the checkpoint's version")
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the history")
	cmd.Flags().BoolVar(&yes, "yes", false, "do it")
	return cmd
}

// abandonedWord says that the rows that went were those of the catalog.
func abandonedWord(name string, version int64, rows int) string {
	return fmt.Sprintf("checkpoint %q of version %d is given up: %s of its progress deleted, no row of yours was touched",
		name, version, countOf(int64(rows), "record", "records"))
}

// whoami names the person for the history.
func whoami() string {
	if current, err := user.Current(); err == nil {
		return current.Username
	}
	return "unknown"
}

func (p *Program) pruneCommand() *cobra.Command {
	var partition string
	var to int64
	var force bool
	cmd := &cobra.Command{
		Use:   "prune --partition P [--to SEQ]",
		Short: "Delete the log of a partition, whole or up to a position, but not what an open checkpoint still needs",
		Long: "Deletes the log of a partition, whole or up to a position. What an open checkpoint still needs is refused and named.\n\n" +
			"Programs that follow the sync protocol read the log too, to bring clients up to date: a client that is behind what was deleted begins anew. " +
			"The log of captured tables is Syncbarrier's own, and is pruned by itself as backfills move on.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if partition == "" || to < 1 {
				return usagef("--partition is needed, and --to is 1 or more")
			}
			ctx, s, end, err := p.open(cmd.Context(), need{connections: 1})
			if err != nil {
				return err
			}
			defer end()
			horizon, err := s.store.Prune(ctx, partition, to, force)
			if err != nil {
				return err
			}
			return p.print(map[string]any{"reason": "Pruned", "message": "pruned", "partition": partition, "horizon": horizon}, func(w io.Writer) {
				if horizon == 0 {
					writeLine(w, "partition %q has no log, nothing is gone", partition)
					return
				}
				writeLine(w, "partition %q: the log at or below %d is gone", partition, horizon)
			})
		},
	}
	cmd.Flags().StringVar(&partition, "partition", "", "the partition")
	cmd.Flags().Int64Var(&to, "to", math.MaxInt64, "delete commits up to this sequence number (default: all there are)")
	cmd.Flags().Lookup("to").DefValue = "0" // so that the help does not show the largest number there is
	cmd.Flags().BoolVar(&force, "force", false, "even if an open checkpoint then has to begin again")
	return cmd
}

func (p *Program) removeCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove",
		Short: "Show what is ours in the database; with --yes drop it. Your tables and columns and the sync protocol's tables stay",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, end, err := p.open(cmd.Context(), need{connections: 2})
			if err != nil {
				return err
			}
			defer end()
			statements, err := s.store.Remove(ctx, yes)
			if err != nil {
				return err
			}
			return p.print(map[string]any{"reason": removeWord(yes), "message": removeWord(yes), "statements": statements}, func(w io.Writer) {
				for _, statement := range statements {
					writeStatements(w, "", []string{statement + ";"})
				}
				if len(statements) == 0 {
					writeLine(w, "nothing of Syncbarrier's is here")
				}
				if !yes && len(statements) > 0 {
					writeLine(w, "-- nothing was changed; --yes runs this. The fence goes with it: old programs can write again.")
				}
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "run it")
	return cmd
}

func removeWord(applied bool) string {
	if applied {
		return "Removed"
	}
	return "Planned"
}
