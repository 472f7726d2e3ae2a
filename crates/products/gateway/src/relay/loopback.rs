//! [`Loopback`]: the relay's part in connections between loopback interfaces, of the guest's namespace and of this
//! machine, which the [`Splicer`] joins. The relay listens, accepts and judges.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use pagewire::services::{Instant, Stack};

use super::Relay;
use super::pair::reset_on_drop;
use super::ports::{Leads, Place, Ports, Socket};
use crate::builder::LocalClients;
use crate::context::{FlowRecord, JudgedFlow};
use crate::netns::NsSockets;
use crate::publish::Publish;
use crate::request::{Ask, Direction, How, Protocol};
use crate::splice::{
    DatagramPort, Diverter, Far, FlowSettings, Follow, Follower, Forward, Inbox, Join, Listens,
    OwnPort, OwnPorts, PortChange, Splicer, loopbacks as loopback_addresses,
};

/// What a guest has in whose namespace sockets can be made.
pub(crate) struct Loopback {
    sockets: NsSockets,
    clients: LocalClients,
    splicer: Splicer,
    inbox: Inbox,
    own: OwnPorts,
    follower: Option<Follower>,
}

impl Loopback {
    /// # Errors
    /// No descriptor, or no thread, is left.
    pub(crate) fn start(
        sockets: NsSockets,
        clients: LocalClients,
        flows: FlowSettings,
    ) -> io::Result<Self> {
        let (inbox, own) = (Inbox::new()?, OwnPorts::default());
        let splicer = Splicer::start(sockets.clone(), flows, inbox.clone())?;
        Ok(Self { sockets, clients, splicer, inbox, own, follower: None })
    }

    pub(crate) fn splicer(&self) -> &Splicer {
        &self.splicer
    }

