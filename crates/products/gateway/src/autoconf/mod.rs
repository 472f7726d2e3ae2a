//! Router advertisements (RFC 4861, RFC 8106) and DHCPv6 (RFC 8415) on a guest's link, below the
//! stack: a wrapper. Read [`Autoconf`] first.
//!
//! `ra.rs` makes advertisements, `dhcp6.rs` decides on DHCPv6 messages, both without frames and
//! clocks; `frame.rs` reads and builds frames.

use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire::device::{Capabilities, DeviceError, Medium, PacketBuf};
use pagewire::memory::CopyLedger;
use pagewire::parts::forward_device;
use pagewire::parts::intercept::{Intercept, Responder};
use pagewire::services::Instant;
use pagewire::{Cidr, Device};

use crate::limits::{AUTOCONF_ANSWERS, RA_INTERVAL, RESOLVERS, SEARCH_DOMAINS};
use dhcp6::Dhcp6;
use frame::Asked;

pub(crate) mod dhcp6;
mod frame;
mod ra;
#[cfg(test)]
mod tests;

/// The settings that guests configure themselves with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoconfConfig {
    /// The stack's own address on the link, with the prefix that guests make addresses in; it has
    /// 64 bits, or guests get the one address that DHCPv6 gives. A prefix of 128 bits is that guest's own
    /// address, and is not advertised.
    pub network: Cidr,
    /// The address that DHCPv6 gives to whoever asks for one: the link's one guest.
    pub guest: Option<Ipv6Addr>,
    /// Resolvers.
    pub dns: Vec<Ipv6Addr>,
    /// Domains in which guests look for short names.
    pub search: Vec<String>,
    /// The router's link-local address; `None`: the one that follows from its link address.
    pub router: Option<Ipv6Addr>,
    /// Whether advertisements are sent.
    pub advertises: bool,
    /// Whether DHCPv6 is answered.
    pub dhcp: bool,
}

impl AutoconfConfig {
    /// Settings for guests of this address of the stack's.
    pub fn new(network: Cidr) -> Self {
        Self {
            network,
            guest: None,
            dns: Vec::new(),
            search: Vec::new(),
            router: None,
            advertises: true,
            dhcp: true,
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        let wrong = |why: &str| {
            let text = format!("router advertisements for {}: {why}", self.network);
            Err(DeviceError::Config(text))
        };
        let std::net::IpAddr::V6(address) = self.network.addr() else {
            return wrong("they are for IPv6: give an IPv6 network");
        };
        let outside = |guest: &Ipv6Addr| !self.network.contains((*guest).into());
        let alone = self.network.prefix() == 128;
        if self.guest.as_ref().is_some_and(outside) || (self.guest == Some(address) && !alone) {
            return wrong("the guest's address must be another one of the network");
        }
        if self.network.prefix() != 64 && self.guest.is_none() {
            return wrong("guests make addresses only in a prefix of 64 bits (RFC 4862)");
        }
        let long = |domain: &String| domain.parse::<crate::request::Name>().is_err();
        if self.search.iter().any(long) {
            return wrong("a domain of the search list is no name");
        }
        if self.search.len() > SEARCH_DOMAINS {
            return wrong("the search list is too long");
        }
        if self.router.is_some_and(|router| !router.is_unicast_link_local()) {
            return wrong("the router's address is a link-local one (RFC 4861 section 4.2)");
        }
        if self.dns.len() > RESOLVERS {
            return wrong("there are too many resolvers");
        }
        Ok(())
    }
}

pagewire::parts::counters! {
    /// Counts, in messages.
    #[derive(Copy)]
    pub struct AutoconfCounters {
        /// Router advertisements to all, without being asked.
        advertisements,
        /// Router solicitations answered.
        solicited,
        /// DHCPv6: addresses offered.
        offers,
        /// DHCPv6: answers with an address or settings.
        replies,
        /// DHCPv6: addresses that a client found in use.
        declines,
        /// Malformed messages.
        malformed,
        /// DHCPv6 messages for other servers, from relays, or not for servers; and all that are switched off.
        ignored,
        /// Messages without an answer, because the device took no more frames.
        unanswered,
    }
}

/// A view of the counts from outside of the device, on any thread.
#[derive(Clone, Debug)]
pub struct AutoconfWatch(Arc<Mutex<AutoconfCounters>>);

impl AutoconfWatch {
    /// Counts so far.
    pub fn counters(&self) -> AutoconfCounters {
        *self.counted()
    }

