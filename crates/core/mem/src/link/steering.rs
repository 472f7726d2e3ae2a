//! Queues that receive into memory of their own, and the rules that steer flows there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::headers::{self, Layout, Transport};
use super::limits::{MAX_QUEUES, MAX_RULES, PLACE_MIN};
use crate::{Access, CopyLedger, CopyReason, FragVec, PAGE_SIZE, PacketBuf, PagePool, PageWriter};

/// Memory that a queue receives into: pages of a region that its owner has given.
#[derive(Debug)]
pub struct QueueMemory {
    /// Free pages, and those that come back.
    pub pool: PagePool,
    /// Pages that frames are written to next.
    pub writer: PageWriter,
    level: Arc<Level>,
}

/// The state of a queue's memory: written by the device, read by the owner that fills it.
#[derive(Debug, Default)]
pub struct Level {
    free: AtomicUsize,
    checks: AtomicUsize,
    placed: AtomicU64,
    missed: AtomicU64,
}

impl Level {
    /// Pages that were free to receive into when the device last checked.
    pub fn free(&self) -> usize {
        // Relaxed, here and below: only counts.
        self.free.load(Ordering::Relaxed)
    }

    /// Number of checks by the device: [`free`](Self::free) has pages given before that.
    pub fn checks(&self) -> usize {
        self.checks.load(Ordering::Relaxed)
    }

    /// Payload bytes placed in the memory.
    pub fn placed(&self) -> u64 {
        self.placed.load(Ordering::Relaxed)
    }

    /// Payload bytes of the queue's flows that found no page there.
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }

    /// Adds payload bytes that a driver placed in the memory, and those that found no page there.
    #[inline]
    pub fn note(&self, placed: usize, missed: usize) {
        self.placed.fetch_add(placed as u64, Ordering::Relaxed);
        self.missed.fetch_add(missed as u64, Ordering::Relaxed);
    }
}

impl QueueMemory {
    /// The free pages of `pool`.
    pub fn new(pool: PagePool) -> Self {
        let memory = Self { pool, writer: PageWriter::new(), level: Arc::default() };
        memory.note_level();
        memory
    }

    /// The state of the memory.
    pub fn level(&self) -> &Arc<Level> {
        &self.level
    }

    /// Takes back the pages given since the last time.
    #[inline]
    pub fn drain(&mut self) {
        self.pool.drain();
        self.note_level();
    }

    /// Records how many pages are free.
    #[inline]
    pub fn note_level(&self) {
        self.level.free.store(self.pool.stats().free, Ordering::Relaxed);
        self.level.checks.fetch_add(1, Ordering::Relaxed);
    }

    /// Places a frame's payload in the memory, as far as there are pages; the rest stays in place.
    pub fn place(&mut self, frame: &mut PacketBuf, ledger: &mut CopyLedger) {
        if frame.frag_len() < PLACE_MIN {
            return;
        }
        let (mut placed, mut missed) = (FragVec::new(), 0);
        let total = frame.frag_len();
        for mut frag in frame.take_frags() {
            let copied = if missed == 0 {
                let (parts, n) =
                    self.writer.write_frag(&mut self.pool, &frag, ledger, CopyReason::DeviceRx);
                placed.extend(parts);
                n
            } else {
                0
            };
            missed += frag.len() - copied;
            frag.advance(copied);
            placed.push(frag);
        }
        for frag in placed {
            // Scattered pages may need too many fragments; the peer sends the rest again.
            if frame.push_frag(frag).is_err() {
                break;
            }
        }
        self.level.note(total - missed, missed);
        self.note_level();
    }
}

/// A protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP. Only the first of a datagram's IP fragments has ports: others stay on queue 0.
    Udp,
}

/// A rule names flows; a field that is `None` matches all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Protocol.
    pub protocol: Option<Protocol>,
    /// The stack's port.
    pub local_port: Option<u16>,
    /// The peer's address.
    pub peer: Option<IpAddr>,
    /// The peer's port.
    pub peer_port: Option<u16>,
}

impl Rule {
    /// TCP to a local port.
    pub fn tcp_port(port: u16) -> Self {
        Self::port(Protocol::Tcp, port)
    }

    /// A single TCP connection.
    pub fn tcp_flow(local_port: u16, peer: SocketAddr) -> Self {
        Self::tcp_port(local_port).of_peer(peer)
    }

    /// UDP to a local port.
    pub fn udp_port(port: u16) -> Self {
        Self::port(Protocol::Udp, port)
    }

    /// UDP to a local port from one peer.
    pub fn udp_flow(local_port: u16, peer: SocketAddr) -> Self {
        Self::udp_port(local_port).of_peer(peer)
    }

    fn port(protocol: Protocol, port: u16) -> Self {
        Self { protocol: Some(protocol), local_port: Some(port), ..Self::default() }
    }

