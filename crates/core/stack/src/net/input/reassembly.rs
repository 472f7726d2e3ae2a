//! Variant of step R3 (ip): reassembly of IPv4 and IPv6 datagrams from fragments, by reference.
//!
//! ```text
//!   first bytes, kept for an ICMP error      pieces, sorted, none overlapping
//!   [IP header]                              [0..1480) [1480..2960)  gap  [4440..5000) end
//! ```
//!
//! Pieces stay where they were received. Limits count the memory that they keep from reuse: a tiny
//! fragment that pins a page counts as a page.

use std::net::IpAddr;

use hashbrown::HashMap;
use pagewire_mem::{CopyReason, FragVec, Instant, MAX_FRAGS, PacketBuf};
use smallvec::SmallVec;

use crate::counters::{Counters, DropReason};
use crate::limits::{
    MAX_IP_PACKET, REASSEMBLY_BYTES, REASSEMBLY_DATAGRAMS, REASSEMBLY_FRAGMENTS,
    REASSEMBLY_TIME_V4, REASSEMBLY_TIME_V6,
};
use crate::net::Mem;
use crate::net::input::received::Received;
use crate::net::wire::protocol;
use crate::random::KeyedHash;

/// Identifies a datagram by its fragments (RFC 791 section 3.2; RFC 8200 section 4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DatagramKey {
    pub(crate) src: IpAddr,
    pub(crate) dst: IpAddr,
    pub(crate) id: u32,
    pub(crate) protocol: u8,
}

pub(crate) struct ReceivedFragment {
    /// Bytes from the beginning of the datagram's payload.
    pub(crate) offset: usize,
    /// Whether more follow.
    pub(crate) more: bool,
    /// The fragment's own header. Only the first fragment's `protocol` counts.
    pub(crate) received: Received,
    /// The IP headers, for an ICMP error about the first fragment.
    pub(crate) headers: SmallVec<[u8; 64]>,
    pub(crate) payload: FragVec,
}

#[derive(Debug)]
pub(crate) struct Reassembled {
    pub(crate) protocol: u8,
    pub(crate) ecn: u8,
    pub(crate) hop_limit: u8,
    pub(crate) len: usize,
    /// Fragments only; the head is empty.
    pub(crate) packet: PacketBuf,
}

/// The first fragment of a datagram that timed out, for an ICMP error to the sender (RFC 1122
/// section 3.3.2).
#[derive(Debug)]
pub(crate) struct ExpiredDatagram {
    pub(crate) received: Received,
    pub(crate) headers: SmallVec<[u8; 64]>,
    pub(crate) payload: FragVec,
}

/// Datagrams that wait for missing fragments.
pub(crate) struct Reassembly {
    table: HashMap<DatagramKey, Datagram, KeyedHash>,
    pinned: usize,
    /// No deadline lies before this moment.
    next: Instant,
}

struct Datagram {
    pieces: Vec<Piece>,
    /// Bytes, once the last fragment has come.
    total: Option<usize>,
    started: Instant,
    until: Instant,
    pinned: usize,
    /// Bytes that have come.
    length: usize,
    /// The ECN values of the fragments so far, one bit for each of the four.
    ecn_seen: u8,
    /// The header of the first fragment, once that has come.
    received: Received,
    headers: SmallVec<[u8; 64]>,
    /// Fragments contradicted each other: later ones are dropped (RFC 5722 section 4).
    poisoned: Option<DropReason>,
}

struct Piece {
    offset: usize,
    len: usize,
    payload: FragVec,
}

impl Reassembly {
    pub(crate) fn new(hash: KeyedHash) -> Self {
        Self { table: HashMap::with_hasher(hash), pinned: 0, next: Instant::FAR }
    }

    /// When the next datagram times out; [`Instant::FAR`]: none does.
    #[inline]
    pub(crate) fn next_timeout(&self) -> Instant {
        self.next
    }

