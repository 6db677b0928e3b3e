package postgres

import (
	"context"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

func TestOpenLearnsWhatTheServerTakes(t *testing.T) {
	store := openStore(t, Config{URL: testdb.Postgres(t)})
	if !store.settings.connectionCheck {
		t.Error("client_connection_check_interval was not found to work")
	}
	if store.schema != `"public"` || store.schemaName != "public" {
		t.Errorf("schema %s, %s", store.schema, store.schemaName)
	}
	if got := store.pool.Config().MaxConns; got != defaultMaxConnections {
		t.Errorf("%d connections", got)
	}
	store.Close() // twice is once
}

// changed gives the URL with another user, password, database or host.
func changed(t *testing.T, dsn string, change func(*url.URL)) string {
	t.Helper()
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	change(parsed)
	return parsed.String()
}

func TestWhatCannotBeOpenedSaysWhyAndNeverThePassword(t *testing.T) {
	dsn := testdb.Postgres(t)
	locked := testdb.Role(t, dsn, "locked")
	outsider := testdb.Role(t, dsn, "outsider")
	admin := connect(t, dsn)
	admin.run("ALTER ROLE " + quoteIdentifier(testdb.RoleName(t, locked)) + " NOLOGIN")
	admin.run("REVOKE CONNECT ON DATABASE " + quoteIdentifier(value[string](admin, "SELECT current_database()")) + " FROM PUBLIC")
	cases := []struct {
		name   string
		config Config
		code   storage.Code
		want   string
	}{
		{"wrong password", Config{URL: changed(t, dsn, func(u *url.URL) { u.User = url.UserPassword(u.User.Username(), "hunter2") })}, storage.CodeAuthenticationFailed, "28P01"},
		{"unknown user", Config{URL: changed(t, dsn, func(u *url.URL) { u.User = url.UserPassword("hunter", "hunter2") })}, storage.CodeAuthenticationFailed, "28P01"},
		{"a role that may not log in", Config{URL: locked}, storage.CodeAuthenticationFailed, "28000"},
		{"no right to connect", Config{URL: outsider}, storage.CodeAuthenticationFailed, "42501"},
		{"no such database", Config{URL: changed(t, dsn, func(u *url.URL) { u.Path = "/nothing" })}, storage.CodeInvalidSpec, "3D000"},
		{"no such schema", Config{URL: dsn, Schema: "nothing"}, storage.CodeInvalidSpec, `no schema "nothing"`},
		{"a schema name with a quote", Config{URL: dsn, Schema: `"; DROP`}, storage.CodeInvalidSpec, "no schema"},
		{"unknown setting", Config{URL: changed(t, dsn, func(u *url.URL) { u.RawQuery += "&no_such_setting=1" })}, storage.CodeInvalidSpec, "42704"},
		{"bad value of a setting", Config{URL: changed(t, dsn, func(u *url.URL) { u.RawQuery += "&datestyle=odd" })}, storage.CodeInvalidSpec, "22023"},
		{"unknown pooler", Config{URL: dsn, Pooler: "Session"}, storage.CodeInvalidSpec, "pooler"},
		{"nobody listens", Config{URL: changed(t, dsn, func(u *url.URL) { u.Host = "127.0.0.1:1" })}, storage.CodeConnectionLost, "refused"},
		{"TLS where the server has none", Config{URL: changed(t, dsn, func(u *url.URL) { u.RawQuery = "sslmode=require" })}, storage.CodeConnectionLost, "TLS"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			store, err := Open(testContext(t), c.config)
			if err == nil {
				store.Close()
				t.Fatal("it was opened")
			}
			expectCode(t, err, c.code)
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q in it", err, c.want)
			}
			password, _ := mustURL(t, c.config.URL).User.Password()
			if strings.Contains(err.Error(), password) {
				t.Errorf("error %v repeats the password", err)
			}
		})
	}
}

func mustURL(t *testing.T, text string) *url.URL {
	t.Helper()
	parsed, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestAServerThatDoesNotAnswerIsGivenUpWithinItsBound(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts by the kernel, and says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	started := time.Now()
	_, err = Open(testContext(t), Config{URL: "postgres://u:p@" + listener.Addr().String() + "/app?sslmode=disable"})
	expectCode(t, err, storage.CodeConnectionLost)
	if took := time.Since(started); took > 2*connectTimeout {
		t.Errorf("it took %s", took)
	}
}

func TestACancelledOpenIsCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	_, err := Open(ctx, Config{URL: testdb.Postgres(t)})
	expectCode(t, err, storage.CodeCancelled)
}

