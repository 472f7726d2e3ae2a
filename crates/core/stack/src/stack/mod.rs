//! [`Stack`]: links and sockets, driven by one thread at a time. Frames enter before R2
//! ([`Stack::handle_frames_on`]); events leave after R6 ([`Stack::poll_event`]).

mod links;
mod open;
pub(crate) mod reservations;
pub(crate) mod shutdown;
mod sockets;
pub(crate) mod view;

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, CopyReason, FragVec, Instant, PacketBuf, PagePool, PoolAudit};
use pagewire_tcp::{ChallengeLimit, MemoryAccount, Shared};

use crate::config::{PoolMemory, StackConfig};
use crate::limits::LOOPBACKS_PER_POLL;
use crate::net::{
    Flow, Inbound, InputResult, LinkConfig, LinkId, LinkIndex, Mem, Net, NetConfig, Stray, protocol,
};
use crate::random::derive;
use crate::sockets::listen::Listeners;
use crate::sockets::tcp::TcpSockets;
use crate::sockets::udp::UdpSockets;
use crate::sockets::{Context, Socket, Work};
use crate::{Cidr, Counters, DropReason, Event, StackError};

/// A TCP/IP stack on one or more devices, which the caller drives. It has no clock and no thread,
/// and makes no system call: time is an argument, and must not go backwards.
///
/// A turn of a driver:
///
/// 1. [`handle_frame`](Self::handle_frame) for what the device received,
///    [`handle_timeout`](Self::handle_timeout) if it is due; operations on sockets at any time;
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
    pub(crate) cx: Context,
    pub(crate) tcp: TcpSockets,
    pub(crate) listeners: Listeners,
    pub(crate) udp: UdpSockets,
    #[cfg(debug_assertions)]
    audit: Audit,
}

impl Stack {
    /// A stack without sockets.
    pub fn new(now: Instant, config: StackConfig) -> Result<Self, StackError> {
        let (secret, shard) = (config.secret, config.shard);
        let own_secret = shard.as_ref().map_or(secret, |shard| shard.own_secret(&secret));
        let StackConfig { capabilities, addresses, gateways, routes, .. } = config;
        let StackConfig { transparent, proxy_arp, .. } = config;
        let net_config = NetConfig {
            first_link: LinkConfig {
                capabilities,
                addresses,
                gateways,
                routes,
                transparent,
                proxy_arp,
            },
            secret,
            loopback_by_reference: config.loopback_by_reference,
            announce: config.announce && shard.as_ref().is_none_or(|shard| shard.index() == 0),
            shard,
            looped_copy: config.zerocopy.looped_copy,
            reverse_path_check: config.reverse_path_check,
        };
        let mut tcp = TcpSockets::new(now, &secret, config.tcp, config.time_wait_reuse);
        tcp.fast_open.configure(config.fast_open);
        let work = Work::new(now, config.zerocopy);
        let shared = Shared {
            memory: MemoryAccount::new(config.memory).with_kept(&work.returns),
            challenges: ChallengeLimit::new(
                derive(&own_secret, b"challenge acks"),
                config.challenge_acks_per_second,
            ),
        };
        // Copies of what is sent are less. The rest is for data that can leave at once, and for small segments.
        let pool_bytes = shared.memory.limit();
        let pool = match config.pool {
            PoolMemory::File => PagePool::new("pagewire-stack", pool_bytes)?,
            PoolMemory::Anonymous => PagePool::anonymous(pool_bytes)?,
        };
        let mut net = Net::new(now, &net_config, Mem::new(pool, shared))?;
        for link in &config.links {
            net.add_link(now, link)?;
        }
        net.set_forwarding(config.ip_forwarding);
        Ok(Self {
            cx: Context::new(now, &own_secret, net, work),
            tcp,
            listeners: Listeners::new(&secret, config.syn_cookies),
            udp: UdpSockets::new(&secret),
            #[cfg(debug_assertions)]
            audit: Audit::default(),
        })
    }

    /// Changes the settings that may change while the stack runs: `tcp` (for later connections),
    /// `syn_cookies`, `time_wait_reuse`, `ip_forwarding` and `fast_open`. Ignores the others.
    pub fn reconfigure(&mut self, config: &StackConfig) {
        self.cx.net.set_forwarding(config.ip_forwarding);
        self.tcp.fast_open.configure(config.fast_open);
        self.tcp.config = Arc::new(config.tcp.clone());
        self.tcp.time_wait_reuse = config.time_wait_reuse;
        self.listeners.syn_cookies = config.syn_cookies;
    }

