package podgate

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Requirement is a SyncSchema of the pod's namespace and the version that the pod is built for.
type Requirement struct {
	Schema  string
	Version int64
}

// String gives it as people write it: clinic=7.
func (r Requirement) String() string { return r.Schema + "=" + strconv.FormatInt(r.Version, 10) }

// maxRequirements is more than any program has databases.
const maxRequirements = 16

var objectName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$`)

// ParseRequirements reads the annotation syncbarrier.dev/requires: clinic=7, or clinic=7,billing=3, with spaces around names and numbers.
// They come back in the order of their names. An empty text, a name twice, and a number that is no version are errors.
func ParseRequirements(text string) ([]Requirement, error) {
	var all []Requirement
	for _, part := range strings.Split(text, ",") {
		name, number, found := strings.Cut(part, "=")
		name, number = strings.TrimSpace(name), strings.TrimSpace(number)
		if !found || len(name) > 63 || !objectName.MatchString(name) {
			return nil, fmt.Errorf("%q is not of the form NAME=VERSION", shortened(part))
		}
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil || version < 1 || version > math.MaxInt32 || number[0] == '+' {
			return nil, fmt.Errorf("%q is not a version from 1 to %d", shortened(number), math.MaxInt32)
		}
		if slices.ContainsFunc(all, func(r Requirement) bool { return r.Schema == name }) {
			return nil, fmt.Errorf("SyncSchema %q is named twice", name)
		}
		if len(all) == maxRequirements {
			return nil, fmt.Errorf("more than %d SyncSchemas are named", maxRequirements)
		}
		all = append(all, Requirement{Schema: name, Version: version})
	}
	slices.SortFunc(all, func(a, b Requirement) int { return strings.Compare(a.Schema, b.Schema) })
	return all, nil
}

func shortened(text string) string {
	const most = 80
	text = strings.ToValidUTF8(text, "?")
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

func join(all []Requirement) string {
	parts := make([]string, len(all))
	for i, r := range all {
		parts[i] = r.String()
	}
	return strings.Join(parts, ",")
}
