//! quinn: an endpoint over a [`UdpSocket`].
//!
//! ```no_run
//! use pagewire_simulation::fit::quinn::endpoint;
//!
//! # async fn client(config: quinn::EndpointConfig) -> std::io::Result<quinn::Endpoint> {
//! endpoint("0.0.0.0:0", config, None).await
//! # }
//! ```
//!
//! For runs that repeat, give `EndpointConfig::rng_seed` bytes of [`rng`](crate::rng::rng), and the keys
//! of the handshake from a provider that is not random: the stock ones ask the system for
//! randomness. Every datagram carries one packet, without marks of congestion.

use std::fmt;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use pagewire_stack::MtuDiscover;
use quinn::udp::{RecvMeta, Transmit};
use quinn::{
    AsyncTimer, AsyncUdpSocket, Endpoint, EndpointConfig, Runtime, ServerConfig, UdpPoller,
};
use tokio::io::ReadBuf;
use tokio::time::Sleep;

use crate::net::{ToSocketAddrs, UdpSocket};

/// quinn's runtime: tasks and timers of tokio, which run on simulated time.
#[derive(Clone, Copy, Debug, Default)]
pub struct SimRuntime;

/// An endpoint that is bound to the first address that can be had; with a server's settings it
/// takes connections.
///
/// # Errors
/// As [`UdpSocket::bind`].
pub async fn endpoint(
    at: impl ToSocketAddrs,
    config: EndpointConfig,
    server: Option<ServerConfig>,
) -> io::Result<Endpoint> {
    let socket = UdpSocket::bind(at).await?;
    // Packets that are too long for the device are not cut: probes of the path's MTU need that.
    socket.socket.with(|stack, _| {
        stack.as_udp(socket.socket.id)?.set_mtu_discover(MtuDiscover::Probe);
        Ok(())
    })?;
    Endpoint::new_with_abstract_socket(config, server, Arc::new(socket), Arc::new(SimRuntime))
}

impl Runtime for SimRuntime {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        Box::pin(Timer(Box::pin(tokio::time::sleep_until(at.into()))))
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        tokio::spawn(future);
    }

    fn wrap_udp_socket(&self, _: std::net::UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        Err(crate::net::no_descriptor())
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// A timer of its own type: quinn implements its trait for `Sleep` in a feature only.
#[derive(Debug)]
struct Timer(Pin<Box<Sleep>>);

impl AsyncTimer for Timer {
    fn reset(mut self: Pin<&mut Self>, at: Instant) {
        self.0.as_mut().reset(at.into());
    }

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Future::poll(self.0.as_mut(), cx)
    }
}

impl AsyncUdpSocket for UdpSocket {
    fn create_io_poller(self: Arc<Self>) -> Pin<Box<dyn UdpPoller>> {
        Box::pin(Poller(self))
    }

    fn try_send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        match self.try_send_to(transmit.contents, transmit.destination) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
            // As quinn's own socket: a datagram that cannot be sent is a lost one.
            _ => Ok(()),
        }
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        meta: &mut [RecvMeta],
    ) -> Poll<io::Result<usize>> {
        let mut received = 0;
        for (buf, meta) in bufs.iter_mut().zip(meta) {
            let mut buf = ReadBuf::new(buf);
            let from = match self.poll_recv_from(cx, &mut buf) {
                Poll::Ready(from) => from?,
                // Those that were received count; the next call waits.
                Poll::Pending if received > 0 => break,
                Poll::Pending => return Poll::Pending,
            };
            let len = buf.filled().len();
            *meta = RecvMeta { addr: from, len, stride: len, ecn: None, dst_ip: None };
            received += 1;
        }
        Poll::Ready(Ok(received))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Self::local_addr(self)
    }

    fn may_fragment(&self) -> bool {
        false
    }
}

/// Waits until a datagram can be sent.
struct Poller(Arc<UdpSocket>);

impl UdpPoller for Poller {
    fn poll_writable(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.0.poll_send_ready(cx))?;
        Poll::Ready(Ok(()))
    }
}

impl fmt::Debug for Poller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Poller").field(&self.0).finish()
    }
}
