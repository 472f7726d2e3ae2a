//! Operations on the stack that several forms of a socket share: each is tried once, and returns
//! `WouldBlock` to be tried again when the socket is ready.

use std::io::{IoSlice, IoSliceMut};
use std::net::SocketAddr;

use bytes::Bytes;
use pagewire_mem::{CopyLedger, CopyReason, Frag, FragVec, Held, PageWriter};
use pagewire_stack::{
    Error, Filled, Message, Readiness, RecvFlags, SendFlags, Stack, Tcp, TcpId, ToCopy, UdpId,
    UdpTarget, ZeroCopyCall, limits,
};

use crate::buf::{Chunks, SendBuf};
use crate::datagram::Datagram;
use crate::limits::{COPY_UNLOCKED, MAX_COPY_UNLOCKED};
use crate::runtime::{Clock, Runtime};
use crate::zerocopy::Sent;

/// Whether the handshake is complete: the error if it failed.
pub(crate) fn connected(stack: &mut Stack, clock: &Clock<'_>, id: TcpId) -> Result<(), Error> {
    // An operation that reads the time has its output sent: the SYN, and data that waits.
    clock.now();
    let readiness = stack.readiness(id)?;
    if let Some(error) = stack.take_error(id) {
        return Err(error);
    }
    if readiness.contains(Readiness::CONNECTED) {
        return Ok(());
    }
    let over = readiness.contains(Readiness::WRITE_CLOSED | Readiness::READ_CLOSED);
    Err(if over { Error::ConnectionAborted } else { Error::WouldBlock })
}

/// Queues memory by reference: as much from the front of `buf` as there is room for. If `sent`, a part
/// was sent before, so an error is left for the next call, and the answer is 0.
pub(crate) fn queue(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    frags: &mut FragVec,
    flags: SendFlags,
    sent: bool,
) -> Result<usize, Error> {
    if sent && has_error(stack, id) {
        return Ok(0);
    }
    stack.tcp(id)?.send(clock.now(), frags, flags)
}

/// As [`queue`]; the release of the memory is reported.
pub(crate) fn queue_zc(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    frags: &mut FragVec,
    call: &mut ZeroCopyCall,
    sent: bool,
) -> Result<usize, Error> {
    if sent && has_error(stack, id) {
        return Ok(0);
    }
    stack.tcp(id)?.send(|| clock.now(), (frags, call), SendFlags::empty())
}

/// Whether the next call returns an error.
fn has_error(stack: &Stack, id: TcpId) -> bool {
    stack.readiness(id).is_ok_and(|ready| ready.contains(Readiness::ERROR))
}

/// Queues copies of slices, one after the other, as far as there is room.
pub(crate) fn write_slices(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    bufs: &[IoSlice<'_>],
) -> Result<usize, Error> {
    queue_slices((stack, clock), id, bufs.iter().map(|buf| (buf, None)))
}

/// Queues slices, one after the other, as far as there is room: a reference to the memory of a slice
/// where that is given, and copies of the rest.
#[inline]
pub(crate) fn queue_slices<'a>(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    slices: impl Iterator<Item = (&'a IoSlice<'a>, Option<&'a Bytes>)>,
) -> Result<usize, Error> {
    let mut tcp = stack.tcp(id)?;
    let (now, mut written, mut empty) = (|| clock.now(), 0, true);
    for (slice, memory) in slices.filter(|(slice, _)| !slice.is_empty()) {
        empty = false;
        let queued = match memory {
            None => tcp.send(now, &**slice, SendFlags::empty()),
            Some(memory) => {
                tcp.send(now, &mut SendBuf::from(memory.clone()).frags, SendFlags::empty())
            }
        };
        match queued {
            Ok(n) if n == slice.len() => written += n,
            Ok(n) => return Ok(written + n),
            // Bytes that are queued count: the next call meets what was in the way.
            Err(_) if written > 0 => break,
            Err(error) => return Err(error),
        }
    }
    match empty {
        // As tokio: an empty write waits, and fails, as others do.
        true => tcp.send(now, &[0; 0], SendFlags::empty()),
        false => Ok(written),
    }
}

