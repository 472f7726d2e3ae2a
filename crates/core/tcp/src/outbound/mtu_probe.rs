//! Path MTU discovery by probing (RFC 4821): the connection sends a longer segment now and then,
//! and sees whether it arrives. For paths that drop long packets without an ICMP message.
//!
//! ```text
//!    low (known to pass) ------ cap: what segments are bounded to ------ high (worth trying)
//!                  probe: half way;  acknowledged: the new low;  lost alone: the new high
//! ```
//!
//! As in Linux (`tcp_mtu_probing`), probes are part of the stream, and leave only when much data is
//! queued and nothing is lost. The third timeout in a row indicates a black hole.

use pagewire_mem::Instant;

use crate::config::MtuProbing;
use crate::header::Flags;
use crate::limits::{MIN_MTU_PROBE_CWND, MIN_SEND_MSS};
use crate::outbound::loss::CaState;
use crate::outbound::{Outbound, Outgoing, Transfer};
use crate::path::Path;
use crate::seq::Seq;

#[derive(Debug)]
pub(crate) struct MtuSearch {
    /// The largest size that is known to pass, or small enough to.
    low: u16,
    /// The least size that may not pass. The link's MSS bounds it too.
    high: u16,
    /// The longest segment now.
    pub(crate) cap: u16,
    pub(crate) probe: Option<MtuProbe>,
    /// When the search began.
    since: Instant,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct MtuProbe {
    start: Seq,
    end: Seq,
    size: u16,
}

pub(crate) enum MtuProbeStep {
    /// New data leaves as usual.
    No,
    /// New data waits until the probe fits the congestion window.
    Wait,
    /// The probe leaves.
    Send(Outgoing),
}

impl Outbound {
    /// Whether the next new data leaves as a probe.
    ///
    /// RFC 4821 section 7.4, probing preconditions: no probe or loss is outstanding, the window has
    /// room, and there is enough data to detect the probe's loss. `has_gaps`: of the receive queue.
    pub(crate) fn probe_mtu(&mut self, path: &Path, now: Instant, has_gaps: bool) -> MtuProbeStep {
        let Some(search) = self.transfer.mtu() else { return MtuProbeStep::No };
        let quiet = search.probe.is_none()
            && self.transfer.loss.state == CaState::Open
            && self.transfer.congestion.cwnd() >= MIN_MTU_PROBE_CWND
            && !has_gaps;
        let Some(probing) = path.config().mtu_probing.filter(|_| quiet) else {
            return MtuProbeStep::No;
        };
        let (low, high) = (search.low, search.high.min(path.link.mss));
        let size = low.midpoint(high);
        let mss = self.transfer.send_mss(path);
        let options = u32::from(path.option_bytes()) + self.transfer.steady_ecn_bytes(path);
        let len = u32::from(size).saturating_sub(options);
        if high < low || high - low < probing.threshold || len <= mss {
            self.transfer.search_again(path, now, probing);
            return MtuProbeStep::No;
        }
        let needed = len + (u32::from(self.transfer.loss.reordering) + 1) * mss;
        if self.unsent(path) < needed || self.transfer.snd.window < needed {
            return MtuProbeStep::No;
        }
        let in_flight = self.transfer.packets_in_flight();
        let room = self.transfer.send_edge().saturating_since(self.transfer.snd.nxt) >= needed;
        if !room || in_flight + 2 > self.transfer.congestion.cwnd() {
            return if in_flight > 0 { MtuProbeStep::Wait } else { MtuProbeStep::No };
        }
        let start = self.transfer.snd.nxt;
        let (payload, taken) = self.queue.slice(start, len);
        if taken < len {
            // The probe does not fit one packet, or a record ends within.
            return MtuProbeStep::No;
        }
        let end = start + len;
        self.on_sent(path, now, start, end, len);
        if let Some(search) = self.transfer.mtu_mut() {
            search.probe = Some(MtuProbe { start, end, size });
        }
        MtuProbeStep::Send(Outgoing { start, end, flags: Flags::ACK, payload, len, mss: len })
    }
}

impl Transfer {
    #[inline]
    pub(crate) fn mtu(&self) -> Option<&MtuSearch> {
        self.rare.as_ref()?.mtu.as_ref()
    }

    fn mtu_mut(&mut self) -> Option<&mut MtuSearch> {
        self.rare.as_mut()?.mtu.as_mut()
    }

