//! Inward connections: the kernel accepts clients of published ports, and the relay connects each with the guest,
//! from the client's own address where that is possible.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use pagewire::services::{Error, Flow as StackFlow, Instant, Stack, TcpConnect, TcpId};
use rustix::event::epoll::EventFlags;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};

use super::pair::{Pair, reset_on_drop};
use super::ports::{Leads, Place, Published, Socket};
use super::siblings::{Client, Parcel};
use super::{Flow, Relay};
use crate::context::{FlowRecord, JudgedFlow};
use crate::epoll::{SourceKind, Token};
use crate::limits::{ACCEPT_BURST, CLIENTS_LEAVE, DIAL_RETRY};
use crate::publish::{OpenPort, Publish, PublishedPort, Unlink};
use crate::request::{How, Protocol};
use crate::splice::Listens;
use crate::tally::Item;

impl Relay {
    /// Publishes open sockets to the guest's address of their own version of IP, or to any: all or none.
    ///
    /// # Errors
    /// `AddrNotAvailable` if the guest's address is not known; the system's.
    pub(crate) fn publish(
        &mut self,
        now: Instant,
        what: &Publish,
        opened: Vec<OpenPort>,
    ) -> io::Result<()> {
        let sockets = self.publish_all(now, opened)?;
        self.published.sets.push((what.clone(), sockets));
        Ok(())
    }

    /// All or none.
    pub(super) fn publish_all(
        &mut self,
        now: Instant,
        opened: Vec<OpenPort>,
    ) -> io::Result<Vec<Socket>> {
        let mut sockets = Vec::new();
        for opened in opened {
            match self.publish_one(now, opened) {
                Ok(socket) => sockets.extend(socket),
                Err(error) => {
                    self.close_sockets(now, sockets);
                    return Err(error);
                }
            }
        }
        Ok(sockets)
    }

    /// Ends what was published so; clients that are connected stay. Returns whether there was any.
    pub(crate) fn unpublish(&mut self, now: Instant, what: &Publish) -> bool {
        let Some(at) = self.published.sets.iter().position(|(set, _)| set == what) else {
            return false;
        };
        let (_, sockets) = self.published.sets.remove(at);
        self.close_sockets(now, sockets);
        if let Some(follow) = what.follow() {
            self.leave(now, &follow);
        }
        true
    }

    /// Closes these ports, of those that were published by name. Returns their number.
    pub(crate) fn unpublish_ports(&mut self, now: Instant, ports: &[PublishedPort]) -> usize {
        let sockets = self.published.take_named(&ports.iter().copied().collect());
        let closed = sockets.len();
        self.close_sockets(now, sockets);
        closed
    }

    /// What is published.
    pub(crate) fn published(&self) -> Vec<Publish> {
        self.published.sets.iter().map(|(what, _)| what.clone()).collect()
    }

    /// The open ports that were published by name.
    pub(crate) fn published_ports(&self) -> Vec<PublishedPort> {
        self.published.named().collect()
    }

    pub(super) fn close_sockets(&mut self, now: Instant, sockets: Vec<Socket>) {
        for socket in sockets {
            match socket.place {
                Place::Listener(at, serial) => {
                    let listeners = &mut self.published.listeners;
                    if listeners.get(at).is_some_and(|published| published.serial == serial) {
                        listeners.remove(at);
                    }
                }
                Place::Datagrams { spliced, guest } => {
                    if let (Some(number), Some(loopback)) = (spliced, &self.setup.loopback) {
                        loopback.splicer().close(number);
                    }
                    if let Some(guest) = guest {
                        self.close_datagrams(now, guest);
                    }
                }
            }
        }
    }

