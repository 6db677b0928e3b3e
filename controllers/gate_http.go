package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/clock"
	"github.com/syncbarrier/syncbarrier/internal/podgate"
)

// GateServer answers whether programs of a version may serve, by HTTP, for tools that control rollouts (docs/design.md section 8, "By HTTP"):
//
//	GET or POST /gate/NAMESPACE/NAME?version=7      200 if the gate is open, else 503
//	GET or POST /v1/gate/NAMESPACE/NAME?version=7   always 200, with {"open": false, "writable": false, "reason": "Backfilling"}
//
// Every replica answers, from a read of the database that is at most a second old, and never from a status. An answer has reason codes only: no
// table, no partition, no key. It is the answer to a program that starts now; what already serves is not asked about.
type GateServer struct {
	// Client reads SyncSchemas through the manager's cache.
	Client client.Reader
	Gates  *Gates
	Clock  clock.Clock // nil: the real one
	// Cluster is this cluster's identity as an owner (ClusterIdentity).
	Cluster string
	// Listener is where Start serves.
	Listener net.Listener
}

const (
	answerAge       = time.Second // how old a read may be
	maxGateBody     = 64 << 10    // Flagger sends a body, which is not looked at
	gateHeaderLimit = 5 * time.Second
	gateShutdown    = 5 * time.Second
)

// gateAnswer is what /v1/gate says.
type gateAnswer struct {
	Open     bool   `json:"open"`
	Writable bool   `json:"writable"`
	Reason   string `json:"reason"`
}

// NeedLeaderElection says that every replica answers.
func (s *GateServer) NeedLeaderElection() bool { return false }

// Start serves until ctx ends. It is a Runnable of a manager.
func (s *GateServer) Start(ctx context.Context) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: gateHeaderLimit, ReadTimeout: gateHeaderLimit, WriteTimeout: 2 * gateHeaderLimit, MaxHeaderBytes: 16 << 10,
	}
	ended := make(chan error, 1)
	go func() {
		<-ctx.Done()
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), gateShutdown)
		defer cancel()
		ended <- server.Shutdown(closing)
	}()
	if err := server.Serve(s.Listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the gate at %s: %w", s.Listener.Addr(), err)
	}
	return <-ended
}

// Handler gives the handler of both addresses.
func (s *GateServer) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		mux.HandleFunc(method+" /gate/{namespace}/{name}", func(w http.ResponseWriter, request *http.Request) {
			answer := s.answer(w, request)
			code := http.StatusServiceUnavailable
			if answer.Open {
				code = http.StatusOK
			}
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			w.WriteHeader(code)
			_, _ = io.WriteString(w, answer.Reason+"\n") // who asked went away
		})
		mux.HandleFunc(method+" /v1/gate/{namespace}/{name}", func(w http.ResponseWriter, request *http.Request) {
			answer := s.answer(w, request)
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(answer) // who asked went away
		})
	}
	return mux
}

// answer judges one request. What cannot be asked is closed, with its reason.
func (s *GateServer) answer(w http.ResponseWriter, request *http.Request) gateAnswer {
	_, _ = io.Copy(io.Discard, http.MaxBytesReader(w, request.Body, maxGateBody)) // so that the connection can be used again
	w.Header().Set("Cache-Control", "no-store")
	text := request.URL.Query().Get("version")
	if text == "" {
		return gateAnswer{Reason: v1alpha1.ReasonRequirementMissing}
	}
	version, err := strconv.ParseInt(text, 10, 32)
	if err != nil || version < 1 {
		return gateAnswer{Reason: v1alpha1.ReasonRequirementMalformed}
	}
	var object v1alpha1.SyncSchema
	name := types.NamespacedName{Namespace: request.PathValue("namespace"), Name: request.PathValue("name")}
	err = s.Client.Get(request.Context(), name, &object)
	if client.IgnoreNotFound(err) != nil {
		return gateAnswer{Reason: v1alpha1.ReasonUnreachable}
	}
	if err != nil {
		return gateAnswer{Reason: v1alpha1.ReasonSchemaNotFound}
	}
	read := s.Gates.Read(request.Context(), &object, answerAge*4/5)
	if clock.Or(s.Clock).Now().Sub(read.At) > answerAge { // the database took that long to answer
		read = GateRead{Problem: "the database does not answer in time", At: read.At}
	}
	return answerOf(version, afterRead(factsOf(&object, clock.Or(s.Clock).Now()), read, s.Cluster, &object))
}

// answerOf is the database's own answer, unless a person has decided. A database schema of another owner has none about this SyncSchema.
func answerOf(version int64, facts podgate.Facts) gateAnswer {
	answer := gateAnswer{Reason: v1alpha1.ReasonUnreachable}
	switch {
	case facts.Foreign != "":
		answer.Reason = v1alpha1.ReasonConflict
	case facts.Gate != nil:
		verdict := facts.Gate.For(version).Verdict()
		answer = gateAnswer{Open: verdict.Open, Writable: verdict.Open && verdict.Writable, Reason: podgate.ReasonOf(verdict.Reason)}
	}
	switch {
	case facts.Bypass != nil:
		answer.Open, answer.Reason = true, v1alpha1.ReasonBypassed
	case facts.Mode == v1alpha1.GateReport:
		answer.Open, answer.Reason = true, v1alpha1.ReasonReportOnly
	}
	return answer
}
