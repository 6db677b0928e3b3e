package postgres

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/syncbarrier/syncbarrier/internal/storage"
)

// A server that is frozen, or a proxy before it, acknowledges what is sent to it and never answers. Neither keepalives nor
// TCP_USER_TIMEOUT see that, and statement_timeout is the server's own to keep. So each wait for an answer has a bound on our side too:
// what the server allows the statement, and a margin. A statement that may take ten minutes is given them.
const (
	// answerTimeout bounds the answer to what takes no time: BEGIN and its settings.
	answerTimeout = 10 * time.Second
	// defaultSilenceMargin is what a server may take beyond a statement's own timeout to end it and to say so.
	defaultSilenceMargin = 15 * time.Second
	// A statement that may take long is waited for that long only while its server answers others: each askEvery it is asked for a sign of life
	// on a connection of its own, and after mostSilence times askPatience without one nobody waits any longer.
	askEvery    = 10 * time.Second
	askPatience = 5 * time.Second
	mostSilence = 3
)

// silentError says that an answer did not come in time. It is no timeout in the sense of net.Error: those the driver takes for the end of a
// context, while this one is the end of the connection.
type silentError struct{ after time.Duration }

func (e *silentError) Error() string {
	return fmt.Sprintf("the server accepts what is sent to it and does not answer: it was waited for %s", e.after)
}

// boundedConn is a connection on which no single read or write waits longer than its bound. When one does the connection is closed. Nothing is
// bounded while nobody reads, so a connection in a pool and a transaction between two statements stay as they are.
type boundedConn struct {
	net.Conn
	bound           atomic.Int64  // nanoseconds
	every, patience time.Duration // askEvery and askPatience; every is 0 where the server is not asked

	mu            sync.Mutex
	reads, writes time.Time    // the deadlines that the driver has set; zero: none
	gaveUp        *silentError // why it was closed, if nobody answered
}

// dialBounded gives dial for the driver. Until somebody allows more, an answer has to come as soon as a connection has to be made. Where TLS is not
// negotiated first (sslnegotiation=direct) what is in between may know nothing else, and the server is not asked for a sign of life.
func dialBounded(config *pgx.ConnConfig) pgconn.DialFunc {
	every := askEvery
	if config.SSLNegotiation == "direct" {
		every = 0
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		bounded := &boundedConn{Conn: conn, every: every, patience: askPatience}
		bounded.allow(connectTimeout)
		return bounded, nil
	}
}

// boundedOf gives the connection below TLS. It is nil, on which allow does nothing, for one that dialBounded has not made.
func boundedOf(conn net.Conn) *boundedConn {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	bounded, _ := conn.(*boundedConn)
	return bounded
}

// allow lets each wait from now on take so long.
func (c *boundedConn) allow(bound time.Duration) {
	if c != nil {
		c.bound.Store(int64(bound))
	}
}

// allowStatements is for a pipeline of n statements: the server may send the answers to all of them with the last. What it returns takes
// that back.
func (c *boundedConn) allowStatements(n int) (asBefore func()) {
	if c == nil {
		return func() {}
	}
	one := c.bound.Load()
	c.bound.Store(one * int64(max(1, n)))
	return func() { c.bound.Store(one) }
}

// Read reads within the bound, and within the driver's deadline.
func (c *boundedConn) Read(p []byte) (int, error) {
	bound := time.Duration(c.bound.Load())
	c.mu.Lock()
	err := c.Conn.SetReadDeadline(earlier(c.reads, time.Now().Add(bound)))
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	stop := c.watch(bound)
	n, err := c.Conn.Read(p)
	stop()
	return n, c.silence(err, &c.reads, bound)
}

// Write writes within the bound, and within the driver's deadline: a peer that no longer reads fills every buffer in between.
func (c *boundedConn) Write(p []byte) (int, error) {
	bound := time.Duration(c.bound.Load())
	c.mu.Lock()
	err := c.Conn.SetWriteDeadline(earlier(c.writes, time.Now().Add(bound)))
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	n, err := c.Conn.Write(p)
	return n, c.silence(err, &c.writes, bound)
}

