//! Pagewire's hosts for measurements: how they are made, connected to each other, and polled in turns.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pagewire::device::{PairConfig, PairEnd, Pcap, PcapConfig};
use pagewire::memory::Frag;
use pagewire::{Device, Host, HostBuilder, Pair, SendBuf, TcpListener, TcpStream};

use crate::failure::{Because, Failure};
use crate::kit::kernel::PATIENCE;
use crate::kit::machine::joined;

/// Addresses of the two sides of a link, and where one of them listens.
pub(crate) const LEFT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);
/// See [`LEFT`]. Over a tap it is the kernel's.
pub(crate) const RIGHT: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
pub(crate) const PORT: u16 = 9000;

/// Bytes handed to a connection at once.
pub(crate) const SEND_PIECE: usize = 1 << 20;

/// Bytes taken from a connection at once: four of a wire's largest super-frames.
pub(crate) const RECV_PIECE: usize = 256 << 10;

/// The settings of a host on `device`.
pub(crate) fn on(device: impl Device + 'static, address: Ipv4Addr) -> HostBuilder {
    Host::builder().device(device).address(format!("{address}/24"))
}

/// A pair link, and its MTU.
pub(crate) fn pair(mtu: Option<u32>) -> Result<(PairEnd, PairEnd, u32), Failure> {
    let mut config = PairConfig::default();
    config.mtu = mtu.map_or(config.mtu, |mtu| mtu as usize);
    let mtu = config.mtu as u32;
    let (left, right) = Pair::with(config)?;
    Ok((left, right, mtu))
}

/// Two hosts at the ends of a pair link, with settings, and its MTU.
pub(crate) fn on_a_pair(
    mtu: Option<u32>,
    set: impl Fn(HostBuilder) -> HostBuilder,
) -> Result<(Host, Host, u32), Failure> {
    let (left, right, mtu) = pair(mtu)?;
    Ok((set(on(left, LEFT)).start()?, set(on(right, RIGHT)).start()?, mtu))
}

/// [`on_a_pair`], without driver threads.
pub(crate) fn hosts_in_turns(mtu: Option<u32>) -> Result<(Host, Host, u32), Failure> {
    on_a_pair(mtu, HostBuilder::manual)
}

/// Writes the device's frames to a file, if there is one.
pub(crate) fn captured(
    device: impl Device + 'static,
    path: Option<&Path>,
) -> Result<Box<dyn Device>, Failure> {
    let Some(path) = path else { return Ok(Box::new(device)) };
    let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let config = PcapConfig { epoch, snaplen: 128 };
    let pcap = Pcap::create(device, path, config);
    Ok(Box::new(pcap.because(format_args!("--pcap {}", path.display()))?))
}

/// A connection between two hosts without driver threads; calls on both ends do not wait.
pub(crate) fn connect_in_turns(
    left: &Host,
    right: &Host,
) -> Result<(TcpStream, TcpStream), Failure> {
    let none = || Failure::Failed("no connection was made".into());
    connect_many_in_turns(left, right, 1)?.pop().ok_or_else(none)
}

/// Several of them, one after the other.
pub(crate) fn connect_many_in_turns(
    left: &Host,
    right: &Host,
    count: usize,
) -> Result<Vec<(TcpStream, TcpStream)>, Failure> {
    let on = SocketAddr::from((RIGHT, PORT));
    let listener = right.listen(on)?;
    let mut connections = Vec::new();
    for _ in 0..count {
        let (client, server) = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| {
                patient(accept(&listener, || {
                    right.turn();
                }))
            });
            let client = patient(left.connect_timeout(on, PATIENCE));
            (client, joined(accepting))
        });
        let (client, server) = (client?, server?);
        never_wait(&client)?;
        never_wait(&server)?;
        connections.push((client, server));
    }
    Ok(connections)
}

/// Calls on this connection do not wait, and it does not delay bytes (`TCP_NODELAY`).
pub(crate) fn never_wait(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)
}

/// The next connection, unless its peer failed; `meanwhile` is called until it comes.
pub(crate) fn accept(listener: &TcpListener, mut meanwhile: impl FnMut()) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match listener.accept() {
            Ok((connection, _)) => return Ok(connection),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {
                meanwhile();
            }
            Err(e) => return Err(e),
        }
    }
}

/// Payload bytes that these hosts copied; with `stats`, prints all that they counted.
pub(crate) fn copied_by(hosts: &[&Host], stats: bool) -> u64 {
    let mut copied = 0;
    for host in hosts {
        let counted = host.stats();
        if stats {
            eprint!("{counted}");
        }
        copied += counted.ledger.ours();
    }
    copied
}

/// Pieces for a stream on which calls do not wait.
pub(crate) struct Feed<I> {
    pieces: I,
    pending: SendBuf,
}

impl<I: Iterator<Item = Frag>> Feed<I> {
    pub(crate) fn new(pieces: I) -> Self {
        Self { pieces, pending: SendBuf::default() }
    }

    /// Sends what there is room for; `None`: there is none.
    pub(crate) fn send(&mut self, to: &TcpStream) -> Result<Option<usize>, Failure> {
        if self.pending.is_empty() {
            self.pending = self.pieces.next().map(SendBuf::from).unwrap_or_default();
        }
        would_block(to.send_some(&mut self.pending))
    }
}

/// A connection on which no call waits for ever.
pub(crate) fn patient(connection: io::Result<TcpStream>) -> Result<TcpStream, Failure> {
    let set = connection.and_then(|c| {
        c.set_read_timeout(Some(PATIENCE))?;
        c.set_write_timeout(Some(PATIENCE))?;
        Ok(c)
    });
    Ok(set?)
}

/// `None`: nothing to do now.
pub(crate) fn would_block(result: io::Result<usize>) -> Result<Option<usize>, Failure> {
    match result {
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e.into()),
    }
}
