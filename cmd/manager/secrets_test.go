package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
)

// marker is a password, and what else a Secret or a row may hold.
const marker = "S3CRET-7f3a"

// testNothingShown points each part of an address at a key that is no such thing, as somebody may who edits a SyncSchema and reads no Secret, and
// looks for it wherever he reads: at the objects, what stands in them and is told of them, the log and the metrics.
func (e *environment) testNothingShown(t *testing.T) {
	namespace := e.namespace(t)
	db := e.database(t, namespace)
	if _, err := db.ExecContext(t.Context(), `
		CREATE TABLE people (id integer PRIMARY KEY, name text);
		INSERT INTO people VALUES (1, '`+marker+`'), (2, '`+marker+`');
		CREATE TABLE refused (id integer PRIMARY KEY);
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN RAISE EXCEPTION 'not beside %', (SELECT name FROM people WHERE id = 1); END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON refused FOR EACH ROW EXECUTE FUNCTION refuse()`); err != nil {
		t.Fatal(err)
	}
	e.keepSecret(t, namespace, map[string]string{
		"password": marker, "key": "-----BEGIN PRIVATE KEY-----\n" + marker + "\n-----END PRIVATE KEY-----\n",
		"url": "postgres://" + marker + ":" + marker + "@" + strings.ToLower(marker) + "/" + marker, "user": "app", "pin": "53535",
	})
	host, port := e.serverOf(t, testdb.Postgres(t))
	asking, heard := newAskingServer(t)
	of := func(key string) string { return "{secretKeyRef: {name: others, key: " + key + "}}" }
	connection := func(parts string) string {
		return "connection: {sslMode: disable, " + strings.NewReplacer("HOST", "host: "+host, "PORT", "port: "+port).Replace(parts) + "}"
	}
	cases := map[string]struct{ postgres, more, reason string }{
		"host":     {connection("hostFrom: " + of("password") + ", PORT, database: app, userFrom: " + of("user")), "", "ConnectionLost"},
		"port":     {connection("HOST, portFrom: " + of("password") + ", database: app, userFrom: " + of("user")), "", "InvalidSpec"},
		"pin":      {connection("HOST, portFrom: " + of("pin") + ", database: app, userFrom: " + of("user")), "", "ConnectionLost"},
		"database": {connection("HOST, PORT, databaseFrom: " + of("password") + ", userFrom: " + of("user")), "", "AuthenticationFailed"},
		"user":     {connection("HOST, PORT, database: app, userFrom: " + of("password")), "", "AuthenticationFailed"},
		"long":     {connection("HOST, PORT, database: app, userFrom: " + of("key")), "", "InvalidSpec"},
		"password": {connection("HOST, PORT, database: app, userFrom: " + of("user") + ", passwordFrom: " + of("password")), "", "AuthenticationFailed"},
		"url":      {"urlFrom: " + of("url"), "", "ConnectionLost"},
		"no-url":   {"urlFrom: " + of("password"), "", "InvalidSpec"},
		"ca":       {"urlFrom: {secretKeyRef: {name: clinic, key: uri}}, tls: {caFrom: " + of("key") + "}", "", "InvalidSpec"},
		"asking": {"connection: {sslMode: disable, host: 127.0.0.1, port: " + asking + ", database: app, userFrom: " + of("user") + ", passwordFrom: " + of("password") + "}",
			"", "AuthenticationFailed"},
		"rows": {"urlFrom: {secretKeyRef: {name: clinic, key: uri}}", "  migrations: [{version: 1, sql: 'CREATE UNIQUE INDEX one ON people(name)'}]\n", "InvalidSQL"},
		"words": {"schema: other, urlFrom: {secretKeyRef: {name: clinic, key: uri}}", "  migrations: [{version: 1, sql: 'INSERT INTO public.refused VALUES (1)'}]\n",
			"InvalidSQL"},
	}
	if _, err := db.ExecContext(t.Context(), `CREATE SCHEMA other`); err != nil {
		t.Fatal(err)
	}
	m := e.startManager(t, 0, "--leader-election-name=shown", "--metrics-open", "--verbosity=10", "--namespaces="+namespace)
	for name, c := range cases {
		e.kubectl(t, fmt.Sprintf(schemaOf, name, namespace, c.postgres, c.more), "apply", "--server-side", "-f", "-")
		e.makePod(t, namespace, name)
	}
	for name, c := range cases {
		e.awaitSchema(t, namespace, name, c.reason)
		e.awaitGate(t, namespace, name)
	}
	m.awaitMetrics(t)
	shown := map[string]string{
		"objects": e.kubectl(t, "", "get", "syncschemas,backfillcheckpoints,jobs,pods,events", "-n", namespace, "-o", "yaml"),
		"metrics": pageOf(t, "http://"+m.metrics+"/metrics"),
		"log":     m.output(t),
	}
	for where, text := range shown {
		for _, secret := range []string{marker, "PRIVATE KEY", ":53535", `"body":`, "Bearer ey"} {
			if at := strings.Index(strings.ToLower(text), strings.ToLower(secret)); at >= 0 {
				t.Errorf("the %s show %s: ...%s...", where, secret, text[max(0, at-300):min(len(text), at+100)])
			}
		}
		if !strings.Contains(text, namespace) {
			t.Errorf("the %s say nothing of the namespace: this looks at nothing", where)
		}
	}
	if got := heard(); got == 0 {
		t.Error("the server that asks for passwords was not called")
	}
}

