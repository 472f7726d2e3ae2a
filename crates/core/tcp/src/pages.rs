//! Segments that carry whole pages, on links without super-frames: the MSS to announce and the MTU.
//!
//! A page can be mapped if consecutive bytes of the stream fill it. If each segment is read into
//! pages of its own, its payload must be a multiple of the page. A sender fills a segment up to the
//! MSS less its options (RFC 6691); timestamps (RFC 7323) take 12 bytes. So for `n` pages
//!
//! ```text
//!   MSS = n × 4096 + 12            announced: payload and options
//!   MTU = MSS + 20 (TCP) + 20 (IPv4) or 40 (IPv6)
//!
//!    n     MSS    MTU, IPv4   MTU, IPv6
//!    1    4108       4148        4168
//!    2    8204       8244        8264      the largest on links with "jumbo" frames of 9000
//!    4   16396      16436       16456
//!   15   61452      61492       61512      the largest for IP packets of 64 KiB
//! ```
//!
//! IPv6's MTU serves both versions: over IPv4 the announced MSS leaves 20 bytes unused. A peer that
//! refuses timestamps sends 12 bytes more than whole pages; for such peers turn
//! [`Config::timestamps`](crate::Config::timestamps) off, and the MSS is `n × 4096`.
//!
//! Super-frames (TSO, the pair link) do not need this: the payload of a flow is contiguous there.

use pagewire_mem::PAGE_SIZE;

use crate::header::MIN_HEADER_LEN;
use crate::limits::{MAX_PAYLOAD_PAGES, TIMESTAMPS_LEN};

/// The MSS to announce, in bytes, so that full segments carry `pages` pages of 4096 bytes, clamped
/// to 1 to [`MAX_PAYLOAD_PAGES`].
///
/// ```
/// assert_eq!(pagewire_tcp::mss_of_pages(1, true), 4096 + 12);
/// ```
pub const fn mss_of_pages(pages: u8, timestamps: bool) -> u16 {
    let pages = match pages {
        0 => 1,
        1..=MAX_PAYLOAD_PAGES => pages,
        _ => MAX_PAYLOAD_PAGES,
    };
    pages as u16 * PAGE_SIZE as u16 + if timestamps { TIMESTAMPS_LEN } else { 0 }
}

/// The largest IP packet, in bytes, of such segments with timestamps.
///
/// ```
/// assert_eq!(pagewire_tcp::mtu_of_pages(1, true), 4096 + 40 + 20 + 12);
/// ```
pub const fn mtu_of_pages(pages: u8, v6: bool) -> usize {
    mss_of_pages(pages, true) as usize + MIN_HEADER_LEN + if v6 { 40 } else { 20 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_above_is_true() {
        let rows = [
            (1, 4108, 4148, 4168),
            (2, 8204, 8244, 8264),
            (4, 16_396, 16_436, 16_456),
            (15, 61_452, 61_492, 61_512),
        ];
        for (pages, mss, v4, v6) in rows {
            assert_eq!(mss_of_pages(pages, true), mss);
            assert_eq!(mss_of_pages(pages, false), mss - 12);
            assert_eq!((mtu_of_pages(pages, false), mtu_of_pages(pages, true)), (v4, v6));
        }
    }

    #[test]
    fn numbers_out_of_range_are_brought_within() {
        assert_eq!(mss_of_pages(0, true), mss_of_pages(1, true));
        assert_eq!(mss_of_pages(255, true), mss_of_pages(15, true));
    }
}
