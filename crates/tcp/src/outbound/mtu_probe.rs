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
    /// Known to pass, or small enough.
    low: u16,
    /// The least size that may not pass. The link's MSS bounds it too.
    high: u16,
    /// The longest segment now.
    cap: u16,
    probe: Option<Probe>,
    /// When the range was reset.
    since: Instant,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    start: Seq,
    end: Seq,
    size: u16,
}

pub(crate) enum ProbeStep {
    /// New data leaves as usual.
    No,
    /// New data waits until the probe fits the congestion window.
    Wait,
    /// This probe leaves.
    Send(Outgoing),
}

impl Outbound {
    /// Whether the next new data leaves as a probe.
    ///
    /// RFC 4821 section 7.4, probing preconditions: no probe or loss is outstanding, the window has
    /// room, and there is enough data to detect the probe's loss. `has_gaps`: of the receive queue.
    pub(crate) fn probe_mtu(&mut self, path: &Path, now: Instant, has_gaps: bool) -> ProbeStep {
        let Some(search) = mtu(&self.transfer) else { return ProbeStep::No };
        let quiet = search.probe.is_none()
            && self.transfer.loss.state == CaState::Open
            && self.transfer.congestion.cwnd() >= MIN_MTU_PROBE_CWND
            && !has_gaps;
        let Some(probing) = path.config().mtu_probing.filter(|_| quiet) else {
            return ProbeStep::No;
        };
        let (low, high) = (search.low, search.high.min(path.link().mss));
        let size = low.midpoint(high);
        let mss = self.transfer.send_mss(path);
        let options = u32::from(path.option_bytes()) + self.transfer.steady_ecn_bytes(path);
        let len = u32::from(size).saturating_sub(options);
        if high < low || high - low < probing.threshold || len <= mss {
            search_again(&mut self.transfer, path, now, probing);
            return ProbeStep::No;
        }
        let needed = len + (u32::from(self.transfer.loss.reordering) + 1) * mss;
        if self.unsent(path) < needed || self.transfer.snd.window < needed {
            return ProbeStep::No;
        }
        let in_flight = self.transfer.packets_in_flight();
        let room = self.transfer.send_edge().saturating_since(self.transfer.snd.nxt) >= needed;
        if !room || in_flight + 2 > self.transfer.congestion.cwnd() {
            return if in_flight > 0 { ProbeStep::Wait } else { ProbeStep::No };
        }
        let start = self.transfer.snd.nxt;
        let (payload, taken) = self.queue.slice(start, len);
        if taken < len {
            // It does not fit one packet, or a record ends within.
            return ProbeStep::No;
        }
        let end = start + len;
        self.on_sent(path, now, start, end, len);
        if let Some(search) = mtu_mut(&mut self.transfer) {
            search.probe = Some(Probe { start, end, size });
        }
        ProbeStep::Send(Outgoing { start, end, flags: Flags::ACK, payload, len, mss: len })
    }
}

#[inline]
fn mtu(transfer: &Transfer) -> Option<&MtuSearch> {
    transfer.rare.as_ref()?.mtu.as_ref()
}

fn mtu_mut(transfer: &mut Transfer) -> Option<&mut MtuSearch> {
    transfer.rare.as_mut()?.mtu.as_mut()
}

/// The handshake is complete.
pub(crate) fn start_mtu_search(transfer: &mut Transfer, path: &Path, now: Instant) {
    let Some(probing) = path.config().mtu_probing.filter(|probing| probing.from_start) else {
        return;
    };
    search_mtu(transfer, path, now, probing);
    let whole = path.link().mss;
    // As Linux: the passive side begins with the link's MSS.
    if !path.is_active()
        && let Some(search) = mtu_mut(transfer)
    {
        search.cap = whole;
    }
}

pub(crate) fn probes_mtu(transfer: &Transfer) -> bool {
    mtu(transfer).is_some_and(|search| search.probe.is_some())
}

/// The longest segment as far as probing knows.
#[inline]
pub(crate) fn probed_mss(transfer: &Transfer) -> u16 {
    mtu(transfer).map_or(u16::MAX, |search| search.cap)
}

