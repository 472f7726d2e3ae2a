//! The medium: raw IP packets from packetdrill to the stack, and back.

use std::collections::VecDeque;

use pagewire_device::{Capabilities, HeaderSplit, Medium, offload};
use pagewire_mem::copy::copy_bytes;
use pagewire_mem::{
    CopyLedger, CopyReason, Instant, MemError, PacketBuf, PagePool, PageWriter, TxChecksum,
};

use crate::limits::{ETHERNET, MEMORY, SNIFFED_PACKETS};

/// A packet that the stack sent.
#[derive(Debug, PartialEq, Eq)]
pub struct Sniffed {
    /// When.
    pub at: Instant,
    /// The packet, from the IP header on.
    pub bytes: Vec<u8>,
}

/// A device without a driver: packets go in and come out on request.
pub struct Wire {
    pool: PagePool,
    writer: PageWriter,
    ledger: CopyLedger,
    sniffed: VecDeque<Sniffed>,
    /// Packets that were dropped because the queue to packetdrill was full.
    dropped_unread: u64,
    /// Packets that were refused because the queue has no room at all.
    dropped_no_queue: u64,
    /// Packets that could not be cut into segments, or have no room for a checksum.
    dropped_unfinished: u64,
    /// Whether the queue to the device has any room.
    has_queue: bool,
}

impl Wire {
    /// An idle wire.
    pub fn new() -> Result<Self, MemError> {
        Ok(Self {
            pool: PagePool::new("packetdrill-wire", MEMORY)?,
            writer: PageWriter::new(),
            ledger: CopyLedger::new(),
            sniffed: VecDeque::new(),
            dropped_unread: 0,
            dropped_no_queue: 0,
            dropped_unfinished: 0,
            has_queue: true,
        })
    }

    /// The device as the stack sees it: it cuts super-frames, so that they end where Linux's do.
    pub fn capabilities(mtu: usize) -> Capabilities {
        Capabilities {
            medium: Medium::Ip,
            rx_checksum: false,
            header_split: HeaderSplit::None,
            ..Capabilities::offloading([0; 6], mtu)
        }
    }

    /// A packet from packetdrill, as the stack takes it; `None` if memory ran out.
    pub fn inbound(&mut self, packet: &[u8]) -> Option<PacketBuf> {
        self.pool.drain();
        let mut frame = PacketBuf::for_rx();
        let (frags, copied) =
            self.writer.write(&mut self.pool, packet, &mut self.ledger, CopyReason::DeviceRx);
        for frag in frags {
            frame.push_frag(frag).ok()?;
        }
        (copied == packet.len()).then_some(frame)
    }

    /// A packet from the stack; `false` if it is refused, because the queue has no room.
    pub fn outbound(&mut self, at: Instant, frame: &PacketBuf) -> bool {
        if !self.has_queue {
            self.dropped_no_queue += 1;
            return false;
        }
        if self.sniffed.len() >= SNIFFED_PACKETS {
            self.dropped_unread += 1;
            return true;
        }
        let mut wire = VecDeque::new();
        if self.finish(frame.clone(), &mut wire).is_none() {
            self.dropped_unfinished += 1;
            return true;
        }
        for frame in wire {
            let mut bytes = vec![0; frame.len()];
            let (head, mut rest) = bytes.split_at_mut(frame.head().len());
            head.copy_from_slice(frame.head());
            for frag in frame.frags() {
                let n = frag.copy_to(0, rest, &mut self.ledger, CopyReason::DeviceTx);
                rest = rest.get_mut(n..).unwrap_or_default();
            }
            bytes.drain(..ETHERNET);
            self.sniffed.push_back(Sniffed { at, bytes });
        }
        true
    }

    /// Cuts a super-frame and completes checksums, with an Ethernet header for the software.
    fn finish(&mut self, mut frame: PacketBuf, wire: &mut VecDeque<PacketBuf>) -> Option<usize> {
        let version = frame.head().first()? >> 4;
        let kind: [u8; 2] = if version == 6 { [0x86, 0xdd] } else { [0x08, 0x00] };
        let ethernet = frame.push(ETHERNET)?;
        ethernet.fill(0);
        ethernet.get_mut(ETHERNET - 2..)?.copy_from_slice(&kind);
        if let Some(gso) = &mut frame.gso {
            gso.header_len += ETHERNET as u16;
        }
        if let TxChecksum::Partial { start, .. } = &mut frame.tx_checksum {
            *start += ETHERNET as u16;
        }
        offload::segment(frame, wire, &mut self.ledger).ok()
    }

    /// Takes the oldest packet.
    pub fn sniff(&mut self) -> Option<Sniffed> {
        self.sniffed.pop_front()
    }

    /// Copies a packet to the caller's memory, and counts it; returns how many bytes.
    pub fn hand_out(&mut self, packet: &[u8], into: &mut [u8]) -> usize {
        copy_bytes(into, packet, &mut self.ledger, CopyReason::DeviceTx)
    }

    /// Whether there is one.
    pub fn has_sniffed(&self) -> bool {
        !self.sniffed.is_empty()
    }

    /// Opens or closes the queue to the device: a closed one refuses packets.
    pub fn set_queue(&mut self, room: bool) {
        self.has_queue = room;
    }
}

impl core::fmt::Debug for Wire {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Wire")
            .field("sniffed", &self.sniffed.len())
            .field("dropped_unread", &self.dropped_unread)
            .field("dropped_no_queue", &self.dropped_no_queue)
            .field("dropped_unfinished", &self.dropped_unfinished)
            .finish_non_exhaustive()
    }
}
