//! The stack: its network interfaces, all of its sockets, one thread at a time.
//!
//! Read [`Stack`] first. Verbs of the application are in `sockets/` beside the sockets that they
//! belong to.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pagewire_device::Capabilities;
use pagewire_mem::{CopyLedger, Instant, PacketBuf, PagePool, PageWriter, PoolAudit};
use pagewire_tcp::{
    ChallengeLimit, CongestionKind, FastOpenKeys, KeepAlive, ReceiveBudget, Shared,
};

use crate::limits::{LOOPBACKS_PER_POLL, STARVED_CHECK};
use crate::net::{
    Inbound, LinkConfig, LinkId, LinkIndex, Mem, Net, NetConfig, is_link_local, protocol,
};
use crate::sockets::handles::Work;
use crate::sockets::tcp::with_scope;
use crate::sockets::{Defence, Socket, Sockets, derive};
use crate::{
    Cidr, Counters, DropReason, Error, ErrorEntry, Event, FastOpenConfig, MtuDiscover, Readiness,
    SocketId, StackError, TcpConfig, ZeroCopyConfig, defer_accept_timeouts,
};

/// Settings of a stack.
#[derive(Clone)]
#[non_exhaustive]
pub struct StackConfig {
    /// What the device can do; of the first link's, if there are several.
    pub capabilities: Capabilities,
    /// Our addresses on it, each with the length of its network's prefix.
    pub addresses: Vec<Cidr>,
    /// Where packets go that are for no network of ours: default gateways, in order of preference.
    /// On a medium without stations any address serves, one of ours for instance.
    pub gateways: Vec<IpAddr>,
    /// Further routes: a network, and the gateway that leads there.
    pub routes: Vec<(Cidr, IpAddr)>,
    /// Further links, each a device with addresses of its own.
    pub links: Vec<LinkConfig>,
    /// With several links: whether packets are dropped that came by another link than answers to
    /// their source would leave by (Linux's `rp_filter` in strict mode, RFC 3704 section 2.2). On by
    /// default: no peer can pass for one on another link.
    pub reverse_path_check: bool,
    /// Whether packets for others are passed on from link to link (Linux's `ip_forward`).
    pub ip_forwarding: bool,
    /// Keys for sequence numbers, ports and hashes: fresh random bytes.
    pub secret: [u8; 32],
    /// Settings of new connections.
    pub tcp: TcpConfig,
    /// Bytes of memory for payload that is written by copy, or has to be copied; touched only as
    /// far as used.
    pub pool_bytes: usize,
    /// Bytes of memory that TCP connections and datagram sockets may pin, all together, for what they
    /// received and nobody has read, the latter at most half of it: less than the device has for what comes in, or those who do not read take
    /// everything from those who do.
    pub receive_memory: usize,
    /// Answers per second to TCP segments that make no sense, all connections together and on
    /// average; `None`: only each connection's own limit.
    pub challenge_acks_per_second: Option<u32>,
    /// When SYNs are answered without remembering them.
    pub syn_cookies: SynCookies,
    /// When a connection of ours may use ports that are still in TIME-WAIT.
    pub time_wait_reuse: TimeWaitReuse,
    /// TCP Fast Open.
    pub fast_open: FastOpenConfig,
    /// Whether payload that loops back to an address of ours passes by reference. By default it
    /// is copied, because a receiver that never reads would hold the sender's memory for ever.
    pub loopback_by_reference: bool,
    /// Whether our addresses are announced on the link at the start (RFC 5227, RFC 4861).
    pub announce: bool,
    /// Settings of zero-copy sends with a notification.
    pub zerocopy: ZeroCopyConfig,
}

/// Bytes of a pool unless told otherwise: some hundred connections with a window's worth each.
const DEFAULT_POOL_BYTES: usize = 64 << 20;

/// Bytes of receive memory unless told otherwise: three quarters of what a tap has for what comes
/// in, so that a quarter is left to everybody's next segments.
const DEFAULT_RECEIVE_MEMORY: usize = 48 << 20;