    #[cfg(test)]
    pub(crate) fn pinned(&self) -> usize {
        self.pinned
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// Adds a fragment; returns the datagram if that completes it.
    pub(crate) fn handle_fragment(
        &mut self,
        mem: &mut Mem,
        now: Instant,
        key: DatagramKey,
        fragment: ReceivedFragment,
        counters: &mut Counters,
    ) -> Result<Option<Reassembled>, DropReason> {
        let len = check(&fragment, key.dst.is_ipv6())?;
        let pinned: usize = fragment.payload.iter().map(|f| f.pinned()).sum();
        self.make_room(&key, pinned, counters);
        let until = now + if key.dst.is_ipv6() { REASSEMBLY_TIME_V6 } else { REASSEMBLY_TIME_V4 };
        self.next = self.next.min(until);
        let datagram = self.table.entry(key).or_insert_with(|| Datagram {
            pieces: Vec::new(),
            total: None,
            started: now,
            until,
            pinned: 0,
            length: 0,
            ecn_seen: 0,
            received: fragment.received,
            headers: SmallVec::new(),
            poisoned: None,
        });
        match datagram.insert(fragment, len, pinned) {
            Ok(()) => self.pinned += pinned,
            Err(reason @ DropReason::FragmentDuplicate) => return Err(reason),
            Err(reason) => {
                let before = datagram.pinned;
                counters.drop_many(reason, datagram.poison(reason));
                self.pinned -= before;
                return Err(reason);
            }
        }
        if !datagram.is_complete() {
            return Ok(None);
        }
        let Some(datagram) = self.table.remove(&key) else { return Ok(None) };
        self.pinned -= datagram.pinned;
        datagram.into_whole(mem).map(Some)
    }

    /// Drops datagrams that timed out; appends those for which an ICMP error is due.
    pub(crate) fn handle_timeout(
        &mut self,
        now: Instant,
        counters: &mut Counters,
        expired: &mut Vec<ExpiredDatagram>,
    ) {
        if now < self.next {
            return;
        }
        let (mut next, mut freed) = (Instant::FAR, 0);
        self.table.retain(|_, datagram| {
            if now < datagram.until {
                next = next.min(datagram.until);
                return true;
            }
            freed += datagram.pinned;
            counters.drop_many(DropReason::ReassemblyTimeout, datagram.pieces.len() as u64);
            // RFC 1122 section 3.3.2: "If the first fragment has been received [...] an ICMP Time
            // Exceeded message with code 1 is sent."
            if datagram.pieces.first().is_some_and(|piece| piece.offset == 0) {
                let payload = core::mem::take(&mut datagram.pieces).swap_remove(0).payload;
                let headers = core::mem::take(&mut datagram.headers);
                expired.push(ExpiredDatagram { received: datagram.received, headers, payload });
            }
            false
        });
        self.pinned -= freed;
        self.next = next;
    }

    /// Evicts the oldest datagrams until a fragment of `pinned` bytes fits.
    fn make_room(&mut self, key: &DatagramKey, pinned: usize, counters: &mut Counters) {
        let fresh = !self.table.contains_key(key);
        loop {
            let crowded = fresh && self.table.len() >= REASSEMBLY_DATAGRAMS;
            let heavy = self.pinned + pinned > REASSEMBLY_BYTES;
            if !crowded && !heavy {
                return;
            }
            let oldest = self.table.iter().min_by_key(|(_, d)| d.started).map(|(&key, _)| key);
            let Some(datagram) = oldest.and_then(|key| self.table.remove(&key)) else { return };
            self.pinned -= datagram.pinned;
            let reason =
                if crowded { DropReason::ReassemblyCount } else { DropReason::ReassemblyMemory };
            counters.drop_many(reason, datagram.pieces.len() as u64);
        }
    }
}

/// The length of a fragment; an error if the fragment alone is found faulty.
fn check(fragment: &ReceivedFragment, v6: bool) -> Result<usize, DropReason> {
    let len: usize = fragment.payload.iter().map(|f| f.len()).sum();
    // RFC 791 section 3.2 and RFC 8200 section 4.5: all but the last are multiples of 8 long.
    if len == 0 || (fragment.more && !len.is_multiple_of(8)) {
        return Err(DropReason::FragmentLength);
    }
    let header = if v6 { 0 } else { 20 };
    if fragment.offset + len + header > MAX_IP_PACKET {
        return Err(DropReason::FragmentTooBig);
    }
    // RFC 1858 section 3 and RFC 7112 section 5: the first fragment holds the transport header,
    // and none other begins inside it.
    let smallest = match fragment.received.protocol {
        protocol::TCP => 20,
        _ => 8,
    };
    if fragment.offset == 0 && len < smallest {
        return Err(DropReason::FragmentTiny);
    }
    if !v6 && fragment.received.protocol == protocol::TCP && fragment.offset == 8 {
        return Err(DropReason::FragmentTiny);
    }
    Ok(len)
}

impl Datagram {
    fn insert(
        &mut self,
        fragment: ReceivedFragment,
        len: usize,
        pinned: usize,
    ) -> Result<(), DropReason> {
        if let Some(reason) = self.poisoned {
            return Err(reason);
        }
        let ReceivedFragment { offset, more, received, headers, payload } = fragment;
        let end = offset + len;
        let at = self.pieces.partition_point(|piece| piece.offset < offset);
        let next = self.pieces.get(at);
        // RFC 8200 section 4.5: "an implementation may choose to detect this case and drop exact
        // duplicate fragments while keeping the other fragments".
        if next.is_some_and(|next| next.offset == offset && next.len == len) {
            return Err(DropReason::FragmentDuplicate);
        }
        // RFC 5722 section 4: "if one or more [...] fragments is determined to be an overlapping
        // fragment, the entire datagram [...] MUST be silently discarded." The same for IPv4.
        let before = at.checked_sub(1).and_then(|i| self.pieces.get(i));
        if before.is_some_and(|p| p.offset + p.len > offset)
            || next.is_some_and(|next| next.offset < end)
        {
            return Err(DropReason::FragmentOverlap);
        }
        let last_end = self.pieces.last().map_or(0, |p| p.offset + p.len);
        match (self.total, more) {
            (Some(total), true) if end > total => return Err(DropReason::FragmentEnd),
            (Some(total), false) if end != total => return Err(DropReason::FragmentEnd),
            (None, false) if last_end > end => return Err(DropReason::FragmentEnd),
            (_, false) => self.total = Some(end),
            _ => {}
        }
        if self.pieces.len() >= REASSEMBLY_FRAGMENTS {
            return Err(DropReason::FragmentCount);
        }
        if offset == 0 {
            (self.received, self.headers) = (received, headers);
        }
        self.ecn_seen |= 1 << (received.ecn & 3);
        self.pinned += pinned;
        self.length += len;
        self.pieces.insert(at, Piece { offset, len, payload });
        Ok(())
    }

