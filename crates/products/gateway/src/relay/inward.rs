//! Inward connections: the kernel accepts clients of published ports, and the relay connects each with the guest,
//! from the client's own address where that is possible.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use pagewire::services::{Error, Instant, Stack, TcpConnect, TcpId};
use rustix::event::epoll::EventFlags;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};

use super::pair::{Pair, reset_on_drop};
use super::ports::{Leads, Published, Socket};
use super::{Flow, Relay};
use crate::context::{FlowRecord, JudgedFlow};
use crate::epoll::{SourceKind, Token};
use crate::limits::{ACCEPT_BURST, CLIENTS_LEAVE, DIAL_RETRY};
use crate::publish::{OpenPort, Publish};
use crate::request::{How, Protocol};

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
        let mut sockets = Vec::new();
        for opened in opened {
            match self.publish_one(now, opened) {
                Ok(socket) => sockets.extend(socket),
                Err(error) => {
                    sockets.into_iter().for_each(|socket| self.close_published(now, socket));
                    return Err(error);
                }
            }
        }
        self.published.sets.push((what.clone(), sockets));
        Ok(())
    }

    /// Ends what was published so; clients that are connected stay. Returns whether there was any.
    pub(crate) fn unpublish(&mut self, now: Instant, what: &Publish) -> bool {
        let Some(at) = self.published.sets.iter().position(|(set, _)| set == what) else {
            return false;
        };
        let (_, sockets) = self.published.sets.remove(at);
        sockets.into_iter().for_each(|socket| self.close_published(now, socket));
        true
    }

    /// What is published.
    pub(crate) fn published(&self) -> Vec<Publish> {
        self.published.sets.iter().map(|(what, _)| what.clone()).collect()
    }

    fn close_published(&mut self, now: Instant, socket: Socket) {
        match socket {
            Socket::Listener(at) => drop(self.published.listeners.try_remove(at)),
            Socket::Datagrams(guest) => {
                self.unpublish_datagrams(guest.port());
                self.udp.unpublish(now, &self.context, guest);
            }
        }
    }

    /// `None`: another socket stands for it.
    pub(super) fn publish_one(
        &mut self,
        now: Instant,
        opened: OpenPort,
    ) -> io::Result<Option<Socket>> {
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
        self.note_own_port(protocol, local);
        if protocol == Protocol::Udp {
            if !self.publish_datagrams(&socket, local, to)? {
                self.udp.publish(now, &mut self.context, socket, to)?;
            }
            return Ok(Some(Socket::Datagrams(to)));
        }
        let slot = self.published.listeners.vacant_entry();
        let at = slot.key();
        let serial = self.context.watch.add_source(&socket, SourceKind::Published, at as u32)?;
        let (leads, followed, waits) = (Leads::In, None, true);
        slot.insert(Published {
            listener: socket,
            serial,
            to,
            leads,
            followed,
            waits,
            _path: path,
        });
        Ok(Some(Socket::Listener(at)))
    }

    /// The guest's address of the same version of IP, or another.
    fn guest_address(&self, like: Option<IpAddr>) -> Option<IpAddr> {
        let all = &self.setup.addresses;
        let same = |ip: &&IpAddr| like.is_some_and(|like| like.is_ipv4() == ip.is_ipv4());
        all.iter().find(same).or(all.first()).copied()
    }

    pub(super) fn note_clients(&mut self, token: Token) {
        if let Some(published) = self.published.listeners.get_mut(token.at as usize)
            && published.serial == token.serial
        {
            published.waits = true;
            self.accept_at = Some(Instant::ZERO);
        }
    }

    /// Accepts clients, as far as there is room for their connections.
    pub(super) fn accept(&mut self, now: Instant, stack: &mut Stack) {
        if self.accept_at.is_none_or(|at| at > now) {
            return;
        }
        self.accept_at = None;
        let waiting = self.published.listeners.iter().filter(|(_, published)| published.waits);
        let waiting: Vec<usize> = waiting.map(|(at, _)| at).collect();
        for at in waiting {
            for _ in 0..ACCEPT_BURST {
                if !self.has_room_for_clients() {
                    // Further clients wait in the backlog.
                    return self.accept_at = Some(now + DIAL_RETRY);
                }
                let Some(published) = self.published.listeners.get_mut(at) else { break };
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
                    Err(rustix::io::Errno::AGAIN) => {
                        published.waits = false;
                        break;
                    }
                    // The client reset its connection in the backlog.
                    Err(rustix::io::Errno::CONNABORTED | rustix::io::Errno::INTR) => {}
                    Err(_) => {
                        self.context.counters.exhausted += 1;
                        return self.accept_at = Some(now + DIAL_RETRY);
                    }
                }
            }
        }
        if self.published.listeners.iter().any(|(_, published)| published.waits) {
            self.accept_at = Some(Instant::ZERO);
        }
    }

    /// Clients leave a part of the connections for the guest's own.
    fn has_room_for_clients(&self) -> bool {
        let all = self.setup.connections;
        self.connections() < (all - all / CLIENTS_LEAVE).max(1) && self.may_open()
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
        let Ok(to) = judged.to else {
            return reset_on_drop(&socket);
        };
        if self.setup.loopback.as_ref().is_some_and(|loopback| loopback.takes(client)) {
            return self.join_inside(socket, client, judged);
        }
        let JudgedFlow { flow, ask, .. } = judged;
        let record = FlowRecord::new(now, flow, ask);
        // A client that the guest can answer keeps its address.
        let link = &self.context.link;
        let kept = client.filter(|client| link.can_answer(client.ip(), to.ip()));
        match connect(now, stack, kept, to) {
            Ok(tcp) => {
                let mut pair = Pair::new(tcp, socket, record, from);
                pair.note_host(EventFlags::empty());
                match self.insert(Flow::Pair(pair)) {
                    Ok(at) => self.joined(now, tcp, at),
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
    let none: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    client.unwrap_or(SocketAddr::new(none, 0))
}
