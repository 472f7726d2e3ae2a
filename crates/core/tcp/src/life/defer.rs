//! Deferred accept: a connection is complete only with data (Linux's `TCP_DEFER_ACCEPT`).
//!
//! The acknowledgement that would complete the handshake is dropped. The SYN,ACK's timer runs on,
//! and at its last timeout the SYN,ACK leaves again: the answer completes the handshake.

use core::time::Duration;

use crate::limits::{DEFER_FIRST_SECONDS, DEFER_LONGEST_SECONDS};

/// How many timeouts of a SYN,ACK cover `time`, as Linux counts them: 1 s, 2 s, 4 s and so on, up
/// to 120 s each. At most 255.
pub fn defer_accept_timeouts(time: Duration) -> u8 {
    let enough = (0..u8::MAX).find(|&timeouts| defer_accept_time(timeouts) >= time);
    enough.unwrap_or(u8::MAX)
}

/// The duration of `timeouts` timeouts: Linux rounds the time up to it.
pub fn defer_accept_time(timeouts: u8) -> Duration {
    let one =
        |n: u32| DEFER_FIRST_SECONDS.saturating_mul(1 << n.min(16)).min(DEFER_LONGEST_SECONDS);
    Duration::from_secs((0..u32::from(timeouts)).map(one).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_rounded_up_to_timeouts_of_the_syn_ack_as_in_linux() {
        let seconds = |s| {
            let timeouts = defer_accept_timeouts(Duration::from_secs(s));
            (timeouts, defer_accept_time(timeouts).as_secs())
        };
        assert_eq!(seconds(0), (0, 0));
        assert_eq!(seconds(1), (1, 1));
        assert_eq!([seconds(2), seconds(3), seconds(4)], [(2, 3), (2, 3), (3, 7)]);
        assert_eq!([seconds(127), seconds(128)], [(7, 127), (8, 247)]);
        assert_eq!(seconds(u64::from(u32::MAX)).0, u8::MAX);
    }
}
