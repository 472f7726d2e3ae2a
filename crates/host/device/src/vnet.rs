//! The header in front of each frame on a tap and in a guest's ring: `struct virtio_net_hdr` in the
//! machine's byte order (Virtio 1.2, section 5.1.6; the legacy form without `num_buffers`).
//!
//! ```text
//!   0 flags | 1 gso_type | 2 hdr_len | 4 gso_size | 6 csum_start | 8 csum_offset
//! ```

use pagewire_mem::{GsoKind, PacketBuf, RxChecksum, TxChecksum};

use crate::limits::VNET_HEADER;
use pagewire_mem::link::headers::TCP_CWR;

const F_NEEDS_CSUM: u8 = 1;
const F_DATA_VALID: u8 = 2;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const GSO_TCPV6: u8 = 4;
const GSO_UDP_L4: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// The header for a frame to be sent; `None` if the packet's requests contradict each other.
pub(crate) fn encode(packet: &PacketBuf) -> Option<[u8; VNET_HEADER]> {
    let (mut flags, mut start, mut offset) = (0, 0, 0);
    let head = packet.head().len();
    if let TxChecksum::Partial { start: s, offset: o } = packet.tx_checksum {
        if usize::from(s) + usize::from(o) + 2 > head {
            return None;
        }
        (flags, start, offset) = (F_NEEDS_CSUM, s, o);
    }
    let (mut kind, mut header_len, mut size) = (GSO_NONE, 0, 0);
    // A "super-frame" of one segment is an ordinary frame.
    if let Some(gso) = packet.gso.filter(|gso| packet.frag_len() > usize::from(gso.size)) {
        // A driver "MUST set VIRTIO_NET_HDR_F_NEEDS_CSUM" with a gso_type (Virtio 1.2, 5.1.6.2.1).
        if gso.size == 0 || flags == 0 || usize::from(gso.header_len) != head {
            return None;
        }
        kind = match gso.kind {
            GsoKind::TcpV4 => GSO_TCPV4,
            GsoKind::TcpV6 => GSO_TCPV6,
            GsoKind::Udp => GSO_UDP_L4,
        };
        // RFC 3168, section 6.1.2: only the first of the segments may carry CWR.
        let tcp_flags = packet.head().get(usize::from(start) + 13);
        if tcp_flags.is_some_and(|flags| flags & TCP_CWR != 0) {
            kind |= GSO_ECN;
        }
        (header_len, size) = (gso.header_len, gso.size);
    }
    let [l0, l1] = header_len.to_ne_bytes();
    let [s0, s1] = size.to_ne_bytes();
    let [c0, c1] = start.to_ne_bytes();
    let [o0, o1] = offset.to_ne_bytes();
    Some([flags, kind, l0, l1, s0, s1, c0, c1, o0, o1])
}

/// Whether a header is that of a super-frame for receivers with ECN only.
#[cfg(feature = "vhost-user")]
pub(crate) fn is_ecn(header: &[u8; VNET_HEADER]) -> bool {
    header[1] & GSO_ECN != 0
}

/// The content of a received frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) checksum: RxChecksum,
    /// Where the sum begins, and the field's offset from there, if it is to be completed.
    pub(crate) partial: Option<(u16, u16)>,
    /// Kind and segment size of a super-frame.
    pub(crate) gso: Option<(GsoKind, u16)>,
}

/// Reads the header of a received frame of `len` bytes; `None` if it is invalid.
pub(crate) fn decode(header: &[u8; VNET_HEADER], len: usize) -> Option<Received> {
    let [flags, kind, l0, l1, s0, s1, c0, c1, o0, o1] = *header;
    let size = u16::from_ne_bytes([s0, s1]);
    let mut partial = None;
    if flags & F_NEEDS_CSUM != 0 {
        let (start, offset) = (u16::from_ne_bytes([c0, c1]), u16::from_ne_bytes([o0, o1]));
        if usize::from(start) + usize::from(offset) + 2 > len {
            return None;
        }
        partial = Some((start, offset));
    }
    let gso_kind = match kind & !GSO_ECN {
        GSO_NONE if kind == GSO_NONE => None,
        GSO_TCPV4 => Some(GsoKind::TcpV4),
        GSO_TCPV6 => Some(GsoKind::TcpV6),
        GSO_UDP_L4 if kind == GSO_UDP_L4 => Some(GsoKind::Udp),
        // No other kind was offered.
        _ => return None,
    };
    // The header's length is an unused hint; one beyond the frame is invalid all the same.
    if gso_kind.is_some() && (size == 0 || usize::from(u16::from_ne_bytes([l0, l1])) > len) {
        return None;
    }
    let checksum = match flags & (F_NEEDS_CSUM | F_DATA_VALID) {
        0 => RxChecksum::Unknown,
        // Verified, or made on this machine and never on a wire.
        _ => RxChecksum::Valid,
    };
    Some(Received { checksum, partial, gso: gso_kind.map(|kind| (kind, size)) })
}
