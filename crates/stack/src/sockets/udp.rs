//! Datagram sockets (RFC 768), by reference and by copy.

use core::time::Duration;
use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};

use pagewire_mem::{
    Completion, CopyLedger, CopyReason, Frag, FragVec, Instant, MAX_FRAGS, PAGE_SIZE, PacketBuf,
    PagePool, PageWriter,
};

use super::demux::Tuple;
use super::edges::PacketMarks;
use super::errors::error_of_icmp;
use super::hold::BindOptions;
use super::listener::Kind;
use super::path_mtu::MtuDiscover;
use super::table::SocketId;
use super::tcp::{canonical, scope_of, with_scope};
use super::udp_cork::Cork;
use super::udp_groups::UdpGroups;
use super::udp_segments::UdpTarget;
use super::{ErrorQueue, Socket, Sockets};
use crate::counters::DropReason;
use crate::error::Error;
use crate::event::{ErrorOrigin, QueuedError, Readiness};
use crate::limits::{
    MAX_SOCKETS, UDP_CARVED_SHARE, UDP_MAX_PAYLOAD_V4, UDP_MAX_PAYLOAD_V6, UDP_OVERHEAD,
    UDP_RECEIVE_BYTES, UDP_RECEIVE_DATAGRAMS, UDP_SMALL,
};
use crate::net::wire::udp;
use crate::net::{
    IcmpKind, LinkId, LinkIndex, Mem, Outgoing, Quoted, Received, is_link_local, protocol,
};
use crate::stack::Stack;

/// A datagram socket.
pub(crate) struct UdpSocket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: Option<SocketAddr>,
    /// The link that `remote` is on, if it is link-local.
    pub(super) scope: u32,
    pub(super) queue: VecDeque<Datagram>,
    /// Bytes charged for what is queued, and how many may be.
    pub(super) queued_bytes: usize,
    receive_bytes: usize,
    /// Datagrams that found no room, modulo 2^32.
    dropped: u32,
    pub(super) error: Option<Error>,
    /// No datagram can come or leave: there is no device left.
    pub(crate) down: bool,
    pub(crate) errors: Option<Box<ErrorQueue>>,
    /// On the list of those that have memory of senders in their queues.
    pub(super) has_guests: bool,
    /// Opted in to zero-copy sends.
    pub(super) zerocopy: bool,
    /// Payload bytes of each datagram of a call that sends more; 0: one call, one datagram.
    pub(super) segment: u16,
    /// A datagram to which more is to come.
    pub(super) cork: Option<Box<Cork>>,
    pub(crate) unchecked: bool,
    pub(crate) every_arrival: bool,
    pub(super) marks: PacketMarks,
    pub(super) mtu_discover: MtuDiscover,
    /// Payload bytes of the longest datagram that was sent, or was to be.
    pub(super) longest: u16,
    /// May send to all hosts of a network.
    pub(super) broadcast: bool,
    /// Several datagrams are received as one.
    pub(super) joins: bool,
    /// The link that it is bound to.
    pub(super) link: Option<LinkId>,
    /// What it has to do with groups, once anything has been said about them.
    pub(super) groups: Option<Box<UdpGroups>>,
    pub(crate) reported: Readiness,
}

/// Where a datagram goes from and to, and what its packet is marked with.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) marks: PacketMarks,
    pub(super) mtu_discover: MtuDiscover,
    /// A payload that is longer is cut in datagrams of so many bytes; 0: it is one.
    pub(super) segment: usize,
    /// The only link that it may leave by.
    pub(super) by: Option<LinkIndex>,
    /// It comes back to who is in the group here.
    pub(super) loops: bool,
}

impl Ends {
    /// Payload bytes of the longest datagram.
    pub(super) fn longest(&self) -> usize {
        if self.remote.is_ipv4() { UDP_MAX_PAYLOAD_V4 } else { UDP_MAX_PAYLOAD_V6 }
    }
}

pub(super) struct Datagram {
    pub(super) from: SocketAddr,
    pub(super) to: IpAddr,
    pub(super) link: LinkIndex,
    pub(super) payload: FragVec,
    pub(super) charge: usize,
    at: Instant,
}

