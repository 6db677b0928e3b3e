package postgres

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// grantWriter makes a role that may use the log and nothing else of ours.
func grantWriter(t testing.TB, dsn, name string) string {
	t.Helper()
	admin := connect(t, dsn)
	role := testdb.Role(t, dsn, name)
	admin.run(fmt.Sprintf(`
		GRANT USAGE ON SCHEMA public TO %[1]s;
		GRANT SELECT, INSERT, UPDATE ON sync_partitions TO %[1]s;
		GRANT SELECT, INSERT ON sync_commits TO %[1]s`, quoteIdentifier(testdb.RoleName(t, role))))
	return role
}

func TestARightWriterNeedsNoRightsOnOurTables(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	raise(t, store, map[string]int64{"p": 7})
	writer := connect(t, grantWriter(t, dsn, "writer"))
	if err := writer.append("p", 7); err != nil {
		t.Errorf("a right version: %v", err)
	}
	if err := writer.append("new", 6); err != nil {
		t.Errorf("a right version in a new partition: %v", err)
	}
	expectFenced(t, writer.append("p", 6))
	expectFenced(t, writer.append("q", 5))
	for _, table := range []string{"sync_writer_fence", "sync_barrier_history", "sync_backfill_progress"} {
		if err := writer.try("SELECT FROM " + table); stateOf(err) != stateNoPrivilege {
			t.Errorf("%s: got %v, want no privilege", table, err)
		}
	}
}

func TestAWriterWithTheRightToInsertAlone(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	admin := connect(t, dsn)
	role := testdb.Role(t, dsn, "inserter")
	admin.run(fmt.Sprintf("GRANT INSERT ON sync_commits TO %s", quoteIdentifier(testdb.RoleName(t, role))))
	writer := connect(t, role)
	if err := writer.try(insertSQL, "p", 6, 1); err != nil {
		t.Errorf("a right version: %v", err)
	}
	expectFenced(t, writer.try(insertSQL, "p", 5, 2))
}

// TestSettingsOfASession: what a session can set changes neither that an old writer is refused nor that a right one passes.
func TestSettingsOfASession(t *testing.T) {
	settings := []string{
		"SET session_replication_role = replica",
		"SET session_replication_role = local",
		"SET search_path = ''; SET row_security = off",
		"SET search_path = evil, pg_catalog",
		"SET search_path = evil, public, pg_catalog",
		"SET row_security = on",
		"SET row_security = off",
		"SET plpgsql.variable_conflict = use_variable",
		"SET plpgsql.extra_errors = 'all'",
		"SET transform_null_equals = on",
		"SET default_transaction_isolation = serializable",
		"SET default_transaction_isolation = 'repeatable read'",
		"SET check_function_bodies = off",
		"SET jit = off; SET plan_cache_mode = force_generic_plan",
		"SET enable_indexscan = off; SET enable_seqscan = off; SET enable_bitmapscan = off",
		"SET datestyle = 'SQL, DMY'; SET extra_float_digits = -3; SET bytea_output = 'escape'; SET intervalstyle = 'iso_8601'",
		"SET standard_conforming_strings = off; SET backslash_quote = on; SET escape_string_warning = off",
		"SET quote_all_identifiers = on",
		"SET lock_timeout = 1; SET statement_timeout = 60000",
	}
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	admin := connect(t, dsn)
	// Operators and functions that would let every version pass, were they found.
	admin.run(`CREATE SCHEMA evil;
		CREATE FUNCTION evil.always(bigint, bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT true';
		CREATE OPERATOR evil.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.always);
		CREATE FUNCTION evil.never(bigint, bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false';
		CREATE OPERATOR evil.< (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = evil.never);
		CREATE TABLE evil.sync_writer_fence(partition text, required_writer_version integer);
		INSERT INTO evil.sync_writer_fence VALUES ('*', 0)`)
	qualified := strings.ReplaceAll(strings.ReplaceAll(appendSQL, "INTO sync_", "INTO public.sync_"), "sync_partitions.max", "sync_partitions.max")
	for _, setting := range settings {
		t.Run(setting, func(t *testing.T) {
			writer := connect(t, dsn)
			writer.run(setting)
			if err := writer.try(qualified, "p", 6); err != nil {
				t.Errorf("a right version: %v", err)
			}
			expectFenced(t, writer.try(qualified, "p", 5))
			expectFenced(t, writer.try(qualified, "p", nil))
			expectFenced(t, writer.try(qualified, "new", 5))
		})
	}
}

