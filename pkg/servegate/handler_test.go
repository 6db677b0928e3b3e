package servegate

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// read is what a read of the database shows, as facts, or an error.
type read struct {
	facts storage.ServeGate
	err   error
}

func open(change ...func(*storage.ServeGate)) read {
	facts := storage.ServeGate{
		Running: 7, Catalog: true, Marker: true, StoredVersion: 7, HistoryKnown: true, MinReaderVersion: 6, MinWriterVersion: 7,
		Database: storage.DatabaseIdentity{System: "1", Database: "clinic", Schema: "public", Server: "PostgreSQL 15"},
	}
	for _, c := range change {
		c(&facts)
	}
	return read{facts: facts}
}

func TestAHandlerHoldsWhatWasProven(t *testing.T) {
	pending := func(g *storage.ServeGate) { g.PendingTotal = 1 }
	cases := map[string]struct {
		proven bool // the gate was open before
		now    read
		open   bool
		reason Reason
	}{
		"it begins closed":                     {false, open(pending), false, Backfilling},
		"it opens on proof":                    {false, open(), true, GateOpen},
		"an error does not open it":            {false, read{err: errors.New("gone")}, false, Unreachable},
		"an error does not close it":           {true, read{err: errors.New("gone")}, true, Unreachable},
		"a checkpoint declared later does not": {true, open(pending), true, Backfilling},
		"a standby does not":                   {true, open(func(g *storage.ServeGate) { g.Standby, g.StoredVersion = true, 6 }), true, Standby},
		"an emptied marker does not":           {true, open(func(g *storage.ServeGate) { g.Marker, g.StoredVersion = false, 0 }), true, MigrationPending},
		"another database with an older one does not": {
			true, open(func(g *storage.ServeGate) { g.Database.System, g.StoredVersion = "2", 6 }), true, MigrationPending,
		},
		"an older version in the same database does": {true, open(func(g *storage.ServeGate) { g.StoredVersion = 6 }), false, MigrationPending},
		"what it can no longer read does": {
			true, open(func(g *storage.ServeGate) { g.StoredVersion, g.MinReaderVersion = 8, 8 }), false, ReaderTooOld,
		},
		"the server's release is no part of its identity": {
			true, open(func(g *storage.ServeGate) { g.Database.Server, g.StoredVersion = "PostgreSQL 16", 6 }), false, MigrationPending,
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			reads := []read{c.now}
			if c.proven {
				reads = []read{open(), c.now}
			}
			h, clock := newHandler(reads...)
			var answer Answer
			for range reads {
				answer = h.answer(t.Context())
				*clock = clock.Add(handlerPause)
			}
			if answer.Open != c.open || answer.Reason != c.reason {
				t.Errorf("the answer is %+v, want open %t for %s", answer, c.open, c.reason)
			}
		})
	}
}

// newHandler makes a handler that reads what is given, in turn, with a clock of the test's.
func newHandler(reads ...read) (*handler, *time.Time) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	h := &handler{version: 7, now: func() time.Time { return at }, patience: time.Minute}
	h.read = func(context.Context) (Answer, storage.ServeGate, error) {
		if len(reads) == 0 {
			return Answer{Reason: "NoMoreReads"}, storage.ServeGate{}, errors.New("one read too many")
		}
		next := reads[0]
		reads = reads[1:]
		if next.err != nil {
			return Answer{Reason: Unreachable, Message: "secret"}, storage.ServeGate{}, next.err
		}
		verdict := next.facts.Verdict()
		return Answer{Open: verdict.Open, Writable: verdict.Writable, Reason: Reason(verdict.Reason), Message: "secret"}, next.facts, nil
	}
	return h, &at
}

func TestAHandlerReadsOnceASecondWhoeverAsks(t *testing.T) {
	h, clock := newHandler(open(func(g *storage.ServeGate) { g.PendingTotal = 1 }), open())
	for range 20 {
		if code, _ := ask(h, http.MethodGet); code != http.StatusServiceUnavailable {
			t.Fatalf("the answer is %d, want 503", code)
		}
	}
	*clock = clock.Add(handlerPause)
	for range 20 {
		code, body := ask(h, http.MethodGet)
		if code != http.StatusOK || strings.TrimSpace(body) != `{"open":true,"writable":true,"reason":"GateOpen"}` {
			t.Fatalf("the answer is %d %s, want 200 and nothing but words of the gate", code, body)
		}
	}
	if code, _ := ask(h, http.MethodPost); code != http.StatusMethodNotAllowed {
		t.Errorf("a POST is answered %d, want 405", code)
	}
}

