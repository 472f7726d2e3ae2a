//! The world that all hosts share: their stacks, the network between them, the time. One lock guards it.
//!
//! Sockets hold a [`HostHandle`]: the world, and their host. The simulation's thread takes the lock
//! between the runs of hosts; an operation of a socket takes it during one.
//!
//! Law: nobody calls tokio, which may poll a task, or calls or drops a waker, while the lock is held. Wakers are collected
//! in [`World::wakes`] and called after the unlock.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::SystemTime;

use pagewire_device::hand_over;
use pagewire_mem::{Instant, PacketBuf};
use pagewire_sockets::Waiters;
use pagewire_stack::Stack;

use crate::SimTime;
use crate::events::queue::{EventQueue, HostOrder, SourceId};
use crate::faults::command::{Command, Pause};
use crate::host::clock::Clock;
use crate::network::names::Names;
use crate::network::routing::{Network, NetworkCtx};
use crate::random::SimRng;
use crate::record::packet_event::PacketEvent;
use crate::record::recorder::Recorder;
use crate::runtime::panic_notes::PanicNotes;

/// Names a host of one simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub(crate) u32);

impl HostId {
    /// The host's number: hosts are numbered from 0 in the order in which they were added.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A host between two of its crashes: sockets of an earlier incarnation are dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessId {
    pub(crate) id: HostId,
    pub(crate) incarnation: u32,
}

/// The process that made the socket has ended: by itself, or it was killed, or its host has crashed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ProcessEnded;

impl From<ProcessEnded> for io::Error {
    fn from(ProcessEnded: ProcessEnded) -> Self {
        Self::new(
            io::ErrorKind::NotConnected,
            "the socket is of a process that has ended in the simulation, or was killed",
        )
    }
}

/// Everything that hosts share.
pub(crate) struct World {
    pub(crate) epoch: SystemTime,
    pub(crate) now: SimTime,
    pub(crate) hosts: Vec<HostState>,
    pub(crate) names: Names,
    pub(crate) network: Network,
    pub(crate) event_queue: EventQueue,
    pub(crate) record: Recorder,
    /// Commands given to [`Control`](crate::Control), in order; carried out after the run of the host that
    /// gave them.
    pub(crate) commands: VecDeque<Command>,
    pub(crate) wakes: Vec<Waker>,
    /// Hosts that may [need a turn](HostState::needs_turn).
    pub(crate) needs_turn: Vec<HostId>,
    burst: VecDeque<PacketBuf>,
}

/// The kernel's side of a host: everything but the tasks.
pub(crate) struct HostState {
    pub(crate) id: HostId,
    pub(crate) order: HostOrder,
    pub(crate) name: String,
    /// The host's addresses, the preferred one first.
    pub(crate) addresses: Vec<IpAddr>,
    /// `None`: the host has no power.
    pub(crate) stack: Option<Stack>,
    pub(crate) running: bool,
    pub(crate) paused: Option<Pause>,
    pub(crate) incarnation: u32,
    /// The process has ended, and its kernel has closed what was open: sockets that outlive their
    /// tasks are dead.
    pub(crate) ended: bool,
    /// Something happened in the stack since the host's last turn.
    pub(crate) needs_turn: bool,
    pub(crate) waiters: Waiters,
    pub(crate) clock: Clock,
    pub(crate) random: SimRng,
    /// Packets that arrived while the machine was paused.
    pub(crate) backlog: Vec<PacketBuf>,
    /// The stack's timer, in the event queue.
    pub(crate) timer: SourceId,
    /// The tasks' next timer, in the event queue.
    pub(crate) run: SourceId,
}

impl World {
    pub(crate) fn new(epoch: SystemTime, network: Network) -> Self {
        Self {
            epoch,
            now: SimTime::ZERO,
            hosts: Vec::new(),
            names: Names::default(),
            network,
            event_queue: EventQueue::default(),
            record: Recorder::default(),
            commands: VecDeque::new(),
            wakes: Vec::new(),
            needs_turn: Vec::new(),
            burst: VecDeque::new(),
        }
    }

    /// Runs an operation on the host's stack and those that wait for its sockets, at the simulated time. Output
    /// leaves, and others are woken, at the end of the host's run.
    pub(crate) fn with_waiters<R>(
        &mut self,
        host: ProcessId,
        op: impl FnOnce(&mut Stack, Instant, &mut Waiters) -> R,
    ) -> Result<R, ProcessEnded> {
        let now = self.now.into();
        let state = self.hosts.get_mut(host.id.index()).filter(|state| state.lives(host));
        let state = state.ok_or(ProcessEnded)?;
        state.mark_for_turn(&mut self.needs_turn);
        let stack = state.stack.as_mut().ok_or(ProcessEnded)?;
        Ok(op(stack, now, &mut state.waiters))
    }

