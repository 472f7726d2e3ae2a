//! What one connection remembers, how it begins, and what it tells.
//!
//! The parts do the work (`path.rs`, `life/`, `outbound/`, `inbound/`); what a segment, a timer or the
//! application asks of several of them is filed by direction: `input.rs`, `application.rs`, `output.rs`,
//! `life/timeout.rs`. Nothing takes input and emits output: whatever is due is remembered until
//! `poll_transmit` asks.
//!
//! An idle connection owns no heap: queues give theirs back, and what only a loss needs is boxed.

use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant, PagePool, PageWriter};

use crate::config::{Config, LinkLimits};
use crate::error::TcpError;
use crate::header::TcpHeader;
use crate::inbound::Inbound;
use crate::info::Readiness;
use crate::life::fast_open::client;
use crate::life::handshake;
use crate::life::state::{Event, State};
use crate::life::{Life, LifeFlags};
use crate::outbound::Outbound;
use crate::path::{Path, PathFlags, Ports, Timestamps};
use crate::seq::Seq;
use crate::shared::Shared;

/// What a connection borrows from its host while it works.
#[allow(missing_debug_implementations, reason = "borrows of the host's own things")]
pub struct Env<'a> {
    /// The time of this turn.
    pub now: Instant,
    /// Where copies are counted.
    pub ledger: &'a mut CopyLedger,
    /// Where pages come from.
    pub pool: &'a mut PagePool,
    /// Where bytes are written into pages.
    pub writer: &'a mut PageWriter,
    /// What it shares with the host's other connections.
    pub shared: &'a mut Shared,
}

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) path: Path,
    pub(crate) life: Life,
    pub(crate) out: Outbound,
    pub(crate) inbound: Inbound,
}

impl Connection {
    /// Opens actively (RFC 9293 section 3.10.1): in SYN-SENT, the SYN appears in
    /// [`poll_transmit`](Self::poll_transmit). `iss` and `ts_offset` come from an
    /// [`IsnGenerator`](crate::IsnGenerator).
    pub fn connect(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
    ) -> Self {
        let mut conn = Self::new(now, config, link, ports, iss, ts_offset);
        conn.path.flags.insert(PathFlags::ACTIVE);
        conn.path.flags.set(PathFlags::TIMESTAMPS, conn.path.config.timestamps);
        conn.path.flags.set(PathFlags::SACK, conn.path.config.sack);
        conn.path.transition(Event::OpenActive);
        conn
    }

    /// Opens passively, from the `syn` that a listener got: in SYN-RECEIVED, the SYN,ACK appears
    /// in [`poll_transmit`](Self::poll_transmit).
    pub fn accept(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
        syn: &TcpHeader,
    ) -> Self {
        let mut conn = Self::new(now, config, link, ports, iss, ts_offset);
        conn.path.flags.set(PathFlags::TIMESTAMPS, conn.path.config.timestamps);
        conn.path.flags.set(PathFlags::SACK, conn.path.config.sack);
        conn.path.state = State::Listen;
        handshake::take_syn(&mut conn, now, syn, 0);
        conn.path.transition(Event::Syn);
        conn
    }

    fn new(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        iss: Seq,
        ts_offset: u32,
    ) -> Self {
        let out = Outbound::new(now, &config, iss);
        let inbound = Inbound::new(now, &config, link);
        let path = Path {
            config,
            link,
            ports,
            state: State::Closed,
            flags: PathFlags::empty(),
            ts: Timestamps { offset: ts_offset, recent: 0, recent_at: 0 },
            heard_at: now,
        };
        Self { path, life: Life::default(), out, inbound }
    }

    // ---- getters ----

    /// The state.
    pub fn state(&self) -> State {
        self.path.state
    }

