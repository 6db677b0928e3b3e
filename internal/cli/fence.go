package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) fenceCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fence",
		Short: "Check or repair what the database enforces: the writer fence and the guards",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(
		p.fenceVerb("check", "Find every way in which fence and guards are weakened; exit 0: intact, 27: not"),
		p.fenceVerb("repair", "Put fence and guards back and count the commits that got in meanwhile"),
	)
	return cmd
}

type fenceOutput struct {
	Reason           string                 `json:"reason"`
	Message          string                 `json:"message"`
	MinWriterVersion int64                  `json:"minWriterVersion"`
	Findings         []storage.FenceFinding `json:"findings"`
	Repaired         []string               `json:"repaired"`
	GotIn            int64                  `json:"gotIn"`
}

func (p *Program) fenceVerb(verb, short string) *cobra.Command {
	return &cobra.Command{
		Use: verb, Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, end, err := p.open(cmd.Context(), need{connections: 2})
			if err != nil {
				return err
			}
			defer end()
			act := s.store.CheckFence
			if verb == "repair" {
				act = s.store.RepairFence
			}
			report, err := act(ctx)
			if err != nil {
				return err
			}
			out := fenceOutput{Reason: "Intact", MinWriterVersion: report.MinWriterVersion, Findings: report.Findings, Repaired: report.Repaired, GotIn: report.GotIn,
				Message: fmt.Sprintf("fence and guards are intact; writers from version %d on are accepted", report.MinWriterVersion)}
			if !report.Intact() {
				out.Reason = string(storage.ClassFenceBroken)
				out.Message = fmt.Sprintf("%s; %s got in below the fence", countOf(int64(len(report.Findings)), "finding", "findings"), countOf(report.GotIn, "commit", "commits"))
			}
			if err := p.print(out, func(w io.Writer) { writeFence(w, out) }); err != nil {
				return err
			}
			if !report.Intact() {
				return reported{exitOfClass[storage.ClassFenceBroken]}
			}
			return nil
		},
	}
}

func writeFence(w io.Writer, out fenceOutput) {
	writeLine(w, "%s", out.Message)
	section(w, "repaired", out.Repaired)
	if len(out.Findings) > 0 {
		writeLine(w, "found:")
	}
	for _, f := range out.Findings {
		var more string
		if f.Rows > 0 {
			more = fmt.Sprintf(" (%d rows)", f.Rows)
		}
		if f.Repairable {
			more += " -> syncbarrier fence repair"
		}
		writeLine(w, "  %s: %s%s", f.Object, f.Problem, more)
	}
	if out.GotIn > 0 && len(out.Findings) == 0 {
		writeLine(w, "%d commits were stored below the fence", out.GotIn)
	}
}
