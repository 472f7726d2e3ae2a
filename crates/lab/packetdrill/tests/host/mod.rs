//! A program that drives the shared object as packetdrill does: loads it, gets the table, and calls.

use std::ffi::{CString, c_int, c_longlong, c_void};
use std::mem::{MaybeUninit, size_of_val, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use etherparse::icmpv4::DestUnreachableHeader;
use etherparse::{
    Icmpv4Type, NetSlice, PacketBuilder, SlicedPacket, TcpOptionElement, TransportSlice,
};
use libc::socklen_t;
use pagewire_packetdrill::calls::Interface;
use pagewire_posix::SockAddr;

/// Admits one stack at a time: the preloaded functions serve the present one.
static ONE: Mutex<()> = Mutex::new(());

pub const PORT: u16 = 8080;
pub const PEER_PORT: u16 = 40_000;

/// Calls a function of the host's table.
macro_rules! call {
    ($host:expr, $name:ident($($arg:expr),*)) => {
        // SAFETY: the table's own function and userdata; memory is as large as is said, for the call's time.
        unsafe { ($host.table.$name)($host.table.userdata $(, $arg)*) }
    };
}

/// The family of the sockets, and the protocol on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    V4,
    /// IPv6 sockets over IPv4.
    Mapped,
    V6,
}

pub const MODES: [Mode; 3] = [Mode::V4, Mode::Mapped, Mode::V6];

impl Mode {
    pub fn local(self) -> IpAddr {
        match self {
            Mode::V4 | Mode::Mapped => Ipv4Addr::new(192, 168, 0, 1).into(),
            Mode::V6 => Ipv6Addr::new(0xfd3d, 0xa0b, 0x17d6, 0, 0, 0, 0, 1).into(),
        }
    }

    pub fn remote(self) -> IpAddr {
        match self {
            Mode::V4 | Mode::Mapped => Ipv4Addr::new(192, 0, 2, 1).into(),
            Mode::V6 => Ipv6Addr::new(0xfd3d, 0xfa7b, 0xd17d, 0, 0, 0, 0, 1).into(),
        }
    }

    pub fn domain(self) -> c_int {
        if self == Mode::V4 { libc::AF_INET } else { libc::AF_INET6 }
    }

    pub fn flags(self) -> String {
        match self {
            Mode::V4 | Mode::Mapped => "addr=192.168.0.1/16,gateway=192.168.0.1".to_owned(),
            Mode::V6 => "addr=fd3d:a0b:17d6::1/48".to_owned(),
        }
    }

    /// An address as a C program has it.
    fn sockaddr(self, ip: IpAddr, port: u16) -> SockAddr {
        let ip = match ip {
            IpAddr::V4(ip) if self == Mode::Mapped => ip.to_ipv6_mapped().into(),
            ip => ip,
        };
        SocketAddr::new(ip, port).into()
    }
}

/// A segment for the stack, or of the stack's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment {
    pub syn: bool,
    pub ack: Option<u32>,
    pub fin: bool,
    pub rst: bool,
    pub seq: u32,
    pub window: u16,
    /// The MSS option, of a SYN.
    pub mss: Option<u16>,
    /// Whether it has a timestamp.
    pub timestamp: bool,
    pub payload: Vec<u8>,
    /// Ports of the stack's side and of its peer.
    pub ports: (u16, u16),
    /// When it left, in microseconds since the host began.
    pub at: u64,
}

/// Level and type of ancillary data, and the data.
pub type Control = ((c_int, c_int), Vec<u8>);

/// `sock_extended_err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtendedError {
    pub errno: i32,
    pub origin: u8,
    pub code: u8,
    pub info: u32,
    pub data: u32,
}

impl ExtendedError {
    pub fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Self {
            errno: word(0) as i32,
            origin: bytes[4],
            code: bytes[6],
            info: word(8),
            data: word(12),
        }
    }
}

/// The loaded object and its table, for one stack.
pub struct Host {
    pub table: Interface,
    pub mode: Mode,
    handle: *mut c_void,
    began: u64,
    freed: bool,
    _one: MutexGuard<'static, ()>,
}