func pageOf(t *testing.T, address string) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return string(body)
}

const schemaOf = `
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: %s, namespace: %s}
spec:
  database: {postgres: {%s}}
  version: 1
  tables: []
%s`

// keepSecret makes the Secret others, whose values stand nowhere.
func (e *environment) keepSecret(t *testing.T, namespace string, data map[string]string) {
	t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "others"}, StringData: data}
	if err := e.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

func (e *environment) serverOf(t *testing.T, address string) (host, port string) {
	t.Helper()
	parsed, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Hostname(), parsed.Port()
}

func (e *environment) makePod(t *testing.T, namespace, schema string) {
	t.Helper()
	pod := newPod(namespace, true, func(p *corev1.Pod) {
		p.Name, p.GenerateName = schema, ""
		p.Annotations["syncbarrier.dev/requires"] = schema + "=1"
		p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: serveGate}}
	})
	if err := e.client.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

func (e *environment) awaitSchema(t *testing.T, namespace, name, reason string) {
	t.Helper()
	var schema v1alpha1.SyncSchema
	waitFor(t, name+" to be "+reason, func(ctx context.Context) (bool, error) {
		err := e.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &schema)
		for _, condition := range schema.Status.Conditions {
			if condition.Type == "Ready" && condition.Reason == reason {
				return true, err
			}
		}
		return false, err
	}, func() string { return fmt.Sprintf("%+v", schema.Status.Conditions) })
}

// awaitGate waits until the pod of a schema has been told something.
func (e *environment) awaitGate(t *testing.T, namespace, name string) {
	t.Helper()
	var pod corev1.Pod
	waitFor(t, "the gate of pod "+name, func(ctx context.Context) (bool, error) {
		err := e.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &pod)
		for _, condition := range pod.Status.Conditions {
			if condition.Type == serveGate && condition.Message != "" {
				return true, err
			}
		}
		return false, err
	}, func() string { return fmt.Sprintf("%+v", pod.Status.Conditions) })
}

// newAskingServer listens on a port and asks whoever comes for the password in clear text. What it hears is no marker, or the test fails. calls
// counts those who came.
func newAskingServer(t *testing.T) (port string, calls func() int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var came int
	var serving sync.WaitGroup
	t.Cleanup(func() { _ = listener.Close(); serving.Wait() })
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			came++
			mu.Unlock()
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				if password := askForPassword(conn); password != "" {
					t.Errorf("a server that anybody put up was told %q", password)
				}
			})
		}
	})
	_, port, err = net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port, func() int { mu.Lock(); defer mu.Unlock(); return came }
}

func askForPassword(conn net.Conn) string {
	backend := pgproto3.NewBackend(conn, conn)
	if conn.SetDeadline(time.Now().Add(patience)) != nil {
		return ""
	}
	if _, err := backend.ReceiveStartupMessage(); err != nil {
		return ""
	}
	backend.Send(&pgproto3.AuthenticationCleartextPassword{})
	if backend.Flush() != nil || backend.SetAuthType(pgproto3.AuthTypeCleartextPassword) != nil {
		return ""
	}
	message, err := backend.Receive()
	if password, ok := message.(*pgproto3.PasswordMessage); ok && err == nil {
		return password.Password
	}
	return ""
}
