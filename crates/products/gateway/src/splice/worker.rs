//! [`Worker`]: the thread of a [`Splicer`](super::Splicer). It connects far sides, and lets each connection that has
//! something to move take its turn.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, getsockname, ipproto, socket_with, sockopt,
};
use rustix::time::Timespec;
use slab::Slab;

use super::datagrams::{Datagrams, Left, Sockets};
use super::joined::{Joined, Side, Step, peer_of, reset_on_drop};
use super::pipes::Pipes;
use super::{DATAGRAM_COST, Far, FlowSettings, Inbox, Job, Join, JoinedFlow, Review, Shared, add};
use crate::limits::{
    DELIVERIES_SOON, DELIVERY_LOOK, DIAL_RETRY, LARGE_BUFFERS, POLL_EVENTS, SPLICE_BULK,
    SPLICE_CONNECT, SPLICE_JOBS, SPLICE_PREEMPTED, SPLICE_REST, SPLICE_SPIN, SWEEP,
    SWEEP_DELIVERIES, UDP_SWEEP,
};
use crate::netns::NsSockets;
use crate::relay::limit_buffers;
use crate::request::{Ask, Direction, How, Journal, Protocol, Record};

/// The data of the descriptor that wakes the thread.
const WAKE: u64 = u64::MAX;

pub(super) struct Worker {
    makes: Makes,
    queue: Receiver<Job>,
    inbox: Inbox,
    /// The queue may have more.
    has_jobs: bool,
    wake: Arc<OwnedFd>,
    shared: Arc<Shared>,
    journal: Option<Arc<dyn Journal>>,
    idle: Option<Duration>,
    flows: Slab<Flow>,
    last_serial: u32,
    /// Flows that have something to move; entries may be stale.
    listed: VecDeque<usize>,
    /// The thread polls until this time.
    polls_until: Option<Instant>,
    /// It neither polls nor yields until this time.
    rests_until: Option<Instant>,
    /// Flows that wait for a pipe until this time.
    starved: Vec<usize>,
    retry_at: Option<Instant>,
    /// Flows of which a side delivers what a broken one has sent, and the time of the next look at them.
    delivering: Vec<usize>,
    deliver_at: Option<Instant>,
    /// The next deadline of a broken flow, or an earlier time.
    look_at: Option<Instant>,
    sweep_at: Instant,
    pipes: Pipes,
    datagrams: Datagrams,
    /// Sockets for datagrams that may have more: ports' and clients'.
    more: Vec<(Kind, usize, u32)>,
    datagrams_at: Option<Instant>,
}

/// Makes sockets, and watches them.
struct Makes {
    epoll: OwnedFd,
    sockets: NsSockets,
}

/// The kind of a watched socket, in the data that the kernel keeps with it:
///
/// ```text
///   63    32 31  30 29     0
///   | serial | kind | slot |
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Client,
    Far,
    DatagramPort,
    DatagramClient,
}

/// The bits of a slot.
const SLOTS: u32 = (1 << 30) - 1;

impl Makes {
    fn watch(&self, kind: Kind, slot: usize, serial: u32, socket: &OwnedFd) -> io::Result<()> {
        let slot = slot as u32 & SLOTS | (kind as u32) << 30;
        let data = EventData::new_u64(u64::from(serial) << 32 | u64::from(slot));
        let is_stream = matches!(kind, Kind::Client | Kind::Far);
        let stream = if is_stream {
            EventFlags::OUT | EventFlags::RDHUP | EventFlags::PRI
        } else {
            EventFlags::empty()
        };
        Ok(epoll::add(&self.epoll, socket, data, EventFlags::IN | EventFlags::ET | stream)?)
    }

    /// A socket on the side of a flow's destination.
    fn socket(&self, protocol: Protocol, far: Far, v6: bool) -> io::Result<OwnedFd> {
        if far == Far::Inside {
            return self.sockets.socket(protocol, v6);
        }
        let family = if v6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let (kind, protocol) = match protocol {
            Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
            _ => (SocketType::STREAM, ipproto::TCP),
        };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Ok(socket_with(family, kind, flags, Some(protocol))?)
    }
}

impl Sockets for Makes {
    fn open(&self, far: Far, v6: bool) -> io::Result<OwnedFd> {
        self.socket(Protocol::Udp, far, v6)
    }