/// When a listener answers SYNs without remembering them (Linux's `tcp_syncookies`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Never: SYNs that find the queue of half-open connections full are dropped.
    Off,
    /// When the queue of half-open connections is full.
    #[default]
    WhenFull,
    /// Always.
    Always,
}

/// When a connection of ours may take the place of one in TIME-WAIT between the same ports,
/// both having timestamps (Linux's `tcp_tw_reuse`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeWaitReuse {
    /// Never.
    Off,
    /// Anywhere.
    On,
    /// To addresses of this host.
    #[default]
    Loopback,
}

impl StackConfig {
    /// Settings with the defaults of everything else.
    pub fn new(capabilities: Capabilities, addresses: Vec<Cidr>, secret: [u8; 32]) -> Self {
        Self {
            capabilities,
            addresses,
            gateways: Vec::new(),
            routes: Vec::new(),
            links: Vec::new(),
            reverse_path_check: true,
            ip_forwarding: false,
            secret,
            tcp: TcpConfig::default(),
            pool_bytes: DEFAULT_POOL_BYTES,
            receive_memory: DEFAULT_RECEIVE_MEMORY,
            challenge_acks_per_second: None,
            syn_cookies: SynCookies::default(),
            time_wait_reuse: TimeWaitReuse::default(),
            fast_open: FastOpenConfig::default(),
            loopback_by_reference: false,
            announce: true,
            zerocopy: ZeroCopyConfig::default(),
        }
    }
}

impl core::fmt::Debug for StackConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // The secret stays one.
        let Self { capabilities, addresses, gateways, routes, links, tcp, pool_bytes, .. } = self;
        f.debug_struct("StackConfig")
            .field("capabilities", capabilities)
            .field("addresses", addresses)
            .field("gateways", gateways)
            .field("routes", routes)
            .field("links", links)
            .field("tcp", tcp)
            .field("pool_bytes", pool_bytes)
            .finish_non_exhaustive()
    }
}

/// A setting of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TcpOption {
    /// Small pieces leave at once, not joined with what follows (RFC 896).
    NoDelay(bool),
    /// Only full segments leave.
    Cork(bool),
    /// Probe an idle connection; `None`: never.
    KeepAlive(Option<KeepAlive>),
    /// How long data, a SYN or a probe may go unanswered (RFC 5482); `None`: as long as their
    /// retransmissions take.
    UserTimeout(Option<Duration>),
    /// Upper bound of the MSS; `None`: what the link takes.
    MaxSeg(Option<u16>),
    /// Retransmissions of a SYN before connecting fails.
    SynCount(u8),
    /// Of a listener: how long a connection may wait for data to arrive before it can be accepted,
    /// rounded up to timeouts of the SYN,ACK ([`defer_accept_timeouts`]); then it can be accepted
    /// without. Zero: it does not wait. Of a connection that is being opened, any time has the
    /// acknowledgement that completes the handshake wait a little for data to go along with it.
    DeferAccept(Duration),
    /// How long a closed connection waits for the peer's FIN.
    Linger2(Duration),
    /// What closing does: zero resets the peer; all else is left to whoever waits.
    Linger(Option<Duration>),
    /// Unsent bytes from which on no more is taken, and below half of which the connection is
    /// writable again; `u32::MAX`: no limit.
    NotSentLowat(u32),
    /// Bytes that have to be there before the connection is readable.
    RcvLowat(u32),
    /// Fixes the send buffer, in bytes as Linux charges them.
    SendBuffer(u32),
    /// Fixes the receive buffer, in bytes of window.
    RecvBuffer(u32),
    /// Upper bound of the window that we announce; `None`: the buffer.
    WindowClamp(Option<u32>),
    /// Which congestion control; the window stays as it is.
    Congestion(CongestionKind),
    /// Acknowledge at once, for now.
    QuickAck(bool),
    /// An urgent byte stays in the stream.
    OobInline(bool),
    /// Keep a copy ledger for this connection alone; off drops what it has.
    CountCopies(bool),
    /// Keep errors that the network reports in the error queue; off drops what it has.
    QueueErrors(bool),
    /// Whether routers may cut its packets, and reports about the path count.
    MtuDiscover(MtuDiscover),
    /// Of a listener: how many connections may be open before their handshakes are complete (TCP
    /// Fast Open, RFC 7413); 0: none.
    FastOpen(u32),
    /// Of a listener: keys of its own to make Fast Open cookies with; `None`: the stack's.
    FastOpenKeys(Option<FastOpenKeys>),
    /// Of a listener: take data in SYNs that come without a Fast Open cookie.
    FastOpenNoCookie(bool),
}

