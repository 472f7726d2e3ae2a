//! [`Siblings`]: the relays of a guest's other cores, and what they send each other.
//!
//! The first relay has the published ports, and accepts their clients. A client that keeps its address is connected by
//! the relay on whose core the guest's answers come in, and a socket for datagrams is served by the relay that has the
//! guest's datagrams of that address and port.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::context::FlowRecord;

/// A client of a published port that rules permit.
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    pub(super) client: SocketAddr,
    /// The guest's address and port.
    pub(super) to: SocketAddr,
    pub(super) record: FlowRecord,
}

/// What one relay sends to another.
pub(super) enum Parcel {
    Client(Box<Client>),
    /// A socket for datagrams to this address and port of the guest.
    Publish(OwnedFd, SocketAddr),
    /// The end of that.
    Unpublish(SocketAddr),
}

/// The parcels for one relay; `None` once that has ended.
struct Mailbox {
    parcels: Mutex<Option<Vec<Parcel>>>,
    wake: OwnedFd,
}

/// One relay's access to the mailboxes of all.
pub(crate) struct Siblings {
    mailboxes: Arc<[Mailbox]>,
    index: usize,
}

impl Siblings {
    /// The access of each relay; `None` for one that is alone.
    ///
    /// # Errors
    /// No descriptor is left.
    pub(crate) fn of_shards(count: usize) -> io::Result<Vec<Option<Self>>> {
        if count <= 1 {
            return Ok(vec![None]);
        }
        let mailbox = |_| {
            let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok::<_, io::Error>(Mailbox { parcels: Mutex::new(Some(Vec::new())), wake })
        };
        let mailboxes: Arc<[Mailbox]> = (0..count).map(mailbox).collect::<io::Result<_>>()?;
        let of = |index| Some(Self { mailboxes: Arc::clone(&mailboxes), index });
        Ok((0..count).map(of).collect())
    }

    /// The number of this relay's shard.
    pub(super) fn index(&self) -> usize {
        self.index
    }

    /// The descriptor, which is readable while there are parcels for this relay.
    pub(crate) fn wait_fd(&self) -> Option<&OwnedFd> {
        self.mailboxes.get(self.index).map(|mailbox| &mailbox.wake)
    }

    /// Sends a parcel to the relay of a shard, which may be this one.
    ///
    /// # Errors
    /// The parcel, if that relay has ended.
    pub(super) fn send(&self, to: usize, parcel: Parcel) -> Result<(), Parcel> {
        let Some(mailbox) = self.mailboxes.get(to) else { return Err(parcel) };
        match &mut *mailbox.parcels.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(parcels) => parcels.push(parcel),
            None => return Err(parcel),
        }
        let _ = rustix::io::write(&mailbox.wake, &1_u64.to_ne_bytes());
        Ok(())
    }

    /// Takes the parcels for this relay, in the order in which they were sent.
    pub(super) fn take(&self) -> Vec<Parcel> {
        let Some(mailbox) = self.mailboxes.get(self.index) else { return Vec::new() };
        let _ = rustix::io::read(&mailbox.wake, &mut [0; 8]);
        let mut parcels = mailbox.parcels.lock().unwrap_or_else(PoisonError::into_inner);
        parcels.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Ends the mailbox of this relay. Returns what is left.
    pub(super) fn close(&self) -> Vec<Parcel> {
        let Some(mailbox) = self.mailboxes.get(self.index) else { return Vec::new() };
        let mut parcels = mailbox.parcels.lock().unwrap_or_else(PoisonError::into_inner);
        parcels.take().unwrap_or_default()
    }
}
