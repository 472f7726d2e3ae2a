//! Variant of step S1, for datagrams: the application's data becomes datagrams, each sent at once.
//!
//! The data of one call with `UDP_SEGMENT` is one super-frame as far as its fragments fit a packet. The device
//! cuts it into datagrams, or below IP software does, into slices that cost one reference each. All of them
//! complete under the call's one id.

use std::io::IoSlice;
use std::net::SocketAddr;

use pagewire_mem::{
    Completion, CopyReason, Frag, FragVec, Gso, GsoKind, Instant, MAX_FRAGS, PacketBuf,
};

use super::socket::append;
use super::target::{CorkedDatagram, DatagramSpec, UdpTarget};
use crate::error::Error;
use crate::event::{ErrorOrigin, QueuedError};
use crate::net::wire::{icmp, udp};
use crate::net::{Flow, Mem, Net, Outgoing, TooLong, protocol};
use crate::sockets::Udp;
use crate::sockets::marks::ECN;
use crate::sockets::tuple::{canonical, scope_of};
use crate::sockets::zerocopy::sends::ZeroCopyCall;

/// The payload of a datagram:
///
/// - `&[u8]`, `&[IoSlice]`: a copy;
/// - [`FragVec`]: memory by reference;
/// - `(FragVec, &mut ZeroCopyCall)`: also by reference, with a notification, see [`ZeroCopyCall`].
pub trait DatagramPayload {
    /// Sends it.
    #[doc(hidden)]
    fn send(self, udp: &mut Udp<'_>, now: Instant, to: UdpTarget) -> Result<usize, Error>;
}

impl DatagramPayload for FragVec {
    fn send(self, udp: &mut Udp<'_>, now: Instant, to: UdpTarget) -> Result<usize, Error> {
        let len = self.iter().map(|f| f.len()).sum();
        let ends = udp.spec_for(to, len)?;
        udp.put(now, (ends, to.more), self, len)
    }
}

impl DatagramPayload for (FragVec, &mut ZeroCopyCall) {
    fn send(self, udp: &mut Udp<'_>, now: Instant, to: UdpTarget) -> Result<usize, Error> {
        udp.send_by_reference(now, self.0, self.1, to)
    }
}

impl DatagramPayload for &[IoSlice<'_>] {
    fn send(self, udp: &mut Udp<'_>, now: Instant, to: UdpTarget) -> Result<usize, Error> {
        let len = self.iter().map(|piece| piece.len()).sum();
        let ends = udp.spec_for(to, len)?;
        let Mem { pool, writer, ledger, .. } = &mut udp.net.mem;
        let mut frags = FragVec::new();
        for piece in self {
            let (copies, copied) = writer.write(pool, piece, ledger, CopyReason::AppWrite);
            if copied < piece.len() {
                return Err(Error::NoBuffers);
            }
            append(&mut frags, copies);
        }
        udp.put(now, (ends, to.more), frags, len)
    }
}

impl DatagramPayload for &[u8] {
    fn send(self, udp: &mut Udp<'_>, now: Instant, to: UdpTarget) -> Result<usize, Error> {
        [IoSlice::new(self)].as_slice().send(udp, now, to)
    }
}

impl<const N: usize> DatagramPayload for &[u8; N] {
    fn send(self, udp: &mut Udp<'_>, now: Instant, to: UdpTarget) -> Result<usize, Error> {
        self.as_slice().send(udp, now, to)
    }
}

impl DatagramPayload for &Vec<u8> {
    fn send(self, udp: &mut Udp<'_>, now: Instant, to: UdpTarget) -> Result<usize, Error> {
        self.as_slice().send(udp, now, to)
    }
}

impl Udp<'_> {
    /// Sends a datagram to `to` or to the socket's peer; returns its length. With a
    /// [segment size](UdpTarget::segment), splits the data in several datagrams.
    ///
    /// # Errors
    /// `MessageTooLong` beyond 65,507 bytes (IPv6: 65,527), for segments longer than the path's
    /// MTU, and for datagrams that [`MtuDiscover`](crate::MtuDiscover) refuses, `InvalidInput` for
    /// more than 128 segments, `DestinationRequired` without a remote, `PermissionDenied` to a
    /// broadcast address without [`SocketOption::Broadcast`](crate::SocketOption), `NetworkUnreachable`
    /// without a route, `NoBuffers` when the queue to the device is full, and once, the error that
    /// an earlier datagram met.
    pub fn send(
        &mut self,
        now: Instant,
        data: impl DatagramPayload,
        to: impl Into<UdpTarget>,
    ) -> Result<usize, Error> {
        data.send(self, now, to.into())
    }

