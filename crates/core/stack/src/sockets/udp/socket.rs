//! [`UdpSocket`]: the state of a datagram socket, and its receive queue.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use pagewire_mem::{
    CopyLedger, CopyReason, Frag, FragVec, Instant, PAGE_SIZE, PacketBuf, PagePool, PageWriter,
};

use super::memberships::{MulticastSettings, UdpGroups};
use super::target::{CorkedDatagram, DatagramSpec};
use crate::counters::DropReason;
use crate::error::Error;
use crate::event::{Readiness, ReportState};
use crate::limits::{
    DATAGRAM_EVERY_BYTES, MAX_LINKS, UDP_MAX_PAYLOAD_V4, UDP_MAX_SEGMENTS, UDP_RECEIVE_BYTES,
    UDP_RECEIVE_DATAGRAMS,
};
use crate::net::wire::{ipv4, ipv6, udp};
use crate::net::{IcmpKind, LinkId, LinkIndex, Mem};
use crate::shards::PortKind;
use crate::sockets::bind::table::ANY_V4;
use crate::sockets::error_queue::ErrorQueue;
use crate::sockets::marks::{ECN, MtuDiscover, PacketMarks};
use crate::sockets::pages::waiters::PageWait;

pub(crate) struct UdpSocket {
    pub(crate) local: SocketAddr,
    pub(crate) remote: Option<SocketAddr>,
    /// The link that `remote` is on, if it is link-local.
    pub(crate) scope: u32,
    pub(crate) queue: VecDeque<QueuedDatagram>,
    /// Bytes charged for what is queued, and how many may be.
    pub(crate) queued_bytes: usize,
    pub(crate) receive_bytes: usize,
    /// Datagrams that found no room, modulo 2^32.
    pub(crate) dropped: u32,
    pub(crate) error: Option<Error>,
    /// No datagram can come or leave: there is no device left.
    pub(crate) down: bool,
    pub(crate) errors: Option<Box<ErrorQueue>>,
    /// On the list of sockets with borrowed memory in their receive queues.
    pub(crate) has_borrowed: bool,
    /// Payload bytes of each datagram of a call that sends more; 0: one call, one datagram.
    pub(crate) segment: u16,
    /// A datagram to which more is to come.
    pub(crate) cork: Option<Box<CorkedDatagram>>,
    pub(crate) marks: PacketMarks,
    /// `SO_MARK`.
    pub(crate) mark: u32,
    pub(crate) mtu_discover: MtuDiscover,
    /// Payload bytes of the longest datagram that was sent, or was to be.
    pub(crate) longest: u16,
    /// May send to all hosts of a network.
    pub(crate) broadcast: bool,
    /// Several datagrams are received as one.
    pub(crate) joins: bool,
    /// The link that it is bound to.
    pub(crate) link: Option<LinkId>,
    /// Joined groups and settings for them; present once either was set.
    pub(crate) groups: Option<Box<UdpGroups>>,
    pub(crate) pages: PageWait,
    /// Set for a socket that takes datagrams to every address and port of its link.
    pub(crate) wildcard: Option<DatagramKind>,
    pub(crate) reporting: ReportState,
}

/// A received datagram: two cache lines, which is what the compiler moves without a call.
pub(crate) struct QueuedDatagram {
    pub(crate) payload: FragVec,
    pub(super) at: Instant,
    /// Bytes of receive memory.
    pub(super) charge: u32,
    /// The congestion mark of its packet, and [`SCOPED`].
    pub(super) bits: u8,
    /// Payload bytes of each datagram but the last, if these are several that came as one; else 0.
    pub(super) segment: u16,
    pub(crate) details: WildcardDetails,
    pub(super) port: u16,
    pub(crate) link: LinkIndex,
    pub(super) sender: IpAddr,
    pub(crate) to: IpAddr,
}

const _: () = assert!(size_of::<QueuedDatagram>() <= 128 && MAX_LINKS < u8::MAX as usize);

/// In the bits of a datagram: the sender's address is of `link` only.
pub(super) const SCOPED: u8 = 1 << 2;

/// Details of a datagram that only a socket for every address and port of a link reports.
#[derive(Clone, Copy, Default)]
#[repr(align(4))]
pub(crate) struct WildcardDetails {
    /// The destination port; 0: the socket's own.
    pub(crate) to_port: u16,
    pub(crate) hop_limit: u8,
    pub(crate) dont_fragment: bool,
}

impl QueuedDatagram {
    /// The place of a datagram.
    pub(super) const EMPTY: Self = Self {
        payload: FragVec::new_const(),
        at: Instant::ZERO,
        charge: 0,
        bits: 0,
        segment: 0,
        details: WildcardDetails { to_port: 0, hop_limit: 0, dont_fragment: false },
        port: 0,
        link: 0,
        sender: ANY_V4,
        to: ANY_V4,
    };

