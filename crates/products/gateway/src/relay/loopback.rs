//! [`Loopback`]: the relay's part in connections between loopback interfaces, of the guest's namespace and of this
//! machine, which the [`Splicer`] joins. The relay listens, accepts and judges.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use pagewire::services::Instant;

use super::Relay;
use super::pair::reset_on_drop;
use super::ports::{Leads, Published, Socket};
use crate::context::JudgedFlow;
use crate::epoll::SourceKind;
use crate::netns::NsSockets;
use crate::request::{Ask, Direction, Protocol};
use crate::splice::{
    DatagramPort, Diverter, Far, FlowSettings, Follow, Follower, Inbox, Join, Listens, OwnPorts,
    PortChange, Splicer,
};

/// What a guest has in whose namespace sockets can be made.
pub(crate) struct Loopback {
    sockets: NsSockets,
    /// Clients that come over this machine's loopback reach that of the namespace.
    for_clients: bool,
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
        for_clients: bool,
        flows: FlowSettings,
    ) -> io::Result<Self> {
        let splicer = Splicer::start(sockets.clone(), flows)?;
        let (inbox, own) = (Inbox::new()?, OwnPorts::default());
        Ok(Self { sockets, for_clients, splicer, inbox, own, follower: None })
    }

    pub(crate) fn splicer(&self) -> &Splicer {
        &self.splicer
    }

    /// Takes datagrams of clients that come over this machine's loopback, if these are for the namespace's.
    pub(crate) fn diverter(&self) -> Option<Diverter> {
        self.for_clients.then(|| self.splicer.diverter())
    }

    pub(crate) fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Whether this client of a published port is joined with the namespace's loopback.
    pub(super) fn takes(&self, client: Option<SocketAddr>) -> bool {
        self.for_clients && client.is_none_or(|client| client.ip().to_canonical().is_loopback())
    }
}

/// The loopback address of this version of IP, and then the other one.
fn loopbacks(v6: bool, port: u16) -> (SocketAddr, SocketAddr) {
    let (v4, six) = ((Ipv4Addr::LOCALHOST, port).into(), (Ipv6Addr::LOCALHOST, port).into());
    if v6 { (six, v4) } else { (v4, six) }
}

impl Relay {
    /// Has a client of a published port, which rules permit, joined with the namespace's loopback.
    pub(super) fn join_inside(
        &mut self,
        socket: OwnedFd,
        client: Option<SocketAddr>,
        judged: JudgedFlow,
    ) {
        let JudgedFlow { flow, ask, to: Ok(to) } = judged else { return };
        let Some(loopback) = &self.setup.loopback else { return };
        let v6 = client.is_some_and(|client| client.ip().to_canonical().is_ipv6());
        let (first, second) = loopbacks(v6, to.port());
        let (to, far, began) = ((first, Some(second)), Far::Inside, std::time::Instant::now());
        loopback.splicer.join(Join { client: socket, to, far, flow, ask, began });
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
        loopback.splicer.join(Join { client: socket, to, far, flow, ask, began });
    }

    /// Serves listeners on the namespace's loopback, each of which leads to an address of this machine's.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`.
    pub(crate) fn forward(
        &mut self,
        now: Instant,
        protocol: Protocol,
        port: u16,
        listeners: Vec<(OwnedFd, SocketAddr)>,
        followed: bool,
    ) -> io::Result<()> {
        if let Some(loopback) = &self.setup.loopback {
            loopback.own.add(Listens::Inside, protocol, port);
        }
        let followed = followed.then_some((Listens::Outside, port));
        for (listener, to) in listeners {
            if protocol == Protocol::Udp {
                self.forward_datagrams(now, port, listener, to);
                continue;
            }
            let slot = self.published.listeners.vacant_entry();
            let at = slot.key() as u32;
            let serial = self.context.watch.add_source(&listener, SourceKind::Published, at)?;
            let (leads, waits, path) = (Leads::Out, true, None);
            slot.insert(Published { listener, serial, to, leads, followed, waits, _path: path });
        }
        self.accept_at = Some(Instant::ZERO);
        Ok(())
    }

    /// Serves a socket for datagrams on the namespace's loopback, if rules permit that. Its flows have this verdict.
    fn forward_datagrams(&mut self, now: Instant, port: u16, socket: OwnedFd, to: SocketAddr) {
        let from = SocketAddr::new(to.ip(), 0);
        let JudgedFlow { ask, to: leads_to, .. } =
            self.context.judge_forwarded(now, Protocol::Udp, from, to);
        // A socket that is closed refuses datagrams.
        let Ok(leads_to) = leads_to else { return };
        let (_, other) = loopbacks(to.is_ipv6(), to.port());
        let other = (leads_to == to && self.context.permits_forwarded(Protocol::Udp, from, other))
            .then_some(other);
        let Some(loopback) = &self.setup.loopback else { return };
        let (to, far) = ((leads_to, other), Far::Outside);
        loopback.splicer.serve(DatagramPort { port, socket, reads: true, to, far, ask });
    }

