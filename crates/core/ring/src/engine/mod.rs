//! The engine: the stack's side of one application's rings, and the sockets that the application has
//! there. A driver owns it beside a stack.
//!
//! [`Engine::turn`] does everything, once per turn of the driver, before the driver asks the stack for
//! output; [`Engine::handle_event`] names the sockets to serve. Results that a ring has
//! no room for wait here until the next turn.
//!
//! Connections and datagram sockets differ in `Endpoint` and `datagrams` only.

mod connect;
mod datagrams;
mod operations;
mod park;
mod receive;
mod register;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use pagewire_mem::{Completed, CompletionQueue, Frag, FragVec, Instant, Region};
use pagewire_stack::{Error, Event, SocketId, SocketOption, Stack};

use crate::counters::Counters;
use crate::group::{Group, Memory};
use crate::handles::Handles;
use crate::layout::{COPY_GROUP, Completion, Entry, NOTICE, Submission};
use crate::limits::MAX_SOCKETS;
use crate::ring::{Consumer, Producer};

use datagrams::Datagrams;
use park::{Parked, RoomNeed};
pub use register::{Ends, EngineConfig, QueueConfig, Registered};

/// The stack's side of one application's rings.
pub struct Engine {
    submissions: Consumer<Submission>,
    completions: Producer<Completion>,
    entries: Producer<Entry>,
    groups: Vec<Option<Group>>,
    /// Memory that the application sends from, by group.
    send_groups: Vec<Option<Region>>,
    sockets: Handles<Socket>,
    handle_of: HashMap<SocketId, u64>,
    /// Sockets to serve, each once; handles may be stale.
    ready: VecDeque<u64>,
    parked: Parked,
    unparking: bool,
    /// Submissions wait until completions are read.
    full: bool,
    sends: Handles<Send>,
    /// Handles of connections that are being opened.
    connecting: Vec<u64>,
    /// Reports sent memory that was released.
    let_go: Arc<CompletionQueue>,
    drained: Vec<Completed>,
    /// Completions that found no room; while there are any, no new submissions are taken.
    waiting: VecDeque<Completion>,
    /// Groups that are gone, to be reported.
    gone: VecDeque<u16>,
    limit: usize,
    counters: Counters,
    /// Jumps of each ring that are counted already.
    jumps: [u64; 3],
    /// Fragments on their way from a receive queue.
    scratch: Vec<Frag>,
    stuck: bool,
}

struct Socket {
    id: SocketId,
    kind: SocketKind,
    /// In the list of sockets to serve.
    ready: bool,
    /// In these lists of parked sockets, one bit each.
    parked: u8,
}

impl Socket {
    fn new(id: impl Into<SocketId>, kind: SocketKind) -> Self {
        let id = id.into();
        Self { id, kind, ready: false, parked: 0 }
    }
}

enum SocketKind {
    Listener { accept: Option<Accept> },
    Connecting { user_data: u64 },
    Open(Box<Endpoint>),
}

struct Accept {
    user_data: u64,
    multishot: bool,
}

/// A connection or a datagram socket.
#[derive(Default)]
struct Endpoint {
    /// The part that only a datagram socket has.
    datagrams: Option<Box<Datagrams>>,
    receive: Option<Receive>,
    /// Taken from the receive queue, not delivered yet: less than a take, or one datagram.
    pending: VecDeque<Frag>,
    sends: VecDeque<u64>,
    /// The end of the stream, or the socket's error, to be reported when nothing is pending.
    end: Option<Result<(), Error>>,
    shutdown: bool,
    /// The group that bounds its window.
    bounded_by: Option<u16>,
}

#[derive(Clone, Copy)]
struct Receive {
    user_data: u64,
    multishot: bool,
    /// By reference where possible, in this queue's memory or another's.
    group: u16,
    /// Bytes left of the limit; for datagrams, the limit of each.
    left: Option<u64>,
}

/// A send that is not reported yet. Its memory is held by a `Completion` that names it.
struct Send {
    user_data: u64,
    frags: FragVec,
    /// A datagram's destination, if it is not the socket's peer.
    to: Option<SocketAddr>,
    /// Delays the report until everything is queued.
    hold: Option<Arc<pagewire_mem::Completion>>,
    sent: u32,
    error: Option<Error>,
}

