//! An [`Endpoint`]: one address and port of the guest that sends datagrams, with a socket of the kernel and the
//! destinations of its datagrams.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pagewire::services::Instant;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::new_clients::{NewClient, NewClients};
use crate::context::{Context, Decide, FlowRecord, JudgedFlow};
use crate::limits::{UDP_DNS, UDP_IDLE, UDP_LEAST, UDP_PEERS};
use crate::request::{Demand, Direction, FlowState, How};
use crate::shown::{DatagramGate, Pass};
use crate::source::Source;
use crate::sys::datagrams::{self, Sending};

/// A socket for one address and port of the guest, whatever the destination: endpoint-independent
/// mapping (RFC 4787 section 4.1, REQ-1).
pub(super) struct Endpoint {
    pub(super) guest: SocketAddr,
    pub(super) socket: OwnedFd,
    pub(super) serial: u32,
    /// Destinations of the guest, the latest last.
    peers: VecDeque<Peer>,
    /// Clients of the published port that the guest has not answered.
    new_clients: NewClients,
    /// The time when the guest last sent, and when a datagram was last passed to it.
    sent_at: Instant,
    received_at: Option<Instant>,
    /// The guest has only sent to port 53.
    only_dns: bool,
    /// The port is published: the endpoint receives from everybody, and stays.
    published: bool,
    dont_fragment: Option<bool>,
    /// The endpoint is on the list of those to be read.
    pub(super) listed: bool,
    pub(super) failed: bool,
}

/// Numbers of peers and of new clients, of an endpoint or of all endpoints of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) peers: usize,
    pub(super) new_clients: usize,
}

impl Counts {
    /// Replaces an endpoint's part of the sums.
    pub(super) fn replace(&mut self, before: Self, after: Self) {
        self.peers = (self.peers + after.peers).saturating_sub(before.peers);
        self.new_clients =
            (self.new_clients + after.new_clients).saturating_sub(before.new_clients);
    }
}

/// A destination of an endpoint.
pub(super) struct Peer {
    record: FlowRecord,
    /// The address by which the guest knows the peer.
    alias: SocketAddr,
    /// The address that this machine sees.
    pub(super) at: SocketAddr,
    /// Holds datagrams back until rules have judged the name that they show.
    gate: Option<Box<DatagramGate>>,
}

impl Peer {
    /// Takes a datagram to a peer whose datagrams must show a name. Returns those to be sent; or an error,
    /// if what they show is refused, which is written down.
    pub(super) fn take_shown(
        &mut self,
        now: Instant,
        context: &mut Context,
        datagram: Vec<u8>,
    ) -> Result<Vec<Vec<u8>>, ()> {
        let Some(gate) = &mut self.gate else { return Ok(vec![datagram]) };
        let shown = match gate.put(datagram) {
            Pass::Send(datagram) => return Ok(vec![datagram]),
            Pass::Hold => return Ok(Vec::new()),
            Pass::Judge(shown) if context.judge_shown(now, &mut self.record, &shown) => {
                return Ok(gate.permit());
            }
            Pass::Judge(shown) => {
                gate.refuse();
                shown
            }
            Pass::Refuse(shown) => shown,
        };
        let is_permitted = gate.is_permitted();
        context.note_mismatch(now, &self.record, &shown);
        if is_permitted { Ok(Vec::new()) } else { Err(()) }
    }

    /// The number of the permission whose rate the flow has.
    pub(super) fn rate(&self) -> Option<usize> {
        self.record.ask.rate
    }

    /// Whether datagrams to the peer must show a name.
    pub(super) fn has_gate(&self) -> bool {
        self.gate.is_some()
    }
}

impl Endpoint {
    /// An endpoint without peers, with a new socket.
    pub(super) fn new(now: Instant, guest: SocketAddr, source: &Source) -> io::Result<Self> {
        let family = if guest.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        source.bind_datagrams(&socket, guest.is_ipv4())?;
        Self::with_socket(now, guest, socket)
    }

    /// An endpoint that receives from everybody who sends to its socket, and stays.
    pub(super) fn published(now: Instant, guest: SocketAddr, socket: OwnedFd) -> io::Result<Self> {
        Ok(Self { published: true, only_dns: false, ..Self::with_socket(now, guest, socket)? })
    }

