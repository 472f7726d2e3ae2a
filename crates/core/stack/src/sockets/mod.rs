//! Sockets. Read [`Context`] first, which all sockets share, and the views that operations work with
//! ([`Tcp`], [`Udp`], [`Listener`]); then the kinds (`tcp/`, `listen/`, `udp/`), and features of several
//! kinds: `bind/`, `options.rs`, `pages/`, `splice/`, `zerocopy/`.

pub(crate) mod bind;
mod error_queue;
mod errors;
mod fill;
pub(crate) mod ids;
pub(crate) mod listen;
pub(crate) mod marks;
pub(crate) mod options;
pub(crate) mod pages;
mod splice;
pub(crate) mod table;
pub(crate) mod tcp;
pub(crate) mod tuple;
pub(crate) mod udp;
mod work;
pub(crate) mod zerocopy;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};

use pagewire_mem::{Completed, Instant};

use crate::counters::DropReason;
use crate::error::Error;
use crate::event::{Event, Readiness};
use crate::limits::{REQUEST_ANSWERS_BURST, REQUEST_ANSWERS_PER_SECOND};
use crate::net::{LinkId, Mem, Net};
use crate::random::{Random, derive};
use crate::rate_limit::RateLimit;
use crate::shards::PortKind;
use crate::timer_wheel::TimerWheel;
use bind::BindOptions;
use bind::ephemeral::EphemeralPorts;
use bind::table::Sharing;
pub(crate) use error_queue::ErrorQueue;
use ids::{ListenerId, SocketId, TcpId, UdpId};
pub(crate) use splice::state::SplicedBytes;
pub(crate) use table::{Socket, Table};
use tcp::TcpSockets;
use tcp::lifecycle::Lifecycle;
use tcp::socket::{Owner, SocketFlags, TcpSocket};
pub(crate) use tuple::with_scope;
use udp::socket::UdpSocket;
pub(crate) use work::Work;
use zerocopy::borrowed::BorrowedMemory;

/// The context of sockets of every kind: the network, memory, the table of all sockets, and the lists of work
/// that is left. State that only connections, listeners or datagram sockets have is in
/// [`TcpSockets`], [`Listeners`](listen::Listeners) and [`UdpSockets`](udp::UdpSockets).
///
/// Inputs and operations only mark a socket: a connection stays in [`Work::tx_pending`] until `poll_transmit`
/// has taken its segments and set its timer; a socket stays in [`Work::event_pending`] until `poll_event` has
/// compared its readiness. So a burst costs one acknowledgement, one timer and one event.
pub(crate) struct Context {
    pub(crate) net: Net,
    pub(crate) table: Table,
    pub(crate) work: Work,
    pub(crate) wheel: TimerWheel,
    /// Buffer for timers that fired together.
    pub(crate) expired: Vec<u32>,
    ports: EphemeralPorts,
    /// Limits refusals and errors that the application sends.
    answers: RateLimit,
    /// A connection that was busy at the last question: a hint, which may be stale.
    busy: AtomicU32,
    pub(crate) borrowed: BorrowedMemory,
    /// Buffer for completions on their way to their sockets.
    drained: Vec<Completed>,
    /// Whether sockets can still send and receive.
    pub(crate) network: NetworkState,
    /// Present while a tool reads beginnings and ends of connections.
    pub(crate) lifecycle: Option<Box<Lifecycle>>,
}

/// Whether sockets can still send and receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NetworkState {
    /// Sockets can send and receive.
    Up,
    /// Sockets cannot until another link is added: no device is left.
    NoDevice,
    /// The stack was shut down.
    ShutDown,
}

/// A connection: a view for operations on it.
pub struct Tcp<'a> {
    id: SocketId,
    socket: &'a mut TcpSocket,
    mem: &'a mut Mem,
    work: &'a mut Work,
    wheel: &'a mut TimerWheel,
}

/// A datagram socket: a view for operations on it.
pub struct Udp<'a> {
    id: SocketId,
    socket: &'a mut UdpSocket,
    net: &'a mut Net,
    work: &'a mut Work,
}

/// A listener: a view for operations on it.
pub struct Listener<'a> {
    id: SocketId,
    tcp: &'a mut TcpSockets,
    cx: &'a mut Context,
}

impl Context {
    /// No sockets. Each table and number has a key of its own, derived from the stack's `secret`.
    pub(crate) fn new(now: Instant, secret: &[u8; 32], net: Net, work: Work) -> Self {
        let draws = |purpose: &[u8]| Random::new(derive(secret, purpose));
        let rate = (REQUEST_ANSWERS_PER_SECOND, REQUEST_ANSWERS_BURST);
        Self {
            net,
            table: Table::default(),
            wheel: TimerWheel::new(now),
            expired: Vec::new(),
            ports: EphemeralPorts::new(derive(secret, b"ports"), draws(b"port draws")),
            answers: RateLimit::new(now, rate, draws(b"answers")),
            busy: AtomicU32::new(u32::MAX),
            borrowed: BorrowedMemory::new(work.zerocopy.received_deadline),
            work,
            drained: Vec::new(),
            network: NetworkState::Up,
            lifecycle: None,
        }
    }

