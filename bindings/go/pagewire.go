// Package pagewire gives Go programs the streams of a Pagewire network, over its C library.
//
// One goroutine waits in pw_epoll_wait for all connections; a call that cannot go on waits for it in Go. So a waiting
// goroutine holds no thread, and deadlines end waits that have begun, as net.Conn has it.
package pagewire

/*
#cgo LDFLAGS: -lpagewire
#include <errno.h>
#include <pagewire.h>
#include <stdlib.h>
#include <string.h>

// The text of an error is its thread's: it is taken in the same call.
static int open_host(const char *config, char *text, size_t room) {
    int host = pw_host_open(config), error = errno;
    if (host < 0)
        strncat(text, pw_error(), room - 1);
    errno = error;
    return host;
}

static int bind_and_listen(int fd, const void *name, socklen_t size) {
    int one = 1;
    pw_setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    return pw_bind(fd, name, size) < 0 ? -1 : pw_listen(fd, 1024);
}

static int connect_to(int fd, const void *name, socklen_t size) { return pw_connect(fd, name, size); }
*/
import "C"

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"
)

// Host is a network: a host on a link.
type Host struct{ handle C.int }

// Open starts a network. The words of config are those of pw_host_open.
func Open(config string) (*Host, error) {
	text := C.CString(config)
	defer C.free(unsafe.Pointer(text))
	var why [256]C.char
	handle, err := C.open_host(text, &why[0], C.size_t(len(why)))
	if handle < 0 {
		return nil, fmt.Errorf("pagewire: %s: %w", C.GoString(&why[0]), err)
	}
	return &Host{handle}, nil
}

// Close ends the network, after its connections and listeners were closed.
func (h *Host) Close() error {
	done, err := C.pw_host_close(h.handle)
	return failed(done < 0, err)
}

// Dial connects to an address such as "10.0.0.2:80" or "[fd00::2]:80". Names are not looked up.
func (h *Host) Dial(network, address string) (net.Conn, error) {
	return h.DialContext(context.Background(), network, address)
}

// DialContext is Dial for http.Transport.
func (h *Host) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	s, name, size, err := h.socket(network, address)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	stop := context.AfterFunc(ctx, func() { s.write.setDeadline(time.Unix(1, 0)) })
	done, err := C.connect_to(s.fd, unsafe.Pointer(&name[0]), size)
	if done >= 0 || err == syscall.EINPROGRESS {
		// Not earlier: a socket that does not connect yet is reported, too.
		if err = s.watch(); err == nil && done < 0 {
			err = s.connected()
		}
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		s.Close()
		return nil, &net.OpError{Op: "dial", Net: network, Err: err}
	}
	return &Conn{s}, nil
}

// Listen listens at an address.
func (h *Host) Listen(network, address string) (net.Listener, error) {
	s, name, size, err := h.socket(network, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	done, err := C.bind_and_listen(s.fd, unsafe.Pointer(&name[0]), size)
	if done >= 0 {
		err = s.watch()
	}
	if err != nil {
		s.Close()
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	return &Listener{s}, nil
}

// socket makes a descriptor for an address, and gives the address as the kernel's structure.
func (h *Host) socket(network, address string) (*socket, [28]byte, C.socklen_t, error) {
	at, err := netip.ParseAddrPort(address)
	name, size, domain := pack(at)
	if err == nil && network != "tcp" && network != "tcp4" && network != "tcp6" {
		err = net.UnknownNetworkError(network)
	}
	if err != nil {
		return nil, name, size, err
	}
	fd, err := C.pw_host_socket(h.handle, domain, C.SOCK_STREAM|C.SOCK_NONBLOCK|C.SOCK_CLOEXEC, 0)
	return newSocket(fd), name, size, failed(fd < 0, err)
}

// Listener is a net.Listener.
type Listener struct{ *socket }

// Accept waits for a connection.
func (l *Listener) Accept() (net.Conn, error) {
	var fd C.int
	err := l.use(&l.read, func() (err error) {
		fd, err = C.pw_accept4(l.fd, nil, nil, C.SOCK_NONBLOCK|C.SOCK_CLOEXEC)
		return failed(fd < 0, err)
	})
	if err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: err}
	}
	s := newSocket(fd)
	if err := s.watch(); err != nil {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: err}
	}
	return &Conn{s}, nil
}

// Addr is the listener's own address.
func (l *Listener) Addr() net.Addr { return l.name(false) }

// Conn is a net.Conn.
type Conn struct{ *socket }

// Read takes what has come, or waits.
func (c *Conn) Read(into []byte) (int, error) {
	if len(into) == 0 {
		return 0, nil
	}
	var n C.ssize_t
	err := c.use(&c.read, func() (err error) {
		n, err = C.pw_recv(c.fd, unsafe.Pointer(&into[0]), C.size_t(len(into)), 0)
		return failed(n < 0, err)
	})
	switch {
	case err != nil:
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: err}
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}

// Write sends everything, or says why not.
func (c *Conn) Write(data []byte) (sent int, err error) {
	for sent < len(data) && err == nil {
		err = c.use(&c.write, func() error {
			n, err := C.pw_send(c.fd, unsafe.Pointer(&data[sent]), C.size_t(len(data)-sent), C.MSG_NOSIGNAL)
			sent += max(int(n), 0)
			return failed(n < 0, err)
		})
	}
	if err != nil {
		err = &net.OpError{Op: "write", Net: "tcp", Err: err}
	}
	return sent, err
}

// CloseWrite ends the stream to the peer.
func (c *Conn) CloseWrite() error {
	return c.call(func() error {
		done, err := C.pw_shutdown(c.fd, C.SHUT_WR)
		return failed(done < 0, err)
	})
}

// LocalAddr is this end's address.
func (c *Conn) LocalAddr() net.Addr { return c.name(false) }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return c.name(true) }

// failed leaves out what errno holds after a call that succeeded.
func failed(has bool, err error) error {
	if has {
		return err
	}
	return nil
}
