package main

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/internal/testcluster"
)

// replica is a manager that does not lead, and serves all the same.
type replica struct {
	*manager
	lease       string
	webhook     int    // the port
	gateAddress string // of the gate by HTTP
}

// newReplica starts another manager for a lease that is held.
func (e *environment) newReplica(t *testing.T, lease string) *replica {
	t.Helper()
	port, err := testcluster.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	r := &replica{lease: lease, webhook: port, gateAddress: freeAddress(t)}
	r.manager = e.startManager(t, 1, "--leader-election-name="+lease, "--start-gate",
		"--webhook-bind-address=127.0.0.1:"+strconv.Itoa(port), "--gate-bind-address="+r.gateAddress)
	r.awaitReady(t)
	return r
}

func (r *replica) end(t *testing.T) {
	t.Helper()
	if err := r.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code := r.awaitExit(t, 2*shutdownTimeout); code != 0 {
		t.Errorf("the replica that does not lead ended with %d, want 0", code)
	}
}

// testReplicas has the API server call the other replica's webhook for a while, and asks its gate.
func (e *environment) testReplicas(t *testing.T, leader int, r *replica) {
	namespace := e.namespace(t)
	e.database(t, namespace)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	gate := "http://" + r.gateAddress + "/gate/" + namespace + "/clinic?version="
	waitFor(t, "the other replica to open the gate", func(ctx context.Context) (bool, error) { return status(ctx, gate+"1") == http.StatusOK, nil })
	if got := status(t.Context(), gate+"2"); got != http.StatusServiceUnavailable {
		t.Errorf("it answers %d for a version that the database does not have, want 503", got)
	}

	e.routeTo(t, r.webhook)
	defer func() {
		e.routeTo(t, leader)
		e.awaitNewBundle(t, "")
	}()
	e.awaitNewBundle(t, "")
	var lease coordinationv1.Lease
	if err := e.client.Get(t.Context(), types.NamespacedName{Namespace: systemNamespace, Name: r.lease}, &lease); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(r.output(t), "successfully acquired lease") || lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
		t.Errorf("it is no replica that does not lead: %+v", lease.Spec)
	}
}
