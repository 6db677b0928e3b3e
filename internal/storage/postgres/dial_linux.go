package postgres

import (
	"context"
	"syscall"

	"golang.org/x/sys/unix"
)

// limitUnacknowledged sets TCP_USER_TIMEOUT: keepalives are only sent while nothing is outstanding.
func limitUnacknowledged(_ context.Context, _, _ string, conn syscall.RawConn) error {
	var failed error
	err := conn.Control(func(descriptor uintptr) {
		failed = unix.SetsockoptInt(int(descriptor), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(peerTimeout.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