// silence tells our own bound from the driver's deadline, which is the end of a context. After our own the connection is no use to anybody.
func (c *boundedConn) silence(err error, deadline *time.Time, bound time.Duration) error {
	if err == nil {
		return nil
	}
	if silent := c.silent(); silent != nil {
		return silent
	}
	var late net.Error
	if !errors.As(err, &late) || !late.Timeout() {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !deadline.IsZero() && !time.Now().Before(*deadline) {
		return err
	}
	_ = c.Close() // it is given up; how its end went changes nothing for anybody
	c.gaveUp = &silentError{after: bound}
	return c.gaveUp
}

// watch has the server asked for signs of life while a long answer is waited for.
func (c *boundedConn) watch(bound time.Duration) (stop func()) {
	if c.every == 0 || bound <= c.every {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	timer := time.AfterFunc(c.every, func() { c.ask(ctx) })
	return func() {
		timer.Stop()
		cancel()
	}
}

// ask asks until ctx ends, and ends the connection if the server stays silent.
func (c *boundedConn) ask(ctx context.Context) {
	started := time.Now()
	for missed := 0; missed < mostSilence; {
		if !c.peerIsSilent(ctx) {
			missed, started = 0, time.Now()
			if pause(ctx, c.every) != nil {
				return
			}
			continue
		}
		missed++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if ctx.Err() != nil { // the answer came after all
		return
	}
	c.gaveUp = &silentError{after: c.every + time.Since(started).Round(time.Second)}
	_ = c.Close() // it is given up; how its end went changes nothing for anybody
}

// sslRequest is what a client asks first, of a server or of a pooler: whether it may encrypt (PostgreSQL manual, "Message Formats"). One byte
// answers it, before any authentication and without a session.
var sslRequest = []byte{0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f}

// peerIsSilent says that a new connection gets no answer. One that is refused is an answer too.
func (c *boundedConn) peerIsSilent(ctx context.Context) bool {
	bounded, cancel := context.WithTimeout(ctx, c.patience)
	defer cancel()
	address := c.RemoteAddr()
	conn, err := dial(bounded, address.Network(), address.String())
	if err != nil {
		return isDeadline(err)
	}
	defer func() { _ = conn.Close() }() // nothing was said on it
	defer context.AfterFunc(bounded, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err = conn.Write(sslRequest); err == nil {
		_, err = conn.Read(make([]byte, 1))
	}
	return err != nil && isDeadline(err)
}

// silent says why the connection was given up, or nil.
func (c *boundedConn) silent() *silentError {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gaveUp
}

// SetDeadline is for the driver. It interrupts what is under way, as that of any connection does, and never lifts the bound.
func (c *boundedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline is SetDeadline for reads.
func (c *boundedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reads = t
	return c.Conn.SetReadDeadline(earlier(t, time.Now().Add(time.Duration(c.bound.Load()))))
}

// SetWriteDeadline is SetDeadline for writes.
func (c *boundedConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = t
	return c.Conn.SetWriteDeadline(earlier(t, time.Now().Add(time.Duration(c.bound.Load()))))
}

// earlier gives the earlier of two deadlines, of which the first may be none.
func earlier(deadline, bound time.Time) time.Time {
	if deadline.IsZero() || bound.Before(deadline) {
		return bound
	}
	return deadline
}

// isSilent says that the connection was given up because no answer came.
func isSilent(err error) bool {
	var silent *silentError
	return errors.As(err, &silent)
}

// unanswered names the cause of an error on a connection that is gone because nobody answered: the driver says only that it is closed. The end
// of a caller's time is such a cause too, if the server did not even answer the request to cancel the statement; one that answers keeps
// its connection. A caller that left by itself has learned nothing of the server.
func unanswered(ctx context.Context, conn *pgx.Conn, err error) error {
	var known *storage.Error
	if err == nil || errors.As(err, &known) || sqlState(err) != "" || !conn.IsClosed() {
		return err
	}
	if silent := boundedOf(conn.PgConn().Conn()).silent(); silent != nil {
		return silent
	}
	neverSent := pgconn.SafeToRetry(err)
	if errors.Is(ctx.Err(), context.DeadlineExceeded) && isDeadline(err) && !neverSent {
		return &silentError{after: rollbackTimeout}
	}
	return err
}

func isDeadline(err error) bool {
	var late net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &late) && late.Timeout()
}
