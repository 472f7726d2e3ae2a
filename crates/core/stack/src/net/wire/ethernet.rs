//! Ethernet II headers and station addresses.

use core::fmt;
use std::net::IpAddr;

use crate::counters::DropReason;

/// Bytes of an Ethernet header.
pub(crate) const LEN: usize = 14;

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const ARP: u16 = 0x0806;
pub(crate) const VLAN: u16 = 0x8100;
pub(crate) const SERVICE_VLAN: u16 = 0x88a8;
pub(crate) const IPV6: u16 = 0x86dd;

/// Smallest EtherType; what is below is an IEEE 802.3 length.
const SMALLEST_TYPE: u16 = 0x0600;

/// A station's address, or a group's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Mac(pub(crate) [u8; 6]);

impl Mac {
    pub(crate) const BROADCAST: Self = Self([0xff; 6]);
    pub(crate) const ZERO: Self = Self([0; 6]);

    /// Whether it names more than one station (broadcast included).
    pub(crate) const fn is_group(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether a neighbour can have it.
    pub(crate) fn is_station(self) -> bool {
        !self.is_group() && self != Self::ZERO
    }

    /// The group that packets to an IP multicast address go to.
    pub(crate) const fn for_multicast(group: IpAddr) -> Self {
        match group {
            // RFC 1112 section 6.4: the low 23 bits of the group behind 01-00-5E.
            IpAddr::V4(a) => {
                let [_, b, c, d] = a.octets();
                Self([0x01, 0x00, 0x5e, b & 0x7f, c, d])
            }
            // RFC 2464 section 7: the last four octets behind 33-33.
            IpAddr::V6(a) => {
                let o = a.octets();
                Self([0x33, 0x33, o[12], o[13], o[14], o[15]])
            }
        }
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) dst: Mac,
    pub(crate) src: Mac,
    pub(crate) ethertype: u16,
}

impl Header {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<LEN>().ok_or(DropReason::EthernetTruncated)?;
        let header = Self {
            dst: Mac([b[0], b[1], b[2], b[3], b[4], b[5]]),
            src: Mac([b[6], b[7], b[8], b[9], b[10], b[11]]),
            ethertype: u16::from_be_bytes([b[12], b[13]]),
        };
        match header.ethertype {
            VLAN | SERVICE_VLAN => Err(DropReason::EthernetVlan),
            t if t < SMALLEST_TYPE => Err(DropReason::EthernetLength),
            _ if header.src.is_group() => Err(DropReason::EthernetSource),
            _ => Ok(header),
        }
    }

    pub(crate) fn emit(&self) -> [u8; LEN] {
        super::concat(&[&self.dst.0, &self.src.0, &self.ethertype.to_be_bytes()])
    }
}
