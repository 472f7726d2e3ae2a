//! A host: one stack on its devices. [`Host`] is the handle that programs hold; the state behind it is in
//! `shared.rs`, the settings are in `builder.rs`.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use pagewire_device::Device;
use pagewire_mem::{Deferral, Instant};
use pagewire_sockets::{BindOptions, ConnectOptions, ToSocketAddrs};
use pagewire_stack::{Cidr, Error, Event, LinkConfig, LinkId, SocketCounts, SocketPage, Stack};

use crate::driver;
use crate::error::StartError;
use crate::link::Link;
use crate::reentrancy::{self, LockedCall};
use crate::service::{AttachedService, HostWaker, Service};
use crate::shared::Shared;
use crate::shared::shutdown::ShutdownReport;
use crate::stats::Stats;
use crate::{TcpListener, TcpStream, UdpSocket};

/// A stack on one device or several: where connections are made and accepted.
///
/// Cheap to clone. Sockets keep their host running. The drop of the last clone and socket shuts it
/// down, as does the end of the process: see [`shutdown`](Self::shutdown).
///
/// # Calls from the application's code
/// A [`Service`] and an observer ([`on_event`](Self::on_event)) run under the host's lock: calls of the
/// host in there panic, and the panic is contained; sockets, futures, rings and proxies that are
/// dropped in there are closed afterwards. Wakers and the owners of memory are called without the lock,
/// perhaps by the host's own thread: calls work there, but those that would have to wait fail with
/// [`Deadlock`](io::ErrorKind::Deadlock).
#[derive(Clone)]
pub struct Host(Arc<Handle>);

/// A handle that does not keep its host running, see [`Host::downgrade`].
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

impl Host {
    /// The first handle of a host that has started.
    pub(crate) fn of(shared: Arc<Shared>, resolver: Option<Arc<dyn Resolver>>) -> Self {
        let keeper = Arc::new(Keeper(vec![Arc::clone(&shared)]));
        Self(Arc::new(Handle { shared, resolver, _keeper: keeper }))
    }

    /// The first handles of the shards of a host that has started.
    pub(crate) fn of_shards(
        shards: Vec<Arc<Shared>>,
        resolver: Option<Arc<dyn Resolver>>,
    ) -> impl Iterator<Item = Self> {
        let keeper = Arc::new(Keeper(shards.clone()));
        shards.into_iter().map(move |shared| {
            let (resolver, keeper) = (resolver.clone(), Arc::clone(&keeper));
            Self(Arc::new(Handle { shared, resolver, _keeper: keeper }))
        })
    }

    /// A handle that does not keep the host running: for code that only observes.
    pub fn downgrade(&self) -> WeakHost {
        WeakHost(Arc::downgrade(&self.0))
    }

    /// Opens a connection and waits until it is established: to the first address that answers.
    ///
    /// # Errors
    /// The error of the last address tried: `ConnectionRefused` (the port is closed), `NetworkUnreachable`
    /// (no route), `HostUnreachable` (no neighbour answers for it), `TimedOut`; `NetworkDown` with a
    /// [`NetworkDown`](crate::NetworkDown) in it when the device of the route is lost for good; those of
    /// the [resolver](crate::HostBuilder::resolver), or `InvalidInput` for a name if there is none.
    pub fn connect(&self, to: impl ToSocketAddrs) -> io::Result<TcpStream> {
        self.connect_with(to, &ConnectOptions::new())
    }

    /// [`connect`](Self::connect), waiting at most `limit`.
    ///
    /// # Errors
    /// The errors of `connect`.
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
    /// The errors of `connect`; `AddrNotAvailable` for a local address that is not the host's or is
    /// in use, and `Unsupported` for Fast Open if the host does without it
    /// ([`HostBuilder::fast_open`](crate::HostBuilder::fast_open)).
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
    /// The errors of `start_connect`, and `AddrNotAvailable` and `Unsupported` as of
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
    /// The errors of `listen`.
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

    /// The addresses of a name, by the host's [resolver](crate::HostBuilder::resolver), or of a text.
    ///
    /// # Errors
    /// The resolver's, or that there is none; `InvalidInput` for text without a port.
    pub fn lookup(&self, name: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
        pagewire_sockets::resolve_blocking(self, name)
    }

