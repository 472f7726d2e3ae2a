//! The fuzz target's entry point: a stream as a peer could send it, in any pieces.

use std::collections::VecDeque;
use std::io::Write;
use std::os::unix::net::UnixStream;

use pagewire_mem::{CopyLedger, Instant};

use super::{PREFIX, StreamLink};
use crate::limits::{MAX_SOCKET_FRAME, SOCKET_MIN_POOL_BYTES};
use crate::port::limits::MIN_ETHERNET;
use crate::{Device, DeviceError};

/// Takes `data` as pieces, each with its length in the byte before it; 0 stands for 4,000 bytes of
/// zeros. The link must deliver exactly the frames that the whole stream has up to its first
/// impossible length, there end, and lose no page. Does nothing where there is no socket or memory.
pub fn frames_stream(data: &[u8]) {
    let Ok((ours, mut peer)) = UnixStream::pair() else { return };
    let builder = StreamLink::builder().pool_bytes(SOCKET_MIN_POOL_BYTES);
    let Ok(mut link) = builder.over(ours) else { return };
    if peer.set_nonblocking(true).is_err() {
        return;
    }
    let (mut frames, mut ledger) = (VecDeque::new(), CopyLedger::new());
    let (mut whole, mut rest, mut ended) = (Vec::new(), data, false);
    while let Some((&length, after)) = rest.split_first() {
        let (piece, next) = match usize::from(length).min(after.len()) {
            0 => (&[0; 4000][..], after),
            n => after.split_at(n),
        };
        rest = next;
        // After a malformed length the link has closed its end.
        if ended || peer.write_all(piece).is_err() {
            break;
        }
        whole.extend_from_slice(piece);
        while !ended {
            match link.receive(Instant::ZERO, &mut frames, 3, &mut ledger) {
                Ok(0) if !link.arm() => break,
                Ok(_) => ended = !link.is_up(),
                Err(error) => {
                    assert!(matches!(error, DeviceError::Closed), "{error}");
                    ended = true;
                }
            }
        }
    }
    let (expected, malformed) = split(&whole);
    assert_eq!(malformed, ended, "an impossible length ends the session, and nothing else");
    assert_eq!(link.counters().rx_dropped_malformed, u64::from(malformed));
    assert_eq!(frames.len(), expected.len());
    for (packet, frame) in frames.iter().zip(expected) {
        let parts = packet.frags().iter().filter_map(|frag| frag.as_slice());
        assert!(packet.head().iter().chain(parts.flatten()).eq(frame), "a frame changed");
    }
    drop(frames);
    assert!(link.pool_audit().is_none_or(|audit| audit.is_conserved()), "a page was lost");
}

/// The frames of a stream, and whether an impossible length follows them.
fn split(mut stream: &[u8]) -> (Vec<&[u8]>, bool) {
    let mut frames = Vec::new();
    while let Some((length, after)) = stream.split_first_chunk::<PREFIX>() {
        let length = u32::from_be_bytes(*length) as usize;
        if !(MIN_ETHERNET..=MAX_SOCKET_FRAME).contains(&length) {
            return (frames, true);
        }
        let Some((frame, next)) = after.split_at_checked(length) else { break };
        frames.push(frame);
        stream = next;
    }
    (frames, false)
}
