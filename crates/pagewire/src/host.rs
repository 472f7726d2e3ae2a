//! A host: one stack on its devices.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant as WallClock};

use pagewire_device::Device;
use pagewire_mem::{Deferral, Instant, PAGE_SIZE, PageBudget};
use pagewire_sockets::{BindOptions, ConnectOptions, ToSocketAddrs};
use pagewire_stack::{
    Cidr, Error, Event, LinkId, MAX_PAYLOAD_PAGES, Stack, StackConfig, mss_of_pages, mtu_of_pages,
};
use pagewire_stack::{FastOpenConfig, SocketOption, TcpConfig};

use crate::devices::Devices;
use crate::driver;
use crate::error::{StartError, parse_all};
use crate::exit;
use crate::inside::{self, Call};
use crate::link::Link;
use crate::service::{Attached, HostWaker, Service};
use crate::shared::Shared;
use crate::shared::leave::{SHUTDOWN_LIMIT, ShutdownReport};
use crate::spin::DEFAULT_SPIN;
use crate::stats::Stats;
use crate::{TcpListener, TcpStream, UdpSocket};

/// One stack on one device or several: where connections are made and accepted.
///
/// Cheap to clone. Sockets keep their host running. The drop of the last clone and socket shuts it
/// down, as does the end of the process: see [`shutdown`](Self::shutdown).
///
/// # Calls from the application's code
/// A [`Service`] and an observer ([`on_event`](Self::on_event)) run under the host's lock: calls of the
/// host in there panic, and the panic is contained; sockets, futures, rings and proxies that are dropped in there are
/// closed afterwards. Wakers and the owners of memory are called without the lock, perhaps by the
/// host's own thread: calls work there, but those that would have to wait fail with
/// [`Deadlock`](io::ErrorKind::Deadlock).
#[derive(Clone)]
pub struct Host(Arc<Handle>);

/// A host that this does not keep running, see [`Host::downgrade`].
#[derive(Clone)]
pub struct WeakHost(Weak<Handle>);

impl WeakHost {
    /// The host, unless it is shut down because the last of its handles and sockets was dropped. What is
    /// returned keeps it running.
    pub fn upgrade(&self) -> Option<Host> {
        self.0.upgrade().map(Host)
    }
}

impl std::fmt::Debug for WeakHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakHost").finish_non_exhaustive()
    }
}

/// Settings of a new host; see [`Host::builder`].
#[must_use]
pub struct Builder {
    device: Option<Box<dyn Device>>,
    addresses: Vec<String>,
    gateways: Vec<String>,
    links: Vec<Link>,
    transparent: bool,
    ip_forwarding: bool,
    reverse_path_check: bool,
    pool_bytes: Option<usize>,
    receive_memory: Option<usize>,
    tcp: TcpConfig,
    /// Not among the settings of a connection that is not there yet.
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
    /// A handle that does not keep the host running: for those who only look.
    pub fn downgrade(&self) -> WeakHost {
        WeakHost(Arc::downgrade(&self.0))
    }

