package storage

import (
	"fmt"
	"math/bits"
	"time"
)

// State of a checkpoint row.
type State string

// The three states, in order.
const (
	Declared    State = "declared"
	Backfilling State = "backfilling"
	Activated   State = "activated"
)

// CheckpointRow is one row of sync_backfill_checkpoints.
type CheckpointRow struct {
	Partition    string    `json:"partition"`
	Name         string    `json:"name"`
	Version      int64     `json:"version"`
	State        State     `json:"state"`
	Watermark    int64     `json:"watermark"`
	OwnerEpoch   int64     `json:"ownerEpoch"`
	ObservedRows int64     `json:"observedRows"`
	UpdatedAt    time.Time `json:"updatedAt"`
}

// Claim is the ownership of checkpoint rows: whoever has another pair of epoch and token can change nothing.
type Claim struct {
	Name    string
	Version int64
	Token   string
	Rows    []CheckpointRow // the rows that were claimed, with their new owner epochs
}

// Row finds the claimed row of a partition.
func (c Claim) Row(partition string) (CheckpointRow, bool) {
	for _, row := range c.Rows {
		if row.Partition == partition {
			return row, true
		}
	}
	return CheckpointRow{}, false
}

// Ownership identifies one owned checkpoint row.
type Ownership struct {
	Partition  string
	Name       string
	OwnerEpoch int64
	Token      string
}

// Advance moves a checkpoint row forward.
type Advance struct {
	Ownership
	Watermark    int64
	ObservedRows int64
}

// Outcome of an activation.
type Outcome string

// The outcomes of ActivateCheckpoint and Activate.
const (
	// OutcomeActivated: the row is activated, now or before.
	OutcomeActivated Outcome = "activated"
	// OutcomeChanged: there are source changes above the watermark; nothing was changed.
	OutcomeChanged Outcome = "changed"
	// OutcomeLost: the caller does not own the row.
	OutcomeLost Outcome = "lost"
	// OutcomeUnverifiable: the log cannot answer; the pass must start again under a new claim.
	OutcomeUnverifiable Outcome = "unverifiable"
)

// Verdict of a coverage question: are there source changes above the watermark?
type Verdict string

// The three verdicts.
const (
	Clean        Verdict = "clean"
	Changed      Verdict = "changed"
	Unverifiable Verdict = "unverifiable"
)

// Coverage is the answer of HasSourceChangesAbove.
type Coverage struct {
	Verdict Verdict
	Reason  string // for Unverifiable: what about the log does not answer
}

// HistoryRow is one version in sync_barrier_history.
type HistoryRow struct {
	Version          int64
	ContentHash      string
	State            string // HistoryApplied
	Entries          HistoryEntries
	PlainLayouts     map[string][]LayoutColumn // of Plain tables, as declared at this version
	MinWriterVersion int64                     // the fence for all after this barrier; 0: none
	MinReaderVersion int64
	AppliedAt        time.Time
	LockWait         time.Duration
	LockHold         time.Duration
	Attempts         int
	Raised           map[string]int64 // partition to max_commit_seq when its fence was raised; AllPartitions: the sum of all
}

// HistoryApplied is the state of a version whose barrier committed.
const HistoryApplied = "applied"

// HistoryEntries are the hashes of what a version brought.
type HistoryEntries struct {
	Migration   string                       `json:"migration,omitempty"` // hash of the version's SQL
	Checkpoints map[string]HistoryCheckpoint `json:"checkpoints,omitempty"`
	// Fresh says that the database had no version before this one: what a lower version brings was never applied.
	Fresh bool `json:"fresh,omitempty"`
}

// HistoryCheckpoint is a checkpoint that a version declared.
type HistoryCheckpoint struct {
	Hash      string `json:"hash"`
	Rows      int    `json:"rows"`
	Abandoned string `json:"abandoned,omitempty"` // by whom and why; the gate no longer needs it
}

// Definition is a row of sync_backfill_definitions: all a worker needs to know.
type Definition struct {
	Name       string
	Version    int64
	Hash       string
	Checkpoint Checkpoint
	Table      Table // the table the backfill goes over; the zero Table for an external one
	// SourceTables are the declarations of the source tables, for their keys and partitions.
	SourceTables []Table
}

// CheckpointProgress is what status shows of one checkpoint.
type CheckpointProgress struct {
	Definition     Definition // Definition.Hash is empty where another program declared the checkpoint
	Total          int
	Declared       int
	Backfilling    int
	Activated      int
	Unverifiable   int
	Behind         []BehindRow // at most ten, the furthest first
	RowsDone       int64
	RowsEstimated  int64
	RangesTotal    int
	RangesDone     int
	LastError      string
	Restarts       int // passes started again because the log could not answer
	Settings       Settings
	ClaimToken     string // of the newest claim, empty before the first
	OldestUpdateAt time.Time
	// LatestUpdateAt is when something was committed for it last, by the clock of the database: that it was declared or claimed, a batch, a
	// position. An error that a worker left is nothing of the kind.
	LatestUpdateAt time.Time
}