    /// `None`: another socket stands for it.
    fn publish_one(&mut self, now: Instant, opened: OpenPort) -> io::Result<Option<Socket>> {
        let OpenPort { socket, port, protocol, local, guest, optional, path } = opened;
        let like = local.map(|local| local.ip());
        // Datagrams keep their version of IP.
        let fits = |ip: &IpAddr| like.is_none_or(|like| like.is_ipv4() == ip.is_ipv4());
        let found = guest.or_else(|| self.guest_address(like));
        let to = match found.filter(|ip| protocol != Protocol::Udp || fits(ip)) {
            Some(ip) => SocketAddr::new(ip, port),
            None if optional && found.is_some() => return Ok(None),
            None => {
                let text = "the guest's address is not known: give it in the guest's settings";
                return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, text));
            }
        };
        let own = local.and_then(|local| self.note_own(Listens::Outside, protocol, local));
        let place = match protocol {
            Protocol::Udp => self.publish_datagrams(now, socket, local, to, own.as_ref())?,
            _ => self.listen(socket, to, Leads::In, path)?,
        };
        Ok(Some(Socket { protocol, local, to, place, _own: own }))
    }

    /// Accepts the clients of a listener from now on.
    pub(super) fn listen(
        &mut self,
        listener: OwnedFd,
        to: SocketAddr,
        leads: Leads,
        path: Option<Unlink>,
    ) -> io::Result<Place> {
        let slot = self.published.listeners.vacant_entry();
        let at = slot.key();
        // Clients that wait already are an event.
        let serial = self.context.watch.add_source(&listener, SourceKind::Published, at as u32)?;
        slot.insert(Published { listener, serial, to, leads, waits: false, _path: path });
        Ok(Place::Listener(at, serial))
    }

    /// The guest's address of the same version of IP, or another.
    fn guest_address(&self, like: Option<IpAddr>) -> Option<IpAddr> {
        let all = &self.setup.addresses;
        let same = |ip: &&IpAddr| like.is_some_and(|like| like.is_ipv4() == ip.is_ipv4());
        all.iter().find(same).or(all.first()).copied()
    }

    pub(super) fn note_clients(&mut self, token: Token) {
        let at = token.at as usize;
        if let Some(published) = self.published.listeners.get_mut(at)
            && published.serial == token.serial
        {
            if !std::mem::replace(&mut published.waits, true) {
                self.published.waiting.push_back(at);
            }
            self.accept_at = Some(Instant::ZERO);
        }
    }

    /// Accepts clients, as far as there is room for their connections. Listeners take turns.
    pub(super) fn accept(&mut self, now: Instant, stack: &mut Stack) {
        if self.accept_at.is_none_or(|at| at > now) {
            return;
        }
        self.accept_at = None;
        for _ in 0..self.published.waiting.len() {
            let Some(at) = self.published.waiting.pop_front() else { break };
            match self.accept_from(now, stack, at) {
                Accepted::All => {
                    if let Some(published) = self.published.listeners.get_mut(at) {
                        published.waits = false;
                    }
                }
                Accepted::Some => self.published.waiting.push_back(at),
                Accepted::NoRoom => {
                    // Further clients wait in the backlog.
                    self.published.waiting.push_back(at);
                    return self.accept_at = Some(now + DIAL_RETRY);
                }
            }
        }
        if !self.published.waiting.is_empty() {
            self.accept_at = Some(Instant::ZERO);
        }
    }

    fn accept_from(&mut self, now: Instant, stack: &mut Stack, at: usize) -> Accepted {
        for _ in 0..ACCEPT_BURST {
            if !self.has_room_for_clients() {
                return Accepted::NoRoom;
            }
            let Some(published) = self.published.listeners.get(at).filter(|p| p.waits) else {
                return Accepted::All;
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            match acceptfrom_with(&published.listener, flags) {
                Ok((socket, client)) => {
                    let (to, leads) = (published.to, published.leads);
                    let client = client.and_then(|client| SocketAddr::try_from(client).ok());
                    match leads {
                        Leads::In => self.welcome(now, stack, socket, (client, to)),
                        Leads::Out => {
                            let from = client_inside(client, to);
                            self.join_outside(now, socket, from, to);
                        }
                    }
                }
                Err(rustix::io::Errno::AGAIN) => return Accepted::All,
                // The client reset its connection in the backlog.
                Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                Err(_) => {
                    self.context.counters.exhausted += 1;
                    return Accepted::NoRoom;
                }
            }
        }
        Accepted::Some
    }

    /// Clients leave a part of the connections for the guest's own.
    fn has_room_for_clients(&self) -> bool {
        let (all, own) = (self.setup.connections, self.connections());
        let most = (all - all / CLIENTS_LEAVE).max(1);
        !self.context.tally.is_full(Item::Connections, own, most) && self.may_open()
    }

    /// Connects a client with the guest; a client that may not, or cannot, is reset.
    fn welcome(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        socket: OwnedFd,
        (client, to): (Option<SocketAddr>, SocketAddr),
    ) {
        self.context.counters.clients += 1;
        // Data of one segment leaves in one segment; a Unix socket has no segments.
        let _ = sockopt::set_tcp_nodelay(&socket, true);
        let from = client.unwrap_or(SocketAddr::new(to.ip(), 0));
        let judged = self.context.judge_client(now, Protocol::Tcp, from, to);
        if judged.to.is_err() {
            return reset_on_drop(&socket);
        }
        let Some((socket, judged)) = self.join_inside(socket, client, judged) else { return };
        let JudgedFlow { flow, ask, to: Ok(to) } = judged else { return };
        self.go_by_link(now, stack, socket, (client, to), FlowRecord::new(now, flow, ask));
    }

    /// Connects a client with the guest over its link.
    pub(super) fn go_by_link(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        socket: OwnedFd,
        (client, to): (Option<SocketAddr>, SocketAddr),
        record: FlowRecord,
    ) {
        let from = client.unwrap_or(SocketAddr::new(to.ip(), 0));
        // A client that the guest can answer keeps its address.
        let link = &self.context.link;
        let kept = client.filter(|client| link.can_answer(client.ip(), to.ip()));
        if let (Some(siblings), Some(client)) = (&self.setup.siblings, kept) {
            let home = stack.home_of(&StackFlow::tcp(to, client, 0));
            if home != siblings.index() {
                let client = Box::new(Client { socket, client, to, record });
                return self.send_client(now, home, client);
            }
        }
        self.connect_guest(now, stack, socket, (kept, from, to), record);
    }

    /// Connects a client with the guest on this core: from its own address if that is kept.
    fn connect_guest(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        socket: OwnedFd,
        (kept, from, to): (Option<SocketAddr>, SocketAddr, SocketAddr),
        record: FlowRecord,
    ) {
        match connect(now, stack, kept, to) {
            Ok(tcp) => {
                let mut pair = Pair::new(tcp, socket, record, from);
                pair.note_host(EventFlags::empty());
                match self.insert(Flow::Pair(pair)) {
                    Ok(at) => {
                        self.context.tally.add(Item::Connections);
                        self.joined(now, tcp, at);
                    }
                    Err(_) => super::reset(now, stack, tcp),
                }
            }
            Err(_) => {
                reset_on_drop(&socket);
                self.context.counters.unreachable += 1;
                record.close(now, How::HostUnreachable, &self.context);
            }
        }
    }
}

