package testdb

import (
	"bytes"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Way leads to a database through this process. It passes everything on until
// it is told to swallow it: then the server seems to be one that accepts
// connections, acknowledges what is sent to it, and never answers. It can lose
// the answer to a COMMIT too.
type Way struct {
	// URL is that of the database, by this way.
	URL string

	listener net.Listener
	server   string
	passing  sync.RWMutex // held for reading while bytes pass, and for writing while frozen
	thawed   func()
	lose     atomic.Pointer[chan struct{}] // told of the next COMMIT of a barrier; nil: nobody waits for one

	mu    sync.Mutex
	conns []net.Conn
}

// NewWay gives a way to the database of a URL. It ends with the test.
func NewWay(t testing.TB, database string) *Way {
	t.Helper()
	through := mustParse(t, database)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &Way{listener: listener, server: through.Host}
	w.URL = (&url.URL{
		Scheme: through.Scheme, User: through.User, Host: listener.Addr().String(), Path: through.Path, RawQuery: through.RawQuery,
	}).String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { w.serve(client) })
		}
	})
	t.Cleanup(func() {
		w.Thaw()
		_ = listener.Close() // there is nothing to lose
		w.Cut()
		all.Wait()
	})
	return w
}

// Freeze swallows everything until Thaw, on new connections too.
func (w *Way) Freeze() {
	w.passing.Lock()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.thawed = sync.OnceFunc(w.passing.Unlock)
}

// Thaw passes on what was swallowed, and goes on. Without Freeze it does
// nothing.
func (w *Way) Thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.thawed != nil {
		w.thawed()
	}
}

// LoseCommit makes the next COMMIT of a barrier reach the server, and its
// answer nobody: the connection is cut once the server has answered, which
// closes the channel.
func (w *Way) LoseCommit() <-chan struct{} {
	told := make(chan struct{})
	w.lose.Store(&told)
	return told
}

// Cut ends all connections.
func (w *Way) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, conn := range w.conns {
		_ = conn.Close() // that is what it is for
	}
	w.conns = nil
}

func (w *Way) serve(client net.Conn) {
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		_ = client.Close() // the server is gone
		return
	}
	w.mu.Lock()
	w.conns = append(w.conns, client, server)
	w.mu.Unlock()
	var lost atomic.Pointer[chan struct{}] // a COMMIT that was sent, whose answer is to be lost
	var back sync.WaitGroup
	back.Go(func() {
		w.pass(server, client, func([]byte) bool {
			told := lost.Load()
			if told != nil {
				close(*told) // the server has answered
			}
			return told == nil
		})
	})
	recorded := false
	w.pass(client, server, func(sent []byte) bool {
		recorded = recorded || bytes.Contains(sent, []byte("INSERT INTO")) && bytes.Contains(sent, []byte("sync_barrier_history"))
		if recorded && bytes.Contains(sent, []byte("commit\x00")) {
			recorded = false // the connection's next transaction is none of a barrier
			lost.Store(w.lose.Swap(nil))
		}
		return true
	})
	back.Wait()
}

// pass copies until a side ends, or until may forbids it, and ends the other
// side then.
func (w *Way) pass(from, to net.Conn, may func([]byte) bool) {
	defer func() { _ = to.Close() }()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		w.passing.RLock()
		passes := may(buffer[:n])
		if passes {
			_, err = to.Write(buffer[:n])
		}
		w.passing.RUnlock()
		if err != nil || !passes {
			return
		}
	}
}
