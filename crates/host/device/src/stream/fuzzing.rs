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
    let (mut whole, mut seen, mut rest, mut ended) = (Vec::new(), 0, data, false);
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
            let got = link.receive(Instant::ZERO, &mut frames, 3, &mut ledger);
            ended = !link.is_up();
            // Frames that were kept would empty the pool, and what follows them would stay unread.
            for packet in frames.drain(..) {
                let Next::Frame(frame) = next_frame(&whole, seen) else {
                    unreachable!("a frame that nobody sent")
                };
                let parts = packet.frags().iter().filter_map(|frag| frag.as_slice());
                assert!(packet.head().iter().chain(parts.flatten()).eq(frame), "a frame changed");
                seen += PREFIX + frame.len();
            }
            match got {
                Ok(0) if !link.arm() => break,
                Ok(_) => {}
                Err(error) => assert!(matches!(error, DeviceError::Closed), "{error}"),
            }
        }
    }
    let left = next_frame(&whole, seen);
    assert!(!matches!(left, Next::Frame(_)), "a frame was lost");
    let malformed = matches!(left, Next::Malformed);
    assert_eq!(malformed, ended, "an impossible length ends the session, and nothing else");
    assert_eq!(link.counters().rx_dropped_malformed, u64::from(malformed));
    assert!(link.pool_audit().is_none_or(|audit| audit.is_conserved()), "a page was lost");
}

/// The front of a stream, as a reference reads it.
enum Next<'a> {
    Frame(&'a [u8]),
    Unfinished,
    Malformed,
}

fn next_frame(stream: &[u8], seen: usize) -> Next<'_> {
    let rest = stream.get(seen..).unwrap_or_default();
    let Some((length, after)) = rest.split_first_chunk::<PREFIX>() else {
        return Next::Unfinished;
    };
    let length = u32::from_be_bytes(*length) as usize;
    if !(MIN_ETHERNET..=MAX_SOCKET_FRAME).contains(&length) {
        return Next::Malformed;
    }
    after.get(..length).map_or(Next::Unfinished, Next::Frame)
}
