//! Sockets. Read [`Sockets`] first, then the kinds (`tcp.rs`, `listener.rs`, `udp.rs`),
//! `handles.rs` (what verbs work with) and `demux.rs` (which socket a packet is for).

pub(crate) mod bind;
mod error_queue;
mod errors;
mod fill;
pub(crate) mod handles;
pub(crate) mod ids;
pub(crate) mod listen;
pub(crate) mod marks;
pub(crate) mod options;
mod pages;
mod path_mtu;
mod shares;
mod splice;
pub(crate) mod table;
pub(crate) mod tcp;
pub(crate) mod tuple;
pub(crate) mod udp;
mod work;
pub(crate) mod zerocopy;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pagewire_mem::{Completed, Instant};
use pagewire_tcp::{CookieJar, IsnGenerator};
use siphasher::sip::SipHasher13;

use crate::TcpConfig;
use crate::config::{SynCookies, TimeWaitReuse, ZeroCopyConfig};
use crate::event::{Event, Readiness};
use crate::limits::{
    REQUEST_ANSWERS_BURST, REQUEST_ANSWERS_PER_SECOND, RESETS_BURST, RESETS_PER_SECOND,
};
use crate::net::LinkIndex;
use crate::random::Random;
use crate::rate_limit::RateLimit;
use crate::stack::shutdown::Down;
use crate::timer_wheel::TimerWheel;
use bind::Reservations;
use bind::ephemeral::EphemeralPorts;
use bind::table::{Binds, Every};
pub(crate) use error_queue::ErrorQueue;
use ids::SocketId;
pub(crate) use splice::flow::Passed;
pub(crate) use table::{Socket, Table};
use tcp::demux::Demux;
use tcp::fast_open::FastOpen;
use tcp::lifecycle::Lifecycle;
use tcp::socket::{Lists, Owner};
pub(crate) use tuple::with_scope;
pub(crate) use work::Work;
use zerocopy::borrowed::LentMemory;

/// All sockets of a stack.
///
/// Inputs and verbs only mark a socket: a connection is on the list `dirty` until `poll_transmit`
/// has asked it for segments and set its timer; a socket is on `unchecked` until `poll_event` has
/// compared its readiness. So a burst costs one acknowledgement, one timer and one event.
pub(crate) struct Sockets {
    pub(crate) table: Table,
    pub(crate) demux: Demux,
    /// Listeners by port.
    pub(crate) tcp_binds: Binds,
    /// Ports that are bound, whether or not a listener is there.
    pub(crate) reservations: Reservations,
    /// Datagram sockets by port.
    pub(crate) udp_binds: Binds,
    /// Sockets for echo requests to every address of a link.
    pub(crate) echoes: Every,
    pub(crate) ports: EphemeralPorts,
    pub(crate) isn: IsnGenerator,
    pub(crate) fast_open: FastOpen,
    pub(crate) wheel: TimerWheel,
    /// Settings of new connections.
    pub(crate) config: Arc<TcpConfig>,
    /// Settings of handshakes and of what is left of connections.
    pub(crate) defence: Defence,
    pub(crate) cookies: CookieJar,
    /// Dirty connections that wait for a link's device, by link; entries may be stale.
    pub(crate) held_up: Vec<Vec<u32>>,
    pub(crate) work: Work,
    /// Closed connections in TIME-WAIT, oldest first; entries may be stale.
    pub(crate) time_wait: VecDeque<SocketId>,
    /// Resets for segments that belong to no connection.
    pub(crate) resets: RateLimit,
    /// Refusals and errors that the application asks for.
    pub(crate) answers: RateLimit,
    /// Buffer for timers that fired together.
    pub(crate) expired: Vec<u32>,
    /// A connection that was busy at the last question: a hint, which may be stale.
    busy: AtomicU32,
    pub(crate) lent: LentMemory,
    /// Buffer for completions on their way to their sockets.
    drained: Vec<Completed>,
    /// Whether sockets can still send and receive.
    pub(crate) down: Down,
    /// Present while a tool asks for the lives of connections.
    lifecycle: Option<Box<Lifecycle>>,
}

/// Settings of handshakes and of what is left of connections.
#[derive(Clone, Copy)]
pub(crate) struct Defence {
    pub(crate) syn_cookies: SynCookies,
    pub(crate) time_wait_reuse: TimeWaitReuse,
}