    /// The default settings.
    pub fn builder() -> Builder {
        Builder {
            device: None,
            addresses: Vec::new(),
            gateways: Vec::new(),
            links: Vec::new(),
            transparent: false,
            ip_forwarding: false,
            reverse_path_check: true,
            pool_bytes: None,
            receive_memory: None,
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

    /// Opens a connection and waits until it is established: to the first address that answers.
    ///
    /// # Errors
    /// Those of the last address tried: `ConnectionRefused` (the port is closed),
    /// `NetworkUnreachable` (no route), `HostUnreachable` (no neighbour answers for it),
    /// `TimedOut`; `NetworkDown` with a [`NetworkDown`](crate::NetworkDown) in it when the device
    /// of the route is lost for good; those of the [resolver](Builder::resolver), or `InvalidInput` for a
    /// name if there is none.
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.connect_with(to, &ConnectOptions::new())
    }

    /// [`connect`](Self::connect), waiting at most `limit`.
    ///
    /// # Errors
    /// Those of `connect`.
    pub fn connect_timeout(
        &self,
        to: impl ToSocketAddrs,
        limit: Duration,
    ) -> io::Result<TcpStream> {
        self.connect_with(to, &ConnectOptions::new().timeout(limit))
    }

    /// [`connect`](Self::connect) with options: time limit, local address, link, buffers, Fast Open.
    ///
    /// # Errors
    /// Those of `connect`; `AddrNotAvailable` for a local address that is not the host's or is in use, and
    /// `Unsupported` for Fast Open if the host does without it ([`Builder::fast_open`]).
    pub fn connect_with(
        &self,
        to: impl ToSocketAddrs,
        options: &ConnectOptions,
    ) -> io::Result<TcpStream> {
        TcpStream::connect_on(self, to, options)
    }

    /// Begins to open a connection and returns at once; it can be used when it becomes writable.
    ///
    /// # Errors
    /// `NetworkUnreachable` without a route, `NetworkDown`.
    pub fn start_connect(&self, remote: SocketAddr) -> io::Result<TcpStream> {
        self.start_connect_with(remote, &ConnectOptions::new())
    }

    /// [`start_connect`](Self::start_connect) with options.
    ///
    /// # Errors
    /// Those of `start_connect`, and `AddrNotAvailable` and `Unsupported` as of
    /// [`connect_with`](Self::connect_with).
    pub fn start_connect_with(
        &self,
        remote: SocketAddr,
        options: &ConnectOptions,
    ) -> io::Result<TcpStream> {
        TcpStream::start_connect(self, remote, options)
    }

    /// Listens for connections. An unspecified address (`0.0.0.0`, `[::]`) means all of this
    /// host's, port 0 a free one.
    ///
    /// # Errors
    /// `AddrInUse`; `AddrNotAvailable` if the address is not one of this host's; those of the resolver.
    pub fn listen(&self, on: impl ToSocketAddrs) -> io::Result<TcpListener> {
        self.listen_with(on, &BindOptions::new())
    }

    /// [`listen`](Self::listen) with options: backlog, sharing of the address, link.
    ///
    /// # Errors
    /// Those of `listen`.
    pub fn listen_with(
        &self,
        on: impl ToSocketAddrs,
        options: &BindOptions,
    ) -> io::Result<TcpListener> {
        TcpListener::bind_on(self, on, options)
    }

    /// A datagram socket bound to a local address; `0.0.0.0:0` and `[::]:0` take a free port.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn udp(&self, on: impl ToSocketAddrs) -> io::Result<UdpSocket> {
        self.udp_with(on, &BindOptions::new())
    }

    /// [`udp`](Self::udp) with options: sharing of the address, link.
    ///
    /// # Errors
    /// As [`listen`](Self::listen).
    pub fn udp_with(&self, on: impl ToSocketAddrs, options: &BindOptions) -> io::Result<UdpSocket> {
        UdpSocket::bind_on(self, on, options)
    }

    /// The addresses of a name, by the host's [resolver](Builder::resolver), or of a text.
    ///
    /// # Errors
    /// The resolver's, or that there is none; `InvalidInput` for text without a port.
    pub fn lookup(&self, name: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
        pagewire_sockets::resolve_blocking(self, name)
    }

    /// Takes a turn: receives, lets the stack work, and sends. Returns whether anything came in.
    /// For hosts started with [`Builder::manual`], which have no driver thread.
    pub fn turn(&self) -> bool {
        let shared = self.shared();
        let (mut inner, now) = shared.lock_now();
        let worked = inner.turn(now);
        shared.unlock_and_wake(inner);
        worked
    }

