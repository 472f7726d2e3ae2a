package pagewire

/*
#include <errno.h>
#include <pagewire.h>

static int watch(int epoll, int fd, uint64_t number) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.u64 = number};
    return pw_epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

// The structure is packed on some machines, so Go does not see all of it.
static uint64_t number_of(const struct epoll_event *event) { return event->data.u64; }

static int name_of(int fd, int peer, void *name, socklen_t *size) {
    return peer ? pw_getpeername(fd, name, size) : pw_getsockname(fd, name, size);
}

static int error_of(int fd) {
    int error = 0;
    socklen_t len = sizeof error;
    return pw_getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) < 0 ? errno : error;
}
*/
import "C"

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// A descriptor that does not wait, and what its two directions wait for.
type socket struct {
	fd     C.int
	number uint64
	// Held for reading by each call on the descriptor: nobody else gets its number then.
	open        sync.RWMutex
	closed      chan struct{}
	closeOnce   sync.Once
	read, write side
}

// One direction: one caller at a time, as net.Conn has it.
type side struct {
	turn  sync.Mutex
	ready chan struct{}

	mu    sync.Mutex
	timer *time.Timer
	late  chan struct{}
}

var sockets sync.Map // of *socket, by number

// The instance of epoll, whose goroutine tells the sockets.
var poller = sync.OnceValues(func() (C.int, error) {
	epoll, err := C.pw_epoll_create1(C.EPOLL_CLOEXEC)
	if epoll < 0 {
		return epoll, err
	}
	go func() {
		var events [128]C.struct_epoll_event
		for {
			n, err := C.pw_epoll_wait(epoll, &events[0], C.int(len(events)), -1)
			if n < 0 && err != syscall.EINTR {
				panic(err)
			}
			for at := range max(int(n), 0) {
				event := &events[at]
				found, _ := sockets.Load(uint64(C.number_of(event)))
				s, ok := found.(*socket)
				if ok && event.events&^C.EPOLLOUT != 0 {
					s.read.tell()
				}
				if ok && event.events&^C.EPOLLIN != 0 {
					s.write.tell()
				}
			}
		}
	}()
	return epoll, nil
})

var numbers atomic.Uint64

func newSocket(fd C.int) *socket {
	s := &socket{fd: fd, number: numbers.Add(1), closed: make(chan struct{})}
	for _, side := range []*side{&s.read, &s.write} {
		side.ready, side.late = make(chan struct{}, 1), make(chan struct{})
	}
	return s
}

// watch makes the poller tell of the socket; on failure, the socket is closed.
func (s *socket) watch() error {
	epoll, err := poller()
	if err == nil {
		sockets.Store(s.number, s)
		done, why := C.watch(epoll, s.fd, C.uint64_t(s.number))
		err = failed(done < 0, why)
	}
	if err != nil {
		s.Close()
	}
	return err
}

// use repeats a call until it does not say EAGAIN.
func (s *socket) use(side *side, call func() error) error {
	side.turn.Lock()
	defer side.turn.Unlock()
	select {
	case <-side.isLate():
		return os.ErrDeadlineExceeded
	default:
	}
	err := s.call(call)
	for err == syscall.EAGAIN {
		if err = s.wait(side); err == nil {
			err = s.call(call)
		}
	}
	return err
}

func (s *socket) call(call func() error) error {
	s.open.RLock()
	defer s.open.RUnlock()
	select {
	case <-s.closed:
		return net.ErrClosed
	default:
		return call()
	}
}

func (s *socket) wait(side *side) error {
	select {
	case <-s.closed:
		return net.ErrClosed
	case <-side.isLate():
		return os.ErrDeadlineExceeded
	case <-side.ready:
		return nil
	}
}

// connected waits until the connection is there, or failed.
func (s *socket) connected() error {
	if err := s.wait(&s.write); err != nil {
		return err
	}
	return s.call(func() error {
		if number := C.error_of(s.fd); number != 0 {
			return syscall.Errno(number)
		}
		return nil
	})
}

// Close ends the calls that wait, and the descriptor.
func (s *socket) Close() error {
	err := net.ErrClosed
	s.closeOnce.Do(func() {
		close(s.closed)
		sockets.Delete(s.number)
		s.open.Lock()
		defer s.open.Unlock()
		done, why := C.pw_close(s.fd)
		err = failed(done < 0, why)
	})
	return err
}

func (s *socket) SetDeadline(at time.Time) error {
	s.SetReadDeadline(at)
	return s.SetWriteDeadline(at)
}

func (s *socket) SetReadDeadline(at time.Time) error { return s.read.setDeadline(at) }

func (s *socket) SetWriteDeadline(at time.Time) error { return s.write.setDeadline(at) }

func (d *side) tell() {
	select {
	case d.ready <- struct{}{}:
	default:
	}
}

func (d *side) isLate() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.late
}

// setDeadline ends waits that have begun, too: they hold the channel that the new timer closes.
func (d *side) setDeadline(at time.Time) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.late // The timer's function runs, or ran.
	}
	d.timer = nil
	select {
	case <-d.late:
		d.late = make(chan struct{})
	default:
	}
	late := d.late
	if left := time.Until(at); !at.IsZero() && left <= 0 {
		close(late)
	} else if !at.IsZero() {
		d.timer = time.AfterFunc(left, func() { close(late) })
	}
	return nil
}

func (s *socket) name(peer bool) net.Addr {
	var name [28]byte
	size := C.socklen_t(len(name))
	which := C.int(0)
	if peer {
		which = 1
	}
	if err := s.call(func() error {
		done, err := C.name_of(s.fd, which, unsafe.Pointer(&name[0]), &size)
		return failed(done < 0, err)
	}); err != nil {
		return &net.TCPAddr{}
	}
	port := binary.BigEndian.Uint16(name[2:])
	address := netip.AddrFrom4([4]byte(name[4:8]))
	if binary.NativeEndian.Uint16(name[:]) == C.AF_INET6 {
		address = netip.AddrFrom16([16]byte(name[8:24]))
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(address, port))
}

// pack gives a struct sockaddr_in or sockaddr_in6, its size and its family.
func pack(at netip.AddrPort) (name [28]byte, size C.socklen_t, domain C.int) {
	place := name[8:]
	size, domain = 28, C.AF_INET6
	if at.Addr().Is4() {
		size, domain, place = 16, C.AF_INET, name[4:]
	}
	copy(place, at.Addr().AsSlice())
	binary.NativeEndian.PutUint16(name[:], uint16(domain))
	binary.BigEndian.PutUint16(name[2:], at.Port())
	return name, size, domain
}
