//! Datagrams: each address and port of the guest that sends some has one socket of the kernel, as a
//! well-behaved address translator would have it (RFC 4787).
//!
//! Read [`Udp`] first, then `endpoint.rs` (a socket, its peers and its time) and `errors.rs`.

mod endpoint;
pub(crate) mod errors;
mod new_clients;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};

use pagewire::memory::{CopyLedger, CopyReason, Frag, FragVec};
use pagewire::services::{
    Error, Flow, Instant, Message, RecvFlags, SocketId, Stack, UdpId, UdpMessage, Unreachable,
};
use pagewire::udp::UdpTarget;
use rustix::event::epoll::EventFlags;
use slab::Slab;

use crate::asking::{Held, QuestionId};
use crate::context::{Context, Decide, Judged, JudgedFlow, Whole};
use crate::epoll::{SourceKind, Token};
use crate::limits::{
    GATHER, TURN_BYTES, UDP_ASKING_IN_ALL, UDP_BURST, UDP_LONGEST, UDP_PEERS_IN_ALL, UDP_RETRY,
    UDP_SEGMENTS, UDP_SWEEP,
};
use crate::rate::SharedRate;
use crate::request::{Direction, FlowState, How, Protocol};
use crate::splice::Diverter;
use crate::sys::datagrams::{self, Sending};
use crate::tally::{Item, Tally};
use endpoint::{Counts, Endpoint};

/// The relay of one guest's datagrams.
pub(crate) struct Udp {
    /// The guest-side socket, which takes datagrams to every address.
    socket: UdpId,
    endpoints: Slab<Endpoint>,
    by_guest: HashMap<SocketAddr, u32>,
    /// Endpoints whose sockets may have datagrams; entries may be stale.
    listed: VecDeque<u32>,
    readable: bool,
    /// Sums over all endpoints. Anybody can cause new clients, so these take no peer's slot.
    counts: Counts,
    /// The rate of new clients of published ports.
    clients: SharedRate,
    /// Until this time no endpoint can make room for another.
    evict_at: Instant,
    /// The time to read again, after no page was free.
    retry_at: Option<Instant>,
    sweep_at: Option<Instant>,
    /// Datagrams of flows that a policy is asked about.
    held: Held,
    /// Takes datagrams of published ports whose clients come over this machine's loopback.
    divert: Option<Diverter>,
}

/// The result of reading a kernel socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiveStep {
    /// There may be more datagrams.
    More,
    Dry,
    /// The stack has no page to read into.
    NoPages,
    /// The socket's error queue has an entry.
    Failed,
}

impl Udp {
    pub(crate) fn new(
        stack: &mut Stack,
        socket: UdpId,
        whole: &Whole,
        tally: &Tally,
    ) -> Result<Self, Error> {
        let mut udp = stack.udp(socket)?;
        udp.set_join(true);
        Ok(Self {
            socket,
            endpoints: Slab::new(),
            by_guest: HashMap::new(),
            listed: VecDeque::new(),
            readable: false,
            counts: Counts::default(),
            clients: whole.clients.clone(),
            evict_at: Instant::ZERO,
            retry_at: None,
            sweep_at: None,
            held: Held::new(tally),
            divert: None,
        })
    }

    /// Has datagrams taken whose clients come over this machine's loopback.
    pub(crate) fn divert_to(&mut self, divert: Option<Diverter>) {
        self.divert = divert;
    }

    /// Whether events of this socket are for [`note_guest`](Self::note_guest).
    pub(crate) fn owns(&self, socket: SocketId) -> bool {
        self.socket == socket
    }

    /// Notes that the guest has sent datagrams.
    pub(crate) fn note_guest(&mut self) {
        self.readable = true;
    }

    /// Notes that a kernel socket is readable, or has an error.
    pub(crate) fn note_host(&mut self, token: Token, ready: EventFlags) {
        if let Some(endpoint) = self.endpoints.get_mut(token.at as usize)
            && endpoint.serial == token.serial
        {
            endpoint.failed |= ready.contains(EventFlags::ERR);
            self.list(token.at);
        }
    }

