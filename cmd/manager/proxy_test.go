package main

import (
	"net"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between managers and a database server. It passes everything on, until it is told not to.
type proxy struct {
	listener net.Listener
	server   string
	// passing is held while something is passed on, and by freeze until thaw.
	passing sync.RWMutex
	// swallow is told of the next COMMIT of a barrier once it is done and its answer kept; nil: nobody waits for one.
	swallow atomic.Pointer[chan struct{}]

	mu    sync.Mutex
	conns []net.Conn
}

// newProxy gives a proxy, and the URL of a database through it.
func newProxy(t testing.TB, database string) (p *proxy, through string) {
	t.Helper()
	address, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p = &proxy{listener: listener, server: address.Host}
	address.Host = listener.Addr().String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			all.Go(func() { p.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // there is nothing to lose
		p.closeAll()
		all.Wait()
	})
	return p, address.String()
}

// freeze makes the server one that accepts connections and says nothing more, on those that there are neither; thaw ends that.
func (p *proxy) freeze() { p.passing.Lock() }
func (p *proxy) thaw()   { p.passing.Unlock() }

// loseCommit makes the next COMMIT of a barrier reach the server and its answer nobody: the connection is cut once the server has answered, which
// closes the channel.
func (p *proxy) loseCommit() <-chan struct{} {
	told := make(chan struct{})
	p.swallow.Store(&told)
	return told
}

func (p *proxy) closeAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range p.conns {
		_ = conn.Close() // a cut connection is what this is about
	}
	p.conns = nil
}

func (p *proxy) keep(conn net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conn)
}

func (p *proxy) serve(client net.Conn) {
	p.keep(client)
	defer func() { _ = client.Close() }()
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	p.keep(server)
	defer func() { _ = server.Close() }()
	var committing atomic.Pointer[chan struct{}]
	var back sync.WaitGroup
	back.Go(func() {
		defer func() { _ = client.Close() }()
		p.pass(server, client, func([]byte) bool {
			told := committing.Load()
			if told != nil {
				close(*told) // the server has answered
			}
			return told == nil
		})
	})
	recorded := false
	p.pass(client, server, func(sent []byte) bool {
		text := string(sent)
		recorded = recorded || strings.Contains(text, "INSERT INTO") && strings.Contains(text, "sync_barrier_history")
		if recorded && strings.Contains(text, "commit\x00") {
			committing.Store(p.swallow.Swap(nil))
		}
		return true
	})
	_ = server.Close()
	back.Wait()
}

// pass copies until a side ends, or until look says that something must not pass.
func (p *proxy) pass(from, to net.Conn, look func([]byte) bool) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		p.passing.RLock()
		passes := look(buffer[:n])
		if passes {
			_, err = to.Write(buffer[:n])
		}
		p.passing.RUnlock()
		if err != nil || !passes {
			return
		}
	}
}
