//! [`Proxy`]: a [`Service`] that forwards connections on a host.
//!
//! [`ForwardConfig`] has its limits, [`ForwardCounters`] its counts, and a [`Refusal`] the reason why a
//! connection was not taken.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagewire_mem::Instant;
use pagewire_sockets::{ToSocketAddrs, first, resolve_blocking};
use pagewire_stack::{Event, Forwarder, Stack};
pub use pagewire_stack::{ForwardConfig, ForwardCounters, Refusal};

use crate::host::Host;
use crate::service::Service;
use crate::{TcpListener, TcpStream};

/// Forwards connections by reference: data of one side is queued for the other unchanged, as far as
/// there is room; ends of streams and resets are forwarded, too.
///
/// A proxy is a [`Service`], without a thread. A drop closes its listeners and resets its connections.
///
/// ```
/// use std::io::{Read, Write};
/// use pagewire::proxy::Proxy;
/// use pagewire::{Host, Pair};
///
/// let (left, right) = Pair::new()?;
/// let outside = Host::builder().device(left).address("10.0.0.1/24").start()?;
/// let host = Host::builder().device(right).address("10.0.0.2/24").start()?;
///
/// let server = outside.listen("10.0.0.1:8000")?;
/// let proxy = Proxy::new(&host, Default::default());
/// proxy.listen("10.0.0.2:80", 128, "10.0.0.1:8000".parse()?)?;
///
/// let mut client = outside.connect("10.0.0.2:80")?;
/// let (mut served, _) = server.accept()?;
/// client.write_all(b"through")?;
/// served.read_exact(&mut [0; 7])?;
/// assert_eq!(proxy.counters().bytes_up, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    host: Host,
    engine: Engine,
}

/// The service behind a proxy.
#[derive(Clone, Debug)]
struct Engine(Arc<Forwarding>);

/// The state that a proxy and its service share.
#[derive(Debug)]
struct Forwarding {
    /// Locked under the host's lock, or alone.
    forwarder: Mutex<Forwarder>,
    /// When the forwarder's next turn is due, in nanoseconds: read in every turn of the host, without the lock.
    due: AtomicU64,
}

impl Engine {
    fn new(config: ForwardConfig) -> Self {
        let forwarder = Mutex::new(Forwarder::new(config));
        Self(Arc::new(Forwarding { forwarder, due: AtomicU64::new(Instant::FAR.as_nanos()) }))
    }

    fn lock(&self) -> MutexGuard<'_, Forwarder> {
        self.0.forwarder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs an operation of the forwarder, under the host's lock.
    fn with<T>(&self, op: impl FnOnce(&mut Forwarder) -> T) -> T {
        let mut forwarder = self.lock();
        let result = op(&mut forwarder);
        let due = forwarder.poll_timeout().unwrap_or(Instant::FAR);
        // Read and written under the host's lock only.
        self.0.due.store(due.as_nanos(), Ordering::Relaxed);
        result
    }
}

impl Service for Engine {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        self.with(|forwarder| forwarder.turn(now, stack, events));
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = Instant::from_nanos(self.0.due.load(Ordering::Relaxed));
        (due < Instant::FAR).then_some(due)
    }
}

impl Proxy {
    /// A proxy on this host that forwards nothing yet.
    pub fn new(host: &Host, config: ForwardConfig) -> Self {
        let engine = Engine::new(config);
        host.attach_as(Box::new(engine.clone()), true);
        Self { host: host.clone(), engine }
    }

    /// Forwards connections to `on` to `upstream`. At the connection limit, up to `backlog` more may wait.
    /// Returns the address it listens on.
    ///
    /// # Errors
    /// As [`Host::listen`].
    pub fn listen(
        &self,
        on: impl ToSocketAddrs,
        backlog: usize,
        upstream: SocketAddr,
    ) -> io::Result<SocketAddr> {
        first(resolve_blocking(&self.host, on)?, |local| {
            let listening = self.with(|engine, stack, now| {
                let id = stack.listen(local, backlog)?;
                let local = stack.local_addr(id)?;
                engine.listen(now, stack, id, upstream)?;
                Ok(local)
            });
            listening.map_err(|e| self.host.shared().error(e))
        })
    }

    /// Forwards the connections of a listener of this host to `upstream`; use no clone of the listener afterwards. For
    /// listeners with other settings than those of [`listen`](Self::listen), as those of a host of several
    /// [`Cores`](crate::Cores): a proxy on each shard takes the shard's listener.
    ///
    /// # Errors
    /// `InvalidInput` if the listener belongs to another host; `NetworkDown`.
    pub fn forward(&self, listener: TcpListener, upstream: SocketAddr) -> io::Result<()> {
        if !self.host.is_host_of(listener.runtime()) {
            let text = "the listener must be of the proxy's host";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let id = listener.into_id();
        let listening = self.with(|engine, stack, now| {
            engine.listen(now, stack, id, upstream).inspect_err(|_| stack.close(now, id))
        });
        listening.map_err(|e| self.host.shared().error(e))
    }

    /// Forwards between two established connections of this host; use no clone of them afterwards.
    ///
    /// # Errors
    /// `InvalidInput` if one belongs to another host; the error of a connection that is over.
    pub fn join(&self, a: TcpStream, b: TcpStream) -> io::Result<()> {
        if !self.host.is_host_of(a.runtime()) || !self.host.is_host_of(b.runtime()) {
            let text = "both connections must be of the proxy's host";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let (a, b) = (a.into_id(), b.into_id());
        let joined = self.with(|engine, stack, now| {
            let joined = engine.join(now, stack, a, b);
            if joined.is_err() {
                stack.close(now, a);
                stack.close(now, b);
            }
            joined
        });
        joined.map_err(|e| self.host.shared().error(e))
    }

    /// Accepts no more connections; those in a backlog are reset.
    pub fn stop_listening(&self) {
        self.with(|engine, stack, now| engine.stop_listening(now, stack));
    }

    /// Resets every connection.
    pub fn abort_all(&self) {
        self.with(|engine, stack, now| engine.abort_all(now, stack));
    }

    /// The oldest refused client that was not returned yet.
    pub fn poll_refusal(&self) -> Option<Refusal> {
        self.engine.lock().poll_refusal()
    }

    /// The proxy's counts.
    pub fn counters(&self) -> ForwardCounters {
        self.engine.lock().counters()
    }

    /// Connections that are being forwarded.
    pub fn len(&self) -> usize {
        self.engine.lock().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn with<T>(&self, op: impl FnOnce(&mut Forwarder, &mut Stack, Instant) -> T) -> T {
        self.host.shared().with_stack(|stack, now| self.engine.with(|f| op(f, stack, now)))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let engine = self.engine.clone();
        self.host.handle().when_unlocked(move |host| {
            host.shared.with_stack(|stack, now| {
                engine.with(|forwarder| {
                    forwarder.stop_listening(now, stack);
                    forwarder.abort_all(now, stack);
                });
            });
        });
    }
}
