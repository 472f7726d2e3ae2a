//! From a guest's SYN to a connection: the rules are asked, then the far side is dialled, and only
//! its answer is the guest's.
//!
//! ```text
//!   SYN --> judged --> waits for a place --> dialled --> accepted: a pair
//!             \              \                  \
//!              refused        given up           refused, unreachable, silence
//! ```
//!
//! The stack keeps the guest's request meanwhile, and absorbs repeated SYNs; when the guest gives
//! up, the dial is cancelled. Read [`Relay::handle_requests`] first.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use pagewire::services::{
    Answer, Cancel, Instant, RequestId, Stack, SynEvent, SynRequest, Unreachable,
};
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;

use super::dialler::Dialled;
use super::pair::Pair;
use super::{Flow, Relay};
use crate::ask::{How, Protocol};
use crate::context::{Denial, Judged, Passed};
use crate::limits::{
    CONNECTS_BURST, CONNECTS_PER_SECOND, DIAL_FAIR, DIAL_RETRY, DIALS, DIALS_PER_DESTINATION,
    FAILED_CONNECT_COSTS, LARGE_BUFFERS, LEAVES_BURST, LEAVES_PER_SECOND, LEFT_DESTINATIONS,
    LEFT_LOOK, SMALL_BUFFER,
};
use crate::rate::Rate;
use crate::udp::errors;

/// Stale entries that lists keep, beside as many as there are others, before they are packed.
const STALE: usize = 64;

/// Requests that have no answer yet.
pub(super) struct Dials {
    asked: HashMap<RequestId, Asked>,
    /// Allowed, and without a place among the dials; entries may be stale.
    waiting: VecDeque<RequestId>,
    /// Those that wait for a port to their destination, and when the first of these has one: until then
    /// no turn looks at them. Entries may be stale.
    parked: VecDeque<RequestId>,
    parked_until: Instant,
    /// Dials, the oldest first; entries may be stale.
    oldest: VecDeque<(Instant, RequestId)>,
    /// Dials that have no answer yet, in all and for each destination.
    in_flight: usize,
    by_destination: HashMap<IpAddr, usize>,
    rate: Rate,
    /// Connections to each destination that the guest ended first.
    left: HashMap<SocketAddr, Rate>,
    /// Nothing is dialled before, for want of descriptors or ports.
    rest_until: Option<Instant>,
    /// When to look at those that wait again.
    retry_at: Option<Instant>,
}

/// A guest's request.
struct Asked {
    passed: Passed,
    stage: Stage,
    /// It found no place at first.
    waited: bool,
}

#[derive(Clone, Copy)]
enum Stage {
    /// To be dialled at this address.
    Waiting(SocketAddr),
    /// Being dialled there, with its flow in this place.
    Dialling(SocketAddr, u32),
}

/// A dial that has no answer yet.
pub(super) struct Dialling {
    pub(super) socket: OwnedFd,
    request: RequestId,
    /// What the socket was ready for when it was connected.
    ready: EventFlags,
}

/// Whether there is a place for a dial.
enum Place {
    Free,
    /// None at all for now.
    Full,
    /// None for this destination.
    Crowded,
    /// No port for this destination before this time.
    NoPort(Instant),
}

