//! Membership messages: IGMP of all versions (RFC 1112, RFC 2236, RFC 3376) and MLD of both
//! (RFC 2710, RFC 3810). `groups.rs` decides what to do about them.

use core::time::Duration;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pagewire_mem::checksum::Checksum;

use crate::counters::DropReason;
use crate::limits::GROUP_QUERY_SOURCES;
use crate::net::wire::{protocol, pseudo_header_sum};

/// Bytes in front of the records of a report.
pub(super) const REPORT_LEN: usize = 8;

pub(crate) mod igmp {
    pub(crate) const QUERY: u8 = 0x11;
    pub(crate) const REPORT_V1: u8 = 0x12;
    pub(crate) const REPORT_V2: u8 = 0x16;
    pub(crate) const LEAVE_V2: u8 = 0x17;
    pub(crate) const REPORT_V3: u8 = 0x22;
}

pub(crate) mod mld {
    pub(crate) const QUERY: u8 = 130;
    pub(crate) const REPORT_V1: u8 = 131;
    pub(crate) const DONE_V1: u8 = 132;
    pub(crate) const REPORT_V2: u8 = 143;
}

/// The version of the oldest router on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Version {
    /// IGMPv1.
    Oldest,
    /// IGMPv2, MLDv1.
    Older,
    /// IGMPv3, MLDv2.
    Current,
}

/// A router's question: which groups, or sources of a group, are wanted?
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    pub(crate) version: Version,
    /// `None`: any.
    pub(crate) group: Option<IpAddr>,
    /// None: all sources.
    pub(crate) sources: Vec<IpAddr>,
    /// Answers come within that time.
    pub(crate) max_delay: Duration,
    /// How often the router wants a report repeated, and how often it queries; `None`: not in the message.
    pub(crate) robustness: Option<u8>,
    pub(crate) interval: Option<Duration>,
}

impl Query {
    /// Parses an IGMP query of `len` bytes, the first of which are `bytes`.
    pub(crate) fn parse_v4(bytes: &[u8], len: usize) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<8>().ok_or(DropReason::GroupMessage)?;
        let group = Ipv4Addr::new(b[4], b[5], b[6], b[7]);
        // RFC 3376 section 7.1: the length and the code tell the version; other lengths are ignored.
        let (version, tenths) = match (len, b[1]) {
            (8, 0) => (Version::Oldest, 100),
            (8, code) => (Version::Older, u32::from(code)),
            (12.., code) => (Version::Current, float8(code)),
            _ => return Err(DropReason::GroupMessage),
        };
        let group = (!group.is_unspecified() && version != Version::Oldest).then_some(group);
        let max_delay = Duration::from_millis(u64::from(tenths) * 100);
        let octets = |a: &[u8; 4]| IpAddr::from(*a);
        let group = group.map(IpAddr::V4);
        Self { version, group, sources: Vec::new(), max_delay, robustness: None, interval: None }
            .with_rest(bytes, len, 8, octets)
    }

    /// Parses an MLD query of `len` bytes, the first of which are `bytes`.
    pub(crate) fn parse_v6(bytes: &[u8], len: usize) -> Result<Self, DropReason> {
        let b = bytes.first_chunk::<24>().ok_or(DropReason::GroupMessage)?;
        let mut group = [0; 16];
        group.copy_from_slice(&b[8..]);
        let group = Ipv6Addr::from(group);
        let code = u16::from_be_bytes([b[4], b[5]]);
        // RFC 3810 section 8.1: the length tells the version; other lengths are ignored.
        let (version, millis) = match len {
            24 => (Version::Older, u32::from(code)),
            28.. => (Version::Current, float16(code)),
            _ => return Err(DropReason::GroupMessage),
        };
        let group = (!group.is_unspecified()).then_some(IpAddr::V6(group));
        let max_delay = Duration::from_millis(millis.into());
        let octets = |a: &[u8; 16]| IpAddr::from(*a);
        Self { version, group, sources: Vec::new(), max_delay, robustness: None, interval: None }
            .with_rest(bytes, len, 24, octets)
    }

    /// Reads what the current version has behind byte `at`: two codes and sources of `N` bytes.
    fn with_rest<const N: usize>(
        mut self,
        bytes: &[u8],
        len: usize,
        at: usize,
        address: impl Fn(&[u8; N]) -> IpAddr,
    ) -> Result<Self, DropReason> {
        if self.group.is_some_and(|group| !group.is_multicast()) {
            return Err(DropReason::GroupMessage);
        }
        if self.version != Version::Current {
            return Ok(self);
        }
        let b =
            bytes.get(at..).and_then(<[u8]>::first_chunk::<4>).ok_or(DropReason::GroupMessage)?;
        // RFC 3376 section 4.1.6: 0 means that the field is not used.
        self.robustness = Some(b[0] & 7).filter(|&n| n > 0);
        self.interval =
            Some(float8(b[1])).filter(|&s| s > 0).map(|s| Duration::from_secs(s.into()));
        let count = usize::from(u16::from_be_bytes([b[2], b[3]]));
        if len < at + 4 + count * N || (self.group.is_none() && count > 0) {
            return Err(DropReason::GroupMessage);
        }
        let (sources, _) = bytes.get(at + 4..).unwrap_or_default().as_chunks::<N>();
        // With more than are kept, the answer is about all sources of the group, and so about these.
        if count <= GROUP_QUERY_SOURCES.min(sources.len()) {
            self.sources = sources.iter().take(count).map(address).collect();
        }
        Ok(self)
    }
}

