//! Settings of a stack.

use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;

use pagewire_mem::PageBudget;
use pagewire_mem::link::Capabilities;
use pagewire_tcp::{Config as TcpConfig, FastOpenKeys, FastOpenMode};

use crate::cidr::Cidr;
use crate::limits::{DEFAULT_NOTIFICATION_BYTES, RECEIVED_DEADLINE};
use crate::net::LinkConfig;
use crate::shards::Shard;

/// Settings of a stack.
#[derive(Clone)]
#[non_exhaustive]
pub struct StackConfig {
    /// The capabilities of the first link's device.
    pub capabilities: Capabilities,
    /// Our addresses on the first link.
    pub addresses: Vec<Cidr>,
    /// Default gateways, in order of preference. On a medium without stations any address serves.
    pub gateways: Vec<IpAddr>,
    /// Further routes: a network, and the gateway that leads there; see [`LinkConfig::routes`].
    pub routes: Vec<(Cidr, IpAddr)>,
    /// Whether the first link is [transparent](LinkConfig::transparent).
    pub transparent: bool,
    /// Whether the first link answers for other hosts; see [`LinkConfig::proxy_arp`].
    pub proxy_arp: bool,
    /// Further links, each a device with addresses of its own.
    pub links: Vec<LinkConfig>,
    /// With several links: whether to drop packets that came by another link than answers to their
    /// source would leave by (Linux's `rp_filter` in strict mode, RFC 3704 section 2.2). On by
    /// default: no peer can impersonate one on another link.
    pub reverse_path_check: bool,
    /// Whether the stack is a router between its links (Linux's `ip_forward`).
    pub ip_forwarding: bool,
    /// The secret behind sequence numbers, ports and hash keys: fresh random bytes.
    pub secret: [u8; 32],
    /// The place among the shards of one host, which all have the same settings but for this one; `None`: the
    /// stack is alone. With another number than 0 it does not announce its addresses.
    pub shard: Option<Shard>,
    /// Settings of new connections.
    pub tcp: TcpConfig,
    /// Bytes of memory that all sockets together may pin: unread data, datagrams (at most half of it), and
    /// copies of what is sent ([`MemoryAccount`](pagewire_tcp::MemoryAccount)). Touched only as far as used.
    /// The device's memory for received frames has to be more, or the stack has to know how much of that
    /// is left ([`Stack::set_receive_room`](crate::Stack::set_receive_room)): otherwise sockets that do
    /// not read take all of it from those that do.
    pub memory: usize,
    /// What is behind the pages that the stack copies to.
    pub pool: PoolMemory,
    /// Challenge ACKs per second, on average and of all connections together (RFC 5961); `None`:
    /// only each connection's own limit.
    pub challenge_acks_per_second: Option<u32>,
    /// When SYNs are answered without remembering them.
    pub syn_cookies: SynCookies,
    /// When a new connection may replace one in TIME-WAIT.
    pub time_wait_reuse: TimeWaitReuse,
    /// TCP Fast Open.
    pub fast_open: FastOpenConfig,
    /// Whether payload to an address of ours passes by reference. By default it is copied, because
    /// a receiver that never reads would keep the sender's memory for ever.
    pub loopback_by_reference: bool,
    /// Whether to announce our addresses at the start (RFC 5227, RFC 4861).
    pub announce: bool,
    /// Settings of zero-copy sends with a notification.
    pub zerocopy: ZeroCopyConfig,
}

/// Default memory: windows' worth for some hundred connections.
const DEFAULT_MEMORY: usize = 64 << 20;

impl StackConfig {
    /// Settings with the defaults of everything else.
    pub fn new(capabilities: Capabilities, addresses: Vec<Cidr>, secret: [u8; 32]) -> Self {
        Self {
            capabilities,
            addresses,
            gateways: Vec::new(),
            routes: Vec::new(),
            transparent: false,
            proxy_arp: false,
            links: Vec::new(),
            reverse_path_check: true,
            ip_forwarding: false,
            secret,
            shard: None,
            tcp: TcpConfig::default(),
            memory: DEFAULT_MEMORY,
            pool: PoolMemory::default(),
            challenge_acks_per_second: None,
            syn_cookies: SynCookies::default(),
            time_wait_reuse: TimeWaitReuse::default(),
            fast_open: FastOpenConfig::default(),
            loopback_by_reference: false,
            announce: true,
            zerocopy: ZeroCopyConfig::default(),
        }
    }
}

