//! The settings of a host ([`HostBuilder`]), and its start.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant as WallClock};

use pagewire_device::Device;
use pagewire_mem::{Instant, PAGE_SIZE, PageBudget};
use pagewire_stack::{
    Cidr, FastOpenConfig, MAX_PAYLOAD_PAGES, SocketOption, Stack, StackConfig, TcpConfig,
    mss_of_pages, mtu_of_pages,
};

use crate::devices::Devices;
use crate::driver;
use crate::error::{StartError, parse, parse_all};
use crate::exit;
use crate::host::Host;
use crate::host::Resolver;
use crate::link::{self, IntoCidr, Link};
use crate::shared::Shared;
use crate::shared::group::Member;
use crate::shared::shutdown::SHUTDOWN_LIMIT;
use crate::spin::DEFAULT_SPIN;

/// Settings of a new host; see [`Host::builder`].
#[must_use]
pub struct HostBuilder {
    device: Option<Box<dyn Device>>,
    addresses: Vec<Cidr>,
    /// The error of the first address that cannot be parsed.
    wrong: Option<StartError>,
    gateways: Vec<String>,
    links: Vec<Link>,
    on_link: Vec<Cidr>,
    routes: Vec<(String, String)>,
    transparent: bool,
    proxy_arp: bool,
    ip_forwarding: bool,
    reverse_path_check: bool,
    memory: Option<usize>,
    tcp: TcpConfig,
    /// The last option that is no setting of new connections.
    refused_option: Option<SocketOption>,
    fast_open: FastOpenConfig,
    zerocopy_memory: Option<usize>,
    notification_memory: Option<usize>,
    payload_pages: Option<u8>,
    received_deadline: Option<Option<Duration>>,
    loopback_by_reference: bool,
    resolver: Option<Arc<dyn Resolver>>,
    spin: Duration,
    manual: bool,
    #[cfg(feature = "testing")]
    clock: Option<Arc<std::sync::atomic::AtomicU64>>,
    shutdown_limit: Duration,
}

impl Host {
    /// The default settings.
    pub fn builder() -> HostBuilder {
        HostBuilder::new()
    }
}

impl HostBuilder {
    fn new() -> Self {
        Self {
            device: None,
            addresses: Vec::new(),
            wrong: None,
            gateways: Vec::new(),
            links: Vec::new(),
            on_link: Vec::new(),
            routes: Vec::new(),
            transparent: false,
            proxy_arp: false,
            ip_forwarding: false,
            reverse_path_check: true,
            memory: None,
            tcp: TcpConfig::default(),
            refused_option: None,
            fast_open: FastOpenConfig::default(),
            zerocopy_memory: None,
            notification_memory: None,
            payload_pages: None,
            received_deadline: None,
            loopback_by_reference: false,
            resolver: None,
            spin: DEFAULT_SPIN,
            manual: false,
            #[cfg(feature = "testing")]
            clock: None,
            shutdown_limit: SHUTDOWN_LIMIT,
        }
    }
}

/// # Devices and addresses
impl HostBuilder {
    /// The device of the host's first link. A `Box<dyn Device>` is one, too: it is chosen at run time.
    pub fn device(mut self, device: impl Device + 'static) -> Self {
        self.device = Some(Box::new(device));
        self
    }

    /// Adds an address on that device, with its prefix length: `"10.77.0.2/24"` or `"fd77::2/64"`.
    /// A text that is no address is an error of [`start`](Self::start).
    pub fn address(mut self, cidr: impl IntoCidr) -> Self {
        link::push(cidr, &mut self.addresses, &mut self.wrong);
        self
    }

    /// A network whose hosts are on the first link, although no address of this host is in it: `"10.77.0.0/24"`.
    pub fn on_link(mut self, network: impl IntoCidr) -> Self {
        link::push(network, &mut self.on_link, &mut self.wrong);
        self
    }

