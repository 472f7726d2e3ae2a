//! A DHCP server (RFC 2131) for a device's link, below the stack: a wrapper. Read [`Dhcp`] first.
//!
//! Answers go to machines that have no address yet, which only the link layer can name. `server`
//! decides, without frames and clocks; `frame` reads and builds frames, with `smoltcp`'s formats.

use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagewire_mem::{CopyLedger, Instant, PacketBuf};

use crate::device::{Device, DeviceError, forward_device};
use crate::intercept::{Intercept, Responder};
use crate::limits::{DHCP_LEASE, DHCP_MAX_ANSWERS, DHCP_MAX_LEASES, DHCP_MAX_RESOLVERS};
use pagewire_mem::link::{Capabilities, Medium};
use server::Server;

mod frame;
mod server;
#[cfg(test)]
mod server_tests;
#[cfg(test)]
mod tests;

/// The addresses to give, and the settings sent with them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DhcpConfig {
    /// The stack's own address, from which answers are sent. Never given.
    pub server: Ipv4Addr,
    /// Bits of the prefix of the clients' network.
    pub prefix: u8,
    /// First address to give; addresses are given in rising order.
    pub first: Ipv4Addr,
    /// Last address to give, at most [`DHCP_MAX_LEASES`] behind the first.
    pub last: Ipv4Addr,
    /// The clients' default router; `None`: none.
    pub router: Option<Ipv4Addr>,
    /// The clients' resolvers, at most three.
    pub dns: Vec<Ipv4Addr>,
    /// The domains in which clients look for short names, ASCII; the first is the clients' own. Those that
    /// would make the option longer than 255 bytes are left out.
    pub search: Vec<String>,
    /// How long a client may use an address unless it asks again; whole seconds, at least one.
    pub lease: Duration,
}

impl DhcpConfig {
    /// Leases of all addresses of a network except the stack's own, at most [`DHCP_MAX_LEASES`], for an hour.
    ///
    /// # Errors
    /// `Config` if the network has no other address to give.
    pub fn network(server: Ipv4Addr, prefix: u8) -> Result<Self, DeviceError> {
        if prefix > 30 {
            let why = "the network has no address to give; give it a prefix of at most 30 bits";
            return Err(DeviceError::Config(format!("DHCP on {server}/{prefix}: {why}")));
        }
        let (network, broadcast) = edges(server, prefix);
        let mut first = network.saturating_add(1);
        if first == u32::from(server) {
            first = first.saturating_add(1);
        }
        let most = first.saturating_add(DHCP_MAX_LEASES as u32 - 1);
        let mut last = broadcast.saturating_sub(1).min(most);
        if last == u32::from(server) {
            last = last.saturating_sub(1);
        }
        Self::leases(server, prefix, first.into(), last.into()).checked()
    }

    /// A lease of one address, for an hour. The server may be outside of the client's network: the client
    /// then gets a route to its router as well (RFC 3442).
    ///
    /// # Errors
    /// `Config` if no host can have the address in a network of this prefix.
    pub fn host(server: Ipv4Addr, client: Ipv4Addr, prefix: u8) -> Result<Self, DeviceError> {
        Self::leases(server, prefix, client, client).checked()
    }

    /// Sets another range of addresses.
    ///
    /// # Errors
    /// `Config` if it is empty, too long, or not inside the server's network.
    pub fn range(self, first: Ipv4Addr, last: Ipv4Addr) -> Result<Self, DeviceError> {
        let range = Self { first, last, ..self };
        match range.is_around(range.server) {
            true => range.checked(),
            false => range.wrong(NOT_FOR_HOSTS),
        }
    }

    fn leases(server: Ipv4Addr, prefix: u8, first: Ipv4Addr, last: Ipv4Addr) -> Self {
        let (dns, search) = (Vec::new(), Vec::new());
        Self { server, prefix, first, last, router: None, dns, search, lease: DHCP_LEASE }
    }

    /// Whether the clients' network has this address.
    fn is_around(&self, address: Ipv4Addr) -> bool {
        edges(self.first, self.prefix) == edges(address, self.prefix)
    }

    fn wrong<T>(&self, why: &str) -> Result<T, DeviceError> {
        let Self { server, prefix, first, last, .. } = self;
        Err(DeviceError::Config(format!("DHCP for {first}-{last} on {server}/{prefix}: {why}")))
    }

    fn checked(self) -> Result<Self, DeviceError> {
        let (network, broadcast) = edges(self.first, self.prefix);
        let (first, last) = (u32::from(self.first), u32::from(self.last));
        let wrong = |why: &str| self.wrong(why);
        if first > last || (first == last && self.first == self.server) {
            return wrong("the range has no address");
        }
        // RFC 3021: both addresses of a prefix of 31 bits are hosts'. One of 32 bits is a host's own.
        let has_edges = self.prefix <= 30;
        let several = first < last;
        let edge = has_edges && (first <= network || last >= broadcast);
        if edge || last > broadcast || self.prefix > 32 {
            return wrong(NOT_FOR_HOSTS);
        }
        if several && (!has_edges || !self.is_around(self.server)) {
            return wrong("several clients need a network with the server's address");
        }
        if (last - first) as usize >= DHCP_MAX_LEASES {
            return wrong(&format!("at most {DHCP_MAX_LEASES} addresses can be given"));
        }
        if self.lease < Duration::from_secs(1) || self.lease.as_secs() >= u64::from(u32::MAX) {
            return wrong("a lease lasts between one second and 136 years");
        }
        if self.dns.len() > DHCP_MAX_RESOLVERS {
            return wrong(&format!("at most {DHCP_MAX_RESOLVERS} resolvers can be sent"));
        }
        let long = |domain: &String| domain.is_empty() || domain.len() > 253 || !domain.is_ascii();
        if self.search.iter().any(long) {
            return wrong("a domain has 1 to 253 ASCII characters");
        }
        let label = |label: &str| !(1..=63).contains(&label.len());
        if self.search.iter().any(|domain| domain.split('.').any(label)) {
            return wrong("the labels of a domain have 1 to 63 characters");
        }
        Ok(self)
    }