func TestTemporaryTablesDoNotShadowOurs(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	raise(t, store, map[string]int64{"p": 7})
	writer := connect(t, dsn)
	writer.run(`
		CREATE TEMP TABLE sync_writer_fence(partition text, required_writer_version integer);
		INSERT INTO pg_temp.sync_writer_fence VALUES ('*', 0), ('p', 0);
		CREATE TEMP TABLE sync_partitions(partition text PRIMARY KEY, max_commit_seq bigint NOT NULL DEFAULT 0, horizon_seq bigint NOT NULL DEFAULT 0);
		CREATE TEMP SEQUENCE syncbarrier_refused`)
	expectFenced(t, writer.try(insertSQL, "p", 6, 1))
	expectFenced(t, writer.try(insertSQL, "q", 5, 1))
	if err := writer.try(insertSQL, "p", 7, 2); err != nil {
		t.Errorf("a right version: %v", err)
	}
	if n := value[int64](writer, "SELECT last_value FROM public.syncbarrier_refused"); n != 2 {
		t.Errorf("%d refusals counted, want 2", n)
	}
}

func TestRolesDoNotGetPast(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	role := testdb.RoleName(t, grantWriter(t, dsn, "plain"))
	writer := connect(t, dsn) // a superuser
	for _, setting := range []string{"SET ROLE " + quoteIdentifier(role), "SET SESSION AUTHORIZATION " + quoteIdentifier(role), "RESET ROLE"} {
		writer.run(setting)
		expectFenced(t, writer.append("p", 5))
		if err := writer.append("p", 6); err != nil {
			t.Errorf("%s: a right version: %v", setting, err)
		}
	}
}

func TestRowSecurityOnTheLogDoesNotOpenTheFence(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	raise(t, store, map[string]int64{"p": 7})
	admin := connect(t, dsn)
	writer := connect(t, grantWriter(t, dsn, "writer"))
	admin.run(`
		ALTER TABLE sync_commits ENABLE ROW LEVEL SECURITY;
		CREATE POLICY everything ON sync_commits USING (true) WITH CHECK (true);
		ALTER TABLE sync_writer_fence ENABLE ROW LEVEL SECURITY;
		CREATE POLICY nothing ON sync_writer_fence USING (false)`)
	expectFenced(t, writer.append("p", 6))
	if err := writer.append("p", 7); err != nil {
		t.Errorf("a right version: %v", err)
	}
}

// TestForcedRowSecurityRefusesInsteadOfLettingPass: the functions' owner is no superuser here, so the policy would hide the fence from it.
func TestForcedRowSecurityRefusesInsteadOfLettingPass(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	owner := testdb.Role(t, dsn, "owner")
	admin.run("GRANT CREATE ON SCHEMA public TO " + quoteIdentifier(testdb.RoleName(t, owner)))
	store := openStore(t, Config{URL: owner})
	installCatalog(t, store)
	raise(t, store, map[string]int64{"p": 7})
	connect(t, owner).run(`
		ALTER TABLE sync_writer_fence ENABLE ROW LEVEL SECURITY;
		ALTER TABLE sync_writer_fence FORCE ROW LEVEL SECURITY;
		CREATE POLICY nothing ON sync_writer_fence USING (false)`)
	writer := connect(t, grantWriter(t, dsn, "writer"))
	if err := writer.append("p", 6); err == nil {
		t.Error("an old version was stored")
	}
	report, err := store.RepairFence(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if !report.Intact() || len(report.Repaired) != 1 {
		t.Errorf("report %+v", report)
	}
	expectFenced(t, writer.append("p", 6))
	if err := writer.append("p", 7); err != nil {
		t.Errorf("a right version after the repair: %v", err)
	}
}

func TestTypedValuesAreJudgedAsStored(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(10))
	writer := connect(t, dsn)
	const insert = `INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version) VALUES ('p', %d, 'c', 'c', 'a', 0, %s)`
	pass := []string{"10", "'10'", "10.0", "9.5", "10::smallint", "'0010'", "9223372036854775807", "1e1"}
	for i, v := range pass {
		if err := writer.try(fmt.Sprintf(insert, i, v)); err != nil {
			t.Errorf("%s: %v", v, err)
		}
	}
	for _, v := range []string{"9", "'9'", "9.4", "-10", "NULL", "DEFAULT", "'9'::bigint", "0"} {
		expectFenced(t, writer.try(fmt.Sprintf(insert, 100, v)))
	}
	for _, v := range []string{"'ten'", "'NaN'::numeric", "'infinity'::numeric", "true", "9223372036854775808"} {
		if err := writer.try(fmt.Sprintf(insert, 200, v)); err == nil {
			t.Errorf("%s was stored", v)
		}
	}
	if n := value[int64](writer, "SELECT count(*) FROM sync_commits WHERE writer_version < 10"); n != 0 {
		t.Errorf("%d commits below the fence", n)
	}
}