    /// Takes a turn: receives, lets the stack work, and sends. Returns whether anything came in. For
    /// hosts started with [`HostBuilder::manual`](crate::HostBuilder::manual), which have no driver
    /// thread.
    pub fn turn(&self) -> bool {
        let shared = self.shared();
        let (mut inner, now) = shared.lock_now();
        let worked = inner.turn(now);
        shared.unlock_and_wake(inner);
        worked
    }

    /// Waits for frames, a timer or the end of `limit`, then takes a [`turn`](Self::turn). For hosts
    /// started with [`HostBuilder::manual`](crate::HostBuilder::manual).
    ///
    /// ```
    /// use std::time::Duration;
    /// use pagewire::{Host, Pair};
    ///
    /// let (left, right) = Pair::new()?;
    /// let host = Host::builder().device(left).address("10.0.0.1/24").manual().start()?;
    /// let peer = Host::builder().device(right).address("10.0.0.2/24").start()?;
    ///
    /// let listener = host.listen("10.0.0.1:7")?;
    /// listener.set_nonblocking(true)?;
    /// let client = peer.start_connect("10.0.0.1:7".parse()?)?;
    /// let stream = loop {
    ///     host.wait_turn(Duration::from_millis(10));
    ///     match listener.accept() {
    ///         Ok((stream, _)) => break stream,
    ///         Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
    ///         Err(e) => return Err(e.into()),
    ///     }
    /// };
    /// assert_eq!(stream.peer_addr()?, client.local_addr()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_turn(&self, limit: Duration) -> bool {
        let shared = self.shared();
        let until = shared.now() + limit;
        if self.turn() {
            return true;
        }
        loop {
            driver::wait_for_device(shared, Some(until));
            let worked = self.turn() | shared.turn_others();
            // With other shards to drive, the wait above is a short one.
            if worked || !shared.drives_others() || shared.now() >= until {
                shared.hand_back();
                return worked;
            }
        }
    }

    /// Whether this is the host's driver thread, on which calls that wait fail. See [`Host`].
    pub fn is_driver_thread(&self) -> bool {
        reentrancy::is_driver_of(self.shared().id)
    }

    /// The time of the host's clock, which its stack uses.
    pub fn now(&self) -> Instant {
        self.shared().now()
    }

    /// Runs an operation on the stack, under its lock, and sends the output: for layers that manage
    /// sockets of their own. The operation must not close sockets of this crate.
    #[doc(hidden)]
    pub fn with_stack<T>(&self, op: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        // A panic of the operation is the caller's, and does not fail the host.
        let shared = self.shared();
        let done = shared.with_stack(|stack, now| {
            let _call = LockedCall::of(shared.host_id);
            catch_unwind(AssertUnwindSafe(|| op(stack, now)))
        });
        done.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Calls `observer` for every event of the stack from now on, under its lock: it must be quick
    /// and call nothing of this host. The new observer replaces an earlier one. Panics are contained.
    pub fn on_event(&self, observer: impl FnMut(Event) + Send + 'static) {
        let mut inner = self.shared().lock();
        if let Some(before) = inner.observer.replace(Box::new(observer)) {
            inner.discarded.push(Box::new(before));
        }
    }

    /// Adds a link while the host runs.
    ///
    /// # Errors
    /// As [`HostBuilder::start`](crate::HostBuilder::start); nothing has changed then.
    /// [`StartError::LinkOfCores`] on a host of several cores: see [`Cores::add_link`](crate::Cores::add_link).
    pub fn add_link(&self, mut link: Link) -> Result<LinkId, StartError> {
        let config = link.config()?;
        if self.shared().member.is_some() {
            return Err(StartError::LinkOfCores);
        }
        self.add_link_here(link.device, &config)
    }

    /// Adds a link to this shard.
    pub(crate) fn add_link_here(
        &self,
        device: Box<dyn Device>,
        config: &LinkConfig,
    ) -> Result<LinkId, StartError> {
        let shared = self.shared();
        // A device that is refused is dropped without the lock: its drop may call the host.
        let mut device = Some(device);
        let id = shared.modify(|inner, now| {
            let id = inner.stack.add_link(now, config)?;
            if let Err(error) = inner.devices.add(id, &mut device) {
                inner.stack.remove_link(id);
                return Err(StartError::from(error));
            }
            Ok(id)
        })?;
        // The driver does not wait on its descriptor yet.
        shared.wake_driver();
        Ok(id)
    }

    /// Removes a link with its addresses and routes; returns its device, or `None` if it was
    /// removed before, or the host has several cores ([`Cores::remove_link`](crate::Cores::remove_link)). Connections
    /// from its addresses end as if the peer did not answer.
    pub fn remove_link(&self, link: LinkId) -> Option<Box<dyn Device>> {
        if self.shared().member.is_some() {
            return None;
        }
        self.remove_link_here(link)
    }

    /// Removes a link of this shard.
    pub(crate) fn remove_link_here(&self, link: LinkId) -> Option<Box<dyn Device>> {
        let shared = self.shared();
        let device = shared.modify(|inner, _| {
            inner.stack.remove_link(link);
            inner.note_down();
            inner.devices.remove(link)
        });
        shared.wake_driver();
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
        let mut attached = AttachedService::new(service, ours);
        self.shared().modify(|inner, _| {
            // Events of earlier sockets have been reported to nobody.
            attached.first_events = inner.stack.events_so_far();
            inner.services.push(attached);
            inner.note_services();
        });
        // The driver does not wait on its descriptor yet.
        self.shared().wake_driver();
    }

    /// The addresses of this host, of all links, the link-local ones that IPv6 adds included.
    pub fn addresses(&self) -> Vec<Cidr> {
        Vec::from(self.shared().lock().stack.addresses())
    }

    /// The links: those of the builder in its order, then those that were added.
    pub fn links(&self) -> Vec<LinkId> {
        self.shared().lock().stack.links().collect()
    }

    /// The name of a link: `link1`, `link2` and so on by its [`scope_id`](LinkId::scope_id). `None`: it was
    /// removed.
    pub fn link_name(&self, link: LinkId) -> Option<String> {
        self.shared().lock().stack.link_name(link)
    }

    /// The addresses of a link, the link-local one that IPv6 adds included; none once it is removed.
    pub fn link_addresses(&self, link: LinkId) -> Vec<Cidr> {
        self.shared().lock().stack.link_addresses(link).collect()
    }

    /// The longest packet of a link, in bytes, with the IP header and without the link's own; `None` once the
    /// link is removed.
    pub fn mtu(&self, link: LinkId) -> Option<usize> {
        self.shared().lock().devices.mtu(link)
    }

    /// How many sockets there are, by kind.
    pub fn socket_counts(&self) -> SocketCounts {
        self.shared().lock().stack.socket_counts()
    }

    /// The sockets at `places` places of the table, from place `from` on: all sockets, if it is called with
    /// 0 and then with [`SocketPage::next`] until that is `None`. The host is locked for one page at a time.
    ///
    /// A socket that lives from the first call to the last is seen exactly once; one that is made or closed
    /// meanwhile may be missing. A page may be short, or empty, before the last.
    pub fn sockets(&self, from: u32, places: usize) -> SocketPage {
        let (inner, now) = self.shared().lock_now();
        inner.stack.sockets_from(now, from, places)
    }

    /// A waker of this host's driver, for services that get work from other threads.
    pub fn waker(&self) -> HostWaker {
        HostWaker(Arc::clone(&self.shared().wake))
    }

    /// Whether a socket with that host as its runtime belongs to this host.
    pub(crate) fn is_host_of(&self, runtime: &Self) -> bool {
        Arc::ptr_eq(&self.0, &runtime.0)
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
            receive_memory: inner.stack.receive_memory_used(),
            memory: inner.stack.memory().used(),
            memory_limit: inner.stack.memory().all(),
            memory_promised: inner.stack.memory().promised(),
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
    /// [`HostBuilder::shutdown_limit`](crate::HostBuilder::shutdown_limit); a process that is killed,
    /// or aborts, leaves its peers waiting, so a program that handles signals should end by `exit`. The
    /// drop of a host without a driver ([`HostBuilder::manual`](crate::HostBuilder::manual)) only
    /// resets.
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
    /// let (left, right) = Pair::new()?;
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
        shared.request_shutdown(limit);
        shared.wait_for_shutdown(Shared::latest_shutdown_end(limit))
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
            if driven || reentrancy::is_driver_of(shared.id) {
                self.wait_turn(Duration::from_millis(1));
            } else if !shared.turn_others() {
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

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("manual", &self.0.shared.manual).finish_non_exhaustive()
    }
}

/// The answer of a [`Resolver`].
pub type Resolving<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// A resolver of names for a host: [`HostBuilder::resolver`](crate::HostBuilder::resolver). Without one, a host
/// knows `localhost` only: the kernel's resolver would use the kernel's network. `Dns` (feature `dns`) is one.
///
/// ```
/// use pagewire::{Host, Resolver, Resolving};
///
/// #[derive(Debug)]
/// struct Table;
///
/// impl Resolver for Table {
///     fn resolve<'a>(&'a self, _: &'a Host, name: &'a str) -> Resolving<'a> {
///         Box::pin(async move {
///             match name {
///                 "printer" => Ok(vec![[10, 0, 0, 7].into()]),
///                 _ => Err(std::io::ErrorKind::NotFound.into()),
///             }
///         })
///     }
/// }
/// ```
pub trait Resolver: Send + Sync + 'static {
    /// The addresses of `name`, in the order in which they are tried. A resolver that needs the network
    /// uses that of `host`. `name` is as the program wrote it, but never an address, and never `localhost`
    /// or a name below that (RFC 6761 section 6.3), which are the host's own.
    ///
    /// # Errors
    /// `NotFound` for a name that has no address; none is returned as an error, not as an empty list.
    fn resolve<'a>(&'a self, host: &'a Host, name: &'a str) -> Resolving<'a>;
}

