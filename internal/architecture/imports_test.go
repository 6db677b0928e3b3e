package architecture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestImportsPointInward checks the packages of this checkout.
func TestImportsPointInward(t *testing.T) {
	graph := importsOf(t, module+"/...")
	for _, expected := range []string{"api/v1alpha1", "internal/storage", "internal/testdb"} {
		if _, listed := graph[module+"/"+expected]; !listed {
			t.Errorf("go list does not know %s: the check would pass by looking at nothing", expected)
		}
	}
	for _, violation := range violations(graph, rules) {
		t.Error(violation)
	}
}

// importsOf returns what packages import, tests aside: a test may wire an engine
// to a real backend, which is what tests are for.
func importsOf(t *testing.T, pattern string) map[string][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var problems bytes.Buffer
	list := exec.CommandContext(ctx, "go", "list", "-json=ImportPath,Imports", pattern)
	list.Stderr = &problems
	output, err := list.Output()
	if err != nil {
		t.Fatalf("go list %s: %v: %s", pattern, err, problems.String())
	}
	graph := map[string][]string{}
	decoder := json.NewDecoder(bytes.NewReader(output))
	for {
		var listed struct {
			ImportPath string
			Imports    []string
		}
		err := decoder.Decode(&listed)
		if errors.Is(err, io.EOF) {
			return graph
		}
		if err != nil {
			t.Fatalf("read the answer of go list: %v", err)
		}
		graph[listed.ImportPath] = listed.Imports
	}
}

func TestABrokenArrowIsFound(t *testing.T) {
	cases := map[string]struct {
		from, to string
		want     string // a part of the message; empty if the import is allowed
	}{
		"the API types may import apimachinery":          {"api/v1alpha1", "k8s.io/apimachinery/pkg/runtime", ""},
		"the API types import no client":                 {"api/v1alpha1", "k8s.io/client-go/rest", "apimachinery only"},
		"the API types import no other API":              {"api/v1alpha1", "k8s.io/api/core/v1", "apimachinery only"},
		"the API types import no controller-runtime":     {"api/v1alpha1", "sigs.k8s.io/controller-runtime", "apimachinery only"},
		"the API types import nothing of the engine":     {"api/v1alpha1", "internal/storage", "apimachinery only"},
		"a backend may import the interface":             {"internal/storage/postgres", "internal/storage", ""},
		"a backend may import its driver":                {"internal/storage/postgres", "github.com/jackc/pgx/v5", ""},
		"the interface imports no driver":                {"internal/storage", "github.com/jackc/pgx/v5", "know no backend"},
		"the interface imports no backend":               {"internal/storage", "internal/storage/sqlite", "know no backend"},
		"the contract imports no backend":                {"internal/storage/storagetest", "internal/storage/postgres", "know no backend"},
		"PostgreSQL does not import SQLite":              {"internal/storage/postgres", "internal/storage/sqlite", "does not know the other"},
		"SQLite does not import pgx":                     {"internal/storage/sqlite", "github.com/jackc/pgx/v5/pgconn", "does not know the other"},
		"storage imports no engine":                      {"internal/storage", "internal/barrier", "lowest layer"},
		"a backend imports no Kubernetes":                {"internal/storage/postgres", "k8s.io/klog/v2", "lowest layer"},
		"the engine may import storage":                  {"internal/barrier", "internal/storage", ""},
		"the engine imports no backend":                  {"internal/backfill", "internal/storage/postgres", "no SQL"},
		"the engine imports no database/sql":             {"internal/barrier", "database/sql", "no SQL"},
		"the engine imports no Kubernetes":               {"internal/backfill", "k8s.io/api/batch/v1", "no Kubernetes"},
		"the engine imports no API types":                {"internal/barrier", "api/v1alpha1", "no Kubernetes"},
		"manifest may import API types":                  {"internal/manifest", "api/v1alpha1", ""},
		"manifest imports no backend":                    {"internal/manifest", "internal/storage/sqlite", "serves both edges"},
		"controllers may import the engine":              {"controllers", "internal/barrier", ""},
		"controllers import no backend":                  {"controllers", "internal/storage/postgres", "chooses the backend"},
		"controllers import no driver":                   {"controllers", "github.com/jackc/pgx/v5/pgxpool", "chooses the backend"},
		"controllers import no command line":             {"controllers", "internal/cli", "chooses the backend"},
		"the command line imports no controller":         {"internal/cli", "controllers", "without the operator"},
		"the webhook imports no driver":                  {"internal/webhook", "modernc.org/sqlite", "pure functions"},
		"the gate for applications takes no Kubernetes":  {"pkg/servegate", "k8s.io/client-go/rest", "applications embed it"},
		"cmd may import everything":                      {"cmd/manager", "controllers", ""},
		"nothing imports cmd":                            {"internal/cli", "cmd/syncbarrier", "without the operator"},
		"nothing imports an example":                     {"pkg/servegate", "examples/clinic", "outer edge"},
		"a program imports no test database":             {"cmd/manager", "internal/testdb", "not part of a program"},
		"a program imports no test cluster":              {"controllers", "internal/testcluster", "not part of a program"},
		"a program imports no testing":                   {"internal/barrier", "testing", "not part of a program"},
		"the contract may import testing":                {"internal/storage/storagetest", "testing", ""},
		"a name that begins like another is another one": {"internal/barrierless", "k8s.io/api/core/v1", ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			graph := map[string][]string{full(c.from): {full(c.to)}}
			check(t, violations(graph, rules), c.want)
		})
	}
}

func TestAnArrowBrokenThroughAPackageInBetweenIsFoundWithItsChain(t *testing.T) {
	graph := map[string][]string{
		full("internal/barrier"): {full("internal/plans")},
		full("internal/plans"):   {full("internal/more"), "fmt"},
		full("internal/more"):    {"github.com/jackc/pgx/v5"},
	}
	check(t, violations(graph, rules), "internal/barrier -> internal/plans -> internal/more -> github.com/jackc/pgx/v5")
}

func TestWhatALibraryImportsIsItsOwnAffair(t *testing.T) {
	graph := map[string][]string{full("controllers"): {"github.com/google/uuid"}} // which imports database/sql/driver
	check(t, violations(graph, rules), "")
}

func TestAVagueNameIsFound(t *testing.T) {
	graph := map[string][]string{full("internal/storage/util"): nil, full("internal/utility"): nil}
	check(t, violations(graph, rules), "internal/storage/util: a package is named after what it knows")
}

// full returns the import path of a package of this project; other packages
// have a dot in the first part of their path, or are of the standard library.
func full(name string) string {
	first, _, _ := strings.Cut(name, "/")
	if slices.Contains([]string{"api", "cmd", "controllers", "examples", "internal", "pkg"}, first) {
		return module + "/" + name
	}
	return name
}

// check wants one violation with a certain text, or none.
func check(t *testing.T, got []string, want string) {
	t.Helper()
	switch {
	case want == "" && len(got) > 0:
		t.Errorf("an allowed import is reported: %q", got)
	case want != "" && !slices.ContainsFunc(got, func(message string) bool { return strings.Contains(message, want) }):
		t.Errorf("got %q, want a message with %q", got, want)
	}
}