    /// Processes a frame that the first link's device received.
    pub fn handle_frame(&mut self, now: Instant, mut frame: PacketBuf) {
        self.handle_frame_at(now, 0, &mut frame);
    }

    /// Processes a frame that this link's device received.
    pub fn handle_frame_on(&mut self, now: Instant, link: LinkId, mut frame: PacketBuf) {
        let Some(index) = self.cx.net.find_link(link) else {
            return self.cx.net.counters.drop_one(DropReason::LinkRemoved);
        };
        self.handle_frame_at(now, index, &mut frame);
    }

    /// Processes a burst of frames that this link's device received, and leaves `frames` empty. A
    /// packet is not moved until it is done with: moving one costs as much as a layer's work. Returns
    /// the number of frames that a connection or a datagram socket has taken.
    pub fn handle_frames_on(
        &mut self,
        now: Instant,
        link: LinkId,
        frames: &mut VecDeque<PacketBuf>,
    ) -> usize {
        self.cx.net.mem.note(now);
        let mut taken = 0;
        if let Some(index) = self.cx.net.find_link(link) {
            for frame in frames.iter_mut() {
                taken += usize::from(self.handle_frame_at(now, index, frame));
            }
            frames.clear();
        }
        for _ in frames.drain(..) {
            self.cx.net.counters.drop_one(DropReason::LinkRemoved);
        }
        taken
    }

    /// Moves packets that one other shard of the host has to handle into `into`, which is empty, and returns the shard's
    /// number: for its [`handle_stray`](Self::handle_stray). `None`: there are no more. There may be some after frames
    /// came in, and after [`poll_transmit`](Self::poll_transmit) and [`handle_timeout`](Self::handle_timeout), which
    /// handle packets of this host to itself.
    #[inline]
    pub fn poll_strays(&mut self, into: &mut VecDeque<Stray>) -> Option<usize> {
        self.cx.net.poll_strays(into)
    }

    /// The number of the shard that has the packets of this flow, whose destination is on this side; 0 for a stack without
    /// others. A later bind of the port may change the shard of a flow without a connection.
    pub fn home_of(&self, flow: &Flow) -> usize {
        self.cx.net.home_of(flow)
    }

    /// Processes a packet that another shard has passed on, in its place: a stray is long, and moves cost. Afterwards
    /// the stray keeps no memory. Returns whether a connection or a datagram socket has taken the packet: a flood of
    /// others needs a limit.
    pub fn handle_stray(&mut self, now: Instant, stray: &mut Stray) -> bool {
        self.cx.net.mem.note(now);
        let result = self.cx.net.handle_stray(now, stray);
        let is_taken = self.handle_input(now, result, &mut stray.packet);
        if stray.packet.frag_len() > 0 {
            drop(stray.packet.take_frags());
        }
        is_taken
    }

    /// Drops a packet that another shard has no room for, and counts it.
    pub fn drop_stray(&mut self, stray: Stray) {
        self.cx.net.drop_stray();
        drop(stray);
    }

