//! Ports that are held without anybody listening: what `bind` does for a stream.
//!
//! ```text
//!   tcp_bind --> Hold --tcp_listen_held--> listener, the hold stays
//!                  |  --tcp_connect_with--> connection, the hold stays
//!                  +--tcp_release when the owner is done
//! ```

use std::net::{IpAddr, SocketAddr};

use smallvec::SmallVec;

use super::demux::{Sharing, Wanted};
use super::handles::TcpId;
use super::tcp::canonical;
use crate::error::Error;
use crate::net::LinkId;
use crate::stack::Stack;

/// Names a held address of one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    port: u16,
    serial: u64,
}

/// How an address is bound (`SO_REUSEADDR`, `SO_REUSEPORT`, `IPV6_V6ONLY`, `IP_FREEBIND`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// The port may be held by others who say so too while none of them listens, and connections
    /// that have it, even in TIME-WAIT, do not count. Of datagram sockets that share an address so,
    /// the last one bound gets what comes.
    pub reuse: bool,
    /// The address may be had by others who say so too, to listen as well: each connection, and each
    /// peer's datagrams, go to one of them, chosen by a keyed hash of the two ends, the same one while
    /// nobody comes or goes. The connections of one that is closed and has not accepted them are
    /// reset.
    pub reuse_port: bool,
    /// `::` stands for addresses of IPv6 only.
    pub v6_only: bool,
    /// The address need not be one of ours.
    pub free: bool,
    /// Only what comes by this link is meant, and who is bound to another may have the same address
    /// (`SO_BINDTODEVICE`). See [`Stack::bind_to_link`].
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

/// All holds, by port.
#[derive(Default)]
pub(crate) struct Holds {
    /// A tree: peers do not choose what is in it, and a hash would want a random key.
    ports: std::collections::BTreeMap<u16, SmallVec<[Held; 1]>>,
    serial: u64,
}

struct Held {
    serial: u64,
    at: Wanted,
    sharing: Sharing,
    /// By a connection: others may connect from the port to elsewhere.
    connected: bool,
}

impl Holds {
    /// Whether somebody other than `own` holds the port so that it cannot be had.
    pub(crate) fn conflicts(
        &self,
        at: Wanted,
        port: u16,
        sharing: Sharing,
        own: Option<Hold>,
    ) -> bool {
        let own = own.map(|own| own.serial);
        self.ports.get(&port).is_some_and(|held| {
            held.iter().any(|other| {
                Some(other.serial) != own && !sharing.agrees(other.sharing) && other.at.overlaps(at)
            })
        })
    }

    /// With whom the owner of a hold shares.
    pub(super) fn sharing(&self, hold: Hold) -> Sharing {
        let held = self.ports.get(&hold.port).into_iter().flatten();
        held.filter(|h| h.serial == hold.serial).map(|h| h.sharing).next().unwrap_or_default()
    }

    /// The link that the owner of a hold is bound to.
    pub(super) fn link(&self, hold: Hold) -> Option<LinkId> {
        let held = self.ports.get(&hold.port).into_iter().flatten();
        held.filter(|h| h.serial == hold.serial).find_map(|h| h.at.link)
    }

    /// The owner of a hold is bound to this link from now on.
    pub(super) fn set_link(&mut self, hold: Hold, link: Option<LinkId>) {
        let held = self.ports.get_mut(&hold.port).into_iter().flatten();
        held.filter(|h| h.serial == hold.serial).for_each(|h| h.at.link = link);
    }

    /// Whether anybody holds the port who is not connected.
    pub(crate) fn uses(&self, port: u16) -> bool {
        self.ports.get(&port).is_some_and(|held| held.iter().any(|h| !h.connected))
    }

    fn insert(&mut self, at: Wanted, port: u16, sharing: Sharing, connected: bool) -> Hold {
        self.serial += 1;
        let serial = self.serial;
        self.ports.entry(port).or_default().push(Held { serial, at, sharing, connected });
        Hold { port, serial }
    }

    fn remove(&mut self, hold: Hold) {
        let Some(held) = self.ports.get_mut(&hold.port) else { return };
        held.retain(|other| other.serial != hold.serial);
        if held.is_empty() {
            self.ports.remove(&hold.port);
        }
    }
}

impl Stack {
    /// Holds `local` for a stream that will listen there or connect from there; its port may be 0
    /// for a free one. Returns the hold and the address.
    ///
    /// # Errors
    /// `AddressInUse`, `AddressNotAvailable` if the address is not ours or no port is free.
    pub fn hold(
        &mut self,
        local: SocketAddr,
        options: BindOptions,
    ) -> Result<(Hold, SocketAddr), Error> {
        let local = canonical(local);
        let ip = local.ip();
        if !options.free && !ip.is_unspecified() && !self.core.net.is_local(ip) {
            return Err(Error::AddressNotAvailable);
        }
        let at = options.wanted(ip);
        let sockets = &mut self.core.sockets;
        let (binds, holds) = (&sockets.tcp_binds, &sockets.holds);
        let sharing = options.sharing();
        let port = match local.port() {
            0 => sockets
                .ports
                .choose(ip, None, |port| !binds.uses(port) && !holds.uses(port))
                .ok_or(Error::AddressInUse)?,
            port => {
                let taken = binds.conflicts(at, port, sharing.listening())
                    || holds.conflicts(at, port, sharing, None)
                    || (sharing == Sharing::default() && sockets.demux.uses(at, port));
                if taken {
                    return Err(Error::AddressInUse);
                }
                port
            }
        };
        let hold = self.core.sockets.holds.insert(at, port, sharing, false);
        Ok((hold, SocketAddr::new(ip, port)))
    }

    /// The owner is done with the address.
    pub fn release(&mut self, hold: Hold) {
        self.core.sockets.holds.remove(hold);
    }

    /// Holds the local address of a connection, so that only those can bind it who share it, and only
    /// if this owner does too.
    pub fn hold_connection(&mut self, id: TcpId, options: BindOptions) -> Result<Hold, Error> {
        let local = self.tcp(id)?.socket.tuple.local_addr();
        let at = Wanted { link: options.link, ..Wanted::of(local.ip()) };
        Ok(self.core.sockets.holds.insert(at, local.port(), options.sharing(), true))
    }
}

impl Wanted {
    pub(crate) fn of(addr: IpAddr) -> Self {
        Self { addr, v6_only: false, link: None }
    }
}