// BehindRow is a checkpoint row that is not activated.
type BehindRow struct {
	Partition  string  `json:"partition"`
	State      State   `json:"state"`
	Watermark  int64   `json:"watermark"`
	OwnerEpoch int64   `json:"ownerEpoch"`
	Verdict    Verdict `json:"verdict"`
}

// Status is everything about a database schema that people ask for, from one read.
type Status struct {
	Protocol         int // of the catalog; 0: there is none
	StoredVersion    int64
	ContentHash      string
	MinWriterVersion int64
	MinReaderVersion int64
	Owner            *Owner
	Database         DatabaseIdentity
	Partitions       int64
	Refused          int64 // writes that the fence refused since it was installed
	Checkpoints      []CheckpointProgress
	History          []HistoryRow
	Sources          []SourceStatus // tables that carry or carried capture, by name
	LogBytes         int64          // of the whole log on disk, with its indexes; 0 where the product cannot say
}

// LogGrowing says in a sentence that the log of captured changes grows beyond what is usual, "" if it does not. It is pruned as
// checkpoints move on; while one stands still, every change of its sources stays.
func (s Status) LogGrowing() string {
	for _, source := range s.Sources {
		if source.LogRows >= MaxCountedLogRows {
			return fmt.Sprintf("the log holds %d changes or more of captured table %q, %d MiB or more in all: let its checkpoint go on, or abandon it, or end the transaction that has been open for long",
				source.LogRows, source.Table, roundedDown(s.LogBytes>>20))
		}
	}
	return ""
}

// roundedDown gives the highest power of two that is not above n: a sentence about something that grows stays the same while it does.
func roundedDown(n int64) int64 {
	if n <= 0 {
		return 0
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}

// SourceStatus is a table whose changes triggers write into the log, or wrote: its fence stays.
type SourceStatus struct {
	Table            string `json:"table"`
	Capturing        bool   `json:"capturing"`        // some trigger writes its changes
	MinWriterVersion int64  `json:"minWriterVersion"` // as its own fence enforces it
	LogRows          int64  `json:"logRows"`          // changes of it in the log, counted up to MaxCountedLogRows
	Partitions       int64  `json:"partitions"`       // captured partitions of it
}

// MaxCountedLogRows is up to how many changes of a source a status counts.
const MaxCountedLogRows = 1_000_000

// DatabaseIdentity tells databases apart.
type DatabaseIdentity struct {
	System   string // PostgreSQL: the cluster's system identifier; SQLite: a random id kept in the file
	Database string
	Schema   string
	Server   string // product and version, for people
}

// FenceFinding is one way in which fence or guards are not as they should be.
type FenceFinding struct {
	Object  string `json:"object"`  // table, trigger or function, named in full
	Problem string `json:"problem"` // what is wrong, in a sentence
	Rows    int64  `json:"rows"`    // rows that got in below the fence, if they can be counted; else 0
	// Repairable says that RepairFence puts it back; if not, a person must (a foreign trigger, a default).
	Repairable bool `json:"repairable"`
}

// FenceReport is the answer of CheckFence and RepairFence.
type FenceReport struct {
	MinWriterVersion int64 // as the trigger enforces it
	Findings         []FenceFinding
	Repaired         []string // what RepairFence put back
	GotIn            int64    // commits that were stored below the fence since it was raised
}

// Intact says whether nothing was found.
func (r FenceReport) Intact() bool { return len(r.Findings) == 0 }

// BarrierResult is what EnsureSchema did.
type BarrierResult struct {
	Outcome    DecisionOutcome
	Stored     int64 // the marker before
	Version    int64 // the marker now
	Statements int
	Declared   []string // checkpoint names
	LockWait   time.Duration
	LockHold   time.Duration
	Warnings   []string
	// CloseConnection is set where user SQL ran: the backend has closed that connection instead of using it again.
	CloseConnection bool
}

// LockNote is a lock that a barrier takes.
type LockNote struct {
	Table string `json:"table"`
	Mode  string `json:"mode"`
}

// UnversionedWriter is a session that writes to a source without a version, as far as a sample can tell.
type UnversionedWriter struct {
	Application string `json:"application"`
	User        string `json:"user"`
	Sessions    int    `json:"sessions"`
	Table       string `json:"table"`
}

// Plan is what EnsureSchema would do now.
type Plan struct {
	Decision     Decision
	Statements   []string // in order, as they would run
	Locks        []LockNote
	Rows         map[string]int64 // rows rewritten or filled, by table; estimated
	ExpectedHold time.Duration    // how long the lock would be held; estimated
	// ExpectedPause is how long programs of the new version cannot serve and old ones cannot write: hold plus backfill; estimated.
	ExpectedPause time.Duration
	Unversioned   []UnversionedWriter
	Blockers      []Blocker // who holds now what the barrier needs
	Hash          string    // see PlanHash
}
