package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// once is a migration that shows how often it ran.
const once = `
  migrations:
  - version: %d
    sql: |
      CREATE TABLE IF NOT EXISTS runs(version int);
      INSERT INTO runs VALUES (%d)
`

// testCommitLost cuts the connection after the server has done a COMMIT and before the manager knows: it is left alone with that first, and
// killed in the same moment then.
func (e *environment) testCommitLost(t *testing.T) {
	namespace := e.namespace(t)
	url := testdb.Postgres(t)
	db := open(t, url)
	way := testdb.NewWay(t, url)
	e.secret(t, namespace, "clinic", way.URL)
	const name = "commit-lost"
	first := e.startManager(t, 0, "--leader-election-name="+name)
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	expectOnce := func(version int) {
		t.Helper()
		got := e.status(t, namespace, "GateOpen")
		if got.StoredVersion == nil || int(*got.StoredVersion) != version {
			t.Errorf("the status says version %v, want %d", got.StoredVersion, version)
		}
		runs := number(t, db, fmt.Sprintf(`SELECT count(*) FROM runs WHERE version = %d`, version))
		history := number(t, db, fmt.Sprintf(`SELECT count(*) FROM sync_barrier_history WHERE version = %d`, version))
		if runs != 1 || history != 1 {
			t.Errorf("the SQL of version %d ran %d times and was recorded %d times, want once", version, runs, history)
		}
	}
	lost := way.LoseCommit()
	e.apply(t, namespace, 2, fmt.Sprintf(once, 2, 2))
	await(t, "the COMMIT to be lost", lost)
	expectOnce(2)

	lost = way.LoseCommit()
	e.apply(t, namespace, 3, fmt.Sprintf(once, 3, 3))
	await(t, "the COMMIT to be lost", lost)
	if err := first.command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	first.awaitExit(t, 10*time.Second)
	if stored := number(t, db, `SELECT schema_version FROM sync_schema_meta`); stored != 3 {
		t.Fatalf("the server is at version %d: the COMMIT did not reach it", stored)
	}
	e.startManager(t, 1, "--leader-election-name="+name)
	expectOnce(3)
}

// await waits for something that is told by closing a channel.
func await(t *testing.T, what string, told <-chan struct{}) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
	}
}

func (e *environment) testHandWritten(t *testing.T) {
	if hooks := e.kubectl(t, "", "get", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "-o", "name"); hooks != "" {
		t.Fatalf("config/no-webhook has %s", hooks)
	}
	namespace := e.namespace(t)
	e.database(t, namespace)
	e.startManager(t, 0, "--leader-election-name=by-hand")
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	gated := newPod(namespace, true, func(p *corev1.Pod) {
		p.Annotations["syncbarrier.dev/requires"] = "clinic=2"
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: serveGate}}
	})
	forgotten := newPod(namespace, true, func(p *corev1.Pod) { p.Annotations["syncbarrier.dev/requires"] = "clinic=2" })
	for _, pod := range []*corev1.Pod{gated, forgotten} {
		if err := e.client.Create(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	e.awaitReason(t, gated, corev1.ConditionFalse, "MigrationPending")
	waitFor(t, "the pod without a gate to be counted", func(context.Context) (bool, error) {
		ungated, err := e.cluster.Kubectl("", "get", "syncschema", "clinic", "-n", namespace, "-o", `jsonpath={.status.conditions[?(@.type=="PodsUngated")].status}`)
		return ungated == "True", err
	})
	e.apply(t, namespace, 2, backfilled)
	e.awaitReason(t, gated, corev1.ConditionFalse, "Backfilling")
	e.apply(t, namespace, 2, backfilled+"  gate: {mode: Report}\n")
	e.awaitReason(t, gated, corev1.ConditionTrue, "ReportOnly")
}

// testNamespaceGone deletes a namespace in which everything is under way. What the log says of it is looked at when the manager ends.
func (e *environment) testNamespaceGone(t *testing.T) {
	namespace := e.namespace(t)
	e.database(t, namespace)
	m := e.startManager(t, 0, "--leader-election-name=gone")
	e.apply(t, namespace, 1, "")
	e.status(t, namespace, "GateOpen")
	e.apply(t, namespace, 2, backfilled)
	e.status(t, namespace, "Backfilling")
	e.kubectl(t, "", "delete", "namespace", namespace, "--timeout=90s")
	select {
	case <-m.exited:
		t.Error("the manager ended")
	default:
	}
}