    fn list(&mut self, at: u32) {
        if let Some(endpoint) = self.endpoints.get_mut(at as usize)
            && !std::mem::replace(&mut endpoint.listed, true)
        {
            self.listed.push_back(at);
        }
    }

    /// The time when [`turn`](Self::turn) is due without an event.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let waits = self.readable || (!self.listed.is_empty() && self.retry_at.is_none());
        let now = waits.then_some(Instant::ZERO);
        [now, self.retry_at, self.sweep_at].into_iter().flatten().min()
    }

    /// Passes datagrams in both directions, a burst at most.
    pub(crate) fn turn(&mut self, now: Instant, stack: &mut Stack, context: &mut Context) {
        if self.readable {
            self.send_all(now, stack, context);
        }
        if self.retry_at.is_none_or(|at| at <= now) {
            self.retry_at = None;
            let before = context.counters.bytes_in;
            for _ in 0..self.listed.len() {
                if context.counters.bytes_in - before >= TURN_BYTES as u64 {
                    break;
                }
                let Some(at) = self.listed.pop_front() else { break };
                self.receive(now, stack, context, at);
            }
        }
        self.sweep(now, context);
    }

    /// Passes datagrams from the guest to the network.
    fn send_all(&mut self, now: Instant, stack: &mut Stack, context: &mut Context) {
        for _ in 0..UDP_BURST {
            let Ok(mut udp) = stack.udp(self.socket) else { return self.readable = false };
            match udp.recv(Message(UDP_LONGEST), RecvFlags::empty()) {
                Ok(message) => self.send(now, stack, context, &message),
                Err(Error::WouldBlock | Error::NetworkDown) => return self.readable = false,
                // The error is of an earlier datagram, and concerns no flow.
                Err(_) => {}
            }
        }
    }

    fn send(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        context: &mut Context,
        message: &UdpMessage,
    ) {
        let flow = Flow::udp(message.from, message.to);
        if message.hop_limit <= 1 {
            return errors::send_error(now, stack, &flow, (Unreachable::TimeExceeded, None));
        }
        let at = match self.route(now, context, message) {
            Ok(Some(at)) => at,
            Ok(None) => {
                let is_held = self.held.add(message.from, message.to, message);
                context.counters.datagrams_lost += u64::from(!is_held);
                return;
            }
            Err(None) => return,
            Err(Some(why)) => return errors::send_error(now, stack, &flow, (why, None)),
        };
        let Some(endpoint) = self.endpoints.get_mut(at as usize) else { return };
        let Some(peer) = endpoint.peer(message.to) else { return };
        let to = peer.at;
        let (rate, hop_limit) = (peer.rate(), Some(message.hop_limit - 1));
        if peer.has_gate() {
            let how = Sending { to, segment: None, hop_limit };
            return send_shown(now, stack, context, endpoint, message, how);
        }
        if rate.is_some() {
            let bytes = message.payload.iter().map(Frag::len).sum();
            if !context.rates.admit(now, rate, Direction::Out, bytes) {
                context.counters.datagrams_over_rate += 1;
                return;
            }
        }
        let mut send = |part: &FragVec, segment| {
            let how = Sending { to, segment, hop_limit };
            // A pending error of an earlier datagram fails one call.
            let first = endpoint.send(part.iter(), how, message.dont_fragment);
            first.or_else(|_| endpoint.send(part.iter(), how, message.dont_fragment))
        };
        let (mut sent, mut failed) = (0, None);
        for (part, segment) in SendBatches::of(message) {
            match (send(&part, segment), segment) {
                (Ok(n), _) => sent += n,
                (Err(error), None) => failed = Some(error),
                // This kernel, or the path, takes no message of several datagrams.
                (Err(_), Some(size)) => {
                    for (one, _) in SendBatches::apart(part, size) {
                        match send(&one, None) {
                            Ok(n) => sent += n,
                            Err(error) => failed = Some(error),
                        }
                    }
                }
            }
        }
        endpoint.note_sent(now, message.to, sent);
        stack.ledger_mut().note(CopyReason::SocketTx, sent);
        context.counters.bytes_out += sent as u64;
        let Some(error) = failed else {
            context.counters.datagrams_out += count(sent, message.segment);
            return;
        };
        context.counters.datagrams_lost += 1;
        if let Some(why) = errors::unreachable_of(&error, to.is_ipv6()) {
            errors::send_error(now, stack, &flow, (why, None));
        }
        // The error queue has details: the MTU of this path.
        self.pass_errors(now, stack, context, at);
    }

    /// Goes on with flows about which a policy has answered: sends what was held, or the guest's ICMP error.
    pub(crate) fn resume(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        context: &mut Context,
        answered: &[QuestionId],
    ) {
        for (waiting, messages) in self.held.take(answered) {
            let (from, to) = (waiting.ask.from, waiting.ask.to);
            let route = match context.judge_waiting(now, waiting.flow, waiting.ask) {
                Judged::Flow(judged) => self.admit(now, context, judged).map(drop),
                Judged::Waits(waiting) => {
                    self.held.wait(waiting);
                    Ok(())
                }
            };
            match route {
                Ok(()) => messages.iter().for_each(|one| self.send(now, stack, context, one)),
                Err(None) => {}
                Err(Some(why)) => {
                    errors::send_error(now, stack, &Flow::udp(from, to), (why, None));
                }
            }
        }
    }

    /// The slot of a datagram's endpoint, with the destination among its peers; `None`: the flow waits for a policy.
    /// Or the ICMP error for a guest that may not send.
    fn route(
        &mut self,
        now: Instant,
        context: &mut Context,
        message: &UdpMessage,
    ) -> Result<Option<u32>, Option<Unreachable>> {
        let known = self.by_guest.get(&message.from).copied();
        if let Some(at) = known
            && let Some(endpoint) = self.endpoints.get_mut(at as usize)
        {
            let (to, before) = (message.to, endpoint.counts());
            if endpoint.peer(to).is_some() {
                return Ok(Some(at));
            }
            let full = context.tally.is_full(Item::Peers, self.counts.peers, UDP_PEERS_IN_ALL);
            let is_answer = endpoint.answer(now, to, full, context);
            self.counts.replace(before, endpoint.counts());
            if is_answer {
                return Ok(Some(at));
            }
        }
        if self.held.has(message.from, message.to) {
            return Ok(None);
        }
        // A flood from all ports costs no verdicts, but for one each time that endpoints are evicted.
        if known.is_none() && self.is_full(context) && now < self.evict_at {
            context.counters.endpoints_refused += 1;
            return Err(None);
        }
        // The rate is checked before the verdict, which may be written down.
        if !context.may_add_destination(now) {
            return Err(None);
        }
        match context.judge(now, Protocol::Udp, message.from, message.to) {
            Judged::Flow(judged) => self.admit(now, context, judged).map(Some),
            Judged::Waits(waiting) if self.held.has_room() => {
                context.count_destination(now);
                self.held.wait(waiting);
                Ok(None)
            }
            Judged::Waits(waiting) => {
                context.release(waiting.question);
                Err(None)
            }
        }
    }

    /// Adds the destination of a judged flow to the peers of its endpoint, whose slot is returned; or the ICMP error for
    /// a guest that may not send.
    fn admit(
        &mut self,
        now: Instant,
        context: &mut Context,
        judged: JudgedFlow,
    ) -> Result<u32, Option<Unreachable>> {
        let (from, asked) = (judged.ask.from, judged.ask.to);
        let to = judged.to.map_err(errors::unreachable_of_denial)?;
        if to.is_ipv4() != from.is_ipv4() {
            return Err(Some(Unreachable::Net));
        }
        context.count_destination(now);
        let at = match self.by_guest.get(&from).copied() {
            Some(at) => at,
            None => self.open(now, context, from)?,
        };
        if let Some(endpoint) = self.endpoints.get_mut(at as usize) {
            let full = context.tally.is_full(Item::Peers, self.counts.peers, UDP_PEERS_IN_ALL);
            let before = endpoint.counts();
            endpoint.add(now, judged, (asked, to), full, context);
            self.counts.replace(before, endpoint.counts());
        }
        Ok(at)
    }

    fn is_full(&self, context: &Context) -> bool {
        let (own, share, tally) = (self.endpoints.len(), &context.share, &context.tally);
        let others = tally.others(Item::Descriptors);
        tally.is_full(Item::Endpoints, own, share.ports_per_guest())
            || own + context.descriptors + others >= share.per_guest()
    }

    /// Notes how much this relay has of the guest's limits.
    pub(crate) fn note_in_use(&self, tally: &Tally) {
        tally.note(Item::Endpoints, self.endpoints.len());
        tally.note(Item::Peers, self.counts.peers);
        tally.note(Item::NewClients, self.counts.new_clients);
    }

    /// Opens an endpoint; or returns the ICMP error if there are too many, or the system refuses one.
    fn open(
        &mut self,
        now: Instant,
        context: &mut Context,
        guest: SocketAddr,
    ) -> Result<u32, Option<Unreachable>> {
        if self.is_full(context) && !self.evict(now, context) {
            context.counters.endpoints_refused += 1;
            return Err(None);
        }
        let mut open = || -> io::Result<u32> {
            let mut endpoint = Endpoint::new(now, guest, &context.source)?;
            let slot = self.endpoints.vacant_entry();
            let at = slot.key() as u32;
            endpoint.serial =
                context.watch.add_source(&endpoint.socket, SourceKind::Endpoint, at)?;
            slot.insert(endpoint);
            Ok(at)
        };
        let at = open().map_err(|error| {
            context.counters.exhausted += 1;
            errors::unreachable_of(&error, guest.is_ipv6())
        })?;
        self.by_guest.insert(guest, at);
        self.sweep_at.get_or_insert(now + UDP_SWEEP);
        context.tally.add(Item::Descriptors);
        context.counters.endpoints_opened += 1;
        Ok(at)
    }

    /// Passes datagrams to this socket on to the guest's address, and sends that address's datagrams by the socket.
    ///
    /// # Errors
    /// The error of a system call; `AddrInUse` if the guest's address is published.
    pub(crate) fn publish(
        &mut self,
        now: Instant,
        context: &mut Context,
        socket: OwnedFd,
        guest: SocketAddr,
    ) -> io::Result<()> {
        if let Some(&before) = self.by_guest.get(&guest) {
            if self.endpoints.get(before as usize).is_some_and(Endpoint::is_published) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            self.close(now, context, before as usize, How::Finished);
        }
        let mut endpoint = Endpoint::published(now, guest, socket)?;
        let slot = self.endpoints.vacant_entry();
        let at = slot.key() as u32;
        endpoint.serial = context.watch.add_source(&endpoint.socket, SourceKind::Endpoint, at)?;
        slot.insert(endpoint);
        self.by_guest.insert(guest, at);
        Ok(())
    }

    /// Closes the published socket of the guest's address.
    pub(crate) fn unpublish(&mut self, now: Instant, context: &Context, guest: SocketAddr) {
        if let Some(&at) = self.by_guest.get(&guest)
            && self.endpoints.get(at as usize).is_some_and(Endpoint::is_published)
        {
            self.close(now, context, at as usize, How::Finished);
        }
    }

    /// Closes endpoints that may make room for others. Returns whether there were any.
    fn evict(&mut self, now: Instant, context: &Context) -> bool {
        // In a flood, not every datagram may cause a pass over all endpoints.
        if self.evict_at > now {
            return false;
        }
        self.evict_at = now + UDP_SWEEP;
        self.close_those(now, context, |endpoint| endpoint.may_go(now))
    }

    /// Passes datagrams from the network to the guest.
    fn receive(&mut self, now: Instant, stack: &mut Stack, context: &mut Context, at: u32) {
        let Some(endpoint) = self.endpoints.get_mut(at as usize) else { return };
        endpoint.listed = false;
        if std::mem::take(&mut endpoint.failed) {
            self.pass_errors(now, stack, context, at);
        }
        let Some(endpoint) = self.endpoints.get_mut(at as usize) else { return };
        let mut read = ReceiveStep::More;
        for _ in 0..UDP_BURST {
            let (own, before) = (self.counts.new_clients, endpoint.counts());
            // Others have no new clients.
            let full = endpoint.is_published()
                && context.tally.is_full(Item::NewClients, own, UDP_ASKING_IN_ALL);
            let mut admit = || self.clients.take(now).is_ok().then_some(full);
            let divert = self.divert.as_mut().filter(|_| endpoint.is_published());
            read = receive_one(now, stack, (self.socket, endpoint, divert), &mut admit, context);
            self.counts.replace(before, endpoint.counts());
            if read != ReceiveStep::More {
                break;
            }
        }
        if endpoint.counts().new_clients > 0 {
            self.sweep_at.get_or_insert(now + UDP_SWEEP);
        }
        match read {
            ReceiveStep::Dry => return,
            ReceiveStep::More => {}
            ReceiveStep::NoPages => self.retry_at = Some(now + UDP_RETRY),
            // The error queue has the reason.
            ReceiveStep::Failed => endpoint.failed = true,
        }
        self.list(at);
    }

    /// Sends the guest the errors that the network has reported about an endpoint's datagrams.
    fn pass_errors(&mut self, now: Instant, stack: &mut Stack, context: &mut Context, at: u32) {
        let Some(endpoint) = self.endpoints.get(at as usize) else { return };
        for _ in 0..UDP_BURST {
            let Some(reported) = datagrams::take_error(endpoint.socket.as_fd()) else { return };
            let Some(asked) = endpoint.alias(reported.to) else { continue };
            let Some(why) = errors::icmp_of(&reported, asked.ip()) else { continue };
            context.counters.errors_in += 1;
            errors::send_error(now, stack, &Flow::udp(endpoint.guest, asked), why);
        }
    }

    /// Closes endpoints that have been silent for their time, and forgets clients without an answer.
    fn sweep(&mut self, now: Instant, context: &Context) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        self.close_those(now, context, |endpoint| endpoint.is_over(now));
        for (_, endpoint) in &mut self.endpoints {
            let before = endpoint.counts();
            endpoint.expire_clients(now);
            self.counts.replace(before, endpoint.counts());
        }
        self.sweep_at = (!self.endpoints.is_empty()).then_some(now + UDP_SWEEP);
    }

    fn close_those(
        &mut self,
        now: Instant,
        context: &Context,
        is_one: impl Fn(&Endpoint) -> bool,
    ) -> bool {
        let those = self.endpoints.iter().filter(|(_, endpoint)| is_one(endpoint));
        let those: Vec<usize> = those.map(|(at, _)| at).collect();
        for at in &those {
            self.close(now, context, *at, How::Finished);
        }
        !those.is_empty()
    }

    fn close(&mut self, now: Instant, context: &Context, at: usize, how: How) {
        let Some(endpoint) = self.endpoints.try_remove(at) else { return };
        self.by_guest.remove(&endpoint.guest);
        self.counts.replace(endpoint.counts(), Counts::default());
        endpoint.close(now, how, context);
    }

    /// The flows.
    pub(crate) fn flows(&self, now: Instant) -> impl Iterator<Item = FlowState> {
        self.endpoints.iter().flat_map(move |(_, endpoint)| endpoint.flows(now))
    }

    /// Ends the flows that `decide` ends. Returns their number.
    pub(crate) fn end_flows(
        &mut self,
        now: Instant,
        context: &mut Context,
        decide: &mut Decide<'_>,
    ) -> usize {
        let mut ended = 0;
        for (_, endpoint) in &mut self.endpoints {
            let before = endpoint.counts();
            ended += endpoint.end_flows(now, context, decide);
            self.counts.replace(before, endpoint.counts());
        }
        ended
    }

    pub(crate) fn len(&self) -> usize {
        self.endpoints.len()
    }

    /// Closes everything: the guest is removed.
    pub(crate) fn end_all(&mut self, now: Instant, stack: &mut Stack, context: &Context) {
        let all: Vec<usize> = self.endpoints.iter().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.close(now, context, at, How::Removed));
        self.held.clear();
        stack.close(now, self.socket);
        (self.retry_at, self.sweep_at, self.readable) = (None, None, false);
    }
}

