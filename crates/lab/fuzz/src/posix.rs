//! System calls in any order, on descriptors over two stacks that are linked in virtual time.
//!
//! The input is a list of four bytes: which call (the upper bit: on which host), on which descriptor,
//! and two that say how. Nothing blocks. A call answers or fails with an error number; in the end,
//! when every descriptor is closed and some minutes have passed, nothing may be left: no socket, no
//! page.

use std::io::{IoSlice, IoSliceMut};
use std::time::Duration;

use libc::*;
use pagewire_posix::{
    EpollEvent, EpollOp, Errno, Events, Fd, PollFd, ReceiveMessage, SendMessage, SockAddr,
};

#[path = "../../../host/posix/tests/suite/support/mod.rs"]
mod world;

use world::{Files, addr, pair_with};

/// Calls in one input.
const MAX_CALLS: usize = 400;
/// Descriptors to choose from on each host; closed ones stay until they are pushed out.
const MAX_FDS: usize = 48;
/// Longer than anything without a descriptor lasts: TIME-WAIT, FIN-WAIT-2, orphans that retransmit.
const WIND_UP: Duration = Duration::from_secs(1200);

/// How far an input got.
#[derive(Debug, Default)]
pub struct Reach {
    /// Connections that were accepted.
    pub accepted: usize,
    /// Bytes that were received.
    pub received: usize,
    /// Bytes that were spliced.
    pub spliced: usize,
    /// Entries that poll and epoll reported.
    pub ready: usize,
}

/// Runs one input; see the head of this file.
pub fn posix_calls(data: &[u8]) -> Reach {
    let (left, right) = pair_with(|config| {
        config.memory = 2 << 20;
        config.tcp.recv_buffer = 64 << 10;
        config.tcp.recv_buffer_initial = 16 << 10;
        config.tcp.send_buffer = 64 << 10;
        config.tcp.send_buffer_initial = 16 << 10;
    });
    let mut hosts = [Host::new(left), Host::new(right)];
    let mut reach = Reach::default();
    for &[call, which, a, b] in data.as_chunks().0.iter().take(MAX_CALLS) {
        let host = &mut hosts[usize::from(call >> 7)];
        host.call(call & 0x7f, which, [a, b], &mut reach);
    }
    for host in &mut hosts {
        for fd in std::mem::take(&mut host.open) {
            // With a time to linger, closing waits for it.
            let _ = host.files.close(fd);
            assert_eq!(host.files.close(fd), Err(Errno::BADF), "{fd} is open twice");
        }
    }
    hosts[0].files.backend().run(WIND_UP);
    let mut world = hosts[0].files.backend().world();
    for id in world.sim.nodes().collect::<Vec<_>>() {
        let stack = world.sim.node_mut(id);
        stack.end_turn();
        assert_eq!(stack.socket_count(), 0, "sockets that nobody has a descriptor of");
        assert!(stack.pool_audit().is_conserved());
    }
    reach
}

struct Host {
    files: Files,
    /// Descriptors that exist.
    open: Vec<Fd>,
    /// Open descriptors, and some closed ones.
    known: Vec<Fd>,
}

impl Host {
    fn new(files: Files) -> Self {
        Self { files, open: Vec::new(), known: Vec::new() }
    }

    fn opened(&mut self, fd: Fd) {
        assert!(self.files.owns(fd) && !self.open.contains(&fd), "{fd} is in use");
        self.open.push(fd);
        self.known.push(fd);
        if self.known.len() > MAX_FDS {
            self.known.remove(0);
        }
    }

    fn pick(&self, which: u8) -> Fd {
        match self.known.len() {
            0 => -1,
            n => self.known[usize::from(which) % n],
        }
    }

