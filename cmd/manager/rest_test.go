package main

import (
	"context"
	"database/sql"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
	"github.com/syncbarrier/syncbarrier/controllers"
	"github.com/syncbarrier/syncbarrier/internal/manifest"
	"github.com/syncbarrier/syncbarrier/internal/storage"
	"github.com/syncbarrier/syncbarrier/internal/storage/postgres"
	"github.com/syncbarrier/syncbarrier/internal/testcluster"
	"github.com/syncbarrier/syncbarrier/internal/testdb"
	"github.com/syncbarrier/syncbarrier/test/gitops"
)

// Bounds of a manager: what it has in memory, and connections to one database, for all its schemas.
const (
	mostMemory      = 200 << 20
	mostConnections = controllers.PoolConnections + controllers.GateConnections
)

// scale is how much a manager has to look after: so many databases of one server with so many schemas each, and a SyncSchema a schema.
type scale struct {
	databases, schemas int
	resync             time.Duration
	patience           time.Duration // for each thing that is waited for
}

// testRest is BenchmarkManySyncSchemas at a size that takes seconds.
func (e *environment) testRest(t *testing.T) {
	e.atScale(t, scale{databases: 3, schemas: 8, resync: 2 * time.Second, patience: patience})
}

// BenchmarkManySyncSchemas is the promise at its full size: 1,000 SyncSchemas, 50 in each of 20 databases. Its figures are in
// docs/performance.md.
//
//	go test ./cmd/manager -run '^$' -bench ManySyncSchemas -benchtime 1x -timeout 60m
func BenchmarkManySyncSchemas(b *testing.B) {
	e := newEnvironment(b, "config/no-webhook")
	for b.Loop() {
		e.atScale(b, scale{databases: 20, schemas: 50, resync: time.Minute, patience: 20 * time.Minute})
	}
}

// many is a manager at work at a scale.
type many struct {
	*environment
	scale
	t         testing.TB
	namespace string
	manager   *manager
	admin     *sql.DB

	mu   sync.Mutex
	most int             // connections to one database that were seen at a time
	seen map[string]bool // every connection that was seen
}

// atScale looks at a manager with many SyncSchemas that are done: it reads their databases at every resync and writes nothing. Then one of the
// databases stops to answer, and what is to be done in the others takes no longer than before.
func (e *environment) atScale(t testing.TB, s scale) {
	m := &many{environment: e, scale: s, t: t, namespace: e.namespace(t), seen: map[string]bool{}}
	server := testdb.PostgresServer(t, testdb.ServerOptions{Settings: map[string]string{"max_connections": strconv.Itoa(s.databases*mostConnections + 20)}})
	m.admin = open(t, server.DSN("postgres"))
	silent := m.makeDatabases(server)
	started := time.Now()
	m.manager = e.startManager(t, 0, "--leader-elect=false", "--namespaces="+m.namespace, "--resync="+s.resync.String())
	t.Cleanup(m.count())
	m.await("all gates to be open", func(schema *v1alpha1.SyncSchema) bool {
		return schema.Status.GateOpen != nil && *schema.Status.GateOpen
	})
	t.Logf("%d SyncSchemas were Ready after %v", s.databases*s.schemas, time.Since(started).Round(time.Second))

	m.awaitLooks() // events follow the status, and so does the first look at it
	before, connected := len(e.writes(m.namespace)), m.connected()
	m.awaitLooks()
	if written := e.writes(m.namespace)[before:]; len(written) > 0 {
		t.Errorf("at rest it wrote %d times, first %+v", len(written), written[0])
	}
	// Some are closed after a minute without use; but a look is no reason to open one.
	if opened := m.connected() - connected; opened > s.databases*mostConnections {
		t.Errorf("at rest it opened %d connections for two looks at %d SyncSchemas", opened, s.databases*s.schemas)
	}
	m.expectBounds("at rest")
	usual := m.pace(2)

	frozen := time.Now()
	silent.Freeze()
	defer silent.Thaw()
	dead := fmt.Sprintf("clinic-%d-", s.databases-1)
	m.await("the loss of a database to show", func(schema *v1alpha1.SyncSchema) bool {
		return !strings.HasPrefix(schema.Name, dead) || reasonOf(schema) == v1alpha1.ReasonConnectionLost
	})
	t.Logf("it showed after %v", time.Since(frozen).Round(time.Millisecond))
	now := m.pace(3)
	t.Logf("a new version took %v, and %v with a database that does not answer", usual.Round(time.Millisecond), now.Round(time.Millisecond))
	if now > 3*usual+time.Second {
		t.Errorf("with a database that does not answer a version of another one takes %v, before it took %v", now, usual)
	}
	m.expectBounds("with a database that does not answer")
}

