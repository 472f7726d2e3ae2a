//! [`TcpSocket`]: a connection, with the state that the stack keeps beside it.

use std::sync::Arc;

use pagewire_mem::{CopyLedger, Holdings, Instant};
use pagewire_tcp::limits::MEMORY_SHARE;
use pagewire_tcp::{Connection, Env, Promise, Shared, State};

use super::tcp_link;
use super::timestamping::TimestampRequests;
use crate::error::Error;
use crate::event::{Readiness, ReportState};
use crate::net::{LinkId, Mem, Net};
use crate::sockets::error_queue::ErrorQueue;
use crate::sockets::errors::error_from;
use crate::sockets::ids::SocketId;
use crate::sockets::marks::{ECN, MtuDiscover, PacketMarks};
use crate::sockets::splice::state::{Forwarding, SpliceState};
use crate::sockets::tuple::Tuple;

/// A connection and the stack's state of it.
pub(crate) struct TcpSocket {
    pub(crate) conn: Connection,
    pub(crate) tuple: Tuple,
    pub(crate) owner: Owner,
    pub(crate) flags: SocketFlags,
    /// On the list of connections that may send.
    pub(crate) tx_pending: bool,
    pub(crate) reporting: ReportState,
    /// Present if the connection is one of a forwarded pair.
    pub(crate) forwarding: Option<Box<Forwarding>>,
    /// Second of the stack's clock, modulo 65,536, in which the neighbour was last confirmed as reachable.
    pub(crate) reachable_at: u16,
    /// Second of the stack's clock in which the connection began.
    pub(crate) began: u32,
    /// Bytes of memory that are charged for the connection.
    charged: u32,
    /// The part of the window that the peer was promised.
    promise: Promise,
    /// Received memory that the application keeps; present once it has kept some.
    pub(crate) holdings: Option<Arc<Holdings>>,
    /// The network layer's generation of paths at the last look-up of the MTU.
    pub(crate) path_generation: u16,
    pub(crate) extra: Option<Box<RareState>>,
}

bitflags::bitflags! {
    /// The tables and lists that a connection is on, and events that were recorded.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct SocketFlags: u8 {
        /// The connection is in the demux.
        const DEMUX = 1 << 0;
        /// The connection is on the list of those that wait for free pages.
        const WAITS_FOR_PAGES = 1 << 1;
        /// The connection is on the list of sockets with borrowed memory in their receive queues.
        const BORROWED = 1 << 2;
        /// The connection was woken because pages are free, and has not tried to take them.
        const PAGE_TURN = 1 << 3;
        /// The last write got no page, and neither a turn nor a segment came since: the connection is not writable.
        const WRITE_REFUSED = 1 << 4;
        /// The connection waits among those whose data would stay queued (see `WAITS_FOR_PAGES`).
        const WAITS_FOR_RESERVE = 1 << 5;
        /// A tool was given the event that the connection was established.
        const ESTABLISHED = 1 << 6;
        /// A tool was given the event that the connection has ended.
        const ENDED = 1 << 7;
    }
}

/// An idle connection costs at most 760 bytes, its share of the tables included.
const _: () = assert!(size_of::<TcpSocket>() <= 664);

/// State that few connections need.
#[derive(Default)]
pub(crate) struct RareState {
    /// Copies made for this connection.
    pub(crate) ledger: Option<CopyLedger>,
    pub(crate) errors: Option<ErrorQueue>,
    /// Bytes whose timestamps were requested.
    pub(crate) timestamps: Option<Box<TimestampRequests>>,
    /// The listener for whose Fast Open limit the connection counts.
    pub(crate) fast_open_of: Option<SocketId>,
    pub(crate) mtu_discover: MtuDiscover,
    pub(crate) marks: PacketMarks,
    /// `SO_MARK`.
    pub(crate) mark: u32,
    /// The link that the connection is bound to.
    pub(crate) link: Option<LinkId>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The application.
    App,
    /// A listener, the handshake not complete.
    HalfOpen { listener: u32 },
    /// A listener, waiting to be accepted.
    Queued { listener: u32 },
    /// Nobody: the application has closed the connection, which delivers its queued data and ends.
    Closed,
}

