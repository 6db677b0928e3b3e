//go:build !linux

package postgres

import (
	"context"
	"syscall"
)

// limitUnacknowledged does nothing where the platform has no TCP_USER_TIMEOUT; its own limit on retransmissions holds.
func limitUnacknowledged(context.Context, string, string, syscall.RawConn) error { return nil }
