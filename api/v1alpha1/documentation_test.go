package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

// sources parses the Go files of this package that people write.
func sources(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	for _, name := range []string{
		"backfillcheckpoint_types.go", "checkpoint_types.go", "conditions.go", "database_types.go",
		"status_types.go", "syncschema_types.go", "table_types.go",
	} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = file
	}
	return files
}

// `kubectl explain` shows these comments, and nothing else explains a field where it is written.
func TestEveryFieldIsExplainedByItsNameAndWhatOmittingItMeans(t *testing.T) {
	seen := 0
	for _, file := range sources(t) {
		ast.Inspect(file, func(node ast.Node) bool {
			spec, ok := node.(*ast.TypeSpec)
			if !ok {
				return true
			}
			structure, ok := spec.Type.(*ast.StructType)
			if !ok || strings.HasSuffix(spec.Name.Name, "List") {
				return true
			}
			for _, field := range structure.Fields.List {
				if name := jsonName(t, field); name != "" {
					seen++
					checkComment(t, spec.Name.Name, name, field.Doc.Text(), markers(field))
				}
			}
			return true
		})
	}
	if seen < 100 {
		t.Errorf("found %d fields, so this test looks at the wrong files", seen)
	}
}

func checkComment(t *testing.T, structure, name, comment, markers string) {
	t.Helper()
	where := structure + "." + name
	if !strings.HasPrefix(comment, name+" ") {
		t.Errorf("the comment of %s does not open with its name: %q", where, comment)
	}
	required, optional := strings.Contains(markers, "+required"), strings.Contains(markers, "+optional")
	if required == optional {
		t.Errorf("%s is not marked as either required or optional", where)
	}
	saysOmission := strings.Contains(comment, "omitted") || strings.Contains(comment, "the default")
	if optional && name != "metadata" && !saysOmission {
		t.Errorf("the comment of %s does not say what omitting it means: %q", where, comment)
	}
}

// jsonName is the field's name in YAML, "" for one that is embedded without a name.
func jsonName(t *testing.T, field *ast.Field) string {
	t.Helper()
	if field.Tag == nil {
		t.Fatalf("a field without a JSON name: %v", field.Names)
	}
	tag, err := strconv.Unquote(field.Tag.Value)
	if err != nil {
		t.Fatal(err)
	}
	name, _, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
	return name
}

// markers are the comment lines that tools read.
func markers(field *ast.Field) string {
	var found strings.Builder
	if field.Doc != nil {
		for _, line := range field.Doc.List {
			found.WriteString(line.Text + "\n")
		}
	}
	return found.String()
}

func TestConditionsSayWhenTheyAreTrueAndReasonsWhenTheyAppear(t *testing.T) {
	conditions, reasons := map[string]bool{}, map[string]bool{}
	file := sources(t)["conditions.go"]
	ast.Inspect(file, func(node ast.Node) bool {
		spec, ok := node.(*ast.ValueSpec)
		if !ok {
			return true
		}
		name, comment := spec.Names[0].Name, strings.Join(strings.Fields(spec.Doc.Text()), " ")
		value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case strings.HasPrefix(name, "Condition"):
			conditions[value] = true
			if name != "Condition"+value || !strings.HasPrefix(comment, name+" is true ") {
				t.Errorf("%s = %q does not say when it is true: %q", name, value, comment)
			}
		case strings.HasPrefix(name, "Reason"):
			reasons[value] = true
			if name != "Reason"+value || !strings.HasPrefix(comment, name+" appears ") {
				t.Errorf("%s = %q does not say when it appears: %q", name, value, comment)
			}
		default:
			t.Errorf("%s is neither a condition nor a reason", name)
		}
		return true
	})
	want(t, "condition", conditions, `Ready Reconciling Stalled Migrated Fenced GateOpen Suspended WorkloadsSafe PodsUngated UnversionedWriters
		GateBypassed LogGrowing BackfillComplete Activated`)
	want(t, "reason", reasons, `LockTimeout Deadlock Serialization Cancelled ConnectionLost CommitUnknown ReadOnly AuthenticationFailed SecretMissing
		Throttled WorkerPending WaitingForPods PreviousVersionOpen Migrating Preparing Backfilling CatchingUp SourceChanged Activating Finishing
		ApprovalPending Suspended GateOpen Activated InvalidSpec InvalidSQL NotTransactional VersionRegression ContentDrift LayoutMismatch Conflict
		FenceBroken VerificationFailed NotConverging Unverifiable CheckpointOrphaned Internal`)
}

// want checks that every word of the design's table (docs/design.md section 7) is there.
func want(t *testing.T, what string, got map[string]bool, words string) {
	t.Helper()
	for _, word := range strings.Fields(words) {
		if !got[word] {
			t.Errorf("there is no %s %s", what, word)
		}
	}
}
