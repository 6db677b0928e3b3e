package postgres

import (
	"context"
	"net"
	"time"
)

// peerTimeout is how long a peer that no longer answers keeps a connection: writes of ours that it does not acknowledge, and keepalives
// while we wait for it. Without them a database that went away without a word would hold a transaction of ours for ever.
const peerTimeout = 20 * time.Second

// dial opens a TCP connection that notices a peer that is gone. On our side; for the server's side a transaction sets
// client_connection_check_interval.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	dialer := net.Dialer{
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: peerTimeout / 2, Interval: peerTimeout / 8, Count: 4},
		ControlContext:  limitUnacknowledged,
	}
	return dialer.DialContext(bounded, network, address)
}