    /// The connection that `id` names.
    #[inline]
    pub(crate) fn tcp(&mut self, id: TcpId) -> Result<Tcp<'_>, Error> {
        let (id, Self { net, table, work, wheel, .. }) = (id.0, self);
        match table.get_mut(id)? {
            Socket::Tcp(socket) => Ok(Tcp { id, socket, mem: &mut net.mem, work, wheel }),
            Socket::Listener(_) => Err(Error::NotConnected),
            Socket::Udp(_) => Err(Error::NotSupported),
            Socket::TimeWait(_) => Err(Error::NoSuchSocket),
        }
    }

    /// The datagram socket that `id` names.
    #[inline]
    pub(crate) fn udp(&mut self, id: UdpId) -> Result<Udp<'_>, Error> {
        let (id, Self { net, table, work, .. }) = (id.0, self);
        match table.get_mut(id)? {
            Socket::Udp(socket) => Ok(Udp { id, socket, net, work }),
            _ => Err(Error::NotSupported),
        }
    }

    /// An error if sockets cannot send and receive.
    pub(crate) fn refuse_if_down(&self) -> Result<(), Error> {
        if self.network != NetworkState::Up { Err(Error::NetworkDown) } else { Ok(()) }
    }

    /// An error if a link was removed.
    pub(crate) fn check_link(&self, link: Option<LinkId>) -> Result<(), Error> {
        self.net.bound_link(link).map(drop).map_err(|_| Error::InvalidInput)
    }

    /// An error if a link is not transparent, or no socket can use it.
    fn check_transparent(&self, link: LinkId) -> Result<(), Error> {
        self.refuse_if_down()?;
        if self.net.is_transparent(link) { Ok(()) } else { Err(Error::InvalidInput) }
    }

    /// The address for a socket without a peer: `local`, with a free port instead of 0. The port is in use from then
    /// on ([`Net::release_port`]).
    fn bindable(
        &mut self,
        kind: PortKind,
        local: SocketAddr,
        options: BindOptions,
        is_taken: impl Fn(u16, Sharing) -> bool,
    ) -> Result<SocketAddr, Error> {
        let ip = local.ip();
        if !options.free && !ip.is_unspecified() && !self.net.is_local(ip) {
            return Err(Error::AddressNotAvailable);
        }
        let Self { ports, net, .. } = self;
        let mut claim = |port, sharing| {
            !is_taken(port, sharing) && net.claim_port(kind, port, options.port_claim(ip))
        };
        let port = match local.port() {
            0 => ports
                .choose(ip, None, |port| claim(port, Sharing::default()))
                .ok_or(Error::AddressNotAvailable)?,
            port if !claim(port, options.sharing()) => return Err(Error::AddressInUse),
            port => port,
        };
        Ok(SocketAddr::new(ip, port))
    }

    /// Takes a permit for an answer that the application sends.
    pub(crate) fn take_answer(&mut self, now: Instant) -> Result<(), Error> {
        if self.answers.take(now) {
            return Ok(());
        }
        self.net.counters.drop_one(DropReason::AnswerRateLimited);
        Err(Error::WouldBlock)
    }

    /// Marks the connection at `index`: it may send, and its readiness may have grown.
    pub(crate) fn touch(&mut self, index: u32) {
        self.touch_to_send(index);
        self.touch_to_report(index);
    }

    /// Marks the connection at `index`, which a segment came for. One that has nothing to send needs no output
    /// that finds nothing, but its timer.
    pub(crate) fn touch_by_segment(&mut self, now: Instant, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        if !socket.tx_pending && !socket.is_rare() && socket.conn.rests(now) {
            let at = socket.conn.poll_timeout();
            self.set_timer(index, at);
            return self.touch_to_report(index);
        }
        let Some(flow) = socket.splice_mut() else { return self.touch(index) };
        // Data that `forward_spliced` leaves is reported after it.
        flow.due = true;
        let waits = socket.tx_pending;
        self.work.queue_send(index, socket);
        if waits && self.work.holds_some() {
            // If it waits for its device, what it received need not wait too.
            self.touch_to_report(index);
        }
    }

    /// Sets the timer of the connection at `index`, which is not to send.
    #[inline]
    pub(crate) fn set_timer(&mut self, index: u32, at: Option<Instant>) {
        match at {
            None => self.wheel.cancel(index),
            Some(at) if self.wheel.covers(index, at) => {}
            Some(at) => self.wheel.schedule(index, at),
        }
    }

    pub(crate) fn touch_to_send(&mut self, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        self.work.queue_send(index, socket);
    }

    pub(crate) fn touch_to_report(&mut self, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        socket.flags.remove(SocketFlags::WRITE_REFUSED);
        self.work.queue_report(index, &mut socket.reporting);
    }

    /// Marks the socket at `index`, which is no connection: its readiness may have grown.
    pub(crate) fn check_later(&mut self, index: u32) {
        let Some(socket) = self.table.at_mut(index) else { return };
        if matches!(socket, Socket::Tcp(_)) {
            return;
        }
        let Some(reporting) = socket.reporting() else { return };
        self.work.queue_report(index, reporting);
    }

    /// Events with the readiness of every socket of the application.
    pub(crate) fn events_so_far(&self) -> Vec<Event> {
        let indices = self.table.indices();
        let event = |index| {
            let socket = self.table.at(index)?;
            let is_owned = !matches!(socket, Socket::Tcp(s) if s.owner != Owner::App);
            let readiness = Some(socket.readiness()).filter(|r| is_owned && !r.is_empty())?;
            Some(Event { socket: self.table.id_of(index)?, gained: readiness, readiness })
        };
        indices.into_iter().filter_map(event).collect()
    }

    /// Reports that the socket `id` is ready for `what`, even if that was reported before.
    pub(crate) fn report_again(&mut self, id: SocketId, what: Readiness) {
        let Ok(socket) = self.table.get_mut(id) else { return };
        let Some(reporting) = socket.reporting() else { return };
        reporting.reported &= !what;
        self.work.queue_report(id.index(), reporting);
    }

    /// Reports a new entry in the socket's error queue, even if one was reported before.
    pub(crate) fn report_new_entry(&mut self, index: u32) {
        let Some(socket) = self.table.at_mut(index) else { return };
        if !socket.errors().is_some_and(ErrorQueue::has_new_entry) {
            return;
        }
        let Some(reporting) = socket.reporting() else { return };
        self.work.queue_report(index, reporting);
    }

    /// Whether no connection has unsent or unacknowledged data.
    pub(crate) fn are_quiet(&self) -> bool {
        let is_busy = |socket: &Socket| !socket.is_quiet();
        if self.table.at(self.busy.load(Ordering::Relaxed)).is_some_and(is_busy) {
            return false;
        }
        let busy = self.table.iter().find(|(_, socket)| is_busy(socket)).map(|(index, _)| index);
        self.busy.store(busy.unwrap_or(u32::MAX), Ordering::Relaxed);
        busy.is_none()
    }

    /// The next socket whose readiness has grown since it was last reported.
    #[inline]
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        if !self.work.page_waiters.is_empty() {
            self.wake_page_waiters();
        }
        self.drain_completions();
        while let Some(index) = self.work.event_pending.pop_front() {
            let Some(socket) = self.table.at_mut(index) else { continue };
            let readiness = socket.readiness();
            // Errors, notifications and timestamps are reported one by one.
            let news = socket.errors_mut().is_some_and(ErrorQueue::take_new_entry);
            let is_owned = !matches!(socket, Socket::Tcp(s) if s.owner != Owner::App);
            let Some(reporting) = socket.reporting() else { continue };
            reporting.event_pending = false;
            if !is_owned {
                continue;
            }
            if news {
                reporting.reported &= !Readiness::ERROR_QUEUE;
            }
            let gained = readiness & !reporting.reported;
            reporting.reported = readiness;
            if !gained.is_empty()
                && let Some(socket) = self.table.id_of(index)
            {
                if gained.contains(Readiness::CONNECTED) {
                    self.note_lifecycle(index, false);
                }
                return Some(Event { socket, gained, readiness });
            }
        }
        None
    }
}

impl Tcp<'_> {
    /// The connection's id.
    pub fn id(&self) -> TcpId {
        TcpId(self.id)
    }

    /// Marks it: it may send, and its readiness may have grown.
    #[inline]
    fn touch(&mut self) {
        let index = self.id.index();
        self.work.queue_send(index, self.socket);
        self.work.queue_report(index, &mut self.socket.reporting);
    }
}

impl<'a> Listener<'a> {
    pub(crate) fn new(id: ListenerId, tcp: &'a mut TcpSockets, cx: &'a mut Context) -> Self {
        Self { id: id.0, tcp, cx }
    }
}

impl Udp<'_> {
    /// The socket's id.
    pub fn id(&self) -> UdpId {
        UdpId(self.id)
    }

    /// Marks it: its readiness may have grown.
    fn check_later(&mut self) {
        self.work.queue_report(self.id.index(), &mut self.socket.reporting);
    }
}
