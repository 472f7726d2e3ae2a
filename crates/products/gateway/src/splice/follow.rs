//! [`Follower`]: a thread that looks once a second which ports programs listen on, in the guest's namespace and out
//! here, and has the relay open and close ports accordingly.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use super::Inbox;
use super::forward::Except;
use crate::limits::{PORTS_FOLLOWED, PORTS_LOOK};
use crate::netns::{ListensAt, NsSockets};
use crate::publish::{OpenPort, Publish};
use crate::request::Protocol;

/// Ports that are opened for as long as programs listen on them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Follow {
    pub(crate) side: Listens,
    pub(crate) protocol: Protocol,
    pub(crate) except: Except,
}

/// Where the programs listen whose ports are opened on the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Listens {
    /// In the guest's namespace: ports of this machine are published.
    Inside,
    /// Out here: ports of the namespace's loopback lead to this machine's.
    Outside,
}

impl Listens {
    /// The side on which the port is opened.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Inside => Self::Outside,
            Self::Outside => Self::Inside,
        }
    }
}

/// A change for the relay.
#[derive(Debug)]
pub(crate) enum PortChange {
    /// A program in the namespace listens.
    Publish(u16, Vec<OpenPort>),
    /// A program out here listens; the listeners in the namespace.
    Forward(Protocol, u16, Vec<(OwnedFd, SocketAddr)>),
    /// It listens no more.
    Close(Listens, Protocol, u16),
}

/// The ports that this gateway itself has opened, which are no programs'.
#[derive(Clone, Default)]
pub(crate) struct OwnPorts(Arc<Mutex<BTreeSet<(Listens, Protocol, u16)>>>);

impl OwnPorts {
    pub(crate) fn add(&self, side: Listens, protocol: Protocol, port: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert((side, protocol, port));
    }

    pub(crate) fn remove(&self, side: Listens, protocol: Protocol, port: u16) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&(side, protocol, port));
    }

    fn all(&self) -> BTreeSet<(Listens, Protocol, u16)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The thread; it ends with this handle.
pub(crate) struct Follower(Sender<Change>);

enum Change {
    Begin(Follow),
    End(Follow),
}

impl Follower {
    /// Starts the thread. `loopback`: ports of the namespace's own loopback can be reached by published ports.
    ///
    /// # Errors
    /// No thread is left.
    pub(crate) fn start(
        sockets: NsSockets,
        loopback: bool,
        own: OwnPorts,
        inbox: Inbox,
    ) -> io::Result<Self> {
        let (sender, asks) = channel();
        let looks = Looks { sockets, loopback, own, inbox, follows: Vec::new() };
        let thread = std::thread::Builder::new().name("pagewire-ports".into());
        thread.spawn(move || looks.run(&asks))?;
        Ok(Self(sender))
    }

    /// Follows further ports.
    pub(crate) fn follow(&self, what: Follow) {
        // The thread lasts as long as this.
        let _ = self.0.send(Change::Begin(what));
    }

    /// Closes the ports that are open because of this, and follows them no more.
    pub(crate) fn leave(&self, what: Follow) {
        let _ = self.0.send(Change::End(what));
    }
}

struct Looks {
    sockets: NsSockets,
    loopback: bool,
    own: OwnPorts,
    inbox: Inbox,
    /// With the ports that are open.
    follows: Vec<(Follow, BTreeSet<u16>)>,
}

impl Looks {
    fn run(mut self, asks: &Receiver<Change>) {
        loop {
            match asks.recv_timeout(PORTS_LOOK) {
                Ok(Change::Begin(follow)) => self.follows.push((follow, BTreeSet::new())),
                Ok(Change::End(follow)) => self.leave(&follow),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let mut follows = std::mem::take(&mut self.follows);
            for (follow, open) in &mut follows {
                self.look(follow, open);
            }
            self.follows = follows;
        }
    }

    fn leave(&mut self, follow: &Follow) {
        let Some(at) = self.follows.iter().position(|(other, _)| other == follow) else { return };
        let (Follow { side, protocol, .. }, open) = self.follows.swap_remove(at);
        for port in open {
            self.inbox.put(PortChange::Close(side, protocol, port));
        }
    }

    fn look(&self, follow: &Follow, open: &mut BTreeSet<u16>) {
        let Follow { side, protocol, .. } = *follow;
        // Until the next look all stays as it is.
        let Ok(wanted) = self.wanted(follow) else { return };
        let other = side.other();
        let gone: Vec<u16> = open.difference(&wanted).copied().collect();
        for port in gone {
            open.remove(&port);
            // It stays our own until the relay has closed it.
            self.inbox.put(PortChange::Close(side, protocol, port));
        }
        for port in wanted {
            if open.len() >= PORTS_FOLLOWED {
                return;
            }
            if open.contains(&port) {
                continue;
            }
            // A port that another program has is tried again at the next look.
            if let Ok(change) = self.open(side, protocol, port) {
                self.own.add(other, protocol, port);
                open.insert(port);
                self.inbox.put(change);
            }
        }
    }

    /// The ports on which programs listen, and that can be reached from the other side.
    fn wanted(&self, follow: &Follow) -> io::Result<BTreeSet<u16>> {
        let before = self.own.all();
        let (listening, reached): (_, fn(ListensAt, bool) -> bool) = match follow.side {
            Listens::Inside => (self.sockets.listening(follow.protocol)?, |at, loopback| {
                loopback || at != ListensAt::Loopback
            }),
            Listens::Outside => {
                let listening = self.sockets.listening_outside(follow.protocol)?;
                (listening, |at, _| at != ListensAt::Other)
            }
        };
        // One that was opened, or closed, while the table was read is our own, too.
        let after = self.own.all();
        let wanted = listening.into_iter().filter(|found| {
            let this = (follow.side, follow.protocol, found.port);
            reached(found.at, self.loopback)
                && !follow.except.has(found.port)
                && !before.contains(&this)
                && !after.contains(&this)
        });
        Ok(wanted.map(|found| found.port).collect())
    }

    fn open(&self, side: Listens, protocol: Protocol, port: u16) -> io::Result<PortChange> {
        match side {
            Listens::Inside => Ok(PortChange::Publish(port, Publish::one(port, protocol).open()?)),
            Listens::Outside => {
                let listeners = listen_inside(&self.sockets, protocol, port, port)?;
                Ok(PortChange::Forward(protocol, port, listeners))
            }
        }
    }
}

/// Listens on the namespace's loopback, with IPv6 where there is any; each with the address of this machine's
/// loopback that it leads to.
///
/// # Errors
/// The port is taken; the helper in the namespace is gone.
pub(crate) fn listen_inside(
    sockets: &NsSockets,
    protocol: Protocol,
    port: u16,
    to: u16,
) -> io::Result<Vec<(OwnedFd, SocketAddr)>> {
    let (v4, v6) = (Ipv4Addr::LOCALHOST, Ipv6Addr::LOCALHOST);
    let first = sockets.listen(protocol, (v4, port).into())?;
    let second = match sockets.listen(protocol, (v6, port).into()) {
        Ok(second) => Some((second, SocketAddr::from((v6, to)))),
        // A program has taken the other half of the port.
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(error),
        Err(_) => None,
    };
    Ok([(first, (v4, to).into())].into_iter().chain(second).collect())
}
