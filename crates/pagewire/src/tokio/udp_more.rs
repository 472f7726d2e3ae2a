//! Datagrams for tasks: looks without taking, and settings. What it sends and receives is in `udp.rs`.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::task::{Context, Poll};

use ::tokio::io::ReadBuf;
use bytes::BufMut;
use pagewire_stack::{RecvFlags, limits};

use super::udp::UdpSocket;
use crate::udp_socket::receive;
use crate::waiters::Interest as Until;

/// Looks that leave the datagram in the queue.
impl UdpSocket {
    /// As [`recv`](Self::recv), and leaves the datagram in the queue.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.peek_from(buf).await.map(|(n, _)| n)
    }

    /// [`peek`](Self::peek) for tasks that poll.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_peek_from(cx, buf).map_ok(drop)
    }

    /// [`peek`](Self::peek), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_peek_from(buf).map(|(n, _)| n)
    }

    /// As [`recv_from`](Self::recv_from), and leaves the datagram in the queue.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket().later(Until::Read, receive(buf, RecvFlags::PEEK)).await
    }

    /// [`peek_from`](Self::peek_from) for tasks that poll.
    pub fn poll_peek_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_receive(cx, buf, RecvFlags::PEEK)
    }

    /// [`peek_from`](Self::peek_from), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.socket().try_now(Until::Read, receive(buf, RecvFlags::PEEK))
    }

    /// The sender of the next datagram.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn peek_sender(&self) -> io::Result<SocketAddr> {
        self.peek_from(&mut []).await.map(|(_, from)| from)
    }

    /// [`peek_sender`](Self::peek_sender) for tasks that poll.
    pub fn poll_peek_sender(&self, cx: &mut Context<'_>) -> Poll<io::Result<SocketAddr>> {
        self.poll_peek_from(cx, &mut ReadBuf::new(&mut []))
    }

    /// [`peek_sender`](Self::peek_sender), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_peek_sender(&self) -> io::Result<SocketAddr> {
        self.try_peek_from(&mut []).map(|(_, from)| from)
    }
}

/// Receives into the free part of a buffer.
impl UdpSocket {
    /// [`recv`](Self::recv) into the free part of a buffer.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn recv_buf(&self, buf: &mut impl BufMut) -> io::Result<usize> {
        self.recv_buf_from(buf).await.map(|(n, _)| n)
    }

    /// [`recv_from`](Self::recv_from) into the free part of a buffer.
    ///
    /// # Errors
    /// Those of [`recv`](Self::recv).
    pub async fn recv_buf_from(&self, buf: &mut impl BufMut) -> io::Result<(usize, SocketAddr)> {
        let mut room = room_of(buf);
        let (n, from) = self.recv_from(&mut room).await?;
        buf.put_slice(room.get(..n).unwrap_or_default());
        Ok((n, from))
    }

    /// [`recv_buf`](Self::recv_buf), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_recv_buf(&self, buf: &mut impl BufMut) -> io::Result<usize> {
        self.try_recv_buf_from(buf).map(|(n, _)| n)
    }

    /// [`recv_buf_from`](Self::recv_buf_from), or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock`, and those of [`recv`](Self::recv).
    pub fn try_recv_buf_from(&self, buf: &mut impl BufMut) -> io::Result<(usize, SocketAddr)> {
        let mut room = room_of(buf);
        let (n, from) = self.try_recv_from(&mut room)?;
        buf.put_slice(room.get(..n).unwrap_or_default());
        Ok((n, from))
    }
}

/// Initialised memory for a datagram: the buffer's own may be uninitialised.
fn room_of(buf: &impl BufMut) -> Vec<u8> {
    vec![0; buf.remaining_mut().min(limits::UDP_MAX_PAYLOAD_V6)]
}

/// The settings that the sync form has, too.
macro_rules! settings {
    ($($get:ident, $set:ident: $kind:ty, $what:literal;)*) => {
        /// Settings; see the methods of [`pagewire::UdpSocket`](crate::UdpSocket) with these names.
        impl UdpSocket {$(
            #[doc = concat!("See [`pagewire::UdpSocket::", stringify!($set), "`](crate::UdpSocket::", stringify!($set), ").")]
            ///
            /// # Errors
            #[doc = concat!("`NetworkDown` when the host has ended", $what, ".")]
            pub fn $set(&self, to: $kind) -> io::Result<()> {
                self.as_sync().$set(to)
            }

            #[doc = concat!("See [`", stringify!($set), "`](Self::", stringify!($set), ").")]
            ///
            /// # Errors
            /// `NetworkDown` when the host has ended.
            pub fn $get(&self) -> io::Result<$kind> {
                self.as_sync().$get()
            }
        )*}
    };
}

settings! {
    ttl, set_ttl: u32, "; `InvalidInput` for 0 and above 255";
    tos, set_tos: u32, "; `InvalidInput` above 255";
    broadcast, set_broadcast: bool, "";
    multicast_ttl_v4, set_multicast_ttl_v4: u32, "; `InvalidInput` above 255";
    multicast_loop_v4, set_multicast_loop_v4: bool, "";
    multicast_loop_v6, set_multicast_loop_v6: bool, "";
}

/// Groups.
impl UdpSocket {
    /// See [`pagewire::UdpSocket::join_multicast_v4`](crate::UdpSocket::join_multicast_v4).
    ///
    /// # Errors
    /// As there.
    pub fn join_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.as_sync().join_multicast_v4(&group, &interface)
    }

    /// See [`pagewire::UdpSocket::join_multicast_v6`](crate::UdpSocket::join_multicast_v6).
    ///
    /// # Errors
    /// As there.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.as_sync().join_multicast_v6(group, interface)
    }

    /// See [`pagewire::UdpSocket::leave_multicast_v4`](crate::UdpSocket::leave_multicast_v4).
    ///
    /// # Errors
    /// As there.
    pub fn leave_multicast_v4(&self, group: Ipv4Addr, interface: Ipv4Addr) -> io::Result<()> {
        self.as_sync().leave_multicast_v4(&group, &interface)
    }

    /// See [`pagewire::UdpSocket::leave_multicast_v6`](crate::UdpSocket::leave_multicast_v6).
    ///
    /// # Errors
    /// As there.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        self.as_sync().leave_multicast_v6(group, interface)
    }
}
