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
//! Two views: [`HeaderView`] has bytes whose lengths were checked, [`TcpHeader`] is a plain value
//! with [`parse`](TcpHeader::parse) and [`emit`](TcpHeader::emit). A property test compares them.

use crate::error::DropReason;
use crate::options::{OptionIter, TcpOptions};
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
    /// The data offset says less than 5 words.
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

/// A header in its bytes: as long as its data offset says, at least 20.
#[derive(Clone, Copy, Debug)]
pub struct HeaderView<'a> {
    fixed: &'a [u8; MIN_HEADER_LEN],
    options: &'a [u8],
}

impl<'a> HeaderView<'a> {
    /// Checks the lengths of the header at the front of `segment`. `segment` may end with the
    /// header: payload does not have to follow in the same memory.
    pub fn check(segment: &'a [u8]) -> Result<Self, HeaderError> {
        let (fixed, rest) = segment.split_first_chunk().ok_or(HeaderError::Truncated)?;
        let view = Self { fixed, options: &[] };
        let options_len = usize::from(view.data_offset())
            .checked_sub(MIN_HEADER_LEN / 4)
            .ok_or(HeaderError::DataOffsetTooSmall)?
            * 4;
        let options = rest.get(..options_len).ok_or(HeaderError::DataOffsetBeyondSegment)?;
        Ok(Self { fixed, options })
    }

    /// The sender's port.
    pub fn src_port(&self) -> u16 {
        self.u16_at::<0>()
    }

    /// The receiver's port.
    pub fn dst_port(&self) -> u16 {
        self.u16_at::<2>()
    }

    /// The sequence number.
    pub fn seq(&self) -> Seq {
        Seq(self.u32_at::<4>())
    }

    /// The acknowledgement number.
    pub fn ack(&self) -> Seq {
        Seq(self.u32_at::<8>())
    }

    /// The length of the header in words of four bytes.
    pub fn data_offset(&self) -> u8 {
        self.fixed[12] >> 4
    }

    /// The control bits. The three bits before them are reserved and mean nothing:
    ///
    /// > RFC 9293 section 3.1: Must be zero in generated segments and must be ignored in received
    /// > segments if the corresponding future features are not implemented by the sending or
    /// > receiving host.
    pub fn flags(&self) -> Flags {
        Flags::from_bits_retain(self.u16_at::<12>()) & Flags::all()
    }

    /// The window, not scaled.
    pub fn window(&self) -> u16 {
        self.u16_at::<14>()
    }

    /// The checksum as it was sent.
    pub fn checksum(&self) -> u16 {
        self.u16_at::<16>()
    }

    /// The urgent pointer.
    pub fn urgent(&self) -> u16 {
        self.u16_at::<18>()
    }

    /// The options one by one.
    pub fn options(&self) -> OptionIter<'a> {
        OptionIter::new(self.options)
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        MIN_HEADER_LEN + self.options.len()
    }

    /// The header as a value.
    pub fn to_header(&self) -> TcpHeader {
        let flags = self.flags();
        let options = if self.options.is_empty() {
            TcpOptions::default()
        } else {
            TcpOptions::parse(self.options, flags.contains(Flags::SYN))
        };
        TcpHeader {
            src_port: self.src_port(),
            dst_port: self.dst_port(),
            seq: self.seq(),
            ack: self.ack(),
            flags,
            window: self.window(),
            urgent: self.urgent(),
            options,
        }
    }

    fn u16_at<const AT: usize>(&self) -> u16 {
        const { assert!(AT + 2 <= MIN_HEADER_LEN) };
        self.fixed.get(AT..).and_then(<[u8]>::first_chunk).map_or(0, |b| u16::from_be_bytes(*b))
    }

    fn u32_at<const AT: usize>(&self) -> u32 {
        const { assert!(AT + 4 <= MIN_HEADER_LEN) };
        self.fixed.get(AT..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_be_bytes(*b))
    }
}

impl TcpHeader {
    /// Reads the header at the front of `segment`; returns it with its length in bytes.
    #[inline]
    pub fn parse(segment: &[u8]) -> Result<(Self, usize), HeaderError> {
        let view = HeaderView::check(segment)?;
        Ok((view.to_header(), view.header_len()))
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
