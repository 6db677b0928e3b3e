package postgres

import (
	"net"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestConnectionsNoticeAPeerThatIsGone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	conn, err := dial(testContext(t), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	option := func(level, name int) (value int) {
		t.Helper()
		var failed error
		if err := raw.Control(func(descriptor uintptr) { value, failed = unix.GetsockoptInt(int(descriptor), level, name) }); err != nil || failed != nil {
			t.Fatal(err, failed)
		}
		return value
	}
	if got := option(unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT); got != int(peerTimeout.Milliseconds()) {
		t.Errorf("TCP_USER_TIMEOUT is %d ms", got)
	}
	if option(unix.SOL_SOCKET, unix.SO_KEEPALIVE) == 0 {
		t.Error("keepalives are off")
	}
	idle, every, times := option(unix.IPPROTO_TCP, unix.TCP_KEEPIDLE), option(unix.IPPROTO_TCP, unix.TCP_KEEPINTVL), option(unix.IPPROTO_TCP, unix.TCP_KEEPCNT)
	if total := idle + every*times; total > 25 {
		t.Errorf("a silent peer is noticed after %d s", total)
	}
}