    /// Waits for frames, a timer or the end of `limit`, then takes a [`turn`](Self::turn). For hosts
    /// started with [`Builder::manual`].
    pub fn wait_turn(&self, limit: Duration) -> bool {
        if self.turn() {
            return true;
        }
        driver::wait_for_device(self.shared(), Some(self.shared().now() + limit));
        self.turn()
    }

    /// Whether this is the host's driver thread, on which calls that wait fail. See [`Host`].
    pub fn is_driver_thread(&self) -> bool {
        inside::drives(self.shared().id)
    }

    /// The time of the host's clock, which its stack uses.
    pub fn now(&self) -> Instant {
        self.shared().now()
    }

    /// Runs `verb` on the stack, under its lock, and sends the output: for layers that manage
    /// sockets of their own. They must not close sockets of this crate.
    #[doc(hidden)]
    pub fn with_stack<T>(&self, verb: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        // A panic of `verb` is the caller's, and does not fail the host.
        let shared = self.shared();
        let done = shared.with(|stack, now| {
            let _call = Call::of(shared.id);
            catch_unwind(AssertUnwindSafe(|| verb(stack, now)))
        });
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Calls `observer` for every event of the stack from now on, under its lock: it must be quick
    /// and call nothing of this host. It replaces an earlier one. Panics are contained.
    pub fn on_event(&self, observer: impl FnMut(Event) + Send + 'static) {
        let mut inner = self.shared().lock();
        if let Some(before) = inner.observer.replace(Box::new(observer)) {
            inner.discarded.push(Box::new(before));
        }
    }

    /// Adds a link while the host runs.
    ///
    /// # Errors
    /// As [`Builder::start`]; nothing has changed then.
    pub fn add_link(&self, link: Link) -> Result<LinkId, StartError> {
        let (shared, config) = (self.shared(), link.config()?);
        // A device that is refused is dropped without the lock: its drop may call the host.
        let mut device = Some(link.device);
        let id = shared.work(|inner, now| {
            let id = inner.stack.add_link(now, &config)?;
            if let Err(error) = inner.devices.add(id, &mut device) {
                inner.stack.remove_link(id);
                return Err(StartError::from(error));
            }
            Ok(id)
        })?;
        // The driver does not wait on its descriptor yet.
        shared.kick();
        Ok(id)
    }

    /// Removes a link with its addresses and routes; returns its device, or `None` if it was
    /// removed before. Connections from its addresses end as if the peer did not answer.
    pub fn remove_link(&self, link: LinkId) -> Option<Box<dyn Device>> {
        let shared = self.shared();
        let device = shared.work(|inner, _| {
            inner.stack.remove_link(link);
            inner.note_down();
            inner.devices.remove(link)
        });
        shared.kick();
        device
    }

    /// Runs `service` inside this host from now on. Its first events say what the host's sockets are ready
    /// for already, whoever opened them.
    pub fn attach(&self, service: impl Service + 'static) {
        self.attach_as(Box::new(service), false);
    }

    /// As [`attach`](Self::attach); `ours`: the service is part of this project, and its panic a bug
    /// that ends the host.
    #[doc(hidden)]
    pub fn attach_as(&self, service: Box<dyn Service>, ours: bool) {
        let mut attached = Attached::new(service, ours);
        self.shared().work(|inner, _| {
            // What came to its sockets before has been reported to nobody.
            attached.first_events = inner.stack.events_so_far();
            inner.services.push(attached);
            inner.note_services();
        });
        // The driver does not wait on its descriptor yet.
        self.shared().kick();
    }

    /// What wakes this host's driver from other threads, for services that get work from there.
    pub fn waker(&self) -> HostWaker {
        HostWaker(Arc::clone(&self.shared().wake))
    }

    /// Whether a connection belongs to this host.
    pub(crate) fn owns(&self, stream: &TcpStream) -> bool {
        Arc::ptr_eq(&self.0, &stream.runtime().0)
    }

    /// The current counters, drops by reason and the copy ledger.
    pub fn stats(&self) -> Stats {
        let inner = self.shared().lock();
        let links = inner.devices.stats();
        Stats {
            ledger: *inner.stack.ledger(),
            counters: inner.stack.counters().clone(),
            device: links.first().map_or_else(Default::default, |link| link.device),
            device_error: links.iter().find_map(|link| link.device_error.clone()),
            links,
            wakeups: inner.waiters.wakeups,
            contained: self.shared().panics.read(),
            failed: inner.failed.then(|| inner.cause.clone()).flatten(),
        }
    }

    /// Audits of the host's pool, and of each device's that has one.
    pub fn pool_audits(&self) -> Vec<pagewire_mem::PoolAudit> {
        let inner = self.shared().lock();
        std::iter::once(inner.stack.pool_audit()).chain(inner.devices.pool_audits()).collect()
    }

    /// Checks that the host was not shut down and has a device left; [`failed`](Self::failed) waits for that.
    ///
    /// # Errors
    /// `NetworkDown`, with a [`NetworkDown`](crate::NetworkDown) in it that has the cause.
    pub fn check(&self) -> io::Result<()> {
        let inner = self.shared().lock();
        match inner.is_down() {
            true => Err(inner.error(Error::NetworkDown)),
            false => Ok(()),
        }
    }

    /// Ends the host as a kernel ends a process's sockets: every socket is closed, queued data is
    /// delivered, at most for `limit`, and then the remaining connections are reset. Connections
    /// with unread received data are reset at once. Returns when the resets have left, or shortly
    /// after `limit` if the device takes nothing. A `limit` of zero only resets. Peers that have
    /// acknowledged everything are not reset: they have a moment to close their side, too.
    ///
    /// Sockets of this host, in any thread, fail with `NetworkDown` from here on, and waits on them
    /// end. Devices are dropped before this returns, so that they can be opened again.
    ///
    /// The drop of a host and its sockets does the same, and so does the end of the process (when
    /// `main` returns or panics, and at [`std::process::exit`]), within
    /// [`Builder::shutdown_limit`]; a process that is killed, or aborts, leaves its peers waiting,
    /// so a program that handles signals should end by `exit`.
    /// The drop of a host without a driver ([`Builder::manual`]) only resets.
    ///
    /// The drop of the last handle waits for the end as this call does, but not within a task of a
    /// runtime (feature `tokio`), nor on a thread that drives a host: then the end comes in the
    /// background. On its own driver's thread, this call drives the host itself; under the host's
    /// lock it only requests the end, and the report is empty.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagewire::{Host, Pair};
    ///
    /// let (left, right) = Pair::new(Default::default())?;
    /// let server = Host::builder().device(left).address("10.0.0.1/24").start()?;
    /// let client = Host::builder().device(right).address("10.0.0.2/24").start()?;
    ///
    /// let listener = server.listen("10.0.0.1:9000")?;
    /// let stream = client.connect("10.0.0.1:9000")?;
    /// let (peer, _) = listener.accept()?;
    /// stream.send(vec![7; 100_000])?;
    /// let report = client.shutdown(Duration::from_secs(5));
    /// assert_eq!((report.connections, report.sent), (1, true));
    /// assert_eq!(peer.recv_chunks(100)?.len(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, limit: Duration) -> ShutdownReport {
        let shared = self.shared();
        shared.ask_to_leave(limit, false);
        shared.wait_until_left(Shared::latest_end(limit)).unwrap_or_default()
    }

