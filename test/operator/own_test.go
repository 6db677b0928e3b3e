package operator

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// ownScript is a backfill of a user's own, in the simplest language there is: it reads the claim that its Job was made for, fills the rows,
// and activates the one row of the checkpoint.
const ownScript = `
set -euf
cd "$SYNCBARRIER_DATABASE_FILE"
export PGHOST="$(cat host)" PGPORT="$(cat port)" PGDATABASE="$(cat database)" PGUSER="$(cat user)" PGPASSWORD="$(cat password)"
row="$("$SYNCBARRIER" checkpoint claim "$SYNCBARRIER_CHECKPOINT" --claim "$SYNCBARRIER_CLAIM" | grep '^title-norm')"
set -- $row
psql --no-psqlrc --quiet --command "UPDATE todos SET title_norm = lower(title)"
"$SYNCBARRIER" checkpoint activate "$SYNCBARRIER_CHECKPOINT" --claim "$SYNCBARRIER_CLAIM" --watermark "$5" --epoch "$6"
`

var _ = Describe("A container of the user's own", func() {
	It("finds our program, the database and its claim, and activates the checkpoint", func(ctx context.Context) {
		script, err := json.Marshal(ownScript)
		Expect(err).NotTo(HaveOccurred())
		c := newClinic(ctx)
		c.startOperator()
		manifest := c.manifest(7, `job: {template: {spec: {containers: [{name: worker, image: `+ownImage+`, command: [/bin/sh, -c, `+string(script)+`],
      env: [{name: PATH, value: "/usr/bin:/bin:`+psqlFolder()+`"}]}]}}}`, "")
		c.apply(withoutVerify(manifest))
		c.becomes(ctx, "True GateOpen")
		Expect(c.number(ctx, activated)).To(BeEquivalentTo(1))
		Expect(c.number(ctx, wrongRows)).To(BeZero())
		Expect(c.jobs(ctx)).To(HaveLen(1))
		c.expectNoPassword(ctx)
	}, SpecTimeout(6*time.Minute))
})

// psqlFolder is where psql is on this machine; an image of the user's own would bring it.
func psqlFolder() string { return filepath.Dir(testdb.Program(GinkgoTB(), "psql")) }

// withoutVerify takes the check away: nobody but us runs it, so it is refused for a container of the user's own.
func withoutVerify(manifest string) string {
	var kept []string
	for line := range strings.Lines(manifest) {
		if !strings.Contains(line, "verify:") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}