/// Received bytes that are to be copied without the runtime's lock ([`COPY_UNLOCKED`]).
#[derive(Default)]
pub(crate) struct Unlocked(Vec<Frag>);

impl Unlocked {
    /// Copies the bytes to the front of `buf`.
    pub(crate) fn copy_to(self, buf: &mut [u8], runtime: &impl Runtime) {
        let Self(frags) = self;
        if frags.is_empty() {
            return;
        }
        // The stack has counted the copies.
        let (mut counted, mut at) = (CopyLedger::new(), 0);
        for frag in &frags {
            let Some(rest) = buf.get_mut(at..) else { break };
            at += frag.copy_to(0, rest, &mut counted, CopyReason::AppRead);
        }
        runtime.drop_received(frags);
    }
}

/// A write of one slice whose copy is made without the runtime's lock, in two steps.
pub(crate) struct UnlockedWrite {
    frags: FragVec,
    copied: CopyLedger,
}

impl UnlockedWrite {
    /// Whether a write of these slices is long enough.
    pub(crate) fn of<'a>(bufs: &'a [IoSlice<'_>]) -> Option<&'a [u8]> {
        match bufs {
            [one] if one.len() >= COPY_UNLOCKED => Some(one),
            _ => None,
        }
    }

    /// The first step: pages for as much of `len` bytes as there is room for. A caller that `waits` takes no
    /// room that is not worth two calls.
    pub(crate) fn lend(
        (stack, clock): (&mut Stack, &Clock<'_>),
        id: TcpId,
        len: usize,
        waits: bool,
    ) -> Result<(PageWriter, usize), Error> {
        let mut tcp = stack.tcp(id)?;
        if waits && !tcp.wait_for_room() {
            return Err(Error::WouldBlock);
        }
        tcp.lend_pages(clock.now(), len)
    }

    /// Between the steps, without the lock: copies the front of `data` into the pages.
    pub(crate) fn copy((mut pages, room): (PageWriter, usize), data: &[u8]) -> Self {
        let mut copied = CopyLedger::new();
        let len = pages.spare_of(room).put(data, &mut copied, CopyReason::AppWrite);
        Self { frags: pages.commit_all(len).collect(), copied }
    }

    /// The second step: queues what was copied.
    pub(crate) fn queue(
        &mut self,
        (stack, clock): (&mut Stack, &Clock<'_>),
        id: TcpId,
    ) -> Result<usize, Error> {
        let Self { frags, copied } = self;
        stack.tcp(id)?.send(|| clock.now(), Filled { frags, copied }, SendFlags::empty())
    }
}

/// Copies received bytes into a slice. Where there are many, leaves that to the caller ([`Unlocked`]).
#[inline]
pub(crate) fn read_or_take(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    buf: &mut [u8],
    flags: RecvFlags,
    Unlocked(into): &mut Unlocked,
) -> Result<usize, Error> {
    let mut tcp = stack.tcp(id)?;
    if flags.is_empty() && tcp.queued().min(buf.len()) >= COPY_UNLOCKED {
        return tcp.recv(
            clock.now(),
            ToCopy { max: buf.len().min(MAX_COPY_UNLOCKED), into },
            flags,
        );
    }
    read((stack, clock), id, buf, flags)
}

/// Copies received bytes into a slice.
#[inline]
pub(crate) fn read(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    buf: &mut [u8],
    flags: RecvFlags,
) -> Result<usize, Error> {
    let mut tcp = stack.tcp(id)?;
    if tcp.awaits_data() {
        return Err(Error::WouldBlock);
    }
    // As tokio: an empty read waits, too.
    if buf.is_empty() {
        return if is_readable(stack, id)? { Ok(0) } else { Err(Error::WouldBlock) };
    }
    tcp.recv(clock.now(), buf, flags)
}

/// Copies received bytes into slices, one after the other, as far as there are any.
pub(crate) fn read_slices(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    bufs: &mut [IoSliceMut<'_>],
) -> Result<usize, Error> {
    let mut done = None;
    for buf in bufs.iter_mut().filter(|buf| !buf.is_empty()) {
        // Only the first may meet the end of the stream, or an error.
        if done.is_some() && stack.tcp(id)?.queued() == 0 {
            break;
        }
        let n = read((stack, clock), id, buf, RecvFlags::empty())?;
        done = Some(done.unwrap_or(0) + n);
        if n < buf.len() {
            break;
        }
    }
    match done {
        Some(done) => Ok(done),
        None => read((stack, clock), id, &mut [], RecvFlags::empty()),
    }
}

/// Receives bytes by reference; they count against the receive buffer until they are dropped.
pub(crate) fn take_chunks(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: TcpId,
    max: usize,
) -> Result<Chunks, Error> {
    let (mut tcp, now): (Tcp<'_>, _) = (stack.tcp(id)?, clock.now());
    let mut frags = Vec::new();
    tcp.recv(now, pagewire_stack::Chunks { max, into: &mut frags }, RecvFlags::empty())?;
    let held = tcp.count_held(now, frags.iter().map(Frag::pinned_pages).sum());
    Ok(Chunks::new(frags, held))
}

fn is_readable(stack: &Stack, id: TcpId) -> Result<bool, Error> {
    Ok(stack.readiness(id)?.intersects(Readiness::FOR_READ))
}

/// The bytes that can be read, once there are enough.
pub(crate) fn readable(stack: &mut Stack, id: TcpId) -> Result<usize, Error> {
    match is_readable(stack, id)? {
        true => stack.tcp(id).map(|tcp| tcp.queued()),
        false => Err(Error::WouldBlock),
    }
}

/// Sends a datagram by copy, to the connected address if there is no other.
pub(crate) fn send(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: UdpId,
    data: &[u8],
    to: impl Into<UdpTarget>,
) -> Result<usize, Error> {
    stack.udp(id)?.send(clock.now(), data, to)
}

/// [`send`] by reference.
pub(crate) fn send_frags(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: UdpId,
    data: &FragVec,
    to: impl Into<UdpTarget>,
) -> Result<usize, Error> {
    stack.udp(id)?.send(clock.now(), data.clone(), to)
}

/// [`send`] by reference; the release of the memory is reported.
pub(crate) fn send_frags_zc(
    (stack, clock): (&mut Stack, &Clock<'_>),
    id: UdpId,
    data: &FragVec,
    to: Option<SocketAddr>,
) -> Result<Sent, Error> {
    let mut call = ZeroCopyCall::new();
    let bytes = stack.udp(id)?.send(clock.now(), (data.clone(), &mut call), to)?;
    Ok(Sent { bytes, id: call.id() })
}

/// Receives a datagram by copy.
pub(crate) fn receive(
    stack: &mut Stack,
    id: UdpId,
    buf: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, SocketAddr), Error> {
    stack.udp(id)?.recv(buf, flags)
}

/// Receives a datagram by reference.
pub(crate) fn take_datagram(stack: &mut Stack, id: UdpId) -> Result<(Chunks, SocketAddr), Error> {
    let (frags, from) = stack.udp(id)?.recv(pagewire_stack::Datagram, RecvFlags::empty())?;
    Ok((Chunks::new(frags.into_vec(), Held::default()), from))
}

/// Receives a datagram by reference, with the addresses of its packet.
pub(crate) fn take_message(stack: &mut Stack, id: UdpId) -> Result<Datagram, Error> {
    stack.udp(id)?.recv(Message(limits::UDP_MAX_PAYLOAD_V4), RecvFlags::empty()).map(Datagram::from)
}
