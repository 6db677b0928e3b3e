package manifest

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	kjson "sigs.k8s.io/json"
	sigsyaml "sigs.k8s.io/yaml"
)

// Bounds of a file. A document larger than this could not be stored in a cluster either.
const (
	MaxDocumentBytes = 1 << 20
	MaxFileBytes     = 16 << 20
	MaxDocuments     = 1024
)

const byteOrderMark = "\ufeff"

// document is one document of a file.
type document struct {
	line   int // the line of the file that it begins on, from 1
	text   []byte
	object map[string]any
	nodes  *yaml.Node // for line numbers; nil if they are not known
}

// splitDocuments cuts a file at the lines that YAML gives to it, "---" and "...", and drops documents that hold nothing but
// comments. Content after "---" on its line belongs to the document that begins there.
func splitDocuments(r io.Reader) ([]document, error) {
	reader := bufio.NewReaderSize(io.LimitReader(r, MaxFileBytes+1), 64<<10)
	var documents []document
	current := document{line: 1}
	total, line := 0, 0
	for {
		text, err := reader.ReadString('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if total += len(text); total > MaxFileBytes {
			return nil, tooLarge("the file has more than %d bytes", MaxFileBytes)
		}
		if text != "" {
			line++
			text = strings.TrimPrefix(text, byteOrderMark)
			if marker, rest := cutMarker(text); marker {
				documents = appendDocument(documents, current)
				current = document{line: line}
				text = rest
			}
			current.text = append(current.text, text...)
			if len(documents) > MaxDocuments {
				return nil, problems{{message: fmt.Sprintf("the file has more than %d documents", MaxDocuments)}}
			}
			if len(current.text) > MaxDocumentBytes {
				return nil, tooLarge("the document on line %d has more than %d bytes", current.line, MaxDocumentBytes)
			}
		}
		if err != nil {
			return appendDocument(documents, current), nil
		}
	}
}

func tooLarge(format string, args ...any) error {
	return problems{{message: fmt.Sprintf(format, args...)}}
}

// cutMarker says whether a line ends a document. The rest is what the next document begins with.
func cutMarker(line string) (bool, string) {
	for _, marker := range []string{"---", "..."} {
		rest, ok := strings.CutPrefix(line, marker)
		if ok && (rest == "" || strings.ContainsAny(rest[:1], " \t\r\n")) {
			return true, rest
		}
	}
	return false, ""
}

func appendDocument(documents []document, d document) []document {
	for text := range bytes.Lines(d.text) {
		text = bytes.TrimSpace(text)
		if len(text) > 0 && text[0] != '#' && text[0] != '%' {
			return append(documents, d)
		}
	}
	return documents
}

// decode reads the document into an object, strictly: a key that is there twice is an error. Numbers without a fraction
// are int64, as in the API server.
func (d *document) decode() error {
	text := d.text
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		strict, err := kjson.UnmarshalStrict(text, &d.object)
		if err == nil {
			d.nodes, _ = parseNodes(text)
			return d.strictErrors(strict)
		}
		d.object = nil // a flow mapping of YAML begins like JSON
	}
	nodes, err := parseNodes(text)
	if err != nil {
		return d.syntaxError(err)
	}
	d.nodes = nodes
	if expandedSize(nodes, map[*yaml.Node]int{}) > MaxDocumentBytes {
		return problems{{line: d.line, message: fmt.Sprintf("the document has more than %d bytes once its aliases are followed", MaxDocumentBytes)}}
	}
	if err := d.keyProblems(); err != nil {
		return err
	}
	converted, err := sigsyaml.YAMLToJSONStrict(text)
	if err != nil {
		if merge := d.mergeProblem(); merge != nil {
			return merge
		}
		return d.syntaxError(err)
	}
	strict, err := kjson.UnmarshalStrict(converted, &d.object)
	if err != nil || d.object == nil {
		return problems{{line: d.line, message: "the document is not an object with apiVersion, kind, metadata and spec"}}
	}
	return d.strictErrors(strict)
}

var lineNumber = regexp.MustCompile(`\bline ([0-9]+)`)

// syntaxError makes the parser's words one line, with the file's line numbers instead of the document's.
func (d *document) syntaxError(err error) error {
	text := strings.TrimSpace(strings.TrimPrefix(err.Error(), "yaml: "))
	text = strings.Join(strings.Fields(strings.TrimPrefix(text, "unmarshal errors:")), " ")
	text = lineNumber.ReplaceAllStringFunc(text, func(found string) string {
		line, err := strconv.Atoi(strings.TrimPrefix(found, "line "))
		if err != nil {
			return found
		}
		return fmt.Sprintf("line %d", line+d.line-1)
	})
	found := problem{message: "malformed YAML: " + text}
	if !lineNumber.MatchString(text) {
		found.line = d.line
	}
	return problems{found}
}

func (d *document) strictErrors(strict []error) error {
	var found problems
	for _, err := range strict {
		found = append(found, problem{line: d.line, message: err.Error()})
	}
	return found.orNil()
}

// parseNodes reads a text that must be one document to its end: the parsers that fill objects stop after the first and leave out the rest
// in silence. More than one there can be behind JSON, or in a file whose lines end in what YAML takes for a line end and we do not.
func parseNodes(text []byte) (*yaml.Node, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var nodes, rest yaml.Node
	if err := decoder.Decode(&nodes); err != nil {
		return nil, err
	}
	switch err := decoder.Decode(&rest); {
	case errors.Is(err, io.EOF):
		return &nodes, nil
	case err != nil:
		return nil, fmt.Errorf("there is more behind the end of the document: %w", err)
	}
	return nil, fmt.Errorf("line %d: there is more behind the end of the document; put a line --- between two documents, "+
		"in a file that is UTF-8 and whose lines end in LF or CRLF", rest.Line)
}

// expandedSize is what a node takes once aliases are followed, in bytes, or a number above MaxDocumentBytes when it is more.
// A few lines of aliases to aliases can ask for more memory than there is.
func expandedSize(n *yaml.Node, known map[*yaml.Node]int) int {
	if n == nil {
		return 0
	}
	if size, ok := known[n]; ok {
		return size
	}
	known[n] = MaxDocumentBytes + 1 // holds if the node contains itself
	if n.Kind == yaml.AliasNode {
		size := expandedSize(n.Alias, known)
		known[n] = size
		return size
	}
	size := len(n.Value) + 1
	for _, child := range n.Content {
		size = min(size+expandedSize(child, known), MaxDocumentBytes+1)
	}
	known[n] = size
	return size
}
