package podgate

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A condition's message has a part for each requirement. That of an open one says what it was proven for: the version, the reason, and the
// database.
//
//	clinic=7 GateOpen on 7391234567890123456/app/public: version 7 may serve
var openPart = regexp.MustCompile(`^([a-z0-9.-]+)=([0-9]+) (\w+) on (\S+): `)

const (
	partSeparator = "; "
	maxText       = 600 // of one part, in bytes
	// unknownDatabase stands in a part that a person's decision opened while the database could not be read.
	unknownDatabase = "?"
)

// proof is the part of a condition's message that says why one requirement is open.
type proof struct {
	requirement Requirement
	reason      string
	database    string
	part        string // all of it, as it stands in the message
}

// readProofs takes the message of a condition that is True apart. What was not written by us has none.
func readProofs(message string) map[string]proof {
	proofs := map[string]proof{}
	for _, part := range strings.Split(message, partSeparator) {
		match := openPart.FindStringSubmatch(part)
		if match == nil {
			continue
		}
		version, err := strconv.ParseInt(match[2], 10, 64)
		if err != nil {
			continue
		}
		proofs[match[1]] = proof{Requirement{match[1], version}, match[3], match[4], part}
	}
	return proofs
}

func openText(r Requirement, reason, database, text string) string {
	return fmt.Sprintf("%s %s on %s: %s", r, reason, database, plain(text))
}

func closedText(r Requirement, text string) string { return fmt.Sprintf("%s: %s", r, plain(text)) }

// plain bounds a text, and keeps out of it what separates parts and what does not show: a bypass has words of a person, and a database's may
// name any key.
func plain(text string) string {
	text = legible.Line(strings.Join(strings.Fields(text), " "))
	return legible.Cut(strings.ReplaceAll(text, ";", ","), maxText+len("..."))
}

// DatabaseName tells databases apart in a message: system identifier, database and schema, without a space.
func DatabaseName(id storage.DatabaseIdentity) string {
	return url.PathEscape(id.System) + "/" + url.PathEscape(id.Database) + "/" + url.PathEscape(id.Schema)
}