impl Datagram {
    /// Bytes of payload.
    pub(super) fn len(&self) -> usize {
        self.payload.iter().map(|frag| frag.len()).sum()
    }
}

impl UdpSocket {
    /// Why a datagram that keeps `charge` bytes is not taken; as in Linux, one is, however small the
    /// buffer.
    fn refusal(&self, mem: &Mem, charge: usize) -> Option<DropReason> {
        let room = self.receive_bytes.saturating_sub(self.queued_bytes);
        if (charge > room && !self.queue.is_empty()) || self.queue.len() >= UDP_RECEIVE_DATAGRAMS {
            return Some(DropReason::UdpQueueFull);
        }
        let takes = mem.shared.receive.takes_datagram(self.queued_bytes, charge);
        (!takes).then_some(DropReason::UdpHostMemory)
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let mut readiness = Readiness::WRITABLE;
        if !self.queue.is_empty() {
            readiness |= Readiness::READABLE;
        }
        if self.down {
            readiness |= Readiness::READABLE | Readiness::ERROR;
        }
        if self.error.is_some() {
            readiness |= Readiness::ERROR;
        }
        if self.errors.as_ref().is_some_and(|e| !e.is_empty()) {
            readiness |= Readiness::ERROR_QUEUE;
        }
        if self.remote.is_some() {
            readiness |= Readiness::CONNECTED;
        }
        readiness
    }

    /// Whether it takes what comes from there; `Some(true)`: and from nowhere else.
    pub(super) fn takes_from(&self, from: SocketAddr) -> Option<bool> {
        match self.remote {
            None => Some(false),
            Some(remote) => (remote == from).then_some(true),
        }
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let error = self.error.take();
        self.reported &= self.readiness();
        error
    }

    /// Replaces memory of senders that has waited for `limit` by private copies, as far as there are
    /// pages. Returns whether some is left.
    pub(super) fn give_back(&mut self, mem: &mut Mem, now: Instant, limit: Duration) -> bool {
        let mut left = false;
        for datagram in &mut self.queue {
            for frag in &mut datagram.payload {
                if frag.completion().is_none() {
                    continue;
                }
                let Mem { pool, writer, ledger, .. } = &mut *mem;
                if now.saturating_since(datagram.at) < limit || !replace(frag, pool, writer, ledger)
                {
                    left = true;
                }
            }
        }
        left
    }

    /// What a call gets that finds no datagram.
    pub(super) fn nothing(&self) -> Error {
        if self.down { Error::NetworkDown } else { Error::WouldBlock }
    }
}

/// Inputs.
impl Stack {
    /// Byte path, step R4 for datagrams, checksum verified.
    pub(crate) fn udp_input(&mut self, now: Instant, received: &Received, packet: &mut PacketBuf) {
        let header = match udp::Header::parse(packet.head(), packet.len()) {
            Ok(header) => header,
            Err(reason) => return self.net.counters.drop_one(reason),
        };
        let from = SocketAddr::new(received.src, header.src_port);
        let tuple = Tuple {
            local: received.dst,
            remote: received.src,
            local_port: header.dst_port,
            remote_port: header.src_port,
        };
        let scope = self.net.scope_of(received.src, received.link);
        if received.dst.is_multicast() {
            return self.udp_input_group(now, received, &tuple, scope, packet);
        }
        let Sockets { udp_binds, table, .. } = &mut self.sockets;
        let fits = |index| {
            let socket = table.udp(index)?;
            let elsewhere = socket.scope != 0 && socket.scope != scope;
            socket.takes_from(from).filter(|_| !elsewhere)
        };
        let came_by = self.net.came_by(received);
        let found = udp_binds.find_by(&tuple, |link| Some(link) == came_by, fits);
        let Some(index) = found else {
            let reason = match udp_binds.find(&tuple, came_by) {
                Some(_) => DropReason::UdpNotConnected,
                None => DropReason::UdpNoSocket,
            };
            self.net.counters.drop_one(reason);
            return self.refuse(now, received, packet);
        };
        let payload = packet.take_frags();
        self.udp_queue(now, index, received, with_scope(from, scope), payload);
    }

