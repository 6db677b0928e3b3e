package capture

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// bank is a database with pgbench's tables.
type bank struct {
	*testing.T
	ctx  context.Context
	url  string
	conn *pgx.Conn
}

// newBank makes the tables of pgbench, with so many accounts, and brings them to version 1. Each account belongs to one of 16 tenants. The
// history says which version wrote it.
func newBank(t *testing.T, accounts int) *bank {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	b := &bank{T: t, ctx: ctx, url: testdb.Postgres(t)}
	output, err := exec.CommandContext(ctx, testdb.Program(t, "pgbench"), "-i", "-q", "-s", fmt.Sprint(max(accounts/100_000, 1)), b.url).CombinedOutput()
	if err != nil {
		t.Fatalf("pgbench -i: %v\n%s", err, output)
	}
	if b.conn, err = pgx.Connect(ctx, b.url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.conn.Close(context.WithoutCancel(ctx)) })
	b.exec(`ALTER TABLE pgbench_history ADD COLUMN writer text DEFAULT coalesce(current_setting('syncbarrier.writer_version', true), '')`)
	b.exec(`ALTER TABLE pgbench_accounts ADD COLUMN tenant text NOT NULL GENERATED ALWAYS AS ('t' || (aid % 16)::text) STORED`)
	b.exec(fmt.Sprintf(`DELETE FROM pgbench_accounts WHERE aid > %d`, accounts)) // pgbench makes 100,000 at least
	b.exec(`VACUUM ANALYZE pgbench_accounts`)
	if code, output := b.run("apply", "-f", b.file(schemaOne)); code != 0 {
		t.Fatalf("apply version 1: exit %d\n%s", code, output)
	}
	b.exec(auditSQL)
	return b
}

// auditSQL compares all accounts in the transaction that activates, when everything is done and all its locks are held: a deferred trigger
// runs at COMMIT, before it.
const auditSQL = `
	CREATE TABLE audit(wrong bigint, partition text);
	CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
	BEGIN
	  IF NEW.state = 'activated' AND OLD.state <> 'activated' THEN
	    INSERT INTO audit
	    SELECT count(*), NEW.partition
	      FROM pgbench_accounts
	     WHERE digest IS DISTINCT FROM abalance || ':' || filler
	       AND NEW.partition IN ('*', 'default', tenant);
	  END IF;
	  RETURN NULL;
	END $$;
	CREATE CONSTRAINT TRIGGER audit AFTER UPDATE ON sync_backfill_checkpoints
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION audit()`

const schemaOne = `
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: bank}
spec:
  version: 1
  tables:
  - name: pgbench_accounts
    layout: Plain
    columns: &columns
    - {name: aid, type: integer}
    - {name: abalance, type: integer, nullable: true}
    - {name: filler, sqlType: character(84), nullable: true}
    - {name: tenant, type: string}
    primaryKey: [aid]
`

// change is how version 2 comes about.
type change struct {
	partition string // of the table, as YAML; "" is one for all
	listed    string // partitions of the checkpoint, as YAML; "" is all
	batchRows int
	perSecond int
}

func (c change) yaml() string {
	text := strings.NewReplacer("version: 1", "version: 2",
		"    primaryKey", "    - {name: digest, type: string, nullable: true}\n    primaryKey", "&columns", "").Replace(schemaOne)
	if c.partition != "" {
		text += "    partition: " + c.partition + "\n"
	}
	listed := ""
	if c.listed != "" {
		listed = "    partitions: " + c.listed + "\n"
	}
	return text + `
  checkpoints:
  - name: digest
    version: 2
` + listed + `    sources: [{table: pgbench_accounts, changes: Capture, columns: [abalance, filler]}]
    backfill:
      update: {table: pgbench_accounts, set: {digest: "abalance || ':' || filler"}}
      batchRows: ` + fmt.Sprint(cmp.Or(c.batchRows, 1000)) + `
      maxRowsPerSecond: ` + fmt.Sprint(c.perSecond) + `
    verify: [{name: none-missing, query: SELECT aid FROM pgbench_accounts WHERE digest IS NULL}]
`
}

// file writes a SyncSchema.
func (b *bank) file(yaml string) string {
	b.Helper()
	path := filepath.Join(b.TempDir(), "bank.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		b.Fatal(err)
	}
	return path
}

// run runs the program to its end.
func (b *bank) run(args ...string) (code int, output string) {
	b.Helper()
	cmd, text := command(b.ctx, append(args, "--database", b.url)...)
	return exitCode(b, cmd.Run()), text.String()
}

func (b *bank) exec(sql string) {
	b.Helper()
	if _, err := b.conn.Exec(b.ctx, sql); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
}

func (b *bank) count(sql string, arguments ...any) (count int64) {
	b.Helper()
	if err := b.conn.QueryRow(b.ctx, sql, arguments...).Scan(&count); err != nil {
		b.Fatalf("%s: %v", sql, err)
	}
	return count
}

// deadlocks is how many the server has found in this database, in the program or in us.
func (b *bank) deadlocks() int64 {
	b.Helper()
	return b.count(`SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()`)
}

// wantCovered expects so many activations, each with nothing wrong at its commit, and nothing wrong or unfilled now.
func (b *bank) wantCovered(activations int64) {
	b.Helper()
	if got := b.count(`SELECT count(*) FROM audit`); got != activations {
		b.Errorf("%d rows were activated, want %d", got, activations)
	}
	if wrong := b.count(`SELECT coalesce(sum(wrong), 0)::bigint FROM audit`); wrong != 0 {
		b.Errorf("%d accounts were wrong at the commit of an activation", wrong)
	}
}

// wantFilled expects that every row has been filled. What programs write after the activation is theirs, and pgbench keeps no digest.
func (b *bank) wantFilled() {
	b.Helper()
	if missing := b.count(`SELECT count(*) FROM pgbench_accounts WHERE digest IS NULL`); missing != 0 {
		b.Errorf("%d accounts are not filled", missing)
	}
}