// SAFETY: the interface allows calls from several threads.
unsafe impl Sync for Host {}

type Init = unsafe extern "C" fn(*const libc::c_char, *mut Interface);

impl Host {
    pub fn new(mode: Mode) -> Self {
        Self::with(mode, "")
    }

    /// A stack with further flags.
    pub fn with(mode: Mode, more: &str) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        // Cargo builds the object beside the tests.
        let deps = std::env::current_exe().expect("this program");
        let path = deps.parent().expect("a directory").join("libpagewire_packetdrill.so");
        let path = CString::new(path.to_str().expect("UTF-8")).expect("no zeros");
        // SAFETY: a C string. The object's initialisers are the Rust runtime's.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!handle.is_null(), "{path:?} cannot be loaded");
        let init = symbol(handle, "packetdrill_interface_init");
        // SAFETY: the entry point has this type.
        let init: Init = unsafe { std::mem::transmute(init) };
        let flags = CString::new(format!("{},{more}", mode.flags())).expect("no zeros");
        let mut table = MaybeUninit::uninit();
        // SAFETY: a C string, and room for a table.
        unsafe { init(flags.as_ptr(), table.as_mut_ptr()) };
        // SAFETY: the entry point has filled it in.
        let table = unsafe { table.assume_init() };
        let mut host = Self { table, mode, handle, began: 0, freed: false, _one: one };
        host.began = host.clock();
        host
    }

    /// An exported function.
    pub fn symbol(&self, name: &str) -> *mut c_void {
        symbol(self.handle, name)
    }

    /// Microseconds, as the object counts them.
    fn clock(&self) -> u64 {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        call!(self, gettimeofday(&mut time, std::ptr::null_mut()));
        time.tv_sec as u64 * 1_000_000 + time.tv_usec as u64
    }

    /// Microseconds since the beginning.
    pub fn now(&self) -> u64 {
        self.clock() - self.began
    }

    /// A time of day in microseconds, counted from the beginning.
    pub fn since_beginning(&self, time_of_day: u64) -> u64 {
        time_of_day - self.began
    }

    pub fn sleep(&self, time: Duration) {
        call!(self, usleep(time.as_micros() as u32));
    }

    pub fn socket(&self) -> c_int {
        let fd = call!(self, socket(self.mode.domain(), libc::SOCK_STREAM, libc::IPPROTO_TCP));
        ok(fd)
    }

    pub fn nonblocking(&self) -> c_int {
        let fd = self.socket();
        ok(call!(self, fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK.into())));
        fd
    }

    /// A socket that listens.
    pub fn listener(&self) -> c_int {
        let fd = self.socket();
        let addr = self.mode.sockaddr(self.mode.local(), PORT);
        let bytes = addr.as_bytes();
        ok(call!(self, bind(fd, bytes.as_ptr().cast(), bytes.len() as socklen_t)));
        ok(call!(self, listen(fd, 5)));
        fd
    }

    pub fn connect(&self, fd: c_int) -> c_int {
        let addr = self.mode.sockaddr(self.mode.remote(), PORT);
        let bytes = addr.as_bytes();
        call!(self, connect(fd, bytes.as_ptr().cast(), bytes.len() as socklen_t))
    }

    pub fn accept(&self, fd: c_int) -> c_int {
        let none = std::ptr::null_mut();
        call!(self, accept(fd, none, std::ptr::null_mut()))
    }

    pub fn read(&self, fd: c_int, room: usize) -> (isize, Vec<u8>) {
        let mut buf = vec![0u8; room];
        let n = call!(self, read(fd, buf.as_mut_ptr().cast(), buf.len()));
        buf.truncate(n.max(0) as usize);
        (n, buf)
    }

    /// `send`, whose data stays where it is for ever: with `MSG_ZEROCOPY` it has to.
    pub fn send(&self, fd: c_int, data: &'static [u8], flags: c_int) -> isize {
        call!(self, send(fd, data.as_ptr().cast(), data.len(), flags))
    }

    pub fn setsockopt(&self, fd: c_int, level: c_int, name: c_int, value: c_int) -> c_int {
        let len = size_of_val(&value) as socklen_t;
        let value = (&raw const value).cast();
        call!(self, setsockopt(fd, level, name, value, len))
    }

    /// The oldest entry of the error queue: flags and ancillary data; or `errno`.
    pub fn error_message(&self, fd: c_int) -> Result<(c_int, Vec<Control>), c_int> {
        let mut control = [0u64; 32];
        // SAFETY: all zeros is a value of this plain structure.
        let mut message: libc::msghdr = unsafe { zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control);
        let n = call!(self, recvmsg(fd, &mut message, libc::MSG_ERRQUEUE));
        if n < 0 {
            return Err(errno());
        }
        // SAFETY: room that was filled as far as this.
        let mut rest = unsafe {
            std::slice::from_raw_parts(control.as_ptr().cast::<u8>(), message.msg_controllen)
        };
        let word = |at: &[u8]| i32::from_ne_bytes(at[..4].try_into().expect("four bytes"));
        let mut out = Vec::new();
        while rest.len() >= 16 {
            let len = word(rest) as usize;
            out.push(((word(&rest[8..]), word(&rest[12..])), rest[16..len].to_vec()));
            rest = &rest[len.next_multiple_of(8).min(rest.len())..];
        }
        Ok((message.msg_flags, out))
    }

    /// The error in the oldest entry of the error queue, which has nothing else; or `errno`.
    pub fn error_queue(&self, fd: c_int) -> Result<ExtendedError, c_int> {
        let (flags, control) = self.error_message(fd)?;
        assert_eq!(flags, libc::MSG_ERRQUEUE);
        let [(kind, data)] = &control[..] else { panic!("{control:?}") };
        assert_eq!(*kind, self.recverr());
        Ok(ExtendedError::parse(data))
    }

    /// Level and type of an error's ancillary data.
    pub fn recverr(&self) -> (c_int, c_int) {
        match self.mode {
            Mode::V4 => (libc::SOL_IP, libc::IP_RECVERR),
            Mode::Mapped | Mode::V6 => (libc::SOL_IPV6, libc::IPV6_RECVERR),
        }
    }

    pub fn close(&self, fd: c_int) -> c_int {
        call!(self, close(fd))
    }

    /// Waits until the descriptor is ready for `events`: what `poll` returns, and for what.
    pub fn poll(&self, fd: c_int, events: i16, timeout_ms: c_int) -> (c_int, i16) {
        let mut poll = libc::pollfd { fd, events, revents: 0 };
        let n = call!(self, poll(&mut poll, 1, timeout_ms));
        (n, poll.revents)
    }

    /// Hands a segment to the stack.
    pub fn inject(&self, segment: &Segment) {
        let (local, peer) = segment.ports;
        let builder = match (self.mode.remote(), self.mode.local()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                PacketBuilder::ipv4(from.octets(), to.octets(), 64)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                PacketBuilder::ipv6(from.octets(), to.octets(), 64)
            }
            _ => unreachable!("one protocol"),
        };
        let mut tcp = builder.tcp(peer, local, segment.seq, segment.window);
        if segment.syn {
            tcp = tcp.syn();
        }
        if let Some(ack) = segment.ack {
            tcp = tcp.ack(ack);
        }
        if segment.fin {
            tcp = tcp.fin();
        }
        if segment.rst {
            tcp = tcp.rst();
        }
        if let Some(mss) = segment.mss {
            tcp = tcp.options(&[TcpOptionElement::MaximumSegmentSize(mss)]).expect("it fits");
        }
        let mut packet = Vec::new();
        tcp.write(&mut packet, &segment.payload).expect("a vector takes everything");
        self.inject_packet(&packet);
    }

    /// An ICMP error about a segment of the stack's with this sequence number (IPv4).
    pub fn inject_unreachable(&self, ports: (u16, u16), seq: u32) {
        let (IpAddr::V4(from), IpAddr::V4(to)) = (self.mode.remote(), self.mode.local()) else {
            panic!("{:?} is not IPv4", self.mode)
        };
        let mut about = Vec::new();
        PacketBuilder::ipv4(to.octets(), from.octets(), 64)
            .tcp(ports.0, ports.1, seq, 0)
            .write(&mut about, &[])
            .expect("a vector takes everything");
        let mut packet = Vec::new();
        PacketBuilder::ipv4(from.octets(), to.octets(), 64)
            .icmpv4(Icmpv4Type::DestinationUnreachable(DestUnreachableHeader::Host))
            .write(&mut packet, &about)
            .expect("a vector takes everything");
        self.inject_packet(&packet);
    }

    fn inject_packet(&self, packet: &[u8]) {
        let result = call!(self, netdev_send(packet.as_ptr().cast(), packet.len()));
        assert_eq!(result, 0);
    }

    /// The next segment of the stack's; `None` if none comes.
    pub fn receive(&self) -> Option<Segment> {
        let mut packet = vec![0u8; 65_536];
        let (mut len, mut usecs): (usize, c_longlong) = (packet.len(), 0);
        let result = call!(self, netdev_receive(packet.as_mut_ptr().cast(), &mut len, &mut usecs));
        assert_eq!(result, 0, "on anything else packetdrill asks for ever");
        packet.truncate(len);
        (len > 0).then(|| self.parse(&packet, usecs as u64 - self.began))
    }

    fn parse(&self, packet: &[u8], at: u64) -> Segment {
        let sliced = SlicedPacket::from_ip(packet).expect("an IP packet");
        let ends: (IpAddr, IpAddr) = match sliced.net {
            Some(NetSlice::Ipv4(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            Some(NetSlice::Ipv6(ip)) => {
                (ip.header().source_addr().into(), ip.header().destination_addr().into())
            }
            _ => panic!("no IP header"),
        };
        assert_eq!(ends, (self.mode.local(), self.mode.remote()));
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP header") };
        let (mut mss, mut timestamp) = (None, false);
        for option in tcp.options_iterator().flatten() {
            match option {
                TcpOptionElement::MaximumSegmentSize(n) => mss = Some(n),
                TcpOptionElement::Timestamp(..) => timestamp = true,
                _ => {}
            }
        }
        Segment {
            syn: tcp.syn(),
            ack: tcp.ack().then(|| tcp.acknowledgment_number()),
            fin: tcp.fin(),
            rst: tcp.rst(),
            seq: tcp.sequence_number(),
            window: tcp.window_size(),
            mss,
            timestamp,
            payload: tcp.payload().to_vec(),
            ports: (tcp.source_port(), tcp.destination_port()),
            at,
        }
    }

    /// A connection that the peer opens: the descriptor, and a segment of the peer's that would be
    /// next, without data.
    pub fn accepted(&self) -> (c_int, Segment) {
        let listener = self.listener();
        let syn = Segment {
            syn: true,
            seq: 1000,
            window: 60_000,
            mss: Some(1460),
            ports: (PORT, PEER_PORT),
            ..Segment::default()
        };
        self.inject(&syn);
        let answer = self.receive().expect("a SYN,ACK");
        assert!(answer.syn && answer.ack == Some(1001), "{answer:?}");
        let next = Segment {
            syn: false,
            mss: None,
            seq: 1001,
            ack: Some(answer.seq.wrapping_add(1)),
            ..syn
        };
        self.inject(&next);
        (ok(self.accept(listener)), next)
    }

    /// Lets go of the stack.
    pub fn free(&mut self) {
        if !std::mem::replace(&mut self.freed, true) {
            call!(self, free());
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.free();
    }
}

fn symbol(handle: *mut c_void, name: &str) -> *mut c_void {
    let text = CString::new(name).expect("no zeros");
    // SAFETY: a loaded object and a C string.
    let symbol = unsafe { libc::dlsym(handle, text.as_ptr()) };
    assert!(!symbol.is_null(), "{name} is not exported");
    symbol
}

/// The result of a call that must succeed.
pub(crate) fn ok(result: c_int) -> c_int {
    assert!(result >= 0, "{}", std::io::Error::last_os_error());
    result
}

pub(crate) fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}
