//! The assignment of addresses: RFC 2131 section 4.3 without I/O. Messages in, answers out.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use pagewire_mem::Instant;
use smoltcp::wire::DhcpMessageType as Kind;

use super::{DhcpConfig, DhcpCounters, DhcpLease};
use crate::limits::{DHCP_OFFER_TIME, DHCP_REST_TIME};

/// A message from a client, which its link address identifies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) client: [u8; 6],
    /// The address that it uses (`ciaddr`), or 0.0.0.0.
    pub(super) has: Ipv4Addr,
    /// The address that it requests (option 50).
    pub(super) wants: Option<Ipv4Addr>,
    /// The server that it chose (option 54).
    pub(super) server: Option<Ipv4Addr>,
    /// The relay's address, or 0.0.0.0.
    pub(super) relay: Ipv4Addr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Offer(Ipv4Addr),
    Ack(Ipv4Addr),
    /// Sends settings only.
    Inform,
    /// Refuses: the client begins again.
    Nak,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Offered,
    Granted,
    /// A client found it in use.
    Resting,
}

#[derive(Clone, Copy, Debug)]
struct Lease {
    client: [u8; 6],
    state: State,
    until: Instant,
}

/// The server. At most one lease for each address, and one for each client.
#[derive(Debug)]
pub(super) struct Server {
    config: DhcpConfig,
    /// The link's MTU, sent to clients.
    pub(super) mtu: u16,
    leases: BTreeMap<Ipv4Addr, Lease>,
    pub(super) counters: DhcpCounters,
}

impl Server {
    pub(super) fn new(config: DhcpConfig, mtu: usize) -> Self {
        let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
        Self { config, mtu, leases: BTreeMap::new(), counters: DhcpCounters::default() }
    }

    pub(super) fn config(&self) -> &DhcpConfig {
        &self.config
    }

    /// Addresses that were granted.
    pub(super) fn leases(&self) -> impl Iterator<Item = DhcpLease> + '_ {
        let granted = self.leases.iter().filter(|(_, lease)| lease.state == State::Granted);
        granted.map(|(address, lease)| DhcpLease { client: lease.client, address: *address })
    }

    /// Decides on a message; `None`: no answer.
    pub(super) fn handle(&mut self, now: Instant, request: &Request) -> Option<Answer> {
        // A link address of a group, or of all zeros, is no client's.
        let [first, ..] = request.client;
        if first & 1 != 0 || request.client == [0; 6] {
            self.counters.malformed += 1;
            return None;
        }
        // A relay's answers would go to its address; a port has no relay.
        let others = request.server.is_some_and(|server| server != self.config.server);
        if !request.relay.is_unspecified() || others {
            if others && request.kind == Kind::Request {
                // RFC 2131 section 3.1, 4: "Those servers not selected by the DHCPREQUEST message
                // use the message as notification that the client has declined that server's offer."
                self.forget(request.client, |state| state == State::Offered);
            }
            self.counters.ignored += 1;
            return None;
        }
        match request.kind {
            Kind::Discover => self.discover(now, request),
            Kind::Request => self.request(now, request),
            Kind::Inform => {
                self.counters.informs += 1;
                Some(Answer::Inform)
            }
            Kind::Release => {
                self.counters.releases += 1;
                let has = request.has;
                if self.leases.get(&has).is_some_and(|lease| lease.client == request.client) {
                    self.forget(request.client, |state| state != State::Resting);
                }
                None
            }
            Kind::Decline => {
                self.decline(now, request);
                None
            }
            Kind::Offer | Kind::Ack | Kind::Nak | Kind::Unknown(_) => {
                self.counters.ignored += 1;
                None
            }
        }
    }

    /// RFC 2131 section 4.3.1: "the client's current address as recorded in the client's current
    /// binding, ELSE [its previous one], ELSE the address requested in the 'Requested IP Address'
    /// option, if that address is valid and not already allocated, ELSE a new address".
    fn discover(&mut self, now: Instant, request: &Request) -> Option<Answer> {
        let Some(address) = self.choose(now, request) else {
            self.counters.exhausted += 1;
            return None;
        };
        // A granted address keeps its time.
        let granted = self.leases.get(&address).is_some_and(|lease| {
            lease.client == request.client && lease.state == State::Granted && lease.until > now
        });
        if !granted {
            self.set(address, request.client, State::Offered, now + DHCP_OFFER_TIME);
        }
        self.counters.offers += 1;
        Some(Answer::Offer(address))
    }

    fn choose(&self, now: Instant, request: &Request) -> Option<Ipv4Addr> {
        if let Some(address) = self.address_of(request.client) {
            return Some(address);
        }
        if let Some(wanted) = request.wants.filter(|a| self.may_have(now, *a, request.client)) {
            return Some(wanted);
        }
        let all = u32::from(self.config.first)..=u32::from(self.config.last);
        // Addresses never given come first, so that a returning client finds its address.
        all.clone()
            .map(Ipv4Addr::from)
            .filter(|a| !self.leases.contains_key(a))
            .chain(all.map(Ipv4Addr::from))
            .find(|a| self.may_have(now, *a, request.client))
    }

    /// RFC 2131 section 4.3.2. A request with a server chose this one's offer; one with an address
    /// was away; one that has an address extends it. This is the only server on the link.
    fn request(&mut self, now: Instant, request: &Request) -> Option<Answer> {
        let address = match request.wants {
            Some(wanted) => wanted,
            None if !request.has.is_unspecified() => request.has,
            None => {
                self.counters.malformed += 1;
                return None;
            }
        };
        if !self.may_have(now, address, request.client) {
            self.counters.naks += 1;
            return Some(Answer::Nak);
        }
        self.set(address, request.client, State::Granted, now + self.lease());
        self.counters.acks += 1;
        Some(Answer::Ack(address))
    }

    /// RFC 2131 section 4.3.3: "the server MUST mark the network address as not available".
    fn decline(&mut self, now: Instant, request: &Request) {
        let address = request.wants.unwrap_or(request.has);
        match self.leases.get_mut(&address) {
            Some(lease) if lease.client == request.client => {
                lease.state = State::Resting;
                lease.until = now + DHCP_REST_TIME;
                self.counters.declines += 1;
            }
            _ => self.counters.ignored += 1,
        }
    }

    fn lease(&self) -> Duration {
        self.config.lease
    }

    /// The address that this client has or had.
    fn address_of(&self, client: [u8; 6]) -> Option<Ipv4Addr> {
        let mut all = self.leases.iter();
        all.find(|(_, l)| l.client == client && l.state != State::Resting).map(|(a, _)| *a)
    }

    /// Whether this client may have this address: it is in the range, and not another client's. A
    /// range of one address is for a link with one client, which may come back under another name.
    fn may_have(&self, now: Instant, address: Ipv4Addr, client: [u8; 6]) -> bool {
        let only = self.config.first == self.config.last;
        (self.config.first..=self.config.last).contains(&address)
            && address != self.config.server
            && self.leases.get(&address).is_none_or(|lease| {
                let its = only || lease.client == client;
                lease.until <= now || (its && lease.state != State::Resting)
            })
    }

    /// Gives an address to a client, which gives up any other.
    fn set(&mut self, address: Ipv4Addr, client: [u8; 6], state: State, until: Instant) {
        self.forget(client, |state| state != State::Resting);
        self.leases.insert(address, Lease { client, state, until });
    }

    fn forget(&mut self, client: [u8; 6], which: impl Fn(State) -> bool) {
        self.leases.retain(|_, lease| lease.client != client || !which(lease.state));
    }
}
