package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

func (p *Program) statusCommand() *cobra.Command {
	var f clusterFlags
	var everywhere bool
	cmd := &cobra.Command{
		Use:   "status [NAME]",
		Short: "Show version, fence, backfills and the serve gate of a database, or the SyncSchemas of a cluster",
		Long: `With a database (--database, --database-file or $` + databaseVariable + `): its version, fence, owner, backfills and serve gate, as the
database itself says.

Without one, or with a name, a namespace or --all-namespaces: the SyncSchemas of a cluster, as the operator last said. With a name
its backfills are shown too, who holds the locks it waits for, and the plan that waits for an approval.`,
		Example: "  syncbarrier status --database postgres://app@db/clinic\n  kubectl syncbarrier status --all-namespaces\n  kubectl syncbarrier status clinic -n shop",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := strings.Join(args, "")
			if inCluster, err := p.meansCluster(f, name != "" || everywhere); err != nil {
				return err
			} else if inCluster {
				return p.clusterStatus(cmd, f, name, everywhere)
			}
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
	f.add(cmd)
	cmd.Flags().BoolVarP(&everywhere, "all-namespaces", "A", false, "the SyncSchemas of all namespaces of the cluster")
	return cmd
}

type statusOutput struct {
	Reason           string                 `json:"reason"`
	Message          string                 `json:"message"`
	StoredVersion    int64                  `json:"storedVersion"`
	ContentHash      string                 `json:"contentHash"`
	MinWriterVersion int64                  `json:"minWriterVersion"`
	MinReaderVersion int64                  `json:"minReaderVersion"`
	Owner            string                 `json:"owner,omitempty"`
	Database         string                 `json:"database"`
	Server           string                 `json:"server"`
	Partitions       int64                  `json:"partitions"`
	Refused          int64                  `json:"refusedWrites"`
	Open             bool                   `json:"open"`
	Writable         bool                   `json:"writable"`
	Checkpoints      []checkpointOutput     `json:"checkpoints"`
	Sources          []storage.SourceStatus `json:"sources,omitempty"`
	LogBytes         int64                  `json:"logBytes"`
	LogGrowing       string                 `json:"logGrowing,omitempty"`
	History          []historyOutput        `json:"history"`
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
	if status.Protocol != 0 && status.StoredVersion == 0 { // a first barrier made the catalog and has not come to its end
		out.Message = "no schema version has been applied yet"
	}
	out.Sources, out.LogBytes, out.LogGrowing = status.Sources, status.LogBytes, status.LogGrowing()
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
		writeLine(w, "no Syncbarrier catalog in this database schema (%s)", out.Server)
		return
	}
	lines := [][2]string{
		{"version", strconv.FormatInt(out.StoredVersion, 10)},
		{"fence", fenceWord(out.MinWriterVersion)},
		{"readers", readersWord(out.MinReaderVersion)},
		{"owner", out.Owner},
		{"database", out.Database + ", " + out.Server},
	}
	if strings.HasPrefix(out.Server, "PostgreSQL") { // SQLite rolls a count back with the write that it counted
		lines = append(lines, [2]string{"refused", countOf(out.Refused, "write", "writes") + ", as far as the database can count them"})
	}
	for _, line := range lines {
		writeLine(w, "%-9s %s", line[0], line[1])
	}
	writeGate(w, "", out.StoredVersion, storage.GateVerdict{Open: out.Open, Writable: out.Writable, Reason: storage.GateReason(out.Reason), Message: out.Message})
	if len(out.Checkpoints) > 0 {
		writeLine(w, "")
		writeCheckpoints(w, out.Checkpoints)
	}
	if len(out.Sources) > 0 {
		writeLine(w, "")
		writeSources(w, out)
	}
}

// writeSources shows capture by table, and how large the log is.
func writeSources(w io.Writer, out statusOutput) {
	var rows [][]string
	for _, s := range out.Sources {
		capture := "off, its fence stays"
		if s.Capturing {
			capture = "on"
		}
		count := strconv.FormatInt(s.LogRows, 10)
		if s.LogRows >= storage.MaxCountedLogRows {
			count += " or more"
		}
		rows = append(rows, []string{cell(s.Table), capture, fenceWord(s.MinWriterVersion), strconv.FormatInt(s.Partitions, 10), count})
	}
	table(w, []string{"SOURCE", "CAPTURE", "FENCE", "PARTITIONS", "LOGGED CHANGES"}, rows)
	writeLine(w, "log on disk: %.1f MiB", float64(out.LogBytes)/(1<<20))
	if out.LogGrowing != "" {
		writeLine(w, "note: %s", out.LogGrowing)
	}
}

func countOf(n int64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.FormatInt(n, 10) + " " + many
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

// rowsOf speaks of an estimate only while there is something left to estimate.
func rowsOf(c checkpointOutput) string {
	if c.State == string(storage.Activated) {
		return strconv.FormatInt(c.RowsDone, 10)
	}
	return fmt.Sprintf("%d of about %d", c.RowsDone, c.RowsTotal)
}

func writeCheckpoints(w io.Writer, checkpoints []checkpointOutput) {
	var rows [][]string
	for _, c := range checkpoints {
		rows = append(rows, []string{
			cell(c.Name), strconv.FormatInt(c.Version, 10), c.State, fmt.Sprintf("%d/%d", c.Activated, c.Total),
			rowsOf(c), fmt.Sprintf("%.0f%%", c.Percent), c.LastError,
		})
	}
	table(w, []string{"CHECKPOINT", "VERSION", "STATE", "ACTIVATED", "ROWS", "PROGRESS", "LAST ERROR"}, rows)
}
