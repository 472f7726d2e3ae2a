//! The relay of one guest: a service inside the guest's host, which owns the kernel's sockets of the
//! guest's connections and moves payload between them and the stack.
//!
//! Read [`Relay`] here first; then `dial.rs` (a SYN: judged, dialled, and accepted or refused), `pair.rs` (a
//! connection, and how it ends), `pump.rs` (the payload of a connection).
//!
//! The relay runs on the thread that drives the guest's host. The kernel's sockets are watched by
//! one epoll descriptor, edge-triggered: each is added once, after `connect`, and never changed. The
//! driver sleeps on that descriptor beside the device's.

mod closer;
mod dial;
mod dialler;
mod flows;
mod inward;
mod loopback;
mod pair;
mod ports;
mod pump;
mod service;
mod siblings;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pagewire::services::{Event, Instant, ListenerId, Readiness, SocketId, Stack, TcpId};
use rustix::event::epoll::EventFlags;
use slab::Slab;

use crate::asking::Desk;
use crate::context::{Context, FlowRecord};
use crate::counters::Counters;
use crate::denials::Denied;
use crate::dns::DnsCounters;
use crate::echo::Echo;
use crate::epoll::{SourceKind, Token};
use crate::limits::{
    DELIVERIES_SOON, DELIVERY, DELIVERY_LOOK, PROTOCOL_TIME, RELAY_BURST, SWEEP, SWEEP_DELIVERIES,
    TURN_BYTES,
};
use crate::request::{Direction, How};
use crate::splice::Diverter;
use crate::tally::Item;
use crate::udp::Udp;
pub(crate) use closer::Closer;
pub(crate) use dial::limit_buffers;
use dial::{Dialling, Dials};
pub(crate) use dialler::Kernel;
pub use dialler::{Dial, Dialled};
pub(crate) use loopback::Loopback;
use pair::{Flags, Pair, Step, reset_on_drop};
use ports::Ports;
pub(crate) use service::RelayService;
pub(crate) use siblings::Siblings;

pub(crate) struct Setup {
    /// The listener that takes SYNs to every address.
    pub(crate) listener: ListenerId,
    pub(crate) dialler: Arc<dyn Dial>,
    pub(crate) closer: Closer,
    pub(crate) connections: usize,
    /// Silence that ends a connection; `None`: no silence does.
    pub(crate) idle: Option<Duration>,
    /// The guest's own addresses, for clients of published ports.
    pub(crate) addresses: Vec<IpAddr>,
    /// Connections between loopback interfaces; `None`: there are no sockets in the guest's namespace.
    pub(crate) loopback: Option<Loopback>,
    /// Takes datagrams of clients that come over this machine's loopback, for the first relay's loopback.
    pub(crate) diverter: Option<Diverter>,
    /// The relays of the guest's other cores.
    pub(crate) siblings: Option<Siblings>,
}

pub(crate) struct Relay {
    context: Context,
    setup: Setup,
    udp: Udp,
    echo: Echo,
    /// Dials and pairs, each with a serial that tells it from earlier ones in its slot.
    flows: Slab<(u32, Flow)>,
    /// The flow slot of each of the guest's connections.
    flow_of_guest: HashMap<SocketId, u32>,
    /// Pairs to be worked on; entries may be stale.
    listed: VecDeque<u32>,
    /// Pairs that wait for the rate of their rule, by the time of their next turn, then by their last one, so that each
    /// has its share; entries may be stale.
    paced: BinaryHeap<Reverse<(Instant, u64, u32)>>,
    /// Pairs whose bytes do not tell the protocol: until when these are held, the flow's number and the slot.
    ambiguous: VecDeque<(Instant, u64, u32)>,
    /// Number of turns in which pairs with a rate have moved bytes.
    paced_turns: u64,
    /// A listed pair has data of the guest, which is moved before the host receives more.
    more_out: bool,
    /// The answer of the last poll: the host takes another turn by itself, in which it receives first.
    polls_again: bool,
    /// Bytes for the guest that are moved before the host's next turn.
    inward_left: usize,
    /// Connections that are reset once the guest has what was received.
    deliveries: Vec<Delivery>,
    deliver_at: Option<Instant>,
    /// Sockets of finished connections, closed at the end of the turn.
    closing: Vec<OwnedFd>,
    dials: Dials,
    published: Ports,
    /// The time to accept clients that may wait.
    accept_at: Option<Instant>,
    sweep_at: Option<Instant>,
}

