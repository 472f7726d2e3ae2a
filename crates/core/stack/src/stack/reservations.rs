//! Ports that are reserved for streams before they listen or connect.

use std::net::SocketAddr;

use super::Stack;
use crate::net::LinkId;
use crate::shards::PortKind;
use crate::sockets::bind::table::BindAddress;
use crate::{BindOptions, Error, PortReservation, TcpId};

/// The port reservations of a stack: [`Stack::reservations`](crate::Stack::reservations).
#[derive(Debug)]
pub struct PortReservations<'a>(&'a mut Stack);

impl<'a> PortReservations<'a> {
    pub(super) fn new(stack: &'a mut Stack) -> Self {
        Self(stack)
    }
}

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
        let Stack { cx, tcp, listeners, .. } = &mut *self.0;
        listeners.reserve(tcp, cx, local, options)
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
        let local = self.0.local_addr(id)?;
        let at = BindAddress { link: options.link, ..BindAddress::of(local.ip()) };
        let Stack { cx, listeners, .. } = &mut *self.0;
        let claim = cx.net.connection_claim(local.ip());
        if !cx.net.claim_port(PortKind::Tcp, local.port(), claim) {
            return Err(Error::AddressInUse);
        }
        Ok(listeners.reservations.insert(at, local.port(), options.sharing(), claim))
    }

    /// Binds the reservation's owner to a link, or to none, before it listens.
    ///
    /// # Errors
    /// `InvalidInput` for a link that was removed.
    pub fn bind_to_link(&mut self, id: PortReservation, link: Option<LinkId>) -> Result<(), Error> {
        self.0.cx.check_link(link)?;
        self.0.listeners.reservations.set_link(id, link);
        Ok(())
    }

    /// Ends a reservation.
    pub fn release(&mut self, id: PortReservation) {
        let Stack { cx, listeners, .. } = &mut *self.0;
        if let Some((port, claim)) = listeners.reservations.remove(id) {
            cx.net.release_port(PortKind::Tcp, port, claim);
        }
    }

    /// Ends all reservations.
    pub fn release_all(&mut self) {
        let Stack { cx, listeners, .. } = &mut *self.0;
        for (port, claim) in listeners.reservations.clear() {
            cx.net.release_port(PortKind::Tcp, port, claim);
        }
    }
}
