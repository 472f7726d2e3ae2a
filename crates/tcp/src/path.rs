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
    /// Ours.
    pub local: u16,
    /// The peer's.
    pub remote: u16,
}

/// What is given, and what was agreed on with the peer.
#[derive(Debug)]
pub(crate) struct Path {
    config: Arc<Config>,
    link: LinkLimits,
    ports: Ports,
    state: State,
    flags: PathFlags,
    timestamps: Timestamps,
    /// When the last segment arrived.
    heard_at: Instant,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct PathFlags: u8 {
        /// We opened actively.
        const ACTIVE = 1 << 0;
        /// The application has closed the connection.
        const ORPHAN = 1 << 1;
        /// Both sides do timestamps.
        const TIMESTAMPS = 1 << 2;
        /// Both sides do SACK.
        const SACK = 1 << 3;
        /// Both sides do window scaling.
        const SCALING = 1 << 4;
        /// It sends what another connection received (`inbound/forward.rs`).
        const FORWARDS = 1 << 5;
        /// A listener accepted it with Fast Open: data flows from SYN-RECEIVED on.
        const FAST_OPEN_SERVER = 1 << 6;
    }
}

/// The state of the timestamps option (RFC 7323 sections 3 and 4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timestamps {
    /// Our clock is this much ahead of `now`.
    offset: u32,
    /// TS.Recent, and when it was set, in seconds.
    recent: u32,
    recent_at: u32,
}

impl Timestamps {
    /// > RFC 7323 section 5.4: we choose a timestamp clock frequency in the range 1 ms to 1 sec per
    /// > tick.
    pub(crate) fn value(&self, now: Instant) -> u32 {
        (now.as_millis() as u32).wrapping_add(self.offset)
    }

    #[inline]
    pub(crate) fn recent(&self) -> u32 {
        self.recent
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
        let mut flags = PathFlags::empty();
        flags.set(PathFlags::TIMESTAMPS, config.timestamps);
        flags.set(PathFlags::SACK, config.sack);
        let timestamps = Timestamps { offset: ts_offset, recent: 0, recent_at: 0 };
        Self { config, link, ports, state: State::Closed, flags, timestamps, heard_at: now }
    }

    #[cfg(test)]
    pub(crate) fn flags(&self) -> impl core::fmt::Debug + PartialEq + use<> {
        self.flags
    }

    #[inline]
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn share_config(&self) -> Arc<Config> {
        Arc::clone(&self.config)
    }

    #[inline]
    pub(crate) fn link(&self) -> LinkLimits {
        self.link
    }

    pub(crate) fn set_link(&mut self, link: LinkLimits) {
        self.link = link;
    }

    #[inline]
    pub(crate) fn ports(&self) -> Ports {
        self.ports
    }

    #[inline]
    pub(crate) fn state(&self) -> State {
        self.state
    }

    #[inline]
    pub(crate) fn heard_at(&self) -> Instant {
        self.heard_at
    }

    #[inline]
    pub(crate) fn on_heard(&mut self, now: Instant) {
        self.heard_at = now;
    }

    #[inline]
    pub(crate) fn timestamps(&self) -> &Timestamps {
        &self.timestamps
    }

    #[inline]
    pub(crate) fn timestamps_mut(&mut self) -> &mut Timestamps {
        &mut self.timestamps
    }

    /// When our timestamp was `value`, in milliseconds.
    #[inline]
    pub(crate) fn time_of(&self, value: u32) -> u32 {
        value.wrapping_sub(self.timestamps.offset)
    }

    pub(crate) fn is_active(&self) -> bool {
        self.flags.contains(PathFlags::ACTIVE)
    }

    pub(crate) fn set_active(&mut self) {
        self.flags.insert(PathFlags::ACTIVE);
    }

    #[inline]
    pub(crate) fn is_orphan(&self) -> bool {
        self.flags.contains(PathFlags::ORPHAN)
    }

    pub(crate) fn set_orphan(&mut self) {
        self.flags.insert(PathFlags::ORPHAN);
    }

    #[inline]
    pub(crate) fn forwards(&self) -> bool {
        self.flags.contains(PathFlags::FORWARDS)
    }

    pub(crate) fn set_forwards(&mut self) {
        self.flags.insert(PathFlags::FORWARDS);
    }

    #[inline]
    pub(crate) fn is_fast_open_server(&self) -> bool {
        self.flags.contains(PathFlags::FAST_OPEN_SERVER)
    }

    pub(crate) fn set_fast_open_server(&mut self) {
        self.flags.insert(PathFlags::FAST_OPEN_SERVER);
    }

    pub(crate) fn has_scaling(&self) -> bool {
        self.flags.contains(PathFlags::SCALING)
    }

    #[inline]
    pub(crate) fn has_sack(&self) -> bool {
        self.flags.contains(PathFlags::SACK)
    }

    #[inline]
    pub(crate) fn has_timestamps(&self) -> bool {
        self.flags.contains(PathFlags::TIMESTAMPS)
    }

    /// Reads the options of a SYN that both sides must offer.
    pub(crate) fn take_syn(&mut self, now: Instant, syn: &TcpHeader) {
        // > RFC 7323 section 2.2: both sides MUST send Window Scale options in their <SYN>
        // > segments to enable window scaling in either direction.
        if syn.options.window_scale.is_some() && self.config.window_scaling {
            self.flags.insert(PathFlags::SCALING);
        }
        match syn.options.timestamps {
            Some((value, _)) if self.has_timestamps() => {
                self.timestamps.set_recent(now, value);
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
        self.config.window_scaling && (self.state == State::SynSent || self.has_scaling())
    }

    /// Whether a SYN of ours, since the connection began, may have carried this timestamp.
    pub(crate) fn sent_timestamp(&self, now: Instant, value: u32) -> bool {
        let since = self.timestamps.value(self.heard_at);
        value.wrapping_sub(since) <= self.timestamps.value(now).wrapping_sub(since)
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
        if self.has_timestamps() { TIMESTAMPS_LEN } else { 0 }
    }

    pub(crate) fn least_ack_timeout(&self) -> u16 {
        u16::try_from(self.config.delayed_ack.as_millis()).unwrap_or(u16::MAX)
    }

    pub(crate) fn allowed_retries(&self) -> u8 {
        if self.is_orphan() { self.config.orphan_retries } else { self.config.data_retries }
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
