//! What one connection remembers, how it begins, and what it tells.
//!
//! The parts do the work (`path.rs`, `life/`, `outbound/`, `inbound/`); what a segment, a timer or the
//! application asks of several of them is filed by direction: `input.rs`, `application.rs`, `output.rs`,
//! `life/timeout.rs`. Nothing takes input and emits output: whatever is due is remembered until
//! `poll_transmit` asks.
//!
//! An idle connection owns no heap: queues give theirs back, and what only a loss needs is boxed.

use pagewire_mem::Instant;

use crate::config::Config;
use crate::error::TcpError;
use crate::inbound::Inbound;
use crate::info::{Info, Readiness};
use crate::life::Life;
use crate::life::state::{Event, State};
use crate::outbound::Outbound;
use crate::outbound::ecn::EcnCounts;
use crate::path::Path;
use crate::seq::Seq;

/// One TCP connection.
#[derive(Debug)]
pub struct Connection {
    pub(crate) path: Path,
    pub(crate) life: Life,
    pub(crate) out: Outbound,
    pub(crate) inbound: Inbound,
}

impl Connection {
    /// The state.
    pub fn state(&self) -> State {
        self.path.state()
    }

    /// What the application can do now.
    pub fn readiness(&self) -> Readiness {
        let closed = self.path.state() == State::Closed;
        let fin = self.inbound.has_fin();
        let mut ready = Readiness::empty();
        ready.set(Readiness::READABLE, self.inbound.is_readable(&self.path));
        ready.set(Readiness::URGENT, self.inbound.has_urgent());
        ready.set(Readiness::READ_CLOSED, closed || fin || self.inbound.is_shut());
        ready.set(Readiness::WRITE_CLOSED, closed || self.out.is_closing());
        ready.set(Readiness::WRITABLE, self.is_writable());
        ready.set(Readiness::ERROR, self.life.error().is_some());
        ready.set(Readiness::CONNECTED, self.life.is_connected());
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
        self.path.state() == State::Closed && !self.life.owes_reset()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        self.path.config()
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
        self.life.error()
    }

    /// Tells why the connection failed, once.
    pub fn take_error(&mut self) -> Option<TcpError> {
        self.life.take_error()
    }

    /// Retransmissions, timeouts and fast recoveries so far; cheaper than [`info`](Self::info).
    pub fn loss_counts(&self) -> [u32; 3] {
        [
            self.out.transfer.stats().retransmits,
            self.out.transfer.stats().timeouts,
            self.out.transfer.stats().recoveries,
        ]
    }

    /// The counters, if the connection has accurate feedback.
    pub fn ecn_counts(&self) -> Option<EcnCounts> {
        self.out.transfer.ecn_counts()
    }

    /// A snapshot.
    pub fn info(&self) -> Info {
        let (path, life) = (&self.path, &self.life);
        let mut info = Info {
            state: path.state(),
            timestamps: path.has_timestamps(),
            sack: path.has_sack(),
            scaling: path.has_scaling(),
            syn_data: life.is_syn_data_acked(),
            path_mss: path.link().mss,
            announced_mss: path.announced_mss(),
            probes: life.keepalive_probes(),
            ..Info::default()
        };
        self.out.fill_info(path, &mut info);
        self.inbound.fill_info(path, &mut info);
        info
    }

    /// A snapshot in which times count up to `now`; those of [`info`](Self::info) stand still between
    /// segments.
    pub fn info_at(&self, now: Instant) -> Info {
        let mut info = self.info();
        info.last_ack_received = now.saturating_since(self.path.heard_at());
        self.out.fill_times(now, &mut info);
        self.inbound.fill_times(now, &mut info);
        info
    }

    /// The connection is over, for the application with `error`. What was received stays to be
    /// read; what was to be sent is released.
    pub(crate) fn finish(&mut self, event: Event, error: Option<TcpError>) {
        self.path.transition(event);
        // All that ever came was a FIN beyond a gap: what came before it was swallowed.
        if self.inbound.has_fin_beyond_gap() && self.inbound.bytes_received() == 0 {
            self.life.suspect_black_hole();
        }
        self.out.end();
        self.out.forget_due();
        self.inbound.end();
        self.life.end(event, error);
    }

    /// After work that may have left a queue empty: its memory goes back if that lasts.
    pub(crate) fn consider_shrinking(&mut self, now: Instant) {
        if self.out.has_heap() || self.inbound.has_heap() {
            self.life.shrink_at(now + self.path.config().shrink_after);
        }
    }
}

#[cfg(test)]
#[path = "tests/connection.rs"]
mod tests;
