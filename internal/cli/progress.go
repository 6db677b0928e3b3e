package cli

import (
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"

	"github.com/syncbarrier/syncbarrier/internal/backfill"
	"github.com/syncbarrier/syncbarrier/internal/legible"
	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// progress shows a backfill: a bar with rows, rate and time left on a terminal, else a plain line every few seconds.
type progress struct {
	program  *Program
	name     string
	estimate func() int64 // rows there are, once the work is cut; nil when it was asked
	before   int64        // rows that were done when this run began
	total    int64
	rows     int64
	started  time.Time
	shown    time.Time
	bar      *progressbar.ProgressBar
}

// lineEvery is the pause between two plain lines.
const lineEvery = 5 * time.Second

func (p *Program) newProgress(name string, now storage.CheckpointProgress, estimate func() int64) *progress {
	s := &progress{program: p, name: legible.Name(name), estimate: estimate, before: now.RowsDone, total: estimated(now), started: p.Clock.Now(), shown: p.Clock.Now()}
	if !p.json() && isTerminal(p.screen) {
		s.bar = progressbar.NewOptions64(s.total,
			progressbar.OptionSetWriter(p.screen), progressbar.OptionSetDescription("backfill "+s.name),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("rows"),
			progressbar.OptionSetPredictTime(true), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	} else if now.Activated == now.Total {
		p.say("backfill %s: is activated already", s.name)
	} else if now.RowsDone > 0 {
		p.say("backfill %s: goes on, %d of about %d rows are done", s.name, now.RowsDone, s.total)
	} else {
		p.say("backfill %s: begins", s.name)
	}
	return s
}

func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// event takes what the runner reports.
func (s *progress) event(e backfill.Event) {
	switch e.Kind {
	case backfill.EventScanned, backfill.EventTailed:
		s.moved(e)
	case backfill.EventActivated:
		s.line("backfill %s: partition %q activated, the last %d changes applied under the lock", s.name, e.Partition, e.Rest)
	case backfill.EventWaiting:
		if e.Pause >= time.Second {
			s.line("backfill %s: waiting %s: %v", s.name, e.Pause.Round(100*time.Millisecond), e.Err)
		}
	case backfill.EventRestarting:
		s.line("backfill %s: begins again: %v", s.name, e.Err)
	}
}

func (s *progress) moved(e backfill.Event) {
	if s.estimate != nil { // the first claim cuts the work and counts it; before there was nothing to show
		s.total = max(s.total, s.estimate())
		s.estimate = nil
		if s.bar != nil {
			s.bar.ChangeMax64(s.total)
		}
	}
	s.rows = max(s.rows, e.Rows)
	done := s.before + s.rows
	if s.bar != nil {
		if done > s.total { // an estimate may be low; the bar must not pass its end
			s.total = done
			s.bar.ChangeMax64(s.total)
		}
		_ = s.bar.Set64(done)
		return
	}
	now := s.program.Clock.Now()
	if now.Sub(s.shown) < lineEvery {
		return
	}
	s.shown = now
	rate := float64(s.rows) / max(now.Sub(s.started).Seconds(), 0.001)
	left := time.Duration(float64(max(0, s.total-done))/max(rate, 0.001)) * time.Second
	s.program.say("backfill %s: %d of about %d rows, %.0f rows/s, %s left", s.name, done, s.total, rate, left)
}

func (s *progress) line(format string, args ...any) {
	if s.bar != nil {
		_ = s.bar.Clear()
		writeLine(s.program.Err, format, args...)
		return
	}
	s.program.say(format, args...)
}

// finished says what a run that came to its end has done.
func (s *progress) finished() {
	if took := s.program.Clock.Now().Sub(s.started); s.rows > 0 {
		s.line("backfill %s: %d rows in %s, %.0f rows/s", s.name, s.rows, took.Round(10*time.Millisecond), float64(s.rows)/max(took.Seconds(), 0.001))
	}
}

func (s *progress) end() {
	if s.bar != nil {
		_ = s.bar.Clear()
	}
}
