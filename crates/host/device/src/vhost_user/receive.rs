//! Variant of step R1, for a guest's frame: out of its transmit ring, into the port.
//!
//! ```text
//!   chain of descriptors:  [virtio header | headers][payload ...][... payload]
//!                           copied, once             fragments of the guest's memory, or a copy
//! ```
//!
//! This file walks the ring; the [`Port`] decides which way a frame takes. The guest gets a descriptor
//! back at once if the frame was copied, and otherwise with the drop of the last fragment.

use std::collections::VecDeque;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, FragVec, PacketBuf, RxChecksum};

use super::chain::{ChainError, ChainLength, Purpose, Walk};
use super::counters::VhostCounters;
use super::features;
use super::limits::{GUEST_HEADER, MAX_FRAME};
use super::memory::{Memory, Piece};
use super::returned::Descriptor;
use super::session::Session;
use super::vring::Vring;
use super::window::Keep;
use crate::DeviceCounters;
use crate::limits::VNET_HEADER;
use crate::port::{Fault, FrameChecksum, FrameSource, Offload, Path, Port, PortError, WriteFlags};
use crate::vnet;

pub(super) struct Receiver {
    pub(super) port: Port,
    /// Bytes from which on a frame stays in the guest's memory.
    by_reference: usize,
    /// The pieces of the current frame. Kept, so that no frame costs an allocation.
    pieces: Vec<Piece>,
    /// The port's send buffer was full at the last write.
    pub(super) blocked: bool,
}

/// A frame in the guest's memory.
struct Chain<'a> {
    memory: &'a Memory,
    vring: &'a mut Vring,
    pieces: &'a [Piece],
    head: u16,
    /// The number of the ring's descriptors in the chain.
    descriptors: u16,
    /// Bytes of the virtio header, which comes first.
    header: usize,
    /// Bytes of the frame behind it.
    len: usize,
    /// The fragments return the descriptor.
    taken: bool,
}

impl Receiver {
    pub(super) fn new(port: Port, by_reference: usize) -> Self {
        Self { port, by_reference, pieces: Vec::new(), blocked: false }
    }

    /// Takes up to `max` frames that a guest sent by the ring of pair `pair`, and appends the
    /// port's packets to `out`; returns how many descriptors it took.
    pub(super) fn receive(
        &mut self,
        session: &mut Session,
        pair: usize,
        max: usize,
        (counters, ledger): (&mut DeviceCounters, &mut CopyLedger),
        out: &mut VecDeque<PacketBuf>,
    ) -> usize {
        let Self { port, by_reference, pieces, blocked } = self;
        let header = session.header_len();
        let indirect = session.has(features::INDIRECT_DESC);
        let Session { memory, vrings, counters: lies, .. } = session;
        let Some(vring) = vrings.get_mut(2 * pair + 1) else { return 0 };
        lies.returned += u64::from(vring.drain());
        // Read once per burst: later frames are the next burst's.
        let waiting = usize::from(vring.waiting(lies)).min(max);
        let mut done = 0;
        while done < waiting
            && let Some(head) = vring.peek(0, lies)
        {
            if !vring.enabled {
                lies.discarded += 1;
                vring.advance(1);
                vring.give_back(head, 0);
                done += 1;
                continue;
            }
            pieces.clear();
            let limit = Purpose::Read(header + MAX_FRAME);
            let Some(ring) = vring.running() else { break };
            let walked = Walk { ring, memory, indirect }.chain(head, limit, pieces);
            let taken = match walked {
                Err(lie) => {
                    count(lie, lies, counters);
                    Some(false)
                }
                Ok(ChainLength { len, descriptors }) => {
                    let len = len.saturating_sub(header);
                    let taken = false;
                    let chain =
                        Chain { memory, vring, pieces, head, descriptors, header, len, taken };
                    write(port, chain, *by_reference, (lies, counters, ledger), out)
                }
            };
            *blocked |= taken.is_none();
            let Some(taken) = taken else { break };
            vring.advance(1);
            done += 1;
            if !taken {
                vring.give_back(head, 0);
            }
        }
        lies.returned += u64::from(vring.drain());
        vring.publish(lies);
        done
    }
}

