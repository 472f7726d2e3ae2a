//! Clients and servers that talk directly or through a proxy. A connection's number determines all that
//! both ends send, and how polite they are, so each end knows what to expect.

use std::collections::{BTreeMap, HashMap};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use pagewire_device::FaultRng;
use pagewire_mem::{CopyLedger, Frag, FragVec, Instant};
use pagewire_stack::{Error, Event, Forwarder, ListenerId, Readiness, Stack, TcpId};
use pagewire_testkit::sim::{App, Stream, Verbs};

/// How a conversation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Both speak at once.
    AtOnce,
    /// The server speaks when the client has ended.
    AnswerAfterEnd,
    /// The client ends when the server has.
    EndAfterEnd,
    /// The client reads a little at a time.
    SlowClient,
    /// The server reads a little at a time.
    SlowServer,
    /// The server reads nothing for a while.
    SleepingServer,
    /// The server sends the memory back that it receives.
    Echo,
    /// The client resets after this number of bytes.
    ClientAborts(u64),
    /// The client closes after this number of bytes, whatever is unread.
    ClientCloses(u64),
    /// The server resets when it has this number of bytes.
    ServerAborts(u64),
    /// The server closes when it has this number of bytes, whatever is unread.
    ServerCloses(u64),
    /// Nobody listens at the upstream.
    Refused,
}

/// The behaviour of client and server that a connection's number encodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    number: u64,
    kind: Kind,
    up: u64,
    down: u64,
}

/// Bytes in front of a client's data: the connection's number.
const NUMBER: u64 = 8;

/// The bit of a number that makes a conversation longer: up to 200,000 bytes each way.
pub(crate) const LONG: u64 = 1 << 63;

/// Bytes that a slow reader takes at once, and its pause after them.
const SIP: usize = 1500;
const REST: Duration = Duration::from_millis(40);

/// Longest sleep of a server before it reads.
const SLEEP_MS: u64 = 5000;

impl Plan {
    pub(crate) fn of(number: u64) -> Self {
        let mut random = FaultRng::new(number ^ 0x0066_6f72_7761_7264);
        let r = &mut random;
        let bytes = |r: &mut FaultRng| match r.below(16) {
            0 => 0,
            2..=7 if number & LONG != 0 => r.below(200_000),
            1 => r.below(30_000),
            2..=7 => r.below(3000),
            _ => r.below(600),
        };
        let (up, down) = (bytes(r), bytes(r));
        let kind = match r.below(24) {
            0 => Kind::ClientAborts(r.below(NUMBER + up + 1)),
            1 => Kind::ServerAborts(r.below(up + 1)),
            2 => Kind::Refused,
            3 => Kind::ClientCloses(r.below(NUMBER + up + 1)),
            4 => Kind::ServerCloses(r.below(up + 1)),
            5 | 6 => Kind::SlowClient,
            7 | 8 => Kind::SlowServer,
            9 => Kind::SleepingServer,
            10..=12 => Kind::AnswerAfterEnd,
            13..=15 => Kind::EndAfterEnd,
            16..=19 => Kind::Echo,
            _ => Kind::AtOnce,
        };
        // Slow ones have something to be slow about.
        let (up, down) = match kind {
            Kind::SlowClient => (up, down + 20_000),
            Kind::SlowServer => (up + 20_000, down),
            Kind::Echo => (up, up),
            _ => (up, down),
        };
        Self { number, kind, up, down }
    }

    /// Whether every byte must arrive, and the end of both streams.
    pub(crate) fn is_polite(&self) -> bool {
        use Kind::*;
        let kind = self.kind;
        !matches!(
            kind,
            ClientAborts(_) | ClientCloses(_) | ServerAborts(_) | ServerCloses(_) | Refused
        )
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }

    /// Bytes to the server, and to the client.
    pub(crate) fn bytes(&self) -> u64 {
        NUMBER + self.up + self.down
    }

    /// The data of the client behind the number, or of the server.
    fn stream(&self, of_client: bool) -> Stream {
        let own = !of_client && self.kind != Kind::Echo;
        Stream(self.number.wrapping_mul(2) + u64::from(own))
    }

    /// Bytes that the client, or the server, sends from offset `at` on.
    fn sends(&self, by_client: bool, at: u64, most: usize) -> Vec<u8> {
        let most = |left: u64| left.min(most as u64) as usize;
        match by_client {
            true if at < NUMBER => self.number.to_be_bytes()[at as usize..].to_vec(),
            true => self.stream(true).bytes(at - NUMBER, most(NUMBER + self.up - at)),
            false => self.stream(false).bytes(at, most(self.down - at)),
        }
    }
}