    /// Checks a datagram of `len` bytes; returns its source and destination.
    pub(crate) fn spec_for(&mut self, to: UdpTarget, len: usize) -> Result<DatagramSpec, Error> {
        let socket = &mut *self.socket;
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        if let Some(ends) = socket.corked(len) {
            return ends;
        }
        let remote =
            to.remote.map(canonical).or(socket.remote).ok_or(Error::DestinationRequired)?;
        let scope = to.remote.map_or(socket.scope, scope_of);
        let segment = usize::from(to.segment.unwrap_or(socket.segment));
        let (local, mut marks, mtu_discover) = (socket.local, socket.marks, socket.mtu_discover);
        let to_group = remote.ip().is_multicast().then(|| socket.multicast(remote.is_ipv6()));
        let link = socket.link.or(to_group.and_then(|settings| settings.link));
        let by = self.net.bound_link(link)?;
        let echo = socket.is_echo();
        if (remote.port() == 0 && !echo) || remote.ip().is_unspecified() {
            return Err(Error::InvalidInput);
        }
        if !socket.broadcast && self.net.is_broadcast(remote.ip()) {
            return Err(Error::PermissionDenied);
        }
        if let Some(ecn) = to.ecn {
            marks.traffic_class = (marks.traffic_class & !ECN) | (ecn & ECN);
        }
        let (source, every) = (to.source.map(canonical), socket.wildcard.is_some());
        let port = match source {
            None if every => return Err(Error::InvalidInput),
            None => local.port(),
            Some(at) if at.ip().is_unspecified() || at.ip().is_multicast() => {
                return Err(Error::InvalidInput);
            }
            Some(at) if every => at.port(),
            Some(at) if at.port() == 0 || at.port() == local.port() => local.port(),
            Some(_) => return Err(Error::InvalidInput),
        };
        if let Some(settings) = to_group {
            marks.hop_limit = Some(settings.hops);
        }
        // As on Linux, a socket that is bound to a group sends from a host address.
        let open = local.ip().is_unspecified() || local.ip().is_multicast();
        let given = to_group.filter(|_| open).and_then(|settings| settings.source);
        let ip = source.map(|at| at.ip()).or(given).unwrap_or_else(|| local.ip());
        let ip = match ip {
            ip if ip.is_unspecified() || ip.is_multicast() => {
                // `0.0.0.0` is of one version, `::` of both.
                if ip.is_ipv4() && remote.is_ipv6() {
                    return Err(Error::AddressFamily);
                }
                self.net.source_by(remote.ip(), scope, by)?
            }
            ip if !self.net.may_send_from((ip, remote.ip()), by) => {
                return Err(Error::InvalidInput);
            }
            ip if ip.is_ipv4() != remote.is_ipv4() => return Err(Error::AddressFamily),
            ip => ip,
        };
        let local = SocketAddr::new(ip, port);
        let loops = to_group.is_some_and(|settings| settings.loops);
        let ends = DatagramSpec { local, remote, marks, mtu_discover, segment, by, loops, echo };
        if len > ends.longest() { Err(Error::MessageTooLong) } else { Ok(ends) }
    }

