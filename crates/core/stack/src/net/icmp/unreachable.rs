//! Types for an application that carries packets onwards itself (a gateway): [`Flow`] names a packet that
//! could not be delivered, and [`Unreachable`] is the reason. `errors.rs` sends the ICMP error.

use std::net::{IpAddr, SocketAddr};

use crate::net::wire::icmp::{v4, v6};
use crate::net::wire::protocol;

/// A flow from a host behind a link to anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The number of the transport: 6 for TCP, 17 for UDP, 1 or 58 for echo requests.
    pub protocol: u8,
    /// The sender; of echo requests the port is the identifier.
    pub from: SocketAddr,
    /// The destination; echo requests have port 0.
    pub to: SocketAddr,
    /// The sequence number: of a TCP segment, or of an echo request; 0 for others.
    pub seq: u32,
}

impl Flow {
    /// Number of bytes of the flow's transport header that an error quotes.
    pub(in crate::net) const QUOTED: usize = 8;

    /// A TCP connection, or the attempt at one, and the sequence number of a segment.
    pub fn tcp(from: SocketAddr, to: SocketAddr, seq: u32) -> Self {
        Self { protocol: protocol::TCP, from, to, seq }
    }

    /// A flow of datagrams.
    pub fn udp(from: SocketAddr, to: SocketAddr) -> Self {
        Self { protocol: protocol::UDP, from, to, seq: 0 }
    }

    /// An echo request; the port of `from` is its identifier.
    pub fn echo(from: SocketAddr, to: IpAddr, seq: u16) -> Self {
        let protocol = if to.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
        Self { protocol, from, to: SocketAddr::new(to, 0), seq: seq.into() }
    }

    /// Writes the first eight bytes of the transport header of the flow's packet. An error must quote no
    /// more (RFC 792).
    pub(in crate::net) fn emit(&self) -> [u8; Self::QUOTED] {
        let ([s0, s1], [d0, d1]) = (self.from.port().to_be_bytes(), self.to.port().to_be_bytes());
        let [q0, q1, q2, q3] = self.seq.to_be_bytes();
        match self.protocol {
            protocol::TCP => [s0, s1, d0, d1, q0, q1, q2, q3],
            protocol::ICMP => [v4::ECHO_REQUEST, 0, 0, 0, s0, s1, q2, q3],
            protocol::ICMPV6 => [v6::ECHO_REQUEST, 0, 0, 0, s0, s1, q2, q3],
            _ => [s0, s1, d0, d1, 0, 8, 0, 0],
        }
    }

    /// Length of the flow's transport header, in bytes.
    pub(in crate::net) fn transport_len(&self) -> usize {
        if self.protocol == protocol::TCP { 20 } else { 8 }
    }
}

/// Why a packet could not be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unreachable {
    /// No route to the network: RFC 792 code 0, RFC 4443 code 0.
    Net,
    /// The host does not answer its neighbours: code 1, and in IPv6 code 3.
    Host,
    /// The host does not speak the protocol: code 2, and in IPv6 a parameter problem.
    Protocol,
    /// No socket has the port: code 3, and in IPv6 code 4.
    Port,
    /// Administratively prohibited: RFC 1812 code 13, and in IPv6 code 1.
    Prohibited,
    /// Too long for a link on the path (RFC 1191, RFC 8201).
    TooBig {
        /// The longest IP packet that the link takes, in bytes.
        mtu: u32,
    },
    /// The hop limit ran out.
    TimeExceeded,
}
