//! Dials: what happens from a guest's SYN to a connection. Rules judge the request, then the far side is dialled,
//! and its answer becomes the guest's.
//!
//! ```text
//!   SYN --> judged --> waits for a slot --> dialled --> accepted: a pair
//!             \              \                  \
//!              refused        given up           refused, unreachable, silence
//! ```
//!
//! A policy of the embedding program may take its time to judge. Where a proxy is the [`Way`], that is dialled, and asked for the connection before the guest has an answer.
//!
//! [`Dials`] owns the requests and the queues. The methods of [`Relay`] below it take one step each, in this order:
//! [`handle_requests`](Relay::handle_requests), [`admit`](Relay::admit), [`handle_dialled`](Relay::handle_dialled).
//! The stack keeps the guest's request meanwhile, and absorbs repeated SYNs; when the guest gives
//! up, the dial is cancelled.
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use pagewire::services::{
    Answer, Cancel, Instant, RequestId, Stack, SynEvent, SynRequest, Unreachable,
};
use rustix::event::epoll::EventFlags;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use super::dialler::Dialled;
use super::pair::Pair;
use super::{Flow, Relay};
use crate::asking::{QuestionId, Waiting};
use crate::context::{Denial, FlowRecord, Judged, JudgedFlow, TimeWait, Whole};
use crate::limits::{
    CONNECTS_PER_SECOND, DIAL_FAIR, DIAL_RETRY, DIALS, DIALS_PER_DESTINATION,
    DIALS_PER_DESTINATION_LEAST, FAILED_CONNECT_COSTS, LARGE_BUFFERS, SMALL_BUFFER, VIA_READ,
    VIA_TIME,
};
use crate::rate::SharedRate;
use crate::request::{FlowState, How, Protocol};
use crate::shown::Gate;
use crate::tally::{Item, Tally};
use crate::udp::errors;
use crate::via::{Handshake, Next, Refused, Route, Way};

/// Stale entries that lists keep, beside as many as there are others, before they are packed.
const STALE: usize = 64;

/// Requests that have no answer yet.
pub(super) struct Dials {
    requests: HashMap<RequestId, PendingRequest>,
    /// Requests that are allowed and have no dial yet; entries may be stale.
    waiting: VecDeque<RequestId>,
    /// Requests that wait for a port to their destination, and when the first of these ports is free: until then
    /// no turn checks them. Entries may be stale.
    parked: VecDeque<RequestId>,
    parked_until: Instant,
    /// Dials, the oldest first; entries may be stale.
    oldest: VecDeque<(Instant, RequestId)>,
    /// Number of dials without an answer, in all and for each destination.
    in_flight: usize,
    by_destination: HashMap<IpAddr, usize>,
    /// The most dials without an answer, in all and for each destination.
    most: (usize, usize),
    rate: SharedRate,
    /// Connections to each destination that the guest ended first.
    time_wait: TimeWait,
    /// No dial begins before this time, for want of descriptors or memory.
    paused_until: Option<Instant>,
    /// The time to check waiting requests again.
    retry_at: Option<Instant>,
    /// Dials of proxies with the end of their time, the oldest first; entries may be stale.
    asked: VecDeque<(Instant, RequestId)>,
    /// The last dial of a proxy failed at the proxy, which was logged.
    proxy_fails: bool,
}

/// A guest's request without an answer.
struct PendingRequest {
    record: FlowRecord,
    stage: DialStage,
    /// The proxy that is dialled in place of the destination.
    proxy: Option<Attempt>,
    /// The request found no slot at first, which was counted.
    waited: bool,
}

impl PendingRequest {
    /// The destination that is or will be dialled.
    fn destination(&self) -> Destination {
        match self.stage {
            DialStage::Waiting(to) | DialStage::Dialling(to, _) => to,
            DialStage::Judging(_) => {
                let to = self.record.ask.to;
                Destination { host: to.ip(), peer: to }
            }
        }
    }
}

#[derive(Clone, Copy)]
enum DialStage {
    /// A policy is asked about the request.
    Judging(QuestionId),
    /// The request waits to be dialled.
    Waiting(Destination),
    /// The destination is being dialled, and the flow is in this slot.
    Dialling(Destination, u32),
}

#[derive(Clone, Copy)]
struct Destination {
    /// The host that the guest reaches, for which dials are counted.
    host: IpAddr,
    /// The other end of the socket: the host's port, or a proxy's.
    peer: SocketAddr,
}