    /// Waits until all queued data is sent and acknowledged, at most `limit`; `false` if that was
    /// not enough. The host goes on; [`shutdown`](Self::shutdown) ends it.
    pub fn drain(&self, limit: Duration) -> bool {
        let shared = self.shared();
        let driven = shared.is_driven_by_waits() || shared.is_driven_by_task();
        let until = shared.now() + limit;
        let quiet = loop {
            if shared.lock().stack.is_quiet() {
                break true;
            }
            if shared.now() >= until {
                break false;
            }
            if driven || inside::drives(shared.id) {
                self.wait_turn(Duration::from_millis(1));
            } else {
                std::thread::park_timeout(Duration::from_micros(200));
            }
        };
        if driven {
            shared.hand_back();
        }
        quiet
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.0
    }
}

impl Builder {
    /// The device of the host's first link.
    pub fn device(mut self, device: impl Device + 'static) -> Self {
        self.device = Some(Box::new(device));
        self
    }

    /// As [`device`](Self::device), chosen at run time.
    pub fn boxed_device(mut self, device: Box<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// Adds an address on that device, with its prefix length: `"10.77.0.2/24"` or `"fd77::2/64"`.
    pub fn address(mut self, cidr: impl AsRef<str>) -> Self {
        self.addresses.push(cidr.as_ref().to_owned());
        self
    }

    /// The default gateway; one for each IP version.
    pub fn gateway(mut self, ip: impl AsRef<str>) -> Self {
        self.gateways.push(ip.as_ref().to_owned());
        self
    }

    /// Adds a further link. Sockets belong to no link: as on Linux, the host accepts packets to any
    /// of its addresses on any link, and packets leave by the route to their destination.
    ///
    /// ```
    /// use pagewire::{Host, Link, Pair};
    ///
    /// let (left, _peer) = Pair::new(Default::default())?;
    /// let (right, far) = Pair::new(Default::default())?;
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

    /// Whether every unicast address counts as ours on the first link: as the destination of what comes
    /// in, and as the source of what leaves
    /// ([`LinkConfig::transparent`](pagewire_stack::LinkConfig::transparent)); off by default. A
    /// [`Service`] takes connections to all addresses by
    /// [`Stack::listen_every`](pagewire_stack::Stack::listen_every).
    ///
    /// ```
    /// use pagewire::{Host, Pair};
    ///
    /// let (left, right) = Pair::new(Default::default())?;
    /// let gateway = Host::builder().device(left).address("10.0.0.1/24").transparent(true).start()?;
    /// let guest = Host::builder().device(right).address("10.0.0.2/24").gateway("10.0.0.1").start()?;
    ///
    /// let listener = gateway.listen("0.0.0.0:80")?;
    /// let stream = guest.connect("192.0.2.1:80")?; // the gateway answers for every address
    /// assert_eq!(listener.accept()?.0.local_addr()?, stream.peer_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn transparent(mut self, on: bool) -> Self {
        self.transparent = on;
        self
    }