    /// What the application can do now.
    pub fn readiness(&self) -> Readiness {
        let closed = self.path.state == State::Closed;
        let fin = self.inbound.has_fin();
        let mut ready = Readiness::empty();
        ready.set(Readiness::READABLE, self.inbound.is_readable(&self.path));
        ready.set(Readiness::URGENT, self.inbound.has_urgent());
        ready.set(Readiness::READ_CLOSED, closed || fin || self.inbound.is_shut());
        ready.set(Readiness::WRITE_CLOSED, closed || self.out.is_closing());
        ready.set(Readiness::WRITABLE, self.is_writable());
        ready.set(Readiness::ERROR, self.life.error.is_some());
        ready.set(Readiness::CONNECTED, self.life.flags.contains(LifeFlags::CONNECTED));
        ready
    }

    /// Whether it is [`WRITABLE`](Readiness::WRITABLE), the one part of its readiness that a send may
    /// end.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.life.takes_data(&self.path) && self.out.is_writable(&self.path)
    }

    /// Whether nothing is left to be done, not even a reset to be sent: it can be removed.
    pub fn is_closed(&self) -> bool {
        self.path.state == State::Closed && self.life.reset.is_none()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        &self.path.config
    }

    /// Bytes queued that were never sent (`SIOCOUTQNSD`).
    pub fn queued_unsent(&self) -> usize {
        // Nothing is left of a connection that ended.
        (self.out.unsent(&self.path) as usize).min(self.queued_send())
    }

    /// Bytes that can be read now.
    pub fn queued_receive(&self) -> usize {
        self.inbound.queue.queued()
    }

    /// Bytes of memory pinned for what was received and not read.
    pub fn pinned_receive(&self) -> usize {
        self.inbound.queue.pinned()
    }

    /// Bytes to be charged to the host's budget for what was received and not read, or is held
    /// ([`ReceiveBudget::charge`](crate::ReceiveBudget::charge)): as much, but for pages shared with
    /// other connections.
    pub fn receive_charge(&self) -> usize {
        self.inbound.queue.charge() + self.inbound.kept() as usize
    }

    /// Bytes of memory that what is queued to be sent holds, for owners who charge it: where it was
    /// received, its pages are missing for what comes in.
    pub fn send_charge(&self) -> usize {
        self.out.queue.charge()
    }

    /// So many bytes of memory of what was received and read still wait to be sent on elsewhere: they
    /// count as unread for what is let in and for the window. Whether that is less than it was: then
    /// [`after_release`](Self::after_release) is to be told.
    pub fn set_held(&mut self, bytes: usize) -> bool {
        self.inbound.queue.set_held(bytes)
    }

    /// The sequence number behind the last byte queued to be sent.
    pub fn send_end(&self) -> Seq {
        self.out.queue.end()
    }

    /// The next sequence number that has never been sent.
    pub fn send_next(&self) -> Seq {
        self.out.transfer.snd().nxt
    }

    /// Bytes queued that the peer has not acknowledged.
    pub fn queued_send(&self) -> usize {
        self.out.queue.len() as usize
    }

    /// Why the connection failed, if it did and the application was not told yet.
    pub fn error(&self) -> Option<TcpError> {
        self.life.error
    }

    /// Tells why the connection failed, once.
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.life.error.take()
    }

    /// Retransmissions, timeouts and fast recoveries so far; cheaper than [`info`](Self::info).
    pub fn loss_counts(&self) -> [u32; 3] {
        [
            self.out.transfer.stats().retransmits,
            self.out.transfer.stats().timeouts,
            self.out.transfer.stats().recoveries,
        ]
    }

    /// The connection is over, for the application with `error`. What was received stays to be
    /// read; what was to be sent is released.
    pub(crate) fn finish(&mut self, event: Event, error: Option<TcpError>) {
        if self.life.error.is_none() {
            self.life.error = error;
        }
        self.path.transition(event);
        client::suspect_lost_start(self);
        self.out.end();
        self.out.forget_due();
        self.inbound.end();
        self.life.stop_timers();
        self.life.give_up_fast_open(event);
    }

    /// After work that may have left a queue empty: its memory goes back if that lasts.
    pub(crate) fn consider_shrinking(&mut self, now: Instant) {
        if self.out.has_heap() || self.inbound.has_heap() {
            self.life.shrink.set_once(now + self.path.config.shrink_after);
        }
    }
}

#[cfg(test)]
#[path = "tests/connection.rs"]
mod tests;
