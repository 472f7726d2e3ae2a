//! Where a datagram goes, and what waits to be sent there.

use std::net::{IpAddr, SocketAddr};

use pagewire_mem::FragVec;

use super::marks::{MtuDiscover, PacketMarks};
use crate::error::Error;
use crate::limits::{UDP_MAX_PAYLOAD_V4, UDP_MAX_PAYLOAD_V6, UDP_MAX_SEGMENTS};
use crate::net::LinkIndex;
use crate::net::wire::{ipv4, ipv6, udp};

/// Where one call sends to, and how it cuts what it is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpTarget {
    /// To whom; `None`: where the socket is connected.
    pub remote: Option<SocketAddr>,
    /// Payload bytes of each datagram but the last, 0 for one datagram only; `None`: as is
    /// [set](Udp::set_segment) on the socket.
    pub segment: Option<u16>,
    /// The data of the next call belongs to the same datagram, which waits for it (Linux's
    /// `MSG_MORE`). What the first call says of `remote` and `segment` counts.
    pub more: bool,
    /// The address of ours that it is from (`IP_PKTINFO`); `None`: the socket's, or the one that suits.
    pub source: Option<IpAddr>,
}

impl From<Option<SocketAddr>> for UdpTarget {
    fn from(remote: Option<SocketAddr>) -> Self {
        Self { remote, ..Self::default() }
    }
}

/// Where a datagram goes from and to, and what its packet is marked with.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) marks: PacketMarks,
    pub(super) mtu_discover: MtuDiscover,
    /// A payload that is longer is cut in datagrams of so many bytes; 0: it is one.
    pub(super) segment: usize,
    /// The only link that it may leave by.
    pub(super) by: Option<LinkIndex>,
    /// It comes back to who is in the group here.
    pub(super) loops: bool,
}

impl Ends {
    /// Payload bytes of the longest datagram.
    pub(super) fn longest(&self) -> usize {
        if self.remote.is_ipv4() { UDP_MAX_PAYLOAD_V4 } else { UDP_MAX_PAYLOAD_V6 }
    }

    /// Whether `len` bytes may be sent so where packets of `mtu` bytes go in one piece.
    pub(super) fn check_segments(&self, len: usize, mtu: usize) -> Result<(), Error> {
        let ip = if self.remote.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        // As Linux: what is cut to fit is not cut again.
        if ip + udp::LEN + len.min(self.segment) > mtu {
            return Err(Error::MessageTooLong);
        }
        if len > self.segment * UDP_MAX_SEGMENTS {
            return Err(Error::InvalidInput);
        }
        Ok(())
    }
}

/// The front of a datagram, at most as long as a datagram can be.
pub(super) struct Cork {
    /// What the first call said: the others are not asked.
    pub(super) ends: Ends,
    pub(super) len: usize,
    pub(super) data: FragVec,
}
