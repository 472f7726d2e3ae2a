//! ARP packets for Ethernet and IPv4 (RFC 826).

use std::net::Ipv4Addr;

use super::ethernet::{self, Mac};
use crate::counters::DropReason;

/// Bytes of an ARP packet for Ethernet and IPv4.
pub(crate) const LEN: usize = 28;

const HARDWARE_ETHERNET: u16 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Request,
    Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) operation: Operation,
    pub(crate) sender_mac: Mac,
    pub(crate) sender: Ipv4Addr,
    pub(crate) target_mac: Mac,
    pub(crate) target: Ipv4Addr,
}

impl Packet {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<LEN>().ok_or(DropReason::ArpTruncated)?;
        if u16::from_be_bytes([b[0], b[1]]) != HARDWARE_ETHERNET || b[4] != 6 {
            return Err(DropReason::ArpHardware);
        }
        if u16::from_be_bytes([b[2], b[3]]) != ethernet::IPV4 || b[5] != 4 {
            return Err(DropReason::ArpProtocol);
        }
        let operation = match u16::from_be_bytes([b[6], b[7]]) {
            1 => Operation::Request,
            2 => Operation::Reply,
            _ => return Err(DropReason::ArpOperation),
        };
        Ok(Self {
            operation,
            sender_mac: Mac([b[8], b[9], b[10], b[11], b[12], b[13]]),
            sender: Ipv4Addr::new(b[14], b[15], b[16], b[17]),
            target_mac: Mac([b[18], b[19], b[20], b[21], b[22], b[23]]),
            target: Ipv4Addr::new(b[24], b[25], b[26], b[27]),
        })
    }

    pub(crate) fn emit(&self) -> [u8; LEN] {
        let operation: u16 = match self.operation {
            Operation::Request => 1,
            Operation::Reply => 2,
        };
        super::concat(&[
            &HARDWARE_ETHERNET.to_be_bytes(),
            &ethernet::IPV4.to_be_bytes(),
            &[6, 4],
            &operation.to_be_bytes(),
            &self.sender_mac.0,
            &self.sender.octets(),
            &self.target_mac.0,
            &self.target.octets(),
        ])
    }
}
