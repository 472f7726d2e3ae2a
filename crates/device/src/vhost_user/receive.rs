//! Byte path, step R1 of a guest's frame: out of its transmit ring.
//!
//! ```text
//!   chain of descriptors:  [virtio header | headers][payload ...][... payload]
//!                           copied, once             fragments of the guest's memory, or a copy
//! ```
//!
//! The head is copied out and only the copy is believed. Payload of a long frame stays where the
//! guest put it; the descriptor goes back when the last fragment goes. A short frame is copied, and
//! its descriptor is given back at once.

use std::sync::Arc;

use pagewire_mem::{
    CopyLedger, CopyReason, FragVec, HEAD_CAPACITY, MAX_FRAGS, PacketBuf, PagePool, PageWriter,
};

use super::chain::{Lie, Purpose, Walk};
use super::counters::VhostCounters;
use super::features;
use super::held::Keep;
use super::limits::{BY_REFERENCE, GUEST_HEADER, HELD_SHARE, MAX_FRAME, MIN_FRAME};
use super::memory::{Memory, Piece};
use super::session::Session;
use super::vring::Vring;
use crate::DeviceCounters;
use crate::headers::{self, Transport};
use crate::limits::VNET_HEADER;
use crate::vnet::{self, Received};

/// The virtio header and as much of a frame as a packet's head holds.
const FRONT: usize = GUEST_HEADER + HEAD_CAPACITY;

/// What receiving needs.
pub(super) struct Receiver {
    pub(super) pool: PagePool,
    writer: PageWriter,
    /// Where the frame at hand lies. Kept, so that no frame costs an allocation.
    pieces: Vec<Piece>,
}

/// Why a frame was lost.
enum Lost {
    Lie(Lie),
    Memory,
}

impl From<Lie> for Lost {
    fn from(lie: Lie) -> Self {
        Self::Lie(lie)
    }
}

/// A frame's first bytes, copied out.
struct Front {
    bytes: [u8; FRONT],
    /// How many there are.
    have: usize,
    /// How many of them are the virtio header.
    header: usize,
    about: Received,
    /// Bytes of the frame, the virtio header not counted.
    len: usize,
}

impl Receiver {
    pub(super) fn new(pool: PagePool) -> Self {
        Self { pool, writer: PageWriter::new(), pieces: Vec::new() }
    }

    /// Takes up to `max` frames that a guest sent by the ring of pair `pair`, and shows each to
    /// `take`; returns how many descriptors it looked at.
    pub(super) fn receive(
        &mut self,
        session: &mut Session,
        pair: usize,
        max: usize,
        (counters, ledger): (&mut DeviceCounters, &mut CopyLedger),
        mut take: impl FnMut(PacketBuf),
    ) -> usize {
        let header = session.header_len();
        let indirect = session.has(features::INDIRECT_DESC);
        let Session { memory, vrings, counters: lies, .. } = session;
        let Some(vring) = vrings.get_mut(2 * pair + 1) else { return 0 };
        lies.returned += u64::from(vring.drain());
        // Read once per burst: what becomes available meanwhile is the next burst's.
        let waiting = usize::from(vring.waiting(lies)).min(max);
        for done in 0..waiting {
            let Some(head) = vring.peek(0, lies) else {
                vring.publish(lies);
                return done;
            };
            vring.advance(1);
            let got = self.frame(memory, vring, (head, header, indirect), lies, counters, ledger);
            match got {
                Ok(packet) => {
                    counters.rx_frames += 1;
                    counters.rx_bytes += packet.len() as u64;
                    take(packet);
                }
                Err(Lost::Lie(lie)) => {
                    lie.count(lies);
                    counters.rx_dropped_malformed += 1;
                }
                Err(Lost::Memory) => counters.rx_dropped_memory += 1,
            }
        }
        lies.returned += u64::from(vring.drain());
        vring.publish(lies);
        waiting
    }

    /// One frame. Its descriptor was given back, or is held by its fragments, whatever comes out.
    fn frame(
        &mut self,
        memory: &Memory,
        vring: &mut Vring,
        (head, header, indirect): (u16, usize, bool),
        lies: &mut VhostCounters,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) -> Result<PacketBuf, Lost> {
        self.pieces.clear();
        let limit = Purpose::Read(header + MAX_FRAME);
        let walked = match vring.running() {
            Some(ring) => Walk { ring, memory, indirect }.chain(head, limit, &mut self.pieces),
            None => Err(Lie::Next),
        };
        let front = walked.and_then(|total| self.front(memory, total, header));
        let mut referred = false;
        let built = front.map_err(Lost::from).and_then(|front| {
            let (mut packet, used) = start(&front)?;
            let payload = front.len - packet.head().len();
            counters.rx_payload_bytes += payload as u64;
            if front.len >= BY_REFERENCE && payload > 0 {
                let limit = vring.running().map_or(0, |ring| ring.size() / HELD_SHARE);
                if vring.held() < limit && self.fits(used) {
                    referred = true;
                    lies.referenced += 1;
                    self.refer(memory, vring, head, used, &mut packet)?;
                    return Ok(packet);
                }
                lies.copied_instead += 1;
            }
            lies.copied += 1;
            self.copy(memory, &front, used, &mut packet, ledger)?;
            Ok(packet)
        });
        if !referred {
            vring.give_back(head, 0);
        }
        built
    }

