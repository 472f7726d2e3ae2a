//! Settings of a socket's packets: marks in their IP headers, and fragmentation.

use crate::net::TooLong;

/// The bits of congestion notification in a traffic class (RFC 3168 section 5).
pub(super) const ECN: u8 = 0b11;

/// Marks in the IP headers of a socket's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMarks {
    /// Type of service (RFC 791) or traffic class (RFC 8200). TCP sets the two lowest bits itself
    /// (congestion notification, RFC 3168).
    pub traffic_class: u8,
    /// Time to live or hop limit; `None`: the stack's.
    pub hop_limit: Option<u8>,
}

/// A socket's policy for the MTU of its paths (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
///
/// | | routers may fragment (IPv4) | a too long datagram is | the bound is | reports |
/// |---|---|---|---|---|
/// | `Dont` | yes | fragmented | the path's MTU | set the path's MTU, no error |
/// | `Want` | no | fragmented | the path's MTU | heeded |
/// | `Do` | no | refused | the path's MTU | heeded |
/// | `Probe` | no | refused | the link's MTU | heeded |
/// | `Interface` | yes | refused | the link's MTU | ignored |
/// | `Omit` | yes | fragmented | the link's MTU | ignored |
///
/// IPv4 routers may fragment fragments again. A stream's segments fit the path as far as reports
/// are heeded; with `Dont` those are heeded over IPv6, whose routers do not fragment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MtuDiscover {
    /// Routers may fragment packets.
    Dont,
    /// Routers may not; heeds reports.
    #[default]
    Want,
    /// As [`Want`](Self::Want), but refuses datagrams longer than the path's MTU.
    Do,
    /// As [`Do`](Self::Do), for probes: only the link's MTU is the bound.
    Probe,
    /// Ignores reports, and refuses datagrams longer than the link's MTU.
    Interface,
    /// As [`Interface`](Self::Interface), but fragments them.
    Omit,
}

impl MtuDiscover {
    /// Whether routers may not fragment a packet that leaves whole.
    ///
    /// > RFC 1191 section 3: the basic idea is that a source host initially assumes that the PMTU of
    /// > a path is the (known) MTU of its first hop, and sends all datagrams on that path with the DF
    /// > bit set.
    pub(super) const fn dont_fragment(self) -> bool {
        matches!(self, Self::Want | Self::Do | Self::Probe)
    }

    pub(super) const fn ignores_reports(self) -> bool {
        matches!(self, Self::Interface | Self::Omit)
    }

    /// How to treat a datagram that is too long.
    pub(super) const fn too_long(self) -> TooLong {
        match self {
            Self::Dont | Self::Want => TooLong::CutToPath,
            Self::Do => TooLong::RefusedByPath,
            Self::Probe | Self::Interface => TooLong::RefusedByLink,
            Self::Omit => TooLong::CutToLink,
        }
    }
}