// document is the SyncSchema for a schema of a database.
func (m *many) document(database, schema int) string {
	return fmt.Sprintf(`
apiVersion: syncbarrier.dev/v1alpha1
kind: SyncSchema
metadata: {name: clinic-%d-%d, namespace: %s}
spec:
  database: {postgres: {schema: s%d, urlFrom: {secretKeyRef: {name: database-%d, key: uri}}}}
  version: 1
  tables:
  - {name: todos, columns: [{name: id, type: integer}, {name: title, type: string}], primaryKey: [id]}
`, database, schema, m.namespace, schema, database)
}

// makeDatabases makes the databases with their schemas at version 1, which belongs to nobody yet, and the SyncSchemas. The last database is
// behind a way of its own, which is another server to the manager.
func (m *many) makeDatabases(server *testdb.Server) *testdb.Way {
	m.t.Helper()
	const template = "migrated"
	m.run(m.admin, "CREATE DATABASE "+template)
	for i := range m.schemas {
		m.migrate(server.DSN(template), i)
	}
	var last *testdb.Way
	for n := range m.databases {
		name := fmt.Sprintf("clinics_%d", n)
		m.run(m.admin, "CREATE DATABASE "+name+" TEMPLATE "+template)
		url := server.DSN(name)
		if n == m.databases-1 {
			last = testdb.NewWay(m.t, url)
			url = last.URL
		}
		m.secret(m.t, m.namespace, fmt.Sprintf("database-%d", n), url)
		var objects []string
		for i := range m.schemas {
			objects = append(objects, m.document(n, i))
		}
		m.kubectl(m.t, strings.Join(objects, "---"), "apply", "--server-side", "-f", "-")
	}
	return last
}

func (m *many) run(db *sql.DB, statement string) {
	m.t.Helper()
	if _, err := db.ExecContext(m.t.Context(), statement); err != nil {
		m.t.Fatalf("%s: %v", statement, err)
	}
}

// migrate makes a schema in a database and brings it to version 1.
func (m *many) migrate(url string, schema int) {
	m.t.Helper()
	db, err := sql.Open("pgx", url)
	if err != nil {
		m.t.Fatal(err)
	}
	name := fmt.Sprintf("s%d", schema)
	m.run(db, "CREATE SCHEMA "+name)
	if err := db.Close(); err != nil { // who is connected keeps a template from being copied
		m.t.Fatal(err)
	}
	file, err := manifest.Parse(strings.NewReader(m.document(0, schema)), name)
	if err != nil {
		m.t.Fatal(err)
	}
	target, _, err := manifest.Convert(file)
	if err != nil {
		m.t.Fatal(err)
	}
	target.Owner = storage.Owner{}
	store, err := postgres.Open(m.t.Context(), postgres.Config{URL: url, Schema: name})
	if err != nil {
		m.t.Fatal(err)
	}
	defer store.Close()
	if _, err := store.EnsureSchema(m.t.Context(), target, storage.Attempt{Number: 1}); err != nil {
		m.t.Fatal(err)
	}
}

