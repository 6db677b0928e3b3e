package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/pkg/servegate"
)

// refusedByFence is the message of the error with which the database refuses a writer that is too old (docs/adopt.md).
const refusedByFence = "sync.storage.writer_fence_rejected"

// versionHeader of every answer says which version gave it.
const versionHeader = "Clinic-Version"

// handler serves
//
//	GET  /patients/ID   the patient; 500 if its derived value is wrong
//	PUT  /patients/ID   {"name": "..."}; 409 if the database refuses this version's writes
//	GET  /vitals/ID     the patient's vital signs; 503 if this version cannot read them any more
//	PUT  /vitals/ID     {"first": 1}; the pulse, and each further sign is one more; 409 as above
//	GET  /healthz       200: the program runs. Whether it may serve is not its own affair
func (p *patients) handler() http.Handler {
	routes := http.NewServeMux()
	routes.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	routes.HandleFunc("GET /patients/{id}", p.get)
	routes.HandleFunc("PUT /patients/{id}", p.put)
	if p.vitals != nil {
		routes.HandleFunc("GET /vitals/{id}", p.vitals.get)
		routes.HandleFunc("PUT /vitals/{id}", p.vitals.put)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		w.Header().Set(versionHeader, strconv.Itoa(p.version))
		if p.ending.Load() {
			w.Header().Set("Connection", "close")
		}
		routes.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (p *patients) get(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "a patient has a number", http.StatusBadRequest)
		return
	}
	found, err := p.read(r.Context(), id)
	if err != nil {
		fail(w, err)
		return
	}
	show(w, found)
}

// show answers with what was found.
func show(w http.ResponseWriter, found any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(found) // the client that went away is told by nobody
}

func (v *vitals) get(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		http.Error(w, "a patient has a number", http.StatusBadRequest)
		return
	}
	found, err := v.read(r.Context(), id)
	if answer, closed := servegate.IsClosed(err); closed && answer.Reason == servegate.ReaderTooOld {
		// A Service sends no new connection to a pod that its gate has closed. A client that keeps one goes on asking here until it is told
		// to leave.
		v.ending.Store(true)
		w.Header().Set("Connection", "close")
	}
	if err != nil {
		fail(w, err)
		return
	}
	show(w, found)
}

func (v *vitals) put(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	var wanted struct{ First *int64 }
	if err != nil || json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&wanted) != nil || wanted.First == nil {
		http.Error(w, `a patient has a number, and vital signs: {"first": 1}`, http.StatusBadRequest)
		return
	}
	if err := v.write(r.Context(), id, *wanted.First); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (p *patients) put(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	var wanted patient
	if err != nil || json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&wanted) != nil || wanted.Name == "" {
		http.Error(w, `a patient has a number, and a name: {"name": "..."}`, http.StatusBadRequest)
		return
	}
	if err := p.write(r.Context(), id, wanted.Name); err != nil {
		fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// fail answers with what went wrong.
func fail(w http.ResponseWriter, err error) {
	var refusal *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		http.Error(w, "no such patient", http.StatusNotFound)
	case errors.As(err, &refusal) && refusal.Message == refusedByFence:
		http.Error(w, refusal.Message+": "+refusal.Detail, http.StatusConflict)
	case errors.Is(err, errStale), errors.Is(err, errMispacked):
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
}
