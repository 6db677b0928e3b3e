package operator

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
)

var _ = Describe("The verbs of kubectl syncbarrier", func() {
	It("approve, suspend, resume, watch and retry are understood by the operator", func(ctx context.Context) {
		c := newClinic(ctx)
		c.startOperator()
		c.apply(c.manifest(6, "", ""))
		c.becomes(ctx, "True GateOpen")

		By("a plan waiting: version 6 goes on")
		c.apply(c.manifest(7, lower(100), "  strategy: {cutover: OnApproval}\n"))
		c.becomes(ctx, "False ApprovalPending")
		Expect(c.commit(ctx, 6, 1)).To(Succeed())
		var shown struct {
			Plan struct{ Hash string }
		}
		output, code := c.verb(ctx, "status", "clinic", "-o", "json")
		Expect(code).To(BeZero(), output)
		Expect(json.Unmarshal([]byte(output), &shown)).To(Succeed(), output)

		By("another plan being approved: nothing happens")
		output, code = c.verb(ctx, "approve", "clinic", "--hash", "000000000000")
		Expect(code).To(Equal(1), output)
		Expect(output).To(ContainSubstring(shown.Plan.Hash))
		Expect(c.number(ctx, `SELECT schema_version FROM sync_schema_meta`)).To(BeEquivalentTo(6))

		By("this plan being approved: it is carried out")
		output, code = c.verb(ctx, "approve", "clinic", "--hash", shown.Plan.Hash)
		Expect(code).To(BeZero(), output)
		Eventually(func() int64 { return c.rowsDone(ctx) }).Should(BeNumerically(">", 0), "the operator's log:\n%s", c.log.Contents())
		Expect(c.commit(ctx, 6, 2)).To(MatchError(ContainSubstring("writer_fence_rejected")))

		By("the work being suspended: it stands still")
		output, code = c.verb(ctx, "suspend", "clinic")
		Expect(code).To(BeZero(), output)
		c.becomes(ctx, "False Suspended")
		Eventually(func() []string { return c.running(ctx) }).Should(BeEmpty())
		done := c.rowsDone(ctx)
		Expect(done).To(BeNumerically("<", rows), "the backfill was over before it was suspended")
		Consistently(func() int64 { return c.rowsDone(ctx) }, 2*time.Second).Should(Equal(done))

		By("it being resumed, and watched to its end")
		c.unthrottle(ctx)
		output, code = c.verb(ctx, "resume", "clinic")
		Expect(code).To(BeZero(), output)
		output, code = c.verb(ctx, "watch", "clinic", "--timeout", "1m")
		Expect(code).To(BeZero(), "%s\nthe operator's log:\n%s", output, c.log.Contents())
		Expect(output).To(ContainSubstring("GateOpen"))
		Expect(c.number(ctx, wrongRows)).To(BeZero())

		By("the fence being broken, mended, and looked at again")
		c.sql(ctx, `ALTER TABLE sync_commits DISABLE TRIGGER ALL`)
		c.becomes(ctx, "False FenceBroken")
		output, code = c.verb(ctx, "watch", "clinic", "--timeout", "1m")
		Expect(code).To(Equal(27), output)
		repair, err := exec.CommandContext(ctx, c.program(), "fence", "repair", "--database", c.dsn).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), string(repair))
		output, code = c.verb(ctx, "retry", "clinic")
		Expect(code).To(BeZero(), output)
		c.becomes(ctx, "True GateOpen")
	}, SpecTimeout(5*time.Minute))
})

// program is the command line, built beside the manager.
func (c *clinic) program() string { return filepath.Join(filepath.Dir(suite.manager), "syncbarrier") }

// verb runs a verb as a person would, and gives what it printed and its exit code.
func (c *clinic) verb(ctx context.Context, arguments ...string) (string, int) {
	GinkgoHelper()
	arguments = append(arguments, "--kubeconfig", suite.cluster.AdminKubeconfig(), "--namespace", c.namespace)
	output, err := exec.CommandContext(ctx, c.program(), arguments...).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return string(output), exit.ExitCode()
	}
	Expect(err).NotTo(HaveOccurred())
	return string(output), 0
}

// running names the pods of workers that have not ended.
func (c *clinic) running(ctx context.Context) []string {
	var names []string
	for _, pod := range c.pods(ctx) {
		if pod.Status.Phase != "Succeeded" && pod.Status.Phase != "Failed" {
			names = append(names, pod.Name)
		}
	}
	return names
}
