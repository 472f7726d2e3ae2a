//! quinn: endpoints over a [`UdpSocket`], which sends many datagrams by one call (`UDP_SEGMENT`),
//! receives them joined (`UDP_GRO`), and carries congestion marks both ways.
//!
//! ```no_run
//! use pagewire::{Host, fit::quinn::endpoint};
//!
//! # async fn client(host: &Host) -> std::io::Result<quinn::Endpoint> {
//! endpoint(host, "0.0.0.0:0", quinn::EndpointConfig::default(), None).await
//! # }
//! ```
//!
//! QUIC encrypts what it sends, into buffers of its own: each datagram is copied once each way, and
//! counted.

use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use pagewire_mem::CopyReason;
use pagewire_stack::{Error, Message, MtuDiscover, RecvFlags, Stack, Udp, UdpTarget, limits};
use quinn::udp::{EcnCodepoint, RecvMeta, Transmit};
use quinn::{AsyncUdpSocket, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, UdpPoller};

use crate::Host;
use crate::tokio::wait::Seat;
use crate::tokio::{ToSocketAddrs, UdpSocket};
use crate::waiters::Interest;

/// Datagrams that quinn is given as one: as of Linux's socket, and a buffer of quinn's holds as many.
const MOST_JOINED: usize = 64;

/// Bytes that one send takes, over either version of IP.
const LONGEST_SEND: usize = limits::UDP_MAX_PAYLOAD_V4;

/// An endpoint that is bound to the first address that can be had; with a server's settings it
/// takes connections. Its tasks and timers are those of the tokio runtime that this is called in.
///
/// # Errors
/// As [`UdpSocket::bind`].
pub async fn endpoint(
    host: &Host,
    at: impl ToSocketAddrs,
    config: EndpointConfig,
    server: Option<ServerConfig>,
) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(host, at).await?;
    // RFC 9000 section 14: "UDP datagrams MUST NOT be fragmented at the IP layer."
    socket.as_sync().set_mtu_discover(MtuDiscover::Probe)?;
    socket.as_sync().set_joining(true)?;
    let (socket, runtime) = (Arc::new(socket), Arc::new(TokioRuntime));
    Endpoint::new_with_abstract_socket(config, server, socket, runtime)
}

impl AsyncUdpSocket for UdpSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller(self, Seat::default()))
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
        let most = match LONGEST_SEND.checked_div(segment) {
            None => transmit.contents.len(),
            Some(segments) => segments.max(1) * segment,
        };
        for (at, part) in transmit.contents.chunks(most.max(1)).enumerate() {
            let send = |mut udp: Udp<'_>, now| udp.send(now, part, to);
            match self.as_sync().0.try_now(Interest::Write, send) {
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
        let (host, id) = (&self.as_sync().0.host, self.as_sync().0.id);
        self.receives().poll_on((host, id.into()), Interest::Read, cx, |stack, _| {
            let mut received = 0;
            for (buf, meta) in bufs.iter_mut().zip(meta.iter_mut()) {
                match receive(stack, id, buf) {
                    Ok(one) => *meta = one,
                    // Those that were received count.
                    Err(_) if received > 0 => break,
                    Err(error) => return Err(error),
                }
                received += 1;
            }
            Ok(received)
        })
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }

    fn max_transmit_segments(&self) -> usize {
        limits::UDP_MAX_SEGMENTS
    }

    fn max_receive_segments(&self) -> usize {
        MOST_JOINED
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Takes one datagram, or several of one size, into quinn's buffer.
fn receive(
    stack: &mut Stack,
    id: pagewire_stack::UdpId,
    buf: &mut [u8],
) -> Result<RecvMeta, Error> {
    let message = stack.udp(id)?.recv(Message(buf.len()), RecvFlags::empty())?;
    let mut len = 0;
    for frag in &message.payload {
        let room = buf.get_mut(len..).unwrap_or_default();
        len += frag.copy_to(0, room, stack.ledger_mut(), CopyReason::AppRead);
    }
    Ok(RecvMeta {
        addr: message.from,
        len,
        stride: message.segment.map_or(len, usize::from),
        ecn: EcnCodepoint::from_bits(message.ecn),
        dst_ip: Some(message.to.ip()),
    })
}

/// Waits until a datagram can be sent: each connection has one, and a seat of its own.
struct Poller(Arc<UdpSocket>, Seat);

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.as_sync().0.poll_ready(&self.1, ::tokio::io::Interest::WRITABLE, cx)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        let socket = &self.0.as_sync().0;
        self.1.leave(&socket.host, socket.id.into());
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Poller").field(&self.0).finish()
    }
}
