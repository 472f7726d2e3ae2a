//! The fuzz target's entry point: datagrams as any sender could send them.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::sync::atomic::{AtomicU32, Ordering};

use pagewire_mem::{CopyLedger, Instant};

use super::{DatagramLink, GREETING};
use crate::Device;
use crate::limits::SOCKET_MIN_POOL_BYTES;
use crate::port::limits::MIN_ETHERNET;

static CALLS: AtomicU32 = AtomicU32::new(0);

/// Takes `data` as datagrams, each with two bytes before it: its sender (one of two, one without a
/// name), and its length. Frames of the sender that greeted last must arrive, byte for byte, and
/// nothing else. Does nothing where there is no socket or memory.
pub fn frames_datagram(data: &[u8]) {
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let base = std::env::temp_dir().join(format!("pagewire-fuzz-{}-{call}", std::process::id()));
    let path = |name: &str| base.with_extension(name);
    let builder = DatagramLink::builder().pool_bytes(SOCKET_MIN_POOL_BYTES);
    let Ok(mut link) = builder.bind(path("link")) else { return };
    let bound = ["one", "two"].map(|name| UnixDatagram::bind(path(name)));
    let [Ok(one), Ok(two)] = bound else { return };
    let Ok(unnamed) = UnixDatagram::unbound() else { return };
    let senders = [one, two, unnamed];
    let (mut peer, mut frames, mut ledger) = (None, VecDeque::new(), CopyLedger::new());
    let mut rest = data;
    while let Some((&[who, length], after)) = rest.split_first_chunk::<2>() {
        let (datagram, next) = after.split_at(usize::from(length).min(after.len()));
        rest = next;
        let who = usize::from(who % 3);
        let sent = senders.get(who).map(|sender| sender.send_to(datagram, path("link")));
        if !matches!(sent, Some(Ok(_))) {
            break;
        }
        let came = link.receive(Instant::ZERO, &mut frames, 64, &mut ledger);
        let expected = peer == Some(who) && datagram.len() >= MIN_ETHERNET;
        assert_eq!(came.ok(), Some(usize::from(expected)), "a frame of the peer's, and no other");
        if datagram == GREETING && who < 2 {
            peer = Some(who);
        }
        if let Some(packet) = frames.pop_front() {
            let parts = packet.frags().iter().filter_map(|frag| frag.as_slice());
            assert!(packet.head().iter().chain(parts.flatten()).eq(datagram), "a frame changed");
        }
    }
    assert!(link.pool_audit().is_none_or(|audit| audit.is_conserved()), "a page was lost");
    for name in ["one", "two"] {
        let _ = std::fs::remove_file(path(name));
    }
}
