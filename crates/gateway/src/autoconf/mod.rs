//! Router advertisements (RFC 4861, RFC 8106) and DHCPv6 (RFC 8415) on a guest's link, below the
//! stack: a wrapper. Read [`Autoconf`] first.
//!
//! `ra.rs` makes advertisements, `dhcp6.rs` decides on DHCPv6 messages, both without frames and
//! clocks; `frame.rs` reads and builds frames.

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use pagewire::device::{Capabilities, DeviceCounters, DeviceError, Medium, PacketBuf, Steering};
use pagewire::memory::{CopyLedger, PoolAudit};
use pagewire::services::Instant;
use pagewire::{Cidr, Device};

use crate::limits::{AUTOCONF_ANSWERS, RA_INTERVAL, RESOLVERS};
use dhcp6::Dhcp6;
use frame::Asked;

pub(crate) mod dhcp6;
mod frame;
mod ra;
#[cfg(test)]
mod tests;

/// What guests configure themselves with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoconfConfig {
    /// The stack's own address on the link, with the prefix that guests make addresses in; it has
    /// 64 bits, or guests get the one address that DHCPv6 gives.
    pub network: Cidr,
    /// The address that DHCPv6 gives to whoever asks for one: the link's one guest.
    pub guest: Option<Ipv6Addr>,
    /// Resolvers.
    pub dns: Vec<Ipv6Addr>,
    /// Domain in which guests look for short names.
    pub domain: Option<String>,
}

