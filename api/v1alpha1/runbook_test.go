package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// A person meets a reason at night and looks it up. docs/runbook.md has a heading for each, with something to say under it.
func TestTheRunbookHasAHeadingForEveryReasonAndNoOther(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := map[string]string{} // to what stands under them
	for _, section := range regexp.MustCompile(`(?m)^### `).Split(string(text), -1)[1:] {
		name, body, _ := strings.Cut(section, "\n")
		body, _, _ = strings.Cut(body, "\n## ")
		if _, twice := headings[name]; twice {
			t.Errorf("docs/runbook.md has two headings %s", name)
		}
		headings[name] = strings.TrimSpace(body)
	}
	reasons := map[string]bool{}
	for _, constant := range reasonConstants(t) {
		reasons[constant] = true
	}
	for reason := range reasons {
		if len(headings[reason]) < 40 {
			t.Errorf("docs/runbook.md says nothing of the reason %s: %q", reason, headings[reason])
		}
	}
	for heading := range headings {
		if !reasons[heading] {
			t.Errorf("docs/runbook.md has a heading %s, which is no reason", heading)
		}
	}
}

// reasonConstants are the values of all constants of the package that are called Reason....
func reasonConstants(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, ok := node.(*ast.ValueSpec); ok && strings.HasPrefix(spec.Names[0].Name, "Reason") {
				reason, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				found = append(found, reason)
			}
			return true
		})
	}
	return found
}

var link = regexp.MustCompile(`\]\(#([a-z]+)\)`)

func TestLinksInsideTheRunbookLeadSomewhere(t *testing.T) {
	text, err := os.ReadFile("../../docs/runbook.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range link.FindAllStringSubmatch(string(text), -1) {
		if !strings.Contains(strings.ToLower(string(text)), "\n### "+found[1]+"\n") {
			t.Errorf("docs/runbook.md links to #%s, which is no heading", found[1])
		}
	}
}