/// A kernel socket: a dial, or one side of a connection.
#[expect(clippy::large_enum_variant, reason = "dials are few, and each becomes a pair in its slot")]
enum Flow {
    Dialling(Dialling),
    Pair(Pair),
    /// A dial that is being turned into a pair.
    Replaced,
}

struct Delivery {
    tcp: TcpId,
    until: Instant,
}

impl Relay {
    pub(crate) fn new(context: Context, mut setup: Setup, mut udp: Udp, echo: Echo) -> Self {
        udp.divert_to(setup.diverter.take());
        Self {
            dials: Dials::new(&context.whole, &context.tally),
            context,
            setup,
            udp,
            echo,
            flows: Slab::new(),
            flow_of_guest: HashMap::new(),
            listed: VecDeque::new(),
            paced: BinaryHeap::new(),
            ambiguous: VecDeque::new(),
            paced_turns: 0,
            more_out: false,
            polls_again: false,
            inward_left: TURN_BYTES,
            deliveries: Vec::new(),
            deliver_at: None,
            closing: Vec::new(),
            published: Ports::default(),
            accept_at: None,
            sweep_at: None,
        }
    }

    /// The epoll descriptor, readable when a kernel socket has an event for [`turn`](Self::turn).
    pub(crate) fn epoll(&self) -> Arc<OwnedFd> {
        self.context.watch.epoll()
    }

    /// Polls the kernel's sockets, once in a turn of the host. Returns whether a turn of the relay is due.
    pub(crate) fn poll(&mut self) -> bool {
        self.inward_left = TURN_BYTES;
        self.polls_again = self.context.watch.poll() || !self.listed.is_empty();
        self.polls_again
    }