func TestAHandlerAnswersFromWhatIsKnownWhileAReadHangs(t *testing.T) {
	hangs := make(chan struct{})
	for name, c := range map[string]struct {
		proven bool
		late   read // what the read that hangs shows in the end
		then   Answer
	}{
		"closed if it was never open": {false, open(), Answer{Open: true, Writable: true, Reason: GateOpen}},
		"open if that was proven":     {true, open(func(g *storage.ServeGate) { g.StoredVersion = 6 }), Answer{Reason: MigrationPending}},
	} {
		t.Run(name, func(t *testing.T) {
			reads := []read{open(func(g *storage.ServeGate) { g.PendingTotal = 1 }), c.late}
			if c.proven {
				reads[0] = open()
			}
			h, clock := newHandler(reads...)
			h.answer(t.Context())
			*clock = clock.Add(handlerPause)
			begun, next := make(chan struct{}), h.read
			h.read = func(ctx context.Context) (Answer, storage.ServeGate, error) {
				close(begun)
				<-hangs
				return next(ctx)
			}
			h.patience = time.Millisecond
			for range 20 {
				if answer := h.answer(t.Context()); answer.Open != c.proven || answer.Writable || answer.Reason != Unreachable {
					t.Fatalf("without a read the answer is %+v", answer)
				}
			}
			<-begun
			reading := h.reading
			hangs <- struct{}{}
			<-reading
			if answer := h.answer(t.Context()); answer.Open != c.then.Open || answer.Writable != c.then.Writable || answer.Reason != c.then.Reason {
				t.Errorf("after the read the answer is %+v, want %+v", answer, c.then)
			}
		})
	}
}

func TestAHandlerDoesNotKeepAProbeWaitingForASilentDatabase(t *testing.T) {
	way := testdb.NewWay(t, testdb.Postgres(t))
	c := openClinic(t, way.URL, "", newPool(t, way.URL))
	c.serving()
	const forever = 40 * time.Second // a read may take so long, and no probe does
	proven, other := c.newGate(Options{Version: 7, Timeout: forever}).Handler(), c.newGate(Options{Version: 7, Timeout: forever}).Handler()
	waitFor(t, "the gate to open", func() bool {
		code, _ := ask(proven, http.MethodGet)
		return code == http.StatusOK
	})
	way.Freeze()
	started := time.Now()
	waitFor(t, "the silence to be noticed", func() bool {
		code, body := ask(proven, http.MethodGet)
		return code == http.StatusOK && strings.TrimSpace(body) == `{"open":true,"writable":false,"reason":"Unreachable"}`
	})
	for range 20 {
		if code, body := ask(other, http.MethodGet); code != http.StatusServiceUnavailable || !strings.Contains(body, string(Unreachable)) {
			t.Errorf("who has proven nothing is answered %d %s", code, body)
		}
	}
	if took := time.Since(started); took > forever/2 {
		t.Errorf("more than 20 answers took %v", took)
	}
	way.Thaw()
	for _, h := range []http.Handler{proven, other} {
		waitFor(t, "the database to be read again", func() bool {
			_, body := ask(h, http.MethodGet)
			return strings.TrimSpace(body) == `{"open":true,"writable":true,"reason":"GateOpen"}`
		})
	}
}

func ask(h http.Handler, method string) (int, string) {
	recorded := httptest.NewRecorder()
	h.ServeHTTP(recorded, httptest.NewRequest(method, "/readyz", http.NoBody))
	return recorded.Code, recorded.Body.String()
}

func TestAHandlerAnswersFromTheDatabase(t *testing.T) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			c := way(t)
			c.migrate(6)
			handler := c.newGate(Options{Version: 7}).Handler()
			waitFor(t, "the handler to say that the migration is to come", func() bool {
				code, body := ask(handler, http.MethodGet)
				if code != http.StatusServiceUnavailable {
					t.Fatalf("before the barrier it is %d %s", code, body)
				}
				return strings.Contains(body, string(MigrationPending))
			})
			c.migrate(7)
			c.activate()
			waitFor(t, "the handler to see the open gate", func() bool {
				code, _ := ask(handler, http.MethodGet)
				return code == http.StatusOK
			})
		})
	}
}
