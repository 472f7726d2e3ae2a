//! Hosts of several cores ([`Cores`]): the same addresses on several stacks.

mod builder;
mod each;
mod links;
mod listener;
mod stats;
mod udp;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use pagewire_sockets::{BindOptions, ConnectOptions, ToSocketAddrs, first, resolve_blocking};
use pagewire_stack::Flow;
use pagewire_stack::limits::MAX_SHARDS;

use crate::counts::ShutdownReport;
use crate::host::Host;
use crate::{TcpListener, TcpStream, UdpSocket};
use each::OfEach;

pub use builder::CoresBuilder;
pub use listener::CoresListener;
pub use stats::CoresStats;
pub use udp::CoresUdp;

/// How often a bind of a free port tries another one that every shard has free.
const PORT_TRIES: usize = 16;

/// A host of several cores, with the same addresses on all of them.
///
/// Each core has a [`Host`] of its own, a **shard**: a stack, a lock, a thread and a queue of the device. With a queue
/// each, shards share nothing on the way of a packet. A packet that comes in at another shard than that of its socket is passed on, its
/// payload by reference; the kernel's tap and its like soon learn which queue a connection belongs to.
///
/// A socket belongs to its shard, and is used from any thread, as that of any [`Host`]. A program makes sockets
/// that spread over the shards with this type, or sockets of one shard with [`shards`](Self::shards): a port that one
/// shard binds alone belongs to that shard.
///
/// For most speed, each core has a thread, or a runtime of one thread
/// ([`start_in_runtimes`](CoresBuilder::start_in_runtimes)), with its shard's own listener
/// ([`CoresListener::shards`]), so that a connection's data stays on one core.
///
/// ```
/// use pagewire::{Host, Pair};
///
/// let (left, right) = Pair::new()?;
/// let server = Host::builder().device(left).address("10.0.0.1/24").cores(2).start()?;
/// let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
///
/// let listener = server.listen("10.0.0.1:80")?;
/// let near = client.connect("10.0.0.1:80")?; // one of the two shards has it
/// let (far, peer) = listener.accept()?;
/// assert_eq!((near.local_addr()?, near.peer_addr()?), (peer, far.local_addr()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The drop of the last clone, of all handles of shards and of all sockets ends the host, all shards together, and so
/// does [`shutdown`](Self::shutdown). A shard that fails ends the others, too.
#[derive(Clone, Debug)]
pub struct Cores(OfEach<Host>);

impl Cores {
    /// The most cores of a host.
    pub const MAX: usize = MAX_SHARDS;

    fn new(shards: Vec<Host>) -> Self {
        Self(OfEach::new(shards))
    }

    /// The shards. At least one.
    pub fn shards(&self) -> &[Host] {
        self.0.all()
    }

    /// Listens on all shards: for connections at `at`, of which a keyed hash of both ends gives each to a shard. An
    /// unspecified address (`0.0.0.0`, `[::]`) means all of this host's, port 0 a free one.
    ///
    /// # Errors
    /// Those of [`Host::listen`]; `AddrInUse`, too, if one shard alone uses the port: then no shard listens.
    pub fn listen(&self, at: impl ToSocketAddrs) -> io::Result<CoresListener> {
        self.listen_with(at, &BindOptions::new())
    }

    /// [`listen`](Self::listen) with options. Each shard has a backlog of its own.
    pub fn listen_with(
        &self,
        at: impl ToSocketAddrs,
        options: &BindOptions,
    ) -> io::Result<CoresListener> {
        let options = options.clone().every_shard(true);
        let bind = |shard: &Host, at: SocketAddr| {
            let listener = TcpListener::bind_on(shard, at, &options)?;
            Ok((listener.local_addr()?.port(), listener))
        };
        self.bind_all(at, bind).map(CoresListener::new)
    }

