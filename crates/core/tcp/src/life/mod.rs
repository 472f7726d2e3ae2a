//! [`Life`], the part that decides whether a connection continues: errors, resets, timers, Fast Open.

pub(crate) mod defer;
pub(crate) mod fast_open;
pub(crate) mod state;

use pagewire_mem::Instant;

use crate::config::KeepAlive;
use crate::error::TcpError;
use crate::life::fast_open::{FastOpenOutcome, FastOpenState, SynData};
use crate::life::state::Event;
use crate::path::Path;
use crate::seq::Seq;
use crate::timer::Timer;

/// The part of a connection that decides whether the connection continues.
#[derive(Debug, Default)]
pub(crate) struct Life {
    pub(crate) flags: LifeFlags,
    /// Keep-alive probes in a row without an answer.
    pub(crate) keepalive_probes: u8,
    /// The error that the application has not taken yet.
    pub(crate) error: Option<TcpError>,
    /// The last ICMP error: the reason if the connection times out.
    pub(crate) soft_error: Option<TcpError>,
    rare: Option<Box<RareLife>>,
    /// The timer for a peer that is silent for long (RFC 9293 section 3.8.4). While [`Path::lingers`], that
    /// of TIME-WAIT's 2 MSL, or of FIN-WAIT-2; as in Linux, nobody probes the peer then.
    pub(crate) silence: Timer,
    /// The timer that frees empty queues.
    pub(crate) shrink: Timer,
}

bitflags::bitflags! {
    /// Facts about the opening of the connection.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct LifeFlags: u8 {
        /// The connection was established.
        const CONNECTED = 1 << 0;
        /// A SYN was sent more than once.
        const SYN_RESENT = 1 << 1;
        /// The peer has acknowledged our SYN,ACK, and the listener waits for data (deferred accept).
        const DEFERRED = 1 << 2;
        /// The receiver of a SYN accepted all of its data.
        const SYN_DATA_ACKED = 1 << 3;
        /// We sent the Fast Open option, or data in the SYN.
        const FAST_OPEN_CLIENT = 1 << 4;
        /// The application accepted the connection before the handshake was complete.
        const ACCEPTED_EARLY = 1 << 5;
        /// The acknowledgement of the SYN,ACK waits for data that the application has ready.
        const WRITE_PENDING = 1 << 6;
        /// The path seems to drop Fast Open connections.
        const BLACK_HOLE = 1 << 7;
    }
}

/// State of few beginnings and ends. Boxed to keep connections small; one that is idle has none.
#[derive(Debug, Default)]
struct RareLife {
    reset: Option<Reset>,
    /// State of a handshake with Fast Open.
    fast_open: Option<FastOpenState>,
}

/// A reset to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reset {
    pub(crate) seq: Seq,
    /// Whether the reset also acknowledges.
    pub(crate) ack: bool,
}

impl Life {
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.flags.contains(LifeFlags::CONNECTED)
    }

    /// Whether a reset is due.
    #[inline]
    pub(crate) fn resets(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.reset.is_some())
    }

    pub(crate) fn set_reset(&mut self, reset: Reset) {
        self.rare.get_or_insert_default().reset = Some(reset);
    }

    #[inline]
    pub(crate) fn take_reset(&mut self) -> Option<Reset> {
        let rare = self.rare.as_deref_mut()?;
        let reset = rare.reset.take();
        if rare.fast_open.is_none() {
            self.rare = None;
        }
        reset
    }

    #[inline]
    pub(crate) fn fast_open(&self) -> Option<&FastOpenState> {
        self.rare.as_ref()?.fast_open.as_ref()
    }

    pub(crate) fn fast_open_mut(&mut self) -> Option<&mut FastOpenState> {
        self.rare.as_mut()?.fast_open.as_mut()
    }

    pub(crate) fn begin_fast_open(&mut self) -> &mut FastOpenState {
        self.rare.get_or_insert_default().fast_open.get_or_insert_default()
    }

    pub(crate) fn forget_fast_open(&mut self) {
        match self.rare.as_deref_mut() {
            Some(rare) if rare.reset.is_some() => rare.fast_open = None,
            _ => self.rare = None,
        }
    }

    /// The connection ends by `event`. The first error stays.
    pub(crate) fn end(&mut self, event: Event, error: Option<TcpError>) {
        self.error = self.error.or(error);
        self.stop_timers();
        self.give_up_fast_open(event);
    }

    pub(crate) fn stop_timers(&mut self) {
        (self.silence, self.shrink) = Default::default();
    }

    pub(crate) fn start_keepalive(&mut self, path: &Path, now: Instant) {
        match path.config().keepalive {
            Some(KeepAlive { idle, .. }) => self.silence.set(now + idle),
            None => self.silence.stop(),
        }
    }

    /// The connection ends by `event`. An unanswered SYN with data is an outcome, too.
    ///
    /// > RFC 7413 section 4.1.3.1: Negative responses include [...] ICMP error messages, and (most
    /// > importantly) no response (SYN-ACK) from the server at all, i.e., connection timeout.
    pub(crate) fn give_up_fast_open(&mut self, event: Event) {
        let connected = self.is_connected();
        let Some(fast_open) = self.fast_open_mut() else { return };
        let unanswered = event == Event::Expire && fast_open.outcome.is_none();
        if !unanswered || fast_open.syn_data == 0 || connected {
            return self.forget_fast_open();
        }
        fast_open.outcome = Some(FastOpenOutcome {
            had_option: fast_open.sent.is_some(),
            syn_data: SynData::Refused,
            ..FastOpenOutcome::default()
        });
    }

    /// As Linux, very conservative: the third timeout in a row of a connection opened with Fast
    /// Open, or its end before, means that the path drops such connections.
    pub(crate) fn suspect_black_hole(&mut self) {
        if self.flags.contains(LifeFlags::FAST_OPEN_CLIENT) {
            self.flags.insert(LifeFlags::BLACK_HOLE);
        }
    }
}