impl TcpOption {
    /// Sets it in settings for connections to come: of a listener, or of one that is still to be
    /// opened. `false`: it is no setting of that kind.
    pub fn apply(self, config: &mut TcpConfig) -> bool {
        match self {
            Self::NoDelay(on) => config.nagle = !on,
            Self::Cork(on) => config.cork = on,
            Self::KeepAlive(keepalive) => config.keepalive = keepalive,
            Self::UserTimeout(limit) => config.user_timeout = limit,
            Self::MaxSeg(mss) => config.max_mss = mss,
            Self::SynCount(retries) => {
                (config.syn_retries, config.syn_linear_retries) = (retries, 0);
            }
            Self::DeferAccept(time) => config.defer_accept = defer_accept_timeouts(time),
            Self::Linger2(limit) => config.fin_wait2 = limit,
            Self::Linger(linger) => config.linger = linger,
            Self::NotSentLowat(bytes) => config.notsent_lowat = bytes,
            Self::RcvLowat(bytes) => config.recv_lowat = bytes.max(1),
            Self::SendBuffer(bytes) => {
                (config.send_buffer, config.send_buffer_initial) = (bytes, bytes);
            }
            Self::RecvBuffer(bytes) => {
                (config.recv_buffer, config.recv_buffer_initial) = (bytes, bytes);
            }
            Self::WindowClamp(bytes) => config.window_clamp = bytes,
            Self::OobInline(on) => config.oob_inline = on,
            Self::Congestion(kind) => config.congestion = kind,
            Self::QuickAck(_)
            | Self::CountCopies(_)
            | Self::QueueErrors(_)
            | Self::MtuDiscover(_)
            | Self::FastOpen(_)
            | Self::FastOpenKeys(_)
            | Self::FastOpenNoCookie(_) => return false,
        }
        true
    }
}

/// A TCP/IP stack on one device or several, which the caller drives. It has no clock, no thread and
/// makes no system call: time is an argument, and must not go backwards.
///
/// A turn of a driver:
///
/// 1. [`handle_frame`](Self::handle_frame) for what the device received,
///    [`handle_timeout`](Self::handle_timeout) if it is due; verbs of the application at any time;
/// 2. [`poll_transmit`](Self::poll_transmit) until it returns `false`, frames to the device;
/// 3. [`poll_event`](Self::poll_event) until `None`: whom to wake;
/// 4. [`end_turn`](Self::end_turn), then wait for the device or until
///    [`poll_timeout`](Self::poll_timeout).
///
/// With several devices, each a link with addresses of its own, frames come and go by
/// [`handle_frame_on`](Self::handle_frame_on) and [`poll_transmit_on`](Self::poll_transmit_on).
/// Sockets belong to no link, unless they are [bound](Self::bind_to_link) to one: an address of ours is ours whatever link a packet to it comes by, and
/// packets leave by the route to their destination, as on Linux (the weak host model).
pub struct Stack {
    pub(crate) core: Core,
    #[cfg(debug_assertions)]
    audit: Audit,
}

/// What goes on between inputs and outputs, and what verbs work with.
pub(crate) struct Core {
    pub(crate) net: Net,
    pub(crate) mem: Mem,
    pub(crate) sockets: Sockets,
}

