//! The two ends of a flow, and addresses as sockets see them.

use core::net::{IpAddr, SocketAddr, SocketAddrV6};

use pagewire_tcp::Ports;
use siphasher::sip::SipHasher13;

/// A connection's two ends, ours first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tuple {
    pub(crate) local: IpAddr,
    pub(crate) remote: IpAddr,
    pub(crate) local_port: u16,
    pub(crate) remote_port: u16,
}

impl Tuple {
    pub(crate) fn new(local: SocketAddr, remote: SocketAddr) -> Self {
        let (local_port, remote_port) = (local.port(), remote.port());
        Self { local: local.ip(), remote: remote.ip(), local_port, remote_port }
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.local, self.local_port)
    }

    pub(crate) fn remote_addr(&self) -> SocketAddr {
        SocketAddr::new(self.remote, self.remote_port)
    }

    pub(super) fn ports(&self) -> Ports {
        Ports { local: self.local_port, remote: self.remote_port }
    }

    /// Hashes it under a key that strangers do not know.
    #[inline]
    pub(crate) fn hash(&self, hasher: &SipHasher13) -> u64 {
        let ports = u64::from(self.local_port) << 16 | u64::from(self.remote_port);
        match (self.local, self.remote) {
            (IpAddr::V4(local), IpAddr::V4(remote)) => {
                let addresses = u64::from(local.to_bits()) << 32 | u64::from(remote.to_bits());
                hasher.hash([addresses, ports].map(u64::to_le_bytes).as_flattened())
            }
            (local, remote) => {
                let [a, b] = [local, remote].map(|ip| match ip {
                    IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                    IpAddr::V6(ip) => ip.to_bits(),
                });
                let words = [a as u64, (a >> 64) as u64, b as u64, (b >> 64) as u64, ports];
                hasher.hash(words.map(u64::to_le_bytes).as_flattened())
            }
        }
    }
}

/// An IPv4-mapped IPv6 address becomes the IPv4 address (RFC 4291 section 2.5.5.2).
pub(crate) fn canonical(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

/// The scope of a link-local address; 0: none.
pub(crate) fn scope_of(addr: SocketAddr) -> u32 {
    match addr {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(addr) => addr.scope_id(),
    }
}

pub(crate) fn with_scope(addr: SocketAddr, scope: u32) -> SocketAddr {
    match addr {
        SocketAddr::V6(addr) if scope != 0 => {
            SocketAddrV6::new(*addr.ip(), addr.port(), 0, scope).into()
        }
        addr => addr,
    }
}
