//! Which destinations are on the gateway's own machine: its kernel knows.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use pagewire_mem::Instant;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, connect, getsockname, socket_with,
};

use crate::limits::{OURS_DESTINATIONS, OURS_TIME};

/// Asks the kernel whether addresses are its own, and remembers the answers for a second.
#[derive(Debug, Default)]
pub struct Whereabouts {
    known: HashMap<IpAddr, (bool, Instant)>,
}

impl Whereabouts {
    /// Whether this machine has the address. A datagram to an address of its own has that address
    /// as its source, too: nothing is sent to find out.
    pub fn is_ours(&mut self, now: Instant, address: IpAddr) -> bool {
        if let Some((ours, until)) = self.known.get(&address)
            && *until > now
        {
            return *ours;
        }
        let ours = address.is_loopback() || source_for(address) == Some(address);
        if self.known.len() >= OURS_DESTINATIONS {
            self.known.clear();
        }
        self.known.insert(address, (ours, now + OURS_TIME));
        ours
    }
}

fn source_for(address: IpAddr) -> Option<IpAddr> {
    let (family, any) = match address {
        IpAddr::V4(_) => (AddressFamily::INET, IpAddr::from([0; 4])),
        IpAddr::V6(_) => (AddressFamily::INET6, IpAddr::from([0; 16])),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None).ok()?;
    bind(&socket, &SocketAddr::new(any, 0)).ok()?;
    // Any port: 9 is "discard".
    connect(&socket, &SocketAddr::new(address, 9)).ok()?;
    let source = SocketAddr::try_from(getsockname(&socket).ok()?).ok()?;
    Some(source.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machines_addresses_are_its_own_and_a_strangers_are_not() {
        let mut whereabouts = Whereabouts::default();
        let now = Instant::from_millis(1);
        assert!(whereabouts.is_ours(now, "127.0.0.1".parse().unwrap()));
        assert!(whereabouts.is_ours(now, "::1".parse().unwrap()));
        // RFC 5737: documentation.
        assert!(!whereabouts.is_ours(now, "192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn what_is_remembered_has_a_limit() {
        let mut whereabouts = Whereabouts::default();
        for n in 0..2 * OURS_DESTINATIONS as u32 {
            let address = IpAddr::V4((0x7f00_0000 + n).into());
            whereabouts.is_ours(Instant::from_millis(1), address);
            assert!(whereabouts.known.len() <= OURS_DESTINATIONS);
        }
    }
}
