//! The stack: links and sockets, driven by one thread at a time. Frames enter before R2
//! ([`Stack::handle_frames_on`]); events leave after R6 ([`Stack::poll_event`]).

pub(crate) mod shutdown;
pub(crate) mod view;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::{
    CopyLedger, CopyReason, FragVec, Instant, PacketBuf, PagePool, PageWriter, PoolAudit,
};
use pagewire_tcp::{ChallengeLimit, ReceiveBudget, Shared};

use crate::config::{PoolMemory, StackConfig};
use crate::limits::{LINK_NAME_BYTES, LOOPBACKS_PER_POLL};
use crate::net::{
    Inbound, LinkConfig, LinkId, LinkIndex, Mem, Net, NetConfig, is_link_local, protocol,
};
use crate::sockets::{Defence, Socket, Sockets, derive, with_scope};
use crate::{
    Cidr, Counters, DropReason, Error, ErrorEntry, Event, Readiness, SocketId, StackError,
};

/// A TCP/IP stack on one or more devices, which the caller drives. It has no clock and no thread,
/// and makes no system call: time is an argument, and must not go backwards.
///
/// A turn of a driver:
///
/// 1. [`handle_frame`](Self::handle_frame) for what the device received,
///    [`handle_timeout`](Self::handle_timeout) if it is due; verbs at any time;
/// 2. [`poll_transmit`](Self::poll_transmit) until it returns `false`, frames to the device;
/// 3. [`poll_event`](Self::poll_event) until `None`: whom to wake;
/// 4. [`end_turn`](Self::end_turn), then wait for the device or until
///    [`poll_timeout`](Self::poll_timeout).
///
/// With several devices, each a link with addresses of its own, frames arrive by
/// [`handle_frame_on`](Self::handle_frame_on) and leave by
/// [`poll_transmit_on`](Self::poll_transmit_on). Sockets belong to no link unless they are
/// [bound](crate::SocketOption::Link) to one: a packet to an address of ours may come by any link,
/// and packets leave by the route to their destination, as on Linux (the weak host model).
pub struct Stack {
    pub(crate) core: Core,
    #[cfg(debug_assertions)]
    audit: Audit,
}

/// The state that inputs, outputs and verbs share.
pub(crate) struct Core {
    pub(crate) net: Net,
    pub(crate) mem: Mem,
    pub(crate) sockets: Sockets,
}

impl Stack {
    /// A stack without sockets.
    pub fn new(now: Instant, config: StackConfig) -> Result<Self, StackError> {
        let (secret, zerocopy) = (config.secret, config.zerocopy);
        let defence =
            Defence { syn_cookies: config.syn_cookies, time_wait_reuse: config.time_wait_reuse };
        let StackConfig { capabilities, addresses, gateways, routes, transparent, .. } = config;
        let net_config = NetConfig {
            first_link: LinkConfig { capabilities, addresses, gateways, routes, transparent },
            secret,
            loopback_by_reference: config.loopback_by_reference,
            announce: config.announce,
            looped_copy: zerocopy.looped_copy,
            reverse_path_check: config.reverse_path_check,
        };
        let mut sockets = Sockets::new(now, &secret, config.tcp, defence, zerocopy);
        sockets.fast_open.configure(config.fast_open);
        let shared = Shared {
            receive: ReceiveBudget::new(config.receive_memory).with_kept(&sockets.work.returns),
            challenges: ChallengeLimit::new(
                derive(&secret, b"challenge acks"),
                config.challenge_acks_per_second,
            ),
        };
        let mut net = Net::new(now, &net_config)?;
        for link in &config.links {
            net.add_link(now, link)?;
        }
        net.set_forwarding(config.ip_forwarding);
        let pool = match config.pool {
            PoolMemory::File => PagePool::new("pagewire-stack", config.pool_bytes)?,
            PoolMemory::Anonymous => PagePool::anonymous(config.pool_bytes)?,
        };
        let (writer, filler) = (PageWriter::new(), PageWriter::new());
        let mem = Mem { pool, writer, filler, ledger: CopyLedger::new(), shared };
        Ok(Self {
            core: Core { net, mem, sockets },
            #[cfg(debug_assertions)]
            audit: Audit::default(),
        })
    }