    /// Serves the clients of a published socket for datagrams that come over this machine's loopback. Returns whether
    /// there are no others.
    pub(super) fn publish_datagrams(
        &mut self,
        socket: &OwnedFd,
        local: Option<SocketAddr>,
        guest: SocketAddr,
    ) -> io::Result<bool> {
        let loopback = self.setup.loopback.as_ref().filter(|loopback| loopback.for_clients);
        let (Some(loopback), Some(local)) = (loopback, local) else { return Ok(false) };
        let (port, reads) = (guest.port(), local.ip().is_loopback());
        if !reads && !local.ip().is_unspecified() {
            return Ok(false);
        }
        let mut ask = Ask::new(self.context.guest, Protocol::Udp, local, guest);
        ask.direction = Direction::In;
        if !self.context.permits_client(&ask) {
            return Ok(reads);
        }
        let (first, second) = loopbacks(local.is_ipv6(), port);
        let (to, far) = ((first, Some(second)), Far::Inside);
        let socket = socket.try_clone()?;
        loopback.splicer.serve(DatagramPort { port, socket, reads, to, far, ask });
        Ok(reads)
    }

    /// Serves such clients of the guest's port no more.
    pub(super) fn unpublish_datagrams(&self, port: u16) {
        if let Some(loopback) = &self.setup.loopback {
            loopback.splicer.close(Far::Inside, port);
        }
    }

    /// Notes that a port of this machine is this gateway's own.
    pub(super) fn note_own_port(&self, protocol: Protocol, local: Option<SocketAddr>) {
        if let (Some(loopback), Some(local)) = (&self.setup.loopback, local) {
            loopback.own.add(Listens::Outside, protocol, local.port());
        }
    }

    /// Opens ports for as long as programs listen on them.
    ///
    /// # Errors
    /// `Unsupported` without sockets in the guest's namespace; no thread is left.
    pub(crate) fn follow(&mut self, what: Follow) -> io::Result<()> {
        let loopback = self.setup.loopback.as_mut().ok_or(io::ErrorKind::Unsupported)?;
        let follower = match loopback.follower.take() {
            Some(follower) => follower,
            None => Follower::start(
                loopback.sockets.clone(),
                loopback.for_clients,
                loopback.own.clone(),
                loopback.inbox.clone(),
            )?,
        };
        loopback.follower.insert(follower).follow(what);
        Ok(())
    }

    /// Closes the ports that are open because of this.
    pub(crate) fn leave(&self, what: Follow) {
        if let Some(follower) = self.setup.loopback.as_ref().and_then(|own| own.follower.as_ref()) {
            follower.leave(what);
        }
    }

    /// Opens and closes ports as programs begin and end to listen on them.
    pub(super) fn change_ports(&mut self, now: Instant) {
        let Some(loopback) = &self.setup.loopback else { return };
        for change in loopback.inbox.take() {
            match change {
                PortChange::Publish(port, opened) => {
                    for one in opened {
                        match self.publish_one(now, one) {
                            Ok(Some(Socket::Listener(at))) => {
                                if let Some(published) = self.published.listeners.get_mut(at) {
                                    published.followed = Some((Listens::Inside, port));
                                }
                            }
                            Ok(_) => {}
                            Err(error) => {
                                tracing::info!(port, %error, "a port was not published");
                            }
                        }
                    }
                }
                PortChange::Forward(protocol, port, listeners) => {
                    if let Err(error) = self.forward(now, protocol, port, listeners, true) {
                        tracing::info!(port, %error, "a port was not forwarded");
                    }
                }
                PortChange::Close(side, protocol, port) => {
                    self.close_followed(now, side, protocol, port);
                }
            }
        }
    }

    /// Closes a port that was open for a program.
    fn close_followed(&mut self, now: Instant, side: Listens, protocol: Protocol, port: u16) {
        if protocol == Protocol::Tcp {
            let listeners = &mut self.published.listeners;
            listeners.retain(|_, published| published.followed != Some((side, port)));
        }
        let Some(loopback) = &self.setup.loopback else { return };
        if protocol == Protocol::Udp {
            let far = match side {
                Listens::Inside => Far::Inside,
                Listens::Outside => Far::Outside,
            };
            loopback.splicer.close(far, port);
            let guests = self.setup.addresses.iter().filter(|_| side == Listens::Inside);
            for ip in guests {
                self.udp.unpublish(now, &self.context, SocketAddr::new(*ip, port));
            }
        }
        loopback.own.remove(side.other(), protocol, port);
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
