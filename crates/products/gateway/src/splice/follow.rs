//! [`Follower`]: a thread that looks once a second which ports programs listen on, in the guest's namespace and out
//! here, and has the relay open and close ports accordingly.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Inbox;
use super::forward::Except;
use crate::limits::{PORTS_FOLLOWED, PORTS_LOOK};
use crate::netns::{ListeningPort, ListensAt, NsSockets};
use crate::publish::{OpenPort, Publish, either_version};
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
    /// A program in the namespace listens. What is noted stays so until the relay has noted it, too.
    Publish(Follow, u16, Vec<OpenPort>, Vec<OwnPort>),
    /// A program out here listens; the listeners in the namespace.
    Forward(Follow, u16, Vec<(OwnedFd, SocketAddr)>, Vec<OwnPort>),
    /// It listens no more.
    Close(Listens, Protocol, u16),
}

/// The sockets that this gateway itself has opened, which are no programs'. A socket is noted before it is bound.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnPorts(Arc<Mutex<BTreeMap<OwnKey, usize>>>);

/// The side of a socket, and where it is bound.
type OwnKey = (Listens, Protocol, SocketAddr);

/// The note of a socket, which ends with its drop.
#[derive(Debug)]
pub(crate) struct OwnPort {
    all: OwnPorts,
    key: OwnKey,
}

impl OwnPorts {
    pub(crate) fn note(&self, side: Listens, protocol: Protocol, at: SocketAddr) -> OwnPort {
        let (all, key) = (self.clone(), (side, protocol, at));
        *self.lock().entry(key).or_default() += 1;
        OwnPort { all, key }
    }

    /// Notes what is opened on the other side of a program's port.
    pub(crate) fn note_other(&self, follow: &Follow, port: u16) -> Vec<OwnPort> {
        let other = follow.side.other();
        let addresses = match other {
            Listens::Outside => either_version(port),
            Listens::Inside => loopbacks(port),
        };
        addresses.map(|at| self.note(other, follow.protocol, at)).into()
    }

    /// Whether a connection to this address is one to this gateway.
    pub(crate) fn has(&self, side: Listens, protocol: Protocol, to: SocketAddr) -> bool {
        let any = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, to.port()).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, to.port()).into(),
        };
        let all = self.lock();
        [to, any].iter().any(|at| all.contains_key(&(side, protocol, *at)))
    }

    fn of(&self, side: Listens, protocol: Protocol) -> BTreeSet<ListeningPort> {
        let all = self.lock();
        let those = all.keys().filter(|key| (key.0, key.1) == (side, protocol));
        those.map(|(_, _, at)| ListeningPort::of(*at)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<OwnKey, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clone for OwnPort {
    fn clone(&self) -> Self {
        let (side, protocol, at) = self.key;
        self.all.note(side, protocol, at)
    }
}

impl Drop for OwnPort {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(count) = all.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.key);
            }
        }
    }
}

/// This port of both loopback addresses.
pub(crate) fn loopbacks(port: u16) -> [SocketAddr; 2] {
    [(Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into()]
}

/// The thread; it ends with this handle.
pub(crate) struct Follower(Sender<Change>);

enum Change {
    Begin(Follow),
    End(Follow),
    Failed(Follow, u16),
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

    /// Has a port tried again that the relay could not serve.
    pub(crate) fn failed(&self, what: Follow, port: u16) {
        let _ = self.0.send(Change::Failed(what, port));
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
                Ok(Change::Failed(follow, port)) => {
                    let those = self.follows.iter_mut().filter(|(other, _)| *other == follow);
                    those.for_each(|(_, open)| open.retain(|other| *other != port));
                    // Not before the next look.
                    continue;
                }
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
            if let Ok(change) = self.open(follow, port) {
                open.insert(port);
                self.inbox.put(change);
            }
        }
    }

    /// The ports on which programs listen, and that can be reached from the other side.
    fn wanted(&self, follow: &Follow) -> io::Result<BTreeSet<u16>> {
        let before = self.own.of(follow.side, follow.protocol);
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
        let after = self.own.of(follow.side, follow.protocol);
        let wanted = listening.into_iter().filter(|found| {
            reached(found.at, self.loopback)
                && !follow.except.has(found.port)
                && !before.contains(found)
                && !after.contains(found)
        });
        Ok(wanted.map(|found| found.port).collect())
    }

    fn open(&self, follow: &Follow, port: u16) -> io::Result<PortChange> {
        let (protocol, own) = (follow.protocol, self.own.note_other(follow, port));
        match follow.side {
            Listens::Inside => {
                let opened = Publish::one(port, protocol).open_both()?;
                Ok(PortChange::Publish(follow.clone(), port, opened, own))
            }
            Listens::Outside => {
                let listeners = listen_inside(&self.sockets, protocol, port, port)?;
                Ok(PortChange::Forward(follow.clone(), port, listeners, own))
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
