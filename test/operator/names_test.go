package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

const (
	// oddSchema is what a kubelet makes another name of, unless every dollar sign is written twice.
	oddSchema = `Order $$Data$(HOME)$é`
	oddTable  = "com\"mit'Log\n\x1b[2J"
	inSQL     = `"Order $$Data$(HOME)$é"."com""mit'Log` + "\n\x1b[2J\""
)

// oddManifest is the clinic's, with other names in a schema of its own. A name of a SyncSchema has at most 63 characters, and so has that of a
// checkpoint: those of their objects and Jobs are the same where they are cut.
func (c *clinic) oddManifest(name string, version int) string {
	GinkgoHelper()
	quoted := func(value any) string {
		text, err := json.Marshal(value)
		Expect(err).NotTo(HaveOccurred())
		return string(text)
	}
	text, _, _ := strings.Cut(c.manifest(version, "", ""), "  tables:")
	text = strings.ReplaceAll(text, "name: clinic,", "name: "+name+",")
	text = strings.ReplaceAll(text, "    postgres:\n", "    postgres:\n      schema: "+quoted(oddSchema)+"\n")
	columns := `{name: "user", type: integer}, {name: "select", type: string}`
	var checkpoints string
	for _, last := range []string{"1", "2"} {
		if version < 2 {
			break
		}
		columns += `, {name: "on` + last + `", type: string, nullable: true}`
		checkpoints += fmt.Sprintf("  - {name: %s, version: 2, sources: [{table: %s, changes: Capture}], backfill: {update: {table: %s, set: {\"on%s\": %s}}}}\n",
			strings.Repeat("c", 62)+last, quoted(oddTable), quoted(oddTable), last, quoted(`upper("select")`))
	}
	text += fmt.Sprintf("  tables:\n  - {name: %s, primaryKey: [user], partition: {column: select}, columns: [%s]}\n", quoted(oddTable), columns)
	if checkpoints != "" {
		text += "  checkpoints:\n" + checkpoints
	}
	return text
}

var _ = Describe("Names that need care", func() {
	It("reach a worker in its Job as they are, and stay apart where they are cut", func(ctx context.Context) {
		c := newClinic(ctx)
		c.sql(ctx, `CREATE SCHEMA "`+oddSchema+`"`)
		c.sql(ctx, `CREATE TABLE `+inSQL+`("user" bigint PRIMARY KEY, "select" text NOT NULL)`)
		for i, key := range []string{"p'); DROP TABLE sync_commits;--", "%s", "$1", "new\nline", "\x1b[2J", "*", strings.Repeat("日", 4000), ""} {
			c.sql(ctx, `INSERT INTO `+inSQL+` VALUES ($1, $2)`, i, key)
		}
		name := strings.Repeat("n", 63)
		c.startOperator()
		c.apply(c.oddManifest(name, 1))
		c.readySchema(ctx, name, 1)
		c.apply(c.oddManifest(name, 2))
		c.readySchema(ctx, name, 2)
		Expect(c.number(ctx, `SELECT count(*) FROM `+inSQL+` WHERE upper("select") IS DISTINCT FROM "on1" OR upper("select") IS DISTINCT FROM "on2"`)).To(BeZero())
		var children v1alpha1.BackfillCheckpointList
		Expect(suite.admin.List(ctx, &children, client.InNamespace(c.namespace))).To(Succeed())
		Expect(children.Items).To(HaveLen(2))
		Expect(c.jobs(ctx)).To(HaveLen(2))

		output, code := c.verb(ctx, "status", name)
		Expect(code).To(BeZero(), output)
		Expect(output).To(ContainSubstring(strings.Repeat("c", 62) + "2"))
	}, SpecTimeout(5*time.Minute))
})

// readySchema waits until a SyncSchema is at a version and its gate is open.
func (c *clinic) readySchema(ctx context.Context, name string, version int64) {
	GinkgoHelper()
	Eventually(func(g Gomega) {
		var object v1alpha1.SyncSchema
		g.Expect(suite.admin.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, &object)).To(Succeed())
		g.Expect(object.Status.StoredVersion).To(HaveValue(Equal(version)))
		g.Expect(meta.IsStatusConditionTrue(object.Status.Conditions, v1alpha1.ConditionReady)).To(BeTrue())
	}).Should(Succeed(), func() string { return c.story(ctx) })
}