/// # Other cores
impl Relay {
    /// Sends a client to the relay on whose core the guest's answers come in.
    fn send_client(&mut self, now: Instant, home: usize, client: Box<Client>) {
        let Some(siblings) = &self.setup.siblings else { return };
        self.context.tally.send_to(home);
        if let Err(Parcel::Client(client)) = siblings.send(home, Parcel::Client(client)) {
            self.context.tally.arrive_at(home);
            self.drop_client(now, *client, How::Removed);
        }
    }

    fn drop_client(&self, now: Instant, client: Client, how: How) {
        reset_on_drop(&client.socket);
        client.record.close(now, how, &self.context);
    }

    /// Takes what other relays, and this one, have sent.
    pub(super) fn take_parcels(&mut self, now: Instant, stack: &mut Stack) {
        let Some(siblings) = &self.setup.siblings else { return };
        let index = siblings.index();
        for parcel in siblings.take() {
            match parcel {
                Parcel::Client(client) => {
                    // Rules may have changed since the verdict.
                    if self.context.permits_client(&client.record.ask) {
                        let Client { socket, client, to, record } = *client;
                        self.connect_guest(now, stack, socket, (Some(client), client, to), record);
                    } else {
                        self.drop_client(now, *client, How::Prohibited);
                    }
                    self.context.tally.arrive_at(index);
                }
                Parcel::Publish(socket, guest) => {
                    let home = home_of_datagrams(stack, guest);
                    if home != index {
                        self.pass_on(home, Parcel::Publish(socket, guest));
                    } else if let Err(error) =
                        self.udp.publish(now, &mut self.context, socket, guest)
                    {
                        tracing::warn!(%guest, %error, "a port for datagrams is not served");
                    }
                }
                Parcel::Unpublish(guest) => {
                    let home = home_of_datagrams(stack, guest);
                    if home == index {
                        self.udp.unpublish(now, &self.context, guest);
                    } else {
                        self.pass_on(home, Parcel::Unpublish(guest));
                    }
                }
            }
        }
    }

