package manifest

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// mergeKey is the tag of a key << that is to be filled from elsewhere (YAML 1.1, "Merge Key Language-Independent Type").
const mergeKey = "!!merge"

// mergeProblem finds a merge key that brings a key which stands beside it too, or which another one brings. The strict parser calls it a key
// that is there twice, on a line where it stands once.
func (d *document) mergeProblem() error {
	var found problems
	walkMappings(d.nodes, map[*yaml.Node]bool{}, func(mapping *yaml.Node) {
		seen := map[string]bool{}
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			if mapping.Content[i].Tag != mergeKey {
				seen[mapping.Content[i].Value] = true
			}
		}
		for i := 0; i+1 < len(mapping.Content); i += 2 {
			key := mapping.Content[i]
			if key.Tag != mergeKey {
				continue
			}
			for _, name := range mergedKeys(mapping.Content[i+1]) {
				if seen[name] {
					found = append(found, problem{line: d.line + key.Line - 1, message: fmt.Sprintf(
						"merge keys (<<) that override are not supported: this one brings %.64q, which is set already; write the fields out", name)})
				}
				seen[name] = true
			}
		}
	})
	return found.orNil()
}

// mergedKeys are the keys that the value of a merge key brings: those of a mapping, or of each mapping of a list.
func mergedKeys(value *yaml.Node) (names []string) {
	if value.Kind == yaml.AliasNode {
		value = value.Alias
	}
	switch value.Kind {
	case yaml.SequenceNode:
		for _, item := range value.Content {
			names = append(names, mergedKeys(item)...)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(value.Content); i += 2 {
			names = append(names, value.Content[i].Value)
		}
	}
	return names
}

// walkMappings looks at every mapping once, also where aliases lead back to it.
func walkMappings(n *yaml.Node, been map[*yaml.Node]bool, look func(*yaml.Node)) {
	if n == nil || been[n] {
		return
	}
	been[n] = true
	if n.Kind == yaml.MappingNode {
		look(n)
	}
	for _, child := range n.Content {
		walkMappings(child, been, look)
	}
	walkMappings(n.Alias, been, look)
}
