//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
)

// startLoad starts users of the clinic in a pod: 60 requests a second through the service, a third of them writes.
func (c *clinic) startLoad(ctx context.Context, version int) {
	GinkgoHelper()
	c.startLoadOn(ctx, "clinic", version)
}

// startLoadOn is startLoad, through another service, and with more lines of the users' environment.
func (c *clinic) startLoadOn(ctx context.Context, name string, version int, environment ...string) {
	GinkgoHelper()
	var service corev1.Service
	Expect(suite.admin.Get(ctx, c.key(name), &service)).To(Succeed())
	kubectl(ctx, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: load, namespace: %s}
spec:
  automountServiceAccountToken: false
  restartPolicy: Never
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers:
  - name: load
    image: %s
    args: [load]
    env:
    - {name: TARGET, value: "http://%s"}
    - {name: RATE, value: "60"}
    - {name: PATIENTS, value: "%d"}%s
    securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
`, c.namespace, suite.images["clinic"], service.Spec.ClusterIP, c.patients, strings.Join(environment, "")), "apply", "-f", "-")
	Eventually(func() int { return c.load(ctx)[fmt.Sprintf("read %d 200", version)] }).Should(BeNumerically(">", 60), "users are answered")
}

// load is what came of the users' requests so far, as "read 6 200": by the version that answered and the status.
func (c *clinic) load(ctx context.Context) map[string]int {
	output, err := tryKubectl(ctx, "", "logs", "-n", c.namespace, "load", "--tail=20")
	if err != nil {
		return nil // the pod has not started
	}
	lines := strings.Split(output, "\n")
	for i := len(lines) - 1; i >= 0; i-- {
		counted := map[string]int{}
		if json.Unmarshal([]byte(lines[i]), &counted) == nil {
			return counted
		}
	}
	return nil
}

// allowLoad compares what came of the requests with what may: every other outcome is one too many. It says which.
func (c *clinic) allowLoad(ctx context.Context, allowed ...string) {
	GinkgoHelper()
	// A line is printed every second, so two later ones have seen everything until now.
	before := total(c.load(ctx))
	var counted map[string]int
	Eventually(func() int {
		counted = c.load(ctx)
		return total(counted)
	}, 30*time.Second).Should(BeNumerically(">", before+120))
	AddReportEntry("what users saw", counted)
	var other []string
	for outcome, times := range counted {
		if !slices.Contains(allowed, outcome) {
			other = append(other, fmt.Sprintf("%s: %d times", outcome, times))
		}
	}
	if len(other) > 0 {
		output, err := tryKubectl(ctx, "", "logs", "--timestamps", "-n", c.namespace, "load")
		Expect(err).NotTo(HaveOccurred())
		var problems []string
		for line := range strings.Lines(output) {
			if !strings.Contains(line, "Z {") && !strings.Contains(line, "writer_fence_rejected") {
				problems = append(problems, line)
			}
		}
		Expect(other).To(BeEmpty(), strings.Join(problems, ""))
	}
}

func total(counted map[string]int) (sum int) {
	for _, times := range counted {
		sum += times
	}
	return sum
}