/// The attempt at one address of a proxy, the first being 0.
struct Attempt {
    route: Route,
    number: usize,
}

/// A dial that has no answer yet.
pub(super) struct Dialling {
    pub(super) socket: OwnedFd,
    request: RequestId,
    /// The events of the socket so far.
    ready: EventFlags,
    /// The request to a proxy.
    handshake: Option<Box<Handshake>>,
    /// The end of a proxy's time.
    until: Instant,
}

/// Whether there is a slot for a dial.
enum DialSlot {
    Free,
    /// There is no slot at all for now.
    Full,
    Crowded,
    /// There is no port for this destination before this time.
    NoPort(Instant),
}

/// How far a dial's request to a proxy is.
enum Asked {
    /// There is no proxy, or it has opened the connection.
    Open,
    Waits,
    Refused(Refused),
}

impl Dialling {
    /// Goes on with the request to the proxy as far as the socket lets it. No byte behind the proxy's answer is read.
    fn ask_proxy(&mut self) -> Asked {
        let Some(handshake) = &mut self.handshake else { return Asked::Open };
        let mut bytes = [0; VIA_READ];
        loop {
            let done = match handshake.next() {
                Next::Done => return Asked::Open,
                Next::Refused(why) => return Asked::Refused(why),
                Next::Send(message) => {
                    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
                    send(&self.socket, message, flags).map(|n| handshake.note_sent(n))
                }
                Next::Receive => {
                    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
                    recv(&self.socket, &mut bytes[..], flags).and_then(|(len, _)| {
                        let taken = handshake.take(bytes.get(..len).unwrap_or_default());
                        let taken = bytes.get_mut(..taken).unwrap_or_default();
                        let got = if taken.is_empty() {
                            0
                        } else {
                            recv(&self.socket, &mut *taken, RecvFlags::DONTWAIT)?.0
                        };
                        // The stream has ended, or another process reads from the socket.
                        if got == 0 || got != taken.len() {
                            handshake.end();
                        }
                        Ok(())
                    })
                }
            };
            match done {
                Ok(()) | Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Asked::Waits,
                Err(_) => handshake.end(),
            }
        }
    }
}