/// Inputs.
impl Stack {
    /// A stack without sockets.
    pub fn new(now: Instant, config: StackConfig) -> Result<Self, StackError> {
        let StackConfig {
            capabilities,
            addresses,
            gateways,
            routes,
            links,
            reverse_path_check,
            ip_forwarding,
            secret,
            tcp,
            pool_bytes,
            receive_memory,
            challenge_acks_per_second,
            syn_cookies,
            time_wait_reuse,
            fast_open,
            loopback_by_reference,
            announce,
            zerocopy,
        } = config;
        let looped_copy = zerocopy.looped_copy;
        let defence = Defence { syn_cookies, time_wait_reuse };
        let mut sockets = Sockets::new(now, &secret, tcp, defence, zerocopy);
        sockets.fast_open.configure(fast_open);
        let shared = Shared {
            receive: ReceiveBudget::new(receive_memory),
            challenges: ChallengeLimit::new(
                derive(&secret, b"challenge acks"),
                challenge_acks_per_second,
            ),
        };
        let net_config = NetConfig {
            capabilities,
            addresses,
            gateways,
            routes,
            secret,
            loopback_by_reference,
            announce,
            looped_copy,
            reverse_path_check,
        };
        let mut net = Net::new(now, &net_config)?;
        for link in &links {
            net.add_link(now, link)?;
        }
        net.set_forwarding(ip_forwarding);
        let pool = PagePool::new("pagewire-stack", pool_bytes)?;
        let mem = Mem { pool, writer: PageWriter::new(), ledger: CopyLedger::new(), shared };
        Ok(Self {
            core: Core { net, mem, sockets },
            #[cfg(debug_assertions)]
            audit: Audit::default(),
        })
    }

    /// Takes over from `config` what may change while the stack runs: `tcp`, for connections made
    /// from now on, `syn_cookies`, `time_wait_reuse`, `ip_forwarding`, and what is said of Fast Open.
    /// The rest stays as it was at the start.
    pub fn reconfigure(&mut self, config: &StackConfig) {
        let StackConfig { tcp, syn_cookies, time_wait_reuse, fast_open, ip_forwarding, .. } =
            config;
        self.core.net.set_forwarding(*ip_forwarding);
        self.core.sockets.fast_open.configure(*fast_open);
        self.core.sockets.config = Arc::new(tcp.clone());
        self.core.sockets.defence =
            Defence { syn_cookies: *syn_cookies, time_wait_reuse: *time_wait_reuse };
    }

    /// Byte path, step R2: a frame that the device (the first link's) received.
    pub fn handle_frame(&mut self, now: Instant, mut frame: PacketBuf) {
        self.core.handle_frame_at(now, 0, &mut frame);
    }

    /// Byte path, step R2: a frame that the device of this link received.
    pub fn handle_frame_on(&mut self, now: Instant, link: LinkId, mut frame: PacketBuf) {
        match self.core.net.find_link(link) {
            Some(index) => self.core.handle_frame_at(now, index, &mut frame),
            None => self.core.net.counters.drop_one(DropReason::LinkRemoved),
        }
    }

    /// Byte path, step R2: a burst of frames that the device received, which are all taken. They stay
    /// where they lie until they are done with: moving a packet costs as much as a layer's work.
    pub fn handle_frames(&mut self, now: Instant, frames: &mut VecDeque<PacketBuf>) {
        self.core.handle_burst(now, 0, frames);
    }

    /// Byte path, step R2: a burst of frames that the device of this link received.
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

    /// `now` has reached [`poll_timeout`](Self::poll_timeout). Harmless at any other time.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.core.net.handle_timeout(&mut self.core.mem, now);
        // Nobody else does while no device asks for output.
        self.core.take_inbound(now);
        // First all that fired, then their work: a timer set meanwhile waits for the next call.
        let mut expired = core::mem::take(&mut self.core.sockets.expired);
        while let Some(index) = self.core.sockets.wheel.pop_expired(now) {
            expired.push(index);
        }
        // In the wheel are not yet those of connections that wait to be asked for segments.
        let Sockets { work: Work { dirty, .. }, table, .. } = &self.core.sockets;
        let timer = |&index: &u32| table.tcp(index).and_then(|socket| socket.conn.poll_timeout());
        let is_due = |index: &u32| timer(index).is_some_and(|at| at <= now);
        expired.extend(dirty.iter().copied().filter(is_due));
        for index in expired.drain(..) {
            self.core.tcp_timeout(now, index);
        }
        self.core.sockets.expired = expired;
        self.core.copy_guests(now);
        self.core.drain_returns(now);
        self.core.sockets.work.starved_until = now + STARVED_CHECK;
    }

    /// Ends a turn: takes home the pages and the completions of what was let go. Debug builds check
    /// that no page is lost.
    pub fn end_turn(&mut self) {
        self.core.drain_completions();
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
            Inbound::IcmpError { about, kind } if about.protocol == protocol::TCP => {
                self.tcp_icmp(now, about, *kind);
            }
            Inbound::IcmpError { about, kind } => self.udp_icmp(now, about, *kind),
        }
    }
}

