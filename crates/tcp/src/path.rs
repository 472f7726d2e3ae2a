//! What all parts of a connection may read, and only the connection itself changes.

use core::time::Duration;

use std::sync::Arc;

use pagewire_mem::Instant;

use crate::config::{Config, LinkLimits};
use crate::header::TcpHeader;
use crate::life::state::{Event, State};
use crate::limits::{MAX_MERGED_FRAG, TIMESTAMP_VALID_SECONDS, TIMESTAMPS_LEN};

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

impl Path {
    /// What a SYN says of the options that both sides must offer.
    pub(crate) fn take_syn(&mut self, now: Instant, syn: &TcpHeader) {
        // > RFC 7323 section 2.2: both sides MUST send Window Scale options in their <SYN>
        // > segments to enable window scaling in either direction.
        if syn.options.window_scale.is_some() && self.config.window_scaling {
            self.flags.insert(PathFlags::SCALING);
        }
        match syn.options.timestamps {
            Some((value, _)) if self.has_timestamps() => {
                self.ts.recent = value;
                self.ts.recent_at = seconds(now);
            }
            _ => self.flags.remove(PathFlags::TIMESTAMPS),
        }
        if !syn.options.sack_permitted {
            self.flags.remove(PathFlags::SACK);
        }
    }

    #[inline]
    pub(crate) fn may_acknowledge(&self) -> bool {
        self.state.is_synchronized() || self.state == State::SynReceived
    }

    /// > RFC 7323 section 2.2: If a Window Scale option was received in the initial <SYN> segment,
    /// > then this option MAY be sent in the <SYN,ACK> segment.
    pub(crate) fn offers_scale(&self) -> bool {
        self.config.window_scaling
            && (self.state == State::SynSent || self.flags.contains(PathFlags::SCALING))
    }

    #[inline]
    pub(crate) fn is_stale(&self, now: Instant, value: u32) -> bool {
        let age = u64::from(seconds(now).wrapping_sub(self.ts.recent_at));
        (value.wrapping_sub(self.ts.recent) as i32) < 0 && age < TIMESTAMP_VALID_SECONDS
    }

    /// Whether a SYN of ours may have carried this timestamp: none was sent before `heard_at`, which
    /// is the moment of the beginning until something is heard.
    pub(crate) fn sent_timestamp(&self, now: Instant, value: u32) -> bool {
        let since = self.ts.value(self.heard_at);
        value.wrapping_sub(since) <= self.ts.value(now).wrapping_sub(since)
    }

    /// The MSS that we announce.
    #[inline]
    pub(crate) fn announced_mss(&self) -> u16 {
        self.link.recv_mss.min(self.config.max_mss.unwrap_or(u16::MAX))
    }

    /// The MSS of what we send, as far as it does not depend on the peer.
    #[inline]
    pub(crate) fn path_mss(&self) -> u16 {
        self.link.mss.min(self.config.max_mss.unwrap_or(u16::MAX))
    }

    /// Whether this connection's timestamps option is on.
    #[inline]
    pub(crate) fn has_timestamps(&self) -> bool {
        self.flags.contains(PathFlags::TIMESTAMPS)
    }

    /// Moves to the next state. The table is asked; an event that it does not know is a mistake
    /// of ours and changes nothing.
    pub(crate) fn transition(&mut self, event: Event) {
        match self.state.on(event) {
            Some(next) => self.state = next,
            None => debug_assert!(false, "{event:?} in {}", self.state),
        }
    }

    /// Bytes up to which pieces that lie side by side in memory become one fragment.
    #[inline]
    pub(crate) fn longest_frag(&self) -> usize {
        MAX_MERGED_FRAG.max(self.link.max_super_payload as usize)
    }

    /// Settings are shared; who wants other ones gets its own copy.
    pub(crate) fn own_config(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config)
    }

    /// Bytes of options in every segment.
    #[inline]
    pub(crate) fn option_bytes(&self) -> u16 {
        if self.has_timestamps() { TIMESTAMPS_LEN } else { 0 }
    }

    #[inline]
    pub(crate) fn has_sack(&self) -> bool {
        self.flags.contains(PathFlags::SACK)
    }

    pub(crate) fn least_ack_timeout(&self) -> u16 {
        u16::try_from(self.config.delayed_ack.as_millis()).unwrap_or(u16::MAX)
    }

    pub(crate) fn allowed_retries(&self) -> u8 {
        if self.flags.contains(PathFlags::ORPHAN) {
            self.config.orphan_retries
        } else {
            self.config.data_retries
        }
    }

    /// The time that `retries` retransmissions take when the timeout starts at its least value and
    /// doubles up to its greatest, the last one's waiting time included.
    pub(crate) fn backed_off_for(&self, retries: u8) -> Duration {
        let (mut rto, max) = (self.config.rto_min, self.config.rto_max);
        let mut sum = Duration::ZERO;
        for _ in 0..=retries {
            sum += rto;
            rto = (rto * 2).min(max);
        }
        sum
    }
}