    fn watch_port(&self, slot: usize, serial: u32, socket: &OwnedFd) -> io::Result<()> {
        self.watch(Kind::DatagramPort, slot, serial, socket)
    }

    fn watch_client(&self, slot: usize, serial: u32, socket: &OwnedFd) -> io::Result<()> {
        self.watch(Kind::DatagramClient, slot, serial, socket)
    }
}

/// A connection with its record.
struct Flow {
    serial: u32,
    is_listed: bool,
    flow: u64,
    ask: Ask,
    began: Instant,
    /// The far side's address.
    peer: SocketAddr,
    /// The address that the guest's link leads to, too.
    by_link: Option<SocketAddr>,
    /// The guest may still send.
    is_open_out: bool,
    state: State,
}

enum State {
    /// The far side is being connected.
    Connecting {
        client: Side,
        far: Side,
        other: Option<SocketAddr>,
        at: Far,
    },
    Joined(Joined),
    Over,
}

impl Worker {
    pub(super) fn new(
        (queue, inbox): (Receiver<Job>, Inbox),
        wake: Arc<OwnedFd>,
        shared: Arc<Shared>,
        sockets: NsSockets,
        FlowSettings { journal, idle, share, numbers }: FlowSettings,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let once = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &*wake, EventData::new_u64(WAKE), once)?;
        let datagrams = Datagrams::new(share, numbers, Arc::clone(&shared), journal.clone());
        Ok(Self {
            makes: Makes { epoll, sockets },
            queue,
            inbox,
            has_jobs: false,
            wake,
            shared,
            journal,
            idle,
            flows: Slab::new(),
            last_serial: 0,
            listed: VecDeque::new(),
            polls_until: None,
            rests_until: None,
            starved: Vec::new(),
            retry_at: None,
            delivering: Vec::new(),
            deliver_at: None,
            look_at: None,
            sweep_at: Instant::now(),
            pipes: Pipes::default(),
            datagrams,
            more: Vec::new(),
            datagrams_at: None,
        })
    }

    pub(super) fn run(mut self) {
        let mut room = [const { MaybeUninit::uninit() }; POLL_EVENTS];
        while self.shared.stop.load(Ordering::Acquire) == 0 {
            let timeout = self.timeout();
            let events = match epoll::wait(&self.makes.epoll, &mut room, Some(&timeout)) {
                Ok((events, _)) => &*events,
                // Only a signal interrupts it.
                Err(_) => &[],
            };
            if events.is_empty() {
                self.pause();
            }
            for event in events {
                self.note(event.data.u64(), event.flags);
            }
            self.has_jobs = self.take_jobs();
            self.work();
            self.work_on_datagrams();
            self.look_at_times();
            self.shared.spare.store(self.pipes.spare_descriptors(), Ordering::Relaxed);
        }
        self.end_all();
    }

    /// Lets the programs at both ends have this core, which they may need to go on. If others have had the core for
    /// long, the thread does not for a while: one that sleeps gets a core at once when it is woken.
    fn pause(&mut self) {
        let before = Instant::now();
        if self.rests_until.is_some_and(|until| before < until) {
            return;
        }
        thread::yield_now();
        let now = Instant::now();
        if now - before > SPLICE_PREEMPTED {
            (self.rests_until, self.polls_until) = (Some(now + SPLICE_REST), None);
        }
    }

    fn timeout(&mut self) -> Timespec {
        if self.has_jobs || !self.listed.is_empty() || !self.more.is_empty() {
            return Timespec::default();
        }
        if let Some(until) = self.polls_until {
            if Instant::now() < until {
                return Timespec::default();
            }
            self.polls_until = None;
        }
        let due = [self.retry_at, self.deliver_at, self.look_at, self.datagrams_at];
        let due = due.into_iter().flatten();
        let due = due.fold(self.sweep_at, Instant::min);
        let left = due.saturating_duration_since(Instant::now());
        Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
    }

    /// Notes that a socket is ready.
    fn note(&mut self, data: u64, ready: EventFlags) {
        if data == WAKE {
            let _ = rustix::io::read(&*self.wake, &mut [0; 8]);
            return;
        }
        let (serial, at) = ((data >> 32) as u32, data as u32 & SLOTS);
        let which = match data as u32 >> 30 {
            0 => 0,
            1 => 1,
            2 => return self.more.push((Kind::DatagramPort, at as usize, serial)),
            _ => return self.more.push((Kind::DatagramClient, at as usize, serial)),
        };
        let Some(flow) = self.flows.get_mut(at as usize) else { return };
        if flow.serial != serial {
            return;
        }
        match &mut flow.state {
            State::Connecting { client, far, .. } => {
                if which == 0 { client } else { far }.note(ready);
            }
            State::Joined(joined) => {
                joined.sides.get_mut(which).into_iter().for_each(|side| side.note(ready));
            }
            State::Over => {}
        }
        self.list(at as usize);
    }

    fn list(&mut self, at: usize) {
        if let Some(flow) = self.flows.get_mut(at)
            && !flow.is_listed
        {
            flow.is_listed = true;
            self.listed.push_back(at);
        }
    }

    /// Takes what the relay asks for, some of it at most. Returns whether there may be more.
    fn take_jobs(&mut self) -> bool {
        for _ in 0..SPLICE_JOBS {
            match self.queue.try_recv() {
                Ok(Job::Join(join)) => self.begin(join),
                Ok(Job::Serve(port)) => {
                    let serial = self.next_serial();
                    self.datagrams.serve(port, serial, &self.makes);
                }
                Ok(Job::Close(number)) => self.datagrams.close(number),
                Ok(Job::Review(mut review)) => {
                    self.review(&mut review);
                    self.datagrams.review(&mut review);
                }
                Ok(Job::Pass(datagram)) => {
                    let cost = datagram.bytes.len() + DATAGRAM_COST;
                    self.shared.waiting.fetch_sub(cost, Ordering::Relaxed);
                    let (now, last) = (Instant::now(), &mut self.last_serial);
                    self.datagrams.pass_diverted(&datagram, now, &self.makes, last);
                }
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return false,
            }
        }
        true
    }

    fn review(&mut self, review: &mut Review) {
        let look = |(at, flow): (usize, &Flow)| {
            let (peer, [there, back], open) = match &flow.state {
                State::Joined(joined) => (flow.peer, joined.moved(), true),
                State::Connecting { .. } => (flow.peer, [0; 2], false),
                State::Over => return None,
            };
            let is_out = flow.ask.direction == Direction::Out;
            let (bytes_out, bytes_in) = if is_out { (there, back) } else { (back, there) };
            let Flow { flow, ask, began, .. } = flow;
            let flow = JoinedFlow {
                flow: Some(*flow),
                ask,
                peer,
                bytes_out,
                bytes_in,
                began: *began,
                open,
            };
            Some((at, review(&flow).err()?))
        };
        let over: Vec<(usize, How)> = self.flows.iter().filter_map(look).collect();
        for (at, how) in over {
            self.end(at, how);
        }
    }

    fn next_serial(&mut self) -> u32 {
        self.last_serial = self.last_serial.wrapping_add(1);
        self.last_serial
    }

    /// Passes datagrams on.
    fn work_on_datagrams(&mut self) {
        let now = Instant::now();
        for (kind, at, serial) in std::mem::take(&mut self.more) {
            let left = match kind {
                Kind::DatagramPort => {
                    let last = &mut self.last_serial;
                    self.datagrams.receive((at, serial), now, &self.makes, last)
                }
                _ => self.datagrams.answer((at, serial), now),
            };
            if left == Left::More {
                self.more.push((kind, at, serial));
            }
        }
        if self.datagrams_at.is_some_and(|at| at <= now) {
            self.datagrams_at = None;
            self.datagrams.sweep(now);
        }
        if self.datagrams_at.is_none() && !self.datagrams.is_empty() {
            self.datagrams_at = Some(now + UDP_SWEEP);
        }
    }

    fn begin(&mut self, join: Join) {
        let Join { client, to: (to, other), far: at, or_link, flow, ask, began } = join;
        let by_link = or_link.then_some(to);
        add(&self.shared.counts.dialled, 1);
        let (serial, is_listed, state) = (self.next_serial(), false, State::Over);
        let slot = self.flows.insert(Flow {
            serial,
            is_listed,
            flow,
            ask,
            began,
            peer: to,
            by_link,
            is_open_out: true,
            state,
        });
        if self.flows.len() > LARGE_BUFFERS {
            limit_buffers(&client);
        }
        let client = Side::new(client);
        let watched = self.watch(slot, Kind::Client, &client.socket);
        match watched.and_then(|()| self.dial_one(slot, at, to, other)) {
            Ok((far, other)) => {
                let state = State::Connecting { client, far: Side::new(far), other, at };
                self.set_state(slot, state);
                self.look_by(began + SPLICE_CONNECT);
            }
            Err(error) => self.fail(slot, client, &error),
        }
    }

    fn look_by(&mut self, at: Instant) {
        self.look_at = Some(self.look_at.map_or(at, |before| before.min(at)));
    }

    fn set_state(&mut self, slot: usize, state: State) {
        if let Some(flow) = self.flows.get_mut(slot) {
            flow.state = state;
        }
    }

    fn watch(&self, slot: usize, kind: Kind, socket: &OwnedFd) -> io::Result<()> {
        let serial = self.flows.get(slot).map_or(0, |flow| flow.serial);
        self.makes.watch(kind, slot, serial, socket)
    }

    /// Begins a connection to the first of two addresses that does not fail at once. Returns the one that is left.
    fn dial_one(
        &self,
        slot: usize,
        at: Far,
        to: SocketAddr,
        other: Option<SocketAddr>,
    ) -> io::Result<(OwnedFd, Option<SocketAddr>)> {
        match (self.dial(slot, at, to), other) {
            (Ok(far), other) => Ok((far, other)),
            (Err(_), Some(other)) => Ok((self.dial(slot, at, other)?, None)),
            (Err(error), None) => Err(error),
        }
    }

    /// Begins a connection to the far side.
    fn dial(&self, slot: usize, at: Far, to: SocketAddr) -> io::Result<OwnedFd> {
        let by_link = self.flows.get(slot).is_some_and(|flow| flow.by_link.is_some());
        // Without a way in the namespace to the guest's address the connection would come back over the tap.
        let socket = match by_link {
            true => self.makes.sockets.socket_from(Protocol::Tcp, to.ip())?,
            false => self.makes.socket(Protocol::Tcp, at, to.is_ipv6())?,
        };
        sockopt::set_tcp_nodelay(&socket, true)?;
        if self.flows.len() > LARGE_BUFFERS {
            limit_buffers(&socket);
        }
        match connect(&socket, &to) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        self.watch(slot, Kind::Far, &socket)?;
        Ok(socket)
    }

    /// Lets each listed flow take its turn.
    fn work(&mut self) {
        let (now, mut all) = (Instant::now(), 0);
        for _ in 0..self.listed.len() {
            let Some(at) = self.listed.pop_front() else { return };
            let Some(flow) = self.flows.get_mut(at) else { continue };
            flow.is_listed = false;
            if let State::Connecting { .. } = flow.state {
                self.go_on_connecting(at, now);
            }
            let Some(Flow { state: State::Joined(joined), ask, .. }) = self.flows.get_mut(at)
            else {
                continue;
            };
            let flow_is_out = ask.direction == Direction::Out;
            let (moved, calls) = (joined.moved(), joined.calls);
            let step = joined.work(now, &mut self.pipes);
            let (after, calls_after, deadline) = (joined.moved(), joined.calls, joined.deadline());
            let guest_is_over = joined.is_over(guest_of(ask));
            let counts = &self.shared.counts;
            add(&counts.reads, calls_after.reads - calls.reads);
            add(&counts.writes, calls_after.writes - calls.writes);
            let grown = |which: usize| {
                let of = |all: [u64; 2]| all.get(which).copied().unwrap_or(0);
                of(after) - of(moved)
            };
            let (there, back) = (grown(0), grown(1));
            all += there + back;
            let is_out = flow_is_out;
            let (out, inward) = if is_out { (there, back) } else { (back, there) };
            add(&counts.bytes_out, out);
            add(&counts.bytes_in, inward);
            if let Some((_, until)) = deadline {
                self.look_by(until);
            }
            if guest_is_over {
                self.end_out(at);
            }
            match step {
                Step::Wait => {}
                Step::Again => self.list(at),
                Step::NoPipe => {
                    add(&self.shared.counts.exhausted, 1);
                    self.starved.push(at);
                    self.retry_at.get_or_insert(now + DIAL_RETRY);
                }
                Step::Deliver => {
                    self.delivering.push(at);
                    let is_soon = self.delivering.len() <= DELIVERIES_SOON;
                    let next = if is_soon { DELIVERY_LOOK } else { SWEEP_DELIVERIES };
                    self.deliver_at.get_or_insert(now + next);
                }
                Step::Finished => self.end(at, How::Finished),
                Step::Broken(side) => self.end_broken(at, side),
            }
        }
        if all >= SPLICE_BULK && self.rests_until.is_none_or(|until| until <= now) {
            self.polls_until = Some(Instant::now() + SPLICE_SPIN);
        }
    }

    /// Joins the sides once the far one is connected; tries the other address if this one refuses.
    fn go_on_connecting(&mut self, at: usize, now: Instant) {
        let Some(flow) = self.flows.get_mut(at) else { return };
        let state = std::mem::replace(&mut flow.state, State::Over);
        let State::Connecting { client, mut far, other, at: place } = state else { return };
        if client.has_failed() {
            reset_on_drop(&far.socket);
            return self.give_up(at, &client, How::GaveUp);
        }
        // Where nobody listens, Linux may connect a port of its own choice with itself.
        let refused = is_connected_with_itself(&far.socket);
        let error = || refused.then(|| Errno::CONNREFUSED.into());
        if let Some(error) = far.take_error().or_else(error) {
            if refused {
                reset_on_drop(&far.socket);
            }
            let Some(other) = other else {
                // The far side accepted, and reset at once.
                let is_reset = error.kind() == io::ErrorKind::ConnectionReset;
                let how = if is_reset { self.reset_by(at, 1) } else { how_of(&error) };
                return self.give_up(at, &client, how);
            };
            return match self.dial(at, place, other) {
                Ok(far) => {
                    let (far, other) = (Side::new(far), None);
                    self.set_state(at, State::Connecting { client, far, other, at: place });
                }
                Err(error) => self.give_up(at, &client, how_of(&error)),
            };
        }
        let Some(peer) = peer_of(&far.socket) else {
            return self.set_state(at, State::Connecting { client, far, other, at: place });
        };
        add(&self.shared.counts.opened, 1);
        let joined = Joined::new(client, far, now);
        let Some(flow) = self.flows.get_mut(at) else { return };
        (flow.state, flow.peer) = (State::Joined(joined), peer);
        if let Some(journal) = &self.journal {
            journal.note(Record::Opened {
                flow: flow.flow,
                ask: flow.ask.clone(),
                peer,
                via: None,
            });
        }
    }

    /// Has a client whose connection could not begin go by the guest's link, or resets it. What has begun the guest may
    /// have seen.
    fn fail(&mut self, at: usize, client: Side, error: &io::Error) {
        let how = how_of(error);
        let by_link = self.flows.get(at).and_then(|flow| flow.by_link);
        match by_link.filter(|_| !matches!(how, How::Refused | How::PeerTimedOut)) {
            Some(to) => self.give_back(at, client, to),
            None => self.give_up(at, &client, how),
        }
    }

    fn give_back(&mut self, at: usize, client: Side, to: SocketAddr) {
        // Whoever has the socket next watches it.
        if epoll::delete(&self.makes.epoll, &client.socket).is_err() {
            return self.give_up(at, &client, How::Exhausted);
        }
        self.end_out(at);
        let Some(Flow { flow, ask, began, .. }) = self.flows.try_remove(at) else { return };
        let (client, to, far, or_link) = (client.socket, (to, None), Far::Inside, true);
        self.inbox.give_back(Join { client, to, far, or_link, flow, ask, began });
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Resets a client that has no far side.
    fn give_up(&mut self, at: usize, client: &Side, how: How) {
        reset_on_drop(&client.socket);
        if self.flows.get(at).is_some_and(|flow| flow.ask.direction == Direction::Out) {
            self.shared.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.end(at, how);
    }

    fn end_broken(&mut self, at: usize, side: usize) {
        self.end(at, self.reset_by(at, side));
    }

    /// What the reset of a side is to a flow.
    fn reset_by(&self, at: usize, side: usize) -> How {
        let is_guest = self.flows.get(at).is_some_and(|flow| guest_of(&flow.ask) == side);
        if is_guest { How::GuestReset } else { How::PeerReset }
    }

    /// Notes that the guest's stream was passed on.
    fn end_out(&mut self, at: usize) {
        if let Some(flow) = self.flows.get_mut(at)
            && std::mem::take(&mut flow.is_open_out)
        {
            self.shared.open_out.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Ends a flow, and writes down how.
    fn end(&mut self, at: usize, how: How) {
        self.end_out(at);
        let Some(flow) = self.flows.try_remove(at) else { return };
        let Flow { flow, ask, began, state, .. } = flow;
        let mut moved = [0; 2];
        match state {
            State::Joined(joined) => {
                moved = joined.moved();
                joined.end(how, &mut self.pipes);
            }
            State::Connecting { client, far, .. } => {
                reset_on_drop(&client.socket);
                reset_on_drop(&far.socket);
            }
            State::Over => {}
        }
        let counts = &self.shared.counts;
        match how {
            How::Finished => add(&counts.finished, 1),
            How::Idle => add(&counts.idle, 1),
            How::Refused => add(&counts.refused, 1),
            How::GaveUp => add(&counts.given_up, 1),
            How::PeerTimedOut => add(&counts.silent, 1),
            How::Exhausted => add(&counts.exhausted, 1),
            _ => add(&counts.broken, 1),
        }
        let [there, back] = moved;
        let is_out = ask.direction == Direction::Out;
        let (bytes_out, bytes_in) = if is_out { (there, back) } else { (back, there) };
        let duration = began.elapsed();
        self.shared.connections.fetch_sub(1, Ordering::Relaxed);
        if let Some(journal) = &self.journal {
            journal.note(Record::Closed { flow, ask, bytes_out, bytes_in, duration, how });
        }
    }

    fn look_at_times(&mut self) {
        let now = Instant::now();
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            for at in std::mem::take(&mut self.starved) {
                self.list(at);
            }
        }
        if self.deliver_at.is_some_and(|at| at <= now) {
            self.deliver_at = None;
            for at in std::mem::take(&mut self.delivering) {
                self.list(at);
            }
        }
        if self.look_at.is_some_and(|at| at <= now) {
            self.look_at = None;
            let deadline = |(at, flow): (usize, &Flow)| match &flow.state {
                State::Joined(joined) => {
                    joined.deadline().map(|(side, until)| (at, Some(side), until))
                }
                State::Connecting { .. } => Some((at, None, flow.began + SPLICE_CONNECT)),
                State::Over => None,
            };
            let all: Vec<_> = self.flows.iter().filter_map(deadline).collect();
            for (at, side, until) in all {
                match side {
                    _ if until > now => self.look_by(until),
                    Some(side) => self.end_broken(at, side),
                    None => self.end(at, How::PeerTimedOut),
                }
            }
        }
        if self.sweep_at <= now {
            self.sweep(now);
        }
    }

    /// Resets flows that were silent for too long, and closes pipes that nobody has.
    fn sweep(&mut self, now: Instant) {
        self.sweep_at = now + self.idle.map_or(SWEEP, |limit| limit.min(SWEEP));
        self.pipes.discard_spare();
        let Some(limit) = self.idle else { return };
        let is_idle = |flow: &Flow| match &flow.state {
            State::Joined(joined) => joined.active_at + limit <= now,
            _ => flow.began + limit <= now,
        };
        let over = self.flows.iter().filter(|(_, flow)| is_idle(flow)).map(|(at, _)| at);
        for at in over.collect::<Vec<_>>() {
            self.end(at, How::Idle);
        }
    }

    fn end_all(&mut self) {
        while self.take_jobs() {}
        for at in self.flows.iter().map(|(at, _)| at).collect::<Vec<_>>() {
            self.end(at, How::Removed);
        }
        self.datagrams.end_all();
    }
}

/// Whether a socket is connected with itself, which simultaneous open makes of it (RFC 9293 section 3.5).
fn is_connected_with_itself(socket: &OwnedFd) -> bool {
    let own = getsockname(socket).ok().and_then(|own| SocketAddr::try_from(own).ok());
    own.is_some() && own == peer_of(socket)
}

/// The guest's side of a flow: the client's, if the guest began.
fn guest_of(ask: &Ask) -> usize {
    match ask.direction {
        Direction::Out => 0,
        Direction::In => 1,
    }
}

/// Why there is no far side.
fn how_of(error: &io::Error) -> How {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => How::Refused,
        io::ErrorKind::NetworkUnreachable | io::ErrorKind::NetworkDown => How::NetUnreachable,
        io::ErrorKind::HostUnreachable => How::HostUnreachable,
        io::ErrorKind::TimedOut => How::PeerTimedOut,
        io::ErrorKind::PermissionDenied => How::Prohibited,
        _ => How::Exhausted,
    }
}
