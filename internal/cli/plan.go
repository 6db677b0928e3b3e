package cli

import (
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) planCommand() *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use:   "plan -f FILE",
		Short: "Show what apply would run, which locks it takes and how long it would hold writers up; change nothing",
		Long: `Show what apply would do now, and change nothing: its locks in their order, its statements, whom the fence would refuse, which backfills follow and
how many rows they go over, how long old programs would be kept from writing, and who writes to the sources without a version at present.

A database schema of another owner, such as the operator, is planned too, with a note: apply from here would be refused.

Rows and times are estimates. The hash names exactly these locks and statements on exactly this version; an approval in a cluster names it.`,
		Example: "  syncbarrier plan -f clinic.yaml --database postgres://app@db/clinic",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, s, end, err := p.open(cmd.Context(), need{file: true, connections: 2})
			if err != nil {
				return err
			}
			defer end()
			if err := p.checkStandalone(ctx, s); err != nil {
				return err
			}
			s.target.OfAnyOwner = true // it only reads; what apply would say is a note
			plan, err := s.store.Plan(ctx, s.target)
			if err != nil {
				return err
			}
			if s.suspended() {
				plan.Decision.Warnings = append(plan.Decision.Warnings, suspendedNote)
			}
			return p.print(planJSON(plan, s.target), func(w io.Writer) { writePlan(w, plan, s.target, full) })
		},
	}
	cmd.Flags().BoolVar(&full, "full", false, "show the bodies of the functions that capture changes; -o json always has them")
	return cmd
}

type planOutput struct {
	Reason       string                      `json:"reason"`
	Message      string                      `json:"message"`
	Outcome      storage.DecisionOutcome     `json:"outcome"`
	Stored       int64                       `json:"storedVersion"`
	Version      int64                       `json:"version"`
	Hash         string                      `json:"hash"`
	ContentHash  string                      `json:"contentHash"`
	Locks        []storage.LockNote          `json:"locks"`
	Statements   []string                    `json:"statements"`
	Checkpoints  []string                    `json:"checkpoints"`
	Fence        map[string]int64            `json:"fence"`
	MinReader    int64                       `json:"minReaderVersion"`
	Rows         map[string]int64            `json:"rows"`
	HoldSeconds  float64                     `json:"expectedHoldSeconds"`
	PauseSeconds float64                     `json:"expectedPauseSeconds"`
	Unversioned  []storage.UnversionedWriter `json:"unversionedWriters"`
	Blockers     []storage.Blocker           `json:"blockers"`
	Warnings     []string                    `json:"warnings"`
}

func planJSON(plan storage.Plan, target storage.Target) planOutput {
	out := planOutput{
		Reason: "Planned", Message: planSummary(plan), Outcome: plan.Decision.Outcome, Stored: plan.Decision.Stored, Version: target.Version,
		Hash: plan.Hash, ContentHash: target.ContentHash(target.Version), Locks: plan.Locks, Statements: plan.Statements,
		Fence: plan.Decision.Raise, MinReader: plan.Decision.MinReader, Rows: plan.Rows,
		HoldSeconds: plan.ExpectedHold.Seconds(), PauseSeconds: plan.ExpectedPause.Seconds(),
		Unversioned: plan.Unversioned, Blockers: plan.Blockers, Warnings: plan.Decision.Warnings, Checkpoints: []string{},
	}
	for _, c := range plan.Decision.Declare {
		out.Checkpoints = append(out.Checkpoints, c.Name)
	}
	return out
}

func planSummary(plan storage.Plan) string {
	d := plan.Decision
	switch d.Outcome {
	case storage.Agreed:
		return fmt.Sprintf("nothing to do: the database is at version %d", d.Stored)
	case storage.Adopt:
		return fmt.Sprintf("version %d is there already, brought by another program; it will be recorded", d.Version)
	default:
		return fmt.Sprintf("version %d -> %d", d.Stored, d.Version)
	}
}