impl Dials {
    pub(super) fn new() -> Self {
        Self {
            asked: HashMap::new(),
            waiting: VecDeque::new(),
            parked: VecDeque::new(),
            parked_until: Instant::ZERO,
            oldest: VecDeque::new(),
            in_flight: 0,
            by_destination: HashMap::new(),
            rate: Rate::new(CONNECTS_PER_SECOND, CONNECTS_BURST),
            left: HashMap::new(),
            rest_until: None,
            retry_at: None,
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Whether no request waits for an answer.
    pub(super) fn are_none(&self) -> bool {
        self.asked.is_empty()
    }

    /// Dials that have no answer yet.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Notes a connection that the guest has ended first: its port waits. (To loopback addresses Linux
    /// takes such a port again after a second.)
    pub(super) fn note_left(&mut self, now: Instant, to: SocketAddr) {
        if to.ip().is_loopback() {
            return;
        }
        if self.left.len() >= LEFT_DESTINATIONS && !self.left.contains_key(&to) {
            let some = self.left.iter().take(LEFT_LOOK);
            let least = some.min_by_key(|(_, rate)| rate.busy_until()).map(|(to, _)| *to);
            least.map(|to| self.left.remove(&to));
        }
        let fresh = || Rate::new(LEAVES_PER_SECOND, LEAVES_BURST);
        self.left.entry(to).or_insert_with(fresh).charge(now, 1);
    }

    /// How many requests wait for a place, and for a port.
    #[cfg(test)]
    pub(super) fn lists(&self) -> (usize, usize) {
        (self.waiting.len(), self.parked.len())
    }

    /// How many connections to the destination are counted.
    #[cfg(test)]
    pub(super) fn left(&self, now: Instant, to: SocketAddr) -> u32 {
        let busy = self.left.get(&to).map_or(Instant::ZERO, Rate::busy_until);
        (busy.saturating_since(now) * LEAVES_PER_SECOND).as_secs() as u32
    }

    /// Whether the destination has ports left; if not, when it has one.
    fn ports_for(&self, now: Instant, to: SocketAddr) -> Result<(), Instant> {
        self.left.get(&to).map_or(Ok(()), |rate| rate.look(now))
    }

    fn begin(&mut self, now: Instant, id: RequestId, to: IpAddr) {
        if self.oldest.len() > 2 * self.in_flight + STALE {
            let asked = &self.asked;
            self.oldest.retain(|(_, id)| is_dialling(asked, id));
        }
        self.in_flight += 1;
        *self.by_destination.entry(to).or_default() += 1;
        self.oldest.push_back((now, id));
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
        }
    }

    /// Puts a request at the end of those that wait.
    fn wait(&mut self, id: RequestId) {
        pack(&mut self.waiting, &self.asked);
        self.waiting.push_back(id);
    }

    /// Puts a request aside until its destination has a port.
    fn park(&mut self, id: RequestId, until: Instant) {
        let none_before = self.parked.is_empty();
        self.parked_until = if none_before { until } else { self.parked_until.min(until) };
        pack(&mut self.parked, &self.asked);
        self.parked.push_back(id);
    }

    /// Puts those aside back in front of those that wait, once one may have a port. Returns when that is
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
        let asked = &self.asked;
        let dials = |id: &RequestId, to: Option<IpAddr>| match asked.get(id).map(|a| a.stage) {
            Some(Stage::Dialling(at, _)) => to.is_none_or(|to| to == at.ip()),
            _ => false,
        };
        while self.oldest.front().is_some_and(|(_, id)| !dials(id, None)) {
            self.oldest.pop_front();
        }
        self.oldest.iter().find(|(_, id)| dials(id, to)).copied()
    }
}

/// Drops stale entries of those that wait, if there are many.
fn pack(list: &mut VecDeque<RequestId>, asked: &HashMap<RequestId, Asked>) {
    if list.len() > 2 * asked.len() + STALE {
        list.retain(|id| asked.contains_key(id) && !is_dialling(asked, id));
    }
}