    fn with_socket(now: Instant, guest: SocketAddr, socket: OwnedFd) -> io::Result<Self> {
        datagrams::queue_errors(socket.as_fd(), guest.is_ipv6())?;
        datagrams::join_received(socket.as_fd());
        Ok(Self {
            guest,
            socket,
            serial: 0,
            peers: VecDeque::new(),
            new_clients: NewClients::default(),
            sent_at: now,
            received_at: None,
            only_dns: true,
            published: false,
            dont_fragment: None,
            listed: false,
            failed: false,
        })
    }

    /// The peer with this alias.
    pub(super) fn peer(&mut self, alias: SocketAddr) -> Option<&mut Peer> {
        let at = self.peers.iter().rposition(|peer| peer.alias == alias)?;
        // The busiest peers stay near the end, where the search begins.
        if at + 1 < self.peers.len() {
            self.peers.swap(at, at + 1);
            return self.peers.get_mut(at + 1);
        }
        self.peers.get_mut(at)
    }

    /// Adds a peer, by its alias and its address; the first peer is removed if there are too many here, or `full`,
    /// too many in all.
    pub(super) fn add(
        &mut self,
        now: Instant,
        judged: JudgedFlow,
        (alias, at): (SocketAddr, SocketAddr),
        full: bool,
        context: &Context,
    ) {
        if (full || self.peers.len() >= UDP_PEERS)
            && let Some(first) = self.peers.pop_front()
        {
            self.demote_to_new_client(now, &first, context);
            first.record.close(now, How::Finished, context);
        }
        let record = FlowRecord::new(now, judged.flow, judged.ask);
        record.open(at, context);
        self.only_dns &= at.port() == crate::dns::PORT;
        let gate = (record.ask.demand == Demand::PermittedName)
            .then(|| Box::new(DatagramGate::new(&context.whole.quic_flows)));
        self.peers.push_back(Peer { record, alias, at, gate });
    }

    /// Makes a removed client a new one again: a later datagram of the guest to it is still an answer.
    fn demote_to_new_client(&mut self, now: Instant, peer: &Peer, context: &Context) {
        let Peer { record: FlowRecord { flow, ask, .. }, alias, at, .. } = peer;
        if ask.direction == Direction::In {
            let judged = JudgedFlow { flow: *flow, ask: ask.clone(), to: Ok(ask.to) };
            self.add_client(now, judged, (*alias, *at), false, context);
        }
    }

    /// Adds a client of the published port: it becomes a peer once the guest answers. `full`: there are too many
    /// new clients in all. Returns whether another client made room.
    pub(super) fn add_client(
        &mut self,
        now: Instant,
        judged: JudgedFlow,
        (alias, at): (SocketAddr, SocketAddr),
        full: bool,
        context: &Context,
    ) -> bool {
        // The guest cannot tell two clients with one alias apart, and means the later one. A destination that the guest
        // chose itself stays: a client must not draw its datagrams away.
        let same = |peer: &Peer| peer.alias == alias && peer.record.ask.direction == Direction::In;
        if let Some(earlier) = self.peers.iter().position(same)
            && let Some(earlier) = self.peers.remove(earlier)
        {
            earlier.record.close(now, How::Finished, context);
        }
        self.new_clients.add(NewClient { judged, alias, at, asked_at: now, bytes_in: 0 }, full)
    }

