package backfill

import (
	"context"
	"time"

	"github.com/syncbarrier/syncbarrier/internal/clock"
)

// pacer holds a worker to its share of the rate limit. The limit is for the checkpoint; each of n workers gets an n-th.
type pacer struct {
	clock   clock.Clock
	workers int
	free    time.Time // when the rows done so far are paid for
	lagRead time.Time
}

func newPacer(c clock.Clock, workers int) *pacer { return &pacer{clock: c, workers: max(1, workers)} }

// wait sleeps until rows more may be done at maxRowsPerSecond; 0 is no limit. Time not used is not saved up.
func (p *pacer) wait(ctx context.Context, rows int64, maxRowsPerSecond int) error {
	now := p.clock.Now()
	if maxRowsPerSecond <= 0 || rows <= 0 {
		return ctx.Err()
	}
	if p.free.Before(now) {
		p.free = now
	}
	cost := time.Duration(float64(rows) * float64(p.workers) / float64(maxRowsPerSecond) * float64(time.Second))
	p.free = p.free.Add(cost)
	return p.clock.Sleep(ctx, p.free.Sub(now))
}

// lagIsDue says once a second that the standbys should be asked.
func (p *pacer) lagIsDue() bool {
	now := p.clock.Now()
	if now.Sub(p.lagRead) < time.Second {
		return false
	}
	p.lagRead = now
	return true
}