impl core::fmt::Debug for StackConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Without the secret.
        let Self { capabilities, addresses, gateways, routes, links, tcp, memory, .. } = self;
        f.debug_struct("StackConfig")
            .field("capabilities", capabilities)
            .field("addresses", addresses)
            .field("gateways", gateways)
            .field("routes", routes)
            .field("links", links)
            .field("tcp", tcp)
            .field("memory", memory)
            .finish_non_exhaustive()
    }
}

/// The memory behind a stack's pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PoolMemory {
    /// A file in memory, which can be mapped again: one descriptor.
    #[default]
    File,
    /// Nothing else: no descriptor, for many stacks in one process.
    Anonymous,
}

/// When a listener answers SYNs with cookies (Linux's `tcp_syncookies`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Never: SYNs beyond the queue of half-open connections are dropped.
    Off,
    /// When the queue of half-open connections is full.
    #[default]
    WhenFull,
    /// Always.
    Always,
}

/// When one in TIME-WAIT may be replaced, if both have timestamps (Linux's `tcp_tw_reuse`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeWaitReuse {
    /// Never.
    Off,
    /// To any address.
    On,
    /// To addresses of this host.
    #[default]
    Loopback,
}

/// Settings of TCP Fast Open (RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenConfig {
    /// On which sides, and whether with cookies.
    pub mode: FastOpenMode,
    /// Keys that listeners without their own make cookies with; `None`: from the stack's secret.
    pub keys: Option<FastOpenKeys>,
    /// How long connections do without it after a path seems to have swallowed one; each further
    /// time doubles it, up to 64 times. Zero, the default as in Linux: never.
    pub rest: Duration,
}

/// The rule by which notifications are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalescing {
    /// Consecutive ones with the same copied flag. Sends complete one by one, but together if they
    /// are contiguous in memory and the earlier one has unsent bytes, up to 512 KiB.
    #[default]
    SameKind,
    /// As on Linux: all consecutive ones; the oldest one's copied flag counts. Consecutive sends
    /// complete together while the earlier one has unsent bytes, up to 512 KiB; data of two
    /// completions does not share a segment.
    Linux,
}

/// Settings of zero-copy sends.
#[derive(Clone, Debug)]
pub struct ZeroCopyConfig {
    /// The budget of pages that sends keep, shared by all stacks of one user; no limit by default,
    /// because a stack cannot know the user's (`RLIMIT_MEMLOCK`).
    pub pages: Arc<PageBudget>,
    /// Bytes for one socket's notifications, unread and outstanding: 704 each (Linux's
    /// `optmem_max`). 1 MiB by default.
    pub notification_bytes: usize,
    /// The rule by which notifications are merged, on sockets without a
    /// [setting](crate::SocketOption::Coalescing) of their own.
    pub coalescing: Coalescing,
    /// Whether every frame carries private copies of payload that was sent by reference, as on
    /// Linux's tun device; for tests against Linux's traces.
    pub looped_copy: bool,
    /// How long borrowed memory (the sender's own, which the pair link passes by reference) may wait to
    /// be read before a private copy replaces it, so that the sender gets it back; never more than
    /// twice as long. `None`: for ever. A second by default.
    pub received_deadline: Option<Duration>,
}

impl Default for ZeroCopyConfig {
    fn default() -> Self {
        Self {
            pages: Arc::new(PageBudget::new(usize::MAX)),
            notification_bytes: DEFAULT_NOTIFICATION_BYTES,
            coalescing: Coalescing::default(),
            looped_copy: false,
            received_deadline: Some(RECEIVED_DEADLINE),
        }
    }
}
