//! The kernel's sockets: our peers over a tap, and the baseline.
//!
//! Every socket is set to CUBIC, because the machine's default may be a congestion control that
//! paces; both threads are pinned, each to its own processor.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt::{set_socket_reuseaddr, set_tcp_congestion};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::failure::{Because, Failure};
use crate::kit::machine::{Sides, joined, nap, pin};
use crate::kit::meter::{Meter, Round, Samples, WARM_UP};
use crate::kit::namespace::NetNs;
use crate::kit::source::{Reader, Source};
use crate::sys::set_socket_option;

/// Name of the sockets in error texts.
pub(crate) const SOCKET: &str = "a kernel socket";

/// Bytes of single reads and writes of our kernel peer: larger ones are not faster.
pub(crate) const PEER_MESSAGE: usize = 1 << 20;

/// Sizes of single reads and writes, in bytes, that are tried to find the best.
const MESSAGES: [usize; 4] = [64 << 10, 128 << 10, 256 << 10, 1 << 20];

/// Where kernel talks to kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    Loopback,
    /// A veth pair between two network namespaces, which end with their threads.
    Veth {
        mtu: Option<u32>,
    },
}

impl Between {
    /// The largest IP packet on the way, in bytes.
    pub(crate) fn mtu(self) -> u32 {
        match self {
            Self::Loopback => 65_536,
            Self::Veth { mtu } => mtu.unwrap_or(1500),
        }
    }
}

/// Measures a round with a message size.
pub(crate) fn stream(
    between: Between,
    source: &Source,
    message: usize,
    reader: Reader,
    seconds: f64,
    sides: Sides,
) -> Result<Round, Failure> {
    let sending = |connection| {
        send(connection, source, message);
        Ok(())
    };
    let receiving = |connection| receive(connection, message, reader, seconds);
    Ok(connected(between, sides, sending, receiving)?.1)
}

/// Runs both ends of a connection, each on a pinned thread of its own; returns their results.
pub(crate) fn connected<S: Send, R: Send>(
    between: Between,
    sides: Sides,
    send: impl FnOnce(TcpStream) -> Result<S, Failure> + Send,
    receive: impl FnOnce(TcpStream) -> Result<R, Failure> + Send,
) -> Result<(S, R), Failure> {
    let receive = |listener: &TcpListener| receive(accept(listener)?);
    join(between, sides, |to| send(connect(to)?), receive)
}

/// Runs both ends of any number of connections, as [`connected`] does for one: the receiver gets a listener, the
/// sender its address.
pub(crate) fn join<S: Send, R: Send>(
    between: Between,
    sides: Sides,
    send: impl FnOnce(SocketAddr) -> Result<S, Failure> + Send,
    receive: impl FnOnce(&TcpListener) -> Result<R, Failure> + Send,
) -> Result<(S, R), Failure> {
    // Ends with its descriptors, after both threads.
    let ends = match between {
        Between::Loopback => None,
        Between::Veth { mtu } => {
            let (sender, receiver) = (NetNs::new()?, NetNs::new()?);
            sender.veth(("pwb0", SENDER), (&receiver, "pwb1", RECEIVER), mtu)?;
            Some((sender, receiver))
        }
    };
    let (sender, receiver) = ends.as_ref().map(|(sender, receiver)| (sender, receiver)).unzip();
    let (listener, to) = match receiver {
        None => listen(Ipv4Addr::LOCALHOST)?,
        Some(receiver) => receiver.inside(|| listen(RECEIVER))?,
    };
    std::thread::scope(|scope| {
        let receiving = scope.spawn(move || -> Result<R, Failure> {
            pin(sides.right);
            receiver.map_or(Ok(()), NetNs::enter)?;
            receive(&listener)
        });
        let sending = scope.spawn(move || -> Result<S, Failure> {
            pin(sides.left);
            sender.map_or(Ok(()), NetNs::enter)?;
            send(to)
        });
        let sent = joined(sending)?;
        Ok((sent, joined(receiving)?))
    })
}

const SENDER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
const RECEIVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);

/// The size with the best rate, found in short rounds.
pub(crate) fn best_message(
    between: Between,
    source: &Source,
    reader: Reader,
    sides: Sides,
) -> Result<usize, Failure> {
    let mut best = (0.0, MESSAGES[0]);
    for message in MESSAGES {
        let rate = stream(between, source, message, reader, 0.2, sides)?.gbit_per_s();
        if rate > best.0 {
            best = (rate, message);
        }
    }
    Ok(best.1)
}

/// A listener on any free port, and its address.
pub(crate) fn listen(ip: Ipv4Addr) -> Result<(TcpListener, SocketAddr), Failure> {
    let listener = TcpListener::bind((ip, 0)).because(SOCKET)?;
    set_cubic(&listener);
    let address = listener.local_addr().because(SOCKET)?;
    Ok((listener, address))
}

/// How long a peer may take to connect, or to send its next byte.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The first connection, unless its peer failed.
pub(crate) fn accept(listener: &TcpListener) -> Result<TcpStream, Failure> {
    listener.set_nonblocking(true).because(SOCKET)?;
    let deadline = Instant::now() + PATIENCE;
    let connection = loop {
        match listener.accept() {
            Ok((connection, _)) => break connection,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                nap();
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                return Err(Failure::Failed("no connection came to the kernel's socket".into()));
            }
            Err(e) => return Err(Failure::because(SOCKET, e)),
        }
    };
    let set = connection.set_nonblocking(false);
    set.and_then(|()| connection.set_read_timeout(Some(PATIENCE))).because(SOCKET)?;
    Ok(connection)
}