/// The application that plays all clients, or all servers.
pub(crate) struct Peers {
    role: Role,
    talks: HashMap<TcpId, Talk>,
    /// Connections that pause, by the end of the pause.
    resting: BTreeMap<(Instant, u64), TcpId>,
    rests: u64,
    /// Polite conversations that came to their end.
    pub(crate) polite: usize,
    /// Conversations that were cut off, as they should be.
    pub(crate) cut: usize,
    pub(crate) wrong: Option<String>,
}

enum Role {
    Clients {
        to: SocketAddr,
        refused_at: SocketAddr,
        /// Start and number of each connection, the latest first.
        plans: Vec<(Instant, u64)>,
        /// No client sends before this time. `FAR`: until [`Peers::speak`].
        speak_at: Instant,
    },
    Servers {
        on: SocketAddr,
        backlog: usize,
        listener: Option<ListenerId>,
        closed: bool,
    },
}

struct Talk {
    /// A server learns the plan from the first bytes.
    plan: Option<Plan>,
    head: Vec<u8>,
    /// Received memory that an echo has still to send.
    pending: FragVec,
    slept: bool,
    sent: u64,
    got: u64,
    said_end: bool,
    seen_end: bool,
    resting: bool,
}

enum End {
    NotYet,
    Rest(Instant),
    Polite,
    Cut,
    /// As `Cut`, by a close in place of a reset.
    Closed,
}

impl Peers {
    pub(crate) fn clients(
        to: SocketAddr,
        refused_at: SocketAddr,
        mut plans: Vec<(Instant, u64)>,
        speak_at: Instant,
    ) -> Self {
        plans.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        Self::new(Role::Clients { to, refused_at, plans, speak_at })
    }

    pub(crate) fn servers(on: SocketAddr, backlog: usize) -> Self {
        Self::new(Role::Servers { on, backlog, listener: None, closed: false })
    }

    fn new(role: Role) -> Self {
        let (talks, resting) = (HashMap::new(), BTreeMap::new());
        Self { role, talks, resting, rests: 0, polite: 0, cut: 0, wrong: None }
    }

    /// Whether every conversation is over.
    pub(crate) fn is_done(&self) -> bool {
        let begun = match &self.role {
            Role::Clients { plans, .. } => plans.is_empty(),
            Role::Servers { .. } => true,
        };
        begun && self.talks.is_empty()
    }

    /// Clients that were to be quiet for ever begin to speak.
    pub(crate) fn speak(&mut self, now: Instant, stack: &mut Stack) {
        if let Role::Clients { speak_at, .. } = &mut self.role {
            *speak_at = now;
        }
        let ids: Vec<TcpId> = self.talks.keys().copied().collect();
        for id in ids {
            self.go_on(now, stack, id);
        }
    }

    /// Closes the listener of servers, and every connection that is left.
    pub(crate) fn shut_down(&mut self, now: Instant, stack: &mut Stack) {
        if let Role::Servers { listener, closed, .. } = &mut self.role {
            *closed = true;
            if let Some(id) = listener.take() {
                stack.close(now, id);
            }
        }
        self.resting.clear();
        for (id, _) in std::mem::take(&mut self.talks) {
            stack.close(now, id);
        }
    }

