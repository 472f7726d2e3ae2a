//! Forwarding between connections, by reference: what one receives, the other sends.
//!
//! ```text
//!            [receive queue]--pump-->[send queue]
//!   client                  a        b                    upstream
//!            [send queue]<--pump--[receive queue]
//! ```
//!
//! A pump moves fragments and never touches a byte. It takes no more from one side than the other
//! side's send queue has room for: the rest stays in the receive queue, the window closes, and the
//! sender waits. One budget bounds the memory of all pairs, because data that waits for
//! acknowledgement is charged like unread data (`TcpSocket::forwarding`). When it is nearly used up,
//! pairs that hold some of it and have stalled for a while are reset.
//!
//! The end of a stream is forwarded behind its data, each direction by itself (half-close). If a
//! connection breaks, the peer of the other one gets a reset. Urgent data (RFC 9293 section 3.8.5)
//! stays at its position in the stream, without its mark (RFC 6093 section 3.4).
//!
//! While there is only data to forward, the stack does it by itself, once for each burst
//! (`sockets/splice/`), and the forwarder gets events for all else.
//!
//! Read [`Forwarder`] first, then `pair.rs`.

mod pair;

use core::cmp::Reverse;
use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::{Frag, Instant};
use pagewire_tcp::KeepAlive;
use slab::Slab;

use crate::limits::{
    FORWARD_CHECK_INTERVAL, FORWARD_CONNECT_TIME, FORWARD_CONNECTIONS, FORWARD_IDLE_TIME,
    FORWARD_KEEPALIVE, FORWARD_REFUSALS, FORWARD_RELIEF, FORWARD_RETRIES_PER_TURN, FORWARD_RETRY,
    FORWARD_STALL_TIME,
};
use crate::sockets::SplicedBytes;
use crate::stack::Stack;
use crate::{Error, Event, ListenerId, SocketOption, TcpId};
use pair::{Pair, PairStep};

/// Settings of a forwarder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardConfig {
    /// Connections at once; more wait in the listener's backlog.
    pub connections: usize,
    /// How long an upstream may take to answer; then its client gets a reset.
    pub connect_timeout: Duration,
    /// Both sides are reset after this time without a byte in either direction; `None`: never.
    pub idle_timeout: Option<Duration>,
    /// When memory is short, pairs that hold some and have forwarded nothing for this time are
    /// reset: their peers do not read. `None`: other pairs wait until they do.
    pub stall_timeout: Option<Duration>,
    /// Probes of silent peers, whose resets may have been lost. `None`: none.
    pub keepalive: Option<KeepAlive>,
}

impl Default for ForwardConfig {
    fn default() -> Self {
        Self {
            connections: FORWARD_CONNECTIONS,
            connect_timeout: FORWARD_CONNECT_TIME,
            idle_timeout: Some(FORWARD_IDLE_TIME),
            stall_timeout: Some(FORWARD_STALL_TIME),
            keepalive: Some(KeepAlive { idle: FORWARD_KEEPALIVE, ..KeepAlive::default() }),
        }
    }
}

pagewire_mem::counters! {
    /// Counts of a forwarder.
    #[derive(Copy)]
    pub struct ForwardCounters {
        /// Connections accepted, or joined.
        accepted,
        /// Upstreams that answered, or were joined.
        connected,
        /// Clients that were reset because no connection to the upstream could be opened.
        refused,
        /// Pairs that both sides have ended.
        finished,
        /// Pairs of which one side broke, and the other was reset.
        broken,
        /// Pairs that were reset because they were idle for too long.
        idle,
        /// Pairs that were reset because memory was short and their peers did not read.
        stalled,
        /// The most pairs at once.
        most_at_once,
        /// Payload bytes forwarded to upstreams.
        bytes_up,
        /// Payload bytes forwarded to clients.
        bytes_down,
        /// How often a pair had to wait for its share of the memory.
        waits_for_memory,
    }
}

/// A client that was reset because no connection to its upstream could be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The client's address.
    pub client: SocketAddr,
    /// The upstream's address.
    pub upstream: SocketAddr,
    /// Why there is no connection.
    pub error: Error,
}

