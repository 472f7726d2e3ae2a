//! Connections between two sockets of this machine's kernel, of which one is in the guest's namespace: clients of
//! published ports, which reach the guest's address or the namespace's own loopback, and clients of ports of that loopback which lead out
//! here ([`Forward`]). The stack has no part in them: `splice(2)` moves their bytes from socket to socket.
//!
//! ```text
//!   relay: accepts, judges ---- Job ----> Splicer: connects the far side, moves bytes    worker.rs
//!   relay: goes by the link <--- Join --- and gives back whom it cannot connect in the namespace
//!   relay: listens <----- PortChange ---- Follower: looks who listens where              follow.rs
//! ```
//!
//! Read [`Splicer`] first, the relay's handle, then `worker.rs` (its thread), `joined.rs` (a connection) and
//! `datagrams.rs`.

mod datagrams;
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

use crate::context::{DescriptorShare, Fate};
use crate::counters::Counters;
use crate::limits::{DIVERTED, SPLICE_DESCRIPTORS, UDP_LONGEST};
use crate::netns::NsSockets;
use crate::request::{Ask, FlowState, Journal};
use crate::sys::datagrams::Received;
pub(crate) use datagrams::DatagramPort;
pub(crate) use follow::{
    Follow, Follower, Listens, OwnPort, OwnPorts, PortChange, listen_inside, loopbacks,
};
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

/// What the thread is asked for.
enum Job {
    Join(Join),
    Serve(DatagramPort),
    /// To serve a port for datagrams no more.
    Close(u64),
    Pass(Datagram),
    Review(Review),
}

/// A flow between two sockets of the kernel.
pub(crate) struct JoinedFlow<'a> {
    /// The number of the flow; `None`: a port for datagrams, whose question its flows have.
    pub(crate) flow: Option<u64>,
    pub(crate) ask: &'a Ask,
    /// The far side's address.
    pub(crate) peer: SocketAddr,
    /// Payload bytes from the guest to the network.
    pub(crate) bytes_out: u64,
    /// Payload bytes from the network to the guest.
    pub(crate) bytes_in: u64,
    pub(crate) began: Instant,
    pub(crate) open: bool,
}

impl JoinedFlow<'_> {
    /// The state of the flow; `None` of a port.
    pub(crate) fn state(&self) -> Option<FlowState> {
        Some(FlowState {
            flow: self.flow?,
            ask: self.ask.clone(),
            shown: None,
            peer: self.peer,
            bytes_out: self.bytes_out,
            bytes_in: self.bytes_in,
            age: self.began.elapsed(),
            open: self.open,
        })
    }
}

/// Decides about flows. A port that is to end takes no datagram until another decision has a demand.
pub(crate) type Review = Box<dyn FnMut(&JoinedFlow<'_>) -> Fate + Send>;

/// A datagram of a client of a published port, or several of one size, for the namespace's loopback.
struct Datagram {
    guest: SocketAddr,
    from: SocketAddr,
    bytes: Vec<u8>,
    /// With several: bytes of each but the last.
    segment: Option<u16>,
}

/// Bytes of a waiting datagram beside its payload, about.
const DATAGRAM_COST: usize = 128;

/// Takes datagrams that came to a published port over this machine's loopback, which are for the namespace's.
pub(crate) struct Diverter {
    jobs: Sender<Job>,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    room: Vec<u8>,
}

impl Diverter {
    /// Memory for what one call receives.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        &mut self.room
    }

    /// What was received into it.
    pub(crate) fn received(&self, received: &Received) -> &[u8] {
        self.room.get(..received.len).unwrap_or_default()
    }

    /// Takes what was received for the guest's address, if its client is such a one. Returns whether it is.
    pub(crate) fn take(&self, guest: SocketAddr, received: &Received) -> bool {
        let Received { from, segment, .. } = *received;
        if !from.ip().to_canonical().is_loopback() {
            return false;
        }
        let bytes = self.received(received).to_vec();
        let cost = bytes.len() + DATAGRAM_COST;
        if self.shared.waiting.fetch_add(cost, Ordering::Relaxed) > DIVERTED {
            self.shared.waiting.fetch_sub(cost, Ordering::Relaxed);
            add(&self.shared.counts.datagrams_lost, 1);
            return true;
        }
        let _ = self.jobs.send(Job::Pass(Datagram { guest, from, bytes, segment }));
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        true
    }
}

/// The guest's settings that its flows have.
pub(crate) struct FlowSettings {
    pub(crate) journal: Option<Arc<dyn Journal>>,
    /// Silence after which a connection is reset.
    pub(crate) idle: Option<Duration>,
    pub(crate) share: DescriptorShare,
    /// The last number of a flow.
    pub(crate) numbers: Arc<AtomicU64>,
}

/// A client that was accepted, and permitted.
pub(crate) struct Join {
    pub(crate) client: OwnedFd,
    /// The addresses to connect to: the second one if the first refuses.
    pub(crate) to: (SocketAddr, Option<SocketAddr>),
    pub(crate) far: Far,
    /// The guest's link leads to the first address, too: the client comes back if the namespace's kernel cannot
    /// connect.
    pub(crate) or_link: bool,
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
    /// Sockets for datagrams.
    datagrams: AtomicUsize,
    /// Descriptors of the guest that its relay has.
    others: AtomicUsize,
    /// Connections of the guest that have failed, since the relay last asked.
    failed: AtomicUsize,
    /// Bytes of datagrams on their way to the thread.
    waiting: AtomicUsize,
    stop: AtomicUsize,
    counts: Counts,
}

