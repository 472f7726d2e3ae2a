//! Variant of step R7, for datagrams: with their packets' addresses and links, and several
//! datagrams of one size as one (Linux's `UDP_GRO`).

use std::net::SocketAddr;

use pagewire_mem::{CopyReason, FragVec};
use pagewire_tcp::RecvFlags;

use super::socket::{WildcardDetails, append};
use crate::error::Error;
use crate::net::LinkId;
use crate::sockets::Udp;

/// A received datagram, or several of one size, with the addresses and the link of the packets.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UdpMessage {
    /// The payload.
    pub payload: FragVec,
    /// The sender.
    pub from: SocketAddr,
    /// The destination: an address of ours, a group or a broadcast address; on a socket of
    /// [`Stack::bind_every`](crate::Stack::bind_every) any address and port.
    pub to: SocketAddr,
    /// The link that it came by; the first link for loopback.
    pub link: LinkId,
    /// With several datagrams: payload bytes of each but the last, which may be shorter.
    pub segment: Option<u16>,
    /// The congestion mark of the packets, 0 to 3 (RFC 3168 section 5).
    pub ecn: u8,
    /// On a socket of [`Stack::bind_every`](crate::Stack::bind_every): the hop limit or time to live
    /// of the (first) packet; else 0.
    pub hop_limit: u8,
    /// On such a socket: whether routers may not cut the packet, as always in IPv6; else `false`.
    pub dont_fragment: bool,
}

/// A way to take received datagrams:
///
/// - `&mut [u8]`: copies the oldest; returns the number of bytes (the rest is lost) and its sender;
/// - [`Datagram`]: the oldest by reference, and its sender;
/// - [`Message`]: the oldest by reference, as [`UdpMessage`].
pub trait DatagramTaker {
    /// The result: a number of bytes, or the memory.
    type Taken;

    #[doc(hidden)]
    fn take(self, udp: &mut Udp<'_>, flags: RecvFlags) -> Result<Self::Taken, Error>;
}

/// Takes the oldest datagram by reference, and its sender.
#[derive(Clone, Copy, Debug)]
pub struct Datagram;

/// Takes the oldest datagram as [`UdpMessage`]. If the socket [joins](Udp::set_join) datagrams,
/// also those behind it between the same ends and of one length, up to this number of bytes.
#[derive(Clone, Copy, Debug)]
pub struct Message(pub usize);

impl DatagramTaker for Datagram {
    type Taken = (FragVec, SocketAddr);

    // Inlined, the result would share its first byte with the error, and be moved off its alignment.
    #[inline(never)]
    fn take(self, udp: &mut Udp<'_>, flags: RecvFlags) -> Result<Self::Taken, Error> {
        let socket = &mut *udp.socket;
        if socket.error.is_some()
            && let Some(error) = socket.take_error()
        {
            return Err(error);
        }
        socket.split_oldest(0);
        if flags.contains(RecvFlags::PEEK) {
            let datagram = socket.queue.front().ok_or(socket.no_datagram())?;
            return Ok((datagram.payload.clone(), datagram.from()));
        }
        let Some(datagram) = socket.queue.pop_front() else {
            socket.reporting.reported &= socket.readiness();
            return Err(socket.no_datagram());
        };
        let (charge, from) = (datagram.charge(), datagram.from());
        let payload = datagram.payload;
        socket.queued_bytes -= charge;
        if socket.queue.is_empty() {
            socket.reporting.reported &= socket.readiness();
        }
        udp.net.mem.shared.memory.charge_datagrams(charge, 0);
        Ok((payload, from))
    }
}

impl DatagramTaker for &mut [u8] {
    type Taken = (usize, SocketAddr);

    fn take(self, udp: &mut Udp<'_>, flags: RecvFlags) -> Result<Self::Taken, Error> {
        let (frags, from) = udp.recv(Datagram, flags)?;
        let mut at = 0;
        for frag in &frags {
            let room = self.get_mut(at..).unwrap_or_default();
            at += frag.copy_to(0, room, &mut udp.net.mem.ledger, CopyReason::AppRead);
        }
        Ok((at, from))
    }
}

impl<const N: usize> DatagramTaker for &mut [u8; N] {
    type Taken = (usize, SocketAddr);

    fn take(self, udp: &mut Udp<'_>, flags: RecvFlags) -> Result<Self::Taken, Error> {
        self.as_mut_slice().take(udp, flags)
    }
}

impl DatagramTaker for Message {
    type Taken = UdpMessage;

    fn take(self, udp: &mut Udp<'_>, flags: RecvFlags) -> Result<UdpMessage, Error> {
        let (found, mut message) = udp.message(self.0)?;
        let socket = &mut *udp.socket;
        if flags.contains(RecvFlags::PEEK) {
            for datagram in socket.queue.iter().take(found) {
                append(&mut message.payload, datagram.payload.clone());
            }
            return Ok(message);
        }
        for datagram in socket.queue.drain(..found) {
            socket.queued_bytes -= datagram.charge();
            udp.net.mem.shared.memory.charge_datagrams(datagram.charge(), 0);
            append(&mut message.payload, datagram.payload);
        }
        socket.reporting.reported &= socket.readiness();
        Ok(message)
    }
}

impl Udp<'_> {
    /// Takes received datagrams; with [`RecvFlags::PEEK`] they stay in the queue.
    ///
    /// # Errors
    /// `WouldBlock` if there is none, and once, the error of an earlier datagram.
    pub fn recv<T: DatagramTaker>(
        &mut self,
        taker: T,
        flags: RecvFlags,
    ) -> Result<T::Taken, Error> {
        taker.take(self, flags)
    }

    /// How many datagrams to take as one, and their message without payload.
    fn message(&mut self, room: usize) -> Result<(usize, UdpMessage), Error> {
        let socket = &mut *self.socket;
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        socket.split_oldest(room);
        let alike = socket.joinable(room);
        let Some(first) = socket.queue.front() else {
            socket.reporting.reported &= socket.readiness();
            return Err(socket.no_datagram());
        };
        let segment = if alike > 1 { first.len() as u16 } else { first.segment };
        let segment = (segment > 0).then_some(segment);
        let (from, to) = (first.from(), first.to(socket.local));
        let (payload, link, ecn) = (FragVec::new(), self.net.link_id(first.link), first.ecn());
        let WildcardDetails { hop_limit, dont_fragment, .. } = first.details;
        Ok((alike, UdpMessage { payload, from, to, link, segment, ecn, hop_limit, dont_fragment }))
    }
}