/// The result of serving a socket.
enum Served {
    /// The socket has nothing to do until an event.
    Idle,
    /// The socket is served again in the next turn.
    Again,
    /// The socket is served again when there is room.
    Stuck(RoomNeed),
}

/// Linux's number for a cancelled operation.
pub(super) const ECANCELED: i32 = 125;
/// Linux's numbers for invalid submissions.
pub(super) const EINVAL: i32 = 22;
pub(super) const EBADF: i32 = 9;
pub(super) const ENOENT: i32 = 2;
pub(super) const EBUSY: i32 = 16;
pub(super) const EISCONN: i32 = 106;
pub(super) const ENOBUFS: i32 = 105;
pub(super) const EFAULT: i32 = 14;
pub(super) const EOPNOTSUPP: i32 = 95;

impl Engine {
    /// Handles an event of the stack. Other sockets are ignored.
    pub fn handle_event(&mut self, event: Event) {
        if let Some(&handle) = self.handle_of.get(&event.socket) {
            self.mark_ready(handle);
        }
    }

    /// Does all work that is due; `true`: there was some, sending may be due.
    pub fn turn(&mut self, now: Instant, stack: &mut Stack) -> bool {
        let before = self.counters.work();
        self.refill();
        self.report_sends();
        // Finished sends come first, so that new submissions cannot keep them out.
        self.post_waiting();
        self.submit(now, stack);
        self.stuck = false;
        self.unpark(now, stack);
        for _ in 0..self.ready.len() {
            let Some(handle) = self.ready.pop_front() else { break };
            self.serve(now, stack, handle);
        }
        self.report_sends();
        self.watch(now, stack);
        self.notify();
        self.full = !self.can_answer();
        self.note_jumps();
        self.counters.work() != before
    }

    /// Publishes completions; `true`: the application sleeps, and must be woken.
    pub fn publish(&mut self) -> bool {
        // Entries first: a completion's entries are visible with it.
        self.entries.publish();
        self.completions.publish()
    }

    /// Arms the rings' bells before a sleep of the driver. `false`: there is work.
    pub fn arm(&mut self) -> bool {
        // Submissions that cannot be answered are no work.
        let mut quiet = (self.submissions.arm() || self.full) && !self.let_go.is_pending();
        for group in self.groups.iter_mut().flatten() {
            quiet &= group.arm();
        }
        if !quiet {
            self.disarm();
        }
        quiet
    }

    /// Ends [`arm`](Self::arm): turns are taken again.
    pub fn disarm(&mut self) {
        self.submissions.disarm();
        self.groups.iter_mut().flatten().for_each(Group::disarm);
    }

    /// Counts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether a result waits for room in a ring.
    pub fn is_stuck(&self) -> bool {
        self.stuck || self.full || !self.waiting.is_empty() || !self.parked.is_empty()
    }

    /// Pieces that the application holds of a group.
    pub fn delivered(&self, group: u16) -> usize {
        self.group(group).map_or(0, Group::delivered)
    }

    /// The queue that reports released memory of sends; a driver that sleeps is woken by it.
    pub fn let_go(&self) -> &Arc<CompletionQueue> {
        &self.let_go
    }

    /// Takes ownership of a socket; its handle, unless the table is full or the kind is another.
    pub fn adopt(&mut self, stack: &mut Stack, id: impl Into<SocketId>) -> Option<u64> {
        let id = id.into();
        let kind = match stack.remote_addr(id) {
            _ if stack.as_udp(id).is_ok() => SocketKind::Open(Endpoint::datagrams()),
            Ok(_) if stack.as_tcp(id).is_ok() => SocketKind::Open(Box::default()),
            Err(Error::NotConnected) if stack.as_listener(id).is_ok() => {
                SocketKind::Listener { accept: None }
            }
            _ => return None,
        };
        let handle = self.sockets.insert(Socket::new(id, kind)).ok()?;
        self.handle_of.insert(id, handle);
        self.mark_ready(handle);
        Some(handle)
    }

