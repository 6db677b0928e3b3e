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

// Who reads the page copies its YAML. What is of a kind that we know must be one that the API server knows, field by field.
func TestTheManifestsInTheDocumentationAreWhatTheAPIServerTakes(t *testing.T) {
	text, err := os.ReadFile("../../docs/gitops.md")
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		must(t, add(scheme))
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	decoded := map[string]int{}
	for _, block := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(string(text), -1) {
		for _, document := range strings.Split(block[1], "\n---\n") {
			if !strings.HasPrefix(document, "apiVersion:") {
				continue // a part of a file
			}
			_, kind, err := decoder.Decode([]byte(document), nil, nil)
			if runtime.IsNotRegisteredError(err) {
				continue // of Flux or Argo, which we do not know
			}
			if err != nil {
				t.Errorf("%v:\n%s", err, document)
				continue
			}
			decoded[kind.Kind]++
		}
	}
	if decoded["Deployment"] == 0 || decoded["SyncSchema"] == 0 {
		t.Errorf("the page has %v, so this test looks at the wrong place", decoded)
	}
}

// A file that the page or the runbook names must be there.
func TestTheFilesThatTheDocumentationNamesAreThere(t *testing.T) {
	found := 0
	for _, page := range []string{"gitops.md", "runbook.md", "uninstall.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`\bconfig/[a-z/-]+(?:\.[a-z]+)?`).FindAllString(string(text), -1) {
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
