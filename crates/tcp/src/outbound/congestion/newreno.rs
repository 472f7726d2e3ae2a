//! Additive increase, multiplicative decrease (RFC 5681).

/// No state beside the window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NewReno;

impl NewReno {
    /// The new threshold.
    ///
    /// > RFC 5681 section 3.1: ssthresh = max (FlightSize / 2, 2*SMSS) (4) [...] Implementation
    /// > Note: An easy mistake to make is to simply use cwnd, rather than FlightSize
    pub(super) fn decrease(flight: u32) -> u32 {
        (flight / 2).max(2)
    }
}