/// A connection to an address that is about to listen.
pub(crate) fn connect(to: SocketAddr) -> Result<TcpStream, Failure> {
    let connection = TcpStream::connect_timeout(&to, PATIENCE).because(SOCKET)?;
    connection.set_write_timeout(Some(PATIENCE)).because(SOCKET)?;
    set_cubic(&connection);
    Ok(connection)
}

/// Begins a connection over IPv4, from a given end or from one of the kernel's choice; calls on it do not wait. It may
/// end at once.
pub(crate) fn begin(from: Option<SocketAddr>, to: SocketAddr) -> io::Result<TcpStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
    let socket: OwnedFd = rustix::net::socket_with(family, kind, flags, None)?;
    if let Some(from) = from {
        // The last connection from there may not be over: the connect tells.
        set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &from)?;
    }
    match rustix::net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn set_zerocopy(socket: impl AsFd) -> io::Result<()> {
    set_socket_option(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, 1)
}

pub(crate) fn send_zerocopy(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let zerocopy = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY.cast_unsigned());
    Ok(rustix::net::send(socket, bytes, zerocopy | SendFlags::NOSIGNAL)?)
}

pub(crate) fn set_cubic(socket: impl AsFd) {
    if set_tcp_congestion(socket, "cubic").is_err() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            eprintln!("note: CUBIC is not available, the kernel's default is measured")
        });
    }
}

/// Our kernel peer, on the right side's processor: connects and [sends](send).
pub(crate) fn peer_sends(to: SocketAddr, source: &Source, sides: Sides) -> Result<(), Failure> {
    pin(sides.right);
    send(connect(to)?, source, PEER_MESSAGE);
    Ok(())
}

/// Writes until the peer closes, or takes nothing for too long.
pub(crate) fn send(mut connection: TcpStream, source: &Source, message: usize) {
    for piece in source.pieces(message) {
        if connection.write_all(piece).is_err() {
            return;
        }
    }
}

/// Reads for a round, then closes.
pub(crate) fn receive(
    mut connection: TcpStream,
    message: usize,
    reader: Reader,
    seconds: f64,
) -> Result<Round, Failure> {
    let mut buffer = vec![0; message];
    let mut meter = Meter::new(seconds);
    loop {
        let n = match connection.read(&mut buffer) {
            Ok(0) => return Err(Failure::Failed("a kernel sender ended too early".into())),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Failure::because(SOCKET, e)),
        };
        reader.see(buffer.get(..n).unwrap_or_default());
        if let Some(round) = meter.count(n) {
            return Ok(round);
        }
    }
}

/// Sends `size` bytes there and back, both sides polling without sleep; times in nanoseconds.
pub(crate) fn ping_pong(size: usize, seconds: f64, sides: Sides) -> Result<Vec<u32>, Failure> {
    let (listener, to) = listen(Ipv4Addr::LOCALHOST)?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin(sides.right);
            let Ok(mut connection) = accept(&listener) else { return };
            let _ = (connection.set_nodelay(true), connection.set_nonblocking(true));
            poll_pong(&mut connection, size, || false, std::hint::spin_loop);
        });
        let pinging = scope.spawn(move || -> Result<Vec<u32>, Failure> {
            pin(sides.left);
            let mut connection = connect(to)?;
            let set = connection.set_nodelay(true).and_then(|()| connection.set_nonblocking(true));
            set.because(SOCKET)?;
            poll_ping(&mut connection, size, seconds, std::hint::spin_loop).because(SOCKET)
        });
        joined(pinging)
    })
}

/// Sends `size` bytes again and again, and takes as many back; sorted times in nanoseconds. Calls on the
/// stream do not wait: `idle` is called where they would.
pub(crate) fn poll_ping(
    stream: &mut (impl Read + Write),
    size: usize,
    seconds: f64,
    idle: impl Fn(),
) -> io::Result<Vec<u32>> {
    let mut buffer = vec![0x55; size];
    let mut samples = Samples::new(WARM_UP, seconds);
    loop {
        let started = Instant::now();
        poll_write(stream, &buffer, &idle)?;
        poll_read(|| stream.read(&mut buffer), size, &idle)?;
        if samples.add(started) {
            return Ok(samples.sorted());
        }
    }
}

/// The other side of [`poll_ping`], until it is over.
pub(crate) fn poll_pong(
    stream: &mut (impl Read + Write),
    size: usize,
    over: impl Fn() -> bool,
    idle: impl Fn(),
) {
    let mut buffer = vec![0; size];
    loop {
        let read = || if over() { Ok(0) } else { stream.read(&mut buffer) };
        let read = poll_read(read, size, &idle);
        if read.and_then(|()| poll_write(stream, &buffer, &idle)).is_err() {
            return;
        }
    }
}

/// Repeats a call until it has read `size` bytes, which overwrite each other.
fn poll_read(
    mut call: impl FnMut() -> io::Result<usize>,
    size: usize,
    idle: impl Fn(),
) -> io::Result<()> {
    let mut moved = 0;
    while moved < size {
        match call() {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => moved += n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => idle(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn poll_write(stream: &mut impl Write, mut bytes: &[u8], idle: impl Fn()) -> io::Result<()> {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(n) => bytes = bytes.get(n..).unwrap_or_default(),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => idle(),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
