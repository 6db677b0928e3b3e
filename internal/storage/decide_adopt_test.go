package storage

import "testing"

// adopted decides on a database that another program has brought to version 8, after we had brought it to 7.
func adopted(t *testing.T, minReader *int64) Decision {
	t.Helper()
	facts := Facts{
		Dialect: SQLite, Protocol: CatalogProtocol, Marker: &Marker{Version: 8},
		History: []HistoryRow{{Version: 7, MinReaderVersion: 5}},
	}
	decision, err := Decide(Target{Version: 8, MinReaderVersion: minReader}, facts)
	if err != nil {
		t.Fatal(err)
	}
	if decision.Outcome != Adopt {
		t.Fatalf("outcome %s, want %s", decision.Outcome, Adopt)
	}
	return decision
}

func TestAnAdoptedVersionProvesNothingForOlderReaders(t *testing.T) {
	decision := adopted(t, nil)
	if decision.MinReader != 8 || decision.Passed[0].MinReaderVersion != 8 {
		t.Errorf("the oldest reader is %d, recorded %d, want 8", decision.MinReader, decision.Passed[0].MinReaderVersion)
	}
}

func TestAnAdoptedVersionTakesTheReadersOfItsSpec(t *testing.T) {
	six := int64(6)
	if decision := adopted(t, &six); decision.Passed[0].MinReaderVersion != 6 {
		t.Errorf("the oldest reader is %d, want 6 as the spec says", decision.Passed[0].MinReaderVersion)
	}
}