    /// Makes a handle for a new socket, or closes it.
    fn own(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: impl Into<SocketId>,
        kind: SocketKind,
    ) -> Result<u64, Error> {
        let id = id.into();
        let Ok(handle) = self.sockets.insert(Socket::new(id, kind)) else {
            stack.close(now, id);
            return Err(Error::TooManySockets);
        };
        self.handle_of.insert(id, handle);
        Ok(handle)
    }

    /// Closes every socket when the application is gone. The engine's drop releases its memory.
    pub fn close_all(&mut self, now: Instant, stack: &mut Stack) {
        for socket in self.sockets.values_mut() {
            stack.close(now, socket.id);
        }
        self.sockets = Handles::new(MAX_SOCKETS);
        self.connecting.clear();
        self.handle_of.clear();
        self.ready.clear();
        self.parked = Parked::default();
    }

    /// Serves every socket in the next turn, after an event of all of them.
    pub fn look_at_all(&mut self) {
        let all: Vec<u64> = self.handle_of.values().copied().collect();
        all.into_iter().for_each(|handle| self.mark_ready(handle));
    }

    fn mark_ready(&mut self, handle: u64) {
        if let Some(socket) = self.sockets.get_mut(handle)
            && !core::mem::replace(&mut socket.ready, true)
        {
            self.ready.push_back(handle);
        }
    }

    fn serve(&mut self, now: Instant, stack: &mut Stack, handle: u64) {
        let Some(socket) = self.sockets.get_mut(handle) else { return };
        socket.ready = false;
        let outcome = match socket.kind {
            SocketKind::Listener { .. } => self.serve_listener(now, stack, handle),
            SocketKind::Connecting { user_data } => {
                self.serve_connect(now, stack, handle, user_data)
            }
            SocketKind::Open(_) => {
                self.serve_sends(now, stack, handle);
                self.serve_receive(now, stack, handle)
            }
        };
        match outcome {
            Served::Idle => {}
            Served::Again => {
                self.stuck = true;
                self.mark_ready(handle);
            }
            Served::Stuck(need) => self.park(handle, need),
        }
    }

    fn group(&self, id: u16) -> Option<&Group> {
        self.groups.get(usize::from(id))?.as_ref()
    }

    fn refill(&mut self) {
        for (id, group) in self.groups.iter_mut().enumerate() {
            if let Some(group) = group {
                group.refill(id as u16, &mut self.counters);
            }
        }
    }

    /// Checks the buffers: closes and opens windows, removes groups that have all buffers back.
    fn watch(&mut self, now: Instant, stack: &mut Stack) {
        for id in 0..self.groups.len() {
            let Some(Some(group)) = self.groups.get_mut(id) else { continue };
            if group.dying {
                let flows = core::mem::take(&mut group.flows);
                if group.is_home() {
                    if let Some(slot) = self.groups.get_mut(id) {
                        *slot = None;
                    }
                    self.gone.push_back(id as u16);
                }
                self.release_windows(now, stack, id as u16, flows);
                continue;
            }
            let available = group.watch(&mut self.counters);
            let Memory::Queue { .. } = group.memory else { continue };
            let threshold = group.threshold().max(1);
            let squeeze = match group.squeezed {
                false => available < threshold,
                true => available < group.relief(),
            };
            if squeeze != group.squeezed {
                group.squeezed = squeeze;
                self.counters.squeezes += u64::from(squeeze);
                self.share_windows(now, stack, id as u16);
            }
        }
    }

    /// Divides the window of a queue among its flows, or closes all of them.
    ///
    /// RFC 9293 section 3.8.6: the window that was announced stays open; nothing is added to it.
    fn share_windows(&mut self, now: Instant, stack: &mut Stack, id: u16) {
        let Some(Some(group)) = self.groups.get_mut(usize::from(id)) else { return };
        group.shared_by = group.flows.len();
        let clamp = group.clamp();
        for &flow in &group.flows {
            if let Some(socket) = self.sockets.get_mut(flow) {
                let _ = stack
                    .as_tcp(socket.id)
                    .and_then(|mut tcp| tcp.set_option(now, SocketOption::WindowClamp(clamp)));
            }
        }
    }

