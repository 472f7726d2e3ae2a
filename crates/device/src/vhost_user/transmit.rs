//! Byte path, step S6 to a guest: into the buffers of its receive ring, one copy at the boundary.

use std::collections::VecDeque;

use pagewire_mem::{CopyLedger, GsoKind, PacketBuf, TxChecksum};

use super::chain::{Purpose, Walk};
use super::features;
use super::limits::{GUEST_HEADER, MAX_FRAME};
use super::memory::{Memory, Piece};
use super::session::Session;
use crate::limits::VNET_HEADER;
use crate::{DeviceCounters, offload, vnet};

/// What sending needs.
#[derive(Default)]
pub(super) struct Sender {
    /// Where the buffers for the frame at hand lie.
    pieces: Vec<Piece>,
    /// The chains that they are of: head, bytes of room.
    chains: Vec<(u16, usize)>,
    /// Frames cut from a super-frame that the guest does not take whole.
    pub(super) cut: VecDeque<PacketBuf>,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Done,
    /// There is no room now.
    Later,
    /// It can never be sent.
    Never,
}

/// Whether a guest takes a super-frame as it is.
fn takes_whole(session: &Session, packet: &PacketBuf) -> bool {
    let Some(gso) = packet.gso.filter(|gso| packet.frag_len() > usize::from(gso.size)) else {
        return true;
    };
    let kind = match gso.kind {
        GsoKind::TcpV4 => features::GUEST_TSO4,
        GsoKind::TcpV6 => features::GUEST_TSO6,
    };
    let ecn = vnet::encode(packet).is_some_and(|header| vnet::is_ecn(&header));
    session.has(kind)
        && session.has(features::GUEST_CSUM)
        && (!ecn || session.has(features::GUEST_ECN))
}

impl Sender {
    /// Makes of a frame what the guest takes, in `cut`. `false`: it takes it as it is.
    pub(super) fn prepare(
        &mut self,
        session: &Session,
        packet: &mut PacketBuf,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) -> bool {
        if takes_whole(session, packet) {
            let partial = matches!(packet.tx_checksum, TxChecksum::Partial { .. });
            if partial && !session.has(features::GUEST_CSUM) {
                // A checksum that cannot be taken leaves the frame as it was; `send` drops it.
                let _ = offload::complete_checksum(packet, ledger);
            }
            return false;
        }
        let whole = std::mem::replace(packet, PacketBuf::for_tx());
        if offload::segment(whole, &mut self.cut, ledger).is_err() {
            counters.tx_dropped_error += 1;
        }
        true
    }

    /// Sends one frame by the ring of pair `pair`; the used entries are not yet visible.
    pub(super) fn send(
        &mut self,
        session: &mut Session,
        pair: usize,
        packet: &PacketBuf,
        ledger: &mut CopyLedger,
    ) -> Sent {
        let header_len = session.header_len();
        let mergeable = session.has(features::MRG_RXBUF);
        let indirect = session.has(features::INDIRECT_DESC);
        let Some(vnet) = vnet::encode(packet) else { return Sent::Never };
        let need = header_len + packet.len();
        if packet.len() > MAX_FRAME {
            return Sent::Never;
        }
        let Session { memory, vrings, counters: lies, .. } = session;
        let Some(vring) = vrings.get_mut(2 * pair) else { return Sent::Never };
        let waiting = vring.waiting(lies);
        self.pieces.clear();
        self.chains.clear();
        let mut room = 0;
        while room < need {
            let taken = self.chains.len() as u16;
            if taken >= waiting {
                return Sent::Later;
            }
            let Some(head) = vring.peek(taken, lies) else { return Sent::Later };
            let Some(ring) = vring.running() else { return Sent::Later };
            let walk = Walk { ring, memory, indirect };
            let before = self.pieces.len();
            let len = match walk.chain(head, Purpose::Write(need - room), &mut self.pieces) {
                // Of the first, at least the header must fit.
                Ok(len) if len >= if taken == 0 { header_len } else { 1 } => len,
                walked => {
                    match walked {
                        Ok(_) => lies.bad_receive_buffer += 1,
                        Err(lie) => lie.count(lies),
                    }
                    self.pieces.truncate(before);
                    if taken == 0 {
                        // Nothing hangs on it: give it back empty.
                        vring.advance(1);
                        vring.give_back(head, 0);
                        return Sent::Later;
                    }
                    // The frame has begun in others. They go back empty, all of them, in order.
                    self.chains.push((head, 0));
                    vring.advance(taken + 1);
                    for &(head, _) in &self.chains {
                        vring.give_back(head, 0);
                    }
                    return Sent::Later;
                }
            };
            room += len;
            self.chains.push((head, len));
            if !mergeable && room < need {
                // It would never fit this guest's buffers.
                return Sent::Never;
            }
        }
        let mut header = [0; GUEST_HEADER];
        if let Some((front, count)) = header.split_first_chunk_mut::<VNET_HEADER>() {
            *front = vnet;
            // Virtio 1.2, section 5.1.6.4: 1 where buffers cannot be merged.
            count.copy_from_slice(&(self.chains.len() as u16).to_le_bytes());
        }
        let header = header.get(..header_len).unwrap_or_default();
        self.fill(memory, header, packet, ledger);
        vring.advance(self.chains.len() as u16);
        let mut left = need;
        for &(head, room) in &self.chains {
            let used = room.min(left);
            left -= used;
            vring.give_back(head, used as u32);
        }
        Sent::Done
    }

    /// Writes header, head and fragments into the pieces, which have room for them.
    fn fill(
        &mut self,
        memory: &Memory,
        header: &[u8],
        packet: &PacketBuf,
        ledger: &mut CopyLedger,
    ) {
        let mut pieces = self.pieces.iter_mut();
        let mut at: Option<&mut Piece> = pieces.next();
        for mut bytes in [header, packet.head()] {
            while !bytes.is_empty() {
                let Some(piece) = at.as_mut() else { return };
                let part = piece.split_to(bytes.len());
                if part.len == 0 {
                    at = pieces.next();
                    continue;
                }
                let (now, later) = bytes.split_at_checked(part.len).unwrap_or_default();
                if let Some(window) = memory.window(&part) {
                    window.write(part.offset, now);
                }
                bytes = later;
            }
        }
        for frag in packet.frags() {
            let mut from = 0;
            while from < frag.len() {
                let Some(piece) = at.as_mut() else { return };
                let part = piece.split_to(frag.len() - from);
                if part.len == 0 {
                    at = pieces.next();
                    continue;
                }
                if let Some(window) = memory.window(&part) {
                    window.fill(part.offset, part.len, (frag, from), ledger);
                }
                from += part.len;
            }
        }
    }
}