/// Passes on one datagram of a socket, or several of one size.
fn receive_one(
    now: Instant,
    stack: &mut Stack,
    (socket, endpoint, mut divert): (UdpId, &mut Endpoint, Option<&mut Diverter>),
    admit: &mut impl FnMut() -> Option<bool>,
    context: &mut Context,
) -> ReceiveStep {
    let Ok(mut udp) = stack.udp(socket) else { return ReceiveStep::Dry };
    let (mut got, mut is_known, mut is_diverted) = (None, false, false);
    let mut is_over_rate = false;
    let mut copied = CopyLedger::new();
    let filled = udp.fill(now, UDP_LONGEST, |spare| {
        let fd = endpoint.socket.as_fd();
        let result = got.insert(match &mut divert {
            Some(divert) => datagrams::receive_into(fd, divert.room()),
            None => datagrams::receive(fd, &mut [], spare),
        });
        let received = result.as_ref().ok().filter(|received| !received.cut)?;
        if let Some(divert) = &divert {
            if divert.take(endpoint.guest, received) {
                is_diverted = true;
                return None;
            }
            let bytes = divert.received(received);
            if spare.put(bytes, &mut copied, CopyReason::AppWrite) < bytes.len() {
                return None;
            }
        }
        if endpoint.is_new_client(received.from) {
            // Clients beyond the rate of new ones are filtered as strangers are.
            add_client(now, endpoint, received.from, admit()?, context);
        }
        let rate = endpoint.rate_of(received.from);
        if !context.rates.admit(now, rate, Direction::In, received.len) {
            is_over_rate = true;
            return None;
        }
        let source = endpoint.source_of(now, received.from, received.len)?;
        is_known = true;
        let segment = Some(received.segment.unwrap_or(0));
        let remote = Some(endpoint.guest);
        let target = UdpTarget { remote, segment, source: Some(source), ..UdpTarget::default() };
        Some((received.len, target))
    });
    stack.ledger_mut().add(&copied);
    let counters = &mut context.counters;
    match (got, filled) {
        _ if is_diverted => ReceiveStep::More,
        (None, Err(Error::NoBuffers | Error::WouldBlock)) => ReceiveStep::NoPages,
        (None, _) => ReceiveStep::Dry,
        (Some(Err(error)), _) => match error.kind() {
            io::ErrorKind::WouldBlock => ReceiveStep::Dry,
            io::ErrorKind::Interrupted => ReceiveStep::More,
            _ => ReceiveStep::Failed,
        },
        (Some(Ok(_)), _) if is_over_rate => {
            counters.datagrams_over_rate += 1;
            ReceiveStep::More
        }
        (Some(Ok(_)), _) if !is_known => {
            counters.datagrams_filtered += 1;
            ReceiveStep::More
        }
        (Some(Ok(received)), Ok(_)) => {
            counters.bytes_in += received.len as u64;
            counters.datagrams_in += count(received.len, received.segment);
            stack.ledger_mut().note(CopyReason::SocketRx, received.len);
            ReceiveStep::More
        }
        (Some(Ok(_)), Err(_)) => {
            counters.datagrams_lost += 1;
            ReceiveStep::More
        }
    }
}