    /// Copies the first bytes out of the pieces, and judges the virtio header.
    fn front(&self, memory: &Memory, total: usize, header: usize) -> Result<Front, Lie> {
        let len = total.checked_sub(header).filter(|&len| len >= MIN_FRAME).ok_or(Lie::Length)?;
        let mut bytes = [0; FRONT];
        let mut have = 0;
        for piece in &self.pieces {
            let Some(room) = bytes.get_mut(have..header + HEAD_CAPACITY) else { break };
            if room.is_empty() {
                break;
            }
            let n = room.len().min(piece.len);
            let window = memory.window(piece).ok_or(Lie::Address)?;
            let room = room.get_mut(..n).unwrap_or_default();
            have += window.read(piece.offset, room);
        }
        let about = bytes.first_chunk::<VNET_HEADER>().and_then(|vnet| vnet::decode(vnet, len));
        Ok(Front { bytes, have, header, about: about.ok_or(Lie::Header)?, len })
    }

    /// Whether what lies behind the first `skip` bytes is in few enough pieces for a packet.
    fn fits(&self, mut skip: usize) -> bool {
        let behind = self.pieces.iter().filter(|piece| {
            let all = piece.len <= skip;
            skip -= piece.len.min(skip);
            !all
        });
        behind.count() <= MAX_FRAGS
    }

    /// Makes fragments of everything behind the first `skip` bytes. From here on the head is the
    /// fragments' to give back, whatever comes of it.
    fn refer(
        &self,
        memory: &Memory,
        vring: &mut Vring,
        head: u16,
        mut skip: usize,
        packet: &mut PacketBuf,
    ) -> Result<(), Lost> {
        let returns = Arc::clone(vring.hold(head));
        let mut keep: Option<(Piece, Arc<Keep>)> = None;
        for piece in &self.pieces {
            let mut piece = *piece;
            skip -= piece.split_to(skip).len;
            if piece.len == 0 {
                continue;
            }
            let window = memory.window(&piece).ok_or(Lie::Address)?;
            let kept = match keep.take() {
                Some((at, kept)) if at.is_beside(&piece) => kept,
                Some((_, kept)) => kept.also(window),
                None => Keep::new(window, &returns, head),
            };
            let frag = window.lend(piece.offset, piece.len, &kept).ok_or(Lie::Address)?;
            packet.push_frag(frag).map_err(|_| Lost::Memory)?;
            keep = Some((piece, kept));
        }
        Ok(())
    }

    /// Copies everything behind the first `skip` bytes into pages of our own.
    fn copy(
        &mut self,
        memory: &Memory,
        front: &Front,
        skip: usize,
        packet: &mut PacketBuf,
        ledger: &mut CopyLedger,
    ) -> Result<(), Lost> {
        let Self { pool, writer, pieces } = self;
        let mut add = |(frags, n): (FragVec, usize), want: usize| {
            if n < want {
                return Err(Lost::Memory);
            }
            frags.into_iter().try_for_each(|frag| packet.push_frag(frag)).map_err(|_| Lost::Memory)
        };
        // What was read already is not read again.
        let early = front.bytes.get(skip..front.have).unwrap_or_default();
        if !early.is_empty() {
            add(writer.write(pool, early, ledger, CopyReason::DeviceRx), early.len())?;
        }
        let mut skip = front.have;
        for piece in pieces {
            skip -= piece.split_to(skip).len;
            if piece.len == 0 {
                continue;
            }
            let window = memory.window(piece);
            let bytes = window.and_then(|window| window.borrow(piece.offset, piece.len));
            let bytes = bytes.ok_or(Lost::Lie(Lie::Address))?;
            add(writer.write_frag(pool, &bytes, ledger, CopyReason::DeviceRx), bytes.len())?;
        }
        Ok(())
    }
}

/// A packet with the frame's headers in its head; how many bytes of the chain it has used.
fn start(front: &Front) -> Result<(PacketBuf, usize), Lie> {
    let shown = front.bytes.get(front.header..front.have).unwrap_or_default();
    let layout = headers::parse(shown).ok().filter(|layout| layout.payload <= shown.len());
    let mut packet = PacketBuf::for_rx();
    packet.rx_checksum = front.about.checksum;
    packet.gso = front.about.gso(layout.as_ref()).map_err(|()| Lie::Header)?;
    // As on a tap: small frames of no known transport are control traffic, whole in the head.
    let known = layout.filter(|l| l.transport != Transport::Other || front.len > HEAD_CAPACITY);
    let headers = known.map_or(front.len.min(HEAD_CAPACITY), |layout| layout.payload);
    let bytes = shown.get(..headers).ok_or(Lie::Length)?;
    packet.append(headers).ok_or(Lie::Length)?.copy_from_slice(bytes);
    Ok((packet, front.header + headers))
}
