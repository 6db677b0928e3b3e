package gitops

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"github.com/syncbarrier/syncbarrier/api/v1alpha1"
)

// The page shows the lines that make a recipe. Who copies it takes the file, so each line must stand in the file that it names.
func TestTheLinesOfTheRecipesInTheDocumentationStandInTheirFiles(t *testing.T) {
	text, err := os.ReadFile("../../docs/gitops.md")
	must(t, err)
	shown := 0
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n# ([a-z/-]+\\.yaml)\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		file, err := os.ReadFile("../../examples/clinic/gitops/" + block[1])
		must(t, err)
		for line := range strings.Lines(block[2]) {
			if !strings.Contains(string(file), line) {
				t.Errorf("%s does not have the line %q", block[1], line)
			}
		}
		shown++
	}
	if shown != 3 {
		t.Errorf("the page shows lines of %d files, want 3", shown)
	}
}

// strictDecoder knows the cluster's kinds and ours, and takes no field that they do not have.
func strictDecoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		must(t, add(scheme))
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// A file that the page or the runbook names must be there.
func TestTheFilesThatTheDocumentationNamesAreThere(t *testing.T) {
	found := 0
	for _, page := range []string{"gitops.md", "runbook.md", "uninstall.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\b(?:config|examples)/[a-z/-]+(?:\.[a-z]+)?`).FindAllString(string(text), -1) {
			found++
			if _, err := os.Stat("../../" + name); err != nil {
				t.Errorf("docs/%s: %v", page, err)
			}
		}
	}
	if found == 0 {
		t.Error("no page names a file, so this test looks for the wrong thing")
	}
}
