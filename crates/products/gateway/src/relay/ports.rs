//! [`Ports`]: published ports and forwarded ones, which the kernel accepts clients of.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use slab::Slab;

use crate::limits::LISTENERS_SHARED;
use crate::publish::{Publish, PublishedPort, Unlink};
use crate::request::Protocol;
use crate::splice::{Follow, Forward, Listens, OwnPort};

/// Published and forwarded ports of a guest. Each open socket is in one of three places, by which it is closed.
#[derive(Default)]
pub(super) struct Ports {
    /// The sockets of clients of TCP ports.
    pub(super) listeners: Slab<Published>,
    /// The slots of listeners in whose backlogs clients may wait. Each has its turn; entries may be stale.
    pub(super) waiting: VecDeque<usize>,
    /// What is published, in the order in which it was, with its sockets.
    pub(super) sets: Vec<(Publish, Vec<Socket>)>,
    /// What is forwarded.
    pub(super) forwarded: Vec<(Forward, Vec<Socket>)>,
    /// Programs' ports that are followed, with the sockets on the other side.
    pub(super) followed: BTreeMap<(Listens, Protocol, u16), (Follow, Vec<Socket>)>,
    /// What is followed.
    pub(super) follows: Vec<Follow>,
    /// Addresses and ports of the guest whose datagrams are published, of a guest of several cores.
    pub(super) datagrams: HashSet<SocketAddr>,
    /// The last number of a socket for datagrams.
    pub(super) last_number: u64,
}

/// An open socket.
pub(super) struct Socket {
    pub(super) protocol: Protocol,
    pub(super) local: Option<SocketAddr>,
    /// Where it leads to.
    pub(super) to: SocketAddr,
    pub(super) place: Place,
    /// Its note as one of this gateway's own.
    pub(super) _own: Option<OwnPort>,
}

/// Who serves a socket.
pub(super) enum Place {
    /// This slot, with its serial.
    Listener(usize, u32),
    /// The splicer by this number, for clients over a loopback; the guest's address and port, for others.
    Datagrams { spliced: Option<u64>, guest: Option<SocketAddr> },
}

pub(super) struct Published {
    pub(super) listener: OwnedFd,
    pub(super) serial: u32,
    /// The address and port that connections go to: the guest's, or of this machine's loopback.
    pub(super) to: SocketAddr,
    pub(super) leads: Leads,
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

impl Socket {
    fn port(&self) -> Option<PublishedPort> {
        Some(PublishedPort::new(self.protocol, self.local?, self.to))
    }
}

impl Ports {
    /// Number of listeners' descriptors that a guest's share has less for: half of the share at most, so that there
    /// is room for connections.
    pub(super) fn descriptors(&self, share: usize) -> usize {
        self.listeners.len().min(LISTENERS_SHARED).min(share / 2)
    }

    /// The open ports of sets that name them.
    pub(super) fn named(&self) -> impl Iterator<Item = PublishedPort> {
        let sets = self.sets.iter().filter(|(what, _)| what.is_named());
        sets.flat_map(|(_, sockets)| sockets).filter_map(Socket::port)
    }

    /// Takes these ports out of the sets that name them.
    pub(super) fn take_named(&mut self, ports: &HashSet<PublishedPort>) -> Vec<Socket> {
        let mut taken = Vec::new();
        for (_, sockets) in self.sets.iter_mut().filter(|(what, _)| what.is_named()) {
            let is_one = |socket: &mut Socket| socket.port().is_some_and(|p| ports.contains(&p));
            taken.extend(sockets.extract_if(.., is_one));
        }
        if !taken.is_empty() {
            self.sets.retain(|(what, sockets)| !what.is_named() || !sockets.is_empty());
        }
        taken
    }
}
