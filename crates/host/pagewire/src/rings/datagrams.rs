//! Datagram sockets on rings, for tasks.

use std::io;
use std::net::SocketAddr;

use pagewire_ring::{Completion, Op, Submission};

use super::buf::RingBuf;
use super::futures::{AsyncRings, result};
use super::router::OperationResult;
use pagewire_sockets::{ToSocketAddrs, resolve};

/// A datagram socket on rings. A drop closes it.
///
/// ```
/// use pagewire::device::{Queues, Rule};
/// use pagewire::memory::Region;
/// use pagewire::rings::{EngineConfig, QueueConfig};
/// use pagewire::{Host, Pair};
///
/// let (left, right) = Pair::new()?;
/// let server = Host::builder().device(Queues::new(left, 2)).address("10.0.0.1/24").start()?;
/// let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
///
/// let memory = |len| Region::memfd("example", len).map(QueueConfig::new);
/// let rings = server.rings(EngineConfig::new(memory(1 << 20)?))?.into_async();
/// // Datagrams to this port land in this memory.
/// let group = rings.register(1, memory(1 << 20)?, &[Rule::udp_port(9000)])?;
///
/// let datagram = tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
///     let socket = rings.bind("10.0.0.1:9000").await?;
///     client.udp("10.0.0.2:5000")?.send_to(&[7; 1000], "10.0.0.1:9000")?;
///     socket.receive(group, usize::MAX).await
/// })?;
/// assert_eq!((datagram.from, datagram.len), ("10.0.0.2:5000".parse()?, 1000));
/// assert!(datagram.buffers.iter().all(|buffer| !buffer.is_copied()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RingSocket {
    rings: AsyncRings,
    handle: u64,
    local: SocketAddr,
}

/// A datagram.
#[derive(Debug)]
pub struct Datagram {
    /// The sender.
    pub from: SocketAddr,
    /// The received bytes, in order; empty for an empty datagram.
    pub buffers: Vec<RingBuf>,
    /// Bytes in all of them.
    pub len: usize,
    /// The datagram's length: more than `len` if it was truncated.
    pub full_len: usize,
    /// Datagrams of the socket that its queue had no room for so far, modulo 2^32.
    pub dropped: u32,
}

impl Datagram {
    /// Whether the datagram was truncated: the rest is lost.
    pub fn is_truncated(&self) -> bool {
        self.len < self.full_len
    }
}

impl AsyncRings {
    /// A datagram socket on the first usable address; port 0: a free one.
    ///
    /// # Errors
    /// The error of the last address tried: `AddrInUse`, `AddrNotAvailable`, `InvalidInput` without
    /// an address.
    pub async fn bind(&self, on: impl ToSocketAddrs) -> io::Result<RingSocket> {
        let (found, mut last) = (resolve(&self.0.host, on).await?, None);
        for on in found {
            let (done, _) = self.run(Submission::bind(on, 0)).await;
            match result(&done) {
                Ok(_) => return Ok(RingSocket::new(self, &done, on)),
                Err(error) => last = Some(error),
            }
        }
        Err(last.unwrap_or_else(|| io::ErrorKind::InvalidInput.into()))
    }
}

impl RingSocket {
    fn new(rings: &AsyncRings, done: &Completion, on: SocketAddr) -> Self {
        rings.0.open(done.handle);
        let local = done.address.socket().unwrap_or(on);
        Self { rings: rings.clone(), handle: done.handle, local }
    }

    /// The next datagram, truncated to `limit` bytes; by reference if it lies in the group `group`.
    ///
    /// The future may be dropped at any time (a timeout, a `select!`): the next receive returns the datagram
    /// that it had received, whatever its limit.
    ///
    /// # Errors
    /// `ResourceBusy` while another task receives; once, the error of an earlier datagram to the socket's
    /// peer: `ConnectionRefused`.
    pub async fn receive(&self, group: u16, limit: usize) -> io::Result<Datagram> {
        let left = {
            let mut state = self.rings.0.state();
            state.take_completions();
            state.next_undelivered_datagram(self.handle, None)
        };
        if let Some(datagram) = left {
            return Ok(self.datagram(datagram));
        }
        let submission = Submission::receive(self.handle, group, limit.max(1) as u64, 0);
        let done = self.rings.run(submission).await;
        let failed = result(&done.0).err();
        let newest = Some(done).filter(|(done, _)| done.has(Completion::DATAGRAM));
        // A datagram of an abandoned receive is older.
        let oldest = self.rings.0.state().next_undelivered_datagram(self.handle, newest);
        match (oldest, failed) {
            (Some(datagram), _) => Ok(self.datagram(datagram)),
            (None, Some(error)) => Err(error),
            (None, None) => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn datagram(&self, (done, entries): OperationResult) -> Datagram {
        let buffers = self.rings.buffers(self.rings.0.state(), entries);
        Datagram {
            from: done.address.socket().unwrap_or(self.local),
            len: buffers.iter().map(RingBuf::len).sum(),
            buffers,
            full_len: done.length as usize,
            dropped: done.dropped,
        }
    }

    /// Sends `len` bytes from `offset` of a send group as a datagram to `to`; returns how many, once the
    /// memory may be used again.
    ///
    /// # Errors
    /// As [`UdpSocket::send_to`](crate::UdpSocket::send_to).
    pub async fn send_to(
        &self,
        group: u16,
        offset: u32,
        len: u32,
        to: SocketAddr,
    ) -> io::Result<usize> {
        let submission = Submission::send(self.handle, group, offset, len, 0).to(to);
        result(&self.rings.run(submission).await.0)
    }

    /// Sends a datagram to the socket's peer; see [`send_to`](Self::send_to).
    ///
    /// # Errors
    /// As [`send_to`](Self::send_to), and errno 89 (`EDESTADDRREQ`) without a peer.
    pub async fn send(&self, group: u16, offset: u32, len: u32) -> io::Result<usize> {
        result(&self.rings.run(Submission::send(self.handle, group, offset, len, 0)).await.0)
    }

    /// Makes `to` the socket's peer: only its datagrams are received, and its errors are reported.
    ///
    /// # Errors
    /// `NetworkUnreachable`, `InvalidInput` for port 0.
    pub async fn connect(&self, to: SocketAddr) -> io::Result<()> {
        let submission = Submission::new(Op::Connect, self.handle, 0).to(to);
        result(&self.rings.run(submission).await.0).map(|_| ())
    }

    /// Removes the socket's peer.
    ///
    /// # Errors
    /// None that are known.
    pub async fn disconnect(&self) -> io::Result<()> {
        let submission = Submission::new(Op::Connect, self.handle, 0);
        result(&self.rings.run(submission).await.0).map(|_| ())
    }

    /// The socket's address.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for RingSocket {
    fn drop(&mut self) {
        self.rings.0.close(self.handle);
    }
}

impl std::fmt::Debug for RingSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RingSocket({})", self.local)
    }
}