    /// Where it was sent, to a socket at `local`.
    pub(crate) fn to(&self, local: SocketAddr) -> SocketAddr {
        let port = self.details.to_port;
        SocketAddr::new(self.to, if port == 0 { local.port() } else { port })
    }

    #[inline]
    pub(crate) fn from(&self) -> SocketAddr {
        match self.sender {
            IpAddr::V4(ip) => SocketAddr::from((ip, self.port)),
            IpAddr::V6(ip) => {
                let scope = if self.bits & SCOPED != 0 { u32::from(self.link) + 1 } else { 0 };
                SocketAddrV6::new(ip, self.port, 0, scope).into()
            }
        }
    }

    pub(super) fn ecn(&self) -> u8 {
        self.bits & ECN
    }

    #[inline]
    pub(crate) fn charge(&self) -> usize {
        self.charge as usize
    }

    pub(crate) fn len(&self) -> usize {
        self.payload.iter().map(|frag| frag.len()).sum()
    }

    /// Length of the first datagram.
    pub(super) fn next_len(&self) -> usize {
        match self.segment {
            0 => self.len(),
            segment => usize::from(segment),
        }
    }

    /// The same without payload.
    fn clone_ends(&self) -> Self {
        Self { payload: FragVec::new(), ..*self }
    }
}

/// The kind of datagrams that a socket for every address of a link receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DatagramKind {
    /// UDP datagrams.
    Udp,
    /// ICMP echo requests; what it sends are replies. In place of the sender's port stands the
    /// identifier, and the payload begins with the sequence number, two bytes (RFC 792, RFC 4443).
    Echo,
}

impl DatagramKind {
    pub(super) fn port_kind(self) -> PortKind {
        match self {
            Self::Udp => PortKind::Udp,
            Self::Echo => PortKind::Echo,
        }
    }
}

impl UdpSocket {
    /// A socket bound to `local`.
    pub(crate) fn new(local: SocketAddr, link: Option<LinkId>) -> Self {
        Self {
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
            has_borrowed: false,
            segment: 0,
            cork: None,
            marks: PacketMarks::default(),
            mark: 0,
            mtu_discover: MtuDiscover::default(),
            longest: 0,
            broadcast: false,
            joins: false,
            link,
            groups: None,
            pages: PageWait::No,
            wildcard: None,
            reporting: ReportState { reported: Readiness::WRITABLE, ..ReportState::default() },
        }
    }

    pub(crate) fn is_echo(&self) -> bool {
        self.wildcard == Some(DatagramKind::Echo)
    }

