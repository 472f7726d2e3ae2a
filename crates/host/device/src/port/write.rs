//! The ways a frame takes into a port. Read [`Port::write`] first.

use core::ops::Range;
use std::collections::VecDeque;

use pagewire_mem::{
    CopyLedger, CopyReason, Frag, FragVec, Gso, GsoKind, HEAD_CAPACITY, Lone, MAX_FRAGS, PAGE_SIZE,
    PacketBuf, RxChecksum, TxChecksum,
};

use super::account::SendBuffer;
use super::error::{PortDrop, PortError};
use super::hook::{EarlyHook, RawFrame, Verdict};
use super::limits::{HEADROOM, MAX_FRAME, METADATA, MIN_ETHERNET, QUEUED_FRAMES, fits_page};
use super::source::FrameSource;
use super::table::Refused;
use super::{FrameChecksum, Offload, Path, Port, WriteFlags};
use pagewire_mem::link::Medium;
use pagewire_mem::link::headers::{self, Layout, Transport};
use pagewire_mem::link::offload::{self, OffloadError};

/// Why there is no packet.
enum End {
    /// The frame was taken, and dropped.
    Dropped(PortDrop),
    Failed(PortError),
}

impl From<PortError> for End {
    fn from(error: PortError) -> Self {
        Self::Failed(error)
    }
}

/// Packets for the stack, each made in its final place: a packet has some 230 bytes.
type FrameQueue = VecDeque<PacketBuf>;