fn is_dialling(asked: &HashMap<RequestId, Asked>, id: &RequestId) -> bool {
    asked.get(id).is_some_and(|asked| matches!(asked.stage, Stage::Dialling(..)))
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
        let Judged { flow, ask, to } =
            self.context.judge(now, Protocol::Tcp, request.from, request.to);
        let to = match to {
            Ok(to) => to,
            Err(denial) => return self.answer(now, stack, request.id, answer_of(denial)),
        };
        let passed = Passed::new(request.at, flow, ask);
        let asked = Asked { passed, stage: Stage::Waiting(to), waited: false };
        self.dials.asked.insert(request.id, asked);
        self.dials.wait(request.id);
    }

    /// Dials for those that wait, as far as there are places.
    pub(super) fn admit(&mut self, now: Instant, stack: &mut Stack) {
        self.dials.retry_at = self.dials.unpark(now);
        let mut crowded: Vec<IpAddr> = Vec::new();
        for _ in 0..self.dials.waiting.len() {
            let Some(id) = self.dials.waiting.pop_front() else { break };
            let stage = self.dials.asked.get(&id).map(|asked| asked.stage);
            let Some(Stage::Waiting(to)) = stage else { continue };
            let place = match crowded.contains(&to.ip()) {
                true => Place::Crowded,
                false => self.place_for(now, stack, to),
            };
            match place {
                Place::Free => self.dial(now, stack, id, to),
                Place::Full => {
                    self.note_waits(id);
                    self.dials.waiting.push_front(id);
                    break;
                }
                Place::NoPort(until) => {
                    self.note_waits(id);
                    self.dials.park(id, until);
                }
                Place::Crowded => {
                    if !crowded.contains(&to.ip()) {
                        crowded.push(to.ip());
                    }
                    self.note_waits(id);
                    self.dials.waiting.push_back(id);
                }
            }
        }
    }

    fn note_waits(&mut self, id: RequestId) {
        if let Some(asked) = self.dials.asked.get_mut(&id)
            && !std::mem::replace(&mut asked.waited, true)
        {
            self.context.counters.waited += 1;
        }
    }

    /// Looks for a place, perhaps that of an old dial.
    fn place_for(&mut self, now: Instant, stack: &mut Stack, to: SocketAddr) -> Place {
        if let Some(until) = self.dials.rest_until.filter(|until| *until > now) {
            self.retry_by(until);
            return Place::Full;
        }
        // An end of a connection is an event.
        if self.connections() >= self.setup.connections {
            return Place::Full;
        }
        if !self.may_open() {
            // One of another guest is none.
            self.retry_by(now + DIAL_RETRY);
            return Place::Full;
        }
        if let Err(at) = self.dials.ports_for(now, to) {
            self.retry_by(at);
            return Place::NoPort(at);
        }
        let to = to.ip();
        let here = self.dials.by_destination.get(&to).copied().unwrap_or(0);
        let (is_full, is_crowded) = (self.dials.in_flight >= DIALS, here >= DIALS_PER_DESTINATION);
        if is_full || is_crowded {
            let among = (is_crowded).then_some(to);
            let Some((began, oldest)) = self.dials.oldest(among) else { return Place::Full };
            if now < began + DIAL_FAIR {
                self.retry_by(began + DIAL_FAIR);
                return if is_crowded { Place::Crowded } else { Place::Full };
            }
            self.context.counters.yielded += 1;
            self.end_dial(now, oldest, How::PeerTimedOut);
            self.answer(now, stack, oldest, Answer::Silence);
        }
        match self.dials.rate.take(now) {
            Ok(()) => Place::Free,
            Err(at) => {
                self.retry_by(at);
                Place::Full
            }
        }
    }

    fn retry_by(&mut self, at: Instant) {
        self.dials.retry_at = Some(self.dials.retry_at.map_or(at, |before| before.min(at)));
    }

    fn dial(&mut self, now: Instant, stack: &mut Stack, id: RequestId, to: SocketAddr) {
        let Some(asked) = self.dials.asked.get(&id) else { return };
        self.context.counters.dialled += 1;
        match self.setup.dialler.dial(to, &asked.passed.ask) {
            Ok(Dialled { socket, connected }) => {
                if self.flows.len() >= LARGE_BUFFERS {
                    limit_buffers(&socket);
                }
                let dialling = Dialling { socket, request: id, ready: EventFlags::empty() };
                let at = match self.insert(Flow::Dialling(dialling)) {
                    Ok(at) => at,
                    Err(error) => return self.fail(now, stack, id, &error),
                };
                if let Some(asked) = self.dials.asked.get_mut(&id) {
                    asked.stage = Stage::Dialling(to, at);
                }
                self.dials.begin(now, id, to.ip());
                if connected {
                    self.handle_dialled(now, stack, at, EventFlags::OUT);
                }
            }
            Err(error) => self.fail(now, stack, id, &error),
        }
    }

    /// The kernel has an answer to a dial.
    pub(super) fn handle_dialled(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        at: u32,
        ready: EventFlags,
    ) {
        let Some((_, Flow::Dialling(dialling))) = self.flows.get_mut(at as usize) else { return };
        dialling.ready |= ready;
        if !ready.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
            return;
        }
        let id = dialling.request;
        match sockopt::socket_error(&dialling.socket) {
            Ok(Ok(())) => self.open(now, stack, id, at),
            Ok(Err(error)) | Err(error) => {
                self.flows.remove(at as usize);
                self.fail(now, stack, id, &error.into());
            }
        }
    }

    /// The far side has accepted: so does the guest's connection.
    fn open(&mut self, now: Instant, stack: &mut Stack, id: RequestId, at: u32) {
        let Some(asked) = self.forget(id) else { return };
        let Stage::Dialling(to, _) = asked.stage else { return };
        let accepted = stack.listener(self.setup.listener);
        let accepted = accepted.and_then(|mut l| l.answer(now, id, Answer::Accept));
        let Ok(Some(tcp)) = accepted else {
            // It has lapsed.
            self.flows.try_remove(at as usize);
            self.context.counters.given_up += 1;
            return asked.passed.close(now, How::GaveUp, &self.context);
        };
        let Some((_, place)) = self.flows.get_mut(at as usize) else { return };
        let Flow::Dialling(Dialling { socket, ready, .. }) = std::mem::replace(place, Flow::Moving)
        else {
            return;
        };
        let mut pair = Pair::new(tcp, socket, asked.passed, to);
        pair.note_host(ready);
        *place = Flow::Pair(pair);
        self.joined(now, tcp, at);
    }

    /// A dial has failed: the guest sees what this process saw.
    fn fail(&mut self, now: Instant, stack: &mut Stack, id: RequestId, error: &io::Error) {
        let Some(asked) = self.forget(id) else { return };
        let (Stage::Waiting(to) | Stage::Dialling(to, _)) = asked.stage;
        let (answer, how) = match Outcome::of(error, to) {
            Outcome::Answer(answer, how) => (answer, how),
            Outcome::Retry => {
                self.context.counters.exhausted += 1;
                self.dials.rest_until = Some(now + DIAL_RETRY);
                self.retry_by(now + DIAL_RETRY);
                self.dials.asked.insert(id, Asked { stage: Stage::Waiting(to), ..asked });
                self.dials.wait(id);
                return;
            }
        };
        match how {
            How::Refused => self.context.counters.refused += 1,
            How::PeerTimedOut => self.context.counters.silent += 1,
            How::Exhausted => self.context.counters.exhausted += 1,
            _ => self.context.counters.unreachable += 1,
        }
        // One that found no port of ours sent nothing.
        if how != How::Exhausted {
            self.dials.rate.charge(now, FAILED_CONNECT_COSTS - 1);
        }
        self.answer(now, stack, id, answer);
        asked.passed.close(now, how, &self.context);
    }

    /// The guest, or its link, has ended a request.
    fn cancel(&mut self, now: Instant, id: RequestId, why: Cancel) {
        let how = if why == Cancel::LinkLost { How::Removed } else { How::GaveUp };
        self.context.counters.given_up += 1;
        self.end_dial(now, id, how);
    }

    /// Drops a request and its dial, if it has one.
    fn end_dial(&mut self, now: Instant, id: RequestId, how: How) {
        let Some(asked) = self.forget(id) else { return };
        if let Stage::Dialling(_, at) = asked.stage {
            self.flows.try_remove(at as usize);
        }
        asked.passed.close(now, how, &self.context);
    }

    fn forget(&mut self, id: RequestId) -> Option<Asked> {
        let asked = self.dials.asked.remove(&id)?;
        if let Stage::Dialling(to, _) = asked.stage {
            self.dials.end(to.ip());
        }
        Some(asked)
    }

    fn answer(&mut self, now: Instant, stack: &mut Stack, id: RequestId, answer: Answer) {
        // It may have lapsed meanwhile, which another event says.
        let listener = stack.listener(self.setup.listener);
        let _ = listener.and_then(|mut listener| listener.answer(now, id, answer));
    }

    /// Drops every request: their sockets close, and the stack forgets them with its listener.
    pub(super) fn drop_requests(&mut self) {
        self.dials = Dials::new();
        self.flows.retain(|_, (_, flow)| !matches!(flow, Flow::Dialling(_)));
    }
}

