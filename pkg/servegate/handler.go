package servegate

import (
	"context"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

const (
	// handlerPause is how long an answer of a handler is given again without another read, so that whoever reaches the handler cannot make
	// the database work. An answer is never older: it counts from when the read began.
	handlerPause = time.Second
	// handlerPatience is how long a request waits for a read. The kubelet waits for a second.
	handlerPatience = 800 * time.Millisecond
)

// Handler answers readiness probes: 200 while the program may serve, else 503, with {"open","writable","reason"} as JSON. It reads the
// database at most once a second, whoever asks.
//
// It begins closed, and opens on proof only. Once it was open it closes only if a successful read of the same database shows a stored
// version below the program's, or that the program can no longer read what is stored: the rule of pods (docs/design.md section 8). A
// database that is away for a minute so does not take every program that serves out of service at once, and a checkpoint declared later
// does not either. `open` then stays true, and `reason` says what the last read said.
//
// It answers within a second, whether the database does or not. While a read does not end, one only is under way, within Options.Timeout, and
// the reason is Unreachable: closed, unless the gate was proven open before.
func (g *Gate[Tx]) Handler() http.Handler {
	return &handler{read: g.read, now: g.now, version: g.options.Version, patience: handlerPatience}
}

type handler struct {
	read     func(context.Context) (Answer, storage.ServeGate, error)
	now      func() time.Time
	version  int64
	patience time.Duration

	lock    sync.Mutex
	at      time.Time                 // when the read of last began
	last    Answer                    // of the last read that ended
	proven  *storage.DatabaseIdentity // of which database the gate was open; nil: it never was
	reading chan struct{}             // closed when the read under way ends; nil: there is none
	hangs   bool                      // somebody has waited for it in vain
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

// answer gives the last answer, or a new one, or, where the database keeps it waiting, what is known without one.
func (h *handler) answer(ctx context.Context) Answer {
	answer, reading := h.known(ctx)
	if reading == nil {
		return answer
	}
	waited := time.NewTimer(h.patience)
	defer waited.Stop()
	select {
	case <-reading:
		h.lock.Lock()
		defer h.lock.Unlock()
		if h.now().Sub(h.at) > handlerPause { // it was slow, and somebody else's
			return h.withoutRead()
		}
		return h.last
	case <-waited.C:
		return h.unanswered(reading)
	}
}

// known gives the answer that stands, or the read to wait for, which it begins if there is none.
func (h *handler) known(ctx context.Context) (Answer, <-chan struct{}) {
	h.lock.Lock()
	defer h.lock.Unlock()
	if now := h.now(); !h.at.IsZero() && now.Sub(h.at) < handlerPause && !now.Before(h.at) {
		return h.last, nil
	}
	if h.reading == nil {
		h.begin(ctx)
	}
	if h.hangs {
		return h.withoutRead(), nil
	}
	return Answer{}, h.reading
}

// begin reads for all who wait. It is called with the lock held.
func (h *handler) begin(ctx context.Context) {
	began, ended := h.now(), make(chan struct{})
	h.reading, h.hangs = ended, false
	go func() {
		answer, facts, err := h.read(ctx)
		h.lock.Lock()
		defer h.lock.Unlock()
		h.judge(answer, facts, err)
		h.at, h.reading, h.hangs = began, nil, false
		close(ended)
	}()
}

// unanswered notes that a read keeps its readers waiting, so that nobody else waits for it.
func (h *handler) unanswered(reading <-chan struct{}) Answer {
	h.lock.Lock()
	defer h.lock.Unlock()
	h.hangs = h.hangs || h.reading == reading
	return h.withoutRead()
}

// withoutRead is the answer while the database gives none: that of a read that failed.
func (h *handler) withoutRead() Answer {
	return Answer{Open: h.proven != nil, Reason: Unreachable, Message: "the database does not answer in time"}
}

// judge makes a read the last one.
func (h *handler) judge(answer Answer, facts storage.ServeGate, err error) {
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
