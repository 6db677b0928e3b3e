package storage

import (
	"strings"
	"testing"
)

// proven is a gate at which nothing is missing: every case below takes one thing away.
func proven() ServeGate {
	return ServeGate{Running: 7, Catalog: true, Marker: true, StoredVersion: 7, HistoryKnown: true, MinReaderVersion: 6, MinWriterVersion: 7}
}

func TestTheGateIsOpenOnlyIfNothingIsMissing(t *testing.T) {
	pending := []PendingCheckpoint{{Partition: "a", Name: "norm", Version: 7, State: Backfilling}}
	cases := []struct {
		name   string
		change func(*ServeGate)
		want   GateVerdict
		says   string
	}{
		{"everything is proven", func(*ServeGate) {}, GateVerdict{Open: true, Writable: true, Reason: GateOpen}, "version 7 may serve"},
		{"an older version may read and not write", func(g *ServeGate) { g.Running = 6 }, GateVerdict{Open: true, Reason: GateOpen}, "from version 7 on"},
		{"a standby proves nothing", func(g *ServeGate) { g.Standby = true }, GateVerdict{Reason: GateStandby}, "standby"},
		{"there is no catalog", func(g *ServeGate) { g.Catalog = false }, GateVerdict{Reason: GateSchemaNotFound}, "no Syncbarrier catalog"},
		{"there is no marker", func(g *ServeGate) { g.Marker = false }, GateVerdict{Reason: GateMigrationPending}, "no schema version"},
		{"the stored version is older", func(g *ServeGate) { g.StoredVersion = 6 }, GateVerdict{Reason: GateMigrationPending}, "at version 6"},
		{"the history does not know the stored version", func(g *ServeGate) { g.HistoryKnown = false }, GateVerdict{Reason: GateCheckpointMissing}, "no record of version 7"},
		{"the version cannot read any more", func(g *ServeGate) { g.Running = 5 }, GateVerdict{Reason: GateReaderTooOld}, "oldest that can is 6"},
		{"a recorded checkpoint has no row", func(g *ServeGate) { g.Missing = pending }, GateVerdict{Reason: GateCheckpointMissing}, `"norm"`},
		{"a checkpoint is not activated", func(g *ServeGate) { g.Pending, g.PendingTotal = pending, 12 }, GateVerdict{Reason: GateBackfilling}, "and 11 more"},
		{"only the count says so", func(g *ServeGate) { g.PendingTotal = 1 }, GateVerdict{Reason: GateBackfilling}, "not activated"},
		{"a standby comes before all else", func(g *ServeGate) { *g = ServeGate{Standby: true} }, GateVerdict{Reason: GateStandby}, "standby"},
		{"an empty answer", func(g *ServeGate) { *g = ServeGate{Running: 7} }, GateVerdict{Reason: GateSchemaNotFound}, "catalog"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			gate := proven()
			c.change(&gate)
			got := gate.Verdict()
			message := got.Message
			got.Message = ""
			if got != c.want || !strings.Contains(message, c.says) {
				t.Errorf("got %+v %q, want %+v with %q", got, message, c.want, c.says)
			}
		})
	}
}

func TestEveryCodeHasAClassAndOnlyWhatPassesIsRetryable(t *testing.T) {
	pass := map[Class]bool{
		ClassLockTimeout: true, ClassDeadlock: true, ClassSerialization: true, ClassCancelled: true, ClassConnectionLost: true,
		ClassCommitUnknown: true, ClassReadOnly: true, ClassAuthenticationFailed: true, ClassThrottled: true, ClassPreviousVersionOpen: true,
	}
	for code, class := range classOfCode {
		if !strings.HasPrefix(string(code), "sync.storage.") {
			t.Errorf("code %q is not in the style of the others", code)
		}
		err := error(Refuse(code, "refused"))
		if ClassOf(err) != class || CodeOf(err) != code {
			t.Errorf("%s: class %s, code %s", code, ClassOf(err), CodeOf(err))
		}
		if class.Retryable() != pass[class] {
			t.Errorf("%s: retryable is %t", class, class.Retryable())
		}
	}
	if ClassOf(nil) != "" || CodeOf(nil) != "" || ClassOf(strings.NewReader("").UnreadByte()) != ClassInternal {
		t.Error("nil has no class, and an error without a code is internal")
	}
}

func TestKeysAreWrittenAsRowIDsAndReadBack(t *testing.T) {
	for _, key := range [][]string{{"7"}, {""}, {`a"b`}, {"north", "7"}, {"", ""}, {`["x"]`}, {"ä", "a ", `\x00ff`}} {
		got, ok := DecodeKey(EncodeKey(key), len(key))
		if !ok || strings.Join(got, "|") != strings.Join(key, "|") {
			t.Errorf("%q came back as %q, %t", key, got, ok)
		}
	}
	for _, text := range []string{"7", `["a"]`, `["a","b","c"]`, `{"a":1}`, `["a",1]`, ""} {
		if key, ok := DecodeKey(text, 2); ok {
			t.Errorf("%q was read as the key %q of two columns", text, key)
		}
	}
}

func TestReservedAndImpossiblePartitionKeysAreRefused(t *testing.T) {
	for _, key := range []string{"", AllPartitions, "capture:", "capture:todos/=a", "a\x00b", "\xff", strings.Repeat("k", MaxPartitionBytes+1)} {
		if CodeOf(CheckPartition(key)) != CodeInvalidSpec {
			t.Errorf("%.20q is accepted", key)
		}
	}
	for _, key := range []string{"a", "Capture:", "p'); DROP TABLE sync_commits;--", "%s", "$1", "line\nbreak", strings.Repeat("k", MaxPartitionBytes)} {
		if err := CheckPartition(key); err != nil {
			t.Errorf("%.20q: %v", key, err)
		}
	}
}
