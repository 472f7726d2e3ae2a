//! A DHCP server (RFC 2131) for a device's link, below the stack: a wrapper. Read [`Dhcp`] first.
//!
//! Answers go to machines that have no address yet, which only the link layer can name. `server`
//! decides, without frames and clocks; `frame` reads and builds frames, with `smoltcp`'s formats.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pagewire_mem::{CopyLedger, Instant, PacketBuf};

use crate::device::{Device, DeviceError, forward_device};
use crate::limits::{DHCP_LEASE, DHCP_MAX_ANSWERS, DHCP_MAX_LEASES, DHCP_MAX_RESOLVERS};
use pagewire_mem::link::Medium;
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
    /// Bits of the network's prefix.
    pub prefix: u8,
    /// First address to give; addresses are given in rising order.
    pub first: Ipv4Addr,
    /// Last address to give, at most [`DHCP_MAX_LEASES`] behind the first.
    pub last: Ipv4Addr,
    /// The clients' default router; `None`: none.
    pub router: Option<Ipv4Addr>,
    /// The clients' resolvers, at most three.
    pub dns: Vec<Ipv4Addr>,
    /// The domain in which clients look for short names; ASCII.
    pub domain: Option<String>,
    /// How long a client may use an address unless it asks again; whole seconds, at least one.
    pub lease: Duration,
}

impl DhcpConfig {
    /// All addresses of a network except the stack's own, at most [`DHCP_MAX_LEASES`], for an hour.
    ///
    /// # Errors
    /// `Config` if the network has no other address to give.
    pub fn network(server: Ipv4Addr, prefix: u8) -> Result<Self, DeviceError> {
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
        Self {
            server,
            prefix,
            first: first.into(),
            last: last.into(),
            router: None,
            dns: Vec::new(),
            domain: None,
            lease: DHCP_LEASE,
        }
        .checked()
    }

    /// Sets another range of addresses.
    ///
    /// # Errors
    /// `Config` if it is empty, too long, or not inside the network.
    pub fn range(self, first: Ipv4Addr, last: Ipv4Addr) -> Result<Self, DeviceError> {
        Self { first, last, ..self }.checked()
    }

    fn checked(self) -> Result<Self, DeviceError> {
        let (network, broadcast) = edges(self.server, self.prefix);
        let (first, last) = (u32::from(self.first), u32::from(self.last));
        let wrong = |why: &str| {
            let (server, prefix) = (self.server, self.prefix);
            let text = format!("DHCP for {}-{} on {server}/{prefix}: {why}", self.first, self.last);
            Err(DeviceError::Config(text))
        };
        if self.prefix > 30 {
            return wrong(
                "the network has no address to give; give it a prefix of at most 30 bits",
            );
        }
        if first > last || (first == last && self.first == self.server) {
            return wrong("the range has no address");
        }
        if first <= network || last >= broadcast {
            return wrong("the range has addresses that are not for hosts of the network");
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
        if self.domain.as_ref().is_some_and(long) {
            return wrong("the domain has 1 to 253 ASCII characters");
        }
        Ok(self)
    }

    fn broadcast(&self) -> Ipv4Addr {
        edges(self.server, self.prefix).1.into()
    }

    fn mask(&self) -> Ipv4Addr {
        (!host_bits(self.prefix)).into()
    }
}

fn host_bits(prefix: u8) -> u32 {
    u32::MAX.checked_shr(prefix.into()).unwrap_or(0)
}

/// A network's first and last address, which no host has (RFC 1122 section 3.2.1.3).
fn edges(address: Ipv4Addr, prefix: u8) -> (u32, u32) {
    let hosts = host_bits(prefix);
    (u32::from(address) & !hosts, u32::from(address) | hosts)
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts of a server, in messages.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct DhcpCounters { $($(#[$doc])* pub $name: u64,)* }

        impl DhcpCounters {
            /// Names and counts.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        #[derive(Debug, Default)]
        struct Shared { $($name: AtomicU64,)* leases: Mutex<Vec<DhcpLease>> }

        impl Shared {
            fn counters(&self) -> DhcpCounters {
                DhcpCounters { $($name: self.$name.load(Ordering::Relaxed)),* }
            }

            fn publish(&self, counters: &DhcpCounters) {
                $(self.$name.store(counters.$name, Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
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
pub struct DhcpWatch(Arc<Shared>);

impl DhcpWatch {
    /// Counts so far.
    pub fn counters(&self) -> DhcpCounters {
        self.0.counters()
    }

    /// Granted addresses, in rising order. Expired ones stay until their place is needed.
    pub fn leases(&self) -> Vec<DhcpLease> {
        self.0.leases.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
pub struct Dhcp<D> {
    device: D,
    server: Server,
    answers: VecDeque<PacketBuf>,
    /// Frames of the stack that the device had no room for in the last call.
    left: usize,
    shared: Arc<Shared>,
}

impl<D: Device> Dhcp<D> {
    /// Answers on the link of `device`.
    ///
    /// # Errors
    /// `Config` if the device has no Ethernet, or the settings contradict each other.
    pub fn new(device: D, config: DhcpConfig) -> Result<Self, DeviceError> {
        if device.capabilities().medium != Medium::Ethernet {
            let text = "DHCP needs a device whose frames are Ethernet's";
            return Err(DeviceError::Config(text.into()));
        }
        let server = Server::new(config.checked()?, device.capabilities().mtu);
        let shared = Arc::default();
        Ok(Self { device, server, answers: VecDeque::new(), left: 0, shared })
    }

    /// A view of this server that outlives its place in a host.
    pub fn watch(&self) -> DhcpWatch {
        DhcpWatch(Arc::clone(&self.shared))
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        &self.device
    }

    /// Removes requests from the frames received from `before` on, and prepares the answers.
    fn sort(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        before: usize,
        ledger: &mut CopyLedger,
    ) {
        let mut at = before;
        while let Some(frame) = frames.get_mut(at) {
            if !frame::is_request(frame, self.server.config()) {
                at += 1;
                continue;
            }
            let Some(frame) = frames.remove(at) else { break };
            if self.answers.len() >= DHCP_MAX_ANSWERS {
                self.server.counters.unanswered += 1;
                continue;
            }
            let mac = self.device.capabilities().mac;
            self.answers.extend(frame::answer(&mut self.server, now, &frame, mac, ledger));
        }
        self.shared.publish(&self.server.counters);
        let mut leases = self.shared.leases.lock().unwrap_or_else(PoisonError::into_inner);
        leases.clear();
        leases.extend(self.server.leases());
    }
}

impl<D: Device> Device for Dhcp<D> {
    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        // Frames that the device left behind stay in front, because a capture inside counts from there.
        if self.left > 0 {
            frames.append(&mut self.answers);
        } else {
            while let Some(answer) = self.answers.pop_back() {
                frames.push_front(answer);
            }
        }
        let result = self.device.transmit(now, frames, ledger);
        self.left = frames.len();
        result
    }

    fn receive(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let before = frames.len();
        let result = self.device.receive(now, frames, max, ledger);
        let config = self.server.config();
        if frames.iter_mut().skip(before).any(|frame| frame::is_request(frame, config)) {
            self.sort(now, frames, before, ledger);
        }
        if !self.answers.is_empty() && self.left == 0 {
            self.device.transmit(now, &mut self.answers, ledger)?;
        }
        // As many as the device gave: a full burst means more frames, requests included.
        result
    }

    forward_device! {
        self => self.device;
        capabilities take_refused poll_timeout wait_fd arm disarm counters pool_audit room
        steering
    }
}
