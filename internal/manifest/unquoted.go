package manifest

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/validation/field"
	sigsyaml "sigs.k8s.io/yaml"

	"github.com/syncbarrier/syncbarrier/internal/legible"
)

// YAML takes some words that are not quoted for no text: on, no and y for booleans, ~ for nothing, 0x10 and 1e3 for numbers (YAML 1.1, which
// is what kubectl reads too). Columns are called such names all the same.

// keyProblems finds keys that would become another text: a column called on would be set under the name true, which may be a column as well.
func (d *document) keyProblems() error {
	var found problems
	walkMappings(d.nodes, map[*yaml.Node]bool{}, func(mapping *yaml.Node) {
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			key := mapping.Content[i]
			if !unquoted(key) || key.Tag == mergeKey {
				continue
			}
			if as := readAs(key.Value); as == "null" || as != key.Value && as != quotedJSON(key.Value) {
				found = append(found, problem{line: d.line + key.Line - 1, message: fmt.Sprintf(
					"the key %s stands without quotes, and YAML reads it as %s: write %q", legible.Name(key.Value), as, key.Value)})
			}
		}
	})
	return found.orNil()
}

// quoteHint says of a value that should be text and is not what to do about it.
func (d *document) quoteHint(err *field.Error) string {
	if !strings.HasSuffix(err.Detail, `must be of type string: "boolean"`) && !strings.HasSuffix(err.Detail, `must be of type string: "integer"`) &&
		!strings.HasSuffix(err.Detail, `must be of type string: "number"`) {
		return ""
	}
	if node, _ := d.find(err.Field); node != nil && unquoted(node) {
		return fmt.Sprintf("; without quotes YAML reads it as %s: write %q", readAs(node.Value), node.Value)
	}
	return ""
}

func unquoted(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.Style == 0 }

// readAs gives the JSON of what a word without quotes is read as. A key is read as a value is, and then made a text of.
func readAs(word string) string {
	if len(word) > len("FALSE") && (word[0]|0x20 >= 'a' && word[0]|0x20 <= 'z' || word[0] == '_') {
		return quotedJSON(word) // no word that means something else is as long and begins with a letter
	}
	converted, err := sigsyaml.YAMLToJSON([]byte(word))
	if err != nil {
		return "null" // it is no value at all
	}
	return strings.TrimSpace(string(converted))
}

func quotedJSON(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return text // a text always encodes
	}
	return string(quoted)
}
