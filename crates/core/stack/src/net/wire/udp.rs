//! UDP headers (RFC 768).

use crate::counters::DropReason;

/// Bytes of a UDP header.
pub(crate) const LEN: usize = 8;

pub(crate) const CHECKSUM_OFFSET: u16 = 6;

/// The destination's and the source's port in a header.
#[inline]
pub(crate) fn ports(header: &[u8]) -> Option<(u16, u16)> {
    let &[s0, s1, d0, d1] = header.first_chunk()?;
    Some((u16::from_be_bytes([d0, d1]), u16::from_be_bytes([s0, s1])))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) src_port: u16,
    pub(crate) dst_port: u16,
    /// Bytes of header and payload.
    pub(crate) len: u16,
    /// 0: none was computed.
    pub(crate) checksum: u16,
}

impl Header {
    /// Parses the header of a datagram that IP delivered in `packet_len` bytes.
    #[inline(always)]
    pub(crate) fn parse(bytes: &[u8], packet_len: usize) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<LEN>().ok_or(DropReason::UdpTruncated)?;
        let len = u16::from_be_bytes([b[4], b[5]]);
        if usize::from(len) < LEN || usize::from(len) > packet_len {
            return Err(DropReason::UdpLength);
        }
        let dst_port = u16::from_be_bytes([b[2], b[3]]);
        if dst_port == 0 {
            return Err(DropReason::UdpPort);
        }
        Ok(Self {
            src_port: u16::from_be_bytes([b[0], b[1]]),
            dst_port,
            len,
            checksum: u16::from_be_bytes([b[6], b[7]]),
        })
    }

    pub(crate) fn emit(&self) -> [u8; LEN] {
        let [s0, s1] = self.src_port.to_be_bytes();
        let [d0, d1] = self.dst_port.to_be_bytes();
        let [l0, l1] = self.len.to_be_bytes();
        let [c0, c1] = self.checksum.to_be_bytes();
        [s0, s1, d0, d1, l0, l1, c0, c1]
    }
}