    /// Runs what is due at `now`, see [`poll_timeout`](Self::poll_timeout); harmless at any time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.cx.net.mem.note(now);
        self.cx.net.handle_timeout(now);
        // While no device asks for output, no other call processes these.
        self.take_inbound(now);
        // First collect, then work: a timer set meanwhile waits for the next call.
        let mut expired = core::mem::take(&mut self.cx.expired);
        while let Some(index) = self.cx.wheel.pop_expired(now) {
            expired.push(index);
        }
        // Dirty connections have no timer in the wheel yet.
        let Context { work, table, .. } = &mut self.cx;
        let timer = |index| table.tcp(index).and_then(|socket| socket.conn.poll_timeout());
        work.take_due(now, timer, &mut expired);
        for index in expired.drain(..) {
            match self.cx.table.at(index) {
                Some(Socket::Tcp(_)) => self.cx.tcp_timeout(now, index),
                Some(Socket::TimeWait(_)) => self.tcp.time_wait_timeout(&mut self.cx, now, index),
                Some(Socket::Listener(_)) => self.cx.requests_timeout(now, index),
                Some(Socket::Udp(_)) | None => {}
            }
        }
        self.cx.expired = expired;
        self.cx.copy_borrowed(now);
        self.cx.drain_returns(now);
        self.cx.work.page_waiters.handle_timeout(now);
    }

    /// Ends a turn: collects pages that other threads released. Completions stay pending: their reports
    /// are the work of another turn. Debug builds check that no page is lost.
    #[inline]
    pub fn end_turn(&mut self) {
        self.cx.net.mem.pool.drain();
        #[cfg(debug_assertions)]
        self.audit.check(&self.cx.net.mem.pool);
    }

    /// Processes a frame; returns whether a connection or a datagram socket took it.
    fn handle_frame_at(&mut self, now: Instant, link: LinkIndex, frame: &mut PacketBuf) -> bool {
        let Self { cx, tcp, listeners, udp, .. } = self;
        match cx.net.handle_expected(now, link, frame) {
            Some(expected) if expected.protocol == protocol::TCP => {
                tcp.input(cx, listeners, now, expected.received(), frame)
            }
            Some(expected) => udp.input_expected(cx, now, expected, frame),
            None => {
                let result = cx.net.handle_frame(now, link, frame);
                self.handle_input(now, result, frame)
            }
        }
    }

    /// Handles what the network layer made of a packet; returns whether a connection or a datagram socket took it.
    fn handle_input(&mut self, now: Instant, result: InputResult, packet: &mut PacketBuf) -> bool {
        match result {
            Ok(Some(inbound)) => return self.dispatch(now, &inbound, packet),
            Ok(None) => {}
            Err(reason) => self.cx.net.counters.drop_one(reason),
        }
        false
    }

    /// Hands a packet to its socket; returns whether that is a connection or a datagram socket.
    #[inline(never)]
    fn dispatch(&mut self, now: Instant, inbound: &Inbound, packet: &mut PacketBuf) -> bool {
        let Self { cx, tcp, listeners, udp, .. } = self;
        match inbound {
            Inbound::Transport(received) if received.protocol == protocol::TCP => {
                return tcp.input(cx, listeners, now, *received, packet);
            }
            Inbound::Transport(received) => return udp.input(cx, now, received, packet),
            Inbound::Echo(received) => udp.echo_input(cx, now, received, packet),
            Inbound::IcmpError { about, kind } if about.protocol == protocol::TCP => {
                tcp.icmp(cx, now, about, *kind);
            }
            Inbound::IcmpError { about, kind } => udp.icmp(cx, now, about, *kind),
        }
        false
    }

    /// Processes some looped-back packets and notices; whether there may be more.
    fn take_inbound(&mut self, now: Instant) -> bool {
        if !self.cx.net.has_inbound() {
            return false;
        }
        let mut taken = 0;
        let mut packet = PacketBuf::for_rx();
        while taken < LOOPBACKS_PER_POLL
            && let Some(inbound) = self.cx.net.poll_inbound(now, &mut packet)
        {
            self.dispatch(now, &inbound, &mut packet);
            taken += 1;
        }
        taken == LOOPBACKS_PER_POLL
    }
}

impl Stack {
    /// Whether frames wait for [`poll_transmit_on`](Self::poll_transmit_on) of this link.
    #[inline]
    pub fn has_frames(&self, link: LinkId) -> bool {
        self.cx.net.find_link(link).is_some_and(|index| self.cx.net.has_frames(index))
    }

    /// Whether there is nothing to transmit or report until a frame, a timer or an operation comes.
    #[inline]
    pub fn is_at_rest(&self) -> bool {
        let Context { net, work, .. } = &self.cx;
        work.tx_pending.is_empty()
            && work.event_pending.is_empty()
            && !work.page_waiters.is_met(net.mem.free_pages())
            && !work.completions.is_pending()
            && net.is_at_rest()
            && !net.has_strays()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due if no frame arrives. May be earlier
    /// than needed; timers of sockets fire late by less than 0.14 ms.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let Context { net, work, wheel, borrowed, .. } = &self.cx;
        // The loop collects no list: every send of an application calls this.
        let mut first = None;
        let mut note = |at: Option<Instant>| {
            if let Some(at) = at {
                first = Some(first.map_or(at, |first: Instant| first.min(at)));
            }
        };
        note(net.poll_timeout());
        note(wheel.poll_timeout());
        note(borrowed.poll_timeout());
        note(work.page_waiters.poll_timeout());
        if work.returns.is_pending() {
            note(Some(Instant::ZERO));
        }
        note(work.tx_pending_timeout());
        first
    }