/// The path may take longer segments than before: a probe will show.
pub(crate) fn doubt_longer_path(transfer: &mut Transfer, path: &Path) {
    let before = path.link().mss;
    if let Some(search) = mtu_mut(transfer) {
        search.cap = search.cap.min(before);
    }
}

/// Checks whether the probe was acknowledged.
///
/// > RFC 4821 section 7.6.1: When the probe is delivered, it is an indication that the Path MTU is
/// > at least as large as the probe size. Set search_low to the probe size.
#[inline]
pub(crate) fn take_mtu_answer(transfer: &mut Transfer, path: &Path) {
    let (una, before) = (transfer.snd.una, transfer.send_mss(path));
    let Some(search) = mtu_mut(transfer) else { return };
    if search.probe.is_none_or(|probe| una.lt(probe.end)) {
        return;
    }
    let Some(probe) = search.probe.take() else { return };
    search.low = probe.size;
    search.cap = probe.size;
    // The window is counted in segments, and stays what it was in bytes.
    let cwnd = u64::from(transfer.congestion.cwnd()) * u64::from(before);
    let after = u64::from(transfer.send_mss(path)).max(1);
    transfer.congestion.set_cwnd(u32::try_from(cwnd / after).unwrap_or(u32::MAX));
}

/// A segment is considered lost. `true`: it is the probe, whose loss is no congestion.
///
/// > RFC 4821 section 7.6.2: When only the probe is lost, it is treated as an indication that the
/// > Path MTU is smaller than the probe size.
pub(crate) fn is_probe_lost(transfer: &mut Transfer, path: &Path) -> bool {
    let una = transfer.snd.una;
    let Some(search) = mtu_mut(transfer) else { return false };
    let Some(probe) = search.probe.filter(|probe| probe.start == una) else { return false };
    search.probe = None;
    search.high = probe.size - 1;
    let mss = transfer.send_mss(path);
    transfer.on_too_big(mss);
    true
}

/// The retransmission timer has fired on data, after `retries` times before.
///
/// RFC 4821 section 7.7: a full-stop timeout, one that repeats, indicates a routing change to a
/// path with a smaller MTU. The result of a probe is unknown then (section 7.6.4).
pub(crate) fn suspect_mtu(transfer: &mut Transfer, path: &Path, now: Instant, retries: u8) {
    let Some(probing) = path.config().mtu_probing else { return };
    let options = path.option_bytes();
    match mtu_mut(transfer) {
        Some(search) => search.probe = None,
        None if retries >= probing.retries => return search_mtu(transfer, path, now, probing),
        None => return,
    }
    if let Some(search) = mtu_mut(transfer).filter(|_| retries >= probing.retries) {
        let half = (search.low.saturating_sub(options) / 2).min(probing.base_mss);
        search.low = half.max(probing.floor).max(MIN_SEND_MSS).saturating_add(options);
        search.cap = search.low;
    }
}

fn search_mtu(transfer: &mut Transfer, path: &Path, now: Instant, probing: MtuProbing) {
    let high = transfer.snd.peer_mss.min(path.config().max_mss.unwrap_or(u16::MAX));
    let low = probing.base_mss.saturating_add(path.option_bytes());
    let low = low.min(high.min(path.link().mss));
    let search = MtuSearch { low, high, cap: low, probe: None, since: now };
    transfer.rare().mtu = Some(search);
}

/// The search has ended. After a while it starts again, because the path may have changed.
fn search_again(transfer: &mut Transfer, path: &Path, now: Instant, probing: MtuProbing) {
    let current = u16::try_from(transfer.send_mss(path)).unwrap_or(u16::MAX);
    let low = current.saturating_add(path.option_bytes());
    let high = transfer.snd.peer_mss.min(path.config().max_mss.unwrap_or(u16::MAX));
    if let Some(search) = mtu_mut(transfer)
        && now.saturating_since(search.since) >= probing.interval
    {
        (search.low, search.high, search.since) = (low, high, now);
    }
}