func TestEveryWayToWriteARowIsFenced(t *testing.T) {
	store, dsn := newCatalog(t)
	writer := connect(t, dsn)
	if err := writer.append("p", 5); err != nil {
		t.Fatal(err)
	}
	if err := writer.append("p", 9); err != nil {
		t.Fatal(err)
	}
	raise(t, store, forAll(6))
	const columns = "sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms, writer_version)"
	ways := map[string]string{
		"update of the version":     "UPDATE sync_commits SET writer_version = 5 WHERE commit_seq = 2",
		"update to NULL":            "UPDATE sync_commits SET writer_version = NULL WHERE commit_seq = 2",
		"an old row becomes a new":  "UPDATE sync_commits SET commit_seq = 100 WHERE commit_seq = 1",
		"conflict turned to update": "INSERT INTO " + columns + " VALUES ('p', 2, 'c', 'c', 'a', 0, 9) ON CONFLICT (partition, commit_seq) DO UPDATE SET writer_version = 5",
		"insert from a select":      "INSERT INTO " + columns + " SELECT partition, commit_seq + 100, client_id, client_commit_id, actor_id, created_at_ms, writer_version FROM sync_commits",
		"in a DO block":             "DO $$ BEGIN INSERT INTO " + columns + " VALUES ('p', 50, 'c', 'c', 'a', 0, 5); END $$",
		"in an exception handler": "DO $$ BEGIN BEGIN INSERT INTO " + columns + " VALUES ('p', 50, 'c', 'c', 'a', 0, 5); EXCEPTION WHEN OTHERS THEN " +
			"INSERT INTO " + columns + " VALUES ('p', 51, 'c', 'c', 'a', 0, NULL); END; END $$",
		"without a version column": "INSERT INTO sync_commits(partition, commit_seq, client_id, client_commit_id, actor_id, created_at_ms) VALUES ('p', 52, 'c', 'c', 'a', 0)",
	}
	for name, statement := range ways {
		t.Run(name, func(t *testing.T) { expectFenced(t, writer.try(statement)) })
	}
	t.Run("by COPY", func(t *testing.T) {
		_, err := writer.conn.PgConn().CopyFrom(testContext(t), strings.NewReader("p\t60\tc\tc\ta\t0\t5\n"), "COPY "+columns+" FROM STDIN")
		expectFenced(t, err)
	})
	t.Run("with triggers that are deferred", func(t *testing.T) {
		writer.run("BEGIN")
		writer.run("SET CONSTRAINTS ALL DEFERRED")
		expectFenced(t, writer.append("p", 5))
		writer.run("ROLLBACK")
	})
	t.Run("in a prepared transaction", func(t *testing.T) {
		writer.run("BEGIN")
		expectFenced(t, writer.append("p", 5))
		if err := writer.try("PREPARE TRANSACTION 'old'"); err != nil {
			t.Fatal(err)
		}
		if err := writer.try("COMMIT PREPARED 'old'"); err == nil {
			t.Error("a refused transaction could be prepared")
		}
	})
	if n := value[int64](writer, "SELECT count(*) FROM sync_commits"); n != 2 {
		t.Errorf("%d commits, want the 2 from before", n)
	}
}

func TestASavepointKeepsARightWriterGoing(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, forAll(6))
	writer := connect(t, dsn)
	writer.run("BEGIN")
	writer.run("SAVEPOINT s")
	expectFenced(t, writer.append("p", 5))
	writer.run("ROLLBACK TO SAVEPOINT s")
	if err := writer.append("p", 6); err != nil {
		t.Errorf("after the savepoint: %v", err)
	}
	writer.run("COMMIT")
	if n := value[int64](writer, "SELECT count(*) FROM sync_commits WHERE writer_version = 6"); n != 1 {
		t.Errorf("%d commits, want 1", n)
	}
}