    fn call(&mut self, call: u8, which: u8, [a, b]: [u8; 2], reach: &mut Reach) {
        let fd = self.pick(which);
        let n = usize::from(u16::from_be_bytes([a, b]));
        let files = &self.files;
        match call % 26 {
            0 => {
                let domain = [AF_INET, AF_INET6, AF_UNIX, AF_INET][usize::from(a % 4)];
                let kind = [SOCK_STREAM, SOCK_DGRAM, SOCK_STREAM, SOCK_RAW][usize::from(b % 4)];
                if let Ok(fd) = files.socket(domain, kind | SOCK_NONBLOCK, 0) {
                    self.opened(fd);
                }
            }
            1 => _ = files.bind(fd, place(a, b).as_bytes()),
            2 => _ = files.listen(fd, i32::from(a as i8)),
            3 => {
                if let Ok((fd, _)) = files.accept4(fd, SOCK_NONBLOCK) {
                    reach.accepted += 1;
                    self.opened(fd);
                }
            }
            4 => _ = files.connect(fd, place(a, b).as_bytes()),
            5 if b & 1 == 0 => bounded(files.send(fd, &vec![a; n], 0), n),
            5 => bounded(files.write(fd, &vec![a; n]), n),
            6 if a & 0x80 != 0 => {
                let got = files.read(fd, &mut vec![0; usize::from(b) * 64]);
                reach.received += got.unwrap_or(0);
                bounded(got, usize::from(b) * 64);
            }
            6 => {
                let flags = MSG_DONTWAIT | i32::from(a) & (MSG_PEEK | MSG_TRUNC | MSG_OOB);
                let mut buffer = vec![0; usize::from(b) * 64];
                if let Ok(got) = files.recv(fd, &mut buffer, flags) {
                    // MSG_TRUNC reports more than fits.
                    assert!(got <= buffer.len() || flags & MSG_TRUNC != 0, "{got} bytes");
                    reach.received += got;
                }
            }
            7 => _ = files.shutdown(fd, i32::from(a % 4)),
            8 => {
                let closed = files.close(fd);
                assert_eq!(closed.is_ok(), self.open.contains(&fd), "{fd}: {closed:?}");
                self.open.retain(|open| *open != fd);
            }
            9 => {
                if let Ok(fd) = files.dup(fd) {
                    self.opened(fd);
                }
            }
            10 => {
                let entry = |fd: &Fd| PollFd {
                    fd: *fd,
                    events: Events::from_bits_truncate(n as u32),
                    revents: Events::empty(),
                };
                let mut entries: Vec<PollFd> = self.known.iter().map(entry).collect();
                let timeout = Duration::from_millis(u64::from(which));
                let found = files.poll(&mut entries, Some(timeout)).unwrap_or(0);
                let said = entries.iter().filter(|entry| !entry.revents.is_empty()).count();
                assert_eq!(found, said, "{entries:?}");
                reach.ready += found;
            }
            11 => {
                if let Ok(fd) = files.epoll_create1(if a & 1 == 0 { 0 } else { EPOLL_CLOEXEC }) {
                    self.opened(fd);
                }
            }
            12 => {
                let events = [0, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE][usize::from(b >> 6)] as u32
                    | u32::from(b & 0x1f);
                let events = Events::from_bits_truncate(events);
                let event = EpollEvent { events, data: u64::from(a) };
                let op = match b & 0x20 {
                    0 => EpollOp::Add(event),
                    _ if a & 1 == 0 => EpollOp::Modify(event),
                    _ => EpollOp::Delete,
                };
                let _ = files.epoll_ctl(fd, op, self.pick(a));
            }
            13 => {
                let none = EpollEvent { events: Events::empty(), data: 0 };
                let mut events = vec![none; usize::from(a % 8)];
                let timeout = Duration::from_millis(u64::from(b));
                if let Ok(found) = files.epoll_wait(fd, &mut events, Some(timeout)) {
                    assert!(found <= events.len());
                    let told = |event: &EpollEvent| !event.events.is_empty();
                    assert!(events.iter().take(found).all(told), "{events:?}");
                    reach.ready += found;
                }
            }
            14 => {
                if let Ok((read, write)) = files.pipe2(O_NONBLOCK) {
                    self.opened(read);
                    self.opened(write);
                }
            }
            15 => {
                let flags = SPLICE_F_NONBLOCK | u32::from(b & 5);
                let len = usize::from(b) * 100;
                let moved = files.splice(fd, self.pick(a), len, flags);
                reach.spliced += moved.unwrap_or(0);
                bounded(moved, len);
            }
            16 | 17 => {
                let (level, name) = option(which, a);
                let value = [i32::from(b as i8), 1, 0, i32::from(b)];
                let bytes: Vec<u8> = value.iter().flat_map(|v| v.to_ne_bytes()).collect();
                let len = if call & 1 == 0 { 4 } else { usize::from(b % 17) };
                let _ = files.setsockopt(self.pick(which >> 4), level, name, &bytes[..len]);
            }
            18 => {
                let (level, name) = option(which, a);
                let mut out = vec![0; usize::from(b)];
                let room = out.len();
                bounded(files.getsockopt(self.pick(which >> 4), level, name, &mut out), room);
            }
            19 => {
                let command = [F_GETFL, F_GETFD, F_SETFD, F_DUPFD, F_DUPFD_CLOEXEC, F_SETFL, 77]
                    [usize::from(a % 7)];
                // Blocking calls might never end.
                let argument = if command == F_SETFL { O_NONBLOCK } else { i32::from(b) };
                let done = files.fcntl(fd, command, argument);
                if let (Ok(fd), F_DUPFD | F_DUPFD_CLOEXEC) = (done, command) {
                    self.opened(fd);
                }
            }
            20 => {
                let request = [FIONREAD, TIOCOUTQ, 0x894b, 0x8905][usize::from(a % 4)];
                let _ = files.ioctl(fd, request, &mut i32::from(b));
            }
            21 => {
                let (name, peer) = (files.getsockname(fd), files.getpeername(fd));
                let told = [name, peer].into_iter().flatten();
                assert!(told.into_iter().all(|name| !name.as_bytes().is_empty()));
            }
            22 => {
                let half = vec![a; n / 2];
                let iov = [IoSlice::new(&half), IoSlice::new(&[]), IoSlice::new(&half)];
                let to = place(which, b);
                let name = (b & 1 == 0).then(|| to.as_bytes());
                let message = SendMessage { name, iov: &iov, control: &[] };
                let flags = MSG_DONTWAIT
                    | [0, MSG_MORE, MSG_EOR, MSG_OOB, MSG_NOSIGNAL, MSG_ZEROCOPY, MSG_FASTOPEN, 0]
                        [usize::from(a % 8)];
                bounded(files.sendmsg(fd, &message, flags), half.len() * 2);
            }
            23 => {
                let (mut one, mut two) = (vec![0; usize::from(a)], vec![0; usize::from(b) * 16]);
                let room = one.len() + two.len();
                let mut iov = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
                let mut control = [0; 128];
                let mut message = ReceiveMessage {
                    iov: &mut iov,
                    control: &mut control[..usize::from(b % 129)],
                    ..ReceiveMessage::default()
                };
                let flags = MSG_DONTWAIT | if a & 1 == 0 { MSG_ERRQUEUE } else { 0 };
                let got = files.recvmsg(fd, &mut message, flags);
                assert!(message.control_len <= usize::from(b % 129), "{message:?}");
                reach.received += got.unwrap_or(0);
                bounded(got, room);
            }
            24 => files.backend().run(Duration::from_millis(1 << (a % 18))),
            _ => files.backend().run(Duration::from_millis(2)),
        }
    }
}

fn bounded(moved: Result<usize, Errno>, most: usize) {
    if let Ok(moved) = moved {
        assert!(moved <= most, "{moved} bytes of {most}");
    }
}

/// An address: of either host, of none, of both IP versions; or the beginning of one.
fn place(a: u8, b: u8) -> SockAddr {
    let ip = ["10.0.0.1", "10.0.0.2", "0.0.0.0", "[fd00::1]", "[fd00::2]", "[::]", "10.0.0.9"]
        [usize::from(a % 7)];
    let port = [80, 81, 0, 53][usize::from(b % 4)];
    addr(&format!("{ip}:{port}"))
}

fn option(which: u8, a: u8) -> (i32, i32) {
    let level = [SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6][usize::from(which % 4)];
    (level, i32::from(a))
}