    /// The default gateway, as an address or its text; one for each IP version.
    pub fn gateway(mut self, ip: impl ToString) -> Self {
        self.gateways.push(ip.to_string());
        self
    }

    /// Adds a network behind a gateway on the first link: `"10.88.0.0/16"`, `"10.77.1.9"`.
    pub fn route(mut self, network: impl AsRef<str>, gateway: impl AsRef<str>) -> Self {
        self.routes.push((network.as_ref().to_owned(), gateway.as_ref().to_owned()));
        self
    }

    /// Adds a further link. Sockets belong to no link: as on Linux, the host accepts packets to any
    /// of its addresses on any link, and packets leave by the route to their destination.
    ///
    /// ```
    /// use pagewire::{Host, Link, Pair};
    ///
    /// let (left, _peer) = Pair::new()?;
    /// let (right, far) = Pair::new()?;
    /// let host = Host::builder().device(left).address("10.0.0.1/24");
    /// let host = host.link(Link::new(right).address("10.0.1.1/24")).start()?;
    /// let peer = Host::builder().device(far).address("10.0.1.2/24").start()?;
    ///
    /// let _listener = peer.listen("10.0.1.2:9000")?;
    /// let stream = host.connect("10.0.1.2:9000")?; // by the second link, from its address
    /// assert_eq!(stream.local_addr()?.ip().to_string(), "10.0.1.1");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn link(mut self, link: Link) -> Self {
        self.links.push(link);
        self
    }
}

pagewire_mem::setters! {
    /// # Packets that are not this host's
    HostBuilder:
    /// Whether every unicast address counts as ours on the first link: as the destination of what comes
    /// in, and as the source of what leaves; off by default. A [`Service`](crate::services::Service) takes
    /// connections to all addresses by [`Stack::listen_every`](crate::services::Stack::listen_every).
    ///
    /// ```
    /// use pagewire::{Host, Pair};
    ///
    /// let (left, right) = Pair::new()?;
    /// let gateway = Host::builder().device(left).address("10.0.0.1/24").transparent(true).start()?;
    /// let guest = Host::builder().device(right).address("10.0.0.2/24").gateway("10.0.0.1").start()?;
    ///
    /// let listener = gateway.listen("0.0.0.0:80")?;
    /// let stream = guest.connect("192.0.2.1:80")?; // the gateway answers for every address
    /// assert_eq!(listener.accept()?.0.local_addr()?, stream.peer_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    transparent(on: bool): transparent = on;
    /// Whether the first link answers ARP requests and neighbour solicitations for other hosts, too (Linux's
    /// `proxy_arp`), for a [transparent](Self::transparent) link: its hosts reach all of their networks through
    /// this one; off by default.
    proxy_arp(on: bool): proxy_arp = on;
    /// Whether packets for other hosts are forwarded between links, by reference (Linux's
    /// `ip_forward`); off by default.
    ///
    /// ```
    /// use pagewire::{Host, Link, Pair};
    ///
    /// let (near, left) = Pair::new()?;
    /// let (right, far) = Pair::new()?;
    /// let router = Host::builder().device(left).address("10.0.0.1/24");
    /// let router = router.link(Link::new(right).address("10.0.1.1/24")).ip_forwarding(true);
    /// let _router = router.start()?;
    /// let near = Host::builder().device(near).address("10.0.0.2/24").gateway("10.0.0.1").start()?;
    /// let far = Host::builder().device(far).address("10.0.1.2/24").gateway("10.0.1.1").start()?;
    ///
    /// let listener = far.listen("10.0.1.2:9000")?;
    /// let stream = near.connect("10.0.1.2:9000")?;
    /// assert_eq!(stream.peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ip_forwarding(on: bool): ip_forwarding = on;
    /// Whether packets are dropped that did not come by the link of the route to their source
    /// (Linux's `rp_filter`); on by default, so that no peer can pretend to be on another link.
    reverse_path_check(on: bool): reverse_path_check = on;
    /// Whether payload that loops back to an address of this host passes by reference. By default
    /// it is copied ([`CopyReason::LoopPrivate`](crate::memory::CopyReason::LoopPrivate)), because a
    /// receiver that never reads would hold the sender's memory for ever.
    loopback_by_reference(on: bool): loopback_by_reference = on;
}