    pub(crate) fn alive(&mut self, host: ProcessId) -> Result<&mut HostState, ProcessEnded> {
        let state = self.hosts.get_mut(host.id.index()).ok_or(ProcessEnded)?;
        if state.lives(host) { Ok(state) } else { Err(ProcessEnded) }
    }

    /// The wakers to call after the unlock.
    pub(crate) fn take_wakes(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.wakes)
    }
}

/// The network and the stacks: what happens between two runs of tasks.
impl World {
    /// Handles the timer of a path: frames leave the path.
    pub(crate) fn path_timeout(&mut self, path: u32) {
        let Self { now, names, network, event_queue, record, hosts, .. } = self;
        let hosts = hosts.len() as u32;
        let mut ctx = NetworkCtx { now: *now, names, event_queue, record, hosts };
        network.handle_timeout(&mut ctx, path);
        self.deliver();
    }

    fn deliver(&mut self) {
        let mut arrived = self.network.take_arrived();
        for (to, from, mut packet) in arrived.drain(..) {
            let Some(host) = self.hosts.get_mut(to.index()) else { continue };
            let (now, record) = (self.now, &mut self.record);
            let Some(stack) = &mut host.stack else {
                record.frame(now, PacketEvent::Down, from, Some(to), &packet);
                continue;
            };
            if host.paused == Some(Pause::Machine) {
                host.backlog.push(packet);
                continue;
            }
            record.frame(now, PacketEvent::Arrived, from, Some(to), &packet);
            hand_over(&mut packet);
            stack.handle_frame(now.into(), packet);
            host.mark_for_turn(&mut self.needs_turn);
        }
        self.network.recycle(arrived);
    }

    pub(crate) fn stack_timeout(&mut self, host: HostId) {
        let Some(host) = self.hosts.get_mut(host.index()) else { return };
        self.event_queue.set(host.timer, None);
        if host.paused == Some(Pause::Machine) {
            return;
        }
        if let Some(stack) = &mut host.stack {
            stack.handle_timeout(self.now.into());
            host.mark_for_turn(&mut self.needs_turn);
        }
    }

    /// Ends a machine's pause: the stack takes the packets that wait in front of the machine.
    pub(crate) fn take_backlog(&mut self, id: HostId) {
        let Some(host) = self.hosts.get_mut(id.index()) else { return };
        host.paused = None;
        host.mark_for_turn(&mut self.needs_turn);
        let Some(stack) = &mut host.stack else { return host.backlog.clear() };
        for mut packet in host.backlog.drain(..) {
            self.record.frame(self.now, PacketEvent::Arrived, None, Some(id), &packet);
            hand_over(&mut packet);
            stack.handle_frame(self.now.into(), packet);
        }
    }

    /// Ends a host's process, whose tasks are gone: the kernel closes what they have left open, in the memory of others, in
    /// a cycle or in a static, and wakes the waiters of those sockets.
    pub(crate) fn end_process(&mut self, id: HostId) {
        let now = self.now.into();
        let Some(host) = self.hosts.get_mut(id.index()) else { return };
        host.ended = true;
        host.waiters.clear(&mut self.wakes);
        host.mark_for_turn(&mut self.needs_turn);
        if let Some(stack) = &mut host.stack {
            stack.end_process(now);
        }
    }

    pub(crate) fn transmit(&mut self, from: HostId) {
        let mut burst = std::mem::take(&mut self.burst);
        loop {
            let Self { now, names, network, event_queue, record, hosts, .. } = self;
            let count = hosts.len() as u32;
            let Some(host) = hosts.get_mut(from.index()) else { break };
            let Some(stack) = &mut host.stack else { break };
            let more = stack.poll_transmit((*now).into(), &mut burst);
            let mut ctx = NetworkCtx { now: *now, names, event_queue, record, hosts: count };
            for packet in burst.drain(..) {
                ctx.record.state(stack, &packet);
                network.send(&mut ctx, from, packet);
            }
            if !more {
                break;
            }
        }
        self.burst = burst;
        // ICMP errors of a router about the packets sent.
        self.deliver();
    }

