//! [`UdpTarget`], the destination and settings of one send; and [`CorkedDatagram`], a datagram that waits for
//! more data.

use std::net::SocketAddr;

use pagewire_mem::FragVec;

use crate::error::Error;
use crate::limits::{UDP_MAX_PAYLOAD_V4, UDP_MAX_PAYLOAD_V6, UDP_MAX_SEGMENTS};
use crate::net::LinkIndex;
use crate::net::wire::{ipv4, ipv6, udp};
use crate::sockets::marks::{MtuDiscover, PacketMarks};

/// Where one call sends to, and how it splits its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UdpTarget {
    /// The destination; `None`: the socket's peer.
    pub remote: Option<SocketAddr>,
    /// Payload bytes of each datagram but the last, 0 for one datagram only; `None`: the socket's
    /// [setting](crate::SocketOption::Segment).
    pub segment: Option<u16>,
    /// The datagram waits for the data of the next call (Linux's `MSG_MORE`). The `remote` and
    /// `segment` of the first call count.
    pub more: bool,
    /// The source address (`IP_PKTINFO`), with port 0 or the socket's own; `None`: the socket's, or
    /// that of the route. A socket of [`Stack::bind_every`](crate::Stack::bind_every) needs one: any
    /// address and port.
    pub source: Option<SocketAddr>,
    /// The congestion mark of its packets, 0 to 3 (RFC 3168 section 5; `IP_TOS` as ancillary data);
    /// `None`: the socket's marks.
    pub ecn: Option<u8>,
}

impl From<Option<SocketAddr>> for UdpTarget {
    fn from(remote: Option<SocketAddr>) -> Self {
        Self { remote, ..Self::default() }
    }
}

/// A datagram's source and destination, and the settings of its packet.
#[derive(Clone, Copy)]
pub(crate) struct DatagramSpec {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) marks: PacketMarks,
    pub(crate) mtu_discover: MtuDiscover,
    /// Payload bytes of each datagram that a longer payload is split in; 0: it is not split.
    pub(crate) segment: usize,
    /// The only link that it may leave by.
    pub(crate) by: Option<LinkIndex>,
    /// Loops back to members of the group on this host.
    pub(crate) loops: bool,
    /// The datagram is an echo reply.
    pub(crate) echo: bool,
}

impl DatagramSpec {
    /// Payload bytes of the longest datagram.
    pub(crate) fn longest(&self) -> usize {
        if self.remote.is_ipv4() { UDP_MAX_PAYLOAD_V4 } else { UDP_MAX_PAYLOAD_V6 }
    }

    /// Checks `len` bytes of payload against the limits of a path with this MTU.
    pub(crate) fn check_segments(&self, len: usize, mtu: usize) -> Result<(), Error> {
        if self.echo {
            return Err(Error::InvalidInput);
        }
        let ip = if self.remote.is_ipv4() { ipv4::LEN } else { ipv6::LEN };
        // As Linux: segments are not fragmented.
        if ip + udp::LEN + len.min(self.segment) > mtu {
            return Err(Error::MessageTooLong);
        }
        if len > self.segment * UDP_MAX_SEGMENTS {
            return Err(Error::InvalidInput);
        }
        Ok(())
    }
}

/// A corked datagram: it waits for more data, up to the longest datagram.
pub(crate) struct CorkedDatagram {
    /// The target of the first call.
    pub(crate) ends: DatagramSpec,
    pub(crate) len: usize,
    pub(crate) data: FragVec,
}