pagewire_mem::setters! {
    /// # Memory
    HostBuilder:
    /// Bytes of memory that all sockets together may pin: unread, forwarded and kept data, and copies of
    /// what is sent. By default a sixteenth of the machine's memory, or of the control group's limit, as
    /// Linux's `tcp_mem`. Memory is touched only as far as used, and returned to the system after a while.
    memory(bytes: usize): memory = Some(bytes);
    /// Bytes of memory that zero-copy sends ([`TcpStream::send_zc`](crate::TcpStream::send_zc)) of this
    /// host may hold. By default all hosts of the process share the user's `RLIMIT_MEMLOCK`; a host
    /// with a number of its own does not count there.
    zerocopy_memory(bytes: usize): zerocopy_memory = Some(bytes);
    /// Bytes of memory for the notifications of one socket's zero-copy sends, unread or
    /// outstanding, at 704 bytes each; 1 MiB by default.
    notification_memory(bytes: usize): notification_memory = Some(bytes);
    /// How long memory that a peer on the pair link sent by
    /// [`TcpStream::send_zc`](crate::TcpStream::send_zc) may wait here unread before a private copy
    /// replaces it, so that the sender gets it back; `None`: for ever. A second by default, and never
    /// more than twice as long. Such copies count as
    /// [`CopyReason::LoopPrivate`](crate::memory::CopyReason::LoopPrivate).
    received_deadline(limit: Option<Duration>): received_deadline = Some(limit);
}

pagewire_mem::setters! {
    /// # Sockets
    HostBuilder:
    /// Settings of new connections.
    tcp_config(config: TcpConfig): tcp = config;
    /// TCP Fast Open (RFC 7413): on which sides, and with which keys. By default, as on Linux, the
    /// client side only; each connection asks for it
    /// ([`ConnectOptions::fast_open`](crate::ConnectOptions::fast_open)), and each listener
    /// ([`TcpListener::set_fast_open`](crate::TcpListener::set_fast_open)) unless the mode is
    /// `SERVER_ALWAYS`.
    fast_open(config: FastOpenConfig): fast_open = config;
    /// Asks peers to send segments of whole pages of 4096 bytes, 1 to 15 pages each: their payload can
    /// be mapped ([`TcpStream::map_available`](crate::TcpStream::map_available)) on links without
    /// super-frames, too. The link's MTU must have room: at least
    /// [`mtu_of_pages`](crate::tcp::mtu_of_pages), 4168 bytes for one page. Sets `max_mss` of the
    /// connections' settings, according to their `timestamps`.
    payload_pages(pages: u8): payload_pages = Some(pages);
    /// The resolver, which finds the addresses of names, such as `Dns` (feature `dns`). Without a
    /// resolver, the host knows `localhost` only.
    resolver(resolver: impl Resolver): resolver = Some(Arc::new(resolver));
}

impl HostBuilder {
    /// Sets an option of new connections: buffers, keep-alive, linger, Nagle's algorithm and more.
    /// Call it after [`tcp_config`](Self::tcp_config), which sets all.
    pub fn tcp_option(mut self, option: SocketOption) -> Self {
        if !option.apply(&mut self.tcp) {
            self.refused_option = Some(option);
        }
        self
    }
}

/// # Driving
impl HostBuilder {
    /// How long a thread that waits polls the device before it sleeps, at most; zero: not at all.
    /// 200 µs by default. It polls as long as that pays: not where waits take longer, and not where
    /// others need the core.
    pub fn spin(mut self, limit: Duration) -> Self {
        self.spin = limit;
        self
    }