    /// Makes the new client that the guest answers a peer; `full`: there are too many peers in all.
    /// `false`: there is no such client.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        alias: SocketAddr,
        full: bool,
        context: &Context,
    ) -> bool {
        let Some(client) = self.new_clients.take(alias) else { return false };
        let NewClient { judged, at, bytes_in, .. } = client;
        context.note_client(&judged);
        self.add(now, judged, (alias, at), full, context);
        if let Some(peer) = self.peers.back_mut() {
            peer.record.bytes_in = bytes_in;
        }
        true
    }

    pub(super) fn counts(&self) -> Counts {
        Counts { peers: self.peers.len(), new_clients: self.new_clients.len() }
    }

    /// Forgets clients that have waited for their time.
    pub(super) fn expire_clients(&mut self, now: Instant) {
        self.new_clients.expire(now);
    }

    pub(super) fn note_sent(&mut self, now: Instant, alias: SocketAddr, bytes: usize) {
        self.sent_at = now;
        if let Some(peer) = self.peer(alias) {
            peer.record.bytes_out += bytes as u64;
        }
    }

    pub(super) fn is_published(&self) -> bool {
        self.published
    }

    /// Whether a sender to a published port is new.
    pub(super) fn is_new_client(&self, from: SocketAddr) -> bool {
        self.published
            && !self.new_clients.has(from)
            && !self.peers.iter().any(|peer| peer.at == from)
    }

    /// The source that the guest sees on a datagram from `from`, which is counted; `None`: the guest has
    /// sent nothing to that address (RFC 4787 section 5, REQ-8: address-dependent filtering).
    pub(super) fn source_of(
        &mut self,
        now: Instant,
        from: SocketAddr,
        bytes: usize,
    ) -> Option<SocketAddr> {
        let exact = |peer: &Peer| peer.at == from;
        let near = |peer: &Peer| peer.at.ip() == from.ip();
        let exact = self.peers.iter().rposition(exact);
        if exact.is_none()
            && let Some(client) = self.new_clients.get_mut(from)
        {
            client.bytes_in += bytes as u64;
            client.asked_at = now;
            self.received_at = Some(now);
            return Some(client.alias);
        }
        let at = exact.or(self.peers.iter().rposition(near))?;
        let peer = self.peers.get_mut(at)?;
        peer.record.bytes_in += bytes as u64;
        let alias = peer.alias;
        let port = if peer.at == from { alias.port() } else { from.port() };
        self.received_at = Some(now);
        Some(SocketAddr::new(alias.ip(), port))
    }

    /// The number of the permission whose rate the flow with this address has.
    pub(super) fn rate_of(&self, at: SocketAddr) -> Option<usize> {
        self.peers.iter().rfind(|peer| peer.at == at)?.record.ask.rate
    }

    pub(super) fn alias(&self, at: SocketAddr) -> Option<SocketAddr> {
        self.peers.iter().rfind(|peer| peer.at == at).map(|peer| peer.alias)
    }

    /// Sends a datagram, after setting the socket's "don't fragment" as the packet has it.
    pub(super) fn send<'a>(
        &mut self,
        frags: impl Iterator<Item = &'a pagewire::memory::Frag>,
        how: Sending,
        dont_fragment: bool,
    ) -> io::Result<usize> {
        self.send_behind(&[], frags, how, dont_fragment)
    }

    /// As [`send`](Self::send), with bytes in front.
    pub(super) fn send_behind<'a>(
        &mut self,
        front: &[u8],
        frags: impl Iterator<Item = &'a pagewire::memory::Frag>,
        how: Sending,
        dont_fragment: bool,
    ) -> io::Result<usize> {
        if self.dont_fragment != Some(dont_fragment) {
            let v6 = self.guest.is_ipv6();
            datagrams::set_dont_fragment(self.socket.as_fd(), v6, dont_fragment)?;
            self.dont_fragment = Some(dont_fragment);
        }
        datagrams::send(self.socket.as_fd(), front, frags, how)
    }

    /// The time since the last datagram in either direction.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_since(
            self.received_at.map_or(self.sent_at, |received| received.max(self.sent_at)),
        )
    }

    /// Whether the endpoint has been silent for its time. Data in both directions counts (RFC 4787 section
    /// 4.3, REQ-6); errors end nothing (section 9, REQ-12).
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let answered = self.received_at.is_some_and(|received| received >= self.sent_at);
        let limit = if self.only_dns && answered { UDP_DNS } else { UDP_IDLE };
        !self.published && self.silence(now) >= limit
    }

    /// Whether the endpoint may be closed to make room for another.
    pub(super) fn may_go(&self, now: Instant) -> bool {
        !self.published && self.silence(now) >= UDP_LEAST
    }

    /// The flows of the endpoint.
    pub(super) fn flows(&self, now: Instant) -> impl Iterator<Item = FlowState> {
        self.peers.iter().map(move |peer| peer.record.state(now, peer.at, true))
    }

    /// Ends the flows that `decide` ends, and forgets clients without an answer that rules forbid. Returns the number of
    /// flows that have ended.
    pub(super) fn end_flows(
        &mut self,
        now: Instant,
        context: &mut Context,
        decide: &mut Decide<'_>,
    ) -> usize {
        let before = self.peers.len();
        for mut peer in std::mem::take(&mut self.peers) {
            let fate = decide(context, &mut peer.record, peer.at);
            if fate == Ok(Some(Demand::Nothing)) {
                (peer.gate, peer.record.shown) = (None, None);
            }
            match fate {
                Err(how) => peer.record.close(now, how, context),
                Ok(_) => self.peers.push_back(peer),
            }
        }
        self.new_clients.retain(|client| context.permits_client(&client.judged.ask));
        before - self.peers.len()
    }

    /// Writes down how the endpoint's flows ended.
    pub(super) fn close(self, now: Instant, how: How, context: &Context) {
        self.peers.into_iter().for_each(|peer| peer.record.close(now, how, context));
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