/// Forwards bytes between pairs of connections of one stack: each accepted connection with a new
/// one to its listener's upstream, and connections that are joined.
///
/// A forwarder has no clock and no thread. Call [`turn`](Self::turn) with the stack's events, and at
/// [`poll_timeout`](Self::poll_timeout); it makes output and further events, and ignores events of
/// other sockets.
#[derive(Default)]
pub struct Forwarder {
    config: ForwardConfig,
    listeners: Vec<UpstreamListener>,
    pairs: Slab<Pair>,
    /// The pair of a socket, by the socket's index in the stack's table.
    slots: Vec<Option<PairSlot>>,
    /// When to check a pair's deadlines again, one entry each; those of ended pairs stay.
    deadlines: BinaryHeap<Reverse<(Instant, PairId)>>,
    /// Pairs that had no share of the memory.
    memory_waiters: VecDeque<PairId>,
    retry_at: Instant,
    /// When to check for stalled pairs, while memory is short.
    stall_check_at: Option<Instant>,
    /// Connections may wait in a backlog because of the limit on pairs.
    full: bool,
    refusals: VecDeque<Refusal>,
    /// Without bytes that the stack has forwarded by itself.
    counters: ForwardCounters,
    passed: Arc<SplicedBytes>,
    serial: u32,
    scratch: Vec<Frag>,
}

#[derive(Clone, Copy)]
struct UpstreamListener {
    id: ListenerId,
    upstream: SocketAddr,
}

/// Names a pair by its slot, and a number that sets it apart from earlier pairs in the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PairId {
    at: u32,
    serial: u32,
}

#[derive(Clone, Copy)]
struct PairSlot {
    id: TcpId,
    at: u32,
}

impl Forwarder {
    /// A forwarder without listeners and pairs.
    pub fn new(config: ForwardConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Processes events of sockets and deadlines.
    pub fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        for event in events {
            let place = self.slots.get(event.socket.index() as usize).copied().flatten();
            match place.filter(|place| place.id == event.socket) {
                Some(place) => self.work(now, stack, place.at as usize),
                None => {
                    let found = self.listeners.iter().find(|l| l.id == event.socket).copied();
                    if let Some(listener) = found {
                        self.accept(now, stack, listener);
                    }
                }
            }
        }
        self.expire(now, stack);
        self.retry(now, stack);
        self.reset_stalled(now, stack);
        if self.full && self.pairs.len() < self.config.connections {
            self.full = false;
            for listener in self.listeners.clone() {
                self.accept(now, stack, listener);
            }
        }
    }