    /// Puts a datagram into the socket's queue, if there is room.
    #[inline(always)]
    pub(super) fn udp_queue(
        &mut self,
        now: Instant,
        index: u32,
        received: &Received,
        from: SocketAddr,
        mut payload: FragVec,
    ) {
        let Sockets { table, guests, .. } = &mut self.sockets;
        let Some(socket) = table.udp_mut(index) else { return };
        let len: usize = payload.iter().map(|f| f.len()).sum();
        let pinned: usize = payload.iter().map(|f| f.pinned()).sum();
        // Of carved pages, which several share, those are copied that are not read at once.
        let first = socket.queued_bytes < socket.receive_bytes / UDP_CARVED_SHARE;
        let small =
            len <= UDP_SMALL && pinned > 4 * len && !(first && payload.iter().all(Frag::is_carved));
        // Judged by what it will keep: a copy of its own, or without memory for one all that it lies in.
        let mut charge = if small { len } else { pinned.max(len) } + UDP_OVERHEAD;
        let mut refusal = socket.refusal(&self.mem, charge);
        if small && refusal.is_none() {
            match copy_small(&mut self.mem, &payload, len) {
                Some(copy) => payload = copy,
                None => {
                    charge = pinned + UDP_OVERHEAD;
                    refusal = socket.refusal(&self.mem, charge);
                }
            }
        }
        if let Some(why) = refusal {
            socket.dropped = socket.dropped.wrapping_add(1);
            self.net.counters.drop_one(why);
            return;
        }
        socket.queued_bytes += charge;
        self.mem.shared.receive.charge_datagrams(0, charge);
        let guests = guests.concerns(&payload);
        let (to, link) = (received.dst, received.link);
        socket.queue.push_back(Datagram { from, to, link, payload, charge, at: now });
        if socket.every_arrival {
            socket.reported &= !Readiness::READABLE;
        }
        self.sockets.check_later(index);
        if guests {
            self.watch_guest(now, index);
        }
    }

    /// Nobody takes the datagram: its sender is told.
    pub(super) fn refuse(&mut self, now: Instant, received: &Received, packet: &mut PacketBuf) {
        let packet = core::mem::replace(packet, PacketBuf::for_rx());
        self.net.send_port_unreachable(&mut self.mem, now, received, packet);
    }

    /// An ICMP error about a datagram that we sent.
    pub(crate) fn udp_icmp(&mut self, now: Instant, about: &Quoted, kind: IcmpKind) {
        let to = SocketAddr::new(about.dst, about.dst_port);
        let tuple = Tuple::new(SocketAddr::new(about.src, about.src_port), to);
        let Sockets { udp_binds, table, .. } = &mut self.sockets;
        let fits = |index| {
            let socket = table.udp(index)?;
            socket.takes_from(to).filter(|_| socket.may_have_met(kind, to.ip()))
        };
        // Errors come by any link.
        let found = udp_binds.find_by(&tuple, |_| true, fits);
        let Some((index, socket)) = found.and_then(|index| Some((index, table.udp_mut(index)?)))
        else {
            return self.net.counters.drop_one(DropReason::IcmpQuoteNotOurs);
        };
        let mut mtu = 0;
        if let IcmpKind::PacketTooBig { mtu: reported } = kind {
            if socket.mtu_discover.ignores_reports() {
                return;
            }
            self.net.handle_path_mtu(now, to.ip(), reported);
            if socket.mtu_discover == MtuDiscover::Dont {
                return;
            }
            mtu = reported as u32;
        }
        let error = error_of_icmp(kind);
        if let Some(errors) = &mut socket.errors {
            errors.push_entry(QueuedError { error, origin: ErrorOrigin::Icmp, mtu, to: Some(to) });
        }
        // > RFC 1122 section 4.1.3.3: UDP MUST pass to the application layer all ICMP error
        // > messages that it receives from the IP layer.
        // As on Linux, a socket without a peer has them in its error queue only, and one with a
        // peer fails for those that trying again does not help.
        let hard = matches!(
            kind,
            IcmpKind::PortUnreachable
                | IcmpKind::ProtocolUnreachable
                | IcmpKind::PacketTooBig { .. }
        );
        if socket.remote.is_some() && hard {
            socket.error = Some(error);
            // Each is an event, also where nobody has taken the one before.
            socket.reported &= !Readiness::ERROR;
        }
        self.sockets.check_later(index);
    }
}