    /// The handshake is complete.
    pub(crate) fn start_mtu_search(&mut self, path: &Path, now: Instant) {
        let Some(probing) = path.config().mtu_probing.filter(|probing| probing.from_start) else {
            return;
        };
        self.search_mtu(path, now, probing);
        let whole = path.link.mss;
        // As Linux: the passive side begins with the link's MSS.
        if !path.active
            && let Some(search) = self.mtu_mut()
        {
            search.cap = whole;
        }
    }

    /// The path may take longer segments than before: a probe will show.
    pub(crate) fn on_longer_path(&mut self, path: &Path) {
        let before = path.link.mss;
        if let Some(search) = self.mtu_mut() {
            search.cap = search.cap.min(before);
        }
    }

    /// Checks whether the probe was acknowledged.
    ///
    /// > RFC 4821 section 7.6.1: When the probe is delivered, it is an indication that the Path MTU is
    /// > at least as large as the probe size. Set search_low to the probe size.
    #[inline]
    pub(crate) fn take_mtu_answer(&mut self, path: &Path) {
        let (una, before) = (self.snd.una, self.send_mss(path));
        let Some(search) = self.mtu_mut() else { return };
        if search.probe.is_none_or(|probe| una.lt(probe.end)) {
            return;
        }
        let Some(probe) = search.probe.take() else { return };
        search.low = probe.size;
        search.cap = probe.size;
        // The window is counted in segments, and stays what it was in bytes.
        let cwnd = u64::from(self.congestion.cwnd()) * u64::from(before);
        let after = u64::from(self.send_mss(path)).max(1);
        self.congestion.set_cwnd(u32::try_from(cwnd / after).unwrap_or(u32::MAX));
    }

    /// A segment is considered lost. `true`: it is the probe, whose loss is no congestion.
    ///
    /// > RFC 4821 section 7.6.2: When only the probe is lost, it is treated as an indication that the
    /// > Path MTU is smaller than the probe size.
    pub(crate) fn is_probe_lost(&mut self, path: &Path) -> bool {
        let una = self.snd.una;
        let Some(search) = self.mtu_mut() else { return false };
        let Some(probe) = search.probe.filter(|probe| probe.start == una) else { return false };
        search.probe = None;
        search.high = probe.size - 1;
        let mss = self.send_mss(path);
        self.on_too_big(mss);
        true
    }

    /// The retransmission timer has fired on data, after `retries` times before.
    ///
    /// RFC 4821 section 7.7: a full-stop timeout, one that repeats, indicates a routing change to a
    /// path with a smaller MTU. The result of a probe is unknown then (section 7.6.4).
    pub(crate) fn suspect_mtu(&mut self, path: &Path, now: Instant, retries: u8) {
        let Some(probing) = path.config().mtu_probing else { return };
        let options = path.option_bytes();
        match self.mtu_mut() {
            Some(search) => search.probe = None,
            None if retries >= probing.retries => return self.search_mtu(path, now, probing),
            None => return,
        }
        if let Some(search) = self.mtu_mut().filter(|_| retries >= probing.retries) {
            let half = (search.low.saturating_sub(options) / 2).min(probing.base_mss);
            search.low = half.max(probing.floor).max(MIN_SEND_MSS).saturating_add(options);
            search.cap = search.low;
        }
    }

    fn search_mtu(&mut self, path: &Path, now: Instant, probing: MtuProbing) {
        let high = self.snd.peer_mss.min(path.config().max_mss.unwrap_or(u16::MAX));
        let low = probing.base_mss.saturating_add(path.option_bytes());
        let low = low.min(high.min(path.link.mss));
        let search = MtuSearch { low, high, cap: low, probe: None, since: now };
        self.rare().mtu = Some(search);
    }

    /// The search has ended. After a while it starts again, because the path may have changed.
    fn search_again(&mut self, path: &Path, now: Instant, probing: MtuProbing) {
        let current = u16::try_from(self.send_mss(path)).unwrap_or(u16::MAX);
        let low = current.saturating_add(path.option_bytes());
        let high = self.snd.peer_mss.min(path.config().max_mss.unwrap_or(u16::MAX));
        if let Some(search) = self.mtu_mut()
            && now.saturating_since(search.since) >= probing.interval
        {
            (search.low, search.high, search.since) = (low, high, now);
        }
    }
}
