//! Variant of step S6, to a guest: into the buffers of its receive ring, one copy at the boundary.

use std::collections::VecDeque;

use pagewire_mem::link::{headers, offload};
use pagewire_mem::{CopyLedger, GsoKind, PacketBuf, TxChecksum};

use super::chain::{Purpose, Walk};
use super::features;
use super::limits::{FLOWS, GUEST_HEADER, MAX_FRAME};
use super::memory::{Memory, Piece};
use super::session::Session;
use super::spill::SpillEnd;
use crate::limits::{MAX_CUT_FRAMES, VNET_HEADER};
use crate::port::Port;
use crate::{DeviceCounters, vnet};

pub(super) struct Sender {
    /// The buffers for the current frame.
    pieces: Vec<Piece>,
    /// The chains of those buffers: head, bytes of room.
    chains: Vec<(u16, usize)>,
    /// Frames cut from a super-frame that the guest does not accept.
    cut: VecDeque<PacketBuf>,
    /// Frames that hooks sent to this guest and that wait for room.
    returned: VecDeque<PacketBuf>,
    /// The pair by which the flow of each slot came last.
    flows: [u8; FLOWS],
    /// Where the stack's frames wait for room.
    short: Option<Short>,
    /// Where `returned` waits for room.
    short_returned: Option<Short>,
}

/// Why frames wait: the pair that had too few buffers, and its number of buffers at the last check.
type Short = (usize, u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Done,
    /// There is no room now: this number of buffers is too small. Further ones came meanwhile.
    Later(u16),
    /// The frame can never be sent.
    Never,
}

/// Whether a guest accepts a super-frame uncut.
fn takes_whole(session: &Session, packet: &PacketBuf) -> bool {
    let Some(gso) = packet.gso.filter(|gso| packet.frag_len() > usize::from(gso.size)) else {
        return true;
    };
    let kind = match gso.kind {
        GsoKind::TcpV4 => features::GUEST_TSO4,
        GsoKind::TcpV6 => features::GUEST_TSO6,
        GsoKind::Udp => match headers::parse(packet.head()) {
            Ok(layout) if layout.v6 => features::GUEST_USO6,
            _ => features::GUEST_USO4,
        },
    };
    let ecn = vnet::encode(packet).is_some_and(|header| vnet::is_ecn(&header));
    session.has(kind)
        && session.has(features::GUEST_CSUM)
        && (!ecn || session.has(features::GUEST_ECN))
}

impl Sender {
    pub(super) fn new() -> Self {
        Self {
            pieces: Vec::new(),
            chains: Vec::new(),
            cut: VecDeque::new(),
            returned: VecDeque::new(),
            flows: [0; FLOWS],
            short: None,
            short_returned: None,
        }
    }

    /// Sends the stack's frames as far as there is room. Without a guest, all are dropped.
    pub(super) fn send_all(
        &mut self,
        session: &mut Session,
        frames: &mut VecDeque<PacketBuf>,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) {
        self.short = self.send_what_fits(session, frames, counters, ledger);
    }

    /// Sends frames as far as there is room; returns where the rest waits, if there is one.
    fn send_what_fits(
        &mut self,
        session: &mut Session,
        frames: &mut VecDeque<PacketBuf>,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) -> Option<Short> {
        let mut short = None;
        // Frames cut from a super-frame go first.
        while let Some(mut packet) = self.cut.pop_front().or_else(|| frames.pop_front()) {
            if self.prepare(session, &mut packet, counters, ledger) {
                continue;
            }
            let pair = self.pair_for(session, &packet);
            let Some(before) = session.waiting(pair) else {
                counters.tx_dropped_closed += 1;
                continue;
            };
            match self.send(session, pair, &packet, ledger) {
                Sent::Done => {
                    counters.tx_frames += 1;
                    counters.tx_bytes += packet.len() as u64;
                }
                Sent::Never if packet.gso.is_some() => self.segment(packet, counters, ledger),
                Sent::Never => counters.tx_dropped_error += 1,
                Sent::Later(seen) => {
                    self.cut.push_front(packet);
                    // The ring broke, or an empty returned buffer was not the last.
                    let now = session.waiting(pair);
                    if now.is_none_or(|now| now > 0 && now < before) {
                        continue;
                    }
                    // Not `now`: a guest that has filled its ring since then would never kick again.
                    short = Some((pair, seen));
                    break;
                }
            }
        }
        // Segments that found no buffer are ordinary frames, which the caller keeps.
        while let Some(packet) = self.cut.pop_back() {
            frames.push_front(packet);
        }
        for vring in session.vrings.iter_mut().step_by(2) {
            vring.publish(&mut session.counters);
        }
        short
    }

    /// Takes frames that hooks and other devices sent here, but none while frames wait for room.
    pub(super) fn collect_returned(&mut self, port: &mut Port, spill: &SpillEnd) {
        if self.returned.is_empty() {
            port.poll_transmit(&mut self.returned);
            spill.take(&mut self.returned);
        }
    }

