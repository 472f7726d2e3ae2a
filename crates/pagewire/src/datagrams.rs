//! Byte path, steps S1 and R7 for datagrams: what a [`UdpSocket`] can be told and can tell beyond
//! `std::net`. Read `udp.rs` first.

use std::io;
use std::net::{IpAddr, SocketAddr};

use pagewire_stack::{LinkId, RecvFlags, UdpTarget, limits};

use crate::buf::{Chunks, SendBuf};
use crate::shared::Interest;
use crate::udp::UdpSocket;

/// A datagram, or several, and what their packets said.
#[derive(Clone, Debug)]
pub struct Datagram {
    /// The payload, by reference.
    pub payload: Chunks,
    /// The sender.
    pub from: SocketAddr,
    /// The address that it was sent to: one of ours, or of a group or all hosts. Answers are sent
    /// [from](UdpSocket::send_from) it, if it is ours.
    pub to: IpAddr,
    /// The link that it came by; of what the host sent to itself, the first.
    pub link: LinkId,
    /// Payload bytes of each datagram but the last, which may be shorter, where there are several
    /// ([`UdpSocket::set_joining`]).
    pub segment: Option<u16>,
}

impl From<pagewire_stack::UdpMessage> for Datagram {
    fn from(message: pagewire_stack::UdpMessage) -> Self {
        let pagewire_stack::UdpMessage { payload, from, to, link, segment } = message;
        let payload = Chunks::new(payload.into_vec(), pagewire_mem::Held::default());
        Self { payload, from, to, link, segment }
    }
}

impl UdpSocket {
    /// Whether datagrams may be sent to all hosts of a network (`SO_BROADCAST`); off by default, and
    /// such a send an error of kind `PermissionDenied`.
    pub fn set_broadcast(&self, on: bool) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_broadcast(on))
    }

    /// Whether [`recv_message`](Self::recv_message) hands out several datagrams of one sender and one
    /// length as one (`UDP_GRO`); off by default.
    pub fn set_joining(&self, on: bool) -> io::Result<()> {
        self.0.ask(|mut udp| udp.set_join(on))
    }

    /// Receives a datagram by reference, with what its packet said (`IP_PKTINFO`). If the socket
    /// [joins](Self::set_joining) them, those that wait behind it too, if they are from the same sender
    /// to the same address and as long, the last one perhaps shorter.
    pub fn recv_message(&self) -> io::Result<Datagram> {
        let (id, patience) = (self.0.id, self.0.patience(Interest::Read));
        let message = self.0.host.wait(id, Interest::Read, patience, |stack, _| {
            stack.udp(id).and_then(|mut udp| {
                udp.recv(pagewire_stack::Message(limits::UDP_MAX_PAYLOAD_V4), RecvFlags::empty())
            })
        })?;
        Ok(message.into())
    }

    /// Sends a datagram by reference from `source`, an address of ours, in place of that which the
    /// socket is bound to or which suits (`IP_PKTINFO`). `to`: to whom; `None`: where the socket is
    /// connected. Returns its length.
    ///
    /// # Errors
    /// `InvalidInput` for an address that is not ours, and as [`send_to`](Self::send_to).
    pub fn send_from(
        &self,
        source: IpAddr,
        data: impl Into<SendBuf>,
        to: Option<SocketAddr>,
    ) -> io::Result<usize> {
        let (id, data) = (self.0.id, data.into());
        let target = UdpTarget { remote: to, source: Some(source), ..UdpTarget::default() };
        let patience = self.0.patience(Interest::Write);
        self.0.host.wait(id, Interest::Write, patience, |stack, now| {
            stack.udp(id).and_then(|mut udp| udp.send(now, data.frags.clone(), target))
        })
    }
}