    fn counted(&self) -> MutexGuard<'_, AutoconfCounters> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Advertises the stack as the link's router, and answers router solicitations and DHCPv6; every
/// other frame passes unchanged.
///
/// ```
/// use pagewire::Pair;
/// use pagewire_gateway::{Autoconf, AutoconfConfig};
///
/// let (device, _guest) = Pair::new()?;
/// let mut config = AutoconfConfig::new("fd00:2::2/64".parse()?); // the stack's own address
/// config.dns.push("fd00:2::2".parse()?);
/// let device = Autoconf::new(device, config)?;
/// assert_eq!(device.watch().counters().solicited, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Autoconf<D>(Intercept<D, Router>);

impl<D: Device> Autoconf<D> {
    /// Answers on the link of `device`.
    ///
    /// # Errors
    /// `Config` if the device has no Ethernet, or the settings contradict each other.
    pub fn new(device: D, config: AutoconfConfig) -> Result<Self, DeviceError> {
        let Capabilities { medium, mac, mtu, .. } = *device.capabilities();
        if medium != Medium::Ethernet {
            let text = "router advertisements need a device whose frames are Ethernet's";
            return Err(DeviceError::Config(text.into()));
        }
        config.check()?;
        let router = Router {
            advertisement: ra::body(&config, mac, mtu),
            dhcp: Dhcp6::new(&config, mac),
            ours: frame::Ours { mac, link_local: config.router.unwrap_or_else(|| link_local(mac)) },
            advertises: config.advertises,
            answers_dhcp: config.dhcp,
            next: Instant::ZERO,
            watch: AutoconfWatch(Arc::default()),
        };
        Ok(Self(Intercept::new(device, router)))
    }

    /// A view of the counts that outlives its place in a host.
    pub fn watch(&self) -> AutoconfWatch {
        self.0.responder().watch.clone()
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        self.0.get_ref()
    }
}

impl<D: Device> Device for Autoconf<D> {
    forward_device! {
        self => self.0;
        capabilities transmit receive take_refused poll_timeout wait_fd arm disarm counters
        pool_audit trim room steering
    }
}

/// The router that guests see.
struct Router {
    /// The body of an advertisement.
    advertisement: Vec<u8>,
    dhcp: Dhcp6,
    ours: frame::Ours,
    advertises: bool,
    answers_dhcp: bool,
    /// When the next advertisement to all is due.
    next: Instant,
    watch: AutoconfWatch,
}

impl Responder for Router {
    const ANSWERS: usize = AUTOCONF_ANSWERS;

    #[inline]
    fn wants(&self, frame: &mut PacketBuf) -> bool {
        frame::is_asked(frame)
    }

    fn handle(
        &mut self,
        _now: Instant,
        frame: &PacketBuf,
        ledger: &mut CopyLedger,
    ) -> Option<PacketBuf> {
        let mut counters = self.watch.counted();
        let mut bytes = [0; frame::LONGEST];
        let Some(asked) = frame::read(frame, &mut bytes, ledger) else {
            counters.malformed += 1;
            return None;
        };
        match asked {
            Asked::Router { .. } if !self.advertises => {
                counters.ignored += 1;
                None
            }
            Asked::Dhcp { .. } if !self.answers_dhcp => {
                counters.ignored += 1;
                None
            }
            Asked::Router { from, mac } => {
                counters.solicited += 1;
                frame::advertisement(&self.ours, from.map(|from| (from, mac)), &self.advertisement)
            }
            Asked::Dhcp { from, mac, message } => {
                let reply = match self.dhcp.handle(message) {
                    Ok(reply) => reply,
                    Err(dhcp6::Unanswered::Malformed) => {
                        counters.malformed += 1;
                        return None;
                    }
                    Err(dhcp6::Unanswered::NotForUs) => {
                        counters.ignored += 1;
                        return None;
                    }
                };
                match reply.kind {
                    dhcp6::Kind::Advertise => counters.offers += 1,
                    dhcp6::Kind::Reply => counters.replies += 1,
                }
                counters.declines += u64::from(reply.declined);
                frame::dhcp(&self.ours, (from, mac), &reply.bytes)
            }
        }
    }

    fn handle_unanswered(&mut self) {
        self.watch.counted().unanswered += 1;
    }

    /// An advertisement to all.
    fn poll(&mut self, now: Instant) -> Option<PacketBuf> {
        if now < self.next || !self.advertises {
            return None;
        }
        self.next = now + RA_INTERVAL;
        self.watch.counted().advertisements += 1;
        frame::advertisement(&self.ours, None, &self.advertisement)
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.advertises.then_some(self.next)
    }
}

/// The stack's link-local address: RFC 4291 appendix A.
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}
