//! The life of a connection: its states, how it opens and ends, its timers, its errors.

pub(crate) mod defer;
pub(crate) mod fast_open;
pub(crate) mod handshake;
mod icmp;
pub(crate) mod state;
pub(crate) mod time_wait;
pub(crate) mod timeout;

use pagewire_mem::Instant;

use crate::error::TcpError;
use crate::life::fast_open::FastOpenState;
use crate::life::state::Event;
use crate::seq::Seq;
use crate::timer::Timer;

/// The part of a connection that decides whether the connection continues.
#[derive(Debug, Default)]
pub(crate) struct Life {
    flags: LifeFlags,
    /// Keep-alive probes in a row without an answer.
    keepalive_probes: u8,
    /// The error that the application has not been told yet.
    error: Option<TcpError>,
    /// The last ICMP error: the reason if the connection times out.
    soft_error: Option<TcpError>,
    reset: Option<Reset>,
    /// Present during a handshake with Fast Open.
    fast_open: Option<Box<FastOpenState>>,
    /// The peer was silent for long (RFC 9293 section 3.8.4).
    keepalive: Timer,
    /// TIME-WAIT's 2 MSL, or FIN-WAIT-2 after the application has closed.
    linger: Timer,
    /// Frees empty queues.
    shrink: Timer,
}

bitflags::bitflags! {
    /// How the connection opened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct LifeFlags: u8 {
        /// It was established.
        const CONNECTED = 1 << 0;
        /// A SYN was sent more than once.
        const SYN_RESENT = 1 << 1;
        /// The peer has acknowledged our SYN,ACK, and the listener waits for data (`defer.rs`).
        const DEFERRED = 1 << 2;
        /// The receiver of a SYN accepted all of its data.
        const SYN_DATA_ACKED = 1 << 3;
        /// We sent the Fast Open option, or data in the SYN.
        const FAST_OPEN_CLIENT = 1 << 4;
        /// The application accepted it before the handshake was complete.
        const ACCEPTED_EARLY = 1 << 5;
        /// The acknowledgement of the SYN,ACK waits for data that the application has ready.
        const WRITE_PENDING = 1 << 6;
        /// The path seems to drop Fast Open connections.
        const BLACK_HOLE = 1 << 7;
    }
}

/// A reset to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) seq: Seq,
    /// Whether it also acknowledges.
    pub(crate) ack: bool,
}

impl Life {
    #[cfg(test)]
    pub(crate) fn flags(&self) -> impl core::fmt::Debug + PartialEq + use<> {
        self.flags
    }

    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.flags.contains(LifeFlags::CONNECTED)
    }

    pub(crate) fn is_syn_data_acked(&self) -> bool {
        self.flags.contains(LifeFlags::SYN_DATA_ACKED)
    }

    #[inline]
    pub(crate) fn error(&self) -> Option<TcpError> {
        self.error
    }

    #[inline]
    pub(crate) fn take_error(&mut self) -> Option<TcpError> {
        self.error.take()
    }

    /// The connection ends by `event`. The first error stays.
    pub(crate) fn end(&mut self, event: Event, error: Option<TcpError>) {
        self.error = self.error.or(error);
        self.stop_timers();
        self.give_up_fast_open(event);
    }

    #[inline]
    pub(crate) fn on_heard(&mut self) {
        self.keepalive_probes = 0;
    }

    pub(crate) fn keepalive_probes(&self) -> u8 {
        self.keepalive_probes
    }

    /// The device refused a probe: the next leaves at `soon`. One of keep-alive does not count.
    pub(crate) fn on_probe_refused(&mut self, soon: Instant, of_keepalive: bool) {
        self.keepalive.hasten(soon);
        self.keepalive_probes = self.keepalive_probes.saturating_sub(u8::from(of_keepalive));
    }

    #[inline]
    pub(crate) fn owes_reset(&self) -> bool {
        self.reset.is_some()
    }

    #[inline]
    pub(crate) fn take_reset(&mut self) -> Option<Reset> {
        self.reset.take()
    }

    pub(crate) fn send_reset(&mut self, reset: Reset) {
        self.reset = Some(reset);
    }

    /// The handshake is complete: forgets the state of Fast Open.
    pub(crate) fn forget_fast_open(&mut self) {
        self.fast_open = None;
    }

    /// Has empty queues freed at `at`.
    #[inline]
    pub(crate) fn shrink_at(&mut self, at: Instant) {
        self.shrink.set_once(at);
    }
}
