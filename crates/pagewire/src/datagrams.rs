//! Datagram sockets: messages, and options that `std::net` does not have. Read `udp_socket.rs` first.

use std::io;
use std::net::{IpAddr, SocketAddr};

use pagewire_mem::Instant;
use pagewire_stack::{Error, LinkId, Message, RecvFlags, Udp, UdpMessage, UdpTarget, limits};

use crate::buf::{Chunks, SendBuf};
use crate::udp_socket::UdpSocket;
use crate::waiters::Interest;

/// A datagram, or several, with the addresses of their packets.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The payload, by reference.
    pub payload: Chunks,
    /// The sender.
    pub from: SocketAddr,
    /// The destination address: one of this host, of a group or of all hosts. Answers are sent
    /// [from](UdpSocket::send_from) it, if it is this host's.
    pub to: IpAddr,
    /// The link by which it arrived; the first link for datagrams that the host sent to itself.
    pub link: LinkId,
    /// Bytes of each of several datagrams but the last, see [`UdpSocket::set_joining`].
    pub segment: Option<u16>,
}

impl From<UdpMessage> for Datagram {
    fn from(message: UdpMessage) -> Self {
        let UdpMessage { payload, from, to, link, segment, .. } = message;
        let payload = Chunks::new(payload.into_vec(), pagewire_mem::Held::default());
        Self { payload, from, to: to.ip(), link, segment }
    }
}

impl UdpSocket {
    /// Whether datagrams may be sent to all hosts of a network (`SO_BROADCAST`); off by default: such a
    /// send fails with `PermissionDenied`.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_broadcast(on))
    }

    /// See [`set_broadcast`](Self::set_broadcast).
    pub fn broadcast(&self) -> io::Result<bool> {
        self.0.ask(|udp| udp.broadcast())
    }

    /// The size of the receive queue in bytes, overhead included; what does not fit is dropped and
    /// counted. At most [`RECEIVE_BYTES`](Self::RECEIVE_BYTES), the default. There is no send buffer:
    /// datagrams go to the device's queue.
    pub fn set_recv_buffer_size(&self, bytes: usize) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_receive_buffer(bytes))
    }

    /// See [`set_recv_buffer_size`](Self::set_recv_buffer_size).
    pub fn recv_buffer_size(&self) -> io::Result<usize> {
        self.0.ask(|udp| udp.receive_buffer())
    }

    /// Bytes of the largest receive queue.
    pub const RECEIVE_BYTES: usize = limits::UDP_RECEIVE_BYTES;

    /// The time to live of its datagrams to one host, or their hop limit: 1 to 255, 64 by default.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        self.0.set_ttl(ttl)
    }

    /// See [`set_ttl`](Self::set_ttl).
    pub fn ttl(&self) -> io::Result<u32> {
        self.0.ttl()
    }

    /// The type of service of its datagrams, or their traffic class.
    pub fn set_tos(&self, tos: u32) -> io::Result<()> {
        self.0.set_tos(tos)
    }

    /// See [`set_tos`](Self::set_tos).
    pub fn tos(&self) -> io::Result<u32> {
        self.0.tos()
    }

    /// Whether [`recv_message`](Self::recv_message) hands out several datagrams of one sender and one
    /// length as one (`UDP_GRO`); off by default.
    pub fn set_joining(&self, on: bool) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_join(on))
    }

    /// Receives a datagram by reference, with the addresses of its packet (`IP_PKTINFO`). If the socket
    /// [joins](Self::set_joining) datagrams, the following ones too, if they have the same sender,
    /// destination and length; the last may be shorter.
    pub fn recv_message(&self) -> io::Result<Datagram> {
        self.0.wait(Interest::Read, receive_message)
    }

    /// Sends a datagram by reference from `source`, an address of this host, to `to` or the
    /// connected address (`IP_PKTINFO`). Returns its length.
    ///
    /// # Errors
    /// `InvalidInput` for an address of another host, and as [`send_to`](Self::send_to).
    pub fn send_from(
        &self,
        source: IpAddr,
        data: impl Into<SendBuf>,
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        let data = data.into();
        let source = Some(SocketAddr::new(source, 0));
        let target = UdpTarget { remote: to, source, ..UdpTarget::default() };
        self.0.wait(Interest::Write, |mut udp, now| udp.send(now, data.frags.clone(), target))
    }
}

/// The verb of all receives of messages.
pub(crate) fn receive_message(mut udp: Udp<'_>, _: Instant) -> Result<Datagram, Error> {
    udp.recv(Message(limits::UDP_MAX_PAYLOAD_V4), RecvFlags::empty()).map(Datagram::from)
}
