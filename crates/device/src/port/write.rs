//! The ways a frame takes into a port. Read [`Port::write`] first.

use core::ops::Range;
use std::collections::VecDeque;

use pagewire_mem::{
    CopyLedger, CopyReason, FragVec, Gso, GsoKind, HEAD_CAPACITY, Lone, MAX_FRAGS, PAGE_SIZE,
    PacketBuf, RxChecksum, TxChecksum,
};

use super::account::SendBuffer;
use super::error::{PortDrop, PortError};
use super::hook::{EarlyHook, RawFrame, Verdict};
use super::limits::{HEADROOM, MAX_FRAME, METADATA, MIN_ETHERNET, QUEUED_FRAMES, fits_page};
use super::source::FrameSource;
use super::table::Refused;
use super::{FrameChecksum, Offload, Path, Port, WriteFlags};
use crate::device::Medium;
use crate::headers::{self, Layout, Transport};

/// What became of a frame that came in: a packet and where it goes, or why it was dropped.
type Looked = Result<(PacketBuf, Verdict), PortDrop>;

impl Port {
    /// Takes a frame from a writer. One for the stack is appended to `out`; one that a hook sent
    /// elsewhere waits in [`poll_transmit`](Self::poll_transmit), of this port or the other. Says
    /// which way the frame came in, whatever the hook said then. `ledger` counts the copy, as one at
    /// the device's boundary.
    ///
    /// # Errors
    /// The frame is dropped and counted, but with [`PortError::is_full`]: then the writer keeps it. In
    /// every case it is the writer's business to give its memory back to whoever it is from, unless
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
        self.take(source, how, offload, out, ledger).inspect_err(|error| match error.reason() {
            Some(reason) => self.counters.drop_one(reason),
            None => self.counters.blocked += 1,
        })
    }

    fn take<S: FrameSource>(
        &mut self,
        source: &mut S,
        how: WriteFlags,
        offload: Offload,
        out: &mut VecDeque<PacketBuf>,
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
        check(&offload, len)?;
        if how.zerocopy
            && let Some(looked) = self.refer(source, len, &offload)
        {
            self.counters.zerocopy += 1;
            self.deliver(looked?, out);
            return Ok(Path::ZeroCopy);
        }
        if self.builds(len, how) {
            let looked = self.build(source, len, &offload, ledger)?;
            self.counters.built += 1;
            self.deliver(looked, out);
            return Ok(Path::Built);
        }
        let looked = self.account(source, len, how, &offload, ledger)?;
        self.counters.accounted += 1;
        self.deliver(looked, out);
        Ok(Path::Accounted)
    }

    /// Whether a frame that is copied is built in place. Zero copy was not chosen for it, or it
    /// could not be.
    fn builds(&self, len: usize, how: WriteFlags) -> bool {
        self.medium == Medium::Ethernet
            && self.send_buffer == SendBuffer::Unlimited
            && how.nonblock
            && fits_page(len)
    }

    /// Bytes behind a copied frame that a hook may make it longer by.
    fn tailroom(&self) -> usize {
        if self.hook.is_some() { METADATA } else { 0 }
    }

    /// Builds a frame in place: into a block that many share, no charge. On failure, and if the hook
    /// drops it, nothing of the block is used up.
    fn build<S: FrameSource>(
        &mut self,
        source: &mut S,
        len: usize,
        offload: &Offload,
        ledger: &mut CopyLedger,
    ) -> Result<Looked, PortError> {
        let need = HEADROOM + len + self.tailroom();
        let room = self.carver.room(&mut self.pool, need);
        let mut room = room.ok_or(PortError::NoMemory)?;
        let bytes = room.bytes_mut();
        fill(source, bytes, len)?;
        let (verdict, start, end) = ask(&mut self.hook, bytes, HEADROOM..HEADROOM + len, 0);
        if verdict == Verdict::Drop {
            return Ok(Err(PortDrop::Hook));
        }
        let moved = start as isize - HEADROOM as isize;
        let data = bytes.get(start..end).unwrap_or_default();
        match dissect(self.medium, data, 0, offload, moved, verdict)? {
            Err(reason) => Ok(Err(reason)),
            Ok((mut packet, payload)) => {
                ledger.note(CopyReason::DeviceRx, end - start - payload);
                let frag = room.commit(start + payload..end);
                packet.push_frag(frag).map_err(|_| PortError::NoMemory)?;
                Ok(Ok((packet, verdict)))
            }
        }
    }

    /// The usual way: pages and a record of the frame's own, charged to the send buffer for as long
    /// as anybody has the frame.
    fn account<S: FrameSource>(
        &mut self,
        source: &mut S,
        len: usize,
        how: WriteFlags,
        offload: &Offload,
        ledger: &mut CopyLedger,
    ) -> Result<Looked, PortError> {
        if !self.account.has_room(!how.nonblock) {
            return Err(if how.nonblock { PortError::Again } else { PortError::WouldBlock });
        }
        let need = HEADROOM + len + self.tailroom();
        let charge = self.account.charge(need.next_multiple_of(PAGE_SIZE) + METADATA);
        let lone = Lone::new(&mut self.pool, need, charge);
        let mut lone = lone.map_err(|_charge| PortError::NoMemory)?;
        let bytes = lone.bytes_mut();
        fill(source, bytes, len)?;
        let (verdict, start, end) = ask(&mut self.hook, bytes, HEADROOM..HEADROOM + len, 0);
        if verdict == Verdict::Drop {
            return Ok(Err(PortDrop::Hook));
        }
        let moved = start as isize - HEADROOM as isize;
        let data = bytes.get(start..end).unwrap_or_default();
        match dissect(self.medium, data, 0, offload, moved, verdict)? {
            Err(reason) => Ok(Err(reason)),
            Ok((mut packet, payload)) => {
                ledger.note(CopyReason::DeviceRx, end - start - payload);
                let frag = lone.commit(start + payload..end);
                packet.push_frag(frag).map_err(|_| PortError::NoMemory)?;
                Ok(Ok((packet, verdict)))
            }
        }
    }

    /// Leaves the payload in the writer's memory; the headers are copied out, and only the copy is
    /// believed. `None`: the memory cannot be had by reference. What was read until then is
    /// forgotten: another way in reads, and believes, everything anew.
    fn refer<S: FrameSource>(
        &mut self,
        source: &mut S,
        len: usize,
        offload: &Offload,
    ) -> Option<Result<Looked, PortError>> {
        let mut head = [0; HEAD_CAPACITY];
        let shown = len.min(HEAD_CAPACITY);
        let front = head.get_mut(..shown).unwrap_or_default();
        if source.copy_out(0, front).is_err() {
            return Some(Err(PortError::Fault));
        }
        let headers = header_len(self.medium, front, len).0;
        let frags = match len - headers {
            0 => FragVec::new(),
            _ => source.take_frags(headers, MAX_FRAGS)?,
        };
        Some(self.refer_to(head, headers, len - headers, frags, offload))
    }

    /// The packet of these headers and these fragments.
    fn refer_to(
        &mut self,
        mut head: [u8; HEAD_CAPACITY],
        headers: usize,
        rest: usize,
        frags: FragVec,
        offload: &Offload,
    ) -> Result<Looked, PortError> {
        if frags.iter().map(pagewire_mem::Frag::len).sum::<usize>() != rest {
            return Err(PortError::Fault);
        }
        // A hook finds all the room that is left in front.
        let at = HEAD_CAPACITY - headers;
        head.copy_within(..headers, at);
        let (verdict, start, end) = ask(&mut self.hook, &mut head, at..HEAD_CAPACITY, rest);
        if verdict == Verdict::Drop {
            return Ok(Err(PortDrop::Hook));
        }
        let moved = start as isize - at as isize;
        let data = head.get(start..end).unwrap_or_default();
        match dissect(self.medium, data, rest, offload, moved, verdict)? {
            Err(reason) => Ok(Err(reason)),
            Ok((mut packet, _)) => {
                for frag in frags {
                    packet.push_frag(frag).map_err(|_| PortError::Fault)?;
                }
                Ok(Ok((packet, verdict)))
            }
        }
    }

    /// Sends a frame where the hook said.
    fn deliver(&mut self, looked: Looked, out: &mut VecDeque<PacketBuf>) {
        let (packet, to) = match looked {
            Ok(looked) => looked,
            Err(reason) => return self.counters.drop_one(reason),
        };
        match to {
            Verdict::Pass => out.push_back(packet),
            Verdict::Drop => self.counters.drop_one(PortDrop::Hook),
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
        }
    }
}