/// Adds a new client of a published port, unless rules forbid it.
fn add_client(
    now: Instant,
    endpoint: &mut Endpoint,
    client: SocketAddr,
    full: bool,
    context: &mut Context,
) {
    let judged = context.judge_client_quietly(now, Protocol::Udp, client, endpoint.guest);
    let alias = match context.link.can_answer(client.ip(), endpoint.guest.ip()) {
        true => Some(client),
        // The gateway's address stands for clients that the guest could not answer.
        false => context.link.own_address(endpoint.guest.ip()).map(|ip| (ip, client.port()).into()),
    };
    if let (Ok(_), Some(alias)) = (judged.to, alias) {
        let made_room = endpoint.add_client(now, judged, (alias, client), full, context);
        context.counters.clients_forgotten += u64::from(made_room);
    }
}

/// The number of datagrams in a message of several of one size.
fn count(bytes: usize, segment: Option<u16>) -> u64 {
    segment.filter(|&n| n > 0).map_or(1, |n| bytes.div_ceil(n.into())) as u64
}

/// Sends a message to a peer whose datagrams must show a name: each datagram by itself, and those with Initial
/// packets as the copy that was judged. Others go by reference, but for their first byte, which says that they are.
fn send_shown(
    now: Instant,
    stack: &mut Stack,
    context: &mut Context,
    endpoint: &mut Endpoint,
    message: &UdpMessage,
    how: Sending,
) {
    let mut ledger = CopyLedger::new();
    let mut copy = |part: &FragVec, n: usize| {
        let mut bytes = vec![0; n];
        let mut at = 0;
        for frag in part {
            let room = bytes.get_mut(at..).unwrap_or_default();
            at += frag.copy_to(0, room, &mut ledger, CopyReason::AppRead);
        }
        bytes
    };
    let (mut sent, mut refused) = (0, false);
    for (mut part, _) in
        SendBatches::apart(message.payload.clone(), message.segment.unwrap_or(u16::MAX))
    {
        let mut bytes = copy(&part, 1);
        if bytes.iter().any(|first| first & LONG_HEADER != 0) {
            bytes = copy(&part, part.iter().map(Frag::len).sum());
            part = FragVec::new();
        } else if let Some(first) = part.first_mut() {
            let _ = first.split_to(1);
        }
        let Some(peer) = endpoint.peer(message.to) else { break };
        let Ok(datagrams) = peer.take_shown(now, context, bytes) else {
            refused = true;
            continue;
        };
        let rate = peer.rate();
        for bytes in datagrams {
            let len = bytes.len() + part.iter().map(Frag::len).sum::<usize>();
            if !context.rates.admit(now, rate, Direction::Out, len) {
                context.counters.datagrams_over_rate += 1;
                continue;
            }
            match endpoint.send_behind(&bytes, part.iter(), how, message.dont_fragment) {
                Ok(n) => {
                    sent += n;
                    context.counters.datagrams_out += 1;
                }
                Err(_) => context.counters.datagrams_lost += 1,
            }
        }
    }
    endpoint.note_sent(now, message.to, sent);
    stack.ledger_mut().add(&ledger);
    stack.ledger_mut().note(CopyReason::SocketTx, sent);
    context.counters.bytes_out += sent as u64;
    if refused {
        let why = (Unreachable::Prohibited, None);
        errors::send_error(now, stack, &Flow::udp(message.from, message.to), why);
    }
}