impl Shared {
    fn descriptors(&self) -> usize {
        let connections = self.connections.load(Ordering::Relaxed);
        let others = [&self.spare, &self.datagrams].map(|n| n.load(Ordering::Relaxed));
        connections * SPLICE_DESCRIPTORS + others.iter().sum::<usize>()
    }

    /// Number of all descriptors of the guest.
    fn all_descriptors(&self) -> usize {
        self.descriptors() + self.others.load(Ordering::Relaxed)
    }
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
    silent: AtomicU64,
    given_up: AtomicU64,
    exhausted: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
    datagrams_out: AtomicU64,
    datagrams_in: AtomicU64,
    datagrams_lost: AtomicU64,
    datagrams_filtered: AtomicU64,
    destinations_refused: AtomicU64,
}

impl Counts {
    /// Counts a datagram that was passed on.
    fn note_datagram(&self, is_out: bool, bytes: usize) {
        let (datagrams, sum) = match is_out {
            true => (&self.datagrams_out, &self.bytes_out),
            false => (&self.datagrams_in, &self.bytes_in),
        };
        add(datagrams, 1);
        add(sum, bytes as u64);
    }
}

fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

impl Splicer {
    /// Starts the thread.
    ///
    /// # Errors
    /// No descriptor, or no thread, is left.
    pub(crate) fn start(sockets: NsSockets, flows: FlowSettings, inbox: Inbox) -> io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let shared = Arc::<Shared>::default();
        let (jobs, queue) = channel();
        let worker =
            Worker::new((queue, inbox), Arc::clone(&wake), Arc::clone(&shared), sockets, flows)?;
        let thread = std::thread::Builder::new().name("pagewire-splice".into());
        let thread = Some(thread.spawn(move || worker.run())?);
        Ok(Self { jobs, wake, shared, thread })
    }

    /// Joins a client with the far side that it asks for.
    pub(crate) fn join(&self, join: Join) {
        self.shared.connections.fetch_add(1, Ordering::Relaxed);
        self.shared.open_out.fetch_add(1, Ordering::Relaxed);
        self.ask(Job::Join(join));
    }

    pub(crate) fn diverter(&self) -> Diverter {
        let (wake, shared) = (Arc::clone(&self.wake), Arc::clone(&self.shared));
        Diverter { jobs: self.jobs.clone(), wake, shared, room: vec![0; UDP_LONGEST] }
    }

    /// Serves a socket for datagrams.
    pub(crate) fn serve(&self, port: DatagramPort) {
        self.ask(Job::Serve(port));
    }

    /// Serves it no more.
    pub(crate) fn close(&self, number: u64) {
        self.ask(Job::Close(number));
    }

    /// Has the thread look at each flow.
    pub(crate) fn review(&self, review: Review) {
        self.ask(Job::Review(review));
    }

    fn ask(&self, job: Job) {
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
        self.shared.descriptors()
    }

    /// Number of connections of the guest that have failed since the last call.
    pub(crate) fn take_failed(&self) -> usize {
        self.shared.failed.swap(0, Ordering::Relaxed)
    }

    /// Notes how many other descriptors the guest has.
    pub(crate) fn note_others(&self, descriptors: usize) {
        self.shared.others.store(descriptors, Ordering::Relaxed);
    }

    /// What is counted, also behind the end of the thread.
    pub(crate) fn counted(&self) -> Counted {
        Counted(Arc::clone(&self.shared))
    }
}

/// What a splicer has counted.
pub(crate) struct Counted(Arc<Shared>);

impl Counted {
    /// Adds it to other counters.
    pub(crate) fn add_to(&self, counters: &mut Counters) {
        let counts = &self.0.counts;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        counters.dialled += get(&counts.dialled);
        counters.opened += get(&counts.opened);
        counters.spliced += get(&counts.opened);
        counters.finished += get(&counts.finished);
        counters.broken += get(&counts.broken);
        counters.idle += get(&counts.idle);
        counters.refused += get(&counts.refused);
        counters.silent += get(&counts.silent);
        counters.given_up += get(&counts.given_up);
        counters.exhausted += get(&counts.exhausted);
        counters.bytes_out += get(&counts.bytes_out);
        counters.bytes_in += get(&counts.bytes_in);
        counters.writes += get(&counts.writes);
        counters.reads += get(&counts.reads);
        counters.datagrams_out += get(&counts.datagrams_out);
        counters.datagrams_in += get(&counts.datagrams_in);
        counters.datagrams_lost += get(&counts.datagrams_lost);
        counters.datagrams_filtered += get(&counts.datagrams_filtered);
        counters.destinations_refused += get(&counts.destinations_refused);
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

/// What is on its way to the relay, with a descriptor that wakes it.
#[derive(Clone)]
pub(crate) struct Inbox {
    changes: Arc<Mutex<Vec<PortChange>>>,
    clients: Arc<Mutex<Vec<Join>>>,
    wake: Arc<OwnedFd>,
}

impl Inbox {
    pub(crate) fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { changes: Arc::default(), clients: Arc::default(), wake: Arc::new(wake) })
    }

    /// The descriptor, which is readable while there is something.
    pub(crate) fn wait_fd(&self) -> &OwnedFd {
        &self.wake
    }

    pub(crate) fn put(&self, change: PortChange) {
        self.changes.lock().unwrap_or_else(PoisonError::into_inner).push(change);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Gives a client back that the guest's link may reach.
    fn give_back(&self, client: Join) {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner).push(client);
        let _ = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
    }

    /// Takes all there is: changes of ports, and clients that go by the link.
    pub(crate) fn take(&self) -> (Vec<PortChange>, Vec<Join>) {
        let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
        let changes = &mut *self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let clients = &mut *self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(changes), std::mem::take(clients))
    }
}