    /// Sends these frames as far as there is room.
    pub(super) fn send_returned(
        &mut self,
        session: &mut Session,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) {
        let mut returned = std::mem::take(&mut self.returned);
        self.short_returned = None;
        if !returned.is_empty() {
            self.short_returned = self.send_what_fits(session, &mut returned, counters, ledger);
        }
        self.returned = returned;
    }

    /// No frame of the stack waits for room.
    pub(super) fn rest(&mut self) {
        self.short = None;
    }

    /// How many buffers in the ring of `pair` are too few for the waiting frames.
    pub(super) fn short_of(&self, pair: usize) -> impl Iterator<Item = u16> {
        [self.short, self.short_returned]
            .into_iter()
            .flatten()
            .filter_map(move |(short, seen)| (short == pair).then_some(seen))
    }

    /// Whether there are frames that can be taken now: none before them waits.
    pub(super) fn has_returned(&self, port: &Port, spill: &SpillEnd) -> bool {
        self.returned.is_empty() && (port.has_transmit() || spill.has_frames())
    }

    /// Notes the pair that a flow came by.
    pub(super) fn note(&mut self, packet: &PacketBuf, pair: usize) {
        if let Some(slot) = flow(packet.head()).and_then(|slot| self.flows.get_mut(slot)) {
            *slot = pair as u8;
        }
    }

    /// The pair to send a frame by: that of its flow, if it runs, else the first.
    fn pair_for(&self, session: &Session, packet: &PacketBuf) -> usize {
        if session.vrings.len() <= 2 {
            return 0;
        }
        let runs =
            |pair: usize| session.vrings.get(2 * pair).is_some_and(|v| v.running().is_some());
        let slot = flow(packet.head()).and_then(|slot| self.flows.get(slot));
        let pair = slot.map_or(0, |&pair| usize::from(pair));
        if runs(pair) { pair } else { 0 }
    }

    /// Adapts a frame to the guest, in `cut`. `false`: the guest accepts it unchanged.
    fn prepare(
        &mut self,
        session: &Session,
        packet: &mut PacketBuf,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) -> bool {
        if takes_whole(session, packet) {
            let partial = matches!(packet.tx_checksum, TxChecksum::Partial { .. });
            if partial && !session.has(features::GUEST_CSUM) {
                // If the checksum cannot be computed, the frame is unchanged; `send` drops it.
                let _ = offload::complete_checksum(packet, ledger);
            }
            return false;
        }
        let whole = std::mem::replace(packet, PacketBuf::for_tx());
        self.segment(whole, counters, ledger);
        true
    }

    /// Cuts a super-frame into frames, in `cut`.
    fn segment(
        &mut self,
        whole: PacketBuf,
        counters: &mut DeviceCounters,
        ledger: &mut CopyLedger,
    ) {
        let cut = offload::cut_within(whole, &mut self.cut, ledger, 0, MAX_CUT_FRAMES);
        counters.tx_dropped_error += cut.map_or(1, |pieces| pieces.left_out as u64);
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
                // A whole ring is too short: there will never be more.
                let all = vring.running().is_some_and(|ring| ring.size() == waiting);
                return if all { Sent::Never } else { Sent::Later(waiting) };
            }
            let Some(head) = vring.peek(taken, lies) else { return Sent::Later(0) };
            let Some(ring) = vring.running() else { return Sent::Later(0) };
            let walk = Walk { ring, memory, indirect };
            let before = self.pieces.len();
            let found = walk.chain(head, Purpose::Write(need - room), &mut self.pieces);
            let len = match found.map(|found| found.len) {
                // In the first, at least the header must fit.
                Ok(len) if len >= if taken == 0 { header_len } else { 1 } => len,
                walked => {
                    match walked {
                        Ok(_) => lies.bad_receive_buffer += 1,
                        Err(lie) => lie.count(lies),
                    }
                    self.pieces.truncate(before);
                    // The bad buffer is returned empty, behind those that the frame has begun in, in order.
                    self.chains.push((head, 0));
                    vring.advance(taken + 1);
                    for &(head, _) in &self.chains {
                        vring.give_back(head, 0);
                    }
                    return Sent::Later(0);
                }
            };
            room += len;
            self.chains.push((head, len));
            if !mergeable && room < need {
                // The frame would never fit this guest's buffers.
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

/// The slot of a frame's flow, the same in both directions: an exclusive or is symmetric.
fn flow(head: &[u8]) -> Option<usize> {
    let layout = headers::parse(head).ok()?;
    let ports = head.get(layout.transport_at..layout.transport_at + 4);
    let bytes = layout.addresses(head)?.iter().chain(ports.unwrap_or_default());
    Some(usize::from(bytes.fold(0, |sum: u8, byte| sum ^ byte)) % FLOWS)
}