    fn pass_on(&self, to: usize, parcel: Parcel) {
        // A relay that has ended serves no ports.
        let _ = self.setup.siblings.as_ref().map(|siblings| siblings.send(to, parcel));
    }

    /// Ends what other relays have sent, and will send: the guest is removed.
    pub(super) fn end_parcels(&mut self, now: Instant) {
        let Some(siblings) = &self.setup.siblings else { return };
        let index = siblings.index();
        for parcel in siblings.close() {
            if let Parcel::Client(client) = parcel {
                self.context.tally.arrive_at(index);
                self.drop_client(now, *client, How::Removed);
            }
        }
    }

    /// Serves a socket for datagrams to the guest's address and port, on the core that has the guest's datagrams
    /// from there.
    ///
    /// # Errors
    /// As those of [`Udp::publish`](crate::udp::Udp::publish). With several cores, errors of the system are logged.
    pub(super) fn serve_datagrams(
        &mut self,
        now: Instant,
        socket: OwnedFd,
        guest: SocketAddr,
    ) -> io::Result<()> {
        let Some(siblings) = &self.setup.siblings else {
            return self.udp.publish(now, &mut self.context, socket, guest);
        };
        if !self.published.datagrams.insert(guest) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        // This relay finds out the core in its next turn.
        let sent = siblings.send(siblings.index(), Parcel::Publish(socket, guest));
        sent.map_err(|_| io::ErrorKind::NotConnected.into())
    }

    /// Ends that.
    fn close_datagrams(&mut self, now: Instant, guest: SocketAddr) {
        let Some(siblings) = &self.setup.siblings else {
            return self.udp.unpublish(now, &self.context, guest);
        };
        if self.published.datagrams.remove(&guest) {
            let _ = siblings.send(siblings.index(), Parcel::Unpublish(guest));
        }
    }
}

/// The shard that has the guest's datagrams from this address and port, whomever they are for.
fn home_of_datagrams(stack: &Stack, guest: SocketAddr) -> usize {
    let any = SocketAddr::new(unspecified(guest), 0);
    stack.home_of(&StackFlow::udp(guest, any))
}

/// The clients that were accepted of those that wait.
enum Accepted {
    All,
    Some,
    /// There is no room for more, of any listener.
    NoRoom,
}

/// Connects to the guest: from the client's address, or from the gateway's where the guest could not
/// answer that, or has such a connection.
fn connect(
    now: Instant,
    stack: &mut Stack,
    client: Option<SocketAddr>,
    to: SocketAddr,
) -> Result<TcpId, Error> {
    if let Some(client) = client {
        let options = TcpConnect { local: Some(client), ..TcpConnect::default() };
        if let Ok(tcp) = stack.connect(now, to, options) {
            return Ok(tcp);
        }
    }
    stack.connect(now, to, None)
}

/// The address of a client in the namespace; of one that is gone, any.
fn client_inside(client: Option<SocketAddr>, to: SocketAddr) -> SocketAddr {
    client.unwrap_or(SocketAddr::new(unspecified(to), 0))
}

/// The unspecified address of the same version of IP.
fn unspecified(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() }
}