impl TcpSocket {
    pub(crate) fn new(now: Instant, conn: Connection, tuple: Tuple, owner: Owner) -> Self {
        Self {
            conn,
            tuple,
            owner,
            flags: SocketFlags::empty(),
            tx_pending: false,
            reporting: ReportState::default(),
            forwarding: None,
            reachable_at: 0,
            began: (now.as_millis() / 1000) as u32,
            charged: 0,
            promise: Promise::default(),
            holdings: None,
            path_generation: 0,
            extra: None,
        }
    }

    #[inline]
    pub(crate) fn readiness(&self) -> Readiness {
        let mut readiness = Readiness::from_tcp(self.conn.readiness());
        if self.flags.contains(SocketFlags::WRITE_REFUSED) {
            readiness &= !Readiness::WRITABLE;
        }
        if self.errors().is_some_and(|e| !e.is_empty()) {
            readiness |= Readiness::ERROR_QUEUE;
        }
        readiness
    }

    /// Whether output has more to do for the connection than segments and a timer.
    pub(crate) fn is_rare(&self) -> bool {
        self.forwarding.is_some() || self.extra.is_some()
    }

    /// State of the forwarding that the stack does by itself, if it does.
    #[inline]
    pub(crate) fn splice(&self) -> Option<&SpliceState> {
        self.forwarding.as_ref()?.splice.as_ref()
    }

    #[inline]
    pub(crate) fn splice_mut(&mut self) -> Option<&mut SpliceState> {
        self.forwarding.as_mut()?.splice.as_mut()
    }

    pub(crate) fn bound(&self) -> Option<LinkId> {
        self.extra.as_ref()?.link
    }

    /// Whether the connection has no unsent or unacknowledged data.
    pub(crate) fn is_quiet(&self) -> bool {
        let info = self.conn.info();
        let closing = matches!(info.state, State::FinWait1 | State::Closing | State::LastAck);
        info.unsent == 0 && info.unacked == 0 && !closing
    }

    pub(crate) fn charged(&self) -> usize {
        self.charged as usize
    }

    /// Releases the charges of the queues. Memory that the application keeps is counted elsewhere.
    pub(crate) fn release_charges(&mut self, mem: &mut Mem) {
        mem.shared.memory.charge(self.charged as usize, 0);
        mem.shared.memory.promise(&mut self.promise, 0);
        (self.charged, self.holdings) = (0, None);
    }

    /// Whether the handshake was completed, even if the connection has ended since.
    pub(crate) fn was_established(&self) -> bool {
        self.conn.readiness().contains(pagewire_tcp::Readiness::CONNECTED)
    }

    pub(crate) fn errors(&self) -> Option<&ErrorQueue> {
        self.extra.as_ref()?.errors.as_ref()
    }

    pub(crate) fn take_error(&mut self) -> Option<Error> {
        let error = self.conn.take_error()?;
        self.reporting.reported &= self.readiness();
        Some(error_from(error))
    }