impl Dials {
    pub(super) fn new(whole: &Whole, tally: &Tally) -> Self {
        let each = tally.part_of(DIALS_PER_DESTINATION).max(DIALS_PER_DESTINATION_LEAST);
        Self {
            requests: HashMap::new(),
            waiting: VecDeque::new(),
            parked: VecDeque::new(),
            parked_until: Instant::ZERO,
            oldest: VecDeque::new(),
            in_flight: 0,
            by_destination: HashMap::new(),
            most: (tally.part_of(DIALS), each),
            rate: whole.dials.clone(),
            time_wait: whole.time_wait.clone(),
            paused_until: None,
            retry_at: None,
            asked: VecDeque::new(),
            proxy_fails: false,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let asked = self.asked.front().map(|(until, _)| *until);
        [self.retry_at, asked].into_iter().flatten().min()
    }

    /// Whether a connection may begin that takes no slot; since the last one, this number has failed.
    pub(super) fn may_forward(&mut self, now: Instant, failed: usize) -> bool {
        let failed = u32::try_from(failed).unwrap_or(u32::MAX).min(CONNECTS_PER_SECOND);
        self.rate.charge(now, failed * (FAILED_CONNECT_COSTS - 1));
        self.rate.take(now).is_ok()
    }

    /// The requests that have no answer yet.
    pub(super) fn flows(&self, now: Instant) -> impl Iterator<Item = FlowState> {
        self.requests
            .values()
            .map(move |pending| pending.record.state(now, pending.destination().peer, false))
    }

    /// The requests for which `end` has a reason to end, by their record and the address to dial.
    pub(super) fn review(
        &mut self,
        mut end: impl FnMut(&mut FlowRecord, SocketAddr) -> Option<How>,
    ) -> Vec<(RequestId, How)> {
        let all = self.requests.iter_mut().filter_map(|(id, pending)| {
            let to = pending.destination().peer;
            end(&mut pending.record, to).map(|how| (*id, how))
        });
        all.collect()
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Numbers of requests that wait for a slot, and for a port.
    #[cfg(test)]
    pub(super) fn lists(&self) -> (usize, usize) {
        (self.waiting.len(), self.parked.len())
    }

    fn begin(&mut self, now: Instant, id: RequestId, to: IpAddr) {
        if self.oldest.len() > 2 * self.in_flight + STALE {
            let pending = &self.requests;
            self.oldest.retain(|(_, id)| is_dialling(pending, id));
        }
        self.in_flight += 1;
        *self.by_destination.entry(to).or_default() += 1;
        self.oldest.push_back((now, id));
    }

    /// Notes the end of a proxy's time.
    fn note_asked(&mut self, until: Instant, id: RequestId) {
        if self.asked.len() > 2 * self.in_flight + STALE {
            let pending = &self.requests;
            self.asked.retain(|(_, id)| is_dialling(pending, id));
        }
        self.asked.push_back((until, id));
    }

    fn end(&mut self, to: IpAddr) {
        self.in_flight = self.in_flight.saturating_sub(1);
        if let Some(n) = self.by_destination.get_mut(&to) {
            *n -= 1;
            if *n == 0 {
                self.by_destination.remove(&to);
            }
        }
        if self.in_flight == 0 {
            self.oldest.clear();
            self.asked.clear();
        }
    }

    /// Queues a request for a slot.
    fn wait(&mut self, id: RequestId) {
        pack(&mut self.waiting, &self.requests);
        self.waiting.push_back(id);
    }

    /// Puts a request aside until its destination has a port.
    fn park(&mut self, id: RequestId, until: Instant) {
        let none_before = self.parked.is_empty();
        self.parked_until = if none_before { until } else { self.parked_until.min(until) };
        pack(&mut self.parked, &self.requests);
        self.parked.push_back(id);
    }

    /// Puts parked requests in front of the waiting ones, once one may have a port. Returns that time
    /// if it is later.
    fn unpark(&mut self, now: Instant) -> Option<Instant> {
        if self.parked.is_empty() {
            return None;
        }
        if now < self.parked_until {
            return Some(self.parked_until);
        }
        self.parked.append(&mut self.waiting);
        std::mem::swap(&mut self.parked, &mut self.waiting);
        None
    }

    /// The oldest dial, or the oldest to a destination.
    fn oldest(&mut self, to: Option<IpAddr>) -> Option<(Instant, RequestId)> {
        let pending = &self.requests;
        let dials = |id: &RequestId, to: Option<IpAddr>| match pending.get(id).map(|a| a.stage) {
            Some(DialStage::Dialling(at, _)) => to.is_none_or(|to| to == at.host),
            _ => false,
        };
        while self.oldest.front().is_some_and(|(_, id)| !dials(id, None)) {
            self.oldest.pop_front();
        }
        self.oldest.iter().find(|(_, id)| dials(id, to)).copied()
    }
}

/// Drops stale entries of a queue, if there are many.
fn pack(list: &mut VecDeque<RequestId>, requests: &HashMap<RequestId, PendingRequest>) {
    if list.len() > 2 * requests.len() + STALE {
        list.retain(|id| requests.contains_key(id) && !is_dialling(requests, id));
    }
}

fn is_dialling(requests: &HashMap<RequestId, PendingRequest>, id: &RequestId) -> bool {
    requests.get(id).is_some_and(|request| matches!(request.stage, DialStage::Dialling(..)))
}

impl Relay {
    /// Takes the guest's requests, and their ends, from the stack.
    pub(super) fn handle_requests(&mut self, now: Instant, stack: &mut Stack) {
        while let Ok(mut listener) = stack.listener(self.setup.listener)
            && let Some(event) = listener.poll_request()
        {
            match event {
                SynEvent::New(request) => self.begin_request(now, stack, &request),
                SynEvent::Cancelled(id, why) => self.cancel(now, id, why),
                _ => {}
            }
        }
    }

    fn begin_request(&mut self, now: Instant, stack: &mut Stack, request: &SynRequest) {
        self.context.counters.asked += 1;
        let judged = self.context.judge(now, Protocol::Tcp, request.from, request.to);
        self.handle_judged(now, stack, (request.id, request.at), judged);
    }

    /// Judges requests again whose questions have answers.
    pub(super) fn resume_requests(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        answered: &[QuestionId],
    ) {
        let has_waited = |pending: &PendingRequest| matches!(pending.stage, DialStage::Judging(id) if answered.contains(&id));
        let requests = self.dials.requests.extract_if(|_, pending| has_waited(pending));
        for (id, PendingRequest { record, .. }) in requests.collect::<Vec<_>>() {
            let judged = self.context.judge_waiting(now, record.flow, record.ask);
            self.handle_judged(now, stack, (id, record.began), judged);
        }
    }

    fn handle_judged(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        (id, began): (RequestId, Instant),
        judged: Judged,
    ) {
        let JudgedFlow { flow, ask, to } = match judged {
            Judged::Flow(judged) => judged,
            Judged::Waits(Waiting { flow, ask, question }) => {
                let (record, stage) =
                    (FlowRecord::new(began, flow, ask), DialStage::Judging(question));
                let pending = PendingRequest { record, stage, proxy: None, waited: false };
                self.dials.requests.insert(id, pending);
                return;
            }
        };
        let to = match to {
            Ok(to) => to,
            Err(denial) => return self.answer(now, stack, id, answer_of(denial)),
        };
        let way = self.context.way(&ask, to);
        let mut record = FlowRecord::new(began, flow, ask);
        let (proxy, peer) = match way {
            Some(Way::Direct) => (None, Some(to)),
            Some(Way::Proxy(route)) => {
                record.via = Some(Arc::clone(&route.proxy.text));
                record.told = route.target.name().cloned();
                let peer = route.peer(0);
                (Some(Attempt { route, number: 0 }), peer)
            }
            None => (None, None),
        };
        let Some(peer) = peer else {
            return self.answer(now, stack, id, answer_of(Denial::Prohibit));
        };
        let stage = DialStage::Waiting(Destination { host: to.ip(), peer });
        let pending = PendingRequest { record, stage, proxy, waited: false };
        self.dials.requests.insert(id, pending);
        self.dials.wait(id);
    }

    /// Dials for waiting requests, as far as there are slots.
    pub(super) fn admit(&mut self, now: Instant, stack: &mut Stack) {
        self.end_silent_proxies(now, stack);
        self.dials.retry_at = self.dials.unpark(now);
        let mut crowded: Vec<IpAddr> = Vec::new();
        for _ in 0..self.dials.waiting.len() {
            let Some(id) = self.dials.waiting.pop_front() else { break };
            let stage = self.dials.requests.get(&id).map(|pending| pending.stage);
            let Some(DialStage::Waiting(to)) = stage else { continue };
            let slot = match crowded.contains(&to.host) {
                true => DialSlot::Crowded,
                false => self.find_slot(now, stack, to),
            };
            match slot {
                DialSlot::Free => self.dial(now, stack, id, to),
                DialSlot::Full => {
                    self.note_waiting(id);
                    self.dials.waiting.push_front(id);
                    break;
                }
                DialSlot::NoPort(until) => {
                    self.note_waiting(id);
                    self.dials.park(id, until);
                }
                DialSlot::Crowded => {
                    if !crowded.contains(&to.host) {
                        crowded.push(to.host);
                    }
                    self.note_waiting(id);
                    self.dials.waiting.push_back(id);
                }
            }
        }
    }

    fn note_waiting(&mut self, id: RequestId) {
        if let Some(pending) = self.dials.requests.get_mut(&id)
            && !std::mem::replace(&mut pending.waited, true)
        {
            self.context.counters.waited += 1;
        }
    }

    /// Finds a slot for a dial, which may be that of an old dial.
    fn find_slot(&mut self, now: Instant, stack: &mut Stack, to: Destination) -> DialSlot {
        if let Some(until) = self.dials.paused_until.filter(|until| *until > now) {
            self.retry_by(until);
            return DialSlot::Full;
        }
        let (own, most) = (self.connections(), self.setup.connections);
        if !self.context.tally.may_add(Item::Connections, own, most) {
            // The end of an own connection is an event, and causes a turn. That of another core's does not.
            if own < most {
                self.retry_by(now + DIAL_RETRY);
            }
            return DialSlot::Full;
        }
        if !self.may_open() {
            // A descriptor that another guest frees causes no event here, so this guest retries later.
            self.retry_by(now + DIAL_RETRY);
            return DialSlot::Full;
        }
        if let Err(at) = self.dials.time_wait.check(now, to.peer) {
            self.retry_by(at);
            return DialSlot::NoPort(at);
        }
        let to = to.host;
        let here = self.dials.by_destination.get(&to).copied().unwrap_or(0);
        let (most, each) = self.dials.most;
        let (is_full, is_crowded) = (self.dials.in_flight >= most, here >= each);
        if is_full || is_crowded {
            let among = (is_crowded).then_some(to);
            let Some((began, oldest)) = self.dials.oldest(among) else { return DialSlot::Full };
            if now < began + DIAL_FAIR {
                self.retry_by(began + DIAL_FAIR);
                return if is_crowded { DialSlot::Crowded } else { DialSlot::Full };
            }
            self.context.counters.yielded += 1;
            self.end_dial(now, oldest, How::PeerTimedOut);
            self.answer(now, stack, oldest, Answer::Silence);
        }
        match self.dials.rate.take(now) {
            Ok(()) => DialSlot::Free,
            Err(at) => {
                self.retry_by(at);
                DialSlot::Full
            }
        }
    }

    fn retry_by(&mut self, at: Instant) {
        self.dials.retry_at = Some(self.dials.retry_at.map_or(at, |before| before.min(at)));
    }

    fn dial(&mut self, now: Instant, stack: &mut Stack, id: RequestId, to: Destination) {
        let Some(pending) = self.dials.requests.get(&id) else { return };
        self.context.counters.dialled += 1;
        match self.setup.dialler.dial(to.peer, &pending.record.ask) {
            Ok(Dialled { socket, connected }) => {
                let others = self.context.tally.others(Item::Connections);
                if self.flows.len() + others >= LARGE_BUFFERS {
                    limit_buffers(&socket);
                }
                let handshake = pending.proxy.as_ref().map(|proxy| proxy.route.handshake());
                let (asks, until) = (handshake.is_some(), now + VIA_TIME);
                let ready = EventFlags::empty();
                let handshake = handshake.map(Box::new);
                let dialling = Dialling { socket, request: id, ready, handshake, until };
                let at = match self.insert(Flow::Dialling(dialling)) {
                    Ok(at) => at,
                    Err(error) => return self.fail(now, stack, id, &error),
                };
                if let Some(pending) = self.dials.requests.get_mut(&id) {
                    pending.stage = DialStage::Dialling(to, at);
                }
                self.dials.begin(now, id, to.host);
                if asks {
                    self.dials.note_asked(until, id);
                }
                if connected {
                    self.handle_dialled(now, stack, at, EventFlags::OUT);
                }
            }
            Err(error) => self.fail(now, stack, id, &error),
        }
    }

    /// Handles the kernel's answer to a dial.
    pub(super) fn handle_dialled(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        at: u32,
        ready: EventFlags,
    ) {
        let Some((_, Flow::Dialling(dialling))) = self.flows.get_mut(at as usize) else { return };
        dialling.ready |= ready;
        if !dialling.ready.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            return;
        }
        let id = dialling.request;
        let failed = ready.intersects(EventFlags::ERR | EventFlags::HUP);
        match if failed { sockopt::socket_error(&dialling.socket) } else { Ok(Ok(())) } {
            Ok(Ok(())) => match dialling.ask_proxy() {
                Asked::Open => self.open(now, stack, id, at),
                Asked::Waits => {}
                Asked::Refused(why) => {
                    self.flows.remove(at as usize);
                    self.refuse_by_proxy(now, stack, id, why);
                }
            },
            Ok(Err(error)) | Err(error) => {
                self.flows.remove(at as usize);
                self.fail(now, stack, id, &error.into());
            }
        }
    }

    /// Accepts the guest's connection, after the far side has accepted, and makes a pair of both.
    fn open(&mut self, now: Instant, stack: &mut Stack, id: RequestId, at: u32) {
        let Some(pending) = self.forget(id) else { return };
        let DialStage::Dialling(Destination { peer, .. }, _) = pending.stage else { return };
        let accepted = stack.listener(self.setup.listener);
        let accepted = accepted.and_then(|mut l| l.answer(now, id, Answer::Accept));
        let Ok(Some(tcp)) = accepted else {
            // The stack has dropped the request.
            self.flows.try_remove(at as usize);
            self.context.counters.given_up += 1;
            return pending.record.close(now, How::GaveUp, &self.context);
        };
        let Some((_, slot)) = self.flows.get_mut(at as usize) else { return };
        let Flow::Dialling(Dialling { socket, ready, .. }) =
            std::mem::replace(slot, Flow::Replaced)
        else {
            return;
        };
        let gate = Gate::new(pending.record.ask.demand, &self.context.whole.held);
        let mut pair = Pair::new(tcp, socket, pending.record, peer);
        pair.gate = gate.map(Box::new);
        pair.note_host(ready);
        if pending.proxy.is_some() {
            self.context.counters.proxied += 1;
            self.dials.proxy_fails = false;
        }
        *slot = Flow::Pair(pair);
        self.joined(now, tcp, at);
    }

    /// Handles a failed dial: the guest sees the error that this process saw. A proxy is dialled at its next address,
    /// and one that has none left means that no route leads to the destination.
    fn fail(&mut self, now: Instant, stack: &mut Stack, id: RequestId, error: &io::Error) {
        let Some(mut pending) = self.forget(id) else { return };
        let mut to = pending.destination();
        match DialFailure::of(error, to.peer) {
            DialFailure::Retry => {
                self.context.counters.exhausted += 1;
                self.dials.paused_until = Some(now + DIAL_RETRY);
                self.retry_by(now + DIAL_RETRY);
                self.wait_again(id, to, pending);
            }
            DialFailure::Answer(answer, how) => match &mut pending.proxy {
                Some(proxy) if how != How::Exhausted => {
                    proxy.number += 1;
                    if let Some(peer) = proxy.route.peer(proxy.number) {
                        to.peer = peer;
                        self.retry_by(now);
                        return self.wait_again(id, to, pending);
                    }
                    self.note_proxy_fails(&pending, error);
                    let net = Answer::Unreachable(Unreachable::Net);
                    self.refuse(now, stack, id, pending, (net, How::NetUnreachable));
                }
                _ => self.refuse(now, stack, id, pending, (answer, how)),
            },
        }
    }

    /// Puts a request back to those that wait for a slot.
    fn wait_again(&mut self, id: RequestId, to: Destination, pending: PendingRequest) {
        let pending = PendingRequest { stage: DialStage::Waiting(to), ..pending };
        self.dials.requests.insert(id, pending);
        self.dials.wait(id);
    }

    /// Answers a forgotten request whose dial failed.
    fn refuse(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: RequestId,
        pending: PendingRequest,
        (answer, how): (Answer, How),
    ) {
        match how {
            How::Refused => self.context.counters.refused += 1,
            How::PeerTimedOut => self.context.counters.silent += 1,
            How::Exhausted => self.context.counters.exhausted += 1,
            _ => self.context.counters.unreachable += 1,
        }
        // A dial that found no local port sent no packet.
        if how != How::Exhausted {
            self.dials.rate.charge(now, FAILED_CONNECT_COSTS - 1);
        }
        self.answer(now, stack, id, answer);
        self.context.close(now, pending.record, how);
    }

    /// Handles the refusal of a proxy: the guest learns what the proxy says of the destination.
    fn refuse_by_proxy(&mut self, now: Instant, stack: &mut Stack, id: RequestId, why: Refused) {
        let Some(pending) = self.forget(id) else { return };
        let unreachable = |why, how| (Answer::Unreachable(why), how);
        let prohibited = unreachable(Unreachable::Prohibited, How::Prohibited);
        let no_route = unreachable(Unreachable::Net, How::NetUnreachable);
        let end = match why {
            Refused::Destination => (Answer::Refuse, How::Refused),
            Refused::Prohibited => prohibited,
            Refused::NetUnreachable => no_route,
            Refused::HostUnreachable => unreachable(Unreachable::Host, How::HostUnreachable),
            Refused::Credentials => {
                self.note_proxy_fails(&pending, &"it wants credentials, or others");
                prohibited
            }
            Refused::Broken => {
                self.note_proxy_fails(&pending, &"it ended, or answers in another protocol");
                no_route
            }
        };
        self.refuse(now, stack, id, pending, end);
    }

    /// Ends dials of proxies whose time is over.
    fn end_silent_proxies(&mut self, now: Instant, stack: &mut Stack) {
        while let Some(&(until, id)) = self.dials.asked.front()
            && until <= now
        {
            self.dials.asked.pop_front();
            let stage = self.dials.requests.get(&id).map(|pending| pending.stage);
            let Some(DialStage::Dialling(_, at)) = stage else { continue };
            if let Some((_, Flow::Dialling(dialling))) = self.flows.get(at as usize)
                && dialling.until <= now
                && let Some(pending) = self.forget(id)
            {
                self.flows.try_remove(at as usize);
                self.note_proxy_fails(&pending, &"it did not answer in time");
                self.refuse(now, stack, id, pending, (Answer::Silence, How::PeerTimedOut));
            }
        }
    }

    /// Counts a failure of a proxy, and logs the first in a row.
    fn note_proxy_fails(&mut self, pending: &PendingRequest, why: &dyn fmt::Display) {
        self.context.counters.proxies_failed += 1;
        if let Some(proxy) = &pending.record.via
            && !std::mem::replace(&mut self.dials.proxy_fails, true)
        {
            let guest = self.context.guest;
            tracing::warn!(%guest, %proxy, "a proxy gave no connection: {why}");
        }
    }

    /// Handles the end of a request by the guest, or by its link.
    fn cancel(&mut self, now: Instant, id: RequestId, why: Cancel) {
        let how = if why == Cancel::LinkLost { How::Removed } else { How::GaveUp };
        self.context.counters.given_up += 1;
        self.end_dial(now, id, how);
    }

    pub(super) fn end_dial(&mut self, now: Instant, id: RequestId, how: How) {
        let Some(pending) = self.forget(id) else { return };
        if let DialStage::Dialling(_, at) = pending.stage {
            self.flows.try_remove(at as usize);
        }
        self.context.close(now, pending.record, how);
    }

    fn forget(&mut self, id: RequestId) -> Option<PendingRequest> {
        let pending = self.dials.requests.remove(&id)?;
        match pending.stage {
            DialStage::Dialling(to, _) => self.dials.end(to.host),
            DialStage::Judging(question) => self.context.release(question),
            DialStage::Waiting(_) => {}
        }
        Some(pending)
    }

    pub(super) fn answer(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: RequestId,
        answer: Answer,
    ) {
        // A request that has lapsed meanwhile has an event of its own.
        let listener = stack.listener(self.setup.listener);
        let _ = listener.and_then(|mut listener| listener.answer(now, id, answer));
    }

    /// Drops every request: dials are closed, and the stack drops the requests with its listener.
    pub(super) fn drop_requests(&mut self) {
        self.dials = Dials::new(&self.context.whole, &self.context.tally);
        self.flows.retain(|_, (_, flow)| !matches!(flow, Flow::Dialling(_)));
    }
}

/// Keeps a socket's buffers in the kernel small.
pub(crate) fn limit_buffers(socket: &OwnedFd) {
    // An embedding program's descriptor may not be a kernel socket, and has no buffers to set.
    let _ = sockopt::set_socket_send_buffer_size(socket, SMALL_BUFFER);
    let _ = sockopt::set_socket_recv_buffer_size(socket, SMALL_BUFFER);
}

fn answer_of(denial: Denial) -> Answer {
    match denial {
        Denial::Refuse => Answer::Refuse,
        Denial::Prohibit => Answer::Unreachable(Unreachable::Prohibited),
        Denial::Unreachable => Answer::Unreachable(Unreachable::Net),
        Denial::Drop => Answer::Silence,
        Denial::Forget => Answer::Forget,
    }
}

/// Errors by which the kernel reports that this process's resources are exhausted.
const EXHAUSTED: [i32; 4] = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];