    pub(crate) fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        for event in events {
            let id = stack.as_tcp(event.socket).map(|tcp| tcp.id());
            id.into_iter().for_each(|id| self.go_on(now, stack, id));
        }
        while let Some(entry) = self.resting.first_entry()
            && entry.key().0 <= now
        {
            let id = entry.remove();
            if let Some(talk) = self.talks.get_mut(&id) {
                talk.resting = false;
            }
            self.go_on(now, stack, id);
        }
        let begin = |plan: Option<Plan>| Talk {
            plan,
            head: Vec::new(),
            pending: FragVec::new(),
            slept: false,
            sent: 0,
            got: 0,
            said_end: false,
            seen_end: false,
            resting: false,
        };
        match &mut self.role {
            Role::Clients { to, refused_at, plans, .. } => {
                while plans.last().is_some_and(|(at, _)| *at <= now) {
                    let Some((_, number)) = plans.pop() else { break };
                    let plan = Plan::of(number);
                    let to = if plan.is_refused() { *refused_at } else { *to };
                    match stack.connect(now, to, None) {
                        Ok(id) => drop(self.talks.insert(id, begin(Some(plan)))),
                        Err(error) => {
                            self.wrong.get_or_insert(format!("connect: {error}"));
                        }
                    }
                }
            }
            Role::Servers { closed: true, .. } => {}
            Role::Servers { on, backlog, listener, .. } => {
                let listener = match *listener {
                    Some(id) => id,
                    None => *listener.insert(stack.listen(*on, *backlog).expect("a port")),
                };
                let mut new = Vec::new();
                while let Ok((id, _)) = stack.accept(listener) {
                    self.talks.insert(id, begin(None));
                    new.push(id);
                }
                for id in new {
                    self.go_on(now, stack, id);
                }
            }
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let begins = match &self.role {
            Role::Clients { plans, .. } => plans.last().map(|(at, _)| *at),
            Role::Servers { .. } => None,
        };
        let rest = self.resting.first_key_value().map(|((at, _), _)| *at);
        [begins, rest].into_iter().flatten().min()
    }

    fn go_on(&mut self, now: Instant, stack: &mut Stack, id: TcpId) {
        let Some(talk) = self.talks.get_mut(&id).filter(|talk| !talk.resting) else { return };
        let (by_client, quiet_until) = match self.role {
            Role::Clients { speak_at, .. } => (true, speak_at),
            Role::Servers { .. } => (false, Instant::ZERO),
        };
        let end = if quiet_until == Instant::FAR {
            End::NotYet
        } else if now < quiet_until {
            End::Rest(quiet_until)
        } else {
            talk.go_on(now, stack, id, by_client).unwrap_or_else(|what| {
                self.wrong.get_or_insert(format!("{what}: {:?} {talk:?}", talk.plan));
                End::Cut
            })
        };
        match end {
            End::NotYet => {}
            End::Rest(until) => {
                talk.resting = true;
                self.rests += 1;
                self.resting.insert((until, self.rests), id);
            }
            End::Polite | End::Cut | End::Closed => {
                // A connection that was to be cut off may have ended before.
                let polite =
                    matches!(end, End::Polite) && talk.plan.is_some_and(|plan| plan.is_polite());
                *(if polite { &mut self.polite } else { &mut self.cut }) += 1;
                self.talks.remove(&id);
                if matches!(end, End::Cut) {
                    stack.abort(now, id);
                }
                stack.close(now, id);
            }
        }
    }
}

impl std::fmt::Debug for Talk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { sent, got, said_end, seen_end, .. } = self;
        write!(f, "sent {sent}, got {got}, said end {said_end}, seen end {seen_end}")
    }
}

impl Talk {
    fn go_on(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: TcpId,
        by_client: bool,
    ) -> Result<End, String> {
        loop {
            match self.step(now, stack, id, by_client) {
                Ok(Some(end)) => return Ok(end),
                Ok(None) => {}
                Err(Error::WouldBlock) => return Ok(End::NotYet),
                // A server may never have learnt the number.
                Err(error) => match &self.plan {
                    Some(plan) if plan.is_polite() => return Err(format!("{error}")),
                    _ if error == Error::InvalidInput => return Err("damaged".into()),
                    _ => return Ok(End::Cut),
                },
            }
        }
    }

