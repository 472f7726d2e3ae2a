//! Binding: addresses and ports of sockets, and port reservations for streams.
//!
//! ```text
//!   PortReservations::reserve --> PortReservation --Stack::listen---> listener   } the reservation
//!                                      |          --Stack::connect--> connection } stays
//!                                      +--PortReservations::release
//! ```

pub(crate) mod ephemeral;
pub(crate) mod table;

use std::collections::BTreeMap;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::net::LinkId;
use crate::shards::{BOUND, PortClaim};
use table::{BindAddress, Sharing};

/// Names a reserved address of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortReservation {
    port: u16,
    serial: u64,
}

/// How an address is bound (`SO_REUSEADDR`, `SO_REUSEPORT`, `IPV6_V6ONLY`, `IP_FREEBIND`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// Shares the address with sockets that have the same setting, while none of them listens;
    /// connections from the port, even in TIME-WAIT, do not count. Of datagram sockets that share
    /// an address so, the last one bound gets the datagrams.
    pub reuse: bool,
    /// Shares the address with sockets that have the same setting, also to listen: a keyed hash of
    /// the two ends chooses the socket for each connection, or each peer's datagrams, while no
    /// socket is added or removed. A closed listener resets the connections it has not accepted.
    pub reuse_port: bool,
    /// `::` stands for addresses of IPv6 only.
    pub v6_only: bool,
    /// The address need not be one of ours.
    pub free: bool,
    /// Receives only what comes by this link (`SO_BINDTODEVICE`); a socket bound to another link
    /// may have the same address. See [`SocketOption::Link`](crate::SocketOption).
    pub link: Option<LinkId>,
    /// Every shard of the host binds the address: a keyed hash of the two ends chooses the shard for each
    /// connection, or each peer's datagrams. Without it, the port is this shard's alone. Bind on all shards before
    /// packets come: those for a shard that does not listen yet are refused.
    pub every_shard: bool,
}

/// Which packets a socket for every port gets: [`Stack::listen_every`](crate::Stack::listen_every),
/// [`Stack::bind_every`](crate::Stack::bind_every).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EveryPort {
    /// The transparent link that they come by.
    pub link: LinkId,
    /// Every shard of the host opens such a socket: a keyed hash chooses the shard, for each connection by its two ends,
    /// for datagrams and echo requests by their sender. Without it, all ports that no shard has bound are this shard's,
    /// and no other shard can connect from them.
    pub every_shard: bool,
}

impl From<LinkId> for EveryPort {
    fn from(link: LinkId) -> Self {
        Self { link, every_shard: false }
    }
}

impl EveryPort {
    /// How the socket uses the ports.
    pub(crate) fn port_claim(self) -> PortClaim {
        if self.every_shard { PortClaim::WithAll } else { BOUND }
    }
}

impl BindOptions {
    /// How a socket that is bound to this address uses its port.
    pub(crate) fn port_claim(self, addr: IpAddr) -> PortClaim {
        match self.every_shard {
            true => PortClaim::WithAll,
            false => PortClaim::Alone { every_address: addr.is_unspecified() || self.free },
        }
    }

    pub(crate) fn bind_address(self, addr: IpAddr) -> BindAddress {
        BindAddress { addr, v6_only: self.v6_only, link: self.link }
    }

    pub(crate) fn sharing(self) -> Sharing {
        Sharing { address: self.reuse, port: self.reuse_port }
    }
}

#[derive(Default)]
pub(crate) struct Reservations {
    /// A tree: peers do not choose what is in it, and a hash would need a random key.
    ports: BTreeMap<u16, SmallVec<[Reserved; 1]>>,
    serial: u64,
}

pub(crate) struct Reserved {
    serial: u64,
    pub(crate) at: BindAddress,
    pub(crate) sharing: Sharing,
    /// A connection's: others may connect from the port to elsewhere.
    pub(crate) claim: PortClaim,
}

impl Reservations {
    /// Whether a reservation other than `own` excludes a socket at this address and port.
    pub(crate) fn conflicts(
        &self,
        at: BindAddress,
        port: u16,
        sharing: Sharing,
        own: Option<PortReservation>,
    ) -> bool {
        let own = own.map(|own| own.serial);
        self.at(port).any(|other| {
            Some(other.serial) != own && !sharing.agrees(other.sharing) && other.at.overlaps(at)
        })
    }

    /// The reservation, unless it was released.
    pub(crate) fn get(&self, id: PortReservation) -> Option<&Reserved> {
        self.at(id.port).find(|reserved| reserved.serial == id.serial)
    }

    /// Whether the port is reserved by any socket that is not connected.
    pub(crate) fn uses(&self, port: u16) -> bool {
        self.at(port).any(|reserved| !reserved.claim.is_connection())
    }

    fn at(&self, port: u16) -> impl Iterator<Item = &Reserved> {
        self.ports.get(&port).into_iter().flatten()
    }

    pub(crate) fn insert(
        &mut self,
        at: BindAddress,
        port: u16,
        sharing: Sharing,
        claim: PortClaim,
    ) -> PortReservation {
        self.serial += 1;
        let serial = self.serial;
        let reserved = Reserved { serial, at, sharing, claim };
        self.ports.entry(port).or_default().push(reserved);
        PortReservation { port, serial }
    }

    /// Binds the owner of a reservation to a link, or to none.
    pub(crate) fn set_link(&mut self, id: PortReservation, link: Option<LinkId>) {
        let all = self.ports.get_mut(&id.port).into_iter().flatten();
        all.filter(|reserved| reserved.serial == id.serial).for_each(|r| r.at.link = link);
    }

    /// Removes a reservation; returns its port and claim, if there was one.
    pub(crate) fn remove(&mut self, id: PortReservation) -> Option<(u16, PortClaim)> {
        let all = self.ports.get_mut(&id.port)?;
        let at = all.iter().position(|reserved| reserved.serial == id.serial)?;
        let removed = all.remove(at);
        if all.is_empty() {
            self.ports.remove(&id.port);
        }
        Some((id.port, removed.claim))
    }

    /// Removes all reservations; returns their ports and claims.
    pub(crate) fn clear(&mut self) -> Vec<(u16, PortClaim)> {
        let all = std::mem::take(&mut self.ports);
        all.iter().flat_map(|(port, all)| all.iter().map(|r| (*port, r.claim))).collect()
    }
}
