package manifest

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// lineOf gives the line of the file on which a field stands, or, for one that is missing, on which its parent begins. 0 if that is not
// known.
func (d *document) lineOf(path string) int {
	_, line := d.find(path)
	return line
}

// find gives what a path leads to, nil if it leads nowhere, and the line.
func (d *document) find(path string) (*yaml.Node, int) {
	if d.nodes == nil || len(d.nodes.Content) == 0 {
		return nil, d.line
	}
	node, line := d.nodes.Content[0], d.nodes.Content[0].Line
	for _, step := range splitPath(path) {
		key, value := child(node, step)
		if value == nil {
			return nil, line + d.line - 1
		}
		node, line = value, key.Line
	}
	return node, line + d.line - 1
}

// splitPath takes a field path apart: spec.tables[0].columns becomes spec, tables, 0, columns. What stands in brackets is one
// step, whatever it holds.
func splitPath(path string) []string {
	var steps []string
	for path != "" {
		switch {
		case path[0] == '.':
			path = path[1:]
		case path[0] == '[':
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return steps
			}
			steps = append(steps, path[1:end])
			path = path[end+1:]
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			steps = append(steps, path[:end])
			path = path[end:]
		}
	}
	return steps
}

// child finds an entry of a mapping or a sequence. The key of an entry of a sequence is the entry itself.
func child(node *yaml.Node, step string) (key, value *yaml.Node) {
	if node.Kind == yaml.AliasNode {
		node = node.Alias
	}
	switch node.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i].Value == step {
				return node.Content[i], node.Content[i+1]
			}
		}
	case yaml.SequenceNode:
		if i, err := strconv.Atoi(step); err == nil && i >= 0 && i < len(node.Content) {
			return node.Content[i], node.Content[i]
		}
	}
	return nil, nil
}
