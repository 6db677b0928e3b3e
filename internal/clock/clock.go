// Package clock passes time, so that tests can. Time never decides anything here: it paces and it is shown to people.
package clock

import (
	"context"
	"time"
)

// Clock is the time of a loop.
type Clock interface {
	Now() time.Time
	// Sleep waits for d or until ctx ends, whose cause it then returns.
	Sleep(ctx context.Context, d time.Duration) error
}

// Real is the process's own clock.
type Real struct{}

// Or is the clock, or the process's own where none was given.
func Or(c Clock) Clock {
	if c == nil {
		return Real{}
	}
	return c
}

// Now is time.Now.
func (Real) Now() time.Time { return time.Now() }

// Sleep waits for d or until ctx ends.
func (Real) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