    /// Sends a datagram, or with `more` corks it.
    pub(crate) fn put(
        &mut self,
        now: Instant,
        (ends, more): (DatagramSpec, bool),
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let socket = &mut *self.socket;
        let waiting = socket.cork.take();
        if waiting.is_none() && !(more && len > 0) {
            return if more { Ok(0) } else { self.output_of(now, ends, data, len) };
        }
        let new = || Box::new(CorkedDatagram { ends, len: 0, data: FragVec::new() });
        let mut cork = waiting.unwrap_or_else(new);
        append(&mut cork.data, data);
        cork.len += len;
        if more {
            socket.cork = Some(cork);
            return Ok(len);
        }
        let CorkedDatagram { ends, len: all, data } = *cork;
        self.output_of(now, ends, data, all).map(|_| len)
    }

    /// Sends the corked datagram, if there is one.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn push(&mut self, now: Instant) -> Result<(), Error> {
        let Some(cork) = self.socket.cork.take() else { return Ok(()) };
        self.output_of(now, cork.ends, cork.data, cork.len).map(drop)
    }

    /// Sends a datagram, and notes a refusal in the error queue.
    fn output_of(
        &mut self,
        now: Instant,
        ends: DatagramSpec,
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let socket = &mut *self.socket;
        let one = if ends.segment > 0 { len.min(ends.segment) } else { len };
        socket.longest = socket.longest.max(u16::try_from(one).unwrap_or(u16::MAX));
        self.output(now, ends, data, len).map_err(|error| self.refused(&ends, error))
    }

    pub(crate) fn output(
        &mut self,
        now: Instant,
        ends: DatagramSpec,
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let DatagramSpec { local, remote, marks, mtu_discover, segment, by, loops, echo } = ends;
        if segment > 0 {
            ends.check_segments(len, longest_packet(self.net, &ends))?;
            if len > segment && data.len() > MAX_FRAGS {
                return self.output_parts(now, ends, data, len);
            }
        }
        let mut packet = PacketBuf::for_tx();
        let (protocol, checksum_offset) = match echo {
            true => put_echo_reply(&mut packet, remote),
            false => put_header(&mut packet, local, remote, len),
        };
        if segment > 0 && len > segment {
            let (kind, header_len) = (GsoKind::Udp, udp::LEN as u16);
            packet.gso = Some(Gso { kind, size: segment as u16, header_len });
        }
        let data = if data.len() > MAX_FRAGS {
            let joined = joined(&mut self.net.mem, &data, len, CopyReason::DeviceLinearize)?;
            data.iter().filter_map(Frag::completion).for_each(Completion::mark_copied);
            joined
        } else {
            data
        };
        for frag in data {
            packet.push_frag(frag).map_err(|_| Error::MessageTooLong)?;
        }
        let out = Outgoing {
            src: local.ip(),
            dst: remote.ip(),
            protocol,
            ecn: marks.traffic_class,
            dont_fragment: mtu_discover.dont_fragment(),
            too_long: mtu_discover.too_long(),
            hop_limit: marks.hop_limit,
            by,
            checksum_offset: Some(checksum_offset),
            packet,
        };
        if loops {
            self.net.loop_to_group(now, &out);
        }
        // As on Linux, a hop limit of 0 keeps it on this host.
        if out.hop_limit == Some(0) && out.dst.is_multicast() {
            return Ok(len);
        }
        self.net.send(now, out)?;
        Ok(len)
    }

    /// Sends the payload as several super-frames, each of as many whole segments as a packet has
    /// fragments for: none if the first cannot be sent; later drops are counted.
    fn output_parts(
        &mut self,
        now: Instant,
        ends: DatagramSpec,
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let (size, mut pieces) = (ends.segment, data.into_iter().peekable());
        let (mut part, mut part_len, mut sent) = (FragVec::new(), 0, 0);
        while sent < len {
            // The next segment joins the part unless its fragments are too many together.
            let (mut next, mut missing) = (FragVec::new(), size.min(len - sent - part_len));
            let n = missing;
            while missing > 0
                && let Some(piece) = pieces.peek_mut()
            {
                let slice = piece.split_to(missing);
                missing -= slice.len();
                slice.append_to(&mut next);
                if piece.is_empty() {
                    pieces.next();
                }
            }
            let full = part.len() + next.len() > MAX_FRAGS;
            if n == 0 || (full && part_len > 0) {
                let done = self.output(now, ends, core::mem::take(&mut part), part_len);
                if sent == 0 {
                    done?;
                }
                (sent, part_len) = (sent + part_len, 0);
            }
            append(&mut part, next);
            part_len += n;
        }
        Ok(len)
    }

    /// Puts the path's MTU into the error queue if a datagram was too long for it, as on Linux.
    pub(crate) fn refused(&mut self, ends: &DatagramSpec, error: Error) -> Error {
        if error != Error::MessageTooLong {
            return error;
        }
        let mtu = longest_packet(self.net, ends) as u32;
        if let Some(errors) = &mut self.socket.errors {
            let (origin, to) = (ErrorOrigin::Local, Some(ends.remote));
            let about = self.socket.wildcard.map(|_| match ends.echo {
                true => Flow::echo(ends.remote, ends.local.ip(), 0),
                false => Flow::udp(ends.remote, ends.local),
            });
            errors.push_entry(QueuedError { error, origin, mtu, to, about });
            self.check_later();
        }
        error
    }
}