    fn broadcast(&self) -> Ipv4Addr {
        edges(self.first, self.prefix).1.into()
    }

    fn mask(&self) -> Ipv4Addr {
        (!host_bits(self.prefix)).into()
    }
}

const NOT_FOR_HOSTS: &str = "the range has addresses that are not for hosts of the network";

fn host_bits(prefix: u8) -> u32 {
    u32::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

/// A network's first and last address, which no host has (RFC 1122 section 3.2.1.3).
fn edges(address: Ipv4Addr, prefix: u8) -> (u32, u32) {
    let hosts = host_bits(prefix);
    (u32::from(address) & !hosts, u32::from(address) | hosts)
}

pagewire_mem::counters! {
    /// Counts of a server, in messages.
    #[derive(Copy)]
    pub struct DhcpCounters {
        /// Addresses offered (DHCPOFFER).
        offers,
        /// Requests granted (DHCPACK).
        acks,
        /// Requests refused (DHCPNAK): for another client's address, or one of another network.
        naks,
        /// Answers to clients that have an address already and ask for the rest (DHCPINFORM).
        informs,
        /// Addresses given back (DHCPRELEASE).
        releases,
        /// Addresses that a client found in use (DHCPDECLINE); they are not given for a while.
        declines,
        /// Malformed messages, including those that are too long.
        malformed,
        /// Messages for other servers, through relays, or not for servers.
        ignored,
        /// Requests without an answer because every address is given.
        exhausted,
        /// Requests without an answer because the device took no more frames.
        unanswered,
    }
}

/// An address that a client has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DhcpLease {
    /// The client's link address.
    pub client: [u8; 6],
    /// The client's address.
    pub address: Ipv4Addr,
}

/// A view of a server from outside of its device, on any thread.
#[derive(Clone, Debug)]
pub struct DhcpWatch(Arc<Mutex<DhcpState>>);

/// The counters and leases that a view shows.
#[derive(Debug, Default)]
struct DhcpState {
    counters: DhcpCounters,
    leases: Vec<DhcpLease>,
}

impl DhcpWatch {
    /// Counts so far.
    pub fn counters(&self) -> DhcpCounters {
        self.state().counters
    }

    /// Granted addresses, in rising order. Expired ones stay until their place is needed.
    pub fn leases(&self) -> Vec<DhcpLease> {
        self.state().leases.clone()
    }

    fn state(&self) -> MutexGuard<'_, DhcpState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Answers DHCP requests on a device's link; every other frame passes unchanged.
///
/// Leases are kept in memory. A client that asks for the address that it had before a restart keeps
/// it, if no other client has it: this is the only server on the link. A range of one address is
/// for a link with one client: whoever asks gets it.
///
/// ```
/// use pagewire_device::{Dhcp, DhcpConfig, Pair};
///
/// // A pair here; for virtual machines, a `VhostUser`.
/// let (device, _clients) = Pair::new()?;
/// let config = DhcpConfig::network("10.77.0.2".parse()?, 24)?; // the stack's own address
/// let config = config.range("10.77.0.10".parse()?, "10.77.0.99".parse()?)?;
/// let device = Dhcp::new(device, config)?;
/// // The device goes into a host, or a stack, with the same address. This stays outside.
/// let watch = device.watch();
/// assert!(watch.leases().is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Dhcp<D>(Intercept<D, Answering>);

impl<D: Device> Dhcp<D> {
    /// Answers on the link of `device`.
    ///
    /// # Errors
    /// `Config` if the device has no Ethernet, or the settings contradict each other.
    pub fn new(device: D, config: DhcpConfig) -> Result<Self, DeviceError> {
        let Capabilities { medium, mac, mtu, .. } = *device.capabilities();
        if medium != Medium::Ethernet {
            let text = "DHCP needs a device whose frames are Ethernet's";
            return Err(DeviceError::Config(text.into()));
        }
        let server = Server::new(config.checked()?, mtu);
        let watch = DhcpWatch(Arc::default());
        Ok(Self(Intercept::new(device, Answering { server, mac, watch })))
    }

    /// A view of this server that outlives its place in a host.
    pub fn watch(&self) -> DhcpWatch {
        self.0.responder().watch.clone()
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        self.0.get_ref()
    }
}

impl<D: Device> Device for Dhcp<D> {
    forward_device! {
        self => self.0;
        capabilities transmit receive take_refused poll_timeout wait_fd arm disarm counters
        pool_audit trim room steering
    }
}

/// The server on a link.
struct Answering {
    server: Server,
    mac: [u8; 6],
    watch: DhcpWatch,
}

impl Responder for Answering {
    const ANSWERS: usize = DHCP_MAX_ANSWERS;

    #[inline]
    fn wants(&self, frame: &mut PacketBuf) -> bool {
        frame::is_request(frame, self.server.config())
    }

    fn handle(
        &mut self,
        now: Instant,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    ) -> Option<PacketBuf> {
        frame::answer(&mut self.server, now, frame, self.mac, ledger)
    }

    fn handle_unanswered(&mut self) {
        self.server.counters.unanswered += 1;
    }

    fn end_burst(&mut self) {
        let mut state = self.watch.state();
        state.counters = self.server.counters;
        state.leases.clear();
        state.leases.extend(self.server.leases());
    }
}