    /// Whether packets for other hosts are forwarded between links, by reference (Linux's
    /// `ip_forward`); off by default.
    ///
    /// ```
    /// use pagewire::{Host, Link, Pair};
    ///
    /// let (near, left) = Pair::new(Default::default())?;
    /// let (right, far) = Pair::new(Default::default())?;
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
    pub fn ip_forwarding(mut self, on: bool) -> Self {
        self.ip_forwarding = on;
        self
    }

    /// Whether packets are dropped that did not come by the link of the route to their source
    /// (Linux's `rp_filter`); on by default, so that no peer can pretend to be on another link.
    pub fn reverse_path_check(mut self, on: bool) -> Self {
        self.reverse_path_check = on;
        self
    }

    /// Bytes of memory for payload that is written by copy; touched only as far as used.
    pub fn pool_bytes(mut self, bytes: usize) -> Self {
        self.pool_bytes = Some(bytes);
        self
    }

    /// Bytes of memory that all connections together may pin for unread or forwarded data: less
    /// than the device's receive memory. 48 MiB by default, three quarters of a tap's.
    pub fn receive_memory(mut self, bytes: usize) -> Self {
        self.receive_memory = Some(bytes);
        self
    }

    /// Settings of new connections.
    pub fn tcp_config(mut self, config: TcpConfig) -> Self {
        self.tcp = config;
        self
    }