    /// Changes the settings that may change while the stack runs: `tcp` (for later connections),
    /// `syn_cookies`, `time_wait_reuse`, `ip_forwarding` and `fast_open`. Ignores the others.
    pub fn reconfigure(&mut self, config: &StackConfig) {
        self.core.net.set_forwarding(config.ip_forwarding);
        let sockets = &mut self.core.sockets;
        sockets.fast_open.configure(config.fast_open);
        sockets.config = Arc::new(config.tcp.clone());
        let (syn_cookies, time_wait_reuse) = (config.syn_cookies, config.time_wait_reuse);
        sockets.defence = Defence { syn_cookies, time_wait_reuse };
    }

    /// Processes a frame that the first link's device received.
    pub fn handle_frame(&mut self, now: Instant, mut frame: PacketBuf) {
        self.core.handle_frame_at(now, 0, &mut frame);
    }

    /// Processes a frame that this link's device received.
    pub fn handle_frame_on(&mut self, now: Instant, link: LinkId, mut frame: PacketBuf) {
        match self.core.net.find_link(link) {
            Some(index) => self.core.handle_frame_at(now, index, &mut frame),
            None => self.core.net.counters.drop_one(DropReason::LinkRemoved),
        }
    }

    /// Processes a burst of frames that this link's device received, and leaves `frames` empty. A
    /// packet stays in its place until it is done with: moving one costs as much as a layer's work.
    pub fn handle_frames_on(
        &mut self,
        now: Instant,
        link: LinkId,
        frames: &mut VecDeque<PacketBuf>,
    ) {
        if let Some(index) = self.core.net.find_link(link) {
            return self.core.handle_burst(now, index, frames);
        }
        for _ in frames.drain(..) {
            self.core.net.counters.drop_one(DropReason::LinkRemoved);
        }
    }

    /// Runs what is due at `now`, see [`poll_timeout`](Self::poll_timeout); harmless at any time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.core.net.handle_timeout(&mut self.core.mem, now);
        // While no device asks for output, no other call processes these.
        self.core.take_inbound(now);
        // First collect, then work: a timer set meanwhile waits for the next call.
        let mut expired = core::mem::take(&mut self.core.sockets.expired);
        while let Some(index) = self.core.sockets.wheel.pop_expired(now) {
            expired.push(index);
        }
        // Dirty connections have no timer in the wheel yet.
        let Sockets { work, table, .. } = &mut self.core.sockets;
        let timer = |index| table.tcp(index).and_then(|socket| socket.conn.poll_timeout());
        work.take_due(now, timer, &mut expired);
        for index in expired.drain(..) {
            self.core.tcp_timeout(now, index);
        }
        self.core.sockets.expired = expired;
        self.core.copy_lent(now);
        self.core.drain_returns(now);
        self.core.sockets.work.starving.handle_timeout(now);
    }

    /// Ends a turn: collects pages that other threads released. Completions stay pending: their reports
    /// are the work of another turn. Debug builds check that no page is lost.
    #[inline]
    pub fn end_turn(&mut self) {
        self.core.mem.pool.drain();
        #[cfg(debug_assertions)]
        self.audit.check(&self.core.mem.pool);
    }
}

impl Core {
    fn handle_burst(&mut self, now: Instant, link: LinkIndex, frames: &mut VecDeque<PacketBuf>) {
        for frame in frames.iter_mut() {
            self.handle_frame_at(now, link, frame);
        }
        frames.clear();
    }

    #[inline(always)]
    fn handle_frame_at(&mut self, now: Instant, link: LinkIndex, frame: &mut PacketBuf) {
        match &self.net.handle_frame(&mut self.mem, now, link, frame) {
            Ok(Some(inbound)) => self.dispatch(now, inbound, frame),
            Ok(None) => {}
            Err(reason) => self.net.counters.drop_one(*reason),
        }
    }

