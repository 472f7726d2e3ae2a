//! Calls of an application on the sockets of `frames.rs` beyond the plain ones: flags, options, zero copy with
//! notifications, urgent data, Fast Open.
//!
//! Every send with a notification that was taken completes once, in ranges that are checked against
//! what was taken.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use pagewire_mem::{Frag, FragVec, Instant};
use pagewire_stack::{
    Chunks, Discard, Error, ErrorEntry, KeepAlive, Notification, RecvFlags, SendFlags, SocketId,
    SocketOption, Stack, Tcp, ZeroCopyCall,
};

/// Sends that have not completed, by socket.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    outstanding: BTreeMap<String, BTreeSet<u32>>,
    /// How many completed.
    pub(crate) completed: usize,
}

impl Sends {
    fn take(&mut self, socket: SocketId, id: Option<u32>) {
        if let Some(id) = id {
            let socket = self.outstanding.entry(format!("{socket:?}")).or_default();
            assert!(socket.insert(id), "id {id} was given out twice");
        }
    }

    fn complete(&mut self, socket: SocketId, Notification { lo, hi, .. }: Notification) {
        let ids = self.outstanding.entry(format!("{socket:?}")).or_default();
        assert!(hi.wrapping_sub(lo) < 1 << 20, "{lo} to {hi} are too many");
        let mut id = lo;
        loop {
            assert!(ids.remove(&id), "{id} of {lo} to {hi} completes, but was not sent");
            self.completed += 1;
            if id == hi {
                break;
            }
            id = id.wrapping_add(1);
        }
    }

    /// Reads a socket's error queue.
    pub(crate) fn read(&mut self, stack: &mut Stack, socket: SocketId) {
        while let Some(entry) = stack.poll_error_queue(socket) {
            if let ErrorEntry::ZeroCopy(notification) = entry {
                self.complete(socket, notification);
            }
        }
    }

    /// A socket is closed: nothing is reported any more.
    pub(crate) fn forget(&mut self, socket: SocketId) {
        self.outstanding.remove(&format!("{socket:?}"));
    }
}

/// `n` bytes in a number of fragments.
fn pieces(n: usize, pieces: usize) -> FragVec {
    let data = vec![9; n];
    let each = n.div_ceil(pieces.max(1)).max(1);
    data.chunks(each).map(|piece| Frag::from_bytes(piece.to_vec().into())).collect()
}