    /// One setting of new connections: buffers, keep-alive, linger, Nagle's algorithm and more. Call it
    /// after [`tcp_config`](Self::tcp_config), which sets all.
    pub fn tcp_option(mut self, option: SocketOption) -> Self {
        if !option.apply(&mut self.tcp) {
            self.refused_option = Some(option);
        }
        self
    }

    /// TCP Fast Open (RFC 7413): on which sides, and with which keys. By default, as on Linux, the client
    /// side only; each connection asks for it ([`ConnectOptions::fast_open`]), and each listener
    /// ([`TcpListener::set_fast_open`]) unless the mode is `SERVER_ALWAYS`.
    pub fn fast_open(mut self, config: FastOpenConfig) -> Self {
        self.fast_open = config;
        self
    }

    /// Bytes of memory that zero-copy sends ([`TcpStream::send_zc`]) of this host may hold. By
    /// default all hosts of the process share the user's `RLIMIT_MEMLOCK`; a host with a number of
    /// its own does not count there.
    pub fn zerocopy_memory(mut self, bytes: usize) -> Self {
        self.zerocopy_memory = Some(bytes);
        self
    }

    /// Bytes of memory for the notifications of one socket's zero-copy sends, unread or
    /// outstanding, at 704 bytes each; 1 MiB by default.
    pub fn notification_memory(mut self, bytes: usize) -> Self {
        self.notification_memory = Some(bytes);
        self
    }

    /// Asks peers to send segments of whole pages of 4096 bytes, 1 to 15 pages each: their payload
    /// can be mapped ([`TcpStream::map_available`]) on links without super-frames, too. The link's
    /// MTU must have room: at least [`mtu_of_pages`](pagewire_stack::mtu_of_pages), 4168 bytes for
    /// one page. Sets `max_mss` of the connections' settings, according to their `timestamps`.
    pub fn payload_pages(mut self, pages: u8) -> Self {
        self.payload_pages = Some(pages);
        self
    }

    /// How long memory that a peer on the pair link sent by [`TcpStream::send_zc`] may wait here
    /// unread before a private copy replaces it, so that the sender gets it back; `None`: for ever.
    /// A second by default, and never more than twice as long. Such copies count as
    /// [`CopyReason::LoopPrivate`](crate::CopyReason::LoopPrivate).
    pub fn received_deadline(mut self, limit: Option<Duration>) -> Self {
        self.received_deadline = Some(limit);
        self
    }

    /// Whether payload that loops back to an address of this host passes by reference. By default
    /// it is copied ([`CopyReason::LoopPrivate`](crate::CopyReason::LoopPrivate)), because a
    /// receiver that never reads would hold the sender's memory for ever.
    pub fn loopback_by_reference(mut self, on: bool) -> Self {
        self.loopback_by_reference = on;
        self
    }

    /// What finds the addresses of names, such as [`Dns`](crate::Dns). Without a resolver, the host
    /// knows `localhost` only.
    pub fn resolver(mut self, resolver: impl Resolver) -> Self {
        self.resolver = Some(Arc::new(resolver));
        self
    }

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

