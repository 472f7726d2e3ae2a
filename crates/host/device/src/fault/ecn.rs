//! The two ECN bits of an IP header (RFC 3168 section 5): `00` the receiver does not read marks,
//! `01` and `10` it does, `11` congestion experienced.

use pagewire_mem::link::Medium;

/// The byte that has the bits, and their position in it.
fn find(head: &[u8], medium: Medium) -> Option<(usize, u32)> {
    let ip = match medium {
        Medium::Ip => 0,
        Medium::Ethernet => match head.get(12..14)? {
            [0x81, 0x00] => 18,
            _ => 14,
        },
    };
    match (ip, head.get(ip)? >> 4) {
        (14, _) if !matches!(head.get(12..14)?, [0x08, 0x00] | [0x86, 0xdd]) => None,
        // RFC 791: the lower end of the second byte.
        (_, 4) => Some((ip + 1, 0)),
        // RFC 8200: the traffic class begins in the middle of the first.
        (_, 6) => Some((ip + 1, 4)),
        _ => None,
    }
}

/// Whether the receiver of this frame reads marks.
pub(super) fn is_capable(head: &[u8], medium: Medium) -> bool {
    let Some((at, shift)) = find(head, medium) else { return false };
    head.get(at).is_some_and(|byte| byte >> shift & 3 != 0)
}

/// Marks the frame as one that experienced congestion.
pub(super) fn mark(head: &mut [u8], medium: Medium) {
    let Some((at, shift)) = find(head, medium) else { return };
    let Some(byte) = head.get_mut(at) else { return };
    let before = *byte;
    *byte |= 3 << shift;
    let after = *byte;
    if shift == 0
        && let Some([high, low]) = head.get_mut(at + 9..at + 11)
    {
        // RFC 1624: HC' = ~(~HC + ~m + m'), in one's complement. The first byte of the word stays.
        let sum = u32::from(!u16::from_be_bytes([*high, *low]))
            + u32::from(!u16::from(before))
            + u32::from(after);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        [*high, *low] = (!(sum as u16)).to_be_bytes();
    }
}
