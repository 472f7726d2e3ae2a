//! Sending and receiving by an end of a link, for tests.

use std::collections::VecDeque;

use pagewire_mem::{CopyLedger, Instant, PacketBuf};

use crate::Device;

/// Has an end send frames; returns those that it left.
pub(crate) fn send(
    end: &mut impl Device,
    now: Instant,
    frames: impl IntoIterator<Item = PacketBuf>,
) -> VecDeque<PacketBuf> {
    let mut frames = frames.into_iter().collect();
    end.transmit(now, &mut frames, &mut CopyLedger::new()).expect("transmit");
    frames
}

/// Has an end receive what is there, up to a thousand frames. Those that a wrapper keeps are left out.
pub(crate) fn receive(end: &mut impl Device, now: Instant) -> Vec<PacketBuf> {
    let mut frames = VecDeque::new();
    end.receive(now, &mut frames, 1000, &mut CopyLedger::new()).expect("receive");
    frames.into()
}

/// Lets an end receive at most `max` frames, and checks the number that it returns.
pub(crate) fn receive_some(end: &mut impl Device, now: Instant, max: usize) -> Vec<PacketBuf> {
    let mut frames = VecDeque::new();
    let n = end.receive(now, &mut frames, max, &mut CopyLedger::new()).expect("receive");
    assert_eq!(n, frames.len());
    frames.into()
}