    fn dispatch(&mut self, now: Instant, inbound: &Inbound, packet: &mut PacketBuf) {
        match inbound {
            Inbound::Transport(received) if received.protocol == protocol::TCP => {
                self.tcp_input(now, received, packet);
            }
            Inbound::Transport(received) => self.udp_input(now, received, packet),
            Inbound::Echo(received) => self.echo_input(now, received, packet),
            Inbound::IcmpError { about, kind } if about.protocol == protocol::TCP => {
                self.tcp_icmp(now, about, *kind);
            }
            Inbound::IcmpError { about, kind } => self.udp_icmp(now, about, *kind),
        }
    }
}

impl Stack {
    /// Whether frames wait for [`poll_transmit_on`](Self::poll_transmit_on) of this link.
    #[inline]
    pub fn has_frames(&self, link: LinkId) -> bool {
        self.core.net.find_link(link).is_some_and(|index| self.core.net.has_frames(index))
    }

    /// Whether nothing is to transmit or report until a frame, a timer or a verb comes.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        let sockets = &self.core.sockets;
        sockets.work.dirty.is_empty()
            && sockets.work.unchecked.is_empty()
            && !sockets.work.starving.is_met(self.core.mem.pool.stats().free)
            && !sockets.work.completions.is_pending()
            && self.core.net.is_at_rest()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due if no frame arrives. May be earlier
    /// than needed; timers of sockets fire late by less than 0.14 ms.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sockets = &self.core.sockets;
        // One by one, without a list: every send of an application calls this.
        let mut first = None;
        let mut note = |at: Option<Instant>| {
            if let Some(at) = at {
                first = Some(first.map_or(at, |first: Instant| first.min(at)));
            }
        };
        note(self.core.net.poll_timeout());
        note(sockets.wheel.poll_timeout());
        note(sockets.lent.poll_timeout());
        note(sockets.work.starving.poll_timeout());
        if sockets.work.returns.is_pending() {
            note(Some(Instant::ZERO));
        }
        note(sockets.work.dirty_timeout());
        first
    }

    /// The next socket of the application that has become ready for something since it was last
    /// reported or last used up: each at most once, however much arrived.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        if !self.core.sockets.work.starving.is_empty() {
            self.core.feed_starved();
        }
        self.core.drain_completions();
        let event = self.core.sockets.poll_event()?;
        if event.gained.contains(Readiness::CONNECTED) {
            self.core.sockets.note_lifecycle(&self.core.net, event.socket.index(), false);
        }
        Some(event)
    }

    /// What every socket of the application is ready for, as events: for somebody who was told of nothing
    /// so far. Changes nothing of what [`poll_event`](Self::poll_event) reports.
    pub fn events_so_far(&self) -> Vec<Event> {
        self.core.sockets.events_so_far()
    }
}

impl Core {
    /// Processes some looped-back packets and notices; whether there may be more.
    pub(crate) fn take_inbound(&mut self, now: Instant) -> bool {
        if !self.net.has_inbound() {
            return false;
        }
        let mut taken = 0;
        let mut packet = PacketBuf::for_rx();
        while taken < LOOPBACKS_PER_POLL
            && let Some(inbound) = self.net.poll_inbound(&mut self.mem, now, &mut packet)
        {
            self.dispatch(now, &inbound, &mut packet);
            taken += 1;
        }
        taken == LOOPBACKS_PER_POLL
    }
}

impl Stack {
    /// Adds a link: a device with addresses of its own. On an error nothing has changed.
    pub fn add_link(&mut self, now: Instant, config: &LinkConfig) -> Result<LinkId, StackError> {
        let id = self.core.net.add_link(now, config)?;
        self.core.revive();
        Ok(id)
    }

    /// Removes a link, its addresses and routes, and the packets that wait for it; `false` if it
    /// was removed before. Connections from its addresses have no route any more, and time out.
    pub fn remove_link(&mut self, link: LinkId) -> bool {
        if let Some(index) = self.core.net.find_link(link) {
            self.core.sockets.resume(index);
        }
        self.core.close_every(link);
        self.core.net.remove_link(link)
    }