    fn of_peer(self, peer: SocketAddr) -> Self {
        Self { peer: Some(peer.ip()), peer_port: Some(peer.port()), ..self }
    }

    fn matches(&self, flow: &Flow) -> bool {
        self.protocol.is_none_or(|protocol| protocol == flow.protocol)
            && self.local_port.is_none_or(|port| port == flow.local_port)
            && self.peer.is_none_or(|peer| peer == flow.peer)
            && self.peer_port.is_none_or(|port| port == flow.peer_port)
    }
}

/// The addresses and ports of a frame, as seen from this host.
struct Flow {
    protocol: Protocol,
    local_port: u16,
    peer: IpAddr,
    peer_port: u16,
}

impl Flow {
    fn received(head: &[u8]) -> Option<Self> {
        Self::of(head, false)
    }

    fn sent(head: &[u8]) -> Option<Self> {
        Self::of(head, true)
    }

    fn of(head: &[u8], ours: bool) -> Option<Self> {
        let layout = headers::parse(head).ok()?;
        let protocol = match layout.transport {
            Transport::Tcp => Protocol::Tcp,
            Transport::Udp => Protocol::Udp,
            Transport::Other => return None,
        };
        let (source, destination) = addresses(&layout, head)?;
        let port = |at: usize| -> Option<u16> {
            Some(u16::from_be_bytes(head.get(at..at + 2)?.try_into().ok()?))
        };
        let (from, to) = (port(layout.transport_at)?, port(layout.transport_at + 2)?);
        Some(if ours {
            Self { protocol, local_port: from, peer: destination, peer_port: to }
        } else {
            Self { protocol, local_port: to, peer: source, peer_port: from }
        })
    }
}

fn addresses(layout: &Layout, head: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let both = layout.addresses(head)?;
    let (source, destination) = both.split_at_checked(both.len() / 2)?;
    let ip = |bytes: &[u8]| -> Option<IpAddr> {
        if layout.v6 {
            Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?).to_canonical())
        } else {
            Some(Ipv4Addr::from(<[u8; 4]>::try_from(bytes).ok()?).into())
        }
    };
    Some((ip(source)?, ip(destination)?))
}

/// Why a queue cannot have memory, or a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindError {
    /// The device cannot receive into memory of the application.
    #[error("the device cannot receive into registered memory")]
    Unsupported,
    /// The device has no such queue.
    #[error("the device has no queue {0}")]
    NoQueue(usize),
    /// The queue has memory already.
    #[error("queue {0} is taken")]
    Taken(usize),
    /// The device reads headers from received memory, and the memory counts as shared.
    #[error(
        "the device needs memory that nobody else writes: a region that does not count as shared"
    )]
    Shared,
    /// The kernel does not attach the queue to the interface, for this reason.
    #[error("queue {0} cannot be attached: {1}")]
    Attach(usize, std::io::ErrorKind),
    /// The rule already leads to another queue, perhaps another application's.
    #[error("the rule leads to queue {0} already")]
    Steered(usize),
    /// The device has as many rules as it takes.
    #[error("the device takes no more than {MAX_RULES} rules")]
    TooManyRules,
}

/// Attaches a queue so that frames arrive at it.
type Attach = Box<dyn FnMut(usize) -> std::io::Result<()> + Send>;

/// Rules and the memory of queues. Queue 0 is the default, for flows without a rule.
pub struct Steering {
    queues: Vec<Option<QueueMemory>>,
    /// Attaches a queue before it gets memory.
    attach: Option<Attach>,
    /// Rules with their queues; the first that matches counts.
    rules: Vec<(Rule, usize)>,
    /// Memory that others may write is refused.
    private: bool,
    /// Times that a queue got or lost memory.
    changes: u64,
}

impl core::fmt::Debug for Steering {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { queues, rules, private, changes, .. } = self;
        f.debug_struct("Steering")
            .field("queues", queues)
            .field("rules", rules)
            .field("private", private)
            .field("changes", changes)
            .finish_non_exhaustive()
    }
}

impl Steering {
    /// `queues` queues without memory, and no rules.
    pub fn new(queues: usize) -> Self {
        let queues = queues.clamp(1, MAX_QUEUES);
        let queues = (0..queues).map(|_| None).collect();
        Self { queues, attach: None, rules: Vec::new(), private: false, changes: 0 }
    }