    /// Drops all fragments and refuses later ones; returns how many were dropped.
    fn poison(&mut self, reason: DropReason) -> u64 {
        self.poisoned = Some(reason);
        self.pinned = 0;
        core::mem::take(&mut self.pieces).len() as u64
    }

    /// Pieces do not overlap: without a gap, their lengths add up.
    fn is_complete(&self) -> bool {
        self.total == Some(self.length)
    }

    fn into_whole(self, mem: &mut Mem) -> Result<Reassembled, DropReason> {
        let mut packet = PacketBuf::for_rx();
        let pieces = self.pieces.len();
        // The last few of many pieces are joined in pages, so that all fit one packet.
        let room = MAX_FRAGS - 4;
        for frag in self.pieces.into_iter().flat_map(|piece| piece.payload) {
            let (parts, wanted) = if pieces > 1 && packet.frags().len() >= room {
                let Mem { pool, writer, ledger, .. } = mem;
                let wanted = frag.len();
                let (parts, copied) = writer.write_frag(pool, &frag, ledger, CopyReason::Compact);
                (parts, wanted - copied)
            } else {
                (SmallVec::from_iter([frag]), 0)
            };
            if wanted > 0 {
                return Err(DropReason::NoPages);
            }
            for part in parts {
                packet.push_frag(part).map_err(|_| DropReason::TooManyFragments)?;
            }
        }
        Ok(Reassembled {
            protocol: self.received.protocol,
            ecn: ecn_of(self.ecn_seen)?,
            hop_limit: self.received.hop_limit,
            len: self.length,
            packet,
        })
    }
}

/// RFC 3168 section 5.3: congestion marked on any fragment holds for the datagram. If another fragment
/// is not ECN-capable, the datagram is dropped.
fn ecn_of(seen: u8) -> Result<u8, DropReason> {
    const NOT_ECT: u8 = 1 << 0;
    const ECT_1: u8 = 1 << 1;
    const CE: u8 = 1 << 3;
    match seen {
        seen if seen & CE != 0 && seen & NOT_ECT != 0 => Err(DropReason::FragmentEcn),
        seen if seen & CE != 0 => Ok(3),
        seen if seen & NOT_ECT != 0 => Ok(0),
        seen if seen & ECT_1 != 0 => Ok(1),
        _ => Ok(2),
    }
}