    /// How long a host may deliver after the drop of its last handle, or at the end of the process,
    /// before it resets connections; see [`Host::shutdown`]. Two seconds by default; zero: at once.
    pub fn shutdown_limit(mut self, limit: Duration) -> Self {
        self.shutdown_limit = limit;
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

    /// Starts the host, with a thread of its own that drives it.
    pub fn start(self) -> Result<Host, StartError> {
        self.start_driven(driver::start)
    }

    /// Starts the host without a thread of its own: a task of the tokio runtime that this is called in drives
    /// it.
    ///
    /// What arrives wakes the runtime's thread, and no other before it, so small requests are answered
    /// sooner, and with less CPU time, than by [`start`](Self::start). The price: the host waits for the runtime. While a task computes or blocks
    /// on a runtime of one thread, nothing is received, acknowledged or retransmitted.
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
        let device = self.device.ok_or(StartError::NoDevice)?;
        let addresses = parse_all::<Cidr>(&self.addresses)?;
        let gateways = parse_all::<IpAddr>(&self.gateways)?;
        let zero = WallClock::now();
        let mut config = StackConfig::new(device.capabilities().clone(), addresses, rand::random());
        config.gateways = gateways;
        config.links = self.links.iter().map(Link::config).collect::<Result<_, _>>()?;
        config.transparent = self.transparent;
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
        if let Some(bytes) = self.receive_memory {
            config.receive_memory = bytes;
        }
        if let Some(limit) = self.received_deadline {
            config.zerocopy.received_deadline = limit;
        }
        config.loopback_by_reference = self.loopback_by_reference;
        if let Some(bytes) = self.pool_bytes {
            config.pool_bytes = bytes;
        }
        let stack = Stack::new(Instant::ZERO, config)?;
        let mut devices = Devices::new();
        let all = std::iter::once(device).chain(self.links.into_iter().map(|link| link.device));
        for (link, device) in stack.links().zip(all) {
            devices.add(link, &mut Some(device))?;
        }
        let mut shared = Shared::new(stack, devices, zero, self.spin, self.manual)?;
        shared.shutdown_limit = self.shutdown_limit;
        #[cfg(feature = "testing")]
        {
            shared.clock = self.clock;
        }
        let shared = Arc::new(shared);
        if !self.manual {
            drive(&shared).map_err(Into::into)?;
        }
        exit::register(&shared);
        Ok(Host(Arc::new(Handle { shared, resolver: self.resolver })))
    }
}

/// What finds the addresses of names for a host: [`Builder::resolver`](crate::Builder::resolver). Without
/// one, a host knows `localhost` only: the kernel's resolver would use the kernel's network.
pub trait Resolver: Send + Sync + 'static {
    /// The addresses of `name`, in the order in which they are tried. A resolver that needs the network
    /// uses that of `host`.
    fn resolve<'a>(
        &'a self,
        host: &'a Host,
        name: &'a str,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;
}

/// Keeps a host running; its drop ends the host.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) resolver: Option<Arc<dyn Resolver>>,
}

impl Handle {
    /// Runs `act`, which takes the host's lock, at once, or when this thread releases that lock.
    pub(crate) fn outside(self: &Arc<Self>, act: impl FnOnce(&Arc<Self>) + Send + Sync + 'static) {
        if inside::is_called_by(self.shared.id) {
            return Deferral::later(Box::new(Later(Arc::clone(self), Some(act))));
        }
        act(self);
    }
}

/// Runs a function when it is dropped.
struct Later<F: FnOnce(&Arc<Handle>)>(Arc<Handle>, Option<F>);

impl<F: FnOnce(&Arc<Handle>)> Drop for Later<F> {
    fn drop(&mut self) {
        if let Some(act) = self.1.take() {
            act(&self.0);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.shared.process != std::process::id() {
            // A copy made by a fork: the devices and connections are the parent's.
            return;
        }
        if self.shared.manual {
            return self.shared.reset_all();
        }
        // The driver does the rest. Where this thread may wait for it, the devices are free then.
        let limit = self.shared.shutdown_limit;
        self.shared.ask_to_leave(limit, false);
        if !inside::drives_any() && !is_asynchronous() {
            self.shared.wait_until_left(Shared::latest_end(limit));
        }
    }
}

/// Whether this thread runs the tasks of a runtime, which must not be held up.
fn is_asynchronous() -> bool {
    #[cfg(feature = "tokio")]
    return tokio::runtime::Handle::try_current().is_ok();
    #[cfg(not(feature = "tokio"))]
    false
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

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("manual", &self.0.shared.manual).finish_non_exhaustive()
    }
}