    /// The next socket of the application that has become ready for something since it was last
    /// reported or last used up: each at most once, however much arrived.
    #[inline]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.cx.poll_event()
    }

    /// Events with the readiness of every socket of the application, for an observer that begins now. The
    /// reports of [`poll_event`](Self::poll_event) stay as they are.
    pub fn events_so_far(&self) -> Vec<Event> {
        self.cx.events_so_far()
    }

    /// Appends a bounded number of frames for the first link's device. `true`: there are more; call
    /// again once the device has taken these.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        self.transmit(now, Some(0), out)
    }

    /// As [`poll_transmit`](Self::poll_transmit), for this link's device. Each call makes frames
    /// for all links; those of other links wait for their calls.
    pub fn poll_transmit_on(
        &mut self,
        now: Instant,
        link: LinkId,
        out: &mut VecDeque<PacketBuf>,
    ) -> bool {
        let index = self.cx.net.find_link(link);
        self.transmit(now, index, out)
    }

    /// Makes a bounded number of frames for all links, and appends those of one. `true`: there are more.
    fn transmit(
        &mut self,
        now: Instant,
        link: Option<LinkIndex>,
        out: &mut VecDeque<PacketBuf>,
    ) -> bool {
        let more_inbound = self.take_inbound(now);
        self.cx.drain_returns(now);
        let more = self.tcp.transmit_pending(&mut self.cx, now) || more_inbound;
        let Some(index) = link else { return more };
        self.cx.net.poll_transmit(index, out);
        self.cx.work.resume(index) || more
    }

    /// Frames from [`poll_transmit_on`](Self::poll_transmit_on) that the device of this link
    /// refused because it lacked something that it may have soon, a queue or memory; in the order
    /// in which they were to be sent. They are lost, and are taken out of `frames`. A connection
    /// that learns this at once neither blames the path nor waits for its retransmission timeout.
    /// Call it before the next `poll_transmit_on`.
    pub fn handle_refused_on(
        &mut self,
        now: Instant,
        link: LinkId,
        frames: &mut VecDeque<PacketBuf>,
    ) {
        match self.cx.net.find_link(link) {
            Some(index) => self.tcp.handle_refused(&mut self.cx, now, index, frames),
            None => frames.clear(),
        }
    }

    /// Counts.
    pub fn counters(&self) -> &Counters {
        &self.cx.net.counters
    }

    /// Our addresses, of all links, the link-local ones that IPv6 adds included.
    pub fn addresses(&self) -> &[Cidr] {
        self.cx.net.addresses()
    }

    /// Payload bytes copied, by reason.
    pub fn ledger(&self) -> &CopyLedger {
        &self.cx.net.mem.ledger
    }

    /// The ledger, for a device that copies.
    pub fn ledger_mut(&mut self) -> &mut CopyLedger {
        &mut self.cx.net.mem.ledger
    }

    /// Copies `data` to pages, as far as there are some; also returns the number of bytes.
    pub fn copy_in(&mut self, data: &[u8]) -> (FragVec, usize) {
        let Mem { pool, writer, ledger, .. } = &mut self.cx.net.mem;
        writer.write(pool, data, ledger, CopyReason::AppWrite)
    }

    /// The account of the memory that sockets pin; see [`StackConfig::memory`].
    pub fn memory(&self) -> &MemoryAccount {
        &self.cx.net.mem.shared.memory
    }

    /// Bytes of memory that sockets pin for unread data, and that applications keep.
    pub fn receive_memory_used(&self) -> usize {
        self.memory().received()
    }

    /// The device whose frames come next has `bytes` bytes of memory left for what stays unread: no
    /// more is taken, or promised to peers, until the next call. `usize::MAX`: only
    /// [`StackConfig::memory`] counts.
    pub fn set_receive_room(&mut self, bytes: usize) {
        self.cx.net.mem.shared.memory.set_room(bytes);
    }

    /// Gives memory that was not used for a while back to the system; for about once a second.
    pub fn trim(&mut self) {
        self.cx.net.mem.pool.trim();
    }

    /// Counts the pages of the stack's pool: walks over all of them.
    pub fn pool_audit(&self) -> PoolAudit {
        self.cx.net.mem.pool.audit()
    }

    /// Sockets of all kinds and states, TIME-WAIT included.
    pub fn socket_count(&self) -> usize {
        self.cx.table.len()
    }

    /// Whether no connection has unsent or unacknowledged data: the program may end. Checks the
    /// connection that was busy last first.
    pub fn is_quiet(&self) -> bool {
        self.cx.work.tx_pending.is_empty() && self.cx.are_quiet()
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