    /// Collects the wakers of tasks whose sockets have become ready.
    pub(crate) fn collect_wakes(&mut self, host: HostId) {
        let Some(host) = self.hosts.get_mut(host.index()) else { return };
        host.needs_turn = false;
        let Some(stack) = &mut host.stack else { return };
        while let Some(event) = stack.poll_event() {
            host.waiters.take(event.socket, event.gained, &mut self.wakes);
        }
    }

    /// Ends a host's turn, and queues the stack's next timer.
    pub(crate) fn end_turn(&mut self, host: HostId) {
        let Some(host) = self.hosts.get_mut(host.index()) else { return };
        let Some(stack) = &mut host.stack else {
            return self.event_queue.set(host.timer, None);
        };
        stack.end_turn();
        let due = stack.poll_timeout().map(|at| at.as_nanos().max(self.now.as_nanos()));
        self.event_queue.set(host.timer, due);
    }
}

impl HostState {
    fn lives(&self, host: ProcessId) -> bool {
        self.incarnation == host.incarnation && !self.ended
    }

    /// Gives the host a turn in this instant.
    pub(crate) fn mark_for_turn(&mut self, needs_turn: &mut Vec<HostId>) {
        if !std::mem::replace(&mut self.needs_turn, true) {
            needs_turn.push(self.id);
        }
    }
}

/// The world behind its lock, shared by handles.
#[derive(Clone)]
pub(crate) struct SharedWorld(Arc<Shared>);

struct Shared {
    world: Mutex<World>,
    /// Panics; outside of the world's lock, because a socket operation may panic while it holds that lock.
    panics: PanicNotes,
    /// Lines that tasks logged, while there is a timeline to write them to.
    #[cfg(feature = "subscriber")]
    logs: Option<Mutex<Vec<(HostId, String)>>>,
    /// The run is repeated if it fails, and prints its panics then.
    quiet: bool,
}

impl SharedWorld {
    pub(crate) fn new(world: World, quiet: bool) -> Self {
        #[cfg(feature = "subscriber")]
        let logs = (!world.record.sinks.is_empty()).then(Mutex::default);
        Self(Arc::new(Shared {
            world: Mutex::new(world),
            panics: PanicNotes::default(),
            #[cfg(feature = "subscriber")]
            logs,
            quiet,
        }))
    }

    /// A task of a host logs a line; it may do so in code that holds the lock.
    #[cfg(feature = "subscriber")]
    pub(crate) fn log(&self, host: HostId, line: String) {
        if let Some(logs) = &self.0.logs {
            logs.lock().unwrap_or_else(PoisonError::into_inner).push((host, line));
        }
    }

    /// Gives the lines that tasks have logged to the listeners.
    #[cfg(feature = "subscriber")]
    pub(crate) fn write_logs(&self) {
        let Some(logs) = &self.0.logs else { return };
        let lines = std::mem::take(&mut *logs.lock().unwrap_or_else(PoisonError::into_inner));
        if lines.is_empty() {
            return;
        }
        let mut world = self.lock();
        let now = world.now;
        lines.iter().for_each(|(host, line)| world.record.log(now, *host, line));
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.0.quiet
    }

    /// Takes the lock. A panic in a socket operation leaves the world usable for the report.
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.world.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn panics(&self) -> &PanicNotes {
        &self.0.panics
    }
}

/// The host whose code runs, or that a socket belongs to: the [`Runtime`](pagewire_sockets::Runtime) of
/// simulated sockets.
#[derive(Clone)]
pub struct HostHandle {
    pub(crate) world: SharedWorld,
    pub(crate) host: ProcessId,
}

thread_local! {
    static HERE: RefCell<Option<HostHandle>> = const { RefCell::new(None) };
}

impl HostHandle {
    /// The host whose code runs on this thread.
    ///
    /// # Errors
    /// `Unsupported` outside of a simulation.
    pub(crate) fn get() -> io::Result<Self> {
        let here = HERE.try_with(|here| here.borrow().clone()).ok().flatten();
        here.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::Unsupported,
                "no simulation is running on this thread: call this inside of a host or client",
            )
        })
    }

    /// Makes `here` the host whose code runs on this thread; returns the one before.
    pub(crate) fn set(here: Option<Self>) -> Option<Self> {
        HERE.try_with(|slot| slot.replace(here)).ok().flatten()
    }

    /// Takes the world's lock, for several calls.
    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }
}

impl std::fmt::Debug for HostHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("HostHandle").field(&self.host).finish()
    }
}