    /// Takes datagrams of clients that come over this machine's loopback, if these are for the namespace's.
    pub(crate) fn diverter(&self) -> Option<Diverter> {
        self.is_for_clients().then(|| self.splicer.diverter())
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Whether clients that come over this machine's loopback reach that of the namespace.
    fn is_for_clients(&self) -> bool {
        self.clients == LocalClients::Loopback
    }

    /// Where a client of a published port is joined with a socket in the namespace: an address, and another to try.
    /// `None`: the client reaches the guest over its link. A port of the namespace's loopback that is a forwarded one
    /// would lead out here again, and so on without end.
    pub(super) fn place_of(
        &self,
        client: Option<SocketAddr>,
        to: SocketAddr,
        guest: &[IpAddr],
    ) -> Option<(SocketAddr, Option<SocketAddr>)> {
        let client = client.map(|client| client.ip().to_canonical());
        if client.is_some_and(|client| !client.is_loopback()) {
            return None;
        }
        match self.clients {
            LocalClients::ByLink => None,
            LocalClients::Spliced => guest.contains(&to.ip()).then_some((to, None)),
            LocalClients::Loopback if self.is_forwarded(Protocol::Tcp, to.port()) => None,
            LocalClients::Loopback => {
                let v6 = client.is_some_and(|client| client.is_ipv6());
                let (first, second) = loopbacks(v6, to.port());
                Some((first, Some(second)))
            }
        }
    }

    fn is_forwarded(&self, protocol: Protocol, port: u16) -> bool {
        let is_own = |at: &SocketAddr| self.own.has(Listens::Inside, protocol, *at);
        loopback_addresses(port).iter().any(is_own)
    }
}

/// The loopback address of this version of IP, and then the other one.
fn loopbacks(v6: bool, port: u16) -> (SocketAddr, SocketAddr) {
    let (v4, six) = ((Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into());
    if v6 { (six, v4) } else { (v4, six) }
}

impl Relay {
    /// Has a client of a published port, which rules permit, joined with a socket in the namespace. Returns what
    /// reaches the guest over its link.
    pub(super) fn join_inside(
        &mut self,
        socket: OwnedFd,
        client: Option<SocketAddr>,
        judged: JudgedFlow,
    ) -> Option<(OwnedFd, JudgedFlow)> {
        let place = |to| {
            let loopback = self.setup.loopback.as_ref()?;
            Some((loopback, loopback.place_of(client, to, &self.setup.addresses)?))
        };
        let Some((loopback, to)) = judged.to.as_ref().ok().and_then(|to| place(*to)) else {
            return Some((socket, judged));
        };
        let JudgedFlow { flow, ask, .. } = judged;
        let (far, began) = (Far::Inside, std::time::Instant::now());
        let or_link = loopback.clients == LocalClients::Spliced;
        loopback.splicer.join(Join { client: socket, to, far, or_link, flow, ask, began });
        None
    }

    /// Judges a client in the namespace, and has it joined with this machine's loopback; a client that may not is
    /// reset.
    pub(super) fn join_outside(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        from: SocketAddr,
        to: SocketAddr,
    ) {
        self.context.counters.asked += 1;
        let Some(loopback) = &self.setup.loopback else { return };
        // They have the rate of the guest's other dials. Beyond it nothing is written down.
        if !self.dials.may_forward(now, loopback.splicer.take_failed()) {
            self.context.counters.exhausted += 1;
            return reset_on_drop(&socket);
        }
        let judged = self.context.judge_forwarded(now, Protocol::Tcp, from, to);
        let JudgedFlow { flow, ask, to: Ok(leads_to) } = judged else {
            return reset_on_drop(&socket);
        };
        // A service may have the other version of IP only.
        let (_, other) = loopbacks(to.is_ipv6(), to.port());
        let other = (leads_to == to && self.context.permits_forwarded(Protocol::Tcp, from, other))
            .then_some(other);
        let Some(loopback) = &self.setup.loopback else { return };
        let (to, far, began) = ((leads_to, other), Far::Outside, std::time::Instant::now());
        let or_link = false;
        loopback.splicer.join(Join { client: socket, to, far, or_link, flow, ask, began });
    }

    /// Serves listeners on ports of the namespace's loopback, each of which leads to an address of this machine's: all
    /// or none.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub(crate) fn forward(
        &mut self,
        now: Instant,
        what: &Forward,
        listeners: Vec<(u16, OwnedFd, SocketAddr)>,
    ) -> io::Result<()> {
        let sockets = self.forward_all(now, what.protocol, listeners)?;
        self.published.forwarded.push((what.clone(), sockets));
        Ok(())
    }

    /// Ends what was forwarded so. Returns whether there was any.
    pub(crate) fn unforward(&mut self, now: Instant, what: &Forward) -> bool {
        let mut forwarded = self.published.forwarded.iter();
        let Some(at) = forwarded.position(|(other, _)| other == what) else { return false };
        let (_, sockets) = self.published.forwarded.remove(at);
        self.close_sockets(now, sockets);
        if let Some(follow) = what.follow() {
            self.leave(now, &follow);
        }
        true
    }

    fn forward_all(
        &mut self,
        now: Instant,
        protocol: Protocol,
        listeners: Vec<(u16, OwnedFd, SocketAddr)>,
    ) -> io::Result<Vec<Socket>> {
        let mut sockets = Vec::new();
        for (port, listener, to) in listeners {
            let [v4, v6] = loopback_addresses(port);
            let local = if to.is_ipv4() { v4 } else { v6 };
            let own = self.note_own(Listens::Inside, protocol, local);
            let place = match protocol {
                Protocol::Udp => Ok(self.forward_datagrams(now, listener, to, own.as_ref())),
                _ => self.listen(listener, to, Leads::Out, None),
            };
            match place {
                Ok(place) => {
                    sockets.push(Socket { protocol, local: Some(local), to, place, _own: own });
                }
                Err(error) => {
                    self.close_sockets(now, sockets);
                    return Err(error);
                }
            }
        }
        Ok(sockets)
    }

    /// Serves a socket for datagrams on the namespace's loopback, if rules permit that. Its flows have this verdict.
    fn forward_datagrams(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        to: SocketAddr,
        own: Option<&OwnPort>,
    ) -> Place {
        // A socket that is closed refuses datagrams.
        let closed = Place::Datagrams { spliced: None, guest: None };
        let from = SocketAddr::new(to.ip(), 0);
        let JudgedFlow { ask, to: leads_to, .. } =
            self.context.judge_forwarded(now, Protocol::Udp, from, to);
        let Ok(leads_to) = leads_to else { return closed };
        let (_, other) = loopbacks(to.is_ipv6(), to.port());
        let other = (leads_to == to && self.context.permits_forwarded(Protocol::Udp, from, other))
            .then_some(other);
        self.published.last_number += 1;
        let number = self.published.last_number;
        let Some(loopback) = &self.setup.loopback else { return closed };
        // A published port of ours would lead in there again, and so on without end.
        let is_own = |at: &SocketAddr| loopback.own.has(Listens::Outside, Protocol::Udp, *at);
        if loopback.is_for_clients() && (is_own(&leads_to) || other.as_ref().is_some_and(is_own)) {
            tracing::info!(port = to.port(), "a published port is not forwarded to itself");
            return closed;
        }
        let (to, far, _own) = ((leads_to, other), Far::Outside, own.cloned());
        loopback.splicer.serve(DatagramPort { number, socket, _own, reads: true, to, far, ask });
        Place::Datagrams { spliced: Some(number), guest: None }
    }

    /// Serves a published socket for datagrams. Clients that come over this machine's loopback may be the
    /// namespace's.
    pub(super) fn publish_datagrams(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        local: Option<SocketAddr>,
        guest: SocketAddr,
        own: Option<&OwnPort>,
    ) -> io::Result<Place> {
        let joins = |loopback: &Loopback| {
            loopback.is_for_clients() && !loopback.is_forwarded(Protocol::Udp, guest.port())
        };
        let of_loopback = |local: &SocketAddr| local.ip().is_loopback();
        let local = local.filter(|at| of_loopback(at) || at.ip().is_unspecified());
        let local = local.filter(|_| self.setup.loopback.as_ref().is_some_and(joins));
        let Some(local) = local else {
            self.serve_datagrams(now, socket, guest)?;
            return Ok(Place::Datagrams { spliced: None, guest: Some(guest) });
        };
        let mut ask = Ask::new(self.context.guest, Protocol::Udp, local, guest);
        ask.direction = Direction::In;
        let (reads, permitted) = (of_loopback(&local), self.context.permits_client(&ask));
        // The thread gets the socket last: what it has it keeps.
        let (socket, guest) = match (reads, permitted) {
            (true, true) => (Some(socket), None),
            (true, false) => (None, None),
            (false, permitted) => {
                let copy = permitted.then(|| socket.try_clone()).transpose()?;
                self.serve_datagrams(now, socket, guest)?;
                (copy, Some(guest))
            }
        };
        let (Some(socket), Some(loopback)) = (socket, &self.setup.loopback) else {
            return Ok(Place::Datagrams { spliced: None, guest });
        };
        self.published.last_number += 1;
        let number = self.published.last_number;
        let (first, second) = loopbacks(local.is_ipv6(), ask.to.port());
        let (to, far, _own) = ((first, Some(second)), Far::Inside, own.cloned());
        loopback.splicer.serve(DatagramPort { number, socket, _own, reads, to, far, ask });
        Ok(Place::Datagrams { spliced: Some(number), guest })
    }

    /// Notes a socket of this gateway itself, before it is bound where that is possible.
    pub(crate) fn note_own(
        &self,
        side: Listens,
        protocol: Protocol,
        at: SocketAddr,
    ) -> Option<OwnPort> {
        self.setup.loopback.as_ref().map(|loopback| loopback.own.note(side, protocol, at))
    }

    /// Opens ports for as long as programs listen on them.
    ///
    /// # Errors
    /// `Unsupported` without sockets in the guest's namespace; no thread is left.
    fn follow(&mut self, what: Follow) -> io::Result<()> {
        let loopback = self.setup.loopback.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        let follower = match loopback.follower.take() {
            Some(follower) => follower,
            None => Follower::start(
                loopback.sockets.clone(),
                loopback.is_for_clients(),
                loopback.own.clone(),
                loopback.inbox.clone(),
            )?,
        };
        self.published.follows.push(what.clone());
        loopback.follower.insert(follower).follow(what);
        Ok(())
    }

    /// Publishes the ports of programs in the namespace, as long as they listen.
    ///
    /// # Errors
    /// As those of [`follow`](Self::follow).
    pub(crate) fn publish_followed(&mut self, what: &Publish, follow: Follow) -> io::Result<()> {
        self.follow(follow)?;
        self.published.sets.push((what.clone(), Vec::new()));
        Ok(())
    }

    /// Forwards to programs of this machine, as long as they listen.
    ///
    /// # Errors
    /// As those of [`follow`](Self::follow).
    pub(crate) fn forward_followed(&mut self, what: &Forward, follow: Follow) -> io::Result<()> {
        self.follow(follow)?;
        self.published.forwarded.push((what.clone(), Vec::new()));
        Ok(())
    }

    /// Closes the ports that are open because of this.
    pub(super) fn leave(&mut self, now: Instant, what: &Follow) {
        let Ports { follows, followed, .. } = &mut self.published;
        if let Some(at) = follows.iter().position(|other| other == what) {
            follows.remove(at);
        }
        let those = followed.extract_if(.., |_, (because, _)| because == what);
        let sockets = those.flat_map(|(_, (_, sockets))| sockets).collect();
        self.close_sockets(now, sockets);
        if let Some(follower) = self.setup.loopback.as_ref().and_then(|own| own.follower.as_ref()) {
            follower.leave(what.clone());
        }
    }

    /// Takes what the other threads have for the relay.
    pub(super) fn take_inbox(&mut self, now: Instant, stack: &mut Stack) {
        let Some(loopback) = &self.setup.loopback else { return };
        let (changes, clients) = loopback.inbox.take();
        self.change_ports(now, changes);
        for Join { client, to: (to, _), flow, ask, .. } in clients {
            // Rules may have changed since the verdict.
            if !self.context.permits_client(&ask) {
                reset_on_drop(&client);
                FlowRecord::new(now, flow, ask).close(now, How::Prohibited, &self.context);
                continue;
            }
            let from = Some(ask.from);
            self.go_by_link(now, stack, client, (from, to), FlowRecord::new(now, flow, ask));
        }
    }

    /// Opens and closes ports as programs begin and end to listen on them.
    pub(super) fn change_ports(&mut self, now: Instant, changes: Vec<PortChange>) {
        for change in changes {
            let (follow, port, sockets) = match change {
                PortChange::Close(side, protocol, port) => {
                    let closed = self.published.followed.remove(&(side, protocol, port));
                    self.close_sockets(now, closed.map(|(_, all)| all).unwrap_or_default());
                    continue;
                }
                // Half of the descriptors are for connections, and each of these ports takes two.
                PortChange::Publish(follow, port, ..) | PortChange::Forward(follow, port, ..)
                    if self.published.followed.len() >= self.context.share.per_guest() / 4 =>
                {
                    self.open_later(follow, port);
                    continue;
                }
                // It was looked for before it was followed no more.
                PortChange::Publish(ref follow, ..) | PortChange::Forward(ref follow, ..)
                    if !self.published.follows.contains(follow) =>
                {
                    continue;
                }
                PortChange::Publish(follow, port, opened, _own) => {
                    (follow, port, self.publish_all(now, opened))
                }
                PortChange::Forward(follow, port, listeners, _own) => {
                    let listeners = listeners.into_iter().map(|(one, to)| (port, one, to));
                    let opened = self.forward_all(now, follow.protocol, listeners.collect());
                    (follow, port, opened)
                }
            };
            match sockets {
                Ok(sockets) => {
                    let key = (follow.side, follow.protocol, port);
                    self.published.followed.insert(key, (follow, sockets));
                }
                Err(error) => {
                    tracing::info!(port, %error, "a port was not opened");
                    self.open_later(follow, port);
                }
            }
        }
    }

    /// Has a port tried again that could not be served.
    fn open_later(&self, follow: Follow, port: u16) {
        let loopback = self.setup.loopback.as_ref();
        if let Some(follower) = loopback.and_then(|own| own.follower.as_ref()) {
            follower.failed(follow, port);
        }
    }

    /// Number of connections between sockets of the kernel.
    pub(super) fn spliced(&self) -> usize {
        self.setup.loopback.as_ref().map_or(0, |loopback| loopback.splicer.len())
    }

    /// Number of descriptors of these.
    pub(super) fn spliced_descriptors(&self) -> usize {
        self.setup.loopback.as_ref().map_or(0, |loopback| loopback.splicer.descriptors())
    }
}