    /// Removes the limits of a group's flows that no longer receive into it.
    fn release_windows(&mut self, now: Instant, stack: &mut Stack, id: u16, flows: BTreeSet<u64>) {
        for flow in flows {
            let Some(socket) = self.sockets.get_mut(flow) else { continue };
            let SocketKind::Open(endpoint) = &mut socket.kind else { continue };
            if endpoint.bounded_by.take_if(|group| *group == id).is_some() {
                let _ = stack
                    .as_tcp(socket.id)
                    .and_then(|mut tcp| tcp.set_option(now, SocketOption::WindowClamp(None)));
            }
        }
    }

    /// Notes that a connection receives into `group` from now on, whose memory limits its window.
    fn bound(&mut self, now: Instant, stack: &mut Stack, handle: u64, group: Option<u16>) {
        let Some(socket) = self.sockets.get_mut(handle) else { return };
        let (socket, SocketKind::Open(endpoint)) = (socket.id, &mut socket.kind) else { return };
        let group = group.filter(|&group| group != COPY_GROUP && endpoint.datagrams.is_none());
        let before = core::mem::replace(&mut endpoint.bounded_by, group);
        if before == group {
            return;
        }
        let mut changed = |id: Option<u16>, joins: bool| {
            let group = self.groups.get_mut(usize::from(id?))?.as_mut()?;
            let _ = if joins { group.flows.insert(handle) } else { group.flows.remove(&handle) };
            // The other flows are updated when the number has doubled, or halved.
            let (n, shared) = (group.flows.len(), group.shared_by);
            Some((group.clamp(), n >= 2 * shared || 2 * n <= shared))
        };
        let left = changed(before, false).is_some_and(|(_, share)| share);
        let (clamp, joined) = changed(group, true).unwrap_or((None, false));
        let _ = stack
            .as_tcp(socket)
            .and_then(|mut tcp| tcp.set_option(now, SocketOption::WindowClamp(clamp)));
        for id in [before.filter(|_| left), group.filter(|_| joined)].into_iter().flatten() {
            self.share_windows(now, stack, id);
        }
    }

    fn notify(&mut self) {
        self.post_waiting();
        while self.completions.free() > 0
            && let Some(group) = self.gone.pop_front()
        {
            let (flags, handle) = (Completion::UNREGISTERED, group.into());
            self.post(Completion { user_data: NOTICE, flags, handle, ..Completion::default() });
        }
        for id in 0..self.groups.len() {
            if self.completions.free() == 0 {
                return;
            }
            let Some(Some(group)) = self.groups.get_mut(id) else { continue };
            if group.dying {
                continue;
            }
            let Some((taken, low, empty)) = group.notice() else { continue };
            let mut flags = if taken > 0 { Completion::DRAINED } else { 0 };
            flags |= if low { Completion::LOW } else { 0 };
            flags |= if empty { Completion::EMPTY } else { 0 };
            let (result, handle) = (i32::try_from(taken).unwrap_or(i32::MAX), id as u64);
            self.post(Completion {
                user_data: NOTICE,
                result,
                flags,
                handle,
                ..Completion::default()
            });
        }
    }

    /// Posts completions that found no room before, as far as there is room now.
    fn post_waiting(&mut self) {
        while self.completions.free() > 0
            && let Some(completion) = self.waiting.pop_front()
        {
            self.post(completion);
        }
    }

    /// Posts a completion; the caller has checked that there is room.
    fn post(&mut self, completion: Completion) {
        let posted = self.completions.push(completion);
        debug_assert!(posted.is_ok(), "a completion without room");
        self.counters.completions += u64::from(posted.is_ok());
    }

    fn note_jumps(&mut self) {
        let now = [self.submissions.jumps(), self.completions.jumps(), self.entries.jumps()];
        for (now, counted) in now.into_iter().zip(&mut self.jumps) {
            self.counters.jumps += now - core::mem::replace(counted, now);
        }
    }

    /// Whether `group` names memory to receive into.
    fn can_receive_into(&self, group: u16) -> bool {
        group == COPY_GROUP || self.group(group).is_some_and(|group| !group.dying)
    }
}

impl core::fmt::Debug for Engine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Engine").field("counters", &self.counters).finish_non_exhaustive()
    }
}
