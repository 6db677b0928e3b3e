package postgres

import (
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// Two schemas of one database, at different versions, are read in one statement, each with its own answer.
func TestTheGatesOfSeveralSchemasAreReadInOneStatement(t *testing.T) {
	db := externalDB(t)
	db.exec(`CREATE SCHEMA "of billing"`)
	db.exec(`CREATE TABLE "of billing".todos (id bigint PRIMARY KEY, title text NOT NULL)`)
	billing := openStore(t, Config{URL: db.url, Schema: "of billing"})
	if _, err := billing.EnsureSchema(db.ctx, target(5, plainTodos()), storage.Attempt{Number: 1}); err != nil {
		t.Fatal(err)
	}
	tracer := traced(t, db.store)
	gates, err := db.store.ReadServeGates(db.ctx, []string{"of billing", "public"})
	if err != nil {
		t.Fatal(err)
	}
	if sent := tracer.readingStatements(); len(sent) != 1 {
		t.Errorf("%d statements were sent: %q", len(sent), sent)
	}
	for i, want := range []struct {
		schema  string
		stored  int64
		reasons map[int64]storage.GateReason
	}{
		{"of billing", 5, map[int64]storage.GateReason{5: storage.GateOpen, 6: storage.GateMigrationPending}},
		{"public", 2, map[int64]storage.GateReason{1: storage.GateOpen, 2: storage.GateBackfilling, 3: storage.GateMigrationPending}},
	} {
		gate := gates[i]
		if gate.Database.Schema != want.schema || gate.StoredVersion != want.stored || gate.Database.System == "" {
			t.Errorf("gate %d is of %+v at version %d, want %s at %d", i, gate.Database, gate.StoredVersion, want.schema, want.stored)
		}
		for version, reason := range want.reasons {
			if verdict := gate.For(version).Verdict(); verdict.Reason != reason {
				t.Errorf("%s, version %d: %s (%s), want %s", want.schema, version, verdict.Reason, verdict.Message, reason)
			}
		}
	}
}

// One schema that cannot be read fails them all: nobody's answer is made up.
func TestASchemaThatCannotBeReadFailsTheReadOfAll(t *testing.T) {
	db := externalDB(t)
	db.exec(`CREATE SCHEMA empty`)
	if gates, err := db.store.ReadServeGates(db.ctx, []string{"empty", "public"}); err == nil {
		t.Errorf("got %+v without an error", gates)
	}
	if _, err := db.store.ReadServeGates(db.ctx, nil); storage.CodeOf(err) != storage.CodeInvalidSpec {
		t.Errorf("without a schema: %v", err)
	}
}
