package architecture

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// module is the path that all packages of this project begin with.
const module = "github.com/syncbarrier/syncbarrier"

// rule forbids packages to depend on others, directly or through packages of
// this project in between. What a library imports is its own affair.
//
// Packages of this project are written without the module's path. A name stands
// for the package and everything below it.
type rule struct {
	from      []string
	except    []string // packages that from covers and the rule does not
	forbidden []string
	allowed   []string // packages that forbidden covers and the rule does not
	because   string
}

// Things that several rules forbid.
var (
	kubernetes = []string{"k8s.io", "sigs.k8s.io"}
	drivers    = []string{"database/sql", "github.com/jackc", "modernc.org"}
	backends   = []string{"internal/storage/postgres", "internal/storage/sqlite"}
	edges      = []string{"cmd", "controllers", "internal/cli", "internal/webhook"}
	testOnly   = []string{"internal/testdb", "internal/testcluster", "internal/testforeign", "internal/storage/storagetest", "testing"}
)

// rules are the arrows: cmd -> controllers -> barrier, backfill -> storage <-
// postgres, sqlite; cli beside controllers, manifest below both.
var rules = []rule{
	{
		from:      []string{"api"},
		forbidden: join(kubernetes, drivers, edges, []string{"github.com", "golang.org", "internal", "pkg"}),
		allowed:   []string{"k8s.io/apimachinery"},
		because:   "the API types import apimachinery only",
	},
	{
		from:      []string{"internal/storage"},
		forbidden: join(kubernetes, edges, []string{"api", "internal/barrier", "internal/backfill", "internal/manifest", "pkg"}),
		because:   "storage is the lowest layer and knows no Kubernetes",
	},
	{
		from:      []string{"internal/storage"},
		except:    backends,
		forbidden: join(drivers, backends),
		because:   "the Store interface and its contract know no backend",
	},
	{
		from:      []string{"internal/storage/postgres"},
		forbidden: []string{"internal/storage/sqlite", "modernc.org"},
		because:   "one backend does not know the other",
	},
	{
		from:      []string{"internal/storage/sqlite"},
		forbidden: []string{"internal/storage/postgres", "github.com/jackc"},
		because:   "one backend does not know the other",
	},
	{
		from:      []string{"internal/barrier", "internal/backfill"},
		forbidden: join(kubernetes, drivers, backends, edges, []string{"api", "internal/manifest", "pkg"}),
		because:   "the engine knows no Kubernetes and no SQL",
	},
	{
		from:      []string{"internal/manifest"},
		forbidden: join(drivers, backends, edges),
		because:   "translating a spec needs no database and serves both edges",
	},
	{
		from:      []string{"internal/webhook"},
		forbidden: join(drivers, backends, []string{"cmd", "controllers", "internal/cli"}),
		because:   "the webhook is thin, over pure functions",
	},
	{
		from:      []string{"controllers"},
		forbidden: join(drivers, backends, []string{"cmd", "internal/cli"}),
		because:   "controllers call the engine; cmd/manager chooses the backend",
	},
	{
		from:      []string{"internal/cli"},
		forbidden: []string{"cmd", "controllers", "internal/webhook"},
		because:   "the command line works without the operator",
	},
	{
		from:      []string{"pkg"},
		forbidden: join(kubernetes, edges, []string{"api", "internal/manifest"}),
		because:   "applications embed it, and Kubernetes stays out of them",
	},
	{
		from:      []string{"api", "cmd", "controllers", "internal", "pkg"},
		except:    []string{"internal/testdb", "internal/testcluster", "internal/testforeign", "internal/storage/storagetest"},
		forbidden: testOnly,
		because:   "what helps tests is not part of a program",
	},
	{
		from:      []string{"api", "controllers", "internal", "pkg"},
		forbidden: []string{"cmd", "examples", "hack", "bench", "test"},
		because:   "programs, examples and tools stand at the outer edge",
	},
}

// vagueNames are names that say nothing about what a package knows.
var vagueNames = []string{"util", "utils", "common", "helper", "helpers", "misc", "shared", "base"}

// violations returns, sorted, a sentence for each broken rule: the chain of
// imports that breaks it, and why it is forbidden. The graph maps the packages
// of this project to what they import.
func violations(graph map[string][]string, rules []rule) []string {
	var found []string
	for _, from := range slices.Sorted(maps.Keys(graph)) {
		for _, segment := range strings.Split(short(from), "/") {
			if slices.Contains(vagueNames, segment) {
				found = append(found, fmt.Sprintf("%s: a package is named after what it knows, not %s", short(from), segment))
			}
		}
		chains := reach(graph, from)
		for _, rule := range rules {
			if !matchesAny(short(from), rule.from) || matchesAny(short(from), rule.except) {
				continue
			}
			for _, target := range slices.Sorted(maps.Keys(chains)) {
				if matchesAny(short(target), rule.forbidden) && !matchesAny(short(target), rule.allowed) {
					found = append(found, fmt.Sprintf("%s: %s", strings.Join(chains[target], " -> "), rule.because))
				}
			}
		}
	}
	return found
}

// reach returns everything that a package depends on, with the shortest chain of
// imports that leads there. It goes through packages of the graph only.
func reach(graph map[string][]string, from string) map[string][]string {
	chains := map[string][]string{from: {short(from)}}
	for queue := []string{from}; len(queue) > 0; queue = queue[1:] {
		current := queue[0]
		for _, next := range graph[current] {
			if _, seen := chains[next]; seen {
				continue
			}
			chains[next] = append(slices.Clone(chains[current]), short(next))
			queue = append(queue, next)
		}
	}
	delete(chains, from)
	return chains
}

// short returns a package of this project without the module's path.
func short(importPath string) string {
	if importPath == module {
		return "."
	}
	return strings.TrimPrefix(importPath, module+"/")
}

// matchesAny reports whether a package is one of the names or below one.
func matchesAny(name string, names []string) bool {
	return slices.ContainsFunc(names, func(pattern string) bool {
		return name == pattern || strings.HasPrefix(name, pattern+"/")
	})
}

func join(lists ...[]string) []string {
	return slices.Concat(lists...)
}
