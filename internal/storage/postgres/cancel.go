package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// cancelHandler ends a statement whose context has ended: by a request to the server, so that ROLLBACK can follow on the same connection;
// the deadline is for a server that does not answer.
//
// The request is always seen through to its end. The driver's own handler gives it up as soon as the statement has ended by itself, and
// a PgBouncer up to 1.19 whose client leaves in the middle of a cancel request ends with "bad client state" (pgbouncer/pgbouncer#801),
// and with it every program behind it.
type cancelHandler struct {
	conn *pgconn.PgConn
	done chan struct{}
}

// HandleCancel implements ctxwatch.Handler.
func (h *cancelHandler) HandleCancel(context.Context) {
	deadline := time.Now().Add(rollbackTimeout)
	boundedOf(h.conn.Conn()).allow(rollbackTimeout) // whatever comes now is the end of the transaction
	_ = h.conn.Conn().SetDeadline(deadline)         // of a connection that is closed already
	done := make(chan struct{})
	h.done = done
	go func() {
		defer close(done)
		bounded, cancel := context.WithDeadline(context.Background(), deadline)
		defer cancel()
		_ = h.conn.CancelRequest(bounded) // the deadline ends the statement where this does not
	}()
}

// HandleUnwatchAfterCancel implements ctxwatch.Handler. A request that is still on its way would end the next statement.
func (h *cancelHandler) HandleUnwatchAfterCancel() {
	<-h.done
	_ = h.conn.Conn().SetDeadline(time.Time{})
}