    /// Queues in all.
    pub fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Gives a queue memory.
    ///
    /// # Errors
    /// [`BindError::NoQueue`]; [`BindError::Taken`] if it has some; [`BindError::Shared`] if the
    /// device needs private memory; [`BindError::Attach`] if the kernel does not attach the queue.
    pub fn bind(&mut self, queue: usize, memory: QueueMemory) -> Result<(), BindError> {
        if self.private && memory.pool.access() == Access::Shared {
            return Err(BindError::Shared);
        }
        match self.queues.get_mut(queue) {
            None => Err(BindError::NoQueue(queue)),
            Some(Some(_)) => Err(BindError::Taken(queue)),
            Some(place) => {
                if let Some(attach) = &mut self.attach {
                    attach(queue).map_err(|e| BindError::Attach(queue, e.kind()))?;
                }
                *place = Some(memory);
                self.changes += 1;
                Ok(())
            }
        }
    }

    /// Removes a queue's memory, and the rules that lead there.
    pub fn unbind(&mut self, queue: usize) -> Option<QueueMemory> {
        self.rules.retain(|(_, to)| *to != queue);
        let memory = self.queues.get_mut(queue)?.take();
        self.changes += u64::from(memory.is_some());
        memory
    }

    /// Steers the flows that `rule` names to a queue from now on. A repeated rule changes nothing;
    /// a rule is never moved to another queue, which would take another owner's flows away.
    ///
    /// # Errors
    /// [`BindError::NoQueue`], [`BindError::Steered`], [`BindError::TooManyRules`].
    pub fn steer(&mut self, rule: Rule, queue: usize) -> Result<(), BindError> {
        if queue >= self.queues.len() {
            return Err(BindError::NoQueue(queue));
        }
        if let Some((_, to)) = self.rules.iter().find(|(known, _)| *known == rule) {
            return if *to == queue { Ok(()) } else { Err(BindError::Steered(*to)) };
        }
        if self.rules.len() >= MAX_RULES {
            return Err(BindError::TooManyRules);
        }
        self.rules.push((rule, queue));
        Ok(())
    }

    /// The queue of a frame that was received.
    #[inline]
    pub fn queue_of(&self, head: &[u8]) -> usize {
        self.queue_of_flow(|| Flow::received(head))
    }

    /// The queue of a frame that is sent: where its answers go.
    #[inline]
    pub fn queue_of_sent(&self, head: &[u8]) -> usize {
        self.queue_of_flow(|| Flow::sent(head))
    }

    #[inline]
    fn queue_of_flow(&self, flow: impl FnOnce() -> Option<Flow>) -> usize {
        if self.rules.is_empty() {
            return 0;
        }
        let Some(flow) = flow() else { return 0 };
        self.rules.iter().find(|(rule, _)| rule.matches(&flow)).map_or(0, |(_, queue)| *queue)
    }

    /// The memory of a queue.
    #[inline]
    pub fn memory_mut(&mut self, queue: usize) -> Option<&mut QueueMemory> {
        self.queues.get_mut(queue)?.as_mut()
    }

    /// Takes back the pages given to all queues.
    #[inline]
    pub fn drain(&mut self) {
        self.queues.iter_mut().flatten().for_each(QueueMemory::drain);
    }

    /// Places a received frame's payload in the memory of its queue, if that has some.
    pub fn place(&mut self, frame: &mut PacketBuf, ledger: &mut CopyLedger) {
        if frame.frag_len() == 0 {
            return;
        }
        let queue = self.queue_of(frame.head());
        if let Some(memory) = self.memory_mut(queue) {
            memory.place(frame, ledger);
        }
    }
}

/// Methods for a driver that reads into its queues' memory itself.
impl QueueMemory {
    /// Makes sure that `writer` has `bytes` spare bytes; `false`: too few pages, or too scattered.
    #[inline]
    pub fn reserve(&mut self, writer: &mut PageWriter, bytes: usize) -> bool {
        writer.reserve(&mut self.pool, bytes)
    }

    /// Whether at least `bytes` bytes of its pages are free.
    #[inline]
    pub fn has(&self, bytes: usize) -> bool {
        self.pool.stats().free * PAGE_SIZE >= bytes
    }
}

/// Methods for a driver whose queues are the kernel's.
impl Steering {
    /// Calls `attach` for each queue that is to get memory.
    pub fn attach_by(&mut self, attach: impl FnMut(usize) -> std::io::Result<()> + Send + 'static) {
        self.attach = Some(Box::new(attach));
    }

    /// [`new`](Self::new) for private memory only.
    pub fn private(queues: usize) -> Self {
        Self { private: true, ..Self::new(queues) }
    }

    /// Grows when a queue gets or loses memory.
    #[inline]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Whether a queue has memory.
    #[inline]
    pub fn is_bound(&self, queue: usize) -> bool {
        self.queues.get(queue).is_some_and(Option::is_some)
    }

    /// Records the state of all queues' memory.
    pub fn note_levels(&self) {
        self.queues.iter().flatten().for_each(QueueMemory::note_level);
    }
}

#[cfg(test)]
#[path = "steering_tests.rs"]
mod tests;
