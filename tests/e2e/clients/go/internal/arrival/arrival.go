// Package arrival dials connections that know when the kernel received what was read last. A process that the scheduler lets
// wait acts late on what it has been told; these times do not depend on that.
package arrival

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"time"
)

// Clock holds the last time at which something arrived that one of its connections has read; many goroutines may use it.
type Clock struct {
	nanos atomic.Int64
}

// Last returns that time; zero before the first read.
func (c *Clock) Last() time.Time {
	nanos := c.nanos.Load()
	if nanos == 0 {
		return time.Time{}
	}
	return time.Unix(0, nanos)
}

// Dial connects by TCP, as net.Dialer does.
func (c *Clock) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn, nil
	}
	raw, err := tcp.SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) {
			failed = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_TIMESTAMPNS, 1)
		})
		if err == nil {
			err = failed
		}
	}
	if err != nil {
		return nil, err
	}
	return &stamped{TCPConn: tcp, raw: raw, clock: c}, nil
}

type stamped struct {
	*net.TCPConn
	raw   syscall.RawConn
	clock *Clock
}

func (s *stamped) Read(into []byte) (int, error) {
	if len(into) == 0 {
		return 0, nil
	}
	control := make([]byte, 64)
	var length, ofControl int
	var failed error
	err := s.raw.Read(func(fd uintptr) bool {
		for {
			length, ofControl, _, _, failed = syscall.Recvmsg(int(fd), into, control, syscall.MSG_DONTWAIT)
			if failed != syscall.EINTR {
				return failed != syscall.EAGAIN
			}
		}
	})
	if err == nil {
		err = failed
	}
	if err != nil {
		return 0, &net.OpError{Op: "read", Net: "tcp", Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: err}
	}
	if length == 0 {
		return 0, io.EOF
	}
	s.clock.nanos.Store(stamp(control[:ofControl]).UnixNano())
	return length, nil
}

// stamp returns the time in a message's control data; the present one if it holds none, as for what came before the option.
func stamp(control []byte) time.Time {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err == nil {
		for _, message := range messages {
			if message.Header.Level == syscall.SOL_SOCKET && message.Header.Type == syscall.SCM_TIMESTAMPNS && len(message.Data) >= 16 {
				order := binary.NativeEndian
				return time.Unix(int64(order.Uint64(message.Data)), int64(order.Uint64(message.Data[8:])))
			}
		}
	}
	return time.Now()
}
