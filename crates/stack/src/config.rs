//! Settings of a stack.

use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;

use pagewire_device::Capabilities;
use pagewire_mem::PageBudget;
use pagewire_tcp::{Config as TcpConfig, FastOpenKeys, FastOpenMode};

use crate::cidr::Cidr;
use crate::limits::{DEFAULT_NOTIFICATION_BYTES, RECEIVED_DEADLINE};
use crate::net::LinkConfig;

/// Settings of a stack.
#[derive(Clone)]
#[non_exhaustive]
pub struct StackConfig {
    /// What the device can do; of the first link's, if there are several.
    pub capabilities: Capabilities,
    /// Our addresses on it, each with the length of its network's prefix.
    pub addresses: Vec<Cidr>,
    /// Where packets go that are for no network of ours: default gateways, in order of preference.
    /// On a medium without stations any address serves, one of ours for instance.
    pub gateways: Vec<IpAddr>,
    /// Further routes: a network, and the gateway that leads there.
    pub routes: Vec<(Cidr, IpAddr)>,
    /// Further links, each a device with addresses of its own.
    pub links: Vec<LinkConfig>,
    /// With several links: whether packets are dropped that came by another link than answers to
    /// their source would leave by (Linux's `rp_filter` in strict mode, RFC 3704 section 2.2). On by
    /// default: no peer can pass for one on another link.
    pub reverse_path_check: bool,
    /// Whether packets for others are passed on from link to link (Linux's `ip_forward`).
    pub ip_forwarding: bool,
    /// Keys for sequence numbers, ports and hashes: fresh random bytes.
    pub secret: [u8; 32],
    /// Settings of new connections.
    pub tcp: TcpConfig,
    /// Bytes of memory for payload that is written by copy, or has to be copied; touched only as
    /// far as used.
    pub pool_bytes: usize,
    /// Bytes of memory that TCP connections and datagram sockets may pin, all together, for what they
    /// received and nobody has read, the latter at most half of it: less than the device has for what comes in, or those who do not read take
    /// everything from those who do.
    pub receive_memory: usize,
    /// Answers per second to TCP segments that make no sense, all connections together and on
    /// average; `None`: only each connection's own limit.
    pub challenge_acks_per_second: Option<u32>,
    /// When SYNs are answered without remembering them.
    pub syn_cookies: SynCookies,
    /// When a connection of ours may use ports that are still in TIME-WAIT.
    pub time_wait_reuse: TimeWaitReuse,
    /// TCP Fast Open.
    pub fast_open: FastOpenConfig,
    /// Whether payload that loops back to an address of ours passes by reference. By default it
    /// is copied, because a receiver that never reads would hold the sender's memory for ever.
    pub loopback_by_reference: bool,
    /// Whether our addresses are announced on the link at the start (RFC 5227, RFC 4861).
    pub announce: bool,
    /// Settings of zero-copy sends with a notification.
    pub zerocopy: ZeroCopyConfig,
}

/// Bytes of a pool unless told otherwise: some hundred connections with a window's worth each.
const DEFAULT_POOL_BYTES: usize = 64 << 20;

/// Bytes of receive memory unless told otherwise: three quarters of what a tap has for what comes
/// in, so that a quarter is left to everybody's next segments.
const DEFAULT_RECEIVE_MEMORY: usize = 48 << 20;

impl StackConfig {
    /// Settings with the defaults of everything else.
    pub fn new(capabilities: Capabilities, addresses: Vec<Cidr>, secret: [u8; 32]) -> Self {
        Self {
            capabilities,
            addresses,
            gateways: Vec::new(),
            routes: Vec::new(),
            links: Vec::new(),
            reverse_path_check: true,
            ip_forwarding: false,
            secret,
            tcp: TcpConfig::default(),
            pool_bytes: DEFAULT_POOL_BYTES,
            receive_memory: DEFAULT_RECEIVE_MEMORY,
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
        // The secret stays one.
        let Self { capabilities, addresses, gateways, routes, links, tcp, pool_bytes, .. } = self;
        f.debug_struct("StackConfig")
            .field("capabilities", capabilities)
            .field("addresses", addresses)
            .field("gateways", gateways)
            .field("routes", routes)
            .field("links", links)
            .field("tcp", tcp)
            .field("pool_bytes", pool_bytes)
            .finish_non_exhaustive()
    }
}

/// When a listener answers SYNs without remembering them (Linux's `tcp_syncookies`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SynCookies {
    /// Never: SYNs that find the queue of half-open connections full are dropped.
    Off,
    /// When the queue of half-open connections is full.
    #[default]
    WhenFull,
    /// Always.
    Always,
}

/// When a connection of ours may take the place of one in TIME-WAIT between the same ports,
/// both having timestamps (Linux's `tcp_tw_reuse`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeWaitReuse {
    /// Never.
    Off,
    /// Anywhere.
    On,
    /// To addresses of this host.
    #[default]
    Loopback,
}

/// What a host does with TCP Fast Open (RFC 7413).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastOpenConfig {
    /// On which sides, and whether with cookies.
    pub mode: FastOpenMode,
    /// Keys that listeners without their own make cookies with; `None`: from the stack's secret.
    pub keys: Option<FastOpenKeys>,
    /// For how long connections do without after a path seems to have swallowed one; each further
    /// time doubles it, up to 64 times. Zero, the default as in Linux: never.
    pub rest: Duration,
}

/// Which notifications become one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coalescing {
    /// Those that follow each other and say the same about copies. Each send completes by itself,
    /// but for those that follow each other in memory, too: they complete together while the earlier
    /// one has bytes that were never sent, up to 512 KiB.
    #[default]
    SameKind,
    /// As Linux: all that follow each other; the oldest says whether there were copies. Sends that
    /// follow each other complete together while the earlier one has bytes that were never sent, up
    /// to 512 KiB; data of two completions does not share a segment.
    Linux,
}

/// Settings of zero-copy sends.
#[derive(Clone, Debug)]
pub struct ZeroCopyConfig {
    /// Pages that sends hold. Shared by all stacks of one user; no limit by default, because a
    /// stack cannot know the user's (`RLIMIT_MEMLOCK`).
    pub pages: Arc<PageBudget>,
    /// Bytes that one socket's notifications may take, those unread and those to come: 704 for
    /// each (Linux's `optmem_max`). 1 MiB by default.
    pub notification_bytes: usize,
    /// Which notifications become one, on sockets that have no setting of their own
    /// ([`SocketOption::Coalescing`](crate::SocketOption)).
    pub coalescing: Coalescing,
    /// Whether frames count as looped to a local receiver, which has private copies of what was
    /// sent by reference: what Linux does on a tun device, and tests against Linux's traces expect.
    pub looped_copy: bool,
    /// How long received memory that is a sender's own (the pair link passes it by reference) may
    /// wait to be read before it is replaced by a private copy, so that the sender gets it back;
    /// never more than twice as long. `None`: for ever. A second by default.
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