func writePlan(w io.Writer, plan storage.Plan, target storage.Target, full bool) {
	d := plan.Decision
	writeLine(w, "%s/%s: %s (plan %s)", target.Owner.Namespace, target.Owner.Name, planSummary(plan), plan.Hash)
	section(w, "locks, in this order", lockLines(plan.Locks))
	if len(plan.Statements) > 0 {
		writeLine(w, "statements:")
		writeStatements(w, "  ", statementLines(plan.Statements, full))
	}
	section(w, "fence", fenceLines(d.Raise))
	var declared []string
	for _, c := range d.Declare {
		declared = append(declared, fmt.Sprintf("%s (version %d, %s)", legible.Name(c.Name), c.Version, rowsWord(len(c.Partitions))))
	}
	section(w, "backfills", declared)
	section(w, "rows, estimated", rowLines(plan.Rows))
	if d.Outcome == storage.Migrate {
		writeLine(w, "expected: lock held %s; old programs cannot write and new ones do not serve for %s",
			about(plan.ExpectedHold), about(plan.ExpectedPause))
		if d.MinReader > 0 {
			writeLine(w, "oldest version that may serve afterwards: %d", d.MinReader)
		}
	}
	var unversioned []string
	for _, u := range plan.Unversioned {
		unversioned = append(unversioned, fmt.Sprintf("%s: application %q, user %s, %s", legible.Name(u.Table), u.Application, legible.Name(u.User), countOf(int64(u.Sessions), "session", "sessions")))
	}
	section(w, "writing now without a version", unversioned)
	var blockers []string
	for _, b := range plan.Blockers {
		blockers = append(blockers, b.String())
	}
	section(w, "in the way now", blockers)
	section(w, "note", d.Warnings)
}

func section(w io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	writeLine(w, "%s:", title)
	for _, line := range lines {
		writeLine(w, "  %s", line)
	}
}

// writeStatements writes SQL, of which every line but the first stands further in: a name in it may end a line, as the SQL itself does.
func writeStatements(w io.Writer, indent string, statements []string) {
	for _, statement := range statements {
		for i, line := range strings.Split(statement, "\n") {
			if i > 0 {
				line = "  " + line
			}
			writeLine(w, "%s%s", indent, line)
		}
	}
}

// statementLines shortens the functions that we generate: their 200 lines would hide what the rest says.
func statementLines(statements []string, full bool) []string {
	if full {
		return statements
	}
	var lines []string
	for _, statement := range statements {
		first, rest, _ := strings.Cut(statement, "\n")
		if strings.HasPrefix(first, "CREATE OR REPLACE FUNCTION ") && strings.Contains(first, `"syncbarrier_`) {
			statement = fmt.Sprintf("%s\n... %d lines more, shown by --full", first, strings.Count(rest, "\n")+1)
		}
		lines = append(lines, statement)
	}
	return lines
}

func lockLines(locks []storage.LockNote) []string {
	var lines []string
	for _, lock := range locks {
		lines = append(lines, legible.Name(lock.Table)+"  "+lock.Mode)
	}
	return lines
}

func fenceLines(raise map[string]int64) []string {
	var lines []string
	for partition, version := range raise {
		if partition == storage.AllPartitions {
			lines = append(lines, fmt.Sprintf("every writer below version %d is refused", version))
			continue
		}
		lines = append(lines, fmt.Sprintf("in partition %q every writer below version %d is refused", partition, version))
	}
	sort.Strings(lines)
	return lines
}

func rowLines(rows map[string]int64) []string {
	var lines []string
	for table, n := range rows {
		lines = append(lines, legible.Name(table)+"  "+strconv.FormatInt(n, 10))
	}
	sort.Strings(lines)
	return lines
}

func rowsWord(partitions int) string {
	if partitions == 0 {
		return "all partitions"
	}
	return countOf(int64(partitions), "partition", "partitions")
}

// about rounds a duration the way people say it.
func about(d time.Duration) string {
	switch {
	case d <= 0:
		return "no time"
	case d < time.Second:
		return "under a second"
	default:
		return "about " + d.Round(time.Second).String()
	}
}
