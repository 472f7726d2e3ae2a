//! Additive increase, multiplicative decrease (RFC 5681).

use super::Window;

/// State of congestion avoidance.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno {
    /// Bytes acknowledged towards the next step.
    acked: u32,
}

impl NewReno {
    /// One segment for each window acknowledged.
    ///
    /// > RFC 5681 section 3.1: The RECOMMENDED way to increase cwnd during congestion avoidance is
    /// > to count the number of bytes that have been acknowledged by ACK segments for new data.
    /// > [...] when the number of bytes acknowledged reaches cwnd, then cwnd can be incremented by
    /// > up to SMSS bytes.
    pub(super) fn increase(&mut self, window: Window, acked: u32) -> u32 {
        let Window { cwnd, mss, .. } = window;
        let cwnd = cwnd.max(1);
        // The window may have shrunk since: what was saved is good for one step at most.
        let acked = self.acked.min(cwnd).saturating_add(acked);
        self.acked = acked % cwnd;
        cwnd.saturating_add((acked / cwnd).saturating_mul(mss))
    }

    /// The new threshold.
    ///
    /// > RFC 5681 section 3.1: ssthresh = max (FlightSize / 2, 2*SMSS) (4) [...] Implementation
    /// > Note: An easy mistake to make is to simply use cwnd, rather than FlightSize
    pub(super) fn decrease(&mut self, window: Window, flight: u32) -> u32 {
        self.acked = 0;
        (flight / 2).max(window.mss.saturating_mul(2))
    }
}