// TestAnotherTriggerThatRewritesTheVersion: the fence judges the row as it is stored, and what fills in a missing version is found.
func TestAnotherTriggerThatRewritesTheVersion(t *testing.T) {
	store, dsn := newCatalog(t)
	raise(t, store, map[string]int64{"p1": 6})
	admin := connect(t, dsn)
	admin.run(`CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.writer_version := TG_ARGV[0]::bigint; RETURN NEW; END $$;
		CREATE TRIGGER zz_stamp BEFORE INSERT ON sync_commits FOR EACH ROW EXECUTE FUNCTION stamp('5')`)
	expectFenced(t, admin.append("p1", 6))
	expectFinding(t, store, "zz_stamp", false)

	admin.run(`DROP TRIGGER zz_stamp ON sync_commits;
		CREATE TRIGGER a_stamp BEFORE INSERT ON sync_commits FOR EACH ROW WHEN (NEW.writer_version IS NULL) EXECUTE FUNCTION stamp('6')`)
	expectFinding(t, store, "a_stamp", false)

	admin.run("DROP TRIGGER a_stamp ON sync_commits; ALTER TABLE sync_commits ALTER COLUMN writer_version SET DEFAULT 6")
	expectFinding(t, store, "has a default", false)
}

// expectFinding fails unless CheckFence finds something whose object or problem has the text.
func expectFinding(t testing.TB, store *Store, text string, repairable bool) storage.FenceFinding {
	t.Helper()
	report, err := store.CheckFence(testContext(t))
	if err != nil {
		t.Fatalf("check the fence: %v", err)
	}
	for _, finding := range report.Findings {
		if strings.Contains(finding.Object+" "+finding.Problem, text) {
			if finding.Repairable != repairable {
				t.Errorf("%+v: repairable is %v, want %v", finding, finding.Repairable, repairable)
			}
			return finding
		}
	}
	t.Errorf("no finding with %q: %+v", text, report.Findings)
	return storage.FenceFinding{}
}

// TestNobodyElseCanAttachTheFunction: with the usual right for PUBLIC any role with a table could run it with our rights.
func TestNobodyElseCanAttachTheFunction(t *testing.T) {
	_, dsn := newCatalog(t)
	admin := connect(t, dsn)
	role := testdb.Role(t, dsn, "outsider")
	admin.run("GRANT CREATE ON SCHEMA public TO " + quoteIdentifier(testdb.RoleName(t, role)))
	outsider := connect(t, role)
	outsider.run("CREATE TABLE mine(partition text, writer_version bigint)")
	for _, function := range declaredFunctions {
		err := outsider.try("CREATE TRIGGER forge BEFORE INSERT ON mine FOR EACH ROW EXECUTE FUNCTION " + function.name + "('0')")
		if stateOf(err) != stateNoPrivilege {
			t.Errorf("%s: got %v, want no privilege", function.name, err)
		}
	}
}

func TestTheFenceWorksInASchemaWithAnOddName(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	const schema = `O'Brien "x" %s`
	admin.run("CREATE SCHEMA " + quoteIdentifier(schema))
	store := openStore(t, Config{URL: dsn, Schema: schema})
	installCatalog(t, store)
	raise(t, store, map[string]int64{"p": 7, storage.AllPartitions: 6})
	writer := connect(t, dsn)
	writer.run("SET search_path = " + quoteIdentifier(schema))
	expectFenced(t, writer.append("p", 6))
	expectFenced(t, writer.append("q", 5))
	if err := writer.append("p", 7); err != nil {
		t.Errorf("a right version: %v", err)
	}
	report, err := store.CheckFence(testContext(t))
	if err != nil || !report.Intact() || report.MinWriterVersion != 6 {
		t.Errorf("report %+v, error %v", report, err)
	}
	if n := value[int64](writer, "SELECT last_value FROM syncbarrier_refused"); n != 2 {
		t.Errorf("%d refusals counted, want 2", n)
	}
}

func TestASettingInTheURLReachesTheServer(t *testing.T) {
	dsn := testdb.Postgres(t)
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	query := parsed.Query()
	query.Set("application_name", "mine")
	parsed.RawQuery = query.Encode()
	store := openStore(t, Config{URL: parsed.String(), ApplicationName: "other"})
	var name string
	if err := store.pool.QueryRow(testContext(t), "SELECT current_setting('application_name')").Scan(&name); err != nil {
		t.Fatal(err)
	}
	if name != "mine" {
		t.Errorf("application_name is %q, want the URL's", name)
	}
}