/// Calls the socket `id`, if it is one of TCP.
pub(crate) fn tcp<T>(
    stack: &mut Stack,
    id: SocketId,
    call: impl FnOnce(&mut Tcp<'_>) -> Result<T, Error>,
) -> Result<T, Error> {
    call(&mut stack.as_tcp(id)?)
}

/// Makes one call on the socket `id`. Two bytes of the input choose the call and its arguments.
pub(crate) fn more(
    stack: &mut Stack,
    now: Instant,
    id: SocketId,
    sends: &mut Sends,
    [verb, a, b]: [u8; 3],
) {
    let n = usize::from(u16::from_be_bytes([a, b]));
    let some = usize::from(b) * 16;
    match verb % 16 {
        0 => {
            let flags = SendFlags::from_bits_truncate(a);
            let _ = tcp(stack, id, |tcp| tcp.send(now, &vec![a; some], flags));
        }
        1 => {
            let flags = SendFlags::from_bits_truncate(a);
            let mut frags = pieces(usize::from(b) * 100, usize::from(a >> 3));
            let _ = tcp(stack, id, |tcp| tcp.send(now, &mut frags, flags));
        }
        2 => {
            let flags = RecvFlags::from_bits_truncate(a);
            let _ = tcp(stack, id, |tcp| tcp.recv(now, &mut vec![0; some][..], flags));
        }
        3 => {
            let flags = RecvFlags::from_bits_truncate(a);
            let mut chunks = Vec::new();
            let into = Chunks { max: some, into: &mut chunks };
            let got = tcp(stack, id, |tcp| tcp.recv(now, into, flags));
            if let Ok(n) = got {
                assert_eq!(n, chunks.iter().map(Frag::len).sum::<usize>());
            }
        }
        4 => {
            let flags = RecvFlags::from_bits_truncate(a);
            let _ = tcp(stack, id, |tcp| tcp.read_urgent(now, flags));
        }
        5 => _ = stack.set_zerocopy(id, a & 1 == 0),
        6 | 7 => {
            let mut frags = pieces(n, usize::from(verb >> 4) * 3);
            let mut call = ZeroCopyCall::new();
            // A call that found room for a part goes on with the rest, as a blocking one would.
            for _ in 0..1 + verb % 2 {
                let before: usize = frags.iter().map(Frag::len).sum();
                let what = (&mut frags, &mut call);
                let sent = tcp(stack, id, |tcp| tcp.send(now, what, SendFlags::empty()));
                let sent = sent.unwrap_or(0);
                let after: usize = frags.iter().map(Frag::len).sum();
                assert_eq!(sent, before - after, "what was taken is what is missing");
            }
            sends.take(id, call.id());
        }
        8 => {
            let to: SocketAddr = if a & 1 == 0 { "10.0.0.2:1000" } else { "[fd00::2]:1000" }
                .parse()
                .expect("address");
            let sent = stack.as_udp(id).and_then(|mut udp| {
                let mut call = ZeroCopyCall::new();
                let sent =
                    udp.send(now, (pieces(n % 3000, usize::from(a >> 4)), &mut call), Some(to))?;
                Ok((sent, call.id()))
            });
            if let Ok((_, taken)) = sent {
                sends.take(id, taken);
            }
        }
        9 => _ = tcp(stack, id, |tcp| tcp.recv(now, Discard(n), RecvFlags::empty())),
        10 => {
            let _ = (
                stack.as_tcp(id).map(|tcp| tcp.inq()),
                stack.as_tcp(id).map(|tcp| tcp.queued()),
                stack.as_tcp(id).map(|tcp| tcp.at_urgent_mark()),
            );
            let _ = (
                stack.as_tcp(id).map(|tcp| tcp.info_at(now)),
                stack.as_tcp(id).map(|tcp| tcp.ledger()),
                stack.readiness(id),
            );
            if let Ok((queued, unsent)) = stack.as_tcp(id).map(|tcp| tcp.queued_send()) {
                assert!(unsent <= queued, "{unsent} of {queued} bytes were never sent");
            }
        }
        11 => _ = stack.as_tcp(id).map(|mut tcp| tcp.send_syn()),
        12 => _ = stack.as_tcp(id).map(|mut tcp| tcp.set_write_pending(a & 1 == 0)),
        _ => {
            let milliseconds = Duration::from_millis(n as u64);
            let option = match verb >> 4 {
                0 => SocketOption::UserTimeout((n > 0).then_some(milliseconds)),
                1 => SocketOption::MaxSeg((n > 0).then_some(n.max(88) as u16)),
                2 => SocketOption::SynCount(b),
                3 => SocketOption::Linger2(milliseconds),
                4 => SocketOption::Linger(
                    (n > 0).then(|| milliseconds.saturating_sub(Duration::from_millis(1))),
                ),
                5 => SocketOption::NotSentLowat(n as u32),
                6 => SocketOption::RcvLowat(n as u32),
                7 => SocketOption::SendBuffer(n as u32 * 4),
                8 => SocketOption::RecvBuffer(n as u32 * 4),
                9 => SocketOption::WindowClamp((n > 0).then_some(n as u32)),
                10 => SocketOption::QuickAck(b & 1 == 0),
                11 => SocketOption::OobInline(b & 1 == 0),
                12 => SocketOption::FastOpen(u32::from(b)),
                13 => SocketOption::FastOpenNoCookie(b & 1 == 0),
                14 => SocketOption::KeepAlive(Some(KeepAlive {
                    idle: milliseconds,
                    interval: milliseconds,
                    probes: 3,
                })),
                _ => SocketOption::NoDelay(b & 1 == 0),
            };
            let _ = tcp(stack, id, |tcp| tcp.set_option(now, option));
        }
    }
}
