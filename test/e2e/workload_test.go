//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// workload is another one that runs the clinic's program beside the clinic's Deployment.
type workload struct {
	kind        string // Deployment, StatefulSet or DaemonSet
	name        string
	replicas    int
	version     string // of the program
	requires    string // of the gate; "clinic=<version>" if empty
	spec        string // more lines of its spec
	annotations string // more lines of its pods' annotations
}

// applyWorkload applies it, with a service of its name.
func (c *clinic) applyWorkload(ctx context.Context, w workload) {
	GinkgoHelper()
	if w.requires == "" {
		w.requires = "clinic=" + w.version
	}
	if w.kind != "DaemonSet" {
		w.spec += fmt.Sprintf("\n  replicas: %d", w.replicas)
	}
	if w.kind == "StatefulSet" {
		w.spec += "\n  serviceName: " + w.name
	}
	kubectl(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: %[2]s}
spec: {selector: {app: %[1]s}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: %[3]s
metadata: {name: %[1]s, namespace: %[2]s}
spec:%[4]s
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata:
      labels: {app: %[1]s, syncbarrier.dev/gate: enabled}
      annotations:
        syncbarrier.dev/requires: %[5]s%[6]s
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: clinic
        image: %[7]s
        env:
        - {name: APP_VERSION, value: "%[8]s"}
        - name: DATABASE_URL
          valueFrom: {secretKeyRef: {name: clinic-app, key: uri}}
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        lifecycle: {preStop: {sleep: {seconds: 10}}}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, w.name, c.namespace, w.kind, w.spec, w.requires, w.annotations, suite.images["clinic"], w.version), "apply", "-f", "-")
}

// running says of each pod of a workload which version it is of, and whether it serves or waits: "6 serves, 7 waits".
func (c *clinic) running(ctx context.Context, name string) string {
	GinkgoHelper()
	var found []string
	for _, pod := range c.pods(ctx, client.MatchingLabels{"app": name}) {
		switch {
		case is(pod, corev1.PodReady):
			found = append(found, versionOf(pod)+" serves")
		case is(pod, corev1.ContainersReady):
			found = append(found, versionOf(pod)+" waits")
		}
	}
	slices.Sort(found)
	return strings.Join(found, ", ")
}

// gatesOf are the reasons of the gate on the pods of a workload.
func (c *clinic) gatesOf(ctx context.Context, name string) (reasons []string) {
	GinkgoHelper()
	for _, pod := range c.pods(ctx, client.MatchingLabels{"app": name}) {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == serveGate {
				reasons = append(reasons, condition.Reason)
			}
		}
	}
	return reasons
}