/// The meaning of a failed `connect` for the guest.
enum DialFailure {
    Answer(Answer, How),
    /// This process lacks a resource: the dial is repeated later.
    Retry,
}

impl DialFailure {
    /// The errors of `connect(2)`: those that datagrams meet, too, and its own. (A blackhole route is `EINVAL`.)
    fn of(error: &io::Error, to: SocketAddr) -> Self {
        if let Some(why) = errors::unreachable_of(error, to.is_ipv6()) {
            let how = match why {
                Unreachable::Host => How::HostUnreachable,
                Unreachable::Prohibited => How::Prohibited,
                // `unreachable_of` returns no other error than `Net`.
                _ => How::NetUnreachable,
            };
            return Self::Answer(Answer::Unreachable(why), how);
        }
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused | Kind::ConnectionReset => {
                Self::Answer(Answer::Refuse, How::Refused)
            }
            // No port is free for this destination, but others may have some. The next SYN is judged again.
            Kind::AddrNotAvailable => Self::Answer(Answer::Forget, How::Exhausted),
            Kind::OutOfMemory => Self::Retry,
            _ if EXHAUSTED.contains(&error.raw_os_error().unwrap_or_default()) => Self::Retry,
            _ => Self::Answer(Answer::Silence, How::PeerTimedOut),
        }
    }
}

#[cfg(test)]
#[path = "dial_tests.rs"]
mod tests;
