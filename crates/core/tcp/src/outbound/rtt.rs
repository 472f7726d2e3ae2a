//! Round-trip time and retransmission timeout (RFC 6298, with Linux's bounds).

use core::time::Duration;

/// Smoothed round-trip time, its variation, and the timeout that follows from them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RttEstimator {
    /// Nanoseconds; 0 before the first sample.
    srtt: u64,
    /// Nanoseconds.
    rttvar: u64,
    /// Nanoseconds; `u64::MAX` before the first sample.
    min: u64,
    max_rto_ms: u32,
    min_rto_ms: u16,
    /// Doublings of the timeout.
    backoff: u8,
    /// The SYN's timer has expired.
    syn_timed_out: bool,
}

/// A super-frame waits for more data for at most this long, and only this soon after the last.
pub(crate) const DEFER_WITHIN: Duration = Duration::from_millis(1);

/// > RFC 6298 section 2.1: Until a round-trip time (RTT) measurement has been made for a segment
/// > sent between the sender and receiver, the sender SHOULD set RTO <- 1 second
const FIRST_RTO_MS: u64 = 1_000;

/// > RFC 6298 section 5.7: If the timer expires awaiting the ACK of a SYN segment and the TCP
/// > implementation is using an RTO less than 3 seconds, the RTO MUST be re-initialized to 3
/// > seconds when data transmission begins
const FIRST_RTO_AFTER_SYN_TIMEOUT_MS: u64 = 3_000;

impl RttEstimator {
    /// Nothing measured yet; the timeout stays within these bounds (whole milliseconds, the lower one at
    /// most 65 seconds).
    pub(crate) fn new(min_rto: Duration, max_rto: Duration) -> Self {
        let min_rto_ms = u16::try_from(min_rto.as_millis()).unwrap_or(u16::MAX);
        let max_rto_ms = u32::try_from(max_rto.as_millis()).unwrap_or(u32::MAX);
        Self {
            srtt: 0,
            rttvar: 0,
            min: u64::MAX,
            max_rto_ms: max_rto_ms.max(min_rto_ms.into()),
            min_rto_ms,
            backoff: 0,
            syn_timed_out: false,
        }
    }

    /// Adds a sample. None of a retransmitted segment, unless a timestamp shows which transmission
    /// was answered (Karn's algorithm, RFC 6298 section 3).
    ///
    /// `rtt` is that of the oldest segment that an acknowledgement answers, its delay included;
    /// `newest` is that of the newest, which bounds the path's own.
    pub(crate) fn on_sample(&mut self, rtt: Duration, newest: Duration) {
        let nanos = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX).clamp(1, 1 << 40);
        let r = nanos(rtt);
        self.min = self.min.min(nanos(newest));
        if self.srtt == 0 {
            // > RFC 6298 section 2.2: SRTT <- R, RTTVAR <- R/2
            (self.srtt, self.rttvar) = (r, r / 2);
        } else {
            // > RFC 6298 section 2.3: RTTVAR <- (1 - beta) * RTTVAR + beta * |SRTT - R'|
            // > SRTT <- (1 - alpha) * SRTT + alpha * R' [...] using alpha=1/8 and beta=1/4
            self.rttvar = self.rttvar - self.rttvar / 4 + self.srtt.abs_diff(r) / 4;
            self.srtt = (self.srtt - self.srtt / 8 + r / 8).max(1);
        }
        self.backoff = 0;
    }

    /// The retransmission timeout.
    ///
    /// > RFC 6298 section 2.3: RTO <- SRTT + max (G, K*RTTVAR) where K = 4.
    ///
    /// As in Linux, the lower bound replaces the granularity G: a timeout is at least that much
    /// *longer* than the round trip, which leaves room for a delayed acknowledgement on any path.
    /// RFC 6298 section 2.4 asks for at least 1 second; no stack does that.
    pub(crate) fn rto(&self) -> Duration {
        let base = if self.srtt == 0 {
            let late = self.syn_timed_out;
            (if late { FIRST_RTO_AFTER_SYN_TIMEOUT_MS } else { FIRST_RTO_MS }) * 1_000_000
        } else {
            self.srtt + (4 * self.rttvar).max(u64::from(self.min_rto_ms) * 1_000_000)
        };
        let max = u64::from(self.max_rto_ms) * 1_000_000;
        if self.backoff == 0 {
            return Duration::from_nanos(base.min(max));
        }
        // `base` is at least a millisecond when it is not 0, so 40 doublings pass any bound.
        let backed_off = u128::from(base) << self.backoff.min(40);
        Duration::from_nanos(u64::try_from(backed_off).unwrap_or(u64::MAX).min(max))
    }

    /// > RFC 6298 section 5.5: The host MUST set RTO <- RTO * 2 ("back off the timer").
    pub(crate) fn on_backoff(&mut self) {
        self.backoff = self.backoff.saturating_add(1);
    }

    /// Takes the last doubling back.
    pub(crate) fn undo_backoff(&mut self) {
        self.backoff = self.backoff.saturating_sub(1);
    }

    pub(crate) const fn backoff(&self) -> u8 {
        self.backoff
    }

    /// The handshake is done, but the SYN had to be sent again and nothing was measured.
    pub(crate) fn on_syn_timed_out(&mut self) {
        self.syn_timed_out = true;
        self.backoff = 0;
    }

    /// The smoothed round-trip time; `None` before the first sample.
    pub(crate) fn srtt(&self) -> Option<Duration> {
        (self.srtt != 0).then(|| Duration::from_nanos(self.srtt))
    }

    /// The mean deviation; zero before the first sample.
    pub(crate) fn rttvar(&self) -> Duration {
        Duration::from_nanos(self.rttvar)
    }

    /// Whether the peer ever answered as fast as only a peer in the same machine can.
    #[inline]
    pub(crate) fn is_near(&self) -> bool {
        self.min().is_none_or(|least| least < DEFER_WITHIN)
    }

    /// The least round-trip time ever measured; `None` before the first sample.
    pub(crate) fn min(&self) -> Option<Duration> {
        (self.srtt != 0).then(|| Duration::from_nanos(self.min))
    }
}

#[cfg(test)]
#[path = "rtt_tests.rs"]
mod tests;