/// RFC 3376 sections 4.1.1 and 4.1.7: from 128 on, three bits of exponent and four of mantissa.
pub(crate) fn float8(code: u8) -> u32 {
    match code {
        0..128 => code.into(),
        _ => (u32::from(code & 0x0f) | 0x10) << ((code >> 4 & 7) + 3),
    }
}

/// RFC 3810 section 5.1.3: from 32768 on, three bits of exponent and twelve of mantissa.
pub(crate) fn float16(code: u16) -> u32 {
    match code {
        0..0x8000 => code.into(),
        _ => (u32::from(code & 0x0fff) | 0x1000) << ((code >> 12 & 7) + 3),
    }
}

/// A message as it is sent, and its destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) to: IpAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The type of a group record (RFC 3376 section 4.2.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// Answer: these sources are wanted.
    IsInclude = 1,
    /// Answer: all but these are wanted.
    IsExclude = 2,
    /// From now on none is wanted.
    ToInclude = 3,
    /// From now on all are wanted.
    ToExclude = 4,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    pub(crate) group: IpAddr,
    pub(crate) sources: Vec<IpAddr>,
}

/// A report to routers, and to switches that snoop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// In the current version.
    Records(Vec<Record>),
    /// In an older version: that we are in a group, or leave it.
    One { version: Version, group: IpAddr, leaves: bool },
}

impl Report {
    /// The report's message, from `src`.
    pub(crate) fn emit(&self, src: IpAddr) -> Message {
        let v6 = src.is_ipv6();
        let (to, mut bytes) = match (self, v6) {
            // RFC 3376 section 4.2.14: "sent with an IP destination address of 224.0.0.22".
            (Self::Records(records), false) => {
                (Ipv4Addr::new(224, 0, 0, 22).into(), emit_records(igmp::REPORT_V3, records))
            }
            // RFC 3810 section 5.2.14.
            (Self::Records(records), true) => (
                Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16).into(),
                emit_records(mld::REPORT_V2, records),
            ),
            (Self::One { version, group, leaves }, _) => {
                let kind = match (v6, leaves, version) {
                    (false, true, _) => igmp::LEAVE_V2,
                    (false, false, Version::Oldest) => igmp::REPORT_V1,
                    (false, false, _) => igmp::REPORT_V2,
                    (true, true, _) => mld::DONE_V1,
                    (true, false, _) => mld::REPORT_V1,
                };
                // RFC 2236 section 3 and RFC 2710 section 4: a host that leaves tells all routers.
                let to = match (leaves, v6) {
                    (false, _) => *group,
                    (true, false) => Ipv4Addr::new(224, 0, 0, 2).into(),
                    (true, true) => Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2).into(),
                };
                let mut bytes = vec![kind, 0, 0, 0];
                // MLD has room for a delay.
                bytes.extend(if v6 { &[0; 4][..] } else { &[] });
                put(&mut bytes, *group);
                (to, bytes)
            }
        };
        let mut sum = Checksum::new();
        if v6 {
            sum.add_u16(pseudo_header_sum(src, to, protocol::ICMPV6, bytes.len()));
        }
        sum.add_bytes(&bytes);
        let sum = sum.finish().to_be_bytes();
        if let Some(field) = bytes.get_mut(2..4) {
            field.copy_from_slice(&sum);
        }
        Message { to, bytes }
    }
}

/// RFC 3376 section 4.2 and RFC 3810 section 5.2: the same but for the length of an address.
fn emit_records(kind: u8, records: &[Record]) -> Vec<u8> {
    let [c0, c1] = (records.len() as u16).to_be_bytes();
    let mut bytes = vec![kind, 0, 0, 0, 0, 0, c0, c1];
    for Record { kind, group, sources } in records {
        let [n0, n1] = (sources.len() as u16).to_be_bytes();
        bytes.extend([*kind as u8, 0, n0, n1]);
        put(&mut bytes, *group);
        sources.iter().for_each(|&source| put(&mut bytes, source));
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, addr: IpAddr) {
    match addr {
        IpAddr::V4(a) => bytes.extend(a.octets()),
        IpAddr::V6(a) => bytes.extend(a.octets()),
    }
}
