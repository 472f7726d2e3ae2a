//! Variant of steps R2 and R3, for most frames: TCP and UDP over IPv4 between the two hosts of the last packet.
//!
//! One look at the headers, without a branch that keeps or answers a packet. The values stay in registers up to
//! the socket: a call would write them to memory in parts and read them at once as a whole, for which processors
//! wait until the parts are in the cache. A frame that is not as expected is unchanged, and takes the general way,
//! which has the checks one by one, and the reasons for drops.

use std::net::{IpAddr, Ipv4Addr};

use pagewire_mem::link::Medium;
use pagewire_mem::{Instant, PacketBuf, RxChecksum};

use crate::net::Net;
use crate::net::input::received::Received;
use crate::net::links::config::LinkIndex;
use crate::net::routes::Delivery;
use crate::net::wire::{ethernet, fold, ipv4, protocol, tcp, udp};

/// Bytes of the headers in front of the transport's.
const FRONT: usize = ethernet::LEN + ipv4::LEN;

/// A packet between the hosts of the last one. Addresses are IPv4's: as either version's they would be written
/// in parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    pub(crate) src: Ipv4Addr,
    /// Our address.
    pub(crate) dst: Ipv4Addr,
    pub(crate) protocol: u8,
    /// See [`Received`].
    pub(crate) ecn: u8,
    hop_limit: u8,
    pub(crate) link: LinkIndex,
}

impl Expected {
    /// The same in the form of the general way.
    #[inline]
    pub(crate) fn received(&self) -> Received {
        let Self { src, dst, protocol, ecn, hop_limit, link } = *self;
        Received {
            src: IpAddr::V4(src),
            dst: IpAddr::V4(dst),
            protocol,
            ecn,
            hop_limit,
            delivery: Delivery::Unicast,
            header_len: ipv4::LEN as u16,
            next_field: 9,
            link,
            loopback: false,
            group: false,
        }
    }
}

impl Net {
    /// As [`handle_frame`](Self::handle_frame), for a frame that is as expected. On return its head is exactly
    /// the transport header. `None`: nothing happened.
    #[inline(always)]
    pub(crate) fn handle_expected(
        &mut self,
        now: Instant,
        link: LinkIndex,
        frame: &mut PacketBuf,
    ) -> Option<Expected> {
        let interface = self.links.at(link);
        let head = frame.head();
        let (front, transport) = head.split_first_chunk::<FRONT>()?;
        let (mac, ip) = front.split_first_chunk::<{ ethernet::LEN }>()?;
        let ip = ip.first_chunk::<{ ipv4::LEN }>()?;
        let [d0, d1, d2, d3, d4, d5, s0, _, _, _, _, _, 0x08, 0x00] = *mac else { return None };
        let to_us = interface.device.mac.0 == [d0, d1, d2, d3, d4, d5] && (d0 | s0) & 1 == 0;
        if !to_us || interface.device.medium != Medium::Ethernet || !interface.has_v4 {
            return None;
        }
        // No options, no fragment, no padding of the link.
        let len = frame.len();
        let total_len = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
        if ip[0] != 0x45 || ip[6] & 0xbf != 0 || ip[7] != 0 || ethernet::LEN + total_len != len {
            return None;
        }
        let (words, _) = ip.as_chunks::<4>();
        if fold(words.iter().map(|word| u64::from(u32::from_be_bytes(*word))).sum()) != 0xffff {
            return None;
        }
        let src = Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]);
        let dst = Ipv4Addr::new(ip[16], ip[17], ip[18], ip[19]);
        let Some((IpAddr::V4(from), IpAddr::V4(to), by)) = self.last_delivered else { return None };
        if from != src || to != dst || by != link {
            return None;
        }
        let verified = frame.rx_checksum == RxChecksum::Valid;
        let &[_, _, p0, p1, l0, l1, c0, c1] = transport.first_chunk::<{ udp::LEN }>()?;
        let protocol = ip[9];
        match protocol {
            protocol::TCP => {
                let words = *transport.get(tcp::DATA_OFFSET)? >> 4;
                let header_len = usize::from(words) * 4;
                let ports = matches!(transport, [0, 0, ..] | [_, _, 0, 0, ..]);
                if !verified || ports || header_len < tcp::LEN || header_len != transport.len() {
                    return None;
                }
            }
            protocol::UDP => {
                let whole = usize::from(u16::from_be_bytes([l0, l1])) + FRONT == len;
                let sound = verified || (c0, c1) == (0, 0);
                if !whole || !sound || (p0, p1) == (0, 0) || transport.len() != udp::LEN {
                    return None;
                }
            }
            _ => return None,
        }
        let expected = Expected { src, dst, protocol, ecn: ip[1] & 3, hop_limit: ip[8], link };
        self.now = now;
        self.counters.rx_frames += 1;
        self.counters.rx_bytes += len as u64;
        self.counters.rx_ipv4 += 1;
        match protocol {
            protocol::TCP => self.counters.rx_tcp += 1,
            _ => self.counters.rx_udp += 1,
        }
        frame.pull(FRONT);
        Some(expected)
    }
}