/// Outputs.
impl Stack {
    /// Appends frames for the device (the first link's), a bounded number of them; `true`: there are
    /// more, call again once the device has taken these.
    pub fn poll_transmit(&mut self, now: Instant, out: &mut VecDeque<PacketBuf>) -> bool {
        let more = self.core.make_output(now);
        self.core.net.poll_transmit(0, out);
        self.core.sockets.resume(0) || more
    }

    /// The same for the device of this link. Any call makes output for all links; the other links'
    /// frames wait for theirs.
    pub fn poll_transmit_on(
        &mut self,
        now: Instant,
        link: LinkId,
        out: &mut VecDeque<PacketBuf>,
    ) -> bool {
        let more = self.core.make_output(now);
        let Some(index) = self.core.net.find_link(link) else { return more };
        self.core.net.poll_transmit(index, out);
        self.core.sockets.resume(index) || more
    }

    /// Whether frames for the device of this link wait for [`poll_transmit_on`](Self::poll_transmit_on).
    pub fn has_frames(&self, link: LinkId) -> bool {
        self.core.net.find_link(link).is_some_and(|index| self.core.net.has_frames(index))
    }

    /// Whether there is nothing to transmit, nothing to report and nothing under way between: until
    /// something comes in, a timer is due or a verb changes that.
    pub fn is_at_rest(&self) -> bool {
        let sockets = &self.core.sockets;
        sockets.work.dirty.is_empty()
            && sockets.work.unchecked.is_empty()
            && sockets.work.starved.is_empty()
            && !sockets.work.completions.is_pending()
            && self.core.net.is_at_rest()
    }

    /// When [`handle_timeout`](Self::handle_timeout) is due although nothing comes in. May be
    /// earlier than anything happens; timers of sockets fire late by less than 0.14 ms.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let sockets = &self.core.sockets;
        // One by one: every call of an application that sends comes by here.
        let mut first = None;
        let mut note = |at: Option<Instant>| {
            if let Some(at) = at {
                first = Some(first.map_or(at, |first: Instant| first.min(at)));
            }
        };
        note(self.core.net.poll_timeout());
        note(sockets.wheel.poll_timeout());
        note(sockets.guests.poll_timeout());
        if !sockets.work.starved.is_empty() {
            note(Some(sockets.work.starved_until));
        }
        if sockets.work.returns.is_pending() {
            note(Some(Instant::ZERO));
        }
        // Only while the device takes nothing are there connections whose timers are not set yet.
        for &index in &sockets.work.dirty {
            note(sockets.table.tcp(index).and_then(|socket| socket.conn.poll_timeout()));
        }
        first
    }

    /// The next socket that became ready for something that it was not ready for when it was last
    /// reported, or last used up: each at most once, however much came in. Only sockets that the
    /// application owns are reported.
    pub fn poll_event(&mut self) -> Option<Event> {
        if !self.core.sockets.work.starved.is_empty() {
            self.core.feed_starved();
        }
        self.core.drain_completions();
        self.core.sockets.poll_event()
    }
}

impl Core {
    /// Makes frames of what waits to be sent, a bounded number; whether there is more.
    fn make_output(&mut self, now: Instant) -> bool {
        let more_inbound = self.take_inbound(now);
        self.drain_returns(now);
        self.transmit_dirty(now) || more_inbound
    }