impl<T: Resolver + ?Sized> Resolver for Box<T> {
    fn resolve<'a>(&'a self, host: &'a Host, name: &'a str) -> Resolving<'a> {
        (**self).resolve(host, name)
    }
}

impl<T: Resolver + ?Sized> Resolver for Arc<T> {
    fn resolve<'a>(&'a self, host: &'a Host, name: &'a str) -> Resolving<'a> {
        (**self).resolve(host, name)
    }
}

/// A handle of a host, or of a shard of one.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
    pub(crate) resolver: Option<Arc<dyn Resolver>>,
    _keeper: Arc<Keeper>,
}

/// Keeps all shards of a host running, of which there may be one; its drop ends the host.
struct Keeper(Vec<Arc<Shared>>);

impl Handle {
    /// Runs `op`, which takes the host's lock, at once, or when this thread releases that lock.
    pub(crate) fn when_unlocked(
        self: &Arc<Self>,
        op: impl FnOnce(&Arc<Self>) + Send + Sync + 'static,
    ) {
        if reentrancy::is_called_under_lock_of(self.shared.host_id) {
            return Deferral::later(Box::new(RunOnDrop(Arc::clone(self), Some(op))));
        }
        op(self);
    }
}

/// A function that runs when this value is dropped.
struct RunOnDrop<F: FnOnce(&Arc<Handle>)>(Arc<Handle>, Option<F>);

impl<F: FnOnce(&Arc<Handle>)> Drop for RunOnDrop<F> {
    fn drop(&mut self) {
        if let Some(op) = self.1.take() {
            op(&self.0);
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let Some(first) = self.0.first() else { return };
        if first.process != std::process::id() {
            // A copy made by a fork: the devices and connections are the parent's.
            return;
        }
        if first.manual {
            // The first shards are over only when the last one is.
            for shard in self.0.iter().chain(&self.0) {
                shard.reset_all();
            }
            return;
        }
        // The driver shuts the host down. Where this thread may wait for it, the devices are free then.
        let limit = first.shutdown_limit;
        first.request_shutdown(limit);
        if !reentrancy::is_any_driver() && !is_asynchronous() {
            first.wait_for_shutdown(Shared::latest_shutdown_end(limit));
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