/// Replaces one fragment by a copy in one piece; `false` if there is none to be had.
fn replace(
    frag: &mut Frag,
    pool: &mut PagePool,
    writer: &mut PageWriter,
    ledger: &mut CopyLedger,
) -> bool {
    if writer.spare() < frag.len() {
        writer.abandon();
        if !writer.refill(pool, frag.len().div_ceil(PAGE_SIZE)) || writer.spare() < frag.len() {
            return false;
        }
    }
    let (copies, n) = writer.write_frag(pool, frag, ledger, CopyReason::LoopPrivate);
    let Some(copy) = copies.into_iter().next().filter(|copy| copy.len() == n && n == frag.len())
    else {
        return false;
    };
    if let Some(completion) = frag.completion() {
        completion.mark_copied();
    }
    *frag = copy;
    true
}

/// A copy in one piece, however many came.
fn copy_small(mem: &mut Mem, payload: &FragVec, len: usize) -> Option<FragVec> {
    let Mem { pool, writer, ledger, .. } = mem;
    if writer.spare() < len {
        writer.abandon();
        if !writer.refill(pool, len.div_ceil(PAGE_SIZE)) || writer.spare() < len {
            return None;
        }
    }
    let mut copy = FragVec::new();
    for frag in payload {
        for part in writer.write_frag(pool, frag, ledger, CopyReason::SmallSegment).0 {
            // Parts of one run that follow each other always join.
            match copy.last_mut() {
                Some(last) => last.try_append(part).ok()?,
                None => copy.push(part),
            }
        }
    }
    Some(copy)
}

/// Verbs of the application.
impl Stack {
    /// A datagram socket bound to `local`, whose port may be 0 for a free one. An unspecified
    /// address stands for all of ours, `::` for those of both IP versions.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable` if the address is not ours or no port is free.
    pub fn udp_bind(&mut self, local: SocketAddr) -> Result<SocketId, Error> {
        self.udp_bind_with(local, BindOptions::default())
    }

    /// As [`udp_bind`](Self::udp_bind), where the address may be shared, or not be ours. From an
    /// address that is not ours nothing can be sent (`InvalidInput`).
    ///
    /// # Errors
    /// As [`udp_bind`](Self::udp_bind); `AddressInUse` if somebody who is bound there does not share.
    pub fn udp_bind_with(
        &mut self,
        local: SocketAddr,
        options: BindOptions,
    ) -> Result<SocketId, Error> {
        self.refuse_if_down()?;
        let local = self.bindable(canonical(local), Kind::Udp, options)?;
        let socket = UdpSocket {
            local,
            remote: None,
            scope: 0,
            queue: VecDeque::new(),
            queued_bytes: 0,
            receive_bytes: UDP_RECEIVE_BYTES,
            dropped: 0,
            error: None,
            down: false,
            errors: None,
            has_guests: false,
            zerocopy: false,
            segment: 0,
            cork: None,
            unchecked: false,
            every_arrival: false,
            marks: PacketMarks::default(),
            mtu_discover: MtuDiscover::default(),
            longest: 0,
            broadcast: false,
            joins: false,
            link: options.link,
            groups: None,
            reported: Readiness::WRITABLE,
        };
        let socket = Socket::Udp(Box::new(socket));
        let id = self.sockets.table.insert(socket, MAX_SOCKETS).ok_or(Error::TooManySockets)?;
        let at = options.wanted(local.ip());
        self.sockets.udp_binds.insert(at, local.port(), id.index(), options.sharing());
        Ok(id)
    }