impl AutoconfConfig {
    /// Settings for guests of this address of the stack's.
    pub fn new(network: Cidr) -> Self {
        Self { network, guest: None, dns: Vec::new(), domain: None }
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
        if self.guest.as_ref().is_some_and(outside) || self.guest == Some(address) {
            return wrong("the guest's address must be another one of the network");
        }
        if self.network.prefix() != 64 && self.guest.is_none() {
            return wrong("guests make addresses only in a prefix of 64 bits (RFC 4862)");
        }
        let long = |domain: &String| domain.parse::<crate::ask::Name>().is_err();
        if self.domain.as_ref().is_some_and(long) {
            return wrong("the domain is no name");
        }
        if self.dns.len() > RESOLVERS {
            return wrong("there are too many resolvers");
        }
        Ok(())
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Counts, in messages.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct AutoconfCounters { $($(#[$doc])* pub $name: u64,)* }

        impl AutoconfCounters {
            /// Names and counts.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),*].into_iter()
            }
        }

        #[derive(Debug, Default)]
        struct Shared { $($name: AtomicU64,)* }

        impl Shared {
            fn counters(&self) -> AutoconfCounters {
                AutoconfCounters { $($name: self.$name.load(Ordering::Relaxed)),* }
            }
        }
    };
}

counters! {
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
    /// DHCPv6 messages for other servers, from relays, or not for servers.
    ignored,
    /// Messages without an answer, because the device took no more frames.
    unanswered,
}

/// A view of the counts from outside of the device, on any thread.
#[derive(Clone, Debug)]
pub struct AutoconfWatch(Arc<Shared>);

impl AutoconfWatch {
    /// Counts so far.
    pub fn counters(&self) -> AutoconfCounters {
        self.0.counters()
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
pub struct Autoconf<D> {
    device: D,
    /// The body of an advertisement.
    advertisement: Vec<u8>,
    dhcp: Dhcp6,
    ours: frame::Ours,
    /// When the next advertisement to all is due.
    next: Instant,
    answers: VecDeque<PacketBuf>,
    /// Frames of the stack that the device had no room for in the last call.
    left: usize,
    shared: Arc<Shared>,
}

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
        let ours = frame::Ours { mac, link_local: link_local(mac) };
        let advertisement = ra::body(&config, mac, mtu);
        let (dhcp, shared) = (Dhcp6::new(&config, mac), Arc::default());
        let (answers, next) = (VecDeque::new(), Instant::ZERO);
        Ok(Self { device, advertisement, dhcp, ours, next, answers, left: 0, shared })
    }

    /// A view of the counts that outlives its place in a host.
    pub fn watch(&self) -> AutoconfWatch {
        AutoconfWatch(Arc::clone(&self.shared))
    }

    /// The device inside.
    pub fn get_ref(&self) -> &D {
        &self.device
    }

    /// Takes what is for us out of the frames received from `before` on, and prepares answers.
    fn sort(&mut self, frames: &mut VecDeque<PacketBuf>, before: usize, ledger: &mut CopyLedger) {
        let mut at = before;
        while let Some(frame) = frames.get_mut(at) {
            if !frame::is_asked(frame) {
                at += 1;
                continue;
            }
            let Some(frame) = frames.remove(at) else { break };
            if self.answers.len() >= AUTOCONF_ANSWERS {
                add(&self.shared.unanswered);
                continue;
            }
            let answer = self.answer(&frame, ledger);
            self.answers.extend(answer);
        }
    }

    fn answer(&mut self, frame: &PacketBuf, ledger: &mut CopyLedger) -> Option<PacketBuf> {
        let mut bytes = [0; frame::LONGEST];
        let Some(asked) = frame::read(frame, &mut bytes, ledger) else {
            add(&self.shared.malformed);
            return None;
        };
        match asked {
            Asked::Router { from, mac } => {
                add(&self.shared.solicited);
                frame::advertisement(&self.ours, from.map(|from| (from, mac)), &self.advertisement)
            }
            Asked::Dhcp { from, mac, message } => {
                let reply = match self.dhcp.handle(message) {
                    Ok(reply) => reply,
                    Err(dhcp6::Unanswered::Malformed) => {
                        add(&self.shared.malformed);
                        return None;
                    }
                    Err(dhcp6::Unanswered::NotForUs) => {
                        add(&self.shared.ignored);
                        return None;
                    }
                };
                let counter = match reply.kind {
                    dhcp6::Kind::Advertise => &self.shared.offers,
                    dhcp6::Kind::Reply => &self.shared.replies,
                };
                add(counter);
                if reply.declined {
                    add(&self.shared.declines);
                }
                frame::dhcp(&self.ours, (from, mac), &reply.bytes)
            }
        }
    }

    /// Advertises, if it is time to.
    fn advertise(&mut self, now: Instant) {
        if now < self.next || self.answers.len() >= AUTOCONF_ANSWERS {
            return;
        }
        self.next = now + RA_INTERVAL;
        add(&self.shared.advertisements);
        self.answers.extend(frame::advertisement(&self.ours, None, &self.advertisement));
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// The stack's link-local address: RFC 4291 appendix A.
fn link_local(mac: [u8; 6]) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

impl<D: Device> Device for Autoconf<D> {
    fn capabilities(&self) -> &Capabilities {
        self.device.capabilities()
    }

    fn transmit(
        &mut self,
        now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        self.advertise(now);
        // Frames that the device left behind stay in front, because a wrapper inside counts from there.
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
        if frames.iter_mut().skip(before).any(frame::is_asked) {
            self.sort(frames, before, ledger);
        }
        self.advertise(now);
        if !self.answers.is_empty() && self.left == 0 {
            self.device.transmit(now, &mut self.answers, ledger)?;
        }
        // As many as the device gave: a full burst means more frames, those for us included.
        result
    }

    fn take_refused(&mut self, frames: &mut VecDeque<PacketBuf>) {
        self.device.take_refused(frames);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let inner = self.device.poll_timeout();
        Some(inner.map_or(self.next, |at| at.min(self.next)))
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.device.wait_fd()
    }

    fn arm(&mut self) -> bool {
        self.device.arm()
    }

    fn disarm(&mut self) {
        self.device.disarm();
    }

    fn counters(&self) -> DeviceCounters {
        self.device.counters()
    }

    fn pool_audit(&self) -> Option<PoolAudit> {
        self.device.pool_audit()
    }

    fn room(&self) -> Option<usize> {
        self.device.room()
    }

    fn steering(&mut self) -> Option<&mut Steering> {
        self.device.steering()
    }
}