// count looks at how many connections the manager has, until it is told to end.
func (m *many) count() (end func()) {
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	running.Go(func() {
		ticker := time.NewTicker(200 * time.Millisecond)
		defer ticker.Stop()
		for {
			if err := m.look(ctx); err != nil && ctx.Err() == nil {
				m.t.Errorf("count the connections: %v", err)
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// look notes the connections that the manager has now.
func (m *many) look(ctx context.Context) error {
	rows, err := m.admin.QueryContext(ctx, `
		SELECT datname, pid || ' ' || backend_start
		  FROM pg_stat_activity
		 WHERE application_name = 'syncbarrier-manager'`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }() // Err says what there is to say
	m.mu.Lock()
	defer m.mu.Unlock()
	now := map[string]int{}
	for rows.Next() {
		var database, connection string
		if err := rows.Scan(&database, &connection); err != nil {
			return err
		}
		now[database]++
		m.most, m.seen[connection] = max(m.most, now[database]), true
	}
	return rows.Err()
}

// connected is how many connections the manager has had.
func (m *many) connected() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.seen)
}

// await waits until something is so of every SyncSchema.
func (m *many) await(what string, holds func(*v1alpha1.SyncSchema) bool) {
	m.t.Helper()
	var left []string
	waitWithin(m.t, m.patience, what, func(ctx context.Context) (bool, error) {
		var schemas v1alpha1.SyncSchemaList
		if err := m.client.List(ctx, &schemas, client.InNamespace(m.namespace)); err != nil {
			return false, err
		}
		left = nil
		for i := range schemas.Items {
			if schema := &schemas.Items[i]; !holds(schema) {
				left = append(left, fmt.Sprintf("%s: %+v", schema.Name, schema.Status.Conditions))
			}
		}
		if len(left) > 0 || len(schemas.Items) != m.databases*m.schemas {
			return false, nil
		}
		for i := range schemas.Items {
			if err := gitops.Check(ctx, &schemas.Items[i]); err != nil {
				m.t.Fatal(err)
			}
		}
		return true, nil
	}, func() string { return fmt.Sprintf("%d left: %.3000s", len(left), strings.Join(left, "\n")) })
}

func reasonOf(schema *v1alpha1.SyncSchema) string {
	for _, condition := range schema.Status.Conditions {
		if condition.Type == v1alpha1.ConditionReady && condition.ObservedGeneration == schema.Generation {
			return condition.Reason
		}
	}
	return ""
}

// awaitLooks waits until every SyncSchema was looked at twice, as far as the number of times tells that their Secrets were read.
func (m *many) awaitLooks() {
	m.t.Helper()
	looks := func() int {
		all := m.cluster.Requests(systemNamespace, account)
		return len(slices.DeleteFunc(all, func(r testcluster.Request) bool { return r.Namespace != m.namespace || r.Resource != "secrets" }))
	}
	begin := looks()
	waitWithin(m.t, m.patience, "two looks at all", func(context.Context) (bool, error) { return looks() >= begin+2*m.databases*m.schemas, nil })
}

// pace brings one SyncSchema of each database that answers to another version, one after the other, and returns the median of the times it took.
func (m *many) pace(version int) time.Duration {
	m.t.Helper()
	var times []time.Duration
	for n := range m.databases - 1 {
		schema := &v1alpha1.SyncSchema{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: fmt.Sprintf("clinic-%d-0", n)}}
		patch := fmt.Appendf(nil, `{"spec": {"version": %d}}`, version)
		started := time.Now()
		if err := m.client.Patch(m.t.Context(), schema, client.RawPatch(types.MergePatchType, patch)); err != nil {
			m.t.Fatal(err)
		}
		waitWithin(m.t, m.patience, schema.Name+" at its next version", func(ctx context.Context) (bool, error) {
			err := m.client.Get(ctx, client.ObjectKeyFromObject(schema), schema)
			return reasonOf(schema) == v1alpha1.ReasonGateOpen, err
		}, func() string { return fmt.Sprintf("%+v", schema.Status.Conditions) })
		times = append(times, time.Since(started))
	}
	slices.Sort(times)
	return times[len(times)/2]
}

// expectBounds looks at what the manager takes.
func (m *many) expectBounds(when string) {
	m.t.Helper()
	memory, all := m.manager.memory(m.t), m.connected()
	m.mu.Lock()
	most := m.most
	m.mu.Unlock()
	m.t.Logf("%d SyncSchemas %s: %d MiB of memory, at most %d connections to a database at a time, %d in all since the start",
		m.databases*m.schemas, when, memory>>20, most, all)
	if memory > mostMemory {
		m.t.Errorf("%s the manager takes %d bytes of memory, more than %d", when, memory, mostMemory)
	}
	if most > mostConnections || most == 0 {
		m.t.Errorf("%s the manager has had %d connections to a database at a time, want some and at most %d", when, most, mostConnections)
	}
}

// memory is what the process has in memory, in bytes.
func (m *manager) memory(t testing.TB) int64 {
	t.Helper()
	output, err := exec.CommandContext(t.Context(), "ps", "-o", "rss=", "-p", strconv.Itoa(m.command.Process.Pid)).Output()
	if err != nil {
		t.Fatalf("ask ps for the memory of the manager: %v", err)
	}
	kibibytes, err := strconv.ParseInt(strings.TrimSpace(string(output)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kibibytes << 10
}

// writes are the requests of managers that wrote something in a namespace, in order.
func (e *environment) writes(namespace string) []testcluster.Request {
	all := e.cluster.Requests(systemNamespace, account)
	return slices.DeleteFunc(all, func(r testcluster.Request) bool {
		return r.Namespace != namespace || slices.Contains([]string{"get", "list", "watch"}, r.Verb)
	})
}