    /// Sets where datagrams go by default, and takes them from there only. Errors that the
    /// network reports about the peer are the socket's from here on.
    pub fn udp_connect(
        &mut self,
        now: Instant,
        id: SocketId,
        remote: SocketAddr,
    ) -> Result<(), Error> {
        let _ = now;
        let (remote, scope) = (canonical(remote), scope_of(remote));
        if remote.port() == 0 {
            return Err(Error::InvalidInput);
        }
        let by = self.net.bound_link(udp_mut(self.sockets.table.get_mut(id)?)?.link)?;
        self.net.source_by(remote.ip(), scope, by)?;
        let scope = if is_link_local(remote.ip()) { scope } else { 0 };
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        if !socket.broadcast && self.net.is_broadcast(remote.ip()) {
            return Err(Error::PermissionDenied);
        }
        if !socket.local.ip().is_unspecified() && socket.local.is_ipv4() != remote.is_ipv4() {
            return Err(Error::AddressFamily);
        }
        (socket.remote, socket.scope) = (Some(remote), scope);
        self.sockets.check_later(id.index());
        Ok(())
    }

    /// How many bytes may wait to be received, those that the stack keeps beside each datagram
    /// included; at most [`UDP_RECEIVE_BYTES`](crate::limits::UDP_RECEIVE_BYTES), which is the
    /// default.
    pub fn udp_set_receive_buffer(&mut self, id: SocketId, bytes: usize) -> Result<(), Error> {
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        socket.receive_bytes = bytes.min(UDP_RECEIVE_BYTES);
        Ok(())
    }

    /// Forgets the peer: datagrams go where each says, and come from anywhere.
    pub fn udp_disconnect(&mut self, id: SocketId) -> Result<(), Error> {
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        (socket.remote, socket.error) = (None, None);
        Ok(())
    }

    /// The oldest datagram by reference, and its sender; it stays in the queue.
    ///
    /// # Errors
    /// As [`udp_recv_from`](Self::udp_recv_from).
    pub fn udp_peek_from(&mut self, id: SocketId) -> Result<(FragVec, SocketAddr), Error> {
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        if let Some(error) = socket.take_error() {
            return Err(error);
        }
        let datagram = socket.queue.front().ok_or(socket.nothing())?;
        Ok((datagram.payload.clone(), datagram.from))
    }

    /// Bytes of the oldest datagram, 0 if there is none.
    pub fn udp_next_len(&self, id: SocketId) -> Result<usize, Error> {
        match self.sockets.table.get(id)? {
            Socket::Udp(socket) => Ok(socket.queue.front().map_or(0, Datagram::len)),
            _ => Err(Error::NotSupported),
        }
    }

    /// Datagrams that found no room so far, in the socket's queue or in the host's memory, modulo 2^32
    /// (Linux's `SO_RXQ_OVFL`).
    pub fn udp_dropped(&self, id: SocketId) -> Result<u32, Error> {
        match self.sockets.table.get(id)? {
            Socket::Udp(socket) => Ok(socket.dropped),
            _ => Err(Error::NotSupported),
        }
    }

    /// Sends a datagram by reference, to `to` or to where the socket is connected; returns its
    /// length. With a [segment size](UdpTarget::segment), as many datagrams as that takes.
    ///
    /// # Errors
    /// `MessageTooLong` beyond 65,507 bytes (IPv6: 65,527), for segments that the path does not
    /// take whole, and for datagrams that [`MtuDiscover`] says are refused, `InvalidInput` for more than 128 of those, `DestinationRequired` without a
    /// remote, `PermissionDenied` to a broadcast address unless that is
    /// [allowed](Self::udp_set_broadcast), `NetworkUnreachable` without a route,
    /// `NoBuffers` when the queue to the device is full, and once, the error that an earlier datagram
    /// met.
    pub fn udp_send_to(
        &mut self,
        now: Instant,
        id: SocketId,
        data: FragVec,
        to: impl Into<UdpTarget>,
    ) -> Result<usize, Error> {
        let (len, to) = (data.iter().map(|f| f.len()).sum(), to.into());
        let ends = self.udp_ends(id, to, len)?;
        self.udp_put(now, id, (ends, to.more), data, len)
    }

