//! Segments in and out of a connection, ICMP errors about them, and resets without a connection.

use pagewire_mem::FragVec;

use crate::error::{DropReason, TcpError};
use crate::header::{Flags, TcpHeader};
use crate::seq::Seq;

/// A segment to send: a header and slices of the application's data.
#[derive(Clone, Debug)]
pub struct SegmentOut {
    /// The header, checksum left out.
    pub header: TcpHeader,
    /// The payload, in at most [`MAX_FRAGS`](pagewire_mem::MAX_FRAGS) fragments.
    pub payload: FragVec,
    /// Set for a super-frame: the device cuts it into wire segments of this many payload bytes.
    pub gso_size: Option<u16>,
    /// The ECN bits for the IP header (RFC 3168 section 5).
    pub ecn: u8,
}

/// Properties of a received segment from its IP header and the device. From a number: the ECN bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arrival {
    /// The ECN bits of the IP header (RFC 3168 section 5).
    pub ecn: u8,
    /// Payload bytes of each wire segment, if the device coalesced several, all marked alike.
    pub gso_size: Option<u16>,
}

impl From<u8> for Arrival {
    fn from(ecn: u8) -> Self {
        Self { ecn, gso_size: None }
    }
}

impl Arrival {
    /// Wire segments in a segment with `payload` bytes.
    pub(crate) fn segments(self, payload: u32) -> u32 {
        let size = self.gso_size.map_or(u32::MAX, u32::from);
        payload.div_ceil(size.max(1)).max(1)
    }
}

/// The result of processing a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Disposition {
    /// The segment was processed, at least in part.
    Accepted,
    /// The segment was dropped; an answer may be due.
    Dropped(DropReason),
    /// A SYN that may reopen this connection in TIME-WAIT. If there is a listener, abort this one
    /// and pass it the SYN, with an initial sequence number beyond `iss_above`.
    ///
    /// > RFC 9293 section 3.6.1: When a connection is closed actively, it MUST linger in the
    /// > TIME-WAIT state for a time 2xMSL (Maximum Segment Lifetime) (MUST-13). However, it MAY accept a new SYN from the remote TCP
    /// > endpoint to reopen the connection directly from TIME-WAIT state (MAY-2), if it: (1)
    /// > assigns its initial sequence number for the new connection to be larger than the largest
    /// > sequence number it used on the previous connection incarnation, and (2) returns to
    /// > TIME-WAIT state if the SYN turns out to be an old duplicate.
    SynInTimeWait {
        /// The largest sequence number of ours that the old connection used.
        iss_above: Seq,
    },
}

/// An ICMP error about a segment that we sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpNotice {
    /// The sequence number quoted in the message.
    pub seq: Seq,
    /// The error.
    pub kind: IcmpKind,
}

/// The kind of an ICMP error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcmpKind {
    /// The path's MTU is smaller than a packet of ours.
    PacketTooBig {
        /// Payload bytes of a wire segment that fits: the MTU less 40 (IPv4) or 60 (IPv6).
        mss: u16,
    },
    /// The packet did not arrive.
    Unreachable {
        /// Whether a retry is pointless (protocol or port unreachable, RFC 1122 section 4.2.3.9).
        hard: bool,
        /// The application's error, if the connection fails for it.
        error: TcpError,
    },
}

/// A received segment in the steps of section 3.10.7.
pub(crate) struct Segment<'a> {
    pub(crate) header: &'a TcpHeader,
    pub(crate) payload: FragVec,
    /// Bytes in `payload`.
    pub(crate) len: u32,
    /// The number of the first byte in `payload`.
    pub(crate) seq: Seq,
    pub(crate) arrival: Arrival,
}

impl Segment<'_> {
    pub(crate) fn has(&self, flags: Flags) -> bool {
        self.header.flags.contains(flags)
    }

    /// SEG.LEN: the payload, and one each for SYN and FIN.
    pub(crate) fn space(&self) -> u32 {
        self.len + u32::from(self.has(Flags::SYN)) + u32::from(self.has(Flags::FIN))
    }

    pub(crate) fn end(&self) -> Seq {
        self.seq + self.space()
    }
}

/// `Err` ends the processing.
pub(crate) type Step = Result<(), Disposition>;

pub(crate) const fn drop_for(reason: DropReason) -> Step {
    Err(Disposition::Dropped(reason))
}

/// The reset for a segment to no connection, or `None` if there must be none. `payload_len` is the
/// length of its payload in bytes.
///
/// > RFC 9293 section 3.10.7.1: all data in the incoming segment is discarded. An incoming segment
/// > containing a RST is discarded. An incoming segment not containing a RST causes a RST to be
/// > sent in response. [...] If the ACK bit is off, sequence number zero is used,
/// > `<SEQ=0><ACK=SEG.SEQ+SEG.LEN><CTL=RST,ACK>`. If the ACK bit is on, `<SEQ=SEG.ACK><CTL=RST>`
pub fn reset_for(header: &TcpHeader, payload_len: usize) -> Option<TcpHeader> {
    if header.flags.contains(Flags::RST) {
        return None;
    }
    let mut reset =
        TcpHeader { src_port: header.dst_port, dst_port: header.src_port, ..TcpHeader::default() };
    if header.flags.contains(Flags::ACK) {
        reset.seq = header.ack;
        reset.flags = Flags::RST;
    } else {
        let syn_fin = (header.flags & (Flags::SYN | Flags::FIN)).iter().count() as u32;
        reset.seq = Seq(0);
        reset.ack = header.seq + (payload_len as u32).wrapping_add(syn_fin);
        reset.flags = Flags::RST | Flags::ACK;
    }
    Some(reset)
}