/// Whether the virtio header makes sense for a frame of `len` bytes.
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
    if offload.gso.is_some_and(|(_, size)| size == 0 || !partial) {
        return Err(PortError::Offload);
    }
    Ok(())
}

/// Copies a frame of `len` bytes behind the headroom of `room`.
#[inline]
fn fill<S: FrameSource>(source: &mut S, room: &mut [u8], len: usize) -> Result<(), PortError> {
    let bytes = room.get_mut(HEADROOM..HEADROOM + len).ok_or(PortError::NoMemory)?;
    source.copy_out(0, bytes).map_err(|_| PortError::Fault)
}

/// Has the hook look at the frame that lies at `at` of `buffer`, with `rest` bytes beyond by
/// reference. Says where it goes, where it begins and ends now.
#[inline]
fn ask(
    hook: &mut Option<Box<dyn EarlyHook>>,
    buffer: &mut [u8],
    at: Range<usize>,
    rest: usize,
) -> (Verdict, usize, usize) {
    let Some(hook) = hook else { return (Verdict::Pass, at.start, at.end) };
    let mut frame = RawFrame::new(buffer, at.start, at.end, rest);
    let verdict = hook.look(&mut frame);
    let (start, end) = frame.bounds();
    (verdict, start, end)
}

/// How much of a frame of `len` bytes, whose first are `data`, goes into the head: its headers. And
/// where they are, if they are known.
#[inline]
fn header_len(medium: Medium, data: &[u8], len: usize) -> (usize, Option<Layout>) {
    let layout = match medium {
        Medium::Ethernet => headers::parse(data),
        Medium::Ip => headers::parse_ip(data),
    };
    let layout = layout.ok().filter(|l| l.payload <= data.len().min(HEAD_CAPACITY));
    // Small frames of no known transport are control traffic: the head holds them whole.
    let known = layout.filter(|l| l.transport != Transport::Other || len > HEAD_CAPACITY);
    (known.map_or(len.min(HEAD_CAPACITY), |l| l.payload), layout)
}