/// Writes one frame to the port. Returns whether its descriptor is held; `None`: it waits in its ring for
/// room.
#[inline(always)]
fn write(
    port: &mut Port,
    mut chain: Chain<'_>,
    by_reference: usize,
    (lies, counters, ledger): (&mut VhostCounters, &mut DeviceCounters, &mut CopyLedger),
    out: &mut VecDeque<PacketBuf>,
) -> Option<bool> {
    let mut header = [0; GUEST_HEADER];
    let read = header.get_mut(..chain.header).is_some_and(|header| chain.gather(0, header));
    let vnet = header.first_chunk::<VNET_HEADER>().filter(|_| read);
    let Some(vnet) = vnet else {
        count(ChainError::Length, lies, counters);
        return Some(false);
    };
    let Some(about) = vnet::decode(vnet, chain.len) else {
        let lie = if chain.len == 0 { ChainError::Length } else { ChainError::Header };
        count(lie, lies, counters);
        return Some(false);
    };
    let long = chain.len >= by_reference;
    let zerocopy = long && chain.vring.may_hold(chain.descriptors);
    let how = WriteFlags { nonblock: true, zerocopy };
    let before = out.len();
    let mut written = port.write(&mut chain, how, about.offload(), out, ledger);
    if written.is_err_and(PortError::is_full) && port.wait_for_room() {
        // Room came between the check and the request for a wake-up.
        written = port.write(&mut chain, how, about.offload(), out, ledger);
    }
    match written {
        Ok(path) => {
            counters.rx_frames += 1;
            counters.rx_bytes += chain.len as u64;
            let packet = out.back().filter(|_| out.len() > before);
            let payload = packet.map_or(0, PacketBuf::frag_len);
            counters.rx_payload_bytes += payload as u64;
            match path {
                Path::ZeroCopy => lies.referenced += 1,
                Path::Built | Path::Accounted => lies.copied += 1,
            }
            lies.copied_instead += u64::from(long && path != Path::ZeroCopy);
        }
        Err(error) if error.is_full() => return None,
        Err(PortError::Offload | PortError::Segments(_)) => {
            count(ChainError::Header, lies, counters);
        }
        Err(PortError::Length(_)) => count(ChainError::Length, lies, counters),
        Err(PortError::Fault) => count(ChainError::Address, lies, counters),
        Err(_) => counters.rx_dropped_memory += 1,
    }
    Some(chain.taken)
}

/// Counts a frame that was dropped for invalid input.
fn count(lie: ChainError, lies: &mut VhostCounters, counters: &mut DeviceCounters) {
    lie.count(lies);
    counters.rx_dropped_malformed += 1;
}

impl vnet::Received {
    /// The whole content, for a port.
    #[cfg(feature = "vhost-user")]
    fn offload(&self) -> Offload {
        let checksum = match (self.partial, self.checksum) {
            (Some((start, offset)), _) => FrameChecksum::Partial { start, offset },
            (None, RxChecksum::Valid) => FrameChecksum::Valid,
            (None, RxChecksum::Unknown) => FrameChecksum::Unknown,
        };
        Offload { gso: self.gso, checksum }
    }
}

impl Chain<'_> {
    /// Copies bytes of the chain, from `skip` on, into all of `into`; `false`: it has fewer.
    #[inline(always)]
    fn gather(&self, skip: usize, into: &mut [u8]) -> bool {
        // Most small frames are one piece, and the headers of others the first.
        if let Some(piece) = self.pieces.first()
            && into.len() <= piece.len.saturating_sub(skip)
        {
            let window = self.memory.window(piece);
            return window.is_some_and(|w| w.read(piece.offset + skip, into) == into.len());
        }
        self.gather_pieces(skip, into)
    }

    #[inline(never)]
    fn gather_pieces(&self, mut skip: usize, into: &mut [u8]) -> bool {
        let mut have = 0;
        for piece in self.pieces {
            if have == into.len() {
                break;
            }
            let mut piece = *piece;
            skip -= piece.split_to(skip).len;
            let end = (have + piece.len).min(into.len());
            let part = into.get_mut(have..end).unwrap_or_default();
            if !part.is_empty() {
                have += self.memory.window(&piece).map_or(0, |w| w.read(piece.offset, part));
            }
        }
        have == into.len()
    }

    /// The pieces behind the first `skip` bytes.
    fn behind(&self, mut skip: usize) -> impl Iterator<Item = Piece> + '_ {
        self.pieces.iter().filter_map(move |piece| {
            let mut piece = *piece;
            skip -= piece.split_to(skip).len;
            (piece.len > 0).then_some(piece)
        })
    }
}

impl FrameSource for Chain<'_> {
    fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn copy_out(&mut self, offset: usize, into: &mut [u8]) -> Result<(), Fault> {
        if self.gather(self.header + offset, into) { Ok(()) } else { Err(Fault) }
    }

    fn take_frags(&mut self, from: usize, max: usize) -> Option<FragVec> {
        let skip = self.header + from;
        if self.behind(skip).take(max + 1).count() > max {
            return None;
        }
        let returns = Arc::clone(self.vring.hold(self.head, self.descriptors));
        let mut frags = FragVec::new();
        let mut keep: Option<(Piece, Keep)> = None;
        for piece in self.behind(skip) {
            // Every found piece lies in the memory, which is borrowed.
            let Some(window) = self.memory.window(&piece) else { continue };
            let kept = match keep.take() {
                Some((at, kept)) if at.is_beside(&piece) => kept,
                // The frame continues in another window: the descriptor is the first one's.
                Some((_, kept)) => Keep::new(window, kept),
                None => Keep::new(window, Descriptor::new(&returns, self.head)),
            };
            frags.extend(window.lend(piece.offset, piece.len, &kept));
            keep = Some((piece, kept));
        }
        self.taken = keep.is_some();
        if !self.taken {
            self.vring.unhold(self.head);
        }
        Some(frags)
    }
}