    /// Starts no driver thread: the caller drives with [`Host::turn`], and blocking calls drive
    /// while they wait. For one thread at a time: the turns of the first wake no second waiter.
    pub fn manual(mut self) -> Self {
        self.manual = true;
        self
    }

    /// Lets the host's clock show these nanoseconds, which only grow, instead of real time. For tests of
    /// hosts started with [`manual`](Self::manual).
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn clock(mut self, nanos: Arc<std::sync::atomic::AtomicU64>) -> Self {
        self.clock = Some(nanos);
        self
    }
}

/// # The start and the end
impl HostBuilder {
    /// How long a host may deliver after the drop of its last handle, or at the end of the process,
    /// before it resets connections; see [`Host::shutdown`]. Two seconds by default; zero: at once.
    pub fn shutdown_limit(mut self, limit: Duration) -> Self {
        self.shutdown_limit = limit;
        self
    }

    /// Starts the host, with a thread of its own that drives it.
    pub fn start(self) -> Result<Host, StartError> {
        self.start_driven(driver::start)
    }

    /// Starts the host without a thread of its own: a task of the tokio runtime that this is called in drives
    /// it.
    ///
    /// A frame wakes the runtime's thread, and no other before it, so small requests are answered
    /// sooner, and with less CPU time, than by [`start`](Self::start). The price: the host waits
    /// for the runtime. While a task computes or blocks on a runtime of one thread, nothing is
    /// received, acknowledged or retransmitted.
    ///
    /// Blocking calls work on other threads and on those of the runtime: on the only thread of a
    /// `current_thread` runtime they drive the host, and so does one of them where they block all threads of
    /// another, after up to 50 ms. When the runtime ends before the host, the host gets a thread.
    ///
    /// # Errors
    /// [`StartError::NoRuntime`] where no runtime runs, or one without I/O (`enable_io`).
    #[cfg(feature = "tokio")]
    pub fn start_in_runtime(mut self) -> Result<Host, StartError> {
        self.manual = false;
        self.start_driven(crate::driver::task::spawn)
    }