/// Puts UDP's header in front of `len` bytes of payload; returns the protocol and the offset of the
/// checksum.
#[inline(always)]
fn put_header(packet: &mut PacketBuf, from: SocketAddr, to: SocketAddr, len: usize) -> (u8, u16) {
    let (src_port, dst_port) = (from.port(), to.port());
    let header = udp::Header { src_port, dst_port, len: (udp::LEN + len) as u16, checksum: 0 };
    if let Some(room) = packet.push(udp::LEN) {
        room.copy_from_slice(&header.emit());
    }
    (protocol::UDP, udp::CHECKSUM_OFFSET)
}

/// The same for an echo reply, as far as the identifier.
fn put_echo_reply(packet: &mut PacketBuf, to: SocketAddr) -> (u8, u16) {
    let (protocol, kind) = match to {
        SocketAddr::V4(_) => (protocol::ICMP, icmp::v4::ECHO_REPLY),
        SocketAddr::V6(_) => (protocol::ICMPV6, icmp::v6::ECHO_REPLY),
    };
    let word = u32::from(to.port()) << 16;
    if let Some(room) = packet.push(icmp::IDENT_LEN) {
        for (to, byte) in room.iter_mut().zip(icmp::Header { kind, code: 0, word }.emit()) {
            *to = byte;
        }
    }
    (protocol, icmp::CHECKSUM_OFFSET)
}

/// The longest IP packet that may leave whole.
pub(crate) fn longest_packet(net: &Net, ends: &DatagramSpec) -> usize {
    let (local, remote) = (ends.local.ip(), ends.remote.ip());
    match ends.mtu_discover.too_long() {
        TooLong::CutToPath | TooLong::RefusedByPath => net.link_limits(local, remote, ends.by).0,
        TooLong::CutToLink | TooLong::RefusedByLink => net.link_mtu(local, remote, ends.by),
    }
}

/// Copies a datagram into as few fragments as possible.
pub(crate) fn joined(
    mem: &mut Mem,
    data: &FragVec,
    len: usize,
    reason: CopyReason,
) -> Result<FragVec, Error> {
    let Mem { pool, writer, ledger, .. } = mem;
    let (mut joined, mut copied) = (FragVec::new(), 0);
    for frag in data {
        let (pieces, n) = writer.write_frag(pool, frag, ledger, reason);
        copied += n;
        append(&mut joined, pieces);
    }
    if copied < len { Err(Error::NoBuffers) } else { Ok(joined) }
}