    /// Why a datagram that keeps `charge` bytes is not taken; an empty queue takes one.
    pub(super) fn refusal(&self, mem: &Mem, charge: usize) -> Option<DropReason> {
        let room = self.receive_bytes.saturating_sub(self.queued_bytes);
        if (charge > room && !self.queue.is_empty()) || self.queue.len() >= UDP_RECEIVE_DATAGRAMS {
            return Some(DropReason::UdpQueueFull);
        }
        let takes = mem.shared.memory.takes_datagram(self.queued_bytes, charge);
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
    pub(crate) fn takes_from(&self, from: SocketAddr) -> Option<bool> {
        match self.remote {
            None => Some(false),
            Some(remote) => (remote == from).then_some(true),
        }
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let error = self.error.take();
        self.reporting.reported &= self.readiness();
        error
    }

    /// Copies senders' memory that waited for `limit`, as far as possible; whether some is left.
    pub(crate) fn give_back(&mut self, mem: &mut Mem, now: Instant, limit: Duration) -> bool {
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

    /// The error of a call that finds no datagram.
    pub(crate) fn no_datagram(&self) -> Error {
        if self.down { Error::NetworkDown } else { Error::WouldBlock }
    }

    /// Whether an ICMP error can be about a datagram of this socket.
    ///
    /// A datagram has no sequence number that a forger would have to guess (RFC 5927), but it has
    /// to be longer than the reported MTU: short datagrams are safe.
    pub(super) fn may_have_met(&self, kind: IcmpKind, remote: IpAddr) -> bool {
        let IcmpKind::PacketTooBig { mtu } = kind else { return true };
        let ip = if remote.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        ip + udp::LEN + usize::from(self.longest) > mtu
    }

    pub(crate) fn set_receive_bytes(&mut self, bytes: usize) {
        let every = self.wildcard.is_some();
        self.receive_bytes =
            bytes.min(if every { DATAGRAM_EVERY_BYTES } else { UDP_RECEIVE_BYTES });
    }

    pub(crate) fn multicast_mut(&mut self, v6: bool) -> &mut MulticastSettings {
        let [for_v4, for_v6] = &mut self.groups.get_or_insert_default().settings;
        if v6 { for_v6 } else { for_v4 }
    }

    /// Settings for groups of a version of IP.
    pub(crate) fn multicast(&self, v6: bool) -> MulticastSettings {
        let Some(groups) = &self.groups else { return MulticastSettings::default() };
        let [v4_settings, v6_settings] = groups.settings;
        if v6 { v6_settings } else { v4_settings }
    }

    /// Whether it takes datagrams to a group that come by a link.
    pub(super) fn takes_group(&self, group: IpAddr, link: Option<LinkId>) -> bool {
        // As Linux, which compares the link in IPv4 only.
        let is_it = |(joined, on)| joined == group && (group.is_ipv6() || Some(on) == link);
        self.multicast(group.is_ipv6()).all
            || self.groups.as_ref().is_some_and(|groups| groups.joined.iter().any(is_it))
    }

    /// How many datagrams at the front of the queue can be joined to one of up to `room` bytes.
    pub(super) fn joinable(&self, room: usize) -> usize {
        let most = if self.joins { UDP_MAX_SEGMENTS } else { 1 };
        let mut queue = self.queue.iter();
        let Some(first) = queue.next() else { return 0 };
        if first.segment > 0 {
            return 1;
        }
        let (mut found, mut total) = (1, first.len());
        let ends = |datagram: &QueuedDatagram| {
            let WildcardDetails { to_port, dont_fragment, .. } = datagram.details;
            (datagram.from(), datagram.to, datagram.link, to_port, dont_fragment, datagram.ecn())
        };
        for next in queue.take(most - 1) {
            let len = next.len();
            total += len;
            let fits = next.segment == 0
                && len > 0
                && len <= first.len()
                && total <= room.min(UDP_MAX_PAYLOAD_V4);
            if !fits || ends(next) != ends(first) {
                break;
            }
            found += 1;
            if len < first.len() {
                break;
            }
        }
        found
    }

    /// Leaves in the oldest entry of the queue, if it is several datagrams, as many as `room` bytes hold, at
    /// least one; the others follow it.
    #[inline]
    pub(super) fn split_oldest(&mut self, room: usize) {
        if let Some(first) = self.queue.front()
            && first.segment > 0
            && (!self.joins || first.len() > room)
        {
            self.split_at_room(room);
        }
    }

    #[cold]
    fn split_at_room(&mut self, room: usize) {
        let Some(mut rest) = self.queue.pop_front() else { return };
        let (size, len) = (usize::from(rest.segment), rest.len());
        let n = if self.joins { (room - room % size).max(size) } else { size };
        let payload = split_front(&mut rest.payload, n);
        // Together they stay charged as before.
        let charge = (u64::from(rest.charge) * n as u64 / len.max(n) as u64) as u32;
        let segment = if n > size { rest.segment } else { 0 };
        let front = QueuedDatagram { payload, charge, segment, ..rest.clone_ends() };
        rest.charge -= charge;
        if rest.len() <= size {
            rest.segment = 0;
        }
        if !rest.payload.is_empty() {
            self.queue.push_front(rest);
        }
        self.queue.push_front(front);
    }

    /// Where the corked datagram goes; drops it if `len` more bytes make it too long.
    pub(crate) fn corked(&mut self, len: usize) -> Option<Result<DatagramSpec, Error>> {
        let cork = self.cork.as_ref()?;
        let ends = cork.ends;
        if cork.len + len <= ends.longest() {
            return Some(Ok(ends));
        }
        // As Linux.
        self.cork = None;
        Some(Err(Error::MessageTooLong))
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

/// Replaces a packet's payload by a copy or a clone of another, which has no more fragments than it.
pub(crate) fn replace_payload(packet: &mut PacketBuf, payload: FragVec) {
    packet.take_frags();
    payload.into_iter().for_each(|frag| _ = packet.push_frag(frag));
}

/// Takes the first `n` bytes of a payload, or all.
pub(super) fn split_front(payload: &mut FragVec, n: usize) -> FragVec {
    let (mut front, mut missing, mut whole) = (FragVec::new(), n, 0);
    for frag in payload.iter_mut() {
        let part = frag.split_to(missing);
        missing -= part.len();
        whole += usize::from(frag.is_empty());
        front.push(part);
        if missing == 0 {
            break;
        }
    }
    payload.drain(..whole);
    front
}

/// Appends pieces, joining those that lie one behind the other in memory.
pub(crate) fn append(to: &mut FragVec, pieces: FragVec) {
    pieces.into_iter().for_each(|piece| piece.append_to(to));
}