    /// When [`turn`](Self::turn) is due without an event.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let retry = (!self.memory_waiters.is_empty()).then_some(self.retry_at);
        let deadline = self.deadlines.peek().map(|Reverse((at, _))| *at);
        [retry, deadline, self.stall_check_at].into_iter().flatten().min()
    }

    /// Takes the oldest refusal.
    pub fn poll_refusal(&mut self) -> Option<Refusal> {
        self.refusals.pop_front()
    }

    /// Forwards the connections of `listener`, which the forwarder owns from now on, to `upstream`.
    pub fn listen(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        listener: ListenerId,
        upstream: SocketAddr,
    ) -> Result<(), Error> {
        for option in [SocketOption::OobInline(true), SocketOption::NoDelay(true)] {
            stack.listener(listener)?.set_option(option)?;
        }
        let listener = UpstreamListener { id: listener, upstream };
        self.listeners.push(listener);
        self.accept(now, stack, listener);
        Ok(())
    }

    /// Forwards between two connections from now on. The forwarder owns both and closes them.
    ///
    /// # Errors
    /// `InvalidInput` if both are the same; the error of a connection that is over.
    pub fn join(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        a: TcpId,
        b: TcpId,
    ) -> Result<(), Error> {
        if a == b {
            return Err(Error::InvalidInput);
        }
        let (client, upstream) = (stack.remote_addr(a)?, stack.remote_addr(b)?);
        self.adopt(now, stack, a, b)?;
        let at = self.insert(now, Pair::new([a, b], client, upstream, now));
        self.work(now, stack, at);
        Ok(())
    }

    /// Closes the listeners; connections in their backlogs are reset.
    pub fn stop_listening(&mut self, now: Instant, stack: &mut Stack) {
        for listener in self.listeners.drain(..) {
            stack.close(now, listener.id);
        }
    }

    /// Resets every pair.
    pub fn abort_all(&mut self, now: Instant, stack: &mut Stack) {
        let all: Vec<usize> = self.pairs.iter().map(|(at, _)| at).collect();
        for at in all {
            self.counters.broken += 1;
            self.end(now, stack, at, true);
        }
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Counts so far.
    pub fn counters(&self) -> ForwardCounters {
        let mut counters = self.counters;
        counters.bytes_up += self.passed.up();
        counters.bytes_down += self.passed.down();
        counters
    }

    fn accept(&mut self, now: Instant, stack: &mut Stack, listener: UpstreamListener) {
        loop {
            if self.pairs.len() >= self.config.connections {
                self.full = true;
                return;
            }
            let Ok((id, client)) = stack.listener(listener.id).and_then(|mut l| l.accept()) else {
                return;
            };
            self.counters.accepted += 1;
            let upstream = listener.upstream;
            let connected = stack.connect(now, upstream, None).and_then(|other| {
                let adopted = self.adopt(now, stack, id, other);
                adopted.inspect_err(|_| stack.close(now, other)).map(|()| other)
            });
            match connected {
                Ok(other) => {
                    let at = self.insert(now, Pair::new([id, other], client, upstream, now));
                    self.work(now, stack, at);
                }
                Err(error) => {
                    reset(now, stack, id);
                    self.note_refusal(Refusal { client, upstream, error });
                }
            }
        }
    }

    /// Sets both connections up for forwarding.
    fn adopt(&mut self, now: Instant, stack: &mut Stack, a: TcpId, b: TcpId) -> Result<(), Error> {
        stack.cx.join_forwarding(a, b)?;
        for id in [a, b] {
            // Data that came in one burst leaves in one: no Nagle algorithm.
            let mut tcp = stack.tcp(id)?;
            tcp.set_option(now, SocketOption::NoDelay(true))?;
            tcp.set_option(now, SocketOption::OobInline(true))?;
            tcp.set_option(now, SocketOption::KeepAlive(self.config.keepalive))?;
        }
        Ok(())
    }

    fn insert(&mut self, now: Instant, pair: Pair) -> usize {
        let ids = pair.ids();
        let at = self.pairs.insert(pair);
        self.serial = self.serial.wrapping_add(1);
        let key = PairId { at: at as u32, serial: self.serial };
        if let Some(pair) = self.pairs.get_mut(at) {
            pair.serial = key.serial;
        }
        for id in ids {
            let index = id.index() as usize;
            if self.slots.len() <= index {
                self.slots.resize(index + 1, None);
            }
            if let Some(place) = self.slots.get_mut(index) {
                *place = Some(PairSlot { id, at: key.at });
            }
        }
        self.check_at(now, now + self.config.connect_timeout, key);
        self.counters.most_at_once = self.counters.most_at_once.max(self.pairs.len() as u64);
        at
    }

    fn work(&mut self, now: Instant, stack: &mut Stack, at: usize) {
        let Some(pair) = self.pairs.get_mut(at) else { return };
        let was_connected = pair.connected;
        let step = pair.work(now, stack, &mut self.scratch, &mut self.counters);
        self.counters.connected += u64::from(pair.connected && !was_connected);
        if pair.may_splice() {
            // From now on the stack forwards data by itself.
            stack.cx.begin_splice(now, pair.ids(), &self.passed);
        } else {
            stack.cx.end_splice(pair.ids());
        }
        match step {
            PairStep::Wait => {}
            PairStep::WaitForMemory => {
                if !core::mem::replace(&mut pair.waits_for_memory, true) {
                    if self.memory_waiters.is_empty() {
                        self.retry_at = now + FORWARD_RETRY;
                    }
                    self.memory_waiters.push_back(PairId { at: at as u32, serial: pair.serial });
                    self.counters.waits_for_memory += 1;
                }
            }
            PairStep::Finished => {
                self.counters.finished += 1;
                self.end(now, stack, at, false);
            }
            PairStep::Broken => {
                self.counters.broken += 1;
                self.end(now, stack, at, true);
            }
            PairStep::Refused(error) => self.refuse(now, stack, at, error),
        }
    }

    fn refuse(&mut self, now: Instant, stack: &mut Stack, at: usize, error: Error) {
        let Some(pair) = self.pairs.get(at) else { return };
        let refusal = Refusal { client: pair.client, upstream: pair.upstream, error };
        self.end(now, stack, at, true);
        self.note_refusal(refusal);
    }

    fn note_refusal(&mut self, refusal: Refusal) {
        self.counters.refused += 1;
        if self.refusals.len() < FORWARD_REFUSALS {
            self.refusals.push_back(refusal);
        }
    }

    /// Removes a pair: resets both connections, or closes them so that they deliver what is queued.
    fn end(&mut self, now: Instant, stack: &mut Stack, at: usize, resets: bool) {
        let Some(pair) = self.pairs.try_remove(at) else { return };
        stack.cx.end_splice(pair.ids());
        for id in pair.ids() {
            if let Some(place) = self.slots.get_mut(id.index() as usize) {
                *place = None;
            }
            if resets {
                reset(now, stack, id);
            } else {
                stack.close(now, id);
            }
        }
    }

    fn check_at(&mut self, now: Instant, deadline: Instant, key: PairId) {
        self.deadlines.push(Reverse((deadline.min(now + FORWARD_CHECK_INTERVAL), key)));
    }

    fn expire(&mut self, now: Instant, stack: &mut Stack) {
        while let Some(&Reverse((due, key))) = self.deadlines.peek() {
            if due > now {
                break;
            }
            self.deadlines.pop();
            let Some(pair) = self.pairs.get(key.at as usize).filter(|p| p.serial == key.serial)
            else {
                continue;
            };
            // The deadline may be later than when the entry was made.
            let at = key.at as usize;
            match pair.deadline(stack, &self.config) {
                Some(deadline) if deadline > now => self.check_at(now, deadline, key),
                Some(_) if !pair.connected => self.refuse(now, stack, at, Error::TimedOut),
                Some(_) => {
                    self.counters.idle += 1;
                    self.end(now, stack, at, true);
                }
                None => {}
            }
        }
    }

    /// While memory is short, resets stalled pairs that hold some.
    fn reset_stalled(&mut self, now: Instant, stack: &mut Stack) {
        let Some(limit) = self.config.stall_timeout else { return };
        if !stack.cx.is_receive_memory_short(1) {
            self.stall_check_at = None;
            return;
        }
        if now < *self.stall_check_at.get_or_insert(now + FORWARD_RELIEF) {
            return;
        }
        self.stall_check_at = Some(now + FORWARD_RELIEF);
        let stalls = |pair: &Pair| {
            pair.stalls_since(stack, now, limit)
                && pair.ids().into_iter().any(|id| stack.cx.forward_charge(id) > 0)
        };
        let stalled: Vec<usize> =
            self.pairs.iter().filter(|(_, pair)| stalls(pair)).map(|(at, _)| at).collect();
        for at in stalled {
            // Frees a second reserve for the other pairs.
            if !stack.cx.is_receive_memory_short(2) {
                break;
            }
            self.counters.stalled += 1;
            self.end(now, stack, at, true);
        }
    }

    fn retry(&mut self, now: Instant, stack: &mut Stack) {
        if self.memory_waiters.is_empty() || now < self.retry_at {
            return;
        }
        self.retry_at = now + FORWARD_RETRY;
        for _ in 0..self.memory_waiters.len().min(FORWARD_RETRIES_PER_TURN) {
            let Some(key) = self.memory_waiters.pop_front() else { break };
            let at = key.at as usize;
            if let Some(pair) = self.pairs.get_mut(at).filter(|p| p.serial == key.serial) {
                pair.waits_for_memory = false;
                self.work(now, stack, at);
            }
        }
    }
}

impl core::fmt::Debug for Forwarder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Forwarder")
            .field("config", &self.config)
            .field("counters", &self.counters)
            .field("connections", &self.pairs.len())
            .finish_non_exhaustive()
    }
}

fn reset(now: Instant, stack: &mut Stack, id: TcpId) {
    stack.abort(now, id);
    stack.close(now, id);
}
