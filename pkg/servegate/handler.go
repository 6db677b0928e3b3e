package servegate

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// handlerPause is how long an answer of a handler is given again without another read, so that whoever reaches the handler cannot make
// the database work. An answer is never older.
const handlerPause = time.Second

// Handler answers readiness probes: 200 while the program may serve, else 503, with {"open","writable","reason"} as JSON. It reads the
// database at most once a second, whoever asks.
//
// It begins closed, and opens on proof only. Once it was open it closes only if a successful read of the same database shows a stored
// version below the program's, or that the program can no longer read what is stored: the rule of pods (docs/design.md section 8). A
// database that is away for a minute so does not take every program that serves out of service at once, and a checkpoint declared later
// does not either. `open` then stays true, and `reason` says what the last read said.
func (g *Gate[Tx]) Handler() http.Handler {
	return &handler{read: g.read, now: g.now, version: g.options.Version}
}

type handler struct {
	read    func(context.Context) (Answer, storage.ServeGate, error)
	now     func() time.Time
	version int64

	lock   sync.Mutex // held while the database is read: whoever comes meanwhile gets that answer
	at     time.Time  // when last was read
	last   Answer
	proven *storage.DatabaseIdentity // of which database the gate was open; nil: it never was
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "GET or HEAD", http.StatusMethodNotAllowed)
		return
	}
	// Whoever asks first must not end the read for those who wait for it: it has its own time limit.
	answer := h.answer(context.WithoutCancel(r.Context()))
	// Names of partitions and checkpoints are not for everybody who reaches a probe.
	body, err := json.Marshal(struct {
		Open     bool   `json:"open"`
		Writable bool   `json:"writable"`
		Reason   Reason `json:"reason"`
	}{answer.Open, answer.Writable, answer.Reason})
	if err != nil {
		http.Error(w, "no answer", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if !answer.Open {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_, _ = w.Write(append(body, '\n')) // a prober that went away needs no answer
}

// answer gives the last answer, or reads a new one.
func (h *handler) answer(ctx context.Context) Answer {
	h.lock.Lock()
	defer h.lock.Unlock()
	if now := h.now(); h.at.IsZero() || now.Sub(h.at) >= handlerPause || now.Before(h.at) {
		h.refresh(ctx)
		h.at = h.now()
	}
	return h.last
}

func (h *handler) refresh(ctx context.Context) {
	answer, facts, err := h.read(ctx)
	identity := facts.Database
	identity.Server = "" // the server's release may change under the same database
	switch {
	case answer.Open:
		h.proven = &identity
	case h.proven != nil && err == nil && identity == *h.proven && h.overtaken(facts):
		h.proven = nil
	case h.proven != nil:
		answer.Open = true
	}
	h.last = answer
}

// overtaken says that a read shows the program on the wrong side of the database's version.
func (h *handler) overtaken(facts storage.ServeGate) bool {
	if facts.Standby || !facts.Catalog || !facts.Marker {
		return false
	}
	return facts.StoredVersion < h.version || h.version < facts.MinReaderVersion
}