/// Makes a packet of a frame's private bytes `data`, behind which `rest` bytes come by reference; how
/// many bytes of `data` went into its head comes with it, all if there is a rest.
#[inline]
fn dissect(
    medium: Medium,
    data: &[u8],
    rest: usize,
    offload: &Offload,
    moved: isize,
    to: Verdict,
) -> Result<Result<(PacketBuf, usize), PortDrop>, PortError> {
    let len = data.len() + rest;
    // A tun takes nothing but IP.
    if medium == Medium::Ip && !matches!(data.first().map(|b| b >> 4), Some(4 | 6)) {
        return Err(PortError::Length(len));
    }
    let (headers, layout) = header_len(medium, data, len);
    let headers = if rest > 0 { data.len() } else { headers };
    let mut packet = PacketBuf::for_rx();
    if let Some((kind, size)) = offload.gso {
        let tcp = |l: &Layout| {
            l.transport == Transport::Tcp
                && l.v6 == (kind == GsoKind::TcpV6)
                && l.payload == headers
        };
        layout.filter(tcp).ok_or(PortError::Offload)?;
        packet.gso = Some(Gso { kind, size, header_len: headers as u16 });
    }
    match offload.checksum {
        FrameChecksum::Unknown => {}
        FrameChecksum::Valid => packet.rx_checksum = RxChecksum::Valid,
        // For us it is as good as verified: it never was on a wire.
        FrameChecksum::Partial { .. } if to == Verdict::Pass => {
            packet.rx_checksum = RxChecksum::Valid;
        }
        // Somebody else has to finish it, from where it is now.
        FrameChecksum::Partial { start, offset } => {
            let start = usize::from(start).checked_add_signed(-moved);
            let inside = |&at: &usize| at + usize::from(offset) + 2 <= len;
            let Some(start) = start.filter(inside).and_then(|at| u16::try_from(at).ok()) else {
                return Ok(Err(PortDrop::HookMoved));
            };
            packet.tx_checksum = TxChecksum::Partial { start, offset };
        }
    }
    let head = packet.append(headers).ok_or(PortError::Length(len))?;
    head.copy_from_slice(data.get(..headers).ok_or(PortError::Length(len))?);
    Ok(Ok((packet, headers)))
}