func TestEachWayToSpeakToTheServerWorks(t *testing.T) {
	dsn := testdb.Postgres(t)
	pooler := testdb.PgBouncer(t, dsn)
	for name, config := range map[string]Config{
		"plain":                  {URL: dsn},
		"simple protocol":        {URL: dsn, SimpleProtocol: true},
		"pooler":                 {URL: pooler, Pooler: PoolerTransaction},
		"pooler simple protocol": {URL: pooler, Pooler: PoolerTransaction, SimpleProtocol: true},
	} {
		t.Run(name, func(t *testing.T) {
			admin := connect(t, dsn)
			config.Schema = "s" + strings.ReplaceAll(name, " ", "_")
			admin.run("CREATE SCHEMA " + quoteIdentifier(config.Schema))
			store := openStore(t, config)
			for range 2 {
				installCatalog(t, store)
				raise(t, store, map[string]int64{"p": 7, storage.AllPartitions: 6})
			}
			report, err := store.CheckFence(testContext(t))
			if err != nil || !report.Intact() || report.MinWriterVersion != 6 {
				t.Errorf("report %+v, error %v", report, err)
			}
			if report, err := store.RepairFence(testContext(t)); err != nil || len(report.Repaired) != 0 {
				t.Errorf("report %+v, error %v", report, err)
			}
			if _, err := store.Identity(testContext(t)); err != nil {
				t.Error(err)
			}
			if statements, err := store.Remove(testContext(t), true); err != nil || len(statements) == 0 {
				t.Errorf("%v, %v", statements, err)
			}
		})
	}
}

// TestSettingsOfTheRoleDoNotReachOurTransactions: what a role or database sets is overruled for each of our transactions, and nothing of
// ours is left in the session.
func TestSettingsOfTheRoleDoNotReachOurTransactions(t *testing.T) {
	dsn := testdb.Postgres(t)
	admin := connect(t, dsn)
	role := testdb.Role(t, dsn, "odd")
	for setting, value := range map[string]string{
		"search_path": "pg_temp, public", "row_security": "on", "default_transaction_isolation": "serializable",
		"lock_timeout": "1", "statement_timeout": "3600000", "datestyle": "SQL, DMY", "timezone": "Asia/Tokyo", "intervalstyle": "iso_8601",
		"extra_float_digits": "-3", "bytea_output": "escape", "standard_conforming_strings": "off", "idle_in_transaction_session_timeout": "0",
		"jit": "on",
	} {
		admin.run("ALTER ROLE " + quoteIdentifier(testdb.RoleName(t, role)) + " SET " + setting + " = " + quoteSetting(value))
	}
	store := openStore(t, Config{URL: role})
	read := func(q querier) map[string]string {
		settings := map[string]string{}
		for _, name := range []string{"search_path", "row_security", "transaction_isolation", "lock_timeout", "statement_timeout", "datestyle",
			"timezone", "intervalstyle", "extra_float_digits", "bytea_output", "standard_conforming_strings", "idle_in_transaction_session_timeout", "client_connection_check_interval", "jit"} {
			var value string
			if err := q.QueryRow(testContext(t), "SELECT current_setting($1::text)", name).Scan(&value); err != nil {
				t.Fatal(err)
			}
			settings[name] = value
		}
		return settings
	}
	var inside map[string]string
	err := store.inTx(testContext(t), "look", txOptions{lockTimeout: 700 * time.Millisecond, statementTimeout: 7 * time.Second}, func(ctx context.Context, tx pgx.Tx) error {
		inside = read(tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"search_path": "public, pg_temp", "row_security": "off", "transaction_isolation": "read committed",
		"lock_timeout": "700ms", "statement_timeout": "7s", "datestyle": "ISO, MDY", "timezone": "UTC", "intervalstyle": "postgres",
		"extra_float_digits": "3", "bytea_output": "hex", "standard_conforming_strings": "on", "idle_in_transaction_session_timeout": "10s",
		"client_connection_check_interval": "5s", "jit": "off",
	}
	for name, value := range want {
		if inside[name] != value {
			t.Errorf("%s is %q in our transaction, want %q", name, inside[name], value)
		}
	}
	outside := read(store.pool)
	for name, value := range map[string]string{"lock_timeout": "1ms", "datestyle": "SQL, DMY", "row_security": "on", "client_connection_check_interval": "0", "jit": "on"} {
		if outside[name] != value {
			t.Errorf("%s is %q after our transaction, want the session's own %q", name, outside[name], value)
		}
	}
}

func quoteSetting(value string) string {
	if strings.Contains(value, ",") && !strings.HasPrefix(value, "SQL") {
		return value // a list
	}
	return quoteLiteral(value)
}
