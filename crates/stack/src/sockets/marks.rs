//! What a socket says of its packets: marks in their IP headers, and whether they may be cut.

use crate::net::TooLong;

/// What a socket's packets carry in their IP headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMarks {
    /// Type of service (RFC 791) or traffic class (RFC 8200). A stream's two lowest bits are those
    /// of congestion notification (RFC 3168), and not the owner's.
    pub traffic_class: u8,
    /// Time to live or hop limit; `None`: the stack's.
    pub hop_limit: Option<u8>,
}

/// What a socket does about the MTU of its paths (`IP_MTU_DISCOVER`, `IPV6_MTU_DISCOVER`).
///
/// | | routers may cut (IPv4) | a datagram that is too long is | too long is | reports |
/// |---|---|---|---|---|
/// | `Dont` | yes | cut | by the path's MTU | tell the path's MTU, no error |
/// | `Want` | no | cut | by the path's MTU | heeded |
/// | `Do` | no | refused | by the path's MTU | heeded |
/// | `Probe` | no | refused | by the link's MTU | heeded |
/// | `Interface` | yes | refused | by the link's MTU | ignored |
/// | `Omit` | yes | cut | by the link's MTU | ignored |
///
/// What is cut may be cut again by IPv4's routers. A stream's segments are always as long as the path
/// takes, as far as reports are heeded; with `Dont` they are over IPv6, whose routers cut nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum MtuDiscover {
    /// Routers may cut packets.
    Dont,
    /// Routers may not; reports are heeded.
    #[default]
    Want,
    /// As [`Want`](Self::Want), and datagrams that the path does not take whole are refused.
    Do,
    /// As [`Do`](Self::Do), for who sends probes: whatever is known of the path, only the link bounds
    /// what is sent.
    Probe,
    /// Nothing is believed of the path, and datagrams that the link does not take whole are refused.
    Interface,
    /// As [`Interface`](Self::Interface), and they are cut instead.
    Omit,
}

impl MtuDiscover {
    /// Whether routers may not cut what leaves in one piece.
    ///
    /// > RFC 1191 section 3: the basic idea is that a source host initially assumes that the PMTU of
    /// > a path is the (known) MTU of its first hop, and sends all datagrams on that path with the DF
    /// > bit set.
    pub(super) const fn dont_fragment(self) -> bool {
        matches!(self, Self::Want | Self::Do | Self::Probe)
    }

    /// Whether reports about the path are ignored.
    pub(super) const fn ignores_reports(self) -> bool {
        matches!(self, Self::Interface | Self::Omit)
    }

    /// What becomes of a datagram that is too long.
    pub(super) const fn too_long(self) -> TooLong {
        match self {
            Self::Dont | Self::Want => TooLong::CutToPath,
            Self::Do => TooLong::RefusedByPath,
            Self::Probe | Self::Interface => TooLong::RefusedByLink,
            Self::Omit => TooLong::CutToLink,
        }
    }
}