    /// All links, in the order of their places.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.core.net.link_ids()
    }

    /// The name of a link: as [set](Self::name_link), or `link1`, `link2` and so on by its
    /// [`scope_id`](LinkId::scope_id). `None`: it was removed.
    pub fn link_name(&self, link: LinkId) -> Option<String> {
        self.core.net.link_name(link)
    }

    /// Names a link: 1 to 15 bytes (Linux's `IFNAMSIZ`) without a slash, a space or a zero.
    ///
    /// # Errors
    /// `InvalidInput` for another name or a link that was removed, `AddressInUse` for the name of
    /// another link.
    pub fn name_link(&mut self, link: LinkId, name: &str) -> Result<(), Error> {
        let odd = |c: char| c == '/' || c == '\0' || c.is_whitespace();
        if name.is_empty() || name.len() > LINK_NAME_BYTES || name.contains(odd) {
            return Err(Error::InvalidInput);
        }
        if self.links().any(|other| other != link && self.link_name(other).as_deref() == Some(name))
        {
            return Err(Error::AddressInUse);
        }
        if self.core.net.name_link(link, name) { Ok(()) } else { Err(Error::InvalidInput) }
    }

    /// Our addresses on a link, the added link-local one included; none once it is removed.
    pub fn link_addresses(&self, link: LinkId) -> impl Iterator<Item = Cidr> {
        self.core.net.link_addresses(link)
    }

    /// Closes a socket: `id` is stale from here on. A connection still delivers what is queued; if
    /// received data is unread, it resets the peer (RFC 9293 section 3.10.4, RFC 2525 section
    /// 2.17). A listener resets the connections that were not accepted.
    pub fn close(&mut self, now: Instant, id: impl Into<SocketId>) {
        let id = id.into();
        match self.core.sockets.table.get(id) {
            Ok(Socket::Tcp(_)) => self.core.tcp_close(now, id),
            Ok(Socket::Listener(_)) => self.core.close_listener(id.index()),
            Ok(Socket::Udp(_)) => self.core.close_udp(now, id.index()),
            Ok(Socket::TimeWait(_)) | Err(_) => {}
        }
    }

    /// Resets a connection; its id stays until [`close`](Self::close). Closes other sockets.
    pub fn abort(&mut self, now: Instant, id: impl Into<SocketId>) {
        let id = id.into();
        match self.core.sockets.table.get(id) {
            Ok(Socket::Tcp(_)) => self.core.tcp_abort(id.index()),
            _ => self.close(now, id),
        }
    }

    /// The address and port of this side.
    pub fn local_addr(&self, id: impl Into<SocketId>) -> Result<SocketAddr, Error> {
        Ok(match self.core.sockets.table.get(id.into())? {
            Socket::Tcp(socket) => {
                let scope = self.core.net.scope_of_local(socket.tuple.local);
                with_scope(socket.tuple.local_addr(), scope)
            }
            Socket::Listener(socket) => socket.local,
            Socket::Udp(socket) => socket.local,
            Socket::TimeWait(_) => return Err(Error::NoSuchSocket),
        })
    }

    /// The address and port of the other side; `NotConnected` if there is none.
    pub fn remote_addr(&self, id: impl Into<SocketId>) -> Result<SocketAddr, Error> {
        match self.core.sockets.table.get(id.into())? {
            Socket::Tcp(socket) => {
                let scope = self.core.net.scope_of_local(socket.tuple.local);
                let remote = socket.tuple.remote_addr();
                Ok(if is_link_local(remote.ip()) { with_scope(remote, scope) } else { remote })
            }
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(socket) => socket.remote.ok_or(Error::NotConnected),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    /// What the socket is ready for.
    pub fn readiness(&self, id: impl Into<SocketId>) -> Result<Readiness, Error> {
        Ok(self.core.sockets.table.get(id.into())?.readiness())
    }

    /// Takes the socket's error.
    pub fn take_error(&mut self, id: impl Into<SocketId>) -> Option<Error> {
        match self.core.sockets.table.get_mut(id.into()).ok()? {
            Socket::Tcp(socket) => socket.take_error(),
            Socket::Listener(_) | Socket::TimeWait(_) => None,
            Socket::Udp(socket) => {
                let down = socket.down.then_some(Error::NetworkDown);
                socket.take_error().or(down)
            }
        }
    }

    /// Takes the oldest entry of the socket's error queue: completions of zero-copy sends,
    /// timestamps, and with [`TcpOption::QueueErrors`](crate::TcpOption) or
    /// [`Udp::queue_errors`](crate::Udp::queue_errors), errors.
    pub fn poll_error_queue(&mut self, id: impl Into<SocketId>) -> Option<ErrorEntry> {
        let id = id.into();
        self.core.drain_completions();
        let entry = self.core.sockets.table.get_mut(id).ok()?.errors_mut()?.pop();
        self.core.sockets.after_error_read(id);
        entry
    }

    /// Counts.
    pub fn counters(&self) -> &Counters {
        &self.core.net.counters
    }

    /// Our addresses, of all links, the link-local ones that IPv6 adds included.
    pub fn addresses(&self) -> &[Cidr] {
        self.core.net.addresses()
    }

    /// Payload bytes copied, by reason.
    pub fn ledger(&self) -> &CopyLedger {
        &self.core.mem.ledger
    }

    /// The ledger, for a device that copies.
    pub fn ledger_mut(&mut self) -> &mut CopyLedger {
        &mut self.core.mem.ledger
    }

    /// Copies `data` to pages, as far as there are some; also returns the number of bytes.
    pub fn copy_in(&mut self, data: &[u8]) -> (FragVec, usize) {
        let Mem { pool, writer, ledger, .. } = &mut self.core.mem;
        writer.write(pool, data, ledger, CopyReason::AppWrite)
    }

    /// Bytes of memory that sockets pin for unread data; see [`StackConfig::receive_memory`].
    pub fn receive_memory_used(&self) -> usize {
        self.core.mem.shared.receive.used()
    }

    /// The device whose frames come next has so many bytes of memory left for what stays unread: no
    /// more is taken, or promised to peers, until the next call. `usize::MAX`: only
    /// [`StackConfig::receive_memory`] counts.
    pub fn set_receive_room(&mut self, bytes: usize) {
        self.core.mem.shared.receive.set_room(bytes);
    }

    /// Counts the pages of the stack's pool: walks over all of them.
    pub fn pool_audit(&self) -> PoolAudit {
        self.core.mem.pool.audit()
    }

    /// Sockets of all kinds and states, TIME-WAIT included.
    pub fn socket_count(&self) -> usize {
        self.core.sockets.table.len()
    }

    /// Whether no connection has unsent or unacknowledged data: the program may end. Looks at the
    /// connection that was busy last first.
    pub fn is_quiet(&self) -> bool {
        self.core.sockets.work.dirty.is_empty() && self.core.sockets.are_quiet()
    }
}

impl core::fmt::Debug for Stack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stack").field("sockets", &self.socket_count()).finish_non_exhaustive()
    }
}

/// Law: pages are conserved. A page that another thread releases during the count may be missing,
/// but not in every turn, and no page may be counted twice.
#[cfg(debug_assertions)]
#[derive(Default)]
struct Audit {
    free_before: usize,
    short_turns: u32,
}

#[cfg(debug_assertions)]
impl Audit {
    /// Turns in a row in which pages may be missing.
    const PATIENCE: u32 = 1000;

    fn check(&mut self, pool: &PagePool) {
        // No page was taken or returned.
        let free = pool.stats().free;
        if free == self.free_before && self.short_turns == 0 {
            return;
        }
        self.free_before = free;
        let audit = pool.audit();
        let found = audit.free + audit.returned + audit.out;
        assert!(found <= audit.total, "a page is in two places: {audit:?}");
        self.short_turns = if found < audit.total { self.short_turns + 1 } else { 0 };
        assert!(self.short_turns < Self::PATIENCE, "pages are lost: {audit:?}");
    }
}
