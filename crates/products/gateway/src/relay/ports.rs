//! [`Ports`]: published ports and forwarded ones, which the kernel accepts clients of.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use slab::Slab;

use crate::publish::{Publish, Unlink};
use crate::splice::Listens;

/// Published ports of a guest, in the order in which they were published.
#[derive(Default)]
pub(super) struct Ports {
    /// The sockets of clients of TCP ports.
    pub(super) listeners: Slab<Published>,
    /// What is published, with its sockets.
    pub(super) sets: Vec<(Publish, Vec<Socket>)>,
}

/// A socket of a published port: the slot of a listener, or the guest's address and port for datagrams.
pub(super) enum Socket {
    Listener(usize),
    Datagrams(SocketAddr),
}

pub(super) struct Published {
    pub(super) listener: OwnedFd,
    pub(super) serial: u32,
    /// The address and port that connections go to: the guest's, or of this machine's loopback.
    pub(super) to: SocketAddr,
    pub(super) leads: Leads,
    /// The port of a program, which it is open for, and where that listens.
    pub(super) followed: Option<(Listens, u16)>,
    /// Clients may wait in its backlog.
    pub(super) waits: bool,
    pub(super) _path: Option<Unlink>,
}

/// The direction of a listener's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leads {
    /// To the guest.
    In,
    /// To this machine, from the namespace.
    Out,
}
