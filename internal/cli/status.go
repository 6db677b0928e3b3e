package cli

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show version, fence, owner, backfills and the serve gate of a database",
		Args:  cobra.NoArgs,
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
			gate, err := s.store.ReadServeGate(ctx, status.StoredVersion)
			if err != nil {
				return err
			}
			out := newStatusOutput(status, gate.Verdict())
			return p.print(out, func(w io.Writer) { writeStatus(w, status, out) })
		},
	}
}

type statusOutput struct {
	Reason           string             `json:"reason"`
	Message          string             `json:"message"`
	StoredVersion    int64              `json:"storedVersion"`
	ContentHash      string             `json:"contentHash"`
	MinWriterVersion int64              `json:"minWriterVersion"`
	MinReaderVersion int64              `json:"minReaderVersion"`
	Owner            string             `json:"owner,omitempty"`
	Database         string             `json:"database"`
	Server           string             `json:"server"`
	Partitions       int64              `json:"partitions"`
	Refused          int64              `json:"refusedWrites"`
	Open             bool               `json:"open"`
	Writable         bool               `json:"writable"`
	Checkpoints      []checkpointOutput `json:"checkpoints"`
	History          []historyOutput    `json:"history"`
}

type checkpointOutput struct {
	Name        string              `json:"name"`
	Version     int64               `json:"version"`
	State       string              `json:"state"`
	Total       int                 `json:"partitions"`
	Activated   int                 `json:"activated"`
	RowsDone    int64               `json:"rowsDone"`
	RowsTotal   int64               `json:"rowsEstimated"`
	Percent     float64             `json:"percent"`
	RangesDone  int                 `json:"rangesDone"`
	RangesTotal int                 `json:"rangesTotal"`
	Restarts    int                 `json:"restarts"`
	LastError   string              `json:"lastError,omitempty"`
	Behind      []storage.BehindRow `json:"behind,omitempty"`
}

type historyOutput struct {
	Version     int64     `json:"version"`
	AppliedAt   time.Time `json:"appliedAt"`
	LockWaitMS  int64     `json:"lockWaitMilliseconds"`
	LockHoldMS  int64     `json:"lockHoldMilliseconds"`
	Attempts    int       `json:"attempts"`
	ContentHash string    `json:"contentHash"`
}

func newStatusOutput(status storage.Status, verdict storage.GateVerdict) statusOutput {
	out := statusOutput{
		Reason: string(verdict.Reason), Message: verdict.Message, StoredVersion: status.StoredVersion, ContentHash: status.ContentHash,
		MinWriterVersion: status.MinWriterVersion, MinReaderVersion: status.MinReaderVersion,
		Database: status.Database.Database, Server: status.Database.Server, Partitions: status.Partitions, Refused: status.Refused,
		Open: verdict.Open, Writable: verdict.Writable, Checkpoints: []checkpointOutput{}, History: []historyOutput{},
	}
	if status.Owner != nil {
		out.Owner = status.Owner.String()
	}
	for _, c := range status.Checkpoints {
		out.Checkpoints = append(out.Checkpoints, newCheckpointOutput(c))
	}
	for _, h := range status.History {
		out.History = append(out.History, historyOutput{h.Version, h.AppliedAt.UTC(), h.LockWait.Milliseconds(), h.LockHold.Milliseconds(), h.Attempts, h.ContentHash})
	}
	return out
}

func newCheckpointOutput(c storage.CheckpointProgress) checkpointOutput {
	out := checkpointOutput{
		Name: c.Definition.Name, Version: c.Definition.Version, State: string(stateOf(c)), Total: c.Total, Activated: c.Activated,
		RowsDone: c.RowsDone, RowsTotal: c.RowsEstimated, RangesDone: c.RangesDone, RangesTotal: c.RangesTotal,
		Restarts: c.Restarts, LastError: c.LastError, Behind: c.Behind,
	}
	if c.Activated == c.Total {
		out.Percent = 100
	} else {
		out.Percent = min(99, 100*float64(c.RowsDone)/float64(estimated(c)))
	}
	return out
}

// stateOf is the state of the row that is furthest behind.
func stateOf(c storage.CheckpointProgress) storage.State {
	switch {
	case c.Activated == c.Total:
		return storage.Activated
	case c.Declared == c.Total:
		return storage.Declared
	default:
		return storage.Backfilling
	}
}

func writeStatus(w io.Writer, status storage.Status, out statusOutput) {
	if status.Protocol == 0 {
		_, _ = fmt.Fprintf(w, "no Syncbarrier catalog in this database schema (%s)\n", out.Server)
		return
	}
	for _, line := range [][2]string{
		{"version", strconv.FormatInt(out.StoredVersion, 10)},
		{"fence", fenceWord(out.MinWriterVersion)},
		{"readers", readersWord(out.MinReaderVersion)},
		{"owner", out.Owner},
		{"database", out.Database + ", " + out.Server},
		{"refused", fmt.Sprintf("%d writes, as far as the database can count them", out.Refused)},
	} {
		_, _ = fmt.Fprintf(w, "%-9s %s\n", line[0], line[1])
	}
	writeGate(w, "", out.StoredVersion, storage.GateVerdict{Open: out.Open, Writable: out.Writable, Reason: storage.GateReason(out.Reason), Message: out.Message})
	if len(out.Checkpoints) > 0 {
		_, _ = fmt.Fprintln(w)
		writeCheckpoints(w, out.Checkpoints)
	}
}

func fenceWord(version int64) string {
	if version == 0 {
		return "none: every writer is accepted"
	}
	return fmt.Sprintf("writers from version %d on", version)
}

func readersWord(version int64) string {
	if version == 0 {
		return "every version may read"
	}
	return fmt.Sprintf("versions from %d on may read", version)
}

func writeCheckpoints(w io.Writer, checkpoints []checkpointOutput) {
	var rows [][]string
	for _, c := range checkpoints {
		rows = append(rows, []string{
			c.Name, strconv.FormatInt(c.Version, 10), c.State, fmt.Sprintf("%d/%d", c.Activated, c.Total),
			fmt.Sprintf("%d of about %d", c.RowsDone, c.RowsTotal), fmt.Sprintf("%.0f%%", c.Percent), c.LastError,
		})
	}
	table(w, []string{"CHECKPOINT", "VERSION", "STATE", "ACTIVATED", "ROWS", "PROGRESS", "LAST ERROR"}, rows)
}