    /// Returns `None` after a step, when another may be possible.
    fn step(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: TcpId,
        by_client: bool,
    ) -> Result<Option<End>, Error> {
        if let Some(error) = stack.take_error(id) {
            return Err(error);
        }
        if !stack.readiness(id)?.contains(Readiness::CONNECTED) {
            return Err(Error::WouldBlock);
        }
        if let Some(plan) = self.plan {
            match plan.kind {
                Kind::ClientAborts(n) if by_client && self.sent >= n => return Ok(Some(End::Cut)),
                Kind::ClientCloses(n) if by_client && self.sent >= n => {
                    return Ok(Some(End::Closed));
                }
                Kind::ServerAborts(n) if !by_client && self.got >= NUMBER + n => {
                    return Ok(Some(End::Cut));
                }
                Kind::ServerCloses(n) if !by_client && self.got >= NUMBER + n => {
                    return Ok(Some(End::Closed));
                }
                Kind::SleepingServer if !by_client && !self.slept => {
                    self.slept = true;
                    let sleep = Duration::from_millis(plan.number % SLEEP_MS);
                    return Ok(Some(End::Rest(now + sleep)));
                }
                _ => {}
            }
            let echoes = !by_client && plan.kind == Kind::Echo;
            if echoes && !self.pending.is_empty() {
                self.sent += stack.send(now, id, &mut self.pending)? as u64;
                return Ok(None);
            }
            let all = if by_client { NUMBER + plan.up } else { plan.down };
            let may_speak = by_client || plan.kind != Kind::AnswerAfterEnd || self.seen_end;
            while may_speak && !echoes && self.sent < all {
                let piece = Bytes::from(plan.sends(by_client, self.sent, 8000));
                let mut piece = FragVec::from_elem(Frag::from_bytes(piece), 1);
                match stack.send(now, id, &mut piece) {
                    Ok(n) => self.sent += n as u64,
                    Err(Error::WouldBlock) => break,
                    Err(error) => return Err(error),
                }
            }
            let may_end = !by_client || plan.kind != Kind::EndAfterEnd || self.seen_end;
            if may_speak && may_end && self.sent == all && !self.said_end {
                stack.shutdown(now, id, Shutdown::Write)?;
                self.said_end = true;
            }
            if self.said_end && self.seen_end {
                return Ok(Some(End::Polite));
            }
        }
        if self.seen_end {
            return Err(Error::WouldBlock);
        }
        self.take(now, stack, id, by_client)
    }

    fn take(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        id: TcpId,
        by_client: bool,
    ) -> Result<Option<End>, Error> {
        let is_slow = self.plan.is_some_and(|plan| match plan.kind {
            Kind::SlowClient => by_client,
            Kind::SlowServer => !by_client,
            _ => false,
        });
        let most = match self.plan {
            None => NUMBER as usize - self.head.len(),
            Some(_) if is_slow => SIP,
            Some(_) => usize::MAX,
        };
        let mut chunks = Vec::new();
        let n = stack.recv(now, id, pagewire_stack::Chunks { max: most, into: &mut chunks })?;
        if n == 0 {
            self.seen_end = true;
            let Some(plan) = self.plan else { return Err(Error::ConnectionReset) };
            let all = if by_client { plan.down } else { NUMBER + plan.up };
            return match self.got == all {
                true => Ok(None),
                false if plan.is_polite() => Err(Error::InvalidInput),
                false => Ok(Some(End::Cut)),
            };
        }
        let mut bytes = Vec::with_capacity(n);
        for frag in &chunks {
            frag.for_each_piece(&mut CopyLedger::new(), |piece| bytes.extend_from_slice(piece));
        }
        match self.plan {
            None => {
                self.head.extend(bytes);
                if let Some(number) = self.head.first_chunk() {
                    self.plan = Some(Plan::of(u64::from_be_bytes(*number)));
                }
            }
            Some(plan) => {
                let at = if by_client { self.got } else { self.got - NUMBER };
                plan.stream(!by_client).check(at, &bytes).map_err(|_| Error::InvalidInput)?;
                if !by_client && plan.kind == Kind::Echo {
                    self.pending.extend(chunks);
                }
            }
        }
        self.got += n as u64;
        Ok(is_slow.then(|| End::Rest(now + REST)))
    }
}

/// A node of the scenario.
pub(crate) enum Program {
    Peers(Box<Peers>),
    Proxy(Box<Forwarder>),
    /// The test acts on the stack itself.
    Manual,
}

impl App for Program {
    fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        match self {
            Self::Peers(peers) => peers.turn(now, stack, events),
            Self::Proxy(proxy) => proxy.turn(now, stack, events),
            Self::Manual => {}
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        match self {
            Self::Peers(peers) => peers.poll_timeout(),
            Self::Proxy(proxy) => proxy.poll_timeout(),
            Self::Manual => None,
        }
    }
}

impl Program {
    pub(crate) fn peers(&self) -> &Peers {
        match self {
            Self::Peers(peers) => peers,
            _ => panic!("not a peer"),
        }
    }

    pub(crate) fn proxy(&self) -> &Forwarder {
        match self {
            Self::Proxy(proxy) => proxy,
            _ => panic!("not the proxy"),
        }
    }

    pub(crate) fn peers_mut(&mut self) -> &mut Peers {
        match self {
            Self::Peers(peers) => peers,
            _ => panic!("not a peer"),
        }
    }

    pub(crate) fn proxy_mut(&mut self) -> &mut Forwarder {
        match self {
            Self::Proxy(proxy) => proxy,
            _ => panic!("not the proxy"),
        }
    }
}