    /// Sends a copy of `data` as a datagram; otherwise as [`udp_send_to`](Self::udp_send_to).
    pub fn udp_write_to(
        &mut self,
        now: Instant,
        id: SocketId,
        data: &[u8],
        to: impl Into<UdpTarget>,
    ) -> Result<usize, Error> {
        self.udp_write_vectored_to(now, id, &[IoSlice::new(data)], to)
    }

    /// Sends a copy of several pieces as one datagram; otherwise as
    /// [`udp_send_to`](Self::udp_send_to).
    pub fn udp_write_vectored_to(
        &mut self,
        now: Instant,
        id: SocketId,
        data: &[IoSlice<'_>],
        to: impl Into<UdpTarget>,
    ) -> Result<usize, Error> {
        let (len, to) = (data.iter().map(|piece| piece.len()).sum(), to.into());
        let ends = self.udp_ends(id, to, len)?;
        let Mem { pool, writer, ledger, .. } = &mut self.mem;
        let mut frags = FragVec::new();
        for piece in data {
            let (copies, copied) = writer.write(pool, piece, ledger, CopyReason::AppWrite);
            if copied < piece.len() {
                return Err(Error::NoBuffers);
            }
            append(&mut frags, copies);
        }
        self.udp_put(now, id, (ends, to.more), frags, len)
    }

    /// Takes the oldest datagram by reference, and its sender.
    ///
    /// # Errors
    /// `WouldBlock` when none is there, and once, the error that an earlier datagram met.
    pub fn udp_recv_from(
        &mut self,
        now: Instant,
        id: SocketId,
    ) -> Result<(FragVec, SocketAddr), Error> {
        let _ = now;
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        if socket.error.is_some()
            && let Some(error) = socket.take_error()
        {
            return Err(error);
        }
        let Some(datagram) = socket.queue.pop_front() else {
            socket.reported &= socket.readiness();
            return Err(socket.nothing());
        };
        socket.queued_bytes -= datagram.charge;
        if socket.queue.is_empty() {
            socket.reported &= socket.readiness();
        }
        self.mem.shared.receive.charge_datagrams(datagram.charge, 0);
        Ok((datagram.payload, datagram.from))
    }

    /// Takes the oldest datagram by copy: the bytes put into `into` (what does not fit is lost)
    /// and its sender. Errors as for [`udp_recv_from`](Self::udp_recv_from).
    pub fn udp_read_from(
        &mut self,
        now: Instant,
        id: SocketId,
        into: &mut [u8],
    ) -> Result<(usize, SocketAddr), Error> {
        let (frags, from) = self.udp_recv_from(now, id)?;
        let mut at = 0;
        for frag in &frags {
            let room = into.get_mut(at..).unwrap_or_default();
            at += frag.copy_to(0, room, &mut self.mem.ledger, CopyReason::AppRead);
        }
        Ok((at, from))
    }

    /// Whether errors that the network reports are kept in the error queue; off drops what it has.
    pub fn udp_queue_errors(&mut self, id: SocketId, on: bool) -> Result<(), Error> {
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
        socket.errors.get_or_insert_default().keep_errors(on);
        Ok(())
    }

    /// Where a datagram of `len` bytes goes from and to, after all checks.
    pub(super) fn udp_ends(
        &mut self,
        id: SocketId,
        to: UdpTarget,
        len: usize,
    ) -> Result<Ends, Error> {
        let socket = udp_mut(self.sockets.table.get_mut(id)?)?;
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
        if remote.port() == 0 || remote.ip().is_unspecified() {
            return Err(Error::InvalidInput);
        }
        if !socket.broadcast && self.net.is_broadcast(remote.ip()) {
            return Err(Error::PermissionDenied);
        }
        let source = to.source.map(|ip| canonical(SocketAddr::new(ip, 0)).ip());
        if source.is_some_and(|ip| !self.net.is_local(ip)) {
            return Err(Error::InvalidInput);
        }
        if let Some(settings) = to_group {
            marks.hop_limit = Some(settings.hops);
        }
        // As on Linux, who is bound to a group sends from an address.
        let open = local.ip().is_unspecified() || local.ip().is_multicast();
        let given = to_group.filter(|_| open).and_then(|settings| settings.source);
        let ip = match source.or(given).unwrap_or_else(|| local.ip()) {
            ip if ip.is_unspecified() || ip.is_multicast() => {
                // `0.0.0.0` is of one version, `::` of both.
                if ip.is_ipv4() && remote.is_ipv6() {
                    return Err(Error::AddressFamily);
                }
                self.net.source_by(remote.ip(), scope, by)?
            }
            ip if ip.is_ipv4() != remote.is_ipv4() => return Err(Error::AddressFamily),
            ip if !self.net.is_local(ip) => return Err(Error::InvalidInput),
            ip => ip,
        };
        let local = SocketAddr::new(ip, local.port());
        let loops = to_group.is_some_and(|settings| settings.loops);
        let ends = Ends { local, remote, marks, mtu_discover, segment, by, loops };
        if len > ends.longest() { Err(Error::MessageTooLong) } else { Ok(ends) }
    }

    pub(super) fn udp_output(
        &mut self,
        now: Instant,
        ends: Ends,
        data: FragVec,
        len: usize,
    ) -> Result<usize, Error> {
        let Ends { local, remote, marks, mtu_discover, segment, by, loops } = ends;
        if segment > 0 {
            ends.check_segments(len, self.udp_longest_packet(&ends))?;
            if len > segment {
                return self.udp_output_segments(now, ends, data, len);
            }
        }
        let mut packet = PacketBuf::for_tx();
        let header = udp::Header {
            src_port: local.port(),
            dst_port: remote.port(),
            len: (udp::LEN + len) as u16,
            checksum: 0,
        };
        if let Some(room) = packet.push(udp::LEN) {
            room.copy_from_slice(&header.emit());
        }
        let data = if data.len() > MAX_FRAGS {
            let joined = self.udp_joined(&data, len, CopyReason::DeviceLinearize)?;
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
            protocol: protocol::UDP,
            ecn: marks.traffic_class,
            dont_fragment: mtu_discover.dont_fragment(),
            too_long: mtu_discover.too_long(),
            hop_limit: marks.hop_limit,
            by,
            checksum_offset: Some(udp::CHECKSUM_OFFSET),
            packet,
        };
        if loops {
            self.net.loop_to_group(&mut self.mem, now, &out);
        }
        // As on Linux, what may not go over a single hop stays on this host.
        if out.hop_limit == Some(0) && out.dst.is_multicast() {
            return Ok(len);
        }
        self.net.send(&mut self.mem, now, out)?;
        Ok(len)
    }

    /// A datagram copied into as few pieces as there can be.
    pub(super) fn udp_joined(
        &mut self,
        data: &FragVec,
        len: usize,
        reason: CopyReason,
    ) -> Result<FragVec, Error> {
        let Mem { pool, writer, ledger, .. } = &mut self.mem;
        let (mut joined, mut copied) = (FragVec::new(), 0);
        for frag in data {
            let (pieces, n) = writer.write_frag(pool, frag, ledger, reason);
            copied += n;
            append(&mut joined, pieces);
        }
        if copied < len { Err(Error::NoBuffers) } else { Ok(joined) }
    }

    pub(crate) fn close_udp(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.sockets.table.udp_mut(index) else { return };
        let port = socket.local.port();
        let groups = socket.groups.take();
        self.mem.shared.receive.charge_datagrams(socket.queued_bytes, 0);
        self.sockets.udp_binds.remove(port, index);
        self.sockets.table.remove(index);
        if let Some(groups) = groups {
            self.quit_groups(now, &groups);
        }
    }
}

/// Appends pieces, joining those that lie one behind the other in memory.
pub(super) fn append(to: &mut FragVec, pieces: FragVec) {
    for piece in pieces {
        let piece = match to.last_mut() {
            Some(last) => match last.try_append(piece) {
                Ok(()) => continue,
                Err(piece) => piece,
            },
            None => piece,
        };
        to.push(piece);
    }
}

pub(super) fn udp_mut(socket: &mut Socket) -> Result<&mut UdpSocket, Error> {
    match socket {
        Socket::Udp(socket) => Ok(socket),
        _ => Err(Error::NotSupported),
    }
}