/// Keeps a socket's buffers in the kernel small.
fn limit_buffers(socket: &OwnedFd) {
    // Fails for what is no socket of the kernel's.
    let _ = sockopt::set_socket_send_buffer_size(socket, SMALL_BUFFER);
    let _ = sockopt::set_socket_recv_buffer_size(socket, SMALL_BUFFER);
}

fn answer_of(denial: Denial) -> Answer {
    match denial {
        Denial::Refuse => Answer::Refuse,
        Denial::Prohibit => Answer::Unreachable(Unreachable::Prohibited),
        Denial::Drop => Answer::Silence,
        Denial::Forget => Answer::Forget,
    }
}

/// Errors of this process's own limits.
const LACKS: [i32; 4] = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];

/// What a failed `connect` means for the guest.
enum Outcome {
    Answer(Answer, How),
    /// This process lacks something: later.
    Retry,
}

impl Outcome {
    /// The errors of `connect(2)`: those that datagrams meet, too, and its own. (A blackhole route is `EINVAL`.)
    fn of(error: &io::Error, to: SocketAddr) -> Self {
        if let Some(why) = errors::refusal(error, to.is_ipv6()) {
            let how = match why {
                Unreachable::Host => How::HostUnreachable,
                Unreachable::Prohibited => How::Prohibited,
                // `Net`: a refusal is none of the others.
                _ => How::NetUnreachable,
            };
            return Self::Answer(Answer::Unreachable(why), how);
        }
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::ConnectionRefused | Kind::ConnectionReset => {
                Self::Answer(Answer::Refuse, How::Refused)
            }
            // No port is free for this destination; others may have some. The next SYN asks again.
            Kind::AddrNotAvailable => Self::Answer(Answer::Forget, How::Exhausted),
            Kind::OutOfMemory => Self::Retry,
            _ if LACKS.contains(&error.raw_os_error().unwrap_or_default()) => Self::Retry,
            _ => Self::Answer(Answer::Silence, How::PeerTimedOut),
        }
    }
}
