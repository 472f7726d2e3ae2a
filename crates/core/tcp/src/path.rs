//! The path of a connection: its settings, its link, its ports, its state, and the options that
//! both sides agreed on. All parts read it; only `Connection` changes it.

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
    /// Our port.
    pub local: u16,
    /// The peer's port.
    pub remote: u16,
}

/// The settings, the link, and the options that both sides agreed on.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) config: Arc<Config>,
    pub(crate) link: LinkLimits,
    pub(crate) ports: Ports,
    state: State,
    /// We opened actively.
    pub(crate) active: bool,
    /// The application has closed the connection.
    pub(crate) orphan: bool,
    /// Both sides do timestamps (RFC 7323).
    pub(crate) timestamps_ok: bool,
    /// Both sides do SACK (RFC 2018).
    pub(crate) sack_ok: bool,
    /// Both sides do window scaling (RFC 7323).
    pub(crate) scaling_ok: bool,
    /// The connection sends what another connection received (`connection/forward.rs`).
    pub(crate) forwards: bool,
    /// A listener accepted the connection with Fast Open: data flows from SYN-RECEIVED on.
    pub(crate) fast_open_server: bool,
    pub(crate) timestamps: Timestamps,
    /// When the last valid segment arrived.
    pub(crate) last_received: Instant,
}

/// The state of the timestamps option (RFC 7323 sections 3 and 4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    /// Our clock is this much ahead of `now`.
    pub(crate) offset: u32,
    /// TS.Recent, and when it was set, in seconds.
    pub(crate) recent: u32,
    recent_at: u32,
}

impl Timestamps {
    /// > RFC 7323 section 5.4: we choose a timestamp clock frequency in the range 1 ms to 1 sec per
    /// > tick.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }

    #[inline]
    pub(crate) fn set_recent(&mut self, now: Instant, value: u32) {
        (self.recent, self.recent_at) = (value, seconds(now));
    }

    /// Whether TS.Recent was set more than a second ago.
    pub(crate) fn is_past(&self, now: Instant) -> bool {
        seconds(now).wrapping_sub(self.recent_at) > 1
    }

    /// Whether `value` is older than TS.Recent.
    #[inline]
    pub(crate) fn is_older(&self, value: u32) -> bool {
        (value.wrapping_sub(self.recent) as i32) < 0
    }

    /// Whether `value` is older than TS.Recent, and TS.Recent is still valid.
    #[inline]
    pub(crate) fn is_stale(&self, now: Instant, value: u32) -> bool {
        let age = u64::from(seconds(now).wrapping_sub(self.recent_at));
        self.is_older(value) && age < TIMESTAMP_VALID_SECONDS
    }
}

fn seconds(now: Instant) -> u32 {
    (now.as_millis() / 1000) as u32
}

impl Path {
    /// A closed connection that offers the options of `config`.
    pub(crate) fn new(
        now: Instant,
        config: Arc<Config>,
        link: LinkLimits,
        ports: Ports,
        ts_offset: u32,
    ) -> Self {
        Self {
            link,
            ports,
            state: State::Closed,
            active: false,
            orphan: false,
            timestamps_ok: config.timestamps,
            sack_ok: config.sack,
            scaling_ok: false,
            forwards: false,
            fast_open_server: false,
            timestamps: Timestamps { offset: ts_offset, recent: 0, recent_at: 0 },
            last_received: now,
            config,
        }
    }

    #[inline]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        self.state
    }

    /// Reads the options of a SYN that both sides must offer.
    pub(crate) fn take_syn(&mut self, now: Instant, syn: &TcpHeader) {
        // > RFC 7323 section 2.2: both sides MUST send Window Scale options in their <SYN>
        // > segments to enable window scaling in either direction.
        if syn.options.window_scale.is_some() && self.config.window_scaling {
            self.scaling_ok = true;
        }
        match syn.options.timestamps {
            Some((value, _)) if self.timestamps_ok => {
                self.timestamps.set_recent(now, value);
            }
            _ => self.timestamps_ok = false,
        }
        if !syn.options.sack_permitted {
            self.sack_ok = false;
        }
    }

    #[inline]
    pub(crate) fn may_acknowledge(&self) -> bool {
        self.state.is_synchronized() || self.state == State::SynReceived
    }

    /// Whether the connection waits for its end only: in TIME-WAIT, or in FIN-WAIT-2 after the application has
    /// closed it.
    pub(crate) fn lingers(&self) -> bool {
        self.state == State::TimeWait || (self.state == State::FinWait2 && self.orphan)
    }

    #[inline]
    pub(crate) fn announced_mss(&self) -> u16 {
        self.link.recv_mss.min(self.config.max_mss.unwrap_or(u16::MAX))
    }

    /// The MSS of what we send, before the peer's limit.
    #[inline]
    pub(crate) fn path_mss(&self) -> u16 {
        self.link.mss.min(self.config.max_mss.unwrap_or(u16::MAX))
    }

    /// Moves to the next state. An event that the table does not know changes nothing.
    pub(crate) fn transition(&mut self, event: Event) {
        match self.state.on(event) {
            Some(next) => self.state = next,
            None => debug_assert!(false, "{event:?} in {}", self.state),
        }
    }

    /// The longest fragment in bytes that neighbours in memory are merged to.
    #[inline]
    pub(crate) fn longest_frag(&self) -> usize {
        MAX_MERGED_FRAG.max(self.link.max_super_payload as usize)
    }

    /// Settings for this connection alone: copies them if they are shared.
    pub(crate) fn own_config(&mut self) -> &mut Config {
        Arc::make_mut(&mut self.config)
    }

    #[inline]
    pub(crate) fn option_bytes(&self) -> u16 {
        if self.timestamps_ok { TIMESTAMPS_LEN } else { 0 }
    }

    pub(crate) fn least_ack_timeout(&self) -> u16 {
        u16::try_from(self.config.delayed_ack.as_millis()).unwrap_or(u16::MAX)
    }

    pub(crate) fn allowed_retries(&self) -> u8 {
        if self.orphan { self.config.orphan_retries } else { self.config.data_retries }
    }

    /// The time that `retries` retransmissions take with a doubling timeout, and the last wait.
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
