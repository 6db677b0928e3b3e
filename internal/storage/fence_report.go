package storage

import (
	"fmt"
	"strings"
)

// HintFence is what to do about a fence that is weakened.
const HintFence = "syncbarrier fence check shows all of it, fence repair puts back what can be put back"

// Summary says in a sentence how fence or guards are weakened, with at most five findings; empty: they are not.
func (r FenceReport) Summary() string {
	if r.Intact() {
		return ""
	}
	const most = 5
	var problems []string
	for _, finding := range r.Findings[:min(most, len(r.Findings))] {
		problems = append(problems, finding.Object+" "+finding.Problem)
	}
	text := "the fence or its guards are weakened: " + strings.Join(problems, "; ")
	if more := len(r.Findings) - most; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	if r.GotIn > 0 {
		text += fmt.Sprintf("; %d commits got in below the fence", r.GotIn)
	}
	return text
}

// Refusal is CodeFenceBroken with the summary; nil: nothing is weakened.
func (r FenceReport) Refusal() error {
	if r.Intact() {
		return nil
	}
	return Refuse(CodeFenceBroken, "%s", r.Summary()).WithHint(HintFence)
}
