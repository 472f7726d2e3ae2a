//! Neighbour discovery messages (RFC 4861).

use std::net::Ipv6Addr;

use super::ethernet::Mac;
use super::icmp::v6;
use crate::counters::DropReason;

/// Bytes of a solicitation or advertisement without options.
pub(crate) const LEN: usize = 24;

/// Bytes of a link-layer address option on Ethernet.
const OPTION_LEN: usize = 8;

/// Bytes of the longest message we send.
pub(crate) const MAX_LEN: usize = LEN + OPTION_LEN;

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// A neighbour solicitation or advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// Asks for the station of `target`.
    Solicitation {
        target: Ipv6Addr,
        /// The sender's station.
        source_mac: Option<Mac>,
    },
    /// `target` is at `target_mac`.
    Advertisement {
        router: bool,
        solicited: bool,
        overrides: bool,
        target: Ipv6Addr,
        target_mac: Option<Mac>,
    },
}

impl Message {
    /// Parses a whole ICMPv6 message of one of the two types.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<LEN>().ok_or(DropReason::NdpTruncated)?;
        // RFC 4861 sections 7.1.1 and 7.1.2: "ICMP Code is 0."
        if b[1] != 0 {
            return Err(DropReason::NdpCode);
        }
        let mut target = [0; 16];
        target.copy_from_slice(&b[8..24]);
        let target = Ipv6Addr::from(target);
        // RFC 4861 section 7.1.1: "Target Address is not a multicast address."
        if target.is_multicast() || target.is_unspecified() {
            return Err(DropReason::NdpTarget);
        }
        let options = bytes.get(LEN..).unwrap_or_default();
        match b[0] {
            v6::NEIGHBOR_SOLICITATION => Ok(Self::Solicitation {
                target,
                source_mac: link_address(options, SOURCE_LINK_ADDRESS)?,
            }),
            v6::NEIGHBOR_ADVERTISEMENT => Ok(Self::Advertisement {
                router: b[4] & 0x80 != 0,
                solicited: b[4] & 0x40 != 0,
                overrides: b[4] & 0x20 != 0,
                target,
                target_mac: link_address(options, TARGET_LINK_ADDRESS)?,
            }),
            _ => Err(DropReason::IcmpType),
        }
    }

    /// The message with a checksum of 0, and how many bytes of the array it has.
    pub(crate) fn emit(&self) -> ([u8; MAX_LEN], usize) {
        let mut b = [0; MAX_LEN];
        let (target, mac, option) = match *self {
            Self::Solicitation { target, source_mac } => {
                b[0] = v6::NEIGHBOR_SOLICITATION;
                (target, source_mac, SOURCE_LINK_ADDRESS)
            }
            Self::Advertisement { router, solicited, overrides, target, target_mac } => {
                b[0] = v6::NEIGHBOR_ADVERTISEMENT;
                b[4] = u8::from(router) << 7 | u8::from(solicited) << 6 | u8::from(overrides) << 5;
                (target, target_mac, TARGET_LINK_ADDRESS)
            }
        };
        b[8..24].copy_from_slice(&target.octets());
        let Some(mac) = mac else { return (b, LEN) };
        b[24] = option;
        b[25] = 1;
        b[26..32].copy_from_slice(&mac.0);
        (b, MAX_LEN)
    }
}

/// Walks the options and returns the link-layer address of the given kind.
fn link_address(mut options: &[u8], wanted: u8) -> Result<Option<Mac>, DropReason> {
    let mut found = None;
    while let [kind, rest @ ..] = options {
        // RFC 4861 section 4.6: "Nodes MUST silently discard an ND packet that contains an option
        // with length zero."
        let len = rest.first().map_or(0, |&units| usize::from(units) * 8);
        if len == 0 {
            return Err(DropReason::NdpOption);
        }
        let option = options.get(..len).ok_or(DropReason::NdpOption)?;
        if *kind == wanted
            && let Some(b) = option.first_chunk::<OPTION_LEN>()
        {
            let mac = Mac([b[2], b[3], b[4], b[5], b[6], b[7]]);
            if !mac.is_station() {
                return Err(DropReason::NdpOption);
            }
            found = Some(mac);
        }
        options = options.get(len..).unwrap_or_default();
    }
    Ok(found)
}

/// The group in which a neighbour listens for solicitations of `addr` (RFC 4291 section 2.7.1).
pub(crate) fn solicited_node(addr: Ipv6Addr) -> Ipv6Addr {
    let o = addr.octets();
    Ipv6Addr::from([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, o[13], o[14], o[15]])
}

/// The link-local address of a station (RFC 4291 appendix A: modified EUI-64).
pub(crate) fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// A link-local address for another link of the same station: never 0xfffe in the middle.
pub(crate) fn link_local_of(mac: Mac, link: u8) -> Ipv6Addr {
    let mut octets = link_local(mac).octets();
    (octets[11], octets[12]) = (0, link);
    octets.into()
}