/// Set in the first byte of a packet with a long header (RFC 9000 section 17.2).
const LONG_HEADER: u8 = 0x80;

/// The messages to the kernel for a message of the guest: mostly one.
struct SendBatches<'a> {
    left: FragVec,
    whole: Option<&'a UdpMessage>,
    segment: usize,
}

impl<'a> SendBatches<'a> {
    fn of(message: &'a UdpMessage) -> Self {
        let segment = message.segment.unwrap_or(0);
        let bytes: usize = message.payload.iter().map(Frag::len).sum();
        let fits = message.payload.len() < GATHER && bytes <= usize::from(segment) * UDP_SEGMENTS;
        if segment > 0 && !fits {
            return Self::apart(message.payload.clone(), segment);
        }
        Self { left: FragVec::new(), whole: Some(message), segment: segment.into() }
    }

    /// Makes one message for each datagram.
    fn apart(payload: FragVec, segment: u16) -> Self {
        Self { left: payload, whole: None, segment: segment.into() }
    }
}

impl Iterator for SendBatches<'_> {
    type Item = (FragVec, Option<u16>);

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(message) = self.whole.take() {
            return Some((message.payload.clone(), message.segment));
        }
        // One datagram at a time, which is rare.
        let (mut part, mut missing) = (FragVec::new(), self.segment);
        while missing > 0
            && let Some(front) = self.left.first_mut()
        {
            let piece = front.split_to(missing);
            missing -= piece.len();
            if front.is_empty() {
                self.left.remove(0);
            }
            part.push(piece);
        }
        (!part.is_empty()).then_some((part, None))
    }
}

#[cfg(test)]
#[path = "udp_tests.rs"]
mod tests;
