//! quinn on the sockets of Pagewire: endpoints over a [`UdpSocket`], which sends many datagrams by one call
//! (`UDP_SEGMENT`), receives them joined (`UDP_GRO`), and carries congestion marks both ways.
//!
//! ```no_run
//! use pagewire::Host;
//! use pagewire_quinn::endpoint_on;
//!
//! # async fn client(host: &Host) -> std::io::Result<quinn::Endpoint> {
//! endpoint_on(host, "0.0.0.0:0", quinn::EndpointConfig::default(), None).await
//! # }
//! ```
//!
//! QUIC encrypts what it sends, into buffers of its own: each datagram is copied once each way, and
//! counted.
//!
//! For runs of a simulation that repeat, give `EndpointConfig::rng_seed` bytes of the simulation's random
//! numbers, and the keys of the handshake from a provider that is not random: the stock ones ask the system
//! for randomness.

#![forbid(unsafe_code)]

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pagewire_sockets::net::{Received, ToSocketAddrs, UdpSocket, UdpTarget};
use pagewire_sockets::{MAX_SEGMENTS, MAX_SEND, MtuDiscover, Runtime};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, UdpPoller};

/// Datagrams that quinn is given as one: as of Linux's socket, and a buffer of quinn's holds as many.
const MOST_JOINED: usize = 64;

/// An endpoint on the stack of the code that runs; see [`endpoint_on`].
///
/// # Errors
/// As [`UdpSocket::bind`].
pub async fn endpoint<R: Runtime>(
    at: impl ToSocketAddrs,
    config: EndpointConfig,
    server: Option<ServerConfig>,
) -> io::Result<Endpoint> {
    endpoint_on(&R::current()?, at, config, server).await
}

/// An endpoint that is bound to the first address that can be had; with a server's settings it
/// takes connections. Its tasks and timers are those of the tokio runtime that this is called in.
///
/// # Errors
/// As [`UdpSocket::bind`].
pub async fn endpoint_on<R: Runtime>(
    runtime: &R,
    at: impl ToSocketAddrs,
    config: EndpointConfig,
    server: Option<ServerConfig>,
) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind_on(runtime, at).await?;
    // RFC 9000 section 14: "UDP datagrams MUST NOT be fragmented at the IP layer."
    socket.set_mtu_discover(MtuDiscover::Probe)?;
    socket.set_gro(true)?;
    let (socket, tokio) = (Arc::new(Socket(socket)), Arc::new(TokioRuntime));
    Endpoint::new_with_abstract_socket(config, server, socket, tokio)
}

/// A datagram socket with quinn's trait. [`endpoint_on`] makes one, and sets what QUIC needs.
#[derive(Debug)]
pub struct Socket<R: Runtime>(pub UdpSocket<R>);

impl<R: Runtime> AsyncUdpSocket for Socket<R> {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller(self.0.share()))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        let segment = transmit.segment_size.unwrap_or(0);
        let to = UdpTarget {
            remote: Some(transmit.destination),
            segment: (segment > 0).then(|| u16::try_from(segment).unwrap_or(u16::MAX)),
            source: transmit.src_ip.map(|ip| SocketAddr::new(ip, 0)),
            ecn: transmit.ecn.map(|ecn| ecn as u8),
            ..UdpTarget::default()
        };
        // A send has 64 KiB at most, with segments too; quinn counts those, whatever their length.
        let most = match MAX_SEND.checked_div(segment) {
            None => transmit.contents.len(),
            Some(segments) => segments.max(1) * segment,
        };
        for (at, part) in transmit.contents.chunks(most.max(1)).enumerate() {
            match self.0.try_send_with(part, to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && at == 0 => {
                    return Err(error);
                }
                // As quinn's own socket: a datagram that cannot be sent is a lost one.
                _ => {}
            }
        }
        Ok(())
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut meta = meta.iter_mut();
        self.0.poll_recv_many(cx, bufs, |received| {
            let Received { from, to, len, segment, ecn, .. } = received;
            let stride = segment.map_or(len, usize::from);
            let (ecn, dst_ip) = (EcnCodepoint::from_bits(ecn), Some(to));
            if let Some(meta) = meta.next() {
                *meta = RecvMeta { addr: from, len, stride, ecn, dst_ip };
            }
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    fn max_transmit_segments(&self) -> usize {
        MAX_SEGMENTS
    }

    fn max_receive_segments(&self) -> usize {
        MOST_JOINED
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Waits until a datagram can be sent. Each connection has one, with a waker of its own.
struct Poller<R: Runtime>(UdpSocket<R>);

impl<R: Runtime> UdpPoller for Poller<R> {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_send_ready(cx)
    }
}

impl<R: Runtime> fmt::Debug for Poller<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Poller").field(&self.0).finish()
    }
}
