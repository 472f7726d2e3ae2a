//! One address and port of the guest that sends datagrams: a socket of the kernel, and where the
//! guest has sent.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pagewire::services::Instant;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};

use super::asking::{Asking, Client};
use crate::ask::{Direction, How, Record};
use crate::context::{Context, Judged, Passed};
use crate::limits::{UDP_DNS, UDP_IDLE, UDP_LEAST, UDP_PEERS};
use crate::sys::datagrams::{self, Sending};

/// The port of DNS.
const DNS: u16 = 53;

/// A socket for one address and port of the guest, whatever the destination: endpoint-independent
/// mapping (RFC 4787 section 4.1, REQ-1).
pub(super) struct Endpoint {
    pub(super) guest: SocketAddr,
    pub(super) socket: OwnedFd,
    pub(super) serial: u32,
    /// Where the guest has sent, the latest last.
    peers: VecDeque<Peer>,
    /// Clients of the published port that it has not answered.
    asking: Asking,
    /// When the guest last sent, and when something was last passed to it.
    sent_at: Instant,
    heard_at: Option<Instant>,
    /// It has only sent to port 53.
    only_dns: bool,
    /// Its port is published: it hears everybody, and stays.
    published: bool,
    dont_fragment: Option<bool>,
    /// It is on the list of endpoints to be read.
    pub(super) listed: bool,
    /// Its error queue has entries.
    pub(super) failed: bool,
}

/// How many peers and asking clients an endpoint has, or all of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) peers: usize,
    pub(super) asking: usize,
}

impl Counts {
    /// Counts what an endpoint has now, in the place of what it had before.
    pub(super) fn replace(&mut self, before: Self, after: Self) {
        self.peers = (self.peers + after.peers).saturating_sub(before.peers);
        self.asking = (self.asking + after.asking).saturating_sub(before.asking);
    }
}

/// A destination of an endpoint.
pub(super) struct Peer {
    passed: Passed,
    /// What the guest calls it.
    asked: SocketAddr,
    /// Where it is for this machine.
    pub(super) at: SocketAddr,
}

impl Endpoint {
    /// An endpoint without peers, whose socket is watched as soon as it has a place.
    pub(super) fn new(now: Instant, guest: SocketAddr) -> io::Result<Self> {
        let family = if guest.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        Self::with_socket(now, guest, socket)
    }