    /// Runs `f` with the connection and its environment, and charges the memory that the connection holds then.
    pub(crate) fn work<T>(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        f: impl FnOnce(&mut Connection, &mut Env<'_>) -> T,
    ) -> T {
        if let Some(holdings) = &self.holdings {
            self.conn.set_kept(holdings.bytes());
        }
        let Mem { pool, writer, ledger, shared, .. } = mem;
        let result = match self.extra.as_mut().and_then(|e| e.ledger.as_mut()) {
            None => f(&mut self.conn, &mut Env { now, ledger, pool, writer, shared }),
            Some(own) => {
                let mut copies = CopyLedger::new();
                let mut env = Env { now, ledger: &mut copies, pool, writer, shared };
                let result = f(&mut self.conn, &mut env);
                own.add(&copies);
                ledger.add(&copies);
                result
            }
        };
        if let Some(holdings) = &self.holdings
            && self.conn.is_held_back()
        {
            self.conn.set_kept(holdings.await_return());
        }
        self.charge(&mut mem.shared);
        result
    }

    /// Charges the memory that the connection pins, and what its peer was promised.
    #[inline]
    pub(crate) fn charge(&mut self, shared: &mut Shared) {
        let sends = if self.forwarding.is_some() { self.conn.send_charge() } else { 0 };
        let pinned = self.conn.receive_charge() + sends;
        if pinned > self.charged as usize && sends == 0 {
            shared.memory.note_overhead(pinned, self.conn.buffered_receive());
        }
        shared.memory.charge(self.charged as usize, pinned);
        shared.memory.promise(&mut self.promise, self.conn.promise());
        self.charged = u32::try_from(pinned).unwrap_or(u32::MAX);
    }

    /// Traffic class and hop limit of a segment with the ECN bits `ecn`.
    pub(crate) fn marked(&self, ecn: u8) -> (u8, Option<u8>) {
        let marks = self.extra.as_ref().map_or(PacketMarks::default(), |extra| extra.marks);
        (ecn | (marks.traffic_class & !ECN), marks.hop_limit)
    }

    fn mtu_discover(&self) -> MtuDiscover {
        self.extra.as_ref().map_or(MtuDiscover::Want, |e| e.mtu_discover)
    }

    /// Whether routers may not fragment the connection's packets.
    pub(super) fn dont_fragment(&self) -> bool {
        self.mtu_discover().dont_fragment()
    }

    pub(super) fn heeds_path(&self) -> bool {
        match self.mtu_discover() {
            MtuDiscover::Dont => self.tuple.remote.is_ipv6(),
            how => !how.ignores_reports(),
        }
    }

    /// Updates the MTU before a send, if that of any path has changed (RFC 1191, RFC 8201).
    ///
    /// A connection believes a report that quotes a segment in flight (RFC 5927); then the network
    /// layer remembers the path, and every connection over it looks up its MTU before it sends next.
    /// Probes without reports are each connection's own (RFC 4821, `pagewire_tcp`).
    #[inline]
    pub(super) fn refresh_path(&mut self, net: &Net) {
        let generation = net.path_generation();
        if core::mem::replace(&mut self.path_generation, generation) == generation
            || !self.heeds_path()
        {
            return;
        }
        let link = tcp_link(net, &self.tuple, self.bound());
        if link.mss != self.conn.info().path_mss {
            self.conn.set_link_limits(link);
        }
    }

    /// Remembers a report about the path, which the connection believes.
    pub(super) fn learn_path(&mut self, net: &mut Net, now: Instant, mtu: usize) {
        net.handle_path_mtu(now, self.tuple.remote, mtu);
        // This connection knows it already.
        self.path_generation = net.path_generation();
    }

    /// Whether the connection waits for pages and was not reported as writable since.
    pub(crate) fn waits_for_pages(&self) -> bool {
        self.flags.contains(SocketFlags::WAITS_FOR_PAGES)
            && !self.reporting.reported.contains(Readiness::WRITABLE)
    }

    /// How many of `len` bytes it may copy to pages of the stack, or have filled there.
    #[inline]
    pub(crate) fn share(&self, mem: &Mem, len: usize) -> usize {
        let share = (mem.free_for_copies() / MEMORY_SHARE).saturating_sub(self.conn.send_charge());
        if share >= len {
            return len;
        }
        let leaves = self.conn.leaves_at_once();
        if leaves < share { self.conn.whole_part(share) } else { len.min(leaves) }
    }

    /// Whether the stack may forward from and to it: not while an application keeps its memory.
    pub(crate) fn may_splice(&self) -> bool {
        self.splice().is_some() && self.holdings.is_none()
    }

    /// Whether there is something for the owner: data that stays, an end, a wait.
    pub(crate) fn needs_owner(&self) -> bool {
        self.conn.queued_receive() > 0 || !self.conn.gives() || !self.conn.takes()
    }
}

impl RareState {
    /// The initial state of a listener's connections, given the listener's own.
    pub(crate) fn inherited(&self) -> Self {
        let Self { mtu_discover, marks, mark, link, .. } = *self;
        let errors = self.errors.as_ref().map(ErrorQueue::with_settings_of);
        Self { errors, mtu_discover, marks, mark, link, ..Self::default() }
    }

    /// Reports the timestamps that are known.
    #[inline]
    pub(crate) fn poll_timestamps(&mut self, now: Instant, conn: &Connection) {
        let Some(timestamps) = &mut self.timestamps else { return };
        let errors = self.errors.get_or_insert_default();
        timestamps.poll(now, conn, |found| errors.timestamp(found));
    }
}
