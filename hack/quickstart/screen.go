package main

import (
	"fmt"
	"os"
	"strings"
	"time"
)

// screen draws pictures over each other in a terminal, and one after the other elsewhere.
type screen struct {
	out      *os.File
	terminal bool
	last     string
	height   int
}

func newScreen(out *os.File) *screen {
	information, err := out.Stat()
	return &screen{out: out, terminal: err == nil && information.Mode()&os.ModeCharDevice != 0}
}

// Codes of terminals (ECMA-48).
const (
	lineUp   = "\033[1A"
	clearEnd = "\033[0J"
)

// draw shows the state as it is after so much time.
func (s *screen) draw(now state, passed time.Duration) error {
	lines := now.lines()
	picture := strings.Join(lines, "\n")
	if !s.terminal {
		if picture == s.last {
			return nil
		}
		s.last = picture
		_, err := fmt.Fprintf(s.out, "--- after %.1f s\n%s\n", passed.Seconds(), picture)
		return err
	}
	_, err := fmt.Fprintf(s.out, "%s%sclinic, version %d wanted              %5.1f s\n%s\n",
		strings.Repeat(lineUp, s.height), clearEnd, now.schema.Spec.Version, passed.Seconds(), picture)
	s.height = len(lines) + 1
	return err
}
