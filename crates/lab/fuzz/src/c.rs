//! Calls of the C library in any order, over two networks that are linked and a third whose frames the fuzzer moves.
//!
//! The input is a list of eight bytes: which call, on which descriptor, and six that say how. Nothing blocks: every
//! descriptor has `O_NONBLOCK`, every wait a time of 0. Pointers are null or valid, for as long as the call needs
//! them; everything else is the input's. The networks run in real time, on threads of their own, and one input leaves
//! them as it found them:
//!
//! - a call answers, or fails with an error that has a name; none panics;
//! - whatever was lent comes back, once;
//! - the process has as many descriptors as before.
//!
//! With `C_CALLS_TRACE` in the environment, every call is written to standard error.

#![allow(
    unsafe_code,
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    reason = "a caller in C: its pointers are null or of memory that lives as long as the process"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_uint, c_void};
use std::fmt::Write as _;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{LazyLock, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use libc::*;
// For its functions, by their names.
use pagewire_c as _;

/// Calls in one input.
const MAX_CALLS: usize = 64;
/// Descriptors of one input.
const MAX_OPEN: usize = 64;
/// Bytes of the memory that is sent, and of that which is received into.
const ROOM: usize = 128 << 10;
/// Sends of owned memory in one input.
const MAX_OWNED: usize = MAX_CALLS;
/// How long what was lent may take to come back.
const PATIENCE: Duration = Duration::from_secs(4);
const PAGE: usize = 4096;
/// What the process makes once, for all reserved maps.
const ONCE: &str = "memfd:pagewire-nothing";
const TCP_ZEROCOPY_RECEIVE: c_int = 35;

#[repr(C)]
#[derive(Clone, Copy)]
struct Piece {
    data: *const c_void,
    len: size_t,
    flags: c_uint,
    handle: *mut c_void,
}

const NO_PIECE: Piece = Piece { data: null(), len: 0, flags: 0, handle: null_mut() };

type Release = unsafe extern "C" fn(*mut c_void, *const c_void, size_t);
type Each = unsafe extern "C" fn(*mut c_void, *const c_char, u64);

unsafe extern "C" {
    fn pw_error() -> *const c_char;
    fn pw_errno_name(error: c_int) -> *const c_char;
    fn pw_host_open(config: *const c_char) -> c_int;
    fn pw_host_close(host: c_int) -> c_int;
    fn pw_host_use(host: c_int) -> c_int;
    fn pw_host_used() -> c_int;
    fn pw_host_socket(host: c_int, domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn pw_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    fn pw_bind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn pw_listen(fd: c_int, backlog: c_int) -> c_int;
    fn pw_accept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn pw_accept4(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t, flags: c_int) -> c_int;
    fn pw_connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
    fn pw_shutdown(fd: c_int, how: c_int) -> c_int;
    fn pw_getsockname(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn pw_getpeername(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int;
    fn pw_getsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: *mut socklen_t,
    ) -> c_int;
    fn pw_setsockopt(
        fd: c_int,
        level: c_int,
        name: c_int,
        value: *const c_void,
        len: socklen_t,
    ) -> c_int;
    fn pw_read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    fn pw_readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn pw_recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    fn pw_recvfrom(
        fd: c_int,
        buf: *mut c_void,
        len: size_t,
        flags: c_int,
        addr: *mut sockaddr,
        addr_len: *mut socklen_t,
    ) -> ssize_t;
    fn pw_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    fn pw_recvmmsg(
        fd: c_int,
        messages: *mut mmsghdr,
        count: c_uint,
        flags: c_int,
        timeout: *mut timespec,
    ) -> c_int;
    fn pw_write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    fn pw_writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t;
    fn pw_send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    fn pw_sendto(
        fd: c_int,
        buf: *const c_void,
        len: size_t,
        flags: c_int,
        addr: *const sockaddr,
        addr_len: socklen_t,
    ) -> ssize_t;
    fn pw_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    fn pw_sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    fn pw_sendfile(to: c_int, from: c_int, offset: *mut off_t, len: size_t) -> ssize_t;
    fn pw_splice(
        from: c_int,
        from_offset: *mut off_t,
        to: c_int,
        to_offset: *mut off_t,
        len: size_t,
        flags: c_uint,
    ) -> ssize_t;
    fn pw_pipe2(fds: *mut c_int, flags: c_int) -> c_int;
    fn pw_close(fd: c_int) -> c_int;
    fn pw_dup(fd: c_int) -> c_int;
    fn pw_dup2(fd: c_int, to: c_int) -> c_int;
    fn pw_dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fn pw_fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int;
    fn pw_ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int;
    fn pw_fstat(fd: c_int, status: *mut stat) -> c_int;
    fn pw_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE;
    fn pw_fileno(stream: *mut FILE) -> c_int;
    fn pw_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    fn pw_ppoll(
        fds: *mut pollfd,
        count: nfds_t,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    fn pw_select(
        count: c_int,
        read: *mut c_void,
        write: *mut c_void,
        except: *mut c_void,
        timeout: *mut timeval,
    ) -> c_int;
    fn pw_pselect(
        count: c_int,
        read: *mut c_void,
        write: *mut c_void,
        except: *mut c_void,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    fn pw_epoll_create(size: c_int) -> c_int;
    fn pw_epoll_create1(flags: c_int) -> c_int;
    fn pw_epoll_ctl(epoll: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    fn pw_epoll_wait(epoll: c_int, events: *mut epoll_event, max: c_int, timeout: c_int) -> c_int;
    fn pw_epoll_pwait(
        epoll: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: c_int,
        mask: *const sigset_t,
    ) -> c_int;
    fn pw_epoll_pwait2(
        epoll: c_int,
        events: *mut epoll_event,
        max: c_int,
        timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    fn pw_mmap(
        addr: *mut c_void,
        len: size_t,
        prot: c_int,
        flags: c_int,
        fd: c_int,
        offset: off_t,
    ) -> *mut c_void;
    fn pw_munmap(addr: *mut c_void, len: size_t) -> c_int;
    fn pw_madvise(addr: *mut c_void, len: size_t, advice: c_int) -> c_int;
    fn pw_send_owned(
        fd: c_int,
        data: *const c_void,
        len: size_t,
        flags: c_int,
        release: Option<Release>,
        context: *mut c_void,
    ) -> ssize_t;
    fn pw_recv_chunks(
        fd: c_int,
        chunks: *mut Piece,
        count: size_t,
        most: size_t,
        flags: c_int,
    ) -> ssize_t;
    fn pw_chunk_release(chunk: *mut Piece);
    fn pw_send_chunk(fd: c_int, chunk: *mut Piece, flags: c_int) -> ssize_t;
    fn pw_map(fd: c_int, len: size_t) -> *mut c_void;
    fn pw_rings_open(host: c_int, copy_bytes: size_t) -> *mut c_void;
    fn pw_rings_close(rings: *mut c_void);
    fn pw_rings_register(rings: *mut c_void, queue: c_uint, bytes: size_t, port: u16) -> c_int;
    fn pw_rings_listen(rings: *mut c_void, addr: *const sockaddr, len: socklen_t) -> *mut c_void;
    fn pw_rings_listener_close(listener: *mut c_void);
    fn pw_rings_accept(listener: *mut c_void, timeout_ms: c_int) -> *mut c_void;
    fn pw_rings_stream_close(stream: *mut c_void);
    fn pw_rings_receive(
        stream: *mut c_void,
        group: c_int,
        buffers: *mut Piece,
        count: size_t,
        most: size_t,
        timeout_ms: c_int,
    ) -> ssize_t;
    fn pw_rings_release(buffer: *mut Piece);
    fn pw_frames_send(host: c_int, frame: *const c_void, len: size_t) -> ssize_t;
    fn pw_frames_receive(host: c_int, into: *mut c_void, len: size_t) -> ssize_t;
    fn pw_frames_fd(host: c_int) -> c_int;
    fn pw_ledger_get(host: c_int, into: *mut size_t) -> c_int;
    fn pw_counts_each(host: c_int, each: Option<Each>, context: *mut c_void) -> c_int;
    fn pw_stats_text(host: c_int, into: *mut c_char, len: size_t) -> ssize_t;
}

/// A result that may say that the call failed.
trait Outcome: Copy + std::fmt::Debug {
    /// Whether it failed; panics for what no call returns.
    fn failed(self) -> bool;
}

impl Outcome for c_int {
    fn failed(self) -> bool {
        assert!(self >= -1, "{self}");
        self == -1
    }
}

impl Outcome for ssize_t {
    fn failed(self) -> bool {
        assert!(self >= -1, "{self}");
        self == -1
    }
}

impl<T> Outcome for *mut T {
    fn failed(self) -> bool {
        self.is_null() || self.addr() == MAP_FAILED.addr()
    }
}

impl<T> Outcome for *const T {
    fn failed(self) -> bool {
        self.is_null()
    }
}

impl Outcome for () {
    fn failed(self) -> bool {
        false
    }
}

fn traces() -> bool {
    static TRACES: LazyLock<bool> = LazyLock::new(|| std::env::var_os("C_CALLS_TRACE").is_some());
    *TRACES
}

fn errno() -> &'static mut c_int {
    unsafe { &mut *__errno_location() }
}

/// Checks a result. The error number is of this call: it was 0 before.
fn check<T: Outcome>(name: &str, args: &dyn std::fmt::Debug, done: T) -> T {
    let error = *errno();
    if traces() {
        eprintln!("{name}{args:x?} = {done:x?}, errno {error}");
    }
    if done.failed() {
        let known = unsafe { CStr::from_ptr(pw_errno_name(error)) };
        assert!(!known.is_empty(), "{name}{args:x?}: error {error} has no name");
        if error == EIO {
            let text = unsafe { CStr::from_ptr(pw_error()) }.to_string_lossy();
            assert!(!text.contains("the call panicked"), "{name}{args:x?}: {text}");
        }
    }
    done
}

/// Makes a call, and checks its result.
macro_rules! call {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        let args = ($($arg,)*);
        *errno() = 0;
        #[allow(unused_unsafe)]
        let done = call!(@ $name args; $($arg),*);
        check(stringify!($name), &args, done)
    }};
    (@ $name:ident $args:ident;) => { unsafe { $name() } };
    (@ $name:ident $args:ident; $a:expr) => { unsafe { $name($args.0) } };
    (@ $name:ident $args:ident; $a:expr, $b:expr) => { unsafe { $name($args.0, $args.1) } };
    (@ $name:ident $args:ident; $a:expr, $b:expr, $c:expr) => { unsafe { $name($args.0, $args.1, $args.2) } };
    (@ $name:ident $args:ident; $a:expr, $b:expr, $c:expr, $d:expr) => {
        unsafe { $name($args.0, $args.1, $args.2, $args.3) }
    };
    (@ $name:ident $args:ident; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr) => {
        unsafe { $name($args.0, $args.1, $args.2, $args.3, $args.4) }
    };
    (@ $name:ident $args:ident; $a:expr, $b:expr, $c:expr, $d:expr, $e:expr, $f:expr) => {
        unsafe { $name($args.0, $args.1, $args.2, $args.3, $args.4, $args.5) }
    };
}

/// How often each owned piece of memory came back.
static RELEASED: [AtomicU32; MAX_OWNED] = [const { AtomicU32::new(0) }; MAX_OWNED];
/// A descriptor that a release function asks about.
static ASKED: AtomicI32 = AtomicI32::new(-1);

unsafe extern "C" fn released(context: *mut c_void, data: *const c_void, len: size_t) {
    let at = context.addr();
    RELEASED[at / 2].fetch_add(1, Ordering::SeqCst);
    assert!(!data.is_null() && len > 0);
    // It may call the library.
    if at % 2 == 1 {
        let mut kind = [0u8; 4];
        let mut len: socklen_t = 4;
        let fd = ASKED.load(Ordering::Relaxed);
        unsafe { pw_getsockopt(fd, SOL_SOCKET, SO_TYPE, kind.as_mut_ptr().cast(), &raw mut len) };
        unsafe { pw_host_used() };
    }
}

unsafe extern "C" fn counted(context: *mut c_void, name: *const c_char, _: u64) {
    let name = unsafe { CStr::from_ptr(name) };
    assert!(!name.is_empty());
    unsafe { pw_host_used() };
    unsafe { *context.cast::<usize>() += 1 };
}

/// Memory that lives as long as the process: what is sent, and what is received into.
struct Memory {
    sent: *const u8,
    room: *mut u8,
}

/// What stays from input to input.
struct World {
    memory: Memory,
    /// The two ends of the pair, and the network whose frames the fuzzer moves.
    hosts: [c_int; 3],
    pairs: usize,
}

unsafe impl Send for World {}

impl World {
    fn new() -> Self {
        // The library raises it for a broken pipe, as Linux does.
        unsafe { signal(SIGPIPE, SIG_IGN) };
        let sent = Box::leak((0..ROOM).map(|at| at as u8).collect());
        let room = Box::leak(vec![0u8; ROOM].into_boxed_slice());
        let memory = Memory { sent: sent.as_ptr(), room: room.as_mut_ptr() };
        let mut world = Self { memory, hosts: [-1; 3], pairs: 0 };
        world.hosts[2] = open("frames,addr=10.79.0.1/24,addr=fd79::1/64,queues=2");
        world.open_pair();
        Self::prune();
        world
    }

    /// Ends what stays of pairs that have no network any more: until another pair is opened.
    fn prune() {
        let host = open("pair=last,addr=10.72.0.1/24");
        assert_eq!(call!(pw_host_close(host)), 0);
    }

    fn open_pair(&mut self) {
        self.pairs += 1;
        for end in 0..2 {
            let (name, n) = (self.pairs, end + 1);
            self.hosts[end] =
                open(&format!("pair=c{name},addr=10.71.0.{n}/24,addr=fd71::{n}/64,queues=2"));
        }
    }

    /// Gives a thread, and each network, what it makes once; and no thread a network that was closed.
    fn settle(&self) {
        for host in self.hosts {
            let fd = call!(pw_host_socket(host, AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0));
            let mut entry = pollfd { fd, events: POLLIN, revents: 0 };
            call!(pw_poll(&raw mut entry, 1, 0));
            assert_eq!(call!(pw_close(fd)), 0);
        }
        assert_eq!(call!(pw_host_use(self.hosts[0])), 0);
    }
}

fn open(text: &str) -> c_int {
    let text = CString::new(text).expect("no zero byte");
    let host = call!(pw_host_open(text.as_ptr()));
    assert!(host >= 0, "{text:?}: {:?}", unsafe { CStr::from_ptr(pw_error()) });
    host
}

/// The descriptors of the process.
fn descriptors() -> Vec<(c_int, String)> {
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.ok()?.path();
        // The folder that is read has a number, too, which is gone by now or then.
        let to = std::fs::read_link(&path).ok()?.to_string_lossy().into_owned();
        let fd = path.file_name()?.to_str()?.parse().ok()?;
        (!to.contains("/fd") && !to.contains(ONCE)).then_some((fd, to))
    };
    let mut all: Vec<_> =
        std::fs::read_dir("/proc/self/fd").expect("proc").filter_map(name).collect();
    all.sort();
    all
}

/// Waits until `done`, at most [`PATIENCE`].
fn comes(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// Runs one input; see the head of this file. Only a process that is `alone` opens and closes nothing else, so that
/// its descriptors can be counted.
pub fn c_calls(data: &[u8], alone: bool) -> usize {
    static WORLD: OnceLock<Mutex<World>> = OnceLock::new();
    let world = WORLD.get_or_init(|| Mutex::new(World::new()));
    let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
    world.settle();
    let before = if alone { descriptors() } else { Vec::new() };
    RELEASED.iter().for_each(|count| count.store(0, Ordering::SeqCst));
    let mut run = Run::new(&mut world);
    for record in data.as_chunks().0.iter().take(MAX_CALLS) {
        run.step(*record);
    }
    run.end();
    let (owed, moved) = (std::mem::take(&mut run.owed), run.moved);
    drop(run);
    let back = || owed.iter().all(|&at| RELEASED[at].load(Ordering::SeqCst) > 0);
    assert!(comes(back), "memory that was sent did not come back: {owed:?}");
    for (at, count) in RELEASED.iter().enumerate() {
        let count = count.load(Ordering::SeqCst);
        assert_eq!(count, u32::from(owed.contains(&at)), "memory {at} came back {count} times");
    }
    world.settle();
    if alone && !comes(|| descriptors().len() == before.len()) {
        let after = descriptors();
        let more: Vec<_> = after.iter().filter(|fd| !before.contains(fd)).collect();
        let less: Vec<_> = before.iter().filter(|fd| !after.contains(fd)).collect();
        panic!(
            "{} descriptors before, {} after: new {more:?}, gone {less:?}",
            before.len(),
            after.len()
        );
    }
    moved
}

/// The state of one input.
struct Run<'w> {
    world: &'w mut World,
    /// Descriptors that are open, all made by this input.
    open: Vec<c_int>,
    streams: Vec<*mut FILE>,
    chunks: Vec<Piece>,
    /// Maps, and whether all of their pages can be read.
    maps: Vec<(usize, usize, bool)>,
    rings: Vec<*mut c_void>,
    ring_listeners: Vec<*mut c_void>,
    ring_streams: Vec<*mut c_void>,
    buffers: Vec<Piece>,
    /// Networks with a text of the input's.
    hosts: Vec<c_int>,
    /// Sends of owned memory so far, and those whose memory comes back.
    sends: usize,
    owed: Vec<usize>,
    closes: usize,
    /// Whether pairs were opened or closed.
    pairs: bool,
    /// Bytes that were received.
    moved: usize,
}

/// Whether a network has the number: a folder that can do nothing, for the kernel.
fn is_network(fd: c_int) -> bool {
    let flags = unsafe { fcntl(fd, F_GETFL) };
    flags >= 0 && flags & O_PATH != 0
}

/// Bytes without a meaning.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 27)
    }
}

/// An address: of a network, of none, or none at all.
fn place(a: u8, b: u8) -> ([u8; 128], socklen_t) {
    let mut bytes = [0; 128];
    let mut len = 16;
    let port = [7000u16, 7001, 7002, 0][usize::from(b % 4)];
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    if a & 1 == 0 {
        bytes[..2].copy_from_slice(&(AF_INET as u16).to_ne_bytes());
        let ip = [
            [10, 71, 0, 1],
            [10, 71, 0, 2],
            [0; 4],
            [10, 71, 0, 9],
            [127, 0, 0, 1],
            [224, 0, 0, 1],
        ];
        bytes[4..8].copy_from_slice(&ip[usize::from(a >> 1) % 6]);
    } else {
        bytes[..2].copy_from_slice(&(AF_INET6 as u16).to_ne_bytes());
        let ip = [
            [0xfd71, 0, 0, 0, 0, 0, 0, 1],
            [0xfd71, 0, 0, 0, 0, 0, 0, 2],
            [0; 8],
            [0, 0, 0, 0, 0, 0xffff, 0x0a47, 2],
            [0, 0, 0, 0, 0, 0, 0, 1],
            [0xff02, 0, 0, 0, 0, 0, 0, 1],
        ];
        for (at, word) in ip[usize::from(a >> 1) % 6].iter().enumerate() {
            bytes[8 + 2 * at..10 + 2 * at].copy_from_slice(&u16::to_be_bytes(*word));
        }
        len = 28;
    }
    match b >> 4 {
        // Too short, too long, of another family.
        12 => len = socklen_t::from(b % 16),
        13 => len = [128, 129, 1 << 20, u32::MAX][usize::from(a % 4)].min(128),
        14 => bytes[0] = a,
        15 => {
            let mut noise = noise(u64::from(a) << 8 | u64::from(b));
            bytes[2..].iter_mut().for_each(|byte| *byte = noise() as u8);
        }
        _ => {}
    }
    (bytes, len)
}

/// A length: small, of a page, large, none.
fn length(a: u8, b: u8) -> usize {
    match a % 8 {
        0 => usize::from(b),
        1 => usize::from(b) * 64,
        2 => PAGE * usize::from(b % 17),
        3 => ROOM,
        4 => 0,
        _ => usize::from(b % 32) * 100,
    }
    .min(ROOM)
}

fn level_and_name(a: u8, b: u8) -> (c_int, c_int) {
    let common = [
        (SOL_SOCKET, SO_REUSEADDR),
        (SOL_SOCKET, SO_SNDBUF),
        (SOL_SOCKET, SO_RCVBUF),
        (SOL_SOCKET, SO_LINGER),
        (SOL_SOCKET, SO_KEEPALIVE),
        (SOL_SOCKET, SO_RCVTIMEO),
        (SOL_SOCKET, SO_SNDTIMEO),
        (SOL_SOCKET, SO_ZEROCOPY),
        (SOL_SOCKET, SO_ERROR),
        (SOL_SOCKET, SO_RCVLOWAT),
        (SOL_SOCKET, SO_BINDTODEVICE),
        (SOL_SOCKET, SO_TIMESTAMPNS),
        (IPPROTO_TCP, TCP_NODELAY),
        (IPPROTO_TCP, TCP_CORK),
        (IPPROTO_TCP, TCP_INFO),
        (IPPROTO_TCP, TCP_CONGESTION),
        (IPPROTO_TCP, TCP_KEEPIDLE),
        (IPPROTO_TCP, TCP_USER_TIMEOUT),
        (IPPROTO_TCP, TCP_MAXSEG),
        (IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE),
        (IPPROTO_TCP, TCP_FASTOPEN),
        (IPPROTO_IP, IP_TTL),
        (IPPROTO_IP, IP_PKTINFO),
        (IPPROTO_IP, IP_RECVERR),
        (IPPROTO_IP, IP_ADD_MEMBERSHIP),
        (IPPROTO_IP, IP_MULTICAST_IF),
        (IPPROTO_IPV6, IPV6_V6ONLY),
        (IPPROTO_IPV6, IPV6_RECVPKTINFO),
        (IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP),
        (IPPROTO_IPV6, IPV6_UNICAST_HOPS),
        (IPPROTO_UDP, 103),
        (IPPROTO_UDP, 104),
    ];
    match a {
        0..192 => common[usize::from(a) % common.len()],
        _ => {
            let levels =
                [SOL_SOCKET, IPPROTO_TCP, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, -1, 1 << 30];
            (levels[usize::from(a) % levels.len()], c_int::from(b as i8))
        }
    }
}

impl<'w> Run<'w> {
    fn new(world: &'w mut World) -> Self {
        Self {
            world,
            open: Vec::new(),
            streams: Vec::new(),
            chunks: Vec::new(),
            maps: Vec::new(),
            rings: Vec::new(),
            ring_listeners: Vec::new(),
            ring_streams: Vec::new(),
            buffers: Vec::new(),
            hosts: Vec::new(),
            sends: 0,
            owed: Vec::new(),
            closes: 0,
            pairs: false,
            moved: 0,
        }
    }

    fn opened(&mut self, fd: c_int) {
        if fd < 0 {
            return;
        }
        assert!(fd > 2 && !self.open.contains(&fd), "{fd} is in use");
        if self.open.len() >= MAX_OPEN {
            let oldest = self.open.remove(0);
            assert_eq!(call!(pw_close(oldest)), 0);
        }
        self.open.push(fd);
        ASKED.store(fd, Ordering::Relaxed);
    }

    fn pick(&self, which: u8) -> c_int {
        match (which, self.open.len()) {
            (255, _) | (_, 0) => -1,
            (254, _) => c_int::MAX,
            (253, _) => 100_000,
            (_, n) => self.open[usize::from(which) % n],
        }
    }

    /// One of the networks, none, or any.
    fn host(&self, which: u8) -> c_int {
        match which % 16 {
            12 => -1,
            13 => 254,
            14 => c_int::MAX,
            15 => c_int::MIN,
            10 | 11 if !self.hosts.is_empty() => self.hosts[usize::from(which) % self.hosts.len()],
            n => self.world.hosts[usize::from(n) % 3],
        }
    }

    /// Memory to send; its beginning varies.
    fn sent(&self, from: u8, len: usize) -> *const c_void {
        self.world.memory.sent.wrapping_add((usize::from(from) * 16).min(ROOM - len)).cast()
    }

    fn room(&self) -> *mut c_void {
        self.world.memory.room.cast()
    }

    /// Pieces of memory to send or to receive into, some of none, one null where `how` says.
    fn pieces(&self, how: u8, a: u8, to_send: bool) -> Vec<iovec> {
        let count = usize::from(how % 6);
        let mut at = 0;
        let piece = |n: usize| {
            let len = length(a.wrapping_add(n as u8), how.rotate_left(n as u32)) / 8;
            let base = match to_send {
                true => self.sent(n as u8, len).cast_mut(),
                false => self.world.memory.room.wrapping_add(at).cast(),
            };
            at += len;
            let null = how & 0xc0 == 0xc0 && n == 1;
            iovec { iov_base: if null { null_mut() } else { base }, iov_len: len }
        };
        (0..count).map(piece).collect()
    }

    /// Ancillary data: parts with lengths, levels and types of the input's.
    fn control(a: u8, b: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        for n in 0..a % 4 {
            let kinds = [
                (IPPROTO_IP, IP_PKTINFO, 12),
                (IPPROTO_IPV6, IPV6_PKTINFO, 20),
                (IPPROTO_UDP, 103, 2),
                (IPPROTO_IP, IP_TTL, 4),
                (IPPROTO_IP, IP_TOS, 1),
                (SOL_SOCKET, SCM_RIGHTS, 4),
                (IPPROTO_IPV6, IPV6_HOPLIMIT, 4),
                (c_int::from(b), c_int::from(a), 8),
            ];
            let (level, kind, len) = kinds[usize::from(b.rotate_left(u32::from(n) * 3)) % 8];
            let said = match a >> 2 & 7 {
                0 => usize::from(b),
                1 => usize::MAX - usize::from(b),
                _ => 16 + len,
            };
            bytes.extend(said.to_ne_bytes());
            bytes.extend(level.to_ne_bytes());
            bytes.extend(kind.to_ne_bytes());
            bytes.extend(
                (0..len.next_multiple_of(8)).map(|at| if a & 32 == 0 { 0 } else { b ^ at as u8 }),
            );
        }
        bytes.truncate(bytes.len().saturating_sub(usize::from(a >> 6)));
        bytes
    }

    /// Two connected streams, if the networks manage in time.
    fn connect(&mut self, a: u8, b: u8) {
        let (from, to) = (usize::from(a & 1), usize::from(a >> 1 & 1));
        let v6 = a & 4 != 0;
        let domain = if v6 { AF_INET6 } else { AF_INET };
        let listener =
            call!(pw_host_socket(self.world.hosts[to], domain, SOCK_STREAM | SOCK_NONBLOCK, 0));
        self.opened(listener);
        let (mut addr, len) = place(u8::from(v6) | (to as u8) << 1, 3);
        let addr_ptr: *mut sockaddr = addr.as_mut_ptr().cast();
        call!(pw_bind(listener, addr_ptr.cast_const(), len));
        call!(pw_listen(listener, 8));
        let mut room = len;
        call!(pw_getsockname(listener, addr_ptr, &raw mut room));
        let client =
            call!(pw_host_socket(self.world.hosts[from], domain, SOCK_STREAM | SOCK_NONBLOCK, 0));
        self.opened(client);
        if client < 0 || listener < 0 {
            return;
        }
        call!(pw_connect(client, addr_ptr.cast_const(), len));
        for _ in 0..40 {
            let made = call!(pw_accept4(listener, null_mut(), null_mut(), SOCK_NONBLOCK));
            if made >= 0 {
                self.opened(made);
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        if b & 1 == 0 {
            self.close(listener);
        }
    }

    fn close(&mut self, fd: c_int) {
        let is_open = self.open.contains(&fd);
        // Another's number is not closed.
        if is_open || !(0..50_000).contains(&fd) {
            assert_eq!(call!(pw_close(fd)) == 0, is_open, "closing {fd}");
            self.open.retain(|open| *open != fd);
        }
    }

    fn sendable_flags(a: u8, b: u8) -> c_int {
        MSG_DONTWAIT
            | MSG_NOSIGNAL
            | match a % 8 {
                0 => MSG_ZEROCOPY,
                1 => MSG_MORE,
                2 => MSG_OOB,
                3 => MSG_FASTOPEN,
                4 => c_int::from(b) << 8,
                5 => c_int::from(b),
                _ => 0,
            }
    }

    fn step(&mut self, [op, which, a, b, c, d, e, f]: [u8; 8]) {
        let fd = self.pick(which);
        let len = length(a, b);
        let (mut addr, addr_len) = place(c, d);
        let addr: *mut sockaddr = if e == 255 { null_mut() } else { addr.as_mut_ptr().cast() };
        let mut addr_room: socklen_t = [128, 16, 0, 7, 28, u32::MAX, 128, 128][usize::from(e % 8)]
            .min(if is_network(fd) && addr.is_null() { u32::MAX } else { 128 });
        let addr_room: *mut socklen_t = if e == 254 { null_mut() } else { &raw mut addr_room };
        let flags = Self::sendable_flags(e, f);
        match op % 56 {
            0 | 1 => {
                let domain = [AF_INET, AF_INET6, AF_INET, AF_INET6, AF_UNIX, c_int::from(b)]
                    [usize::from(a % 6)];
                // Families of the kernel's that do no more than AF_UNIX does.
                let domain = if [AF_NETLINK, AF_PACKET].contains(&domain) { -1 } else { domain };
                let kind = [SOCK_STREAM, SOCK_DGRAM, SOCK_STREAM, SOCK_RAW, c_int::from(d)]
                    [usize::from(c % 5)];
                let protocol = if f < 200 { 0 } else { c_int::from(f as i8) };
                let kind = kind | SOCK_NONBLOCK;
                let made = match op % 2 {
                    0 => call!(pw_socket(domain, kind, protocol)),
                    _ => call!(pw_host_socket(self.host(e), domain, kind, protocol)),
                };
                self.opened(made);
            }
            2 | 3 => self.connect(a, b),
            4 => _ = call!(pw_bind(fd, addr.cast_const(), addr_len)),
            5 => _ = call!(pw_listen(fd, c_int::from(a as i8))),
            6 => {
                let made = match a & 1 {
                    0 => call!(pw_accept4(
                        fd,
                        addr,
                        addr_room,
                        SOCK_NONBLOCK | if a & 2 == 0 { 0 } else { c_int::from(b) << 12 }
                    )),
                    _ => call!(pw_accept(fd, addr, addr_room)),
                };
                if made >= 0 {
                    self.opened(made);
                    call!(pw_fcntl(made, F_SETFL, c_long::from(O_NONBLOCK)));
                }
            }
            7 => _ = call!(pw_connect(fd, addr.cast_const(), addr_len)),
            8 => _ = call!(pw_shutdown(fd, c_int::from(a as i8) % 5)),
            9 => _ = call!(pw_getsockname(fd, addr, addr_room)),
            10 => _ = call!(pw_getpeername(fd, addr, addr_room)),
            11 | 12 => self.option(op % 2 == 0, fd, [a, b, c, d, e, f]),
            13 => {
                let buf = if e == 255 { null_mut() } else { self.room() };
                self.received(call!(pw_read(fd, buf, len)));
            }
            14 => {
                let iov = self.pieces(c, d, false);
                let count = if e == 255 { -1 } else { iov.len() as c_int };
                self.received(call!(pw_readv(fd, iov.as_ptr(), count)));
            }
            15 => {
                let buf = if d == 255 { null_mut() } else { self.room() };
                let flags = MSG_DONTWAIT | if e & 1 == 0 { 0 } else { c_int::from(f) };
                let flags = flags | if e & 2 == 0 { 0 } else { MSG_TRUNC };
                self.received(call!(pw_recv(fd, buf, len, flags)));
            }
            16 => {
                let flags =
                    MSG_DONTWAIT | if f & 1 == 0 { 0 } else { MSG_PEEK | c_int::from(f) << 8 };
                self.received(call!(pw_recvfrom(fd, self.room(), len, flags, addr, addr_room)));
            }
            17 => {
                let iov = self.pieces(c, d, false);
                let mut message =
                    self.message(&iov, addr, addr_room, &mut [0; 256][..usize::from(f)]);
                let flags =
                    MSG_DONTWAIT | if e & 1 == 0 { MSG_ERRQUEUE } else { c_int::from(a) << 5 };
                let message = if b == 255 { null_mut() } else { &raw mut message };
                self.received(call!(pw_recvmsg(fd, message, flags)));
            }
            18 => {
                let iov = self.pieces(c, d, false);
                let mut messages: Vec<mmsghdr> = (0..a % 5)
                    .map(|_| mmsghdr {
                        msg_hdr: self.message(&iov, null_mut(), null_mut(), &mut []),
                        msg_len: 0,
                    })
                    .collect();
                let mut time = timespec {
                    tv_sec: [0, 1, i64::MAX, -1, i64::MIN, i64::from(f)][usize::from(e % 6)],
                    tv_nsec: [0, 999_999_999, 1_000_000_000, -1][usize::from(e >> 6)],
                };
                let time = if is_network(fd) && b & 1 == 0 { &raw mut time } else { null_mut() };
                let flags = MSG_DONTWAIT | if b & 2 == 0 { MSG_WAITFORONE } else { 0 };
                call!(pw_recvmmsg(
                    fd,
                    messages.as_mut_ptr(),
                    messages.len() as c_uint,
                    flags,
                    time
                ));
            }
            19 => {
                let buf = if e == 255 { null() } else { self.sent(c, len) };
                call!(pw_write(fd, buf, len));
            }
            20 => {
                let iov = self.pieces(c, d, true);
                let count = if e == 255 { 1025 } else { iov.len() as c_int };
                let iov = if e == 254 { null() } else { iov.as_ptr() };
                // More than there are: refused before any is read.
                if count != 1025 || is_network(fd) {
                    call!(pw_writev(fd, iov, count));
                }
            }
            21 => {
                _ = call!(pw_send(
                    fd,
                    if d == 255 { null() } else { self.sent(c, len) },
                    len,
                    flags
                ))
            }
            22 => {
                _ = call!(pw_sendto(fd, self.sent(f, len), len, flags, addr.cast_const(), addr_len))
            }
            23 | 24 => {
                let iov = self.pieces(a, b, true);
                let mut control = if is_network(fd) { Self::control(e, f) } else { Vec::new() };
                let mut name_len = addr_len;
                let message = self.message(&iov, addr, &raw mut name_len, &mut control);
                let flags = Self::sendable_flags(which, 0);
                if op % 2 == 1 {
                    call!(pw_sendmsg(
                        fd,
                        if b == 255 { null() } else { &raw const message },
                        flags
                    ));
                } else {
                    let mut messages = [mmsghdr { msg_hdr: message, msg_len: 0 }; 4];
                    let count = c_uint::from(d % 5);
                    let at = if d == 255 { null_mut() } else { messages.as_mut_ptr() };
                    call!(pw_sendmmsg(fd, at, count, flags));
                }
            }
            25 => {
                let from = self.pick(c);
                let mut offset = [0, 1, 4095, -1, i64::MAX, i64::from(d)][usize::from(e % 6)];
                let offset = if f & 1 == 0 { null_mut() } else { &raw mut offset };
                call!(pw_sendfile(fd, from, offset, len));
            }
            26 => {
                let to = self.pick(c);
                let mut offset = i64::from(d);
                let offset = if e > 250 { &raw mut offset } else { null_mut() };
                let flags = SPLICE_F_NONBLOCK | if e < 8 { c_uint::from(f) } else { 0 };
                call!(pw_splice(fd, offset, to, null_mut(), len, flags));
            }
            27 => {
                let mut fds = [-1; 2];
                let flags =
                    O_NONBLOCK | [0, O_CLOEXEC, O_DIRECT, c_int::from(b)][usize::from(a % 4)];
                if call!(pw_pipe2(if c == 255 { null_mut() } else { fds.as_mut_ptr() }, flags)) == 0
                {
                    fds.into_iter().for_each(|fd| self.opened(fd));
                }
            }
            28 | 29 => self.close(fd),
            30 => {
                let made = call!(pw_dup(fd));
                self.opened(made);
            }
            31 | 32 => self.dup_onto(fd, a, b),
            33 => {
                let command = [
                    F_GETFL,
                    F_GETFD,
                    F_SETFD,
                    F_DUPFD,
                    F_DUPFD_CLOEXEC,
                    F_SETFL,
                    F_GETPIPE_SZ,
                    F_SETPIPE_SZ,
                    77,
                    -1,
                ][usize::from(a % 10)];
                let argument = match command {
                    F_SETFL => c_long::from(O_NONBLOCK),
                    F_DUPFD | F_DUPFD_CLOEXEC => [0, 100, -1, 1 << 21, 1 << 33][usize::from(b % 5)],
                    _ => c_long::from(b),
                };
                let done = call!(pw_fcntl(fd, command, argument));
                if let F_DUPFD | F_DUPFD_CLOEXEC = command {
                    self.opened(done);
                }
            }
            34 => {
                let mut value = [1u64; 32];
                let common = [FIONREAD, TIOCOUTQ, FIONBIO, 0x894b, 0x8905, 0x8906, 0x541b, 0x5452];
                let request = match a % 8 {
                    7 if is_network(fd) => c_ulong::from(u32::from_be_bytes([c, d, e, f])),
                    _ => common[usize::from(b % 8)],
                };
                let argument = if f == 255 { null_mut() } else { value.as_mut_ptr().cast() };
                call!(pw_ioctl(fd, request, argument));
            }
            35 => {
                let mut status: stat = unsafe { std::mem::zeroed() };
                call!(pw_fstat(fd, if a == 255 { null_mut() } else { &raw mut status }));
            }
            36 => self.stream(fd, [a, b, c, d, e, f]),
            37 => self.poll(a, b, c),
            38 => self.select([a, b, c, d]),
            39 => {
                let made = match a & 1 {
                    0 => call!(pw_epoll_create(c_int::from(b as i8))),
                    _ => call!(pw_epoll_create1(
                        [0, EPOLL_CLOEXEC, 0, c_int::from(b)][usize::from(c % 4)]
                    )),
                };
                self.opened(made);
            }
            40 => {
                let fd_in = self.pick(a);
                let mut event = epoll_event { events: u32::from(b & 0x1f), u64: u64::from(c) };
                event.events |=
                    [0, EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE, EPOLLRDHUP, 1 << 29, 0, 0]
                        [usize::from(b >> 5)] as u32;
                let op =
                    [EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, c_int::from(e)]
                        [usize::from(d % 5)];
                call!(pw_epoll_ctl(
                    fd,
                    op,
                    fd_in,
                    if f == 255 { null_mut() } else { &raw mut event }
                ));
            }
            41 => self.epoll_wait(fd, a, b),
            42 => self.map(fd, [a, b, c, d]),
            43 => self.unmap([a, b, c, d]),
            44 => {
                if let Some((at, len, _)) =
                    self.maps.get(usize::from(which) % self.maps.len().max(1))
                {
                    let advice = [0, 1, 2, 3, 4, 8, -1, 9999][usize::from(a % 8)];
                    let from = if b & 1 == 0 { 0 } else { len / 2 / PAGE * PAGE };
                    // What the kernel forgets of a private map is still memory.
                    call!(pw_madvise((at + from) as *mut c_void, len - from, advice));
                }
            }
            45 | 46 => {
                let data = if c == 255 { null() } else { self.sent(d, len) };
                let context = self.sends * 2 + usize::from(e & 1);
                let release = (e & 2 == 0).then_some(released as Release);
                let flags = if e & 4 == 0 { MSG_DONTWAIT } else { flags };
                let sent =
                    call!(pw_send_owned(fd, data, len, flags, release, context as *mut c_void));
                if sent >= 0 && release.is_some() {
                    self.owed.push(self.sends);
                }
                self.sends += 1;
            }
            47 => {
                let mut chunks = [NO_PIECE; 8];
                let count = usize::from(a % 9);
                let most = if b & 1 == 0 { usize::MAX >> (c % 64) } else { usize::from(c) * 100 };
                let at = if d == 255 { null_mut() } else { chunks.as_mut_ptr() };
                let n = call!(pw_recv_chunks(
                    fd,
                    at,
                    count,
                    most,
                    MSG_DONTWAIT | if e < 200 { 0 } else { c_int::from(f) }
                ));
                for chunk in chunks.iter().take(n.max(0) as usize) {
                    self.taken(chunk);
                    self.chunks.push(*chunk);
                }
            }
            48 => self.chunk(fd, [a, b, c, d]),
            49 => {
                let len = [PAGE, 2 * PAGE, 16 * PAGE, 0, 1, usize::MAX, usize::from(b) * PAGE]
                    [usize::from(a % 7)];
                let at = call!(pw_map(fd, len));
                if !at.failed() {
                    self.maps.push((at.addr(), len, true));
                    self.read_maps();
                }
            }
            50 | 51 => self.ring(which, [a, b, c, d, e, f]),
            52 => self.frames([a, b, c, d, e, f]),
            53 => self.counts([a, b, c, d]),
            54 => self.networks([a, b, c, d, e, f]),
            _ => self.other([a, b, c]),
        }
    }

    fn received(&mut self, n: ssize_t) {
        self.moved += usize::try_from(n).unwrap_or(0);
    }

    /// Reads the bytes of a chunk or a buffer.
    fn taken(&mut self, piece: &Piece) {
        assert!(!piece.data.is_null() && !piece.handle.is_null());
        let bytes = unsafe { std::slice::from_raw_parts(piece.data.cast::<u8>(), piece.len) };
        self.moved += bytes.iter().map(|byte| usize::from(*byte)).sum::<usize>().min(piece.len);
    }

    fn message(
        &self,
        iov: &[iovec],
        name: *mut sockaddr,
        name_len: *mut socklen_t,
        control: &mut [u8],
    ) -> msghdr {
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = iov.as_ptr().cast_mut();
        message.msg_iovlen = iov.len();
        message.msg_name = name.cast();
        message.msg_namelen =
            if name.is_null() || name_len.is_null() { 0 } else { unsafe { *name_len } };
        // Longer than the caller of `step` has: kept until the next message.
        let kept = self.world.memory.room.wrapping_add(ROOM - 512);
        unsafe { kept.copy_from(control.as_ptr(), control.len().min(512)) };
        message.msg_control = if control.is_empty() { null_mut() } else { kept.cast() };
        message.msg_controllen = control.len().min(512);
        message
    }

    fn option(&self, set: bool, fd: c_int, [a, b, c, d, e, f]: [u8; 6]) {
        let (level, name) = level_and_name(a, b);
        // The kernel has options that reach beyond the socket.
        if !is_network(fd) && (level, name) != (SOL_SOCKET, SO_SNDBUF) && fd >= 0 {
            return;
        }
        let mut value = [0u64; 64];
        let word = [0, 1, u32::MAX, 1 << 31, u32::from(c), u32::from(c) << 12, 0x0a47_0001]
            [usize::from(d % 7)];
        value.fill(u64::from(word) << 32 | u64::from(word));
        match (level, name) {
            // A close would wait.
            (SOL_SOCKET, SO_LINGER) => value[0] &= 0xffff_ffff,
            (IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE) => {
                value.fill(0);
                let (at, len, _) = self.maps.first().copied().unwrap_or_default();
                value[0] = at as u64;
                value[1] = len as u64;
                if f & 1 == 0 {
                    value[3] = self.room().addr() as u64;
                    value[4] = u64::from(c) * 64;
                }
            }
            _ => {}
        }
        let mut len = match e % 8 {
            0 => u32::from(f),
            1 => 512,
            2 => u32::MAX - u32::from(f),
            3 => 64,
            4 => 16,
            5 => 8,
            _ => 4,
        };
        let at: *mut c_void = if e == 255 { null_mut() } else { value.as_mut_ptr().cast() };
        if set {
            call!(pw_setsockopt(fd, level, name, at.cast_const(), len));
        } else {
            call!(pw_getsockopt(
                fd,
                level,
                name,
                at,
                if e == 254 { null_mut() } else { &raw mut len }
            ));
        }
    }

    fn dup_onto(&mut self, fd: c_int, a: u8, b: u8) {
        let free = 200 + c_int::from(a % 16);
        let to = match b % 4 {
            // A number that nobody has.
            0 if unsafe { fcntl(free, F_GETFD) } < 0 => free,
            1 if a > 250 => [-1, c_int::MAX, 1 << 20][usize::from(a % 3)],
            _ => match self.open.len() {
                0 => return,
                n => self.open[usize::from(a) % n],
            },
        };
        let made = match b & 4 {
            0 => call!(pw_dup2(fd, to)),
            _ => call!(pw_dup3(fd, to, [0, O_CLOEXEC, c_int::from(a)][usize::from(b >> 4) % 3])),
        };
        assert!(made == -1 || made == to, "{made} for {to}");
        if made >= 0 && !self.open.contains(&made) {
            self.opened(made);
        }
    }

    fn stream(&mut self, fd: c_int, [a, b, c, d, e, _]: [u8; 6]) {
        if a & 1 == 0 && fd >= 0 {
            let mode = [c"r+", c"w", c"r", c"a", c"", c"q", c"w+"][usize::from(b % 7)];
            let stream = call!(pw_fdopen(
                fd,
                if c == 255 && is_network(fd) { c"r".as_ptr() } else { mode.as_ptr() }
            ));
            if !stream.is_null() {
                assert_eq!(call!(pw_fileno(stream)), fd);
                // From now on the stream closes it.
                self.open.retain(|open| *open != fd);
                self.streams.push(stream);
            }
            return;
        }
        let Some(&stream) = self.streams.get(usize::from(b) % self.streams.len().max(1)) else {
            return;
        };
        let len = length(c, d);
        match e % 4 {
            0 => _ = unsafe { fwrite(self.sent(d, len), 1, len, stream) },
            1 => _ = unsafe { fread(self.room(), 1, len, stream) },
            2 => _ = unsafe { fflush(stream) },
            _ => {
                self.streams.retain(|of| *of != stream);
                unsafe { fclose(stream) };
            }
        }
    }

    fn poll(&self, a: u8, b: u8, c: u8) {
        let entry = |(at, fd): (usize, &c_int)| pollfd {
            fd: if at % 7 == 6 { -*fd } else { *fd },
            events: if a & 1 == 0 { 0x1f } else { i16::from_be_bytes([b, c]) },
            revents: -1,
        };
        let mut entries: Vec<pollfd> = self.open.iter().enumerate().map(entry).collect();
        if b & 1 == 0 {
            entries.push(pollfd {
                fd: unsafe { pw_frames_fd(self.world.hosts[2]) },
                events: POLLIN,
                revents: 0,
            });
        }
        let time = timespec {
            tv_sec: [0, 0, -1, 0][usize::from(c % 4)],
            tv_nsec: [0, -1, 0, 1 << 30][usize::from(c % 4)],
        };
        let (at, count) = match c {
            255 => (null_mut(), 0),
            254 => (null_mut(), 4),
            253 => (entries.as_mut_ptr(), nfds_t::MAX),
            _ => (entries.as_mut_ptr(), entries.len() as nfds_t),
        };
        // The library looks for its own among so many.
        let found = match a & 2 {
            0 => call!(pw_poll(at, count, 0)),
            _ => call!(pw_ppoll(at, count, &raw const time, null())),
        };
        let said = entries.iter().filter(|entry| entry.revents != 0).count();
        assert!(found < 0 || c >= 253 || found as usize == said, "{found}, but {said} are told");
    }

    fn select(&self, [a, b, c, d]: [u8; 4]) {
        let mut sets = [[0u64; 1024]; 3];
        for (at, fd) in self.open.iter().enumerate() {
            for (n, set) in sets.iter_mut().enumerate() {
                if a >> n & 1 == 0 || at % 3 == n {
                    set[*fd as usize / 64] |= 1 << (fd % 64);
                }
            }
        }
        let most = self.open.iter().max().map_or(0, |most| most + 1);
        let count = [most, most, most, 0, -1, 65_536, most / 2, c_int::from(b)][usize::from(b % 8)];
        let [read, write, except] = std::array::from_fn(|n| match c >> n & 1 {
            0 => sets[n].as_mut_ptr().cast::<c_void>(),
            _ => null_mut(),
        });
        match d & 1 {
            0 => {
                let mut time = timeval {
                    tv_sec: [0, -1, i64::MIN][usize::from(d % 3)],
                    tv_usec: [0, -5][usize::from(d >> 7)],
                };
                call!(pw_select(count, read, write, except, &raw mut time));
            }
            _ => {
                let time = timespec {
                    tv_sec: [0, -1, 0][usize::from(d % 3)],
                    tv_nsec: [0, -5][usize::from(d >> 7)],
                };
                call!(pw_pselect(count, read, write, except, &raw const time, null()));
            }
        }
    }

    fn epoll_wait(&self, fd: c_int, a: u8, b: u8) {
        let mut events = [epoll_event { events: 0, u64: 0 }; 32];
        let max = [32, 1, 2, 0, -1, 5, 32, 8][usize::from(a % 8)];
        let at = if b == 255 { null_mut() } else { events.as_mut_ptr() };
        let time = timespec {
            tv_sec: [0, 0, -1][usize::from(b % 3)],
            tv_nsec: [0, 1 << 30, 0][usize::from(b % 3)],
        };
        let found = match a >> 3 & 3 {
            0 | 3 => call!(pw_epoll_wait(fd, at, max, 0)),
            1 => call!(pw_epoll_pwait(fd, at, max, 0, null())),
            _ => call!(pw_epoll_pwait2(fd, at, max, &raw const time, null())),
        };
        assert!(found <= max.max(0), "{found} events in {max}");
        for event in events.iter().take(found.max(0) as usize) {
            let (told, data) = (event.events, event.u64);
            assert!(
                told != 0 && data < 256,
                "the event {told:#x} of {data:#x}, which nobody has added"
            );
        }
    }

    fn map(&mut self, fd: c_int, [a, b, c, d]: [u8; 4]) {
        let len = [PAGE, 16 * PAGE, 0, 1, usize::MAX, 256 * PAGE][usize::from(a % 6)];
        let mut flags = [MAP_SHARED, MAP_PRIVATE, MAP_SHARED | MAP_POPULATE, 0][usize::from(b % 4)];
        if b & 0xf0 == 0xf0 && is_network(fd) {
            flags |= MAP_FIXED;
        }
        let prot = c_int::from(c % 8);
        let offset = [0, 0, 0, 1, 4096, -4096][usize::from(d % 6)];
        let at = call!(pw_mmap(null_mut(), len, prot, flags, fd, offset));
        if !at.failed() {
            assert!(self.maps.len() < MAX_CALLS && len > 0);
            self.maps.push((at.addr(), len.next_multiple_of(PAGE), false));
        }
    }

    /// Reads each page that was received as such.
    fn read_maps(&self) {
        for (at, len, _) in self.maps.iter().filter(|map| map.2) {
            for page in (0..*len).step_by(PAGE) {
                let _ = unsafe { std::ptr::read_volatile((at + page) as *const u8) };
            }
        }
    }

    /// Unmaps a map, or one end of it.
    fn unmap(&mut self, [a, b, c, d]: [u8; 4]) {
        if self.maps.is_empty() {
            return;
        }
        let n = usize::from(a) % self.maps.len();
        let (at, len, reads) = self.maps[n];
        let half = len / 2 / PAGE * PAGE;
        let (from, part) = match b % 4 {
            1 => (0, half),
            2 => (half, len - half),
            // Refused.
            3 if c & 1 == 0 => (1, PAGE),
            3 if d & 1 == 0 => (0, 0),
            _ => (0, len),
        };
        if call!(pw_munmap((at + from) as *mut c_void, part)) != 0 {
            return;
        }
        assert!(from % PAGE == 0 && part > 0, "{part} bytes at {from} were unmapped");
        self.maps.remove(n);
        for (at, len) in [(at, from), (at + from + part, len - from - part)] {
            if len > 0 {
                self.maps.push((at, len, reads));
            }
        }
        self.read_maps();
    }

    fn chunk(&mut self, fd: c_int, [a, b, c, d]: [u8; 4]) {
        if a == 255 {
            call!(pw_chunk_release(null_mut()));
            call!(pw_send_chunk(fd, null_mut(), MSG_DONTWAIT));
        }
        if self.chunks.is_empty() {
            return;
        }
        let n = usize::from(b) % self.chunks.len();
        let chunk = &raw mut self.chunks[n];
        if c & 3 == 0 {
            call!(pw_chunk_release(chunk));
            // Once more is as good.
            call!(pw_chunk_release(chunk));
        } else {
            let before = self.chunks[n].len;
            let sent = call!(pw_send_chunk(
                fd,
                chunk,
                MSG_DONTWAIT | MSG_NOSIGNAL | if d < 200 { 0 } else { c_int::from(d) << 8 }
            ));
            let left = self.chunks[n];
            assert_eq!(left.len, before - sent.max(0) as usize);
            assert_eq!(left.handle.is_null(), left.len == 0);
        }
        if self.chunks[n].handle.is_null() {
            self.chunks.remove(n);
        } else {
            let chunk = self.chunks[n];
            self.taken(&chunk);
        }
    }

    fn ring(&mut self, which: u8, [a, b, c, d, e, f]: [u8; 6]) {
        const UNIT: usize = 256 << 10;
        let bytes = [UNIT, UNIT, 2 * UNIT, 0, 1, UNIT + 1, usize::MAX, usize::MAX - UNIT + 1]
            [usize::from(b % 8)];
        let pick = |all: &Vec<*mut c_void>| match all.len() {
            0 => null_mut(),
            n => all[usize::from(which) % n],
        };
        let (rings, listener, stream) =
            (pick(&self.rings), pick(&self.ring_listeners), pick(&self.ring_streams));
        match a % 12 {
            0 => {
                if self.rings.len() < 4 {
                    let made = call!(pw_rings_open(self.host(c), bytes));
                    if !made.is_null() {
                        self.rings.push(made);
                    }
                }
            }
            1 => {
                let queue = [0, 1, 2, 15, c_uint::MAX, 0][usize::from(c % 6)];
                call!(pw_rings_register(
                    rings,
                    queue,
                    bytes,
                    [0, 7000, 7001, u16::from(d)][usize::from(d % 4)]
                ));
            }
            2 => {
                let (addr, len) = place(c, d);
                let made = call!(pw_rings_listen(
                    rings,
                    if e == 255 { null() } else { addr.as_ptr().cast() },
                    len
                ));
                if !made.is_null() {
                    self.ring_listeners.push(made);
                }
            }
            3 | 4 => {
                let made = call!(pw_rings_accept(listener, 0));
                if !made.is_null() {
                    self.ring_streams.push(made);
                }
            }
            5 | 6 => {
                let mut buffers = [NO_PIECE; 4];
                let group = [0, 0, 1, -1, 70_000, c_int::from(c)][usize::from(c % 6)];
                let most = if d & 1 == 0 { usize::MAX } else { usize::from(d) * 20 };
                let at = if e == 255 { null_mut() } else { buffers.as_mut_ptr() };
                let n = call!(pw_rings_receive(stream, group, at, usize::from(f % 5), most, 0));
                for buffer in buffers.iter().take(n.max(0) as usize) {
                    self.taken(buffer);
                    self.buffers.push(*buffer);
                }
            }
            7 => {
                call!(pw_rings_release(null_mut()));
                if let Some(mut buffer) = self.buffers.pop() {
                    call!(pw_rings_release(&raw mut buffer));
                    call!(pw_rings_release(&raw mut buffer));
                }
            }
            8 => {
                self.rings.retain(|of| *of != rings);
                call!(pw_rings_close(rings));
            }
            9 => {
                self.ring_listeners.retain(|of| *of != listener);
                call!(pw_rings_listener_close(listener));
            }
            10 => {
                self.ring_streams.retain(|of| *of != stream);
                call!(pw_rings_stream_close(stream));
            }
            // All of it, on the pair.
            _ => {
                let end = usize::from(b & 1);
                let made = call!(pw_rings_open(self.world.hosts[end], UNIT));
                if made.is_null() {
                    return;
                }
                self.rings.push(made);
                let port = 7010 + u16::from(c);
                call!(pw_rings_register(made, c_uint::from(b >> 1 & 1), UNIT, port));
                let (mut addr, len) = place((end as u8) << 1, 0);
                addr[2..4].copy_from_slice(&port.to_be_bytes());
                let listener = call!(pw_rings_listen(made, addr.as_ptr().cast(), len));
                if listener.is_null() {
                    return;
                }
                self.ring_listeners.push(listener);
                let client = call!(pw_host_socket(
                    self.world.hosts[1 - end],
                    AF_INET,
                    SOCK_STREAM | SOCK_NONBLOCK,
                    0
                ));
                self.opened(client);
                call!(pw_connect(client, addr.as_ptr().cast(), len));
                for _ in 0..40 {
                    let stream = call!(pw_rings_accept(listener, 0));
                    if !stream.is_null() {
                        self.ring_streams.push(stream);
                        call!(pw_send(
                            client,
                            self.sent(c, 9000),
                            9000,
                            MSG_DONTWAIT | MSG_NOSIGNAL
                        ));
                        break;
                    }
                    std::thread::sleep(Duration::from_micros(50));
                }
            }
        }
    }

    fn frames(&mut self, [a, b, c, d, e, f]: [u8; 6]) {
        let host = if a < 200 { self.world.hosts[2] } else { self.host(a) };
        let mut frame = [0u8; 2048];
        let mut noise = noise(u64::from_be_bytes([a, b, c, d, e, f, 0, 0]));
        frame.iter_mut().for_each(|byte| *byte = noise() as u8);
        if c & 1 == 0 {
            frame[..6].fill(0xff);
            frame[12..14].copy_from_slice(
                &[0x0800u16, 0x0806, 0x86dd, 0x8100][usize::from(d % 4)].to_be_bytes(),
            );
            frame[14] = if d % 4 == 0 { 0x45 } else { 0x60 };
        }
        let len =
            [14, 60, 1514, 1515, 0, 2048, usize::from(e), usize::from(f) * 8][usize::from(b % 8)];
        match b >> 3 & 3 {
            0 | 3 => {
                _ = call!(pw_frames_send(
                    host,
                    if e == 255 { null() } else { frame.as_ptr().cast() },
                    len
                ))
            }
            1 => {
                _ = call!(pw_frames_receive(
                    host,
                    if e == 255 { null_mut() } else { frame.as_mut_ptr().cast() },
                    len
                ))
            }
            _ => _ = call!(pw_frames_fd(host)),
        }
    }

    fn counts(&self, [a, b, c, d]: [u8; 4]) {
        let host = self.host(b);
        match a % 3 {
            0 => {
                const MARK: usize = 0x5a5a_5a5a_5a5a_5a5a;
                let size = [40, 0, 8, 15, 16, 17, 24, 39, 41, 64][usize::from(c % 10)];
                let mut ledger = [MARK; 9];
                ledger[0] = size;
                let done = call!(pw_ledger_get(
                    host,
                    if d == 255 { null_mut() } else { ledger.as_mut_ptr() }
                ));
                let written = if done == 0 && d != 255 { size.min(40).div_ceil(8) } else { 1 };
                assert!(ledger[written..].iter().all(|word| *word == MARK), "{size}: {ledger:x?}");
            }
            1 => {
                let mut seen = 0usize;
                let each = (d != 255).then_some(counted as Each);
                let done = call!(pw_counts_each(host, each, (&raw mut seen).cast()));
                assert_eq!(done == 0, seen > 0);
            }
            _ => {
                let mut text = [0x55 as c_char; 512];
                let len = usize::from(c);
                let at = if d == 255 { null_mut() } else { text.as_mut_ptr() };
                let whole = call!(pw_stats_text(host, at, len));
                assert!(text[len..].iter().all(|byte| *byte == 0x55));
                if whole >= 0 && len > 0 && d != 255 {
                    assert_eq!(text[(whole as usize).min(len - 1)], 0, "{whole} bytes in {len}");
                }
            }
        }
    }

    /// Text of a network: words, whole or not, in any order.
    fn text(bytes: [u8; 6]) -> String {
        let mut text = String::new();
        if bytes[0] & 0xc0 == 0 {
            text.push_str("frames,addr=10.1.2.3/24,");
        }
        for n in bytes {
            let word = match n % 40 {
                0 => "frames",
                1 => "pair=one",
                2 => "pair=two",
                3 => "addr=10.3.0.1/24",
                4 => "addr=fd73::1/64",
                5 => "addr=0.0.0.0/0",
                6 => "addr=10.3.0.1/33",
                7 => "addr=::/200",
                8 => "addr=",
                9 => "host-addr=10.3.0.9/24",
                10 => "gateway=10.3.0.2",
                11 => "gateway=fd73::2",
                12 => "gateway=nobody",
                13 => "route=10.9.0.0/16@10.3.0.2",
                14 => "route=@",
                15 => "route=10.9.0.0/16",
                16 => "queues=0",
                17 => "queues=16",
                18 => "queues=17",
                19 => "mtu=9000",
                20 => "mtu=0",
                21 => "mtu=18446744073709551615",
                22 => "mtu=67",
                23 => "mtu=65536",
                24 => "mac=02:00:00:00:00:01",
                25 => "mac=ff:ff:ff:ff:ff:ff",
                26 => "mac=::",
                27 => "spin=0",
                28 => "spin=18446744073709551615",
                29 => "memory=0",
                30 => "memory=1",
                31 => "memory=18446744073709551615",
                32 => "memory=1048576",
                33 => " ,, ",
                34 => "=",
                35 => "frames=1",
                36 => "\u{e9}\u{1f600}",
                37 => "addr=255.255.255.255/32",
                38 => "addr=ff02::1/128",
                _ => "mtu=1500",
            };
            text.push_str(word);
            match n / 40 {
                0..=4 => text.push(','),
                5 => _ = write!(text, "{n},"),
                _ => text.push('='),
            }
        }
        text
    }

    fn networks(&mut self, bytes @ [a, b, c, ..]: [u8; 6]) {
        self.pairs |= matches!(a % 8, 0..=3 | 7);
        match a % 8 {
            0..=3 => {
                let text = CString::new(Self::text(bytes)).unwrap_or_default();
                if traces() {
                    eprintln!("{text:?}");
                }
                let host =
                    call!(pw_host_open(if bytes == [255; 6] { null() } else { text.as_ptr() }));
                if host >= 0 {
                    self.hosts.push(host);
                }
            }
            4 | 5 => _ = call!(pw_host_use(self.host(b))),
            6 => {
                if let Some(host) = self.hosts.pop() {
                    self.close_host(host);
                    assert_eq!(call!(pw_host_close(host)), -1);
                } else {
                    call!(pw_host_close(
                        [-1, 254, 255, c_int::MAX, c_int::MIN][usize::from(b % 5)]
                    ));
                }
            }
            _ => {
                // Each takes as long as what is queued.
                self.closes += 1;
                if self.closes > 1 {
                    return;
                }
                for end in [b & 1, 1 - (b & 1)] {
                    if c & 1 == 0 {
                        self.unmap_all();
                    }
                    self.close_host(self.world.hosts[usize::from(end)]);
                }
                self.world.open_pair();
            }
        }
    }

    fn unmap_all(&mut self) {
        for (at, len, _) in std::mem::take(&mut self.maps) {
            call!(pw_munmap(at as *mut c_void, len));
        }
    }

    /// Closes a network, and forgets its descriptors.
    fn close_host(&mut self, host: c_int) {
        for stream in std::mem::take(&mut self.streams) {
            unsafe { fclose(stream) };
        }
        assert_eq!(call!(pw_host_close(host)), 0);
        self.open.retain(|fd| unsafe { fcntl(*fd, F_GETFD) } >= 0);
        // Maps of its sockets are gone, or stay for good: their addresses may be another's from now on.
        self.maps.clear();
    }

    /// Descriptors of the kernel's, time, and questions.
    fn other(&mut self, [a, b, c]: [u8; 3]) {
        let mut fds = [-1; 2];
        match a % 8 {
            0 => fds[0] = unsafe { eventfd(u32::from(b), EFD_NONBLOCK | EFD_CLOEXEC) },
            1 => _ = unsafe { pipe2(fds.as_mut_ptr(), O_NONBLOCK | O_CLOEXEC) },
            2 => {
                let fd = unsafe { memfd_create(c"c_calls".as_ptr(), MFD_CLOEXEC) };
                let len = length(b, c);
                unsafe { write(fd, self.sent(0, len), len) };
                unsafe { lseek(fd, 0, SEEK_SET) };
                fds[0] = fd;
            }
            3 => {
                let kind = [SOCK_STREAM, SOCK_DGRAM, SOCK_SEQPACKET][usize::from(b % 3)];
                _ = unsafe {
                    socketpair(AF_UNIX, kind | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds.as_mut_ptr())
                };
            }
            4..=6 => std::thread::sleep(Duration::from_micros(u64::from(b) * 4)),
            _ => {
                let error = c_int::from_be_bytes([0, 0, 0, b]);
                assert!(!call!(pw_errno_name(if c & 1 == 0 { error } else { -error })).is_null());
                assert!(!call!(pw_error()).is_null());
                call!(pw_host_used());
                call!(pw_fileno_of_standard());
            }
        }
        fds.into_iter().for_each(|fd| self.opened(fd));
    }

    /// Closes everything.
    fn end(&mut self) {
        self.read_maps();
        for stream in std::mem::take(&mut self.streams) {
            unsafe { fclose(stream) };
        }
        self.unmap_all();
        for mut chunk in std::mem::take(&mut self.chunks) {
            call!(pw_chunk_release(&raw mut chunk));
        }
        for fd in std::mem::take(&mut self.open) {
            assert_eq!(call!(pw_close(fd)), 0, "closing {fd}");
        }
        for mut buffer in std::mem::take(&mut self.buffers) {
            call!(pw_rings_release(&raw mut buffer));
        }
        for rings in std::mem::take(&mut self.rings) {
            call!(pw_rings_close(rings));
        }
        for stream in std::mem::take(&mut self.ring_streams) {
            call!(pw_rings_stream_close(stream));
        }
        for listener in std::mem::take(&mut self.ring_listeners) {
            call!(pw_rings_listener_close(listener));
        }
        for host in std::mem::take(&mut self.hosts) {
            assert_eq!(call!(pw_host_close(host)), 0);
        }
        if self.pairs {
            World::prune();
        }
    }
}

/// `pw_fileno` of a stream that is the C library's own.
unsafe fn pw_fileno_of_standard() -> c_int {
    unsafe extern "C" {
        static mut stderr: *mut FILE;
    }
    unsafe { pw_fileno(stderr) }
}
