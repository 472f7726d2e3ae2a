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
use std::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

use super::ids::TcpId;
use super::listen::Listeners;
use super::tuple::canonical;
use crate::error::Error;
use crate::net::LinkId;
use crate::stack::Stack;
use table::{Sharing, Wanted};

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
}

impl BindOptions {
    pub(super) fn wanted(self, addr: IpAddr) -> Wanted {
        Wanted { addr, v6_only: self.v6_only, link: self.link }
    }

    pub(super) fn sharing(self) -> Sharing {
        Sharing { address: self.reuse, port: self.reuse_port }
    }
}

#[derive(Default)]
pub(crate) struct Reservations {
    /// A tree: peers do not choose what is in it, and a hash would need a random key.
    ports: BTreeMap<u16, SmallVec<[Reserved; 1]>>,
    serial: u64,
}

pub(super) struct Reserved {
    serial: u64,
    pub(super) at: Wanted,
    pub(super) sharing: Sharing,
    /// By a connection: others may connect from the port to elsewhere.
    connected: bool,
}

impl Reservations {
    /// Whether a reservation other than `own` excludes a socket at this address and port.
    pub(super) fn conflicts(
        &self,
        at: Wanted,
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
    pub(super) fn get(&self, id: PortReservation) -> Option<&Reserved> {
        self.at(id.port).find(|reserved| reserved.serial == id.serial)
    }

    /// Whether the port is reserved by any socket that is not connected.
    pub(super) fn uses(&self, port: u16) -> bool {
        self.at(port).any(|reserved| !reserved.connected)
    }

    fn at(&self, port: u16) -> impl Iterator<Item = &Reserved> {
        self.ports.get(&port).into_iter().flatten()
    }

    fn insert(
        &mut self,
        at: Wanted,
        port: u16,
        sharing: Sharing,
        connected: bool,
    ) -> PortReservation {
        self.serial += 1;
        let serial = self.serial;
        self.ports.entry(port).or_default().push(Reserved { serial, at, sharing, connected });
        PortReservation { port, serial }
    }
}

/// The port reservations of a stack: [`Stack::reservations`](crate::Stack::reservations).
#[derive(Debug)]
pub struct PortReservations<'a>(pub(crate) &'a mut Stack);

impl PortReservations<'_> {
    /// Reserves `local` for a stream that will listen there or connect from there; port 0 stands
    /// for a free one. Returns the reservation and its address.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable` if the address is not ours or no port is free.
    pub fn reserve(
        &mut self,
        local: SocketAddr,
        options: BindOptions,
    ) -> Result<(PortReservation, SocketAddr), Error> {
        let local = canonical(local);
        let ip = local.ip();
        let Stack { cx, tcp, listeners: Listeners { binds, reservations, .. }, .. } = &mut *self.0;
        if !options.free && !ip.is_unspecified() && !cx.net.is_local(ip) {
            return Err(Error::AddressNotAvailable);
        }
        let at = options.wanted(ip);
        let sharing = options.sharing();
        let port = match local.port() {
            0 => cx
                .ports
                .choose(ip, None, |port| !binds.uses(port) && !reservations.uses(port))
                .ok_or(Error::AddressInUse)?,
            port => {
                let taken = binds.conflicts(at, port, sharing.listening())
                    || reservations.conflicts(at, port, sharing, None)
                    || (sharing == Sharing::default() && tcp.demux.uses(at, port));
                if taken {
                    return Err(Error::AddressInUse);
                }
                port
            }
        };
        Ok((reservations.insert(at, port, sharing, false), SocketAddr::new(ip, port)))
    }

    /// Reserves the local address of a connection: only sockets that share it can bind it then, and
    /// only if these options share it too.
    ///
    /// # Errors
    /// As [`Stack::tcp`].
    pub fn reserve_connected(
        &mut self,
        id: TcpId,
        options: BindOptions,
    ) -> Result<PortReservation, Error> {
        let local = self.0.tcp(id)?.socket.tuple.local_addr();
        let at = Wanted { link: options.link, ..Wanted::of(local.ip()) };
        let reservations = &mut self.0.listeners.reservations;
        Ok(reservations.insert(at, local.port(), options.sharing(), true))
    }

    /// Binds the reservation's owner to a link, or to none, before it listens.
    ///
    /// # Errors
    /// `InvalidInput` for a link that was removed.
    pub fn bind_to_link(&mut self, id: PortReservation, link: Option<LinkId>) -> Result<(), Error> {
        self.0.cx.check_link(link)?;
        let all = self.0.listeners.reservations.ports.get_mut(&id.port).into_iter().flatten();
        all.filter(|reserved| reserved.serial == id.serial).for_each(|r| r.at.link = link);
        Ok(())
    }

    /// Ends a reservation.
    pub fn release(&mut self, id: PortReservation) {
        let ports = &mut self.0.listeners.reservations.ports;
        let Some(all) = ports.get_mut(&id.port) else { return };
        all.retain(|reserved| reserved.serial != id.serial);
        if all.is_empty() {
            ports.remove(&id.port);
        }
    }

    /// Ends all reservations.
    pub fn release_all(&mut self) {
        self.0.listeners.reservations.ports.clear();
    }
}
