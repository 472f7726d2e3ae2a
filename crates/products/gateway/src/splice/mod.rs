//! Connections between two sockets of this machine's kernel, of which one is in the guest's namespace: clients of
//! published ports that lead to the namespace's own loopback, and clients of ports of that loopback which lead out
//! here ([`Forward`]). The stack has no part in them: `splice(2)` moves their bytes from socket to socket.
//!
//! ```text
//!   relay: accepts, judges ---- Job ----> Splicer: connects the far side, moves bytes    worker.rs
//!   relay: listens <----- PortChange ---- Follower: looks who listens where              follow.rs
//! ```
//!
//! Read [`Splicer`] first, the relay's handle, then `worker.rs` (its thread) and `joined.rs` (a connection).

mod follow;
mod forward;
mod joined;
mod pipes;
mod worker;

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::counters::Counters;
use crate::limits::SPLICE_DESCRIPTORS;
use crate::netns::NsSockets;
use crate::request::{Ask, Journal};
pub(crate) use follow::{Follow, Follower, Listens, OwnPorts, PortChange, listen_inside};
pub(crate) use forward::{Except, Ports as ForwardPorts};
pub use forward::{Forward, ForwardError};
use worker::Worker;

/// The relay's handle on the thread that joins sockets of the kernel.
pub(crate) struct Splicer {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// A client that was accepted, and permitted.
pub(crate) struct Job {
    pub(crate) client: OwnedFd,
    /// The addresses to connect to: the second one if the first refuses.
    pub(crate) to: (SocketAddr, Option<SocketAddr>),
    pub(crate) far: Far,
    pub(crate) flow: u64,
    pub(crate) ask: Ask,
    pub(crate) began: Instant,
}

/// Where the far side of a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Far {
    /// In the guest's namespace.
    Inside,
    /// In the namespace of this process.
    Outside,
}

/// The state that both threads see.
#[derive(Default)]
pub(crate) struct Shared {
    connections: AtomicUsize,
    /// Connections on which the guest may still send.
    open_out: AtomicUsize,
    /// Descriptors of pipes that no connection has.
    spare: AtomicUsize,
    stop: AtomicUsize,
    counts: Counts,
}

/// What the thread counts; see [`Counters`].
#[derive(Default)]
struct Counts {
    dialled: AtomicU64,
    opened: AtomicU64,
    finished: AtomicU64,
    broken: AtomicU64,
    idle: AtomicU64,
    refused: AtomicU64,
    given_up: AtomicU64,
    exhausted: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Splicer {
    /// Starts the thread. `idle`: silence after which a connection is reset.
    ///
    /// # Errors
    /// No descriptor, or no thread, is left.
    pub(crate) fn start(
        sockets: NsSockets,
        journal: Option<Arc<dyn Journal>>,
        idle: Option<Duration>,
    ) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let shared = Arc::<Shared>::default();
        let (jobs, queue) = channel();
        let worker =
            Worker::new(queue, Arc::clone(&wake), Arc::clone(&shared), sockets, journal, idle)?;
        let thread = std::thread::Builder::new().name("pagewire-splice".into());
        let thread = Some(thread.spawn(move || worker.run())?);
        Ok(Self { jobs, wake, shared, thread })
    }

    /// Joins a client with the far side that it asks for.
    pub(crate) fn join(&self, job: Job) {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.shared.open_out.fetch_add(1, Ordering::Relaxed);
        // The thread ends after this handle, so it takes the job.
        let _ = self.jobs.send(job);
        self.wake();
    }

    fn wake(&self) {
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Number of connections.
    pub(crate) fn len(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Whether everything that the guest has sent was passed on, with the ends of its streams.
    pub(crate) fn is_finished(&self) -> bool {
        self.shared.open_out.load(Ordering::Relaxed) == 0
    }

    /// Number of descriptors of these, pipes included that they may need.
    pub(crate) fn descriptors(&self) -> usize {
        self.len() * SPLICE_DESCRIPTORS + self.shared.spare.load(Ordering::Relaxed)
    }

    /// Adds what was counted.
    pub(crate) fn count(&self, counters: &mut Counters) {
        let counts = &self.shared.counts;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counters.dialled += get(&counts.dialled);
        counters.opened += get(&counts.opened);
        counters.spliced += get(&counts.opened);
        counters.finished += get(&counts.finished);
        counters.broken += get(&counts.broken);
        counters.idle += get(&counts.idle);
        counters.refused += get(&counts.refused);
        counters.given_up += get(&counts.given_up);
        counters.exhausted += get(&counts.exhausted);
        counters.bytes_out += get(&counts.bytes_out);
        counters.bytes_in += get(&counts.bytes_in);
        counters.writes += get(&counts.writes);
        counters.reads += get(&counts.reads);
    }
}

impl Drop for Splicer {
    /// Resets all connections, and writes down their ends.
    fn drop(&mut self) {
        self.shared.stop.store(1, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Changes of ports on their way to the relay, with a descriptor that wakes it.
#[derive(Clone)]
pub(crate) struct Inbox {
    changes: Arc<Mutex<Vec<PortChange>>>,
    wake: Arc<OwnedFd>,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { changes: Arc::default(), wake: Arc::new(wake) })
    }

    /// The descriptor, which is readable while there are changes.
    pub(crate) fn wait_fd(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn put(&self, change: PortChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    pub(crate) fn take(&self) -> Vec<PortChange> {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        std::mem::take(&mut self.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
