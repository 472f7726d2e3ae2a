//! What all parts of a connection may read, and only the connection itself changes.

use std::sync::Arc;

use pagewire_mem::Instant;

use crate::config::{Config, LinkLimits};
use crate::life::state::State;

/// The two ports of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    /// Ours.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
}

/// What is given, and what was agreed on with the peer.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) config: Arc<Config>,
    pub(crate) link: LinkLimits,
    pub(crate) ports: Ports,
    pub(crate) state: State,
    pub(crate) flags: PathFlags,
    pub(crate) ts: Timestamps,
    /// When a segment arrived last.
    pub(crate) heard_at: Instant,
}

bitflags::bitflags! {
    /// What is true of a connection as a whole.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct PathFlags: u8 {
        /// We opened actively.
        const ACTIVE = 1 << 0;
        /// The application has let go.
        const ORPHAN = 1 << 1;
        /// Both sides do timestamps.
        const TIMESTAMPS = 1 << 2;
        /// Both sides do SACK.
        const SACK = 1 << 3;
        /// Both sides do window scaling.
        const SCALING = 1 << 4;
        /// What it sends was received elsewhere (`forward.rs`).
        const FORWARDS = 1 << 5;
        /// Data flows from SYN-RECEIVED on: a listener took this with Fast Open.
        const FAST_OPEN_SERVER = 1 << 6;
    }
}

/// The state of the timestamps option (RFC 7323 sections 3 and 4).
#[derive(Debug)]
pub(crate) struct Timestamps {
    /// What our clock is ahead of `now`.
    pub(crate) offset: u32,
    /// TS.Recent, and when it was set, in seconds.
    pub(crate) recent: u32,
    pub(crate) recent_at: u32,
}

impl Timestamps {
    /// > RFC 7323 section 5.4: we choose a timestamp clock frequency in the range 1 ms to 1 sec per
    /// > tick.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }
}

/// Whole seconds of a moment.
pub(crate) fn seconds(now: Instant) -> u32 {
    (now.as_millis() / 1000) as u32
}