impl Port {
    /// Takes a frame from a writer. A frame for the stack is appended to `out`; one that a hook
    /// sent elsewhere waits in [`poll_transmit`](Self::poll_transmit), of this port or the other.
    /// Returns the way that the frame took, whatever the hook decided then. `ledger` counts the
    /// copy, as one at the device's boundary.
    ///
    /// # Errors
    /// The frame is dropped and counted, except with [`PortError::is_full`]: then the writer keeps
    /// it. In every case the writer gives the memory back to its owner, unless
    /// [`FrameSource::take_frags`] was called and took it.
    #[inline]
    pub fn write<S: FrameSource>(
        &mut self,
        source: &mut S,
        how: WriteFlags,
        offload: Offload,
        out: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<Path, PortError> {
        self.take(source, how, &offload, out, ledger).inspect_err(|error| match error.reason() {
            Some(reason) => self.counters.drop_one(reason),
            None => self.counters.blocked += 1,
        })
    }

    fn take<S: FrameSource>(
        &mut self,
        source: &mut S,
        how: WriteFlags,
        offload: &Offload,
        out: &mut FrameQueue,
        ledger: &mut CopyLedger,
    ) -> Result<Path, PortError> {
        let len = source.len();
        let least = if self.medium == Medium::Ethernet { MIN_ETHERNET } else { 1 };
        if !(least..=MAX_FRAME).contains(&len) {
            return Err(PortError::Length(len));
        }
        if !self.up {
            return Err(PortError::Down);
        }
        check(offload, len)?;
        // A verdict of its own for each way: that of the usual way stays in a register.
        if how.zerocopy {
            let mut verdict = Verdict::Pass;
            if let Some(done) = self.refer(source, len, offload, out, &mut verdict) {
                self.end(done, verdict, out)?;
                self.counters.zerocopy += 1;
                return Ok(Path::ZeroCopy);
            }
        }
        if self.builds(len, how) {
            let mut verdict = Verdict::Pass;
            let done = self.build(source, len, offload, out, ledger, &mut verdict);
            self.end(done, verdict, out)?;
            self.counters.built += 1;
            return Ok(Path::Built);
        }
        let mut verdict = Verdict::Pass;
        let done = self.account(source, (len, how), offload, out, ledger, &mut verdict);
        self.end(done, verdict, out)?;
        self.counters.accounted += 1;
        Ok(Path::Accounted)
    }

    /// Whether a copied frame is built in place. Zero copy was not chosen for it, or was impossible.
    fn builds(&self, len: usize, how: WriteFlags) -> bool {
        self.medium == Medium::Ethernet
            && self.send_buffer == SendBuffer::Unlimited
            && how.nonblock
            && fits_page(len)
    }

    /// Bytes of a frame that the hook needs to see.
    fn shown(&self, len: usize) -> usize {
        self.hook.as_ref().map_or(len, |hook| hook.reach().max(MIN_ETHERNET).min(len))
    }

    /// Bytes behind a copied frame by which a hook may extend it.
    fn tailroom(&self) -> usize {
        if self.hook.is_some() { METADATA } else { 0 }
    }

    /// Builds a frame in place: into a page that several share, no charge. On failure, and if the
    /// hook drops it, nothing of the page is used up.
    #[inline(always)]
    fn build<S: FrameSource>(
        &mut self,
        source: &mut S,
        len: usize,
        offload: &Offload,
        out: &mut FrameQueue,
        ledger: &mut CopyLedger,
        verdict: &mut Verdict,
    ) -> Result<(), End> {
        let (need, shown) = (HEADROOM + len + self.tailroom(), self.shown(len));
        let Some(mut room) = self.carver.room(&mut self.pool, need) else {
            let mut seen = Verdict::Pass;
            let done = self.take_headers(source, len, offload, out, ledger, &mut seen);
            *verdict = seen;
            return done;
        };
        let frame = Arriving { source, len, shown, medium: self.medium, offload };
        let (mut start, mut end) = (0, 0);
        let (bytes, payload) = (room.bytes_mut(), (&mut start, &mut end));
        frame.take(&mut self.hook, bytes, out, ledger, (verdict, payload))?;
        let Some(packet) = out.back_mut() else { return Err(PortError::NoMemory.into()) };
        // The first fragment of a packet always finds room.
        let _ = packet.push_frag(room.commit(start..end));
        Ok(())
    }

    /// The accounted way: pages and a record of the frame's own, charged until it is dropped.
    #[inline(never)]
    fn account<S: FrameSource>(
        &mut self,
        source: &mut S,
        (len, how): (usize, WriteFlags),
        offload: &Offload,
        out: &mut FrameQueue,
        ledger: &mut CopyLedger,
        verdict: &mut Verdict,
    ) -> Result<(), End> {
        if !self.account.has_room(!how.nonblock) {
            let full = if how.nonblock { PortError::Again } else { PortError::WouldBlock };
            return Err(full.into());
        }
        let (need, shown) = (HEADROOM + len + self.tailroom(), self.shown(len));
        let charge = self.account.charge(need.next_multiple_of(PAGE_SIZE) + METADATA);
        let lone = Lone::new(&mut self.pool, need, charge);
        let Some(mut lone) = lone else {
            return self.take_headers(source, len, offload, out, ledger, verdict);
        };
        let frame = Arriving { source, len, shown, medium: self.medium, offload };
        let (mut start, mut end) = (0, 0);
        let (bytes, payload) = (lone.bytes_mut(), (&mut start, &mut end));
        frame.take(&mut self.hook, bytes, out, ledger, (verdict, payload))?;
        let Some(packet) = out.back_mut() else { return Err(PortError::NoMemory.into()) };
        // The first fragment of a packet always finds room.
        let _ = packet.push_frag(lone.commit(start..end));
        Ok(())
    }

    /// Without pages, a frame without payload still comes in: it may be the ACK that frees pages.
    #[cold]
    fn take_headers<S: FrameSource>(
        &mut self,
        source: &mut S,
        len: usize,
        offload: &Offload,
        out: &mut FrameQueue,
        ledger: &mut CopyLedger,
        verdict: &mut Verdict,
    ) -> Result<(), End> {
        if len > HEAD_CAPACITY {
            return Err(PortError::NoMemory.into());
        }
        let mut room = [0; HEADROOM + HEAD_CAPACITY + METADATA];
        let room = room.get_mut(..HEADROOM + len + self.tailroom()).unwrap_or_default();
        let frame = Arriving { source, len, shown: len, medium: self.medium, offload };
        let (mut start, mut end) = (0, 0);
        frame.take(&mut self.hook, room, out, ledger, (verdict, (&mut start, &mut end)))?;
        if start < end {
            out.pop_back();
            return Err(PortError::NoMemory.into());
        }
        Ok(())
    }

    /// Leaves the payload in the writer's memory and copies the headers out; only the copy is used.
    /// `None`: that memory cannot be referred to, and another way reads everything anew.
    #[inline(never)]
    fn refer<S: FrameSource>(
        &mut self,
        source: &mut S,
        len: usize,
        offload: &Offload,
        out: &mut FrameQueue,
        verdict: &mut Verdict,
    ) -> Option<Result<(), End>> {
        let mut head = [0; HEAD_CAPACITY];
        let shown = len.min(HEAD_CAPACITY);
        let front = head.get_mut(..shown).unwrap_or_default();
        if source.copy_out(0, front).is_err() {
            return Some(Err(PortError::Fault.into()));
        }
        let headers = header_len(self.medium, front, len).0;
        let frags = match len - headers {
            0 => FragVec::new(),
            _ => source.take_frags(headers, MAX_FRAGS)?,
        };
        Some(self.refer_to(head, (headers, len - headers), frags, offload, out, verdict))
    }

    /// The packet of these headers and these fragments.
    fn refer_to(
        &mut self,
        mut head: [u8; HEAD_CAPACITY],
        (headers, rest): (usize, usize),
        frags: FragVec,
        offload: &Offload,
        out: &mut FrameQueue,
        verdict: &mut Verdict,
    ) -> Result<(), End> {
        if frags.iter().map(Frag::len).sum::<usize>() != rest {
            return Err(PortError::Fault.into());
        }
        // A hook gets all the room that is left in front.
        let at = HEAD_CAPACITY - headers;
        head.copy_within(..headers, at);
        let (start, end) = ask(&mut self.hook, &mut head, at..HEAD_CAPACITY, rest, verdict);
        if *verdict == Verdict::Drop {
            return Err(End::Dropped(PortDrop::Hook));
        }
        let moved = start as isize - at as isize;
        let data = head.get(start..end).unwrap_or_default();
        let frame = Dissect { medium: self.medium, data, rest, offload, moved };
        frame.into_queue(out, *verdict)?;
        Ok(fill_last(out, frags)?)
    }

    /// Ends a frame: its packet, the last in line, goes where the hook decided, and most stay in place.
    #[inline(always)]
    fn end(
        &mut self,
        done: Result<(), End>,
        verdict: Verdict,
        out: &mut FrameQueue,
    ) -> Result<(), PortError> {
        match done {
            Ok(()) if verdict == Verdict::Pass => {}
            Ok(()) => self.send_last(verdict, out),
            Err(End::Dropped(reason)) => self.counters.drop_one(reason),
            Err(End::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    /// Sends the last packet in line, which is not for the stack.
    #[inline(never)]
    fn send_last(&mut self, to: Verdict, out: &mut FrameQueue) {
        let Some(packet) = out.pop_back() else { return };
        match to {
            Verdict::SendBack if self.back.len() >= QUEUED_FRAMES => {
                self.counters.drop_one(PortDrop::BackFull);
            }
            Verdict::SendBack => {
                self.counters.sent_back += 1;
                self.back.push_back(packet);
            }
            Verdict::Redirect(port) => {
                let table = self.table.as_ref().map(|(table, _)| table);
                match table.map_or(Err(Refused::Unknown), |t| t.redirect(port, packet)) {
                    Ok(()) => self.counters.redirected += 1,
                    Err(Refused::Unknown) => self.counters.drop_one(PortDrop::RedirectUnknown),
                    Err(Refused::Full) => self.counters.drop_one(PortDrop::RedirectFull),
                }
            }
            Verdict::Pass | Verdict::Drop => self.counters.drop_one(PortDrop::Hook),
        }
    }
}

/// A frame that is copied, by either way: into private memory with headroom in front.
struct Arriving<'a, S> {
    source: &'a mut S,
    len: usize,
    /// Bytes of it that the hook sees.
    shown: usize,
    medium: Medium,
    offload: &'a Offload,
}

impl<S: FrameSource> Arriving<'_, S> {
    /// Copies the frame to `bytes`, asks the hook, and makes the packet at the end of the line; the
    /// caller adds the payload. The payload is counted as copied; for a frame without a packet,
    /// whose headers are unknown, everything copied is. The results are the hook's verdict and the bounds of
    /// the payload, each written by itself: as one value they would be moved in parts.
    #[inline(always)]
    fn take(
        self,
        hook: &mut Option<Box<dyn EarlyHook>>,
        bytes: &mut [u8],
        out: &mut FrameQueue,
        ledger: &mut CopyLedger,
        (verdict, payload): (&mut Verdict, (&mut usize, &mut usize)),
    ) -> Result<(), End> {
        let Self { source, len, shown, medium, offload } = self;
        fill(source, bytes, 0..shown)?;
        let at = HEADROOM..HEADROOM + shown;
        let (start, mut end) = ask(hook, bytes, at, len - shown, verdict);
        if *verdict == Verdict::Drop {
            ledger.note(CopyReason::DeviceRx, shown);
            return Err(End::Dropped(PortDrop::Hook));
        }
        if shown < len {
            // The end cannot have moved if there is a rest.
            fill(source, bytes, shown..len)?;
            end = HEADROOM + len;
        }
        let moved = start as isize - HEADROOM as isize;
        let data = bytes.get(start..end).unwrap_or_default();
        let frame = Dissect { medium, data, rest: 0, offload, moved };
        match frame.into_queue(out, *verdict) {
            Ok(headers) => {
                ledger.note(CopyReason::DeviceRx, end - start - headers);
                (*payload.0, *payload.1) = (start + headers, end);
                Ok(())
            }
            Err(why) => {
                ledger.note(CopyReason::DeviceRx, len);
                Err(why)
            }
        }
    }
}

/// Gives the last packet in line its payload, or removes it: its source gave too many fragments.
fn fill_last(out: &mut FrameQueue, frags: FragVec) -> Result<(), PortError> {
    let Some(packet) = out.back_mut() else { return Err(PortError::NoMemory) };
    if frags.into_iter().all(|frag| packet.push_frag(frag).is_ok()) {
        return Ok(());
    }
    out.pop_back();
    Err(PortError::Fault)
}

/// Whether the virtio header is valid for a frame of `len` bytes.
#[inline]
fn check(offload: &Offload, len: usize) -> Result<(), PortError> {
    let partial = match offload.checksum {
        FrameChecksum::Partial { start, offset } => {
            if usize::from(start) + usize::from(offset) + 2 > len {
                return Err(PortError::Offload);
            }
            true
        }
        FrameChecksum::Unknown | FrameChecksum::Valid => false,
    };
    // "If the driver negotiated [...] it MUST also set the VIRTIO_NET_HDR_F_NEEDS_CSUM bit in flags"
    // of what is a super-frame (Virtio 1.2, section 5.1.6.2.1).
    match offload.gso {
        Some((_, size)) if size == 0 || !partial => Err(PortError::Offload),
        _ => Ok(()),
    }
}

/// Copies these bytes of a frame to their place behind the headroom of `room`.
#[inline]
fn fill<S: FrameSource>(
    source: &mut S,
    room: &mut [u8],
    bytes: Range<usize>,
) -> Result<(), PortError> {
    let place = room.get_mut(HEADROOM + bytes.start..HEADROOM + bytes.end);
    source.copy_out(bytes.start, place.ok_or(PortError::NoMemory)?).map_err(|_| PortError::Fault)
}

/// Runs the hook on the frame at `at` of `buffer`, with `rest` bytes beyond by reference. Notes its
/// decision, and returns the frame's new bounds.
#[inline(always)]
fn ask(
    hook: &mut Option<Box<dyn EarlyHook>>,
    buffer: &mut [u8],
    at: Range<usize>,
    rest: usize,
    verdict: &mut Verdict,
) -> (usize, usize) {
    let Some(hook) = hook else { return (at.start, at.end) };
    let mut frame = RawFrame::new(buffer, at.start, at.end, rest);
    *verdict = hook.look(&mut frame);
    frame.bounds()
}

/// How many bytes of a frame of `len` bytes, whose first are `data`, are headers; and its layout.
#[inline(always)]
pub(crate) fn header_len(medium: Medium, data: &[u8], len: usize) -> (usize, Option<Layout>) {
    let layout = match medium {
        Medium::Ethernet => headers::parse(data),
        Medium::Ip => headers::parse_ip(data),
    };
    let layout = layout.ok().filter(|l| l.payload <= data.len().min(HEAD_CAPACITY));
    // Small frames of unknown transport are control traffic: the head holds them whole.
    let known = layout.filter(|l| l.transport != Transport::Other || len > HEAD_CAPACITY);
    (known.map_or(len.min(HEAD_CAPACITY), |l| l.payload), layout)
}

/// A frame whose first bytes are private, to become a packet.
struct Dissect<'a> {
    medium: Medium,
    /// The whole frame, or its headers.
    data: &'a [u8],
    /// Bytes behind `data` that come by reference.
    rest: usize,
    offload: &'a Offload,
    /// How far the hook has moved the frame's start.
    moved: isize,
}

impl Dissect<'_> {
    /// Adds the packet to the end of the line, for `to`, its headers in its head and no payload
    /// yet. Returns how many bytes of `data` its head took: all, if there is a rest. On failure,
    /// the line is unchanged.
    #[inline(always)]
    fn into_queue(self, out: &mut FrameQueue, to: Verdict) -> Result<usize, End> {
        let Self { medium, data, rest, offload, .. } = self;
        let len = data.len() + rest;
        // A tun takes nothing but IP.
        if medium == Medium::Ip && !matches!(data.first().map(|b| b >> 4), Some(4 | 6)) {
            return Err(PortError::Length(len).into());
        }
        let (headers, _) = header_len(medium, data, len);
        let headers = if rest > 0 { data.len() } else { headers };
        let front = data.get(..headers).unwrap_or_default();
        let gso = match offload.gso {
            None => None,
            Some(said) => Some(super_frame(said, medium, data, (headers, len))?),
        };
        let (rx_checksum, tx_checksum) = self.checksum(to, len).map_err(End::Dropped)?;
        out.push_back(PacketBuf::for_rx());
        let Some(packet) = out.back_mut() else { return Err(PortError::NoMemory.into()) };
        packet.rx_checksum = rx_checksum;
        if gso.is_some() {
            packet.gso = gso;
        }
        if tx_checksum != TxChecksum::Done {
            packet.tx_checksum = tx_checksum;
        }
        // At most a head's room.
        packet.append_bytes(front);
        Ok(headers)
    }