    /// Binds a datagram socket on all shards. A keyed hash gives all datagrams of one peer to one shard.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn udp(&self, at: impl ToSocketAddrs) -> io::Result<CoresUdp> {
        self.udp_with(at, &BindOptions::new())
    }

    /// [`udp`](Self::udp) with options.
    pub fn udp_with(&self, at: impl ToSocketAddrs, options: &BindOptions) -> io::Result<CoresUdp> {
        let options = options.clone().every_shard(true);
        let bind = |shard: &Host, at: SocketAddr| {
            let socket = UdpSocket::bind_on(shard, at, &options)?;
            Ok((socket.local_addr()?.port(), socket))
        };
        self.bind_all(at, bind).map(CoresUdp::new)
    }

    /// Opens a connection and waits until it is established: on the shard that this thread drives, or on the next in
    /// turn.
    ///
    /// # Errors
    /// Those of [`Host::connect`].
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.connect_with(to, &ConnectOptions::new())
    }

    /// [`connect`](Self::connect), waiting at most `limit`.
    ///
    /// # Errors
    /// Those of [`Host::connect_timeout`].
    pub fn connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        limit: Duration,
    ) -> io::Result<TcpStream> {
        self.connect_with(to, &ConnectOptions::new().timeout(limit))
    }

    /// [`connect`](Self::connect) with options. A connection from a given local port is of the shard that its packets
    /// belong to.
    ///
    /// # Errors
    /// Those of [`Host::connect_with`].
    pub fn connect_with(
        &self,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> io::Result<TcpStream> {
        // A thread that drives a shard is not to wait for another.
        let own = self.shards().iter().position(|shard| shard.shared().is_driven_by_waits());
        let shards: Vec<&Host> = match own {
            Some(own) => self.0.beginning_at(own).collect(),
            None => self.0.in_turn().collect(),
        };
        let mut unavailable = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for shard in shards {
            match shard.connect_with(&to, options) {
                // Its packets belong to another shard, or this shard has no port left.
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    unavailable = error;
                }
                done => return done,
            }
        }
        Err(unavailable)
    }

    /// The number of the shard, among [`shards`](Self::shards), that TCP connections between these ends belong to, as
    /// this host's end and the peer's: for a network card that can be told the queue of each flow, and for peers that
    /// can choose their port. Frames that come in at that shard's queue are not passed on.
    ///
    /// A later bind of the local port by one shard alone changes the answer.
    pub fn home(&self, local: SocketAddr, peer: SocketAddr) -> usize {
        let flow = Flow::tcp(peer, local, 0);
        self.shards().first().map_or(0, |shard| shard.shared().lock().stack.home_of(&flow))
    }

    /// The counts of all shards.
    pub fn stats(&self) -> CoresStats {
        CoresStats::new(self.shards().iter().map(Host::stats).collect())
    }

    /// Takes a turn of each shard; returns whether anything came in. For hosts started with
    /// [`HostBuilder::manual`](crate::HostBuilder::manual).
    pub fn turn(&self) -> bool {
        // No short circuit: every shard has its turn.
        self.shards().iter().fold(false, |worked, shard| shard.turn() | worked)
    }

    /// Waits for frames, a timer or the end of `limit`, and takes turns of all shards; returns whether anything came in.
    /// For hosts started with [`HostBuilder::manual`](crate::HostBuilder::manual).
    pub fn wait_turn(&self, limit: Duration) -> bool {
        self.shards().first().is_some_and(|shard| shard.wait_turn(limit))
    }

    /// [`Host::shutdown`] of all shards, whose reports are summed.
    pub fn shutdown(&self, limit: Duration) -> ShutdownReport {
        self.shards().first().map(|shard| shard.shutdown(limit)).unwrap_or_default()
    }

    /// Binds the first address that every shard has free.
    fn bind_all<T>(
        &self,
        at: impl ToSocketAddrs,
        bind: impl Fn(&Host, SocketAddr) -> io::Result<(u16, T)>,
    ) -> io::Result<Vec<T>> {
        let found = resolve_blocking(self.0.first()?, at)?;
        first(found, |at| {
            let mut tries = if at.port() == 0 { PORT_TRIES } else { 1 };
            loop {
                tries -= 1;
                match self.bind_at(at, &bind) {
                    // Another shard uses the port that the first one drew.
                    Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
                    done => return done,
                }
            }
        })
    }

    /// Binds an address on every shard, or on none.
    fn bind_at<T>(
        &self,
        mut at: SocketAddr,
        bind: impl Fn(&Host, SocketAddr) -> io::Result<(u16, T)>,
    ) -> io::Result<Vec<T>> {
        let bound = self.shards().iter().map(|shard| {
            let (port, socket) = bind(shard, at)?;
            at.set_port(port);
            Ok(socket)
        });
        bound.collect()
    }
}
