//! [`Datagrams`]: ports for datagrams, each of whose clients has a socket of its own on the other side.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pagewire::services::Instant as Time;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, connect, recvfrom, send, sendto};
use slab::Slab;

use super::{Datagram, Far, JoinedFlow, OwnPort, Review, Shared, add};
use crate::context::DescriptorShare;
use crate::limits::{
    DESTINATIONS_BURST, DESTINATIONS_PER_SECOND, UDP_BURST, UDP_CLIENTS_BURST,
    UDP_CLIENTS_PER_SECOND, UDP_DNS, UDP_IDLE, UDP_LEAST, UDP_LONGEST, UDP_PEERS, UDP_SWEEP,
};
use crate::rate::Rate;
use crate::request::{Ask, Direction, How, Journal, Record, Verdict};

/// A socket whose clients are served.
pub(crate) struct DatagramPort {
    /// By which it is closed.
    pub(crate) number: u64,
    pub(crate) socket: OwnedFd,
    /// Its note as one of this gateway's own, which ends behind the socket.
    pub(crate) _own: Option<OwnPort>,
    /// The thread reads the socket. `false`: a [`Diverter`](super::Diverter) does, for some of its clients.
    pub(crate) reads: bool,
    /// The addresses that it leads to: the second one if the first refuses.
    pub(crate) to: (SocketAddr, Option<SocketAddr>),
    pub(crate) far: Far,
    /// The question of each flow, but for the client's address.
    pub(crate) ask: Ask,
}

/// Stale entries that a queue keeps, beside as many as there are others, before it is packed.
const STALE: usize = 64;

/// What the thread has for datagrams.
pub(super) struct Datagrams {
    ports: Slab<Port>,
    clients: Slab<Client>,
    by_address: HashMap<(usize, SocketAddr), usize>,
    share: DescriptorShare,
    flows: Arc<AtomicU64>,
    shared: Arc<Shared>,
    journal: Option<Arc<dyn Journal>>,
    room: Vec<u8>,
    /// The rates of new clients, of the guest and of published ports, and the begin of their time.
    rates: [Rate; 2],
    began: Instant,
}

struct Port {
    serial: u32,
    this: DatagramPort,
    clients: usize,
    /// Clients that make room for others, the oldest first: those of a resolver that have their answer, and those that
    /// nobody has answered. Entries may be stale.
    served: VecDeque<(usize, u32)>,
    unanswered: VecDeque<(usize, u32)>,
    /// Until this time no other client can make room.
    evict_at: Option<Instant>,
    /// Rules forbid its flows: it takes no datagram.
    is_forbidden: bool,
}

struct Client {
    serial: u32,
    port: usize,
    from: SocketAddr,
    socket: OwnedFd,
    to: SocketAddr,
    /// The address to send to if this one refuses; none once there was an answer.
    other: Option<SocketAddr>,
    flow: u64,
    ask: Ask,
    began: Instant,
    active_at: Instant,
    was_answered: bool,
    /// It has asked since the last answer.
    asks: bool,
    /// It is in the queue of those that were served.
    is_queued: bool,
    /// Bytes from the client, and to it.
    bytes: [u64; 2],
}

impl Client {
    /// Whether it is a resolver's client that has its answer.
    fn is_served(&self) -> bool {
        self.to.port() == crate::dns::PORT && self.was_answered && !self.asks
    }
}

/// Makes sockets on the side of a flow's destination, and watches them.
pub(super) trait Sockets {
    fn open(&self, far: Far, v6: bool) -> io::Result<OwnedFd>;
    fn watch_port(&self, slot: usize, serial: u32, socket: &OwnedFd) -> io::Result<()>;
    fn watch_client(&self, slot: usize, serial: u32, socket: &OwnedFd) -> io::Result<()>;
}

/// Whether a socket may have more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    Nothing,
    More,
}

impl Datagrams {
    pub(super) fn new(
        share: DescriptorShare,
        flows: Arc<AtomicU64>,
        shared: Arc<Shared>,
        journal: Option<Arc<dyn Journal>>,
    ) -> Self {
        let (ports, clients, by_address) = (Slab::new(), Slab::new(), HashMap::new());
        let (room, began) = (vec![0; UDP_LONGEST], Instant::now());
        let rates = [
            Rate::new(DESTINATIONS_PER_SECOND, DESTINATIONS_BURST),
            Rate::new(UDP_CLIENTS_PER_SECOND, UDP_CLIENTS_BURST),
        ];
        Self { ports, clients, by_address, share, flows, shared, journal, room, rates, began }
    }