    /// The knowledge of the transport checksum, and the work left for it.
    #[inline]
    fn checksum(&self, to: Verdict, len: usize) -> Result<(RxChecksum, TxChecksum), PortDrop> {
        match self.offload.checksum {
            FrameChecksum::Unknown => Ok((RxChecksum::Unknown, TxChecksum::Done)),
            FrameChecksum::Valid => Ok((RxChecksum::Valid, TxChecksum::Done)),
            // For the stack it counts as verified: it never was on a wire.
            FrameChecksum::Partial { .. } if to == Verdict::Pass => {
                Ok((RxChecksum::Valid, TxChecksum::Done))
            }
            // The frame's next receiver has to complete the checksum, from where it is now.
            FrameChecksum::Partial { start, offset } => {
                let start = usize::from(start).checked_add_signed(-self.moved);
                let inside = |&at: &usize| at + usize::from(offset) + 2 <= len;
                let start = start.filter(inside).and_then(|at| u16::try_from(at).ok());
                let start = start.ok_or(PortDrop::HookMoved)?;
                Ok((RxChecksum::Unknown, TxChecksum::Partial { start, offset }))
            }
        }
    }
}

/// The super-frame of this kind and segment size in the packet's terms, if its headers allow it. It parses
/// them again: the layout of all other frames stays in registers.
#[inline(never)]
fn super_frame(
    said: (GsoKind, u16),
    medium: Medium,
    data: &[u8],
    (headers, len): (usize, usize),
) -> Result<Gso, PortError> {
    let (_, layout) = header_len(medium, data, len);
    let headers = data.get(..headers).unwrap_or_default();
    let layout = layout.filter(|layout| layout.payload == headers.len());
    let gso = offload::super_frame(said, layout.as_ref(), headers, len);
    gso.map_err(|error| match error {
        // Cutting it would make very many frames.
        OffloadError::Size => PortError::Segments(said.1),
        _ => PortError::Offload,
    })
}