    fn start_driven<E: Into<StartError>>(
        self,
        drive: impl FnOnce(&Arc<Shared>) -> Result<(), E>,
    ) -> Result<Host, StartError> {
        let (plan, devices) = self.plan()?;
        let shared = plan.shared(plan.config.clone(), devices, None)?;
        if !plan.manual {
            drive(&shared).map_err(Into::into)?;
        }
        exit::register(&shared);
        Ok(Host::of(shared, plan.resolver))
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn not_manual(mut self) -> Self {
        self.manual = false;
        self
    }

    /// The settings as those of stacks, and the device of each link.
    pub(crate) fn plan(mut self) -> Result<(HostPlan, Vec<Box<dyn Device>>), StartError> {
        let device = self.device.ok_or(StartError::NoDevice)?;
        if let Some(error) = self.wrong {
            return Err(error);
        }
        let addresses = self.addresses;
        let gateways = parse_all::<IpAddr>(&self.gateways)?;
        let zero = WallClock::now();
        let mut config = StackConfig::new(device.capabilities().clone(), addresses, rand::random());
        config.gateways = gateways;
        config.links = self.links.iter_mut().map(Link::config).collect::<Result<_, _>>()?;
        for network in self.on_link {
            let unspecified = if network.addr().is_ipv4() {
                Ipv4Addr::UNSPECIFIED.into()
            } else {
                Ipv6Addr::UNSPECIFIED.into()
            };
            config.routes.push((network, unspecified));
        }
        for (network, gateway) in &self.routes {
            config.routes.push((parse(network)?, parse(gateway)?));
        }
        config.transparent = self.transparent;
        config.proxy_arp = self.proxy_arp;
        config.ip_forwarding = self.ip_forwarding;
        config.reverse_path_check = self.reverse_path_check;
        if let Some(option) = self.refused_option {
            return Err(StartError::Option(format!("{option:?}")));
        }
        (config.tcp, config.fast_open) = (self.tcp, self.fast_open);
        if let Some(pages) = self.payload_pages {
            let v6 = config.addresses.iter().any(|cidr| cidr.addr().is_ipv6());
            config.tcp.max_mss = Some(mss_of(pages, v6, &config)?);
        }
        config.zerocopy.pages = match self.zerocopy_memory {
            Some(bytes) => Arc::new(PageBudget::new(bytes / PAGE_SIZE)),
            None => process_pages(),
        };
        if let Some(bytes) = self.notification_memory {
            config.zerocopy.notification_bytes = bytes;
        }
        if let Some(limit) = self.received_deadline {
            config.zerocopy.received_deadline = limit;
        }
        config.loopback_by_reference = self.loopback_by_reference;
        config.memory = self.memory.unwrap_or_else(pagewire_device::machine::memory);
        let plan = HostPlan {
            config,
            zero,
            spin: self.spin,
            manual: self.manual,
            #[cfg(feature = "testing")]
            clock: self.clock,
            shutdown_limit: self.shutdown_limit,
            resolver: self.resolver,
        };
        let links = self.links.into_iter().map(|link| link.device);
        Ok((plan, std::iter::once(device).chain(links).collect()))
    }
}

/// The settings of a host that starts: of one stack, or of each shard.
pub(crate) struct HostPlan {
    pub(crate) config: StackConfig,
    /// The zero of the clock. That of all shards, because packets with times pass between them.
    zero: WallClock,
    spin: Duration,
    pub(crate) manual: bool,
    #[cfg(feature = "testing")]
    clock: Option<Arc<std::sync::atomic::AtomicU64>>,
    shutdown_limit: Duration,
    pub(crate) resolver: Option<Arc<dyn Resolver>>,
}

impl HostPlan {
    /// A host with a stack of its own, which nobody drives yet. `devices`: one for each link.
    pub(crate) fn shared(
        &self,
        config: StackConfig,
        devices: Vec<Box<dyn Device>>,
        member: Option<Member>,
    ) -> Result<Arc<Shared>, StartError> {
        let stack = Stack::new(Instant::ZERO, config)?;
        let mut all = Devices::new();
        for (link, device) in stack.links().zip(devices) {
            all.add(link, &mut Some(device))?;
        }
        let mut shared = Shared::new(stack, all, self.zero, self.spin, self.manual, member)?;
        shared.shutdown_limit = self.shutdown_limit;
        #[cfg(feature = "testing")]
        {
            shared.clock = self.clock.clone();
        }
        Ok(Arc::new(shared))
    }
}

impl fmt::Debug for HostBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostBuilder")
            .field("device", &self.device.as_ref().map(|device| device.capabilities()))
            .field("addresses", &self.addresses)
            .field("gateways", &self.gateways)
            .field("links", &self.links)
            .field("tcp", &self.tcp)
            .field("manual", &self.manual)
            .finish_non_exhaustive()
    }
}

/// The MSS for segments of whole pages, if the link has room for them.
fn mss_of(pages: u8, v6: bool, config: &StackConfig) -> Result<u16, StartError> {
    let (has, needs) = (config.capabilities.mtu, mtu_of_pages(pages, v6));
    if !(1..=MAX_PAYLOAD_PAGES).contains(&pages) || has < needs {
        return Err(StartError::PayloadPages { pages, has, needs });
    }
    Ok(mss_of_pages(pages, config.tcp.timestamps))
}

/// The budget of all hosts of this process: `RLIMIT_MEMLOCK` when the first host started.
fn process_pages() -> Arc<PageBudget> {
    static PAGES: OnceLock<Arc<PageBudget>> = OnceLock::new();
    let limit = || {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
        let pages = |bytes| usize::try_from(bytes / PAGE_SIZE as u64).unwrap_or(usize::MAX);
        Arc::new(PageBudget::new(limit.current.map_or(usize::MAX, pages)))
    };
    Arc::clone(PAGES.get_or_init(limit))
}