    /// Handles events of the guest's connections and of the kernel's sockets, and what is due.
    pub(crate) fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        let mut woken = false;
        let mut names = self.context.dns.poll_timeout().is_some_and(|at| at <= now);
        for event in events {
            if event.socket == self.setup.listener {
                self.handle_requests(now, stack);
            } else if self.udp.owns(event.socket) {
                self.udp.note_guest();
            } else if self.echo.owns(event.socket) {
                self.echo.note_guest();
            } else if let Some(&at) = self.flow_of_guest.get(&event.socket) {
                self.handle_guest(at, event.readiness);
            } else {
                names = true;
            }
        }
        let ready = self.context.watch.take();
        for &(token, ready) in &ready {
            match token.kind {
                SourceKind::Flow => self.handle_host(now, stack, token, ready),
                SourceKind::Endpoint => self.udp.note_host(token, ready),
                SourceKind::Echo => self.echo.note_host(token, ready),
                SourceKind::Published => self.note_clients(token),
                SourceKind::Wakeup => (names, woken) = (true, true),
            }
        }
        self.context.watch.give_back(ready);
        if names {
            self.context.dns.turn(now, stack, events);
            self.context.note_refused_names(now);
        }
        if woken {
            self.take_inbox(now, stack);
            self.take_parcels(now, stack);
        }
        self.list_paced(now);
        self.list_ambiguous(now);
        self.resume(now, stack, woken);
        self.pump(now, stack);
        self.deliver(now, stack);
        self.sweep(now, stack);
        // Clients and dials come after the steps that make room for them.
        self.accept(now, stack);
        self.admit(now, stack);
        self.context.descriptors = self.tcp_descriptors() + self.spliced_descriptors();
        self.udp.turn(now, stack, &mut self.context);
        self.echo.turn(now, stack, &mut self.context);
        if let Some(loopback) = &self.setup.loopback {
            let others = self.context.tally.others(Item::Descriptors);
            loopback.splicer().note_others(self.own_descriptors() + others);
        }
        self.context.note_denial_sum(now, false);
        self.setup.closer.close(&mut self.closing);
    }

    /// The time when [`turn`](Self::turn) is due without an event.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let listed = self.more_out || (!self.listed.is_empty() && !self.polls_again);
        let listed = listed.then_some(Instant::ZERO);
        let datagrams = [self.udp.poll_timeout(), self.echo.poll_timeout()];
        let due = [listed, self.dials.poll_timeout(), self.deliver_at, self.sweep_at];
        let names = self.context.dns.poll_timeout();
        let denials = self.context.whole.denials.poll_timeout();
        let questions = self.context.desk.as_ref().and_then(Desk::poll_timeout);
        let paced = self.paced.peek().map(|Reverse((at, ..))| *at);
        let ambiguous = self.ambiguous.front().map(|(at, ..)| *at);
        due.into_iter()
            .chain([self.accept_at, names, denials, questions, paced, ambiguous])
            .chain(datagrams)
            .flatten()
            .min()
    }

    /// Goes on with flows about which the policy has answered.
    fn resume(&mut self, now: Instant, stack: &mut Stack, woken: bool) {
        let Some(desk) = &mut self.context.desk else { return };
        if !woken && desk.poll_timeout().is_none_or(|at| at > now) {
            return;
        }
        let answered = desk.turn(now);
        if answered.is_empty() {
            return;
        }
        self.resume_requests(now, stack, &answered);
        self.udp.resume(now, stack, &mut self.context, &answered);
        self.echo.resume(now, stack, &mut self.context, &answered);
        if let Some(desk) = &mut self.context.desk {
            desk.end_turn();
        }
    }

    fn handle_guest(&mut self, at: u32, ready: Readiness) {
        let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize) else { return };
        if pair.note_guest(ready) {
            self.context.counters.opened += 1;
            pair.record.open(pair.peer, &self.context);
        }
        self.list(at);
    }

    fn handle_host(&mut self, now: Instant, stack: &mut Stack, token: Token, ready: EventFlags) {
        match self.flows.get_mut(token.at as usize) {
            // The event is of an earlier socket in this slot.
            Some((serial, _)) if *serial != token.serial => {}
            Some((_, Flow::Dialling(_))) => self.handle_dialled(now, stack, token.at, ready),
            Some((_, Flow::Pair(pair))) => {
                pair.note_host(ready);
                self.list(token.at);
            }
            Some((_, Flow::Replaced)) | None => {}
        }
    }

    fn list(&mut self, at: u32) {
        if let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize)
            && !pair.flags.contains(Flags::LISTED)
        {
            pair.flags.insert(Flags::LISTED);
            self.listed.push_back(at);
        }
    }

    /// Lists pairs whose rate has room again.
    fn list_paced(&mut self, now: Instant) {
        while let Some(&Reverse((until, _, at))) = self.paced.peek()
            && until <= now
        {
            self.paced.pop();
            if let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize) {
                pair.flags.remove(Flags::PACED);
                self.list(at);
            }
        }
    }

    /// Lists pairs whose bytes have not told the protocol in time. Everything passes of these.
    fn list_ambiguous(&mut self, now: Instant) {
        while let Some(&(until, flow, at)) = self.ambiguous.front()
            && until <= now
        {
            self.ambiguous.pop_front();
            if let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize)
                && pair.record.flow == flow
                && pair.is_ambiguous()
                && pair.stop_waiting()
            {
                self.list(at);
            }
        }
    }

    /// Works on each listed pair once, until [`TURN_BYTES`] were moved to the guest: other pairs wait for the
    /// host's next turn.
    fn pump(&mut self, now: Instant, stack: &mut Stack) {
        if !self.polls_again {
            self.inward_left = TURN_BYTES;
        }
        self.more_out = false;
        for _ in 0..self.listed.len() {
            if self.inward_left == 0 {
                break;
            }
            let before = self.context.counters.bytes_in;
            let Some(at) = self.listed.pop_front() else { break };
            let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize) else { continue };
            pair.flags.remove(Flags::LISTED);
            let room = self.context.rates.room(now, &pair.record.ask);
            let [outward, inward] =
                room.map_or([usize::MAX; 2], |room| room.map(|n| n.unwrap_or(0)));
            let most = (outward.min(RELAY_BURST), inward.min(self.inward_left));
            let before_out = self.context.counters.bytes_out;
            let step = pair.work(now, stack, most, &mut self.context.counters);
            let moved = self.context.counters.bytes_in - before;
            if room.is_some() {
                let out = self.context.counters.bytes_out - before_out;
                let moved = [out as usize, moved as usize];
                if moved != [0; 2] {
                    self.paced_turns += 1;
                    pair.paced_turn = self.paced_turns;
                }
                self.context.rates.charge(now, &pair.record.ask, moved);
            }
            self.inward_left = self.inward_left.saturating_sub(moved as usize);
            if pair.is_ambiguous() && !pair.flags.contains(Flags::AMBIGUOUS) {
                pair.flags.insert(Flags::AMBIGUOUS);
                self.ambiguous.push_back((now + PROTOCOL_TIME, pair.record.flow, at));
            }
            match step {
                Step::Wait => {}
                Step::Again => {
                    if let Some(until) = pair.paced_until(now, &self.context.rates) {
                        if !pair.flags.contains(Flags::PACED) {
                            pair.flags.insert(Flags::PACED);
                            self.paced.push(Reverse((until, pair.paced_turn, at)));
                        }
                        continue;
                    }
                    self.more_out |= pair.has_more_out();
                    self.list(at);
                }
                Step::Judge(shown) => {
                    let permits = self.context.judge_shown(now, &mut pair.record, &shown);
                    pair.note_judged(permits);
                    self.more_out = true;
                    self.list(at);
                }
                Step::Mismatch(shown) => {
                    self.context.note_mismatch(now, &pair.record, &shown);
                    self.end(now, stack, at, Step::ResetHost(How::Prohibited));
                }
                step => self.end(now, stack, at, step),
            }
        }
    }

    /// Ends a pair as `step` says, and writes down how.
    fn end(&mut self, now: Instant, stack: &mut Stack, at: u32, step: Step) {
        let Some((_, Flow::Pair(pair))) = self.flows.try_remove(at as usize) else { return };
        let Pair { tcp, socket, flags, peer, record, .. } = pair;
        self.flow_of_guest.remove(&tcp.into());
        let how = match step {
            Step::Finished | Step::Wait | Step::Again | Step::Judge(_) | Step::Mismatch(_) => {
                self.context.counters.finished += 1;
                if flags.contains(Flags::CLOSED_FIRST) && record.ask.direction == Direction::Out {
                    self.context.whole.time_wait.note(now, peer);
                }
                stack.close(now, tcp);
                self.closing.push(socket);
                How::Finished
            }
            Step::ResetHost(how) => {
                self.note_end(how);
                // The kernel still delivers a stream that the guest has ended, so that socket is only closed.
                if how != How::Removed || !flags.contains(Flags::OUT_ENDED) {
                    reset_on_drop(&socket);
                }
                reset(now, stack, tcp);
                how
            }
            Step::ResetGuest(how) => {
                self.note_end(how);
                reset_on_drop(&socket);
                if Pair::is_delivered(tcp, stack) {
                    reset(now, stack, tcp);
                } else {
                    self.deliveries.push(Delivery { tcp, until: now + DELIVERY });
                    self.deliver_at = Some(now + DELIVERY_LOOK);
                }
                how
            }
        };
        self.context.close(now, record, how);
    }

    fn note_end(&mut self, how: How) {
        match how {
            How::GaveUp => self.context.counters.given_up += 1,
            How::Idle => self.context.counters.idle += 1,
            _ => self.context.counters.broken += 1,
        }
    }

    /// Resets guests that have what was received for them, or take too long.
    fn deliver(&mut self, now: Instant, stack: &mut Stack) {
        if self.deliver_at.is_none_or(|at| at > now) {
            return;
        }
        self.deliveries.retain(|delivery| {
            let over = delivery.until <= now || Pair::is_delivered(delivery.tcp, stack);
            if over {
                reset(now, stack, delivery.tcp);
            }
            !over
        });
        let interval =
            if self.deliveries.len() > DELIVERIES_SOON { SWEEP_DELIVERIES } else { DELIVERY_LOOK };
        self.deliver_at = (!self.deliveries.is_empty()).then_some(now + interval);
    }

    fn sweep(&mut self, now: Instant, stack: &mut Stack) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        let (mut over, mut opened, mut pairs) = (Vec::new(), Vec::new(), 0);
        for (at, (_, flow)) in &mut self.flows {
            if let Flow::Pair(pair) = flow {
                pairs += 1;
                if pair.check_age(now, stack, self.setup.idle) {
                    over.push(at as u32);
                } else if pair.stop_waiting() {
                    opened.push(at as u32);
                }
            }
        }
        for at in opened {
            self.list(at);
        }
        for at in over {
            self.end(now, stack, at, Step::ResetHost(How::Idle));
        }
        self.sweep_at = (pairs > 0).then_some(now + SWEEP);
    }

    /// Puts a flow into a slot, and adds its socket to the epoll set.
    fn insert(&mut self, flow: Flow) -> io::Result<u32> {
        let slot = self.flows.vacant_entry();
        let at = slot.key() as u32;
        let socket = match &flow {
            Flow::Dialling(dialling) => &dialling.socket,
            Flow::Pair(pair) => &pair.socket,
            Flow::Replaced => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let serial = self.context.watch.add_stream(socket, SourceKind::Flow, at)?;
        slot.insert((serial, flow));
        self.context.tally.add(Item::Descriptors);
        Ok(at)
    }

    /// Notes the begin of the pair in this slot.
    fn joined(&mut self, now: Instant, tcp: TcpId, at: u32) {
        self.flow_of_guest.insert(tcp.into(), at);
        self.sweep_at.get_or_insert(now + SWEEP);
        let pairs = self.flows.len() - self.dials.in_flight();
        self.context.counters.most_at_once = self.context.counters.most_at_once.max(pairs as u64);
    }

    pub(crate) fn connections(&self) -> usize {
        self.flows.len() + self.deliveries.len() + self.spliced()
    }

    /// Whether everything that the guest has sent on its connections was passed on, with the ends of
    /// its streams. A connection that the far side has not accepted has no data yet.
    pub(crate) fn is_finished(&self) -> bool {
        self.flows.iter().all(|(_, (_, flow))| match flow {
            Flow::Pair(pair) => pair.flags.contains(Flags::OUT_ENDED),
            Flow::Dialling(_) | Flow::Replaced => true,
        }) && self.setup.loopback.as_ref().is_none_or(|loopback| loopback.splicer().is_finished())
    }

    /// Whether this guest may have another descriptor.
    fn may_open(&self) -> bool {
        let own = self.own_descriptors() + self.spliced_descriptors();
        !self.context.tally.is_full(Item::Descriptors, own, self.context.share.per_guest())
    }

    /// Notes what this relay has of what has a limit for all relays of the guest.
    pub(super) fn note_in_use(&self) {
        let tally = &self.context.tally;
        if tally.is_lone() {
            return;
        }
        tally.note(Item::Connections, self.connections());
        tally.note(Item::Descriptors, self.own_descriptors() + self.spliced_descriptors());
        self.udp.note_in_use(tally);
        self.echo.note_in_use(tally);
        self.context.dns.note_in_use();
        if let Some(desk) = &self.context.desk {
            desk.note_in_use();
        }
    }

    /// Number of descriptors of this guest but for those of the splicer.
    fn own_descriptors(&self) -> usize {
        self.tcp_descriptors() + self.udp.len() + self.echo.len()
    }

    /// Number of those of connections, of listeners and of the name server.
    fn tcp_descriptors(&self) -> usize {
        let listeners = self.published.descriptors(self.context.share.per_guest());
        self.flows.len() + listeners + self.context.dns.descriptors()
    }

    pub(crate) fn dns_counters(&self) -> DnsCounters {
        self.context.dns.counters()
    }

    pub(crate) fn counters(&self) -> Counters {
        let dns = self.context.dns.counters();
        let (names_denied, denials_full) = (dns.denied, dns.denials_full);
        let mut counters = Counters { names_denied, denials_full, ..self.context.counters };
        if let Some(desk) = &self.context.desk {
            let counted = desk.counted();
            counters.questions = counted.asked;
            counters.questions_unanswered = counted.unanswered;
            counters.questions_refused = counted.unasked;
        }
        if let Some(loopback) = &self.setup.loopback {
            loopback.splicer().counted().add_to(&mut counters);
        }
        counters
    }

    pub(crate) fn denied(&self) -> Denied {
        self.context.whole.denials.with(|denials| denials.so_far())
    }

    #[cfg(test)]
    pub(crate) fn udp(&self) -> &Udp {
        &self.udp
    }

    /// Resets everything: the guest is removed.
    pub(crate) fn end_all(&mut self, now: Instant, stack: &mut Stack) {
        self.drop_requests();
        stack.close(now, self.setup.listener);
        let all: Vec<usize> = self.flows.iter().map(|(at, _)| at).collect();
        for at in all {
            self.end(now, stack, at as u32, Step::ResetHost(How::Removed));
        }
        for delivery in self.deliveries.drain(..) {
            reset(now, stack, delivery.tcp);
        }
        self.published = Ports::default();
        self.end_parcels(now);
        // Its connections are reset, and their ends written down.
        if let Some(loopback) = self.setup.loopback.take() {
            let (counted, inbox) = (loopback.splicer().counted(), loopback.inbox().clone());
            drop(loopback);
            for client in inbox.take().1 {
                reset_on_drop(&client.client);
                let record = FlowRecord::new(now, client.flow, client.ask);
                record.close(now, How::Removed, &self.context);
            }
            counted.add_to(&mut self.context.counters);
        }
        (self.deliver_at, self.sweep_at, self.accept_at) = (None, None, None);
        self.context.dns.close(now, stack);
        if let Some(desk) = &mut self.context.desk {
            desk.clear();
        }
        self.udp.end_all(now, stack, &self.context);
        self.echo.end_all(now, stack, &self.context);
        self.context.note_refused_names(now);
        self.context.note_denial_sum(now, true);
    }
}

fn reset(now: Instant, stack: &mut Stack, tcp: TcpId) {
    stack.abort(now, tcp);
    stack.close(now, tcp);
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "cores_tests.rs"]
mod cores_tests;
