//! Sockets of both engines as tokio programs use them ([`Network`], [`Listener`]), and the counts of the engines.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use pagewire::Host;
use rustix::net::listen;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::failure::{Because, Failure};
use crate::kit::kernel::{PATIENCE, SOCKET, set_cubic};

/// Connections that may wait for `accept`: all of a crowd at once.
pub(super) const BACKLOG: i32 = 16_384;

/// Where clients connect from.
pub(super) trait Network: Clone + 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    /// A connection that does not delay bytes (`TCP_NODELAY`).
    async fn connect(&self, to: SocketAddr) -> io::Result<Self::Stream>;

    /// The counts of the stack so far.
    fn counts(&self) -> StackCounts;
}

/// Where clients connect to.
pub(super) trait Listener: 'static {
    type Stream: AsyncRead + AsyncWrite + Unpin + 'static;

    async fn accept(&self) -> io::Result<Self::Stream>;
}

/// [`Network::connect`], which the peer answers soon.
pub(super) async fn connect<N: Network>(network: &N, to: SocketAddr) -> io::Result<N::Stream> {
    within(PATIENCE, network.connect(to)).await
}

/// An operation that takes no longer than this.
pub(super) async fn within<T>(
    limit: Duration,
    operation: impl Future<Output = io::Result<T>>,
) -> io::Result<T> {
    let done = tokio::time::timeout(limit, operation).await;
    done.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// The kernel's sockets in this thread's network namespace.
#[derive(Clone, Copy)]
pub(super) struct Kernel;

impl Network for Kernel {
    type Stream = TcpStream;

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        set_cubic(&socket);
        let stream = socket.connect(to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn counts(&self) -> StackCounts {
        let snmp = table("/proc/thread-self/net/snmp");
        let more = table("/proc/thread-self/net/netstat");
        let value = |name: &str| snmp.get(name).or_else(|| more.get(name)).copied().unwrap_or(0);
        let drops = MEMORY_DROPS.map(|name| (name.to_owned(), value(name)));
        StackCounts {
            retransmits: value("TcpRetransSegs"),
            timeouts: value(TIMEOUTS),
            drops: drops.into(),
        }
    }
}

/// The kernel's count of retransmission timeouts.
const TIMEOUTS: &str = "TcpExtTCPTimeouts";

/// The kernel's counts of segments that it dropped, or took out of queues, for want of memory.
const MEMORY_DROPS: [&str; 5] = [
    "TcpExtRcvPruned",
    "TcpExtOfoPruned",
    "TcpExtTCPOFODrop",
    "TcpExtTCPBacklogDrop",
    "TcpExtTCPRcvQDrop",
];

/// A table of counters: lines of names, each with a line of values under it.
fn table(path: &str) -> BTreeMap<String, u64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let mut all = BTreeMap::new();
    for pair in lines.chunks_exact(2) {
        let [names, values] = pair else { continue };
        let Some((group, names)) = names.split_once(": ") else { continue };
        let values = values.split(' ').skip(1);
        for (name, value) in names.split(' ').zip(values) {
            // Some are limits, and may be -1.
            all.insert(format!("{group}{name}"), value.parse().unwrap_or(0));
        }
    }
    all
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<TcpStream> {
        let (stream, _) = TcpListener::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// A listener of the kernel for this thread's runtime, with room for a crowd.
pub(super) fn kernel_listener(listener: &std::net::TcpListener) -> Result<TcpListener, Failure> {
    listen(listener, BACKLOG).because(SOCKET)?;
    let listener = listener.try_clone().because(SOCKET)?;
    listener.set_nonblocking(true).because(SOCKET)?;
    TcpListener::from_std(listener).because(SOCKET)
}

impl Network for Host {
    type Stream = pagewire::net::TcpStream;

    async fn connect(&self, to: SocketAddr) -> io::Result<Self::Stream> {
        let stream = Self::Stream::connect_on(self, to).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn counts(&self) -> StackCounts {
        let stats = self.stats();
        let of_stack = stats.counters.iter_drops().map(|(reason, n)| (reason.name(), n));
        let of_tcp = stats.counters.iter_tcp_drops().map(|(reason, n)| (reason.name(), n));
        let of_memory = |(name, _): &(&str, u64)| name.contains("memory") || *name == "no_pages";
        let drops = of_stack.chain(of_tcp).filter(of_memory);
        let device = [("rx_dropped_memory", stats.device.rx_dropped_memory)];
        let drops = drops.chain(device).map(|(name, n)| (name.to_owned(), n)).collect();
        let (retransmits, timeouts) = (stats.counters.tcp_retransmits, stats.counters.tcp_timeouts);
        StackCounts { retransmits, timeouts, drops }
    }
}

impl Listener for pagewire::net::TcpListener {
    type Stream = pagewire::net::TcpStream;

    async fn accept(&self) -> io::Result<Self::Stream> {
        let (stream, _) = Self::accept(self).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

/// Counts of a stack, or of a namespace of the kernel.
#[derive(Clone, Debug, Default)]
pub(super) struct StackCounts {
    /// Segments.
    pub(super) retransmits: u64,
    /// Retransmission timeouts.
    pub(super) timeouts: u64,
    /// Drops for want of memory, by their names.
    pub(super) drops: BTreeMap<String, u64>,
}

impl StackCounts {
    pub(super) fn all_drops(&self) -> u64 {
        self.drops.values().sum()
    }

    pub(super) fn since(mut self, before: &Self) -> Self {
        self.retransmits = self.retransmits.saturating_sub(before.retransmits);
        self.timeouts = self.timeouts.saturating_sub(before.timeouts);
        for (name, n) in &mut self.drops {
            *n = n.saturating_sub(before.drops.get(name).copied().unwrap_or(0));
        }
        self.drops.retain(|_, n| *n > 0);
        self
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.retransmits += other.retransmits;
        self.timeouts += other.timeouts;
        for (name, n) in &other.drops {
            *self.drops.entry(name.clone()).or_default() += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counters_have_the_names_that_are_looked_up() {
        let all = [table("/proc/self/net/snmp"), table("/proc/self/net/netstat")];
        for name in MEMORY_DROPS.iter().chain(&["TcpRetransSegs", TIMEOUTS]) {
            assert!(all.iter().any(|table| table.contains_key(*name)), "{name}");
        }
    }

    #[test]
    fn counts_of_a_round_have_only_the_drops_of_that_round() {
        let counts = |retransmits, drops: &[(&str, u64)]| StackCounts {
            retransmits,
            timeouts: 2 * retransmits,
            drops: drops.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        };
        let before = counts(3, &[("a", 5), ("b", 1)]);
        let mut round = counts(4, &[("a", 5), ("b", 3)]).since(&before);
        let losses = |of: &StackCounts| (of.retransmits, of.timeouts);
        assert_eq!((losses(&round), &round.drops), ((1, 2), &counts(0, &[("b", 2)]).drops));
        round.add(&counts(1, &[("c", 1)]));
        let both = counts(0, &[("b", 2), ("c", 1)]);
        assert_eq!((losses(&round), &round.drops), ((2, 4), &both.drops));
    }
}