    /// Serves a port from now on. Returns its slot.
    pub(super) fn serve(
        &mut self,
        this: DatagramPort,
        serial: u32,
        sockets: &impl Sockets,
    ) -> Option<usize> {
        let slot = self.ports.vacant_key();
        if this.reads && sockets.watch_port(slot, serial, &this.socket).is_err() {
            add(&self.shared.counts.exhausted, 1);
            return None;
        }
        self.shared.datagrams.fetch_add(1, Ordering::Relaxed);
        let (served, unanswered) = (VecDeque::new(), VecDeque::new());
        let (evict_at, is_forbidden) = (None, false);
        let port = Port { serial, this, clients: 0, served, unanswered, evict_at, is_forbidden };
        Some(self.ports.insert(port))
    }

    /// Serves a port no more.
    pub(super) fn close(&mut self, number: u64) {
        let is_it = |this: &DatagramPort| this.number == number;
        let those = self.ports.iter().filter(|(_, port)| is_it(&port.this)).map(|(at, _)| at);
        for at in those.collect::<Vec<_>>() {
            self.end_those(How::Finished, |client| client.port == at);
            self.ports.remove(at);
            self.shared.datagrams.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Has `review` look at each port and at each flow.
    pub(super) fn review(&mut self, review: &mut Review) {
        let began = Instant::now();
        for (_, port) in &mut self.ports {
            let DatagramPort { ask, to: (peer, _), .. } = &port.this;
            let (bytes_out, bytes_in, open) = (0, 0, true);
            let flow =
                JoinedFlow { flow: None, ask, peer: *peer, bytes_out, bytes_in, began, open };
            match review(&flow) {
                Err(_) => port.is_forbidden = true,
                Ok(Some(_)) => port.is_forbidden = false,
                Ok(None) => {}
            }
        }
        let look = |(_, client): (usize, &Client)| {
            let Client { flow, ask, to, began, bytes: [there, back], was_answered, .. } = client;
            let is_out = ask.direction == Direction::Out;
            let (bytes_out, bytes_in) = if is_out { (*there, *back) } else { (*back, *there) };
            let joined = JoinedFlow {
                flow: Some(*flow),
                ask,
                peer: *to,
                bytes_out,
                bytes_in,
                began: *began,
                open: *was_answered,
            };
            Some((*flow, review(&joined).err()?))
        };
        let over: HashMap<u64, How> = self.clients.iter().filter_map(look).collect();
        for (flow, how) in over {
            self.end_those(how, |client| client.flow == flow);
        }
    }

    /// Passes on what clients have sent to a port.
    pub(super) fn receive(
        &mut self,
        (at, serial): (usize, u32),
        now: Instant,
        sockets: &impl Sockets,
        next_serial: &mut u32,
    ) -> Left {
        let mut room = std::mem::take(&mut self.room);
        let mut left = Left::More;
        for _ in 0..UDP_BURST {
            let Some(port) = self.ports.get(at).filter(|port| port.serial == serial) else {
                left = Left::Nothing;
                break;
            };
            match recvfrom(&port.this.socket, &mut room[..], RecvFlags::DONTWAIT) {
                Ok((n, _, from)) => {
                    let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                    if let (Some(from), Some(bytes)) = (from, room.get(..n)) {
                        self.pass_on(at, from, bytes, now, sockets, next_serial);
                    }
                }
                Err(Errno::INTR) => {}
                // An error about an answer to a client that is gone.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => {
                    left = Left::Nothing;
                    break;
                }
            }
        }
        self.room = room;
        left
    }

    /// Passes on what a client has sent to a port that another thread reads.
    pub(super) fn pass_diverted(
        &mut self,
        Datagram { guest, from, bytes, segment }: &Datagram,
        now: Instant,
        sockets: &impl Sockets,
        next_serial: &mut u32,
    ) {
        let is_it = |this: &DatagramPort| !this.reads && this.ask.to == *guest;
        let port = self.ports.iter().find(|(_, port)| is_it(&port.this)).map(|(at, _)| at);
        let Some(port) = port else { return };
        let size = segment.map_or(bytes.len(), usize::from).max(1);
        if bytes.is_empty() {
            self.pass_on(port, *from, bytes, now, sockets, next_serial);
        }
        for one in bytes.chunks(size) {
            self.pass_on(port, *from, one, now, sockets, next_serial);
        }
    }

    fn pass_on(
        &mut self,
        port: usize,
        from: SocketAddr,
        bytes: &[u8],
        now: Instant,
        sockets: &impl Sockets,
        next_serial: &mut u32,
    ) {
        let known = self.by_address.get(&(port, from)).copied();
        let at = match known {
            Some(at) => at,
            None => match self.open(port, from, now, sockets, next_serial) {
                Ok(at) => at,
                Err(NoClient::Refused(Direction::Out)) => {
                    return add(&self.shared.counts.destinations_refused, 1);
                }
                // As strangers are.
                Err(NoClient::Refused(Direction::In)) => {
                    return add(&self.shared.counts.datagrams_filtered, 1);
                }
                Err(NoClient::Full) => return add(&self.shared.counts.exhausted, 1),
            },
        };
        let Some(client) = self.clients.get_mut(at) else { return };
        let mut sent = send(&client.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        // Over a loopback, a refusal is there at once.
        if let Some(other) = client.other
            && refuses(&client.socket, &sent)
            && let Some(port) = self.ports.get(port)
        {
            client.other = None;
            let again = sockets.open(port.this.far, other.is_ipv6()).and_then(|socket| {
                connect(&socket, &other)?;
                sockets.watch_client(at, client.serial, &socket)?;
                Ok(socket)
            });
            if let Ok(socket) = again {
                (client.socket, client.to) = (socket, other);
                sent = send(&client.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
        (client.active_at, client.asks) = (now, true);
        let is_out = client.ask.direction == Direction::Out;
        match sent {
            Ok(n) => {
                client.bytes[0] += n as u64;
                self.shared.counts.note_datagram(is_out, n);
            }
            Err(_) => add(&self.shared.counts.datagrams_lost, 1),
        }
    }

    /// Opens a client's socket, where need be in the place of another.
    fn open(
        &mut self,
        port: usize,
        from: SocketAddr,
        now: Instant,
        sockets: &impl Sockets,
        next_serial: &mut u32,
    ) -> Result<usize, NoClient> {
        let Some(Port { this, clients, is_forbidden, .. }) = self.ports.get(port) else {
            return Err(NoClient::Full);
        };
        let direction = this.ask.direction;
        if *is_forbidden {
            return Err(NoClient::Refused(direction));
        }
        let time = Time::from_nanos(now.saturating_duration_since(self.began).as_nanos() as u64);
        let [out, inward] = &mut self.rates;
        let rate = if direction == Direction::Out { out } else { inward };
        rate.take(time).map_err(|_| NoClient::Refused(direction))?;
        let is_full = self.shared.all_descriptors() >= self.share.per_guest();
        if (*clients >= UDP_PEERS || is_full) && !self.evict(port, now) {
            return Err(NoClient::Full);
        }
        let Some(Port { this, clients, unanswered, .. }) = self.ports.get_mut(port) else {
            return Err(NoClient::Full);
        };
        let (to, other) = this.to;
        let socket = sockets.open(this.far, to.is_ipv6())?;
        connect(&socket, &to).map_err(io::Error::from)?;
        *next_serial = next_serial.wrapping_add(1);
        let (serial, slot) = (*next_serial, self.clients.vacant_key());
        sockets.watch_client(slot, serial, &socket)?;
        *clients += 1;
        if unanswered.len() > 2 * *clients + STALE {
            let is_there = |at: &usize, serial| is_unanswered(&self.clients, (*at, serial));
            unanswered.retain(|(at, serial)| is_there(at, *serial));
        }
        unanswered.push_back((slot, serial));
        let ask = Ask { from, ..this.ask.clone() };
        let flow = self.flows.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(journal) = &self.journal {
            let verdict = if to == ask.to { Verdict::Allow } else { Verdict::To(to) };
            journal.note(Record::Verdict { flow, ask: ask.clone(), verdict });
            journal.note(Record::Opened { flow, ask: ask.clone(), peer: to, via: None });
        }
        let client = Client {
            serial,
            port,
            from,
            socket,
            to,
            other,
            flow,
            ask,
            began: now,
            active_at: now,
            was_answered: false,
            asks: true,
            is_queued: false,
            bytes: [0; 2],
        };
        let at = self.clients.insert(client);
        self.by_address.insert((port, from), at);
        self.shared.datagrams.fetch_add(1, Ordering::Relaxed);
        Ok(at)
    }

    /// Makes room: closes the client of the port that was served longest ago by a resolver, or else that has waited
    /// longest for its first answer; or else those that were silent for long enough. Returns whether there was any.
    fn evict(&mut self, at: usize, now: Instant) -> bool {
        let Some(port) = self.ports.get_mut(at) else { return false };
        let clients = &mut self.clients;
        let first = pop(&mut port.served, |(at, serial)| {
            let client = clients.get_mut(at).filter(|client| client.serial == serial);
            client.is_some_and(|client| {
                client.is_queued = false;
                client.is_served()
            })
        });
        let first = first.or_else(|| pop(&mut port.unanswered, |one| is_unanswered(clients, one)));
        if let Some(first) = first {
            self.end(first, How::Finished);
            return true;
        }
        // Not every datagram may cause a pass over all clients.
        if port.evict_at.is_some_and(|evict_at| evict_at > now) {
            return false;
        }
        port.evict_at = Some(now + UDP_SWEEP);
        let before = self.clients.len();
        let may_go = |client: &Client| client.port == at && client.active_at + UDP_LEAST <= now;
        self.end_those(How::Finished, may_go);
        self.clients.len() < before
    }

    /// Passes on what was answered to a client.
    pub(super) fn answer(&mut self, (at, serial): (usize, u32), now: Instant) -> Left {
        let Some(client) = self.clients.get_mut(at).filter(|client| client.serial == serial) else {
            return Left::Nothing;
        };
        let Some(port) = self.ports.get_mut(client.port) else { return Left::Nothing };
        let is_out = client.ask.direction == Direction::Out;
        for _ in 0..UDP_BURST {
            match recvfrom(&client.socket, &mut self.room[..], RecvFlags::DONTWAIT) {
                Ok((n, _, _)) => {
                    (client.other, client.active_at) = (None, now);
                    (client.was_answered, client.asks) = (true, false);
                    if client.is_served() && !std::mem::replace(&mut client.is_queued, true) {
                        port.served.push_back((at, serial));
                    }
                    let bytes = self.room.get(..n).unwrap_or_default();
                    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                    match sendto(&port.this.socket, bytes, flags, &client.from) {
                        Ok(n) => {
                            client.bytes[1] += n as u64;
                            self.shared.counts.note_datagram(!is_out, n);
                        }
                        Err(_) => add(&self.shared.counts.datagrams_lost, 1),
                    }
                }
                Err(Errno::INTR) => {}
                // Nobody listens there, for now: the client learns of it by silence.
                Err(Errno::CONNREFUSED) => {}
                Err(_) => return Left::Nothing,
            }
        }
        Left::More
    }

    /// Closes clients that have been silent for their time.
    pub(super) fn sweep(&mut self, now: Instant) {
        let limit = |client: &Client| if client.is_served() { UDP_DNS } else { UDP_IDLE };
        self.end_those(How::Finished, |client| client.active_at + limit(client) <= now);
        for (_, port) in &mut self.ports {
            if port.served.len() > 2 * port.clients + STALE {
                port.served.retain(|(at, serial)| {
                    self.clients.get(*at).is_some_and(|client| client.serial == *serial)
                });
            }
        }
    }

    pub(super) fn end_all(&mut self) {
        self.end_those(How::Removed, |_| true);
        self.ports.clear();
    }

    fn end_those(&mut self, how: How, is_one: impl Fn(&Client) -> bool) {
        let those = self.clients.iter().filter(|(_, client)| is_one(client)).map(|(at, _)| at);
        for at in those.collect::<Vec<_>>() {
            self.end(at, how);
        }
    }

    fn end(&mut self, at: usize, how: How) {
        let Some(client) = self.clients.try_remove(at) else { return };
        let Client { port, from, flow, ask, began, active_at, bytes: [there, back], .. } = client;
        self.by_address.remove(&(port, from));
        if let Some(port) = self.ports.get_mut(port) {
            port.clients = port.clients.saturating_sub(1);
        }
        self.shared.datagrams.fetch_sub(1, Ordering::Relaxed);
        let (bytes_out, bytes_in) =
            if ask.direction == Direction::Out { (there, back) } else { (back, there) };
        let duration: Duration = active_at.saturating_duration_since(began);
        if let Some(journal) = &self.journal {
            journal.note(Record::Closed { flow, ask, bytes_out, bytes_in, duration, how });
        }
    }

    /// Whether there is nothing to sweep.
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

/// Why a client has no socket.
enum NoClient {
    /// New ones of this direction come too fast, or rules forbid them.
    Refused(Direction),
    /// Nobody makes room, or the system has no socket.
    Full,
}

impl From<io::Error> for NoClient {
    fn from(_: io::Error) -> Self {
        Self::Full
    }
}

/// The slot of the first client in a queue that is one of those.
fn pop(
    queue: &mut VecDeque<(usize, u32)>,
    mut is_one: impl FnMut((usize, u32)) -> bool,
) -> Option<usize> {
    while let Some(one) = queue.pop_front() {
        if is_one(one) {
            return Some(one.0);
        }
    }
    None
}

fn is_unanswered(clients: &Slab<Client>, (at, serial): (usize, u32)) -> bool {
    clients.get(at).is_some_and(|client| client.serial == serial && !client.was_answered)
}

/// Whether the destination of what was just sent refuses it.
fn refuses(socket: &OwnedFd, sent: &Result<usize, Errno>) -> bool {
    match sent {
        Err(error) => *error == Errno::CONNREFUSED,
        Ok(_) => matches!(rustix::net::sockopt::socket_error(socket), Ok(Err(Errno::CONNREFUSED))),
    }
}

#[cfg(test)]
#[path = "datagrams_tests.rs"]
mod tests;