impl Sockets {
    /// No sockets. Each table and number has a key of its own, derived from the stack's secret.
    pub(crate) fn new(
        now: Instant,
        secret: &[u8; 32],
        config: TcpConfig,
        defence: Defence,
        zerocopy: ZeroCopyConfig,
    ) -> Self {
        let draws = |purpose: &[u8]| Random::new(derive(secret, purpose));
        Self {
            table: Table::default(),
            demux: Demux::new(derive(secret, b"demux")),
            tcp_binds: Binds::new(derive(secret, b"listeners that share a port")),
            reservations: Reservations::default(),
            udp_binds: Binds::new(derive(secret, b"datagram sockets that share a port")),
            echoes: Every::default(),
            ports: EphemeralPorts::new(derive(secret, b"ports"), draws(b"port draws")),
            isn: IsnGenerator::new(derive(secret, b"isn")),
            fast_open: FastOpen::new(secret),
            wheel: TimerWheel::new(now),
            config: Arc::new(config),
            defence,
            cookies: CookieJar::new(derive(secret, b"syn cookies")),
            held_up: Vec::new(),
            time_wait: VecDeque::new(),
            resets: RateLimit::new(now, (RESETS_PER_SECOND, RESETS_BURST), draws(b"resets")),
            answers: RateLimit::new(
                now,
                (REQUEST_ANSWERS_PER_SECOND, REQUEST_ANSWERS_BURST),
                draws(b"answers"),
            ),
            expired: Vec::new(),
            busy: AtomicU32::new(u32::MAX),
            lifecycle: None,
            lent: LentMemory::new(zerocopy.received_deadline),
            work: Work::new(now, zerocopy),
            drained: Vec::new(),
            down: Down::No,
        }
    }

    /// Marks the connection at `index`: it may send, and its readiness may have grown.
    pub(crate) fn touch(&mut self, index: u32) {
        self.touch_to_send(index);
        self.touch_to_report(index);
    }

    pub(crate) fn touch_by_segment(&mut self, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        let Some(flow) = &mut socket.flow else { return self.touch(index) };
        // What `pass_on` leaves is reported after it.
        flow.due = true;
        let waits = socket.dirty;
        self.work.queue_send(index, socket);
        if waits && self.held_up.iter().any(|list| !list.is_empty()) {
            // If it waits for its device, what it received need not wait too.
            self.touch_to_report(index);
        }
    }

    pub(crate) fn touch_to_send(&mut self, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        self.work.queue_send(index, socket);
    }

    pub(crate) fn touch_to_report(&mut self, index: u32) {
        let Some(socket) = self.table.tcp_mut(index) else { return };
        socket.lists.remove(Lists::REFUSED);
        self.work.queue_report(index, &mut socket.reporting);
    }

    /// The device of a link has room again. Returns whether connections waited for it.
    pub(crate) fn resume(&mut self, link: LinkIndex) -> bool {
        let held_up = self.held_up.get_mut(usize::from(link)).filter(|list| !list.is_empty());
        let Some(list) = held_up else { return false };
        self.work.dirty.extend(list.drain(..));
        true
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

    /// What every socket of the application is ready for.
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
    pub(crate) fn report_news(&mut self, index: u32) {
        let Some(socket) = self.table.at_mut(index) else { return };
        if !socket.errors().is_some_and(ErrorQueue::has_news) {
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
        while let Some(index) = self.work.unchecked.pop_front() {
            let Some(socket) = self.table.at_mut(index) else { continue };
            let readiness = socket.readiness();
            // Errors, notifications and timestamps are reported one by one.
            let news = socket.errors_mut().is_some_and(ErrorQueue::take_news);
            let is_owned = !matches!(socket, Socket::Tcp(s) if s.owner != Owner::App);
            let Some(reporting) = socket.reporting() else { continue };
            reporting.unchecked = false;
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
                return Some(Event { socket, gained, readiness });
            }
        }
        None
    }
}

pub(crate) fn derive(secret: &[u8; 32], purpose: &[u8]) -> [u8; 16] {
    use core::hash::Hasher;
    let (mut key, mut out) = ([0u8; 16], [0u8; 16]);
    for (half, to) in secret.chunks(16).zip(out.chunks_mut(8)) {
        key.copy_from_slice(half);
        let mut hasher = SipHasher13::new_with_key(&key);
        hasher.write(purpose);
        to.copy_from_slice(&hasher.finish().to_ne_bytes());
    }
    out
}