    /// An endpoint that hears everybody who sends to its socket, and stays.
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
            asking: Asking::default(),
            sent_at: now,
            heard_at: None,
            only_dns: true,
            published: false,
            dont_fragment: None,
            listed: false,
            failed: false,
        })
    }

    /// The peer that the guest calls so.
    pub(super) fn peer(&mut self, asked: SocketAddr) -> Option<&mut Peer> {
        let at = self.peers.iter().rposition(|peer| peer.asked == asked)?;
        // The busiest stay near the end, where the search begins.
        if at + 1 < self.peers.len() {
            self.peers.swap(at, at + 1);
            return self.peers.get_mut(at + 1);
        }
        self.peers.get_mut(at)
    }

    /// Adds a peer, by what the guest calls it and where it is; the first goes if there are too many
    /// here, or `full` in all.
    pub(super) fn add(
        &mut self,
        now: Instant,
        judged: Judged,
        (asked, at): (SocketAddr, SocketAddr),
        full: bool,
        context: &Context,
    ) {
        if (full || self.peers.len() >= UDP_PEERS)
            && let Some(first) = self.peers.pop_front()
        {
            self.ask_again(now, &first, context);
            first.passed.close(now, How::Finished, context);
        }
        let Judged { flow, ask, .. } = judged;
        context.note(|| Record::Opened { flow, ask: ask.clone(), peer: at });
        self.only_dns &= at.port() == DNS;
        self.peers.push_back(Peer { passed: Passed::new(now, flow, ask), asked, at });
    }

    /// Keeps a client in mind that makes room for another: what the guest says to it is still an answer.
    fn ask_again(&mut self, now: Instant, peer: &Peer, context: &Context) {
        let Peer { passed: Passed { flow, ask, .. }, asked, at } = peer;
        if ask.direction == Direction::In {
            let judged = Judged { flow: *flow, ask: ask.clone(), to: Ok(ask.to) };
            self.welcome(now, judged, (*asked, *at), false, context);
        }
    }

    /// Adds a client of the published port, whom the guest calls so: it is a peer once the guest
    /// answers. `full`: too many are asking in all. Returns whether another made room.
    pub(super) fn welcome(
        &mut self,
        now: Instant,
        judged: Judged,
        (called, at): (SocketAddr, SocketAddr),
        full: bool,
        context: &Context,
    ) -> bool {
        // The guest cannot tell it from an earlier client that it calls the same, and means the later
        // one. A destination that the guest chose itself stays: a client must not draw it away.
        let same = |peer: &Peer| peer.asked == called && peer.passed.ask.direction == Direction::In;
        if let Some(earlier) = self.peers.iter().position(same)
            && let Some(earlier) = self.peers.remove(earlier)
        {
            earlier.passed.close(now, How::Finished, context);
        }
        self.asking.add(Client { judged, called, at, asked_at: now, bytes_in: 0 }, full)
    }

    /// Makes the client that the guest answers a peer; `full`: there are too many of these in all.
    /// `false`: there is no such client.
    pub(super) fn answer(
        &mut self,
        now: Instant,
        called: SocketAddr,
        full: bool,
        context: &Context,
    ) -> bool {
        let Some(client) = self.asking.take(called) else { return false };
        let Client { judged, at, bytes_in, .. } = client;
        context.note_client(&judged);
        self.add(now, judged, (called, at), full, context);
        if let Some(peer) = self.peers.back_mut() {
            peer.passed.bytes_in = bytes_in;
        }
        true
    }

    /// How many peers there are, and how many clients that wait for an answer.
    pub(super) fn counts(&self) -> Counts {
        Counts { peers: self.peers.len(), asking: self.asking.len() }
    }

    /// Forgets clients that have waited for their time.
    pub(super) fn expire_clients(&mut self, now: Instant) {
        self.asking.expire(now);
    }

    /// Notes what was sent.
    pub(super) fn note_sent(&mut self, now: Instant, asked: SocketAddr, bytes: usize) {
        self.sent_at = now;
        if let Some(peer) = self.peer(asked) {
            peer.passed.bytes_out += bytes as u64;
        }
    }

    /// Whether its port is published.
    pub(super) fn is_published(&self) -> bool {
        self.published
    }

    /// Whether somebody new sends to a published port.
    pub(super) fn is_new_client(&self, from: SocketAddr) -> bool {
        self.published && !self.asking.has(from) && !self.peers.iter().any(|peer| peer.at == from)
    }

    /// The source that the guest sees on a datagram from `from`, and notes it; `None`: the guest has
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
            && let Some(client) = self.asking.get_mut(from)
        {
            client.bytes_in += bytes as u64;
            client.asked_at = now;
            self.heard_at = Some(now);
            return Some(client.called);
        }
        let at = exact.or(self.peers.iter().rposition(near))?;
        let peer = self.peers.get_mut(at)?;
        peer.passed.bytes_in += bytes as u64;
        let asked = peer.asked;
        let port = if peer.at == from { asked.port() } else { from.port() };
        self.heard_at = Some(now);
        Some(SocketAddr::new(asked.ip(), port))
    }

    /// What the guest calls the destination `at`.
    pub(super) fn asked(&self, at: SocketAddr) -> Option<SocketAddr> {
        self.peers.iter().rfind(|peer| peer.at == at).map(|peer| peer.asked)
    }

    /// Sends, after the socket's setting is as the packet's.
    pub(super) fn send<'a>(
        &mut self,
        frags: impl Iterator<Item = &'a pagewire::memory::Frag>,
        how: Sending,
        dont_fragment: bool,
    ) -> io::Result<usize> {
        if self.dont_fragment != Some(dont_fragment) {
            let v6 = self.guest.is_ipv6();
            datagrams::set_dont_fragment(self.socket.as_fd(), v6, dont_fragment)?;
            self.dont_fragment = Some(dont_fragment);
        }
        datagrams::send(self.socket.as_fd(), &[], frags, how)
    }

    /// How long nothing has passed.
    pub(super) fn silence(&self, now: Instant) -> Duration {
        now.saturating_since(self.heard_at.map_or(self.sent_at, |heard| heard.max(self.sent_at)))
    }

    /// Whether it has been silent for its time. Data in both directions counts (RFC 4787 section
    /// 4.3, REQ-6); errors end nothing (section 9, REQ-12).
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let answered = self.heard_at.is_some_and(|heard| heard >= self.sent_at);
        let limit = if self.only_dns && answered { UDP_DNS } else { UDP_IDLE };
        !self.published && self.silence(now) >= limit
    }

    /// Whether it may go to make room for another.
    pub(super) fn may_go(&self, now: Instant) -> bool {
        !self.published && self.silence(now) >= UDP_LEAST
    }

    /// Writes down how its flows ended.
    pub(super) fn close(self, now: Instant, how: How, context: &Context) {
        self.peers.into_iter().for_each(|peer| peer.passed.close(now, how, context));
    }
}

#[cfg(test)]
#[path = "endpoint_tests.rs"]
mod tests;
