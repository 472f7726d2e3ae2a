use core::mem::size_of;

use super::*;

/// An idle connection is this and nothing else (`conformance/memory.rs`): 100,000 of them are
/// 64 MB at most.
#[test]
fn connection_is_at_most_640_bytes() {
    println!(
        "{} = snd {} rcv {} queue {} flight {} rtt {} congestion {} timers {} ts {} ack {} stats {}",
        size_of::<Connection>(),
        size_of::<Sender>(),
        size_of::<Receiver>(),
        size_of::<SendQueue>(),
        size_of::<Flight>(),
        size_of::<RttEstimator>(),
        size_of::<Congestion>(),
        size_of::<Timers>(),
        size_of::<Timestamps>(),
        size_of::<AckState>(),
        size_of::<Stats>(),
    );
    assert!(size_of::<Connection>() <= 640, "{}", size_of::<Connection>());
}
