//! The TCP header (RFC 9293 section 3.1).
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+---------------+---------------+---------------+
//! |          source port          |       destination port        |  0
//! |                        sequence number                        |  4
//! |                     acknowledgment number                     |  8
//! | offset| zero|A C E U A P R S F|            window             | 12
//! |           checksum            |        urgent pointer         | 16
//! |            options, in words, up to 40 bytes …                | 20
//! +---------------+---------------+---------------+---------------+
//! ```
//!
//! [`TcpHeader`] is the plain value. A property test ties [`parse`](TcpHeader::parse) to
//! [`emit`](TcpHeader::emit).

use crate::error::DropReason;
use crate::options::TcpOptions;
use crate::seq::Seq;

/// Bytes of a header without options.
pub const MIN_HEADER_LEN: usize = 20;
/// Bytes of the longest header.
pub const MAX_HEADER_LEN: usize = 60;
/// Where the checksum stands in a header.
pub const CHECKSUM_OFFSET: usize = 16;

bitflags::bitflags! {
    /// The control bits (RFC 9293 section 3.1).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Flags: u16 {
        /// No more data from the sender.
        const FIN = 0x01;
        /// Synchronise sequence numbers.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Push: deliver the data to the application.
        const PSH = 0x08;
        /// The acknowledgement number means something.
        const ACK = 0x10;
        /// The urgent pointer means something.
        const URG = 0x20;
        /// The receiver has seen congestion marks (RFC 3168).
        const ECE = 0x40;
        /// The sender has reduced its window (RFC 3168).
        const CWR = 0x80;
        /// Accurate feedback of congestion marks (RFC 9768); with ECE and CWR, a count of them.
        const AE = 0x100;
    }
}

/// A TCP header as a value, without the checksum: it covers addresses that TCP does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpHeader {
    /// The sender's port.
    pub src_port: u16,
    /// The receiver's port.
    pub dst_port: u16,
    /// The first byte's number; with SYN, the SYN's own.
    pub seq: Seq,
    /// The next number that the sender expects; means nothing without ACK.
    pub ack: Seq,
    /// The control bits.
    pub flags: Flags,
    /// The window as it stands in the header, not scaled.
    pub window: u16,
    /// The urgent pointer; means nothing without URG.
    pub urgent: u16,
    /// The options.
    pub options: TcpOptions,
}

/// Why bytes are not a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HeaderError {
    /// Fewer than 20 bytes.
    #[error("segment shorter than a TCP header")]
    Truncated,
    /// The data offset is less than 5 words.
    #[error("TCP data offset below 5")]
    DataOffsetTooSmall,
    /// The data offset points behind the end of the segment.
    #[error("TCP data offset beyond the segment")]
    DataOffsetBeyondSegment,
}

impl HeaderError {
    /// The counter of segments dropped for this.
    pub const fn reason(self) -> DropReason {
        match self {
            Self::Truncated => DropReason::HeaderTruncated,
            Self::DataOffsetTooSmall => DropReason::HeaderOffsetSmall,
            Self::DataOffsetBeyondSegment => DropReason::HeaderOffsetBeyond,
        }
    }
}

impl TcpHeader {
    /// Reads the header at the front of `segment`; returns it with its length in bytes. `segment`
    /// may end with the header: payload does not have to follow in the same memory.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, usize), HeaderError> {
        let (fixed, rest) = segment.split_first_chunk().ok_or(HeaderError::Truncated)?;
        let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, bits, w0, w1, _, _, u0, u1] =
            *fixed;
        let words = usize::from(offset >> 4).checked_sub(MIN_HEADER_LEN / 4);
        let options_len = 4 * words.ok_or(HeaderError::DataOffsetTooSmall)?;
        let options = rest.get(..options_len).ok_or(HeaderError::DataOffsetBeyondSegment)?;
        // The three bits before the flags are reserved:
        //
        // > RFC 9293 section 3.1: Must be zero in generated segments and must be ignored in received
        // > segments if the corresponding future features are not implemented by the sending or
        // > receiving host.
        let flags = Flags::from_bits_retain(u16::from_be_bytes([offset, bits])) & Flags::all();
        let header = Self {
            src_port: u16::from_be_bytes([s0, s1]),
            dst_port: u16::from_be_bytes([d0, d1]),
            seq: Seq(u32::from_be_bytes([q0, q1, q2, q3])),
            ack: Seq(u32::from_be_bytes([a0, a1, a2, a3])),
            flags,
            window: u16::from_be_bytes([w0, w1]),
            urgent: u16::from_be_bytes([u0, u1]),
            options: if options.is_empty() {
                TcpOptions::default()
            } else {
                TcpOptions::parse(options, flags.contains(Flags::SYN))
            },
        };
        Ok((header, MIN_HEADER_LEN + options_len))
    }

    /// Bytes that [`emit`](Self::emit) writes: 20 to 60, a multiple of 4.
    #[inline]
    pub fn len(&self) -> usize {
        MIN_HEADER_LEN + self.options.len()
    }

    /// Never: a header has at least 20 bytes.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the header to the front of `out` and returns its length. The checksum is left 0.
    /// Nothing is written, and 0 returned, if `out` is shorter than [`len`](Self::len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let len = self.len();
        let Some((fixed, options)) =
            out.get_mut(..len).and_then(<[u8]>::split_first_chunk_mut::<MIN_HEADER_LEN>)
        else {
            return 0;
        };
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [q0, q1, q2, q3] = self.seq.get().to_be_bytes();
        let [a0, a1, a2, a3] = self.ack.get().to_be_bytes();
        let [w0, w1] = self.window.to_be_bytes();
        let [u0, u1] = self.urgent.to_be_bytes();
        let [flags_high, flags_low] = self.flags.bits().to_be_bytes();
        let offset = (len as u8 / 4) << 4 | flags_high & 1;
        *fixed = [
            s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, //
            offset, flags_low, w0, w1, 0, 0, u0, u1,
        ];
        self.options.emit(options);
        len
    }
}

#[cfg(test)]
#[path = "header_tests.rs"]
mod tests;