    /// Takes in what came by no device, a bounded number: what looped back, and what the network layer
    /// has to tell. Whether there may be more.
    fn take_inbound(&mut self, now: Instant) -> bool {
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

/// Links.
impl Stack {
    /// Another link: a device with addresses of its own. On an error nothing has changed.
    pub fn add_link(&mut self, now: Instant, config: &LinkConfig) -> Result<LinkId, StackError> {
        let id = self.core.net.add_link(now, config)?;
        self.core.revive();
        Ok(id)
    }

    /// Forgets a link, its addresses and routes, and the packets that waited for it; `false` if
    /// that was done before. Connections from its addresses find no way out any more, and end as they
    /// do when nobody answers.
    pub fn remove_link(&mut self, link: LinkId) -> bool {
        if let Some(index) = self.core.net.find_link(link) {
            self.core.sockets.resume(index);
        }
        self.core.net.remove_link(link)
    }

    /// All links, in the order of their places.
    pub fn links(&self) -> impl Iterator<Item = LinkId> {
        self.core.net.link_ids()
    }

    /// Our addresses on a link, the link-local one that IPv6 adds included; none once it is removed.
    pub fn link_addresses(&self, link: LinkId) -> impl Iterator<Item = Cidr> {
        self.core.net.link_addresses(link)
    }
}

/// Verbs for every socket.
impl Stack {
    /// The owner lets go: `id` is stale from here on. What a connection has queued is still
    /// delivered; if received data is left unread, the peer gets a reset (RFC 9293 section
    /// 3.10.4, RFC 2525 section 2.17). Connections that a listener has not handed out are reset.
    pub fn close(&mut self, now: Instant, id: impl Into<SocketId>) {
        let id = id.into();
        match self.core.sockets.table.get(id) {
            Ok(Socket::Tcp(_)) => self.core.tcp_close(now, id),
            Ok(Socket::Listener(_)) => self.core.close_listener(id.index()),
            Ok(Socket::Udp(_)) => self.core.close_udp(now, id.index()),
            Ok(Socket::TimeWait(_)) | Err(_) => {}
        }
    }

    /// Ends a connection at once, with a reset to the peer. The id stays until
    /// [`close`](Self::close); other sockets are closed.
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

    /// The error that the socket met, once.
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

    /// The oldest entry of the socket's error queue: memory of a zero-copy send that was let go,
    /// and with [`TcpOption::QueueErrors`] or [`Udp::queue_errors`](crate::Udp::queue_errors), errors.
    pub fn poll_error_queue(&mut self, id: impl Into<SocketId>) -> Option<ErrorEntry> {
        let id = id.into();
        self.core.drain_completions();
        let entry = self.core.sockets.table.get_mut(id).ok()?.errors_mut()?.pop();
        self.core.sockets.after_error_read(id);
        entry
    }
}

/// Getters.
impl Stack {
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

    /// Bytes of memory that sockets of all kinds pin for what they received and nobody has read; see
    /// [`StackConfig::receive_memory`].
    pub fn receive_memory_used(&self) -> usize {
        self.core.mem.shared.receive.used()
    }

    /// Pages of the stack's pool: a walk over all of them.
    pub fn pool_audit(&self) -> PoolAudit {
        self.core.mem.pool.audit()
    }

    /// Sockets of all kinds and states, those in TIME-WAIT included.
    pub fn socket_count(&self) -> usize {
        self.core.sockets.table.len()
    }

    /// Whether no connection has anything left to send, or to have acknowledged: a program may
    /// end. Whoever asks again and again pays for the connection that was found busy last; all are
    /// looked at only once that one is done.
    pub fn is_quiet(&self) -> bool {
        self.core.sockets.work.dirty.is_empty() && self.core.sockets.are_quiet()
    }
}

impl core::fmt::Debug for Stack {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Stack").field("sockets", &self.socket_count()).finish_non_exhaustive()
    }
}

/// Law: pages are conserved. Threads of the application may be letting go of pages while we count,
/// and such a page is nowhere for a moment: it may be missing, but not in every turn, and none may
/// ever be there twice.
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
        // Nothing went out or came home: nothing can have gone wrong.
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
