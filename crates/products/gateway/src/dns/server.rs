//! [`DnsServer`]: the forwarder, which takes guests' queries, judges them, and answers them or passes them on.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, MutexGuard};
use std::{fmt, io};

use pagewire::services::{Error, Event, Instant, RecvFlags, SocketBind, Stack, UdpId};

use super::PORT;
use super::clients::{ClientId, Clients};
use super::memory::Memory;
use super::own::OwnNames;
use super::query::{self, AnsweredAddresses, BadQuery, Code, Query};
use super::resolvers::{Resolver, Resolvers};
use super::upstream::{FinishedQuery, PendingQuery, Transport, Upstream};
use crate::limits::{DNS_DENIED, DNS_IN_FLIGHT, DNS_OWN_TTL, DNS_QUERY};
use crate::policy::{Names, Reason, Resolved, Rules};
use crate::request::Name;
use crate::tally::{Item, Tally};

/// The answer about a name that a rule forbids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeniedName {
    /// A refusal (`REFUSED`): programs may ask another resolver.
    #[default]
    Refused,
    /// "There is no such name" (`NXDOMAIN`): programs give up.
    NxDomain,
}

/// Settings of a resolver for one guest.
#[derive(Clone, Debug, Default)]
pub struct DnsConfig {
    /// Addresses of the gateway on the guest's link, on whose port 53 the resolver answers.
    pub on: Vec<IpAddr>,
    /// The resolvers that it asks.
    pub resolver: Resolver,
    /// Names that it answers itself.
    pub own: OwnNames,
    /// Names that it does not ask for.
    pub rules: Arc<Rules>,
    /// Names that no rule is about are resolved, too.
    pub resolves_open: bool,
    /// The answer about names that rules forbid.
    pub denied: DeniedName,
}

pagewire::parts::counters! {
    /// Counts of a resolver, in queries unless the name says otherwise.
    #[derive(Copy)]
    pub struct DnsCounters {
        /// Queries of the guest.
        queries,
        /// Answered by a resolver.
        answered,
        /// Answered from the gateway's own names.
        own,
        /// Forbidden by a rule.
        denied,
        /// The part of the forbidden ones whose names have a denial for some ports, and whose addresses found no
        /// room.
        denials_full,
        /// Malformed, or not supported (zone transfers, updates).
        malformed,
        /// No resolver answered, or too many were on their way, or in a second.
        failed,
        /// Attempts with one resolver that failed or took too long.
        attempts_failed,
        /// Messages from resolvers that answer no question of ours.
        strange,
        /// TCP connections of the guest that were turned away.
        clients_refused,
        /// Answers that the guest's link or connection did not take.
        unsent,
    }
}

/// The receiver of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asker {
    Udp { socket: UdpId, from: SocketAddr },
    Tcp(ClientId),
}

/// A resolver for the guest of one stack: it forwards queries unchanged to the resolvers of this
/// machine, from sockets of the kernel, and remembers the names of addresses.
///
/// The server has no thread. [`turn`](Self::turn) takes the stack's events; [`wait_fd`](Self::wait_fd)
/// becomes readable when a resolver has answered; [`poll_timeout`](Self::poll_timeout) is when one
/// takes too long. So it is a [`Service`](pagewire::services::Service), or a part of one.
pub struct DnsServer {
    sockets: Vec<UdpId>,
    clients: Clients,
    upstream: Upstream<Asker>,
    resolvers: Resolvers,
    own: OwnNames,
    rules: Arc<Rules>,
    resolves_open: bool,
    denied: DeniedName,
    /// What the guest was told, by this resolver and by those of its other cores.
    memory: Memory,
    tally: Tally,
    /// Names that were refused, for whoever writes that down.
    refused: VecDeque<Option<Name>>,
    /// Number of refused names beyond [`DNS_DENIED`].
    more_refused: u64,
    counters: DnsCounters,
    buffer: Box<[u8]>,
    done: Vec<FinishedQuery<Asker>>,
}

impl fmt::Debug for DnsServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DnsServer").field("counters", &self.counters).finish_non_exhaustive()
    }
}

enum Decision {
    Answer(Vec<u8>),
    Forward(Query),
    Ignore,
}

impl DnsServer {
    /// Takes port 53 of the addresses, for UDP and TCP.
    ///
    /// # Errors
    /// If an address is not one of the stack's, or another socket has the port; the kernel's, if
    /// this process has too many descriptors.
    pub fn open(stack: &mut Stack, config: DnsConfig) -> io::Result<Self> {
        let memory = Memory::new(&config.resolver);
        Self::open_shared(stack, config, memory, Tally::lone())
    }

    /// As [`open`](Self::open), for a guest of several cores, each of which opens a resolver with the same memory.
    pub(crate) fn open_shared(
        stack: &mut Stack,
        config: DnsConfig,
        memory: Memory,
        tally: Tally,
    ) -> io::Result<Self> {
        let DnsConfig { on, resolver, own, rules, resolves_open, denied } = config;
        let failed = |error: Error| io::Error::from_raw_os_error(error.errno());
        let (mut sockets, mut clients) = (Vec::new(), Clients::new(tally.clone()));
        let options = SocketBind { every_shard: !tally.is_lone(), ..SocketBind::default() };
        for address in on {
            let local = SocketAddr::new(address, PORT);
            sockets.push(stack.bind_udp(local, options).map_err(failed)?);
            clients.listen(stack, local, options).map_err(failed)?;
        }
        Ok(Self {
            sockets,
            clients,
            upstream: Upstream::new()?,
            resolvers: Resolvers::new(&resolver),
            own,
            rules,
            resolves_open,
            denied,
            memory,
            tally,
            refused: VecDeque::new(),
            more_refused: 0,
            counters: DnsCounters::default(),
            buffer: vec![0; DNS_QUERY + 1].into(),
            done: Vec::new(),
        })
    }

    /// Handles events, answers of resolvers and deadlines.
    pub fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        self.collect(now, stack);
        for event in events {
            if let Some(socket) = self.sockets.iter().copied().find(|id| *id == event.socket) {
                self.take_datagrams(now, stack, socket);
            } else {
                self.clients.handle_event(now, stack, event.socket);
            }
        }
        while let Some((client, message)) = self.clients.poll_query(now, stack) {
            self.handle(now, stack, message, Asker::Tcp(client));
        }
        self.clients.handle_timeout(now, stack);
        self.counters.clients_refused = self.clients.refused;
        self.counters.attempts_failed = self.upstream.counts.failed;
        self.counters.strange = self.upstream.counts.strange;
    }

    /// When the next turn is due although nothing happens.
    pub fn poll_timeout(&self) -> Option<Instant> {
        let (upstream, clients) = (self.upstream.poll_timeout(), self.clients.poll_timeout());
        [upstream, clients].into_iter().flatten().min()
    }

    /// Readable when a turn is due because a resolver answered; the same for ever.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.upstream.wait_fd()
    }

    /// The names of addresses that the guest was given.
    pub fn names(&self) -> MutexGuard<'_, Names> {
        self.memory.names()
    }

    /// Whether names may be missing that denials have.
    pub(crate) fn is_broken(&self) -> bool {
        self.memory.is_broken()
    }

    /// The names of an address that the guest was given, the latest first.
    pub(crate) fn names_of(&self, now: Instant, address: IpAddr) -> Arc<[Name]> {
        match self.memory.visit(address) {
            Some(name) => [name].into(),
            None => self.names().of(now, address),
        }
    }

    /// The name that an address of the gateway's invention stands for, if it still stands for one; `None`: the address
    /// is no such one.
    pub(crate) fn invented(&self, address: IpAddr) -> Option<Option<Name>> {
        self.memory.stands_for(address)
    }

    /// The part of the names that the gateway itself gives this address: no stranger chose it.
    pub(crate) fn given(&self, names: &[Name], address: IpAddr) -> Arc<[Name]> {
        let invented = self.invented(address).flatten();
        let gives = |name: &&Name| {
            let is_own = self.own.get(name).is_some_and(|all| all.contains(&address));
            is_own || invented.as_ref() == Some(*name)
        };
        names.iter().filter(gives).cloned().collect()
    }

    /// Counts so far.
    pub fn counters(&self) -> DnsCounters {
        self.counters
    }

    /// Other rules, from now on.
    pub fn set_rules(&mut self, rules: Arc<Rules>) {
        self.rules = rules;
        let denied = self.names().named(|name| self.rules.denies_name(name));
        for (name, address) in denied {
            let addresses = vec![(address, DNS_OWN_TTL)];
            self.keep_denials(&Resolved { names: vec![name], addresses });
        }
    }

    /// Closes its sockets in the stack.
    pub fn close(&mut self, now: Instant, stack: &mut Stack) {
        for socket in self.sockets.drain(..) {
            stack.close(now, socket);
        }
        self.clients.close(now, stack);
    }

    /// Gives answers of resolvers to those who asked.
    fn collect(&mut self, now: Instant, stack: &mut Stack) {
        let mut done = std::mem::take(&mut self.done);
        self.upstream.poll(now, &mut self.resolvers, &mut done);
        for one in done.drain(..) {
            self.deliver(now, stack, one);
        }
        self.done = done;
    }

    fn take_datagrams(&mut self, now: Instant, stack: &mut Stack, socket: UdpId) {
        loop {
            let Ok(mut udp) = stack.udp(socket) else { return };
            let (len, from) = match udp.recv(&mut self.buffer[..], RecvFlags::empty()) {
                Ok(taken) => taken,
                Err(Error::WouldBlock) => return,
                // An error about an earlier answer: the guest's port is closed by now.
                Err(_) if udp.next_len() > 0 => continue,
                Err(_) => return,
            };
            let message = self.buffer.get(..len).unwrap_or_default().to_vec();
            self.handle(now, stack, message, Asker::Udp { socket, from });
        }
    }

    fn handle(&mut self, now: Instant, stack: &mut Stack, message: Vec<u8>, asker: Asker) {
        self.counters.queries += 1;
        match self.decide(now, &message) {
            Decision::Answer(reply) => self.reply(now, stack, asker, &reply),
            Decision::Ignore => {
                if let Asker::Tcp(client) = asker {
                    self.clients.turn_away(now, stack, client);
                }
            }
            Decision::Forward(query) => {
                let transport =
                    if matches!(asker, Asker::Tcp(_)) { Transport::Tcp } else { Transport::Udp };
                let asked = PendingQuery { asker, message, query, transport };
                let may = !self.tally.is_full(Item::Queries, self.upstream.len(), DNS_IN_FLIGHT)
                    && self.memory.may_ask(now);
                let done = match may {
                    true => self.upstream.ask(now, &mut self.resolvers, asked),
                    false => Some(FinishedQuery { asked, answer: None }),
                };
                if let Some(done) = done {
                    self.deliver(now, stack, done);
                }
            }
        }
    }

    fn decide(&mut self, now: Instant, message: &[u8]) -> Decision {
        let read = if message.len() > DNS_QUERY {
            Err(BadQuery::Answered(Code::FormErr))
        } else {
            Query::parse(message)
        };
        let query = match read {
            Ok(query) => query,
            Err(bad) => {
                self.counters.malformed += 1;
                return match bad {
                    BadQuery::Ignored => Decision::Ignore,
                    BadQuery::Answered(code) => Decision::Answer(query::refuse(message, code)),
                };
            }
        };
        if query.is_transfer() {
            self.counters.malformed += 1;
            return Decision::Answer(query.answer(message, Code::Refused));
        }
        if let Some(name) = &query.name
            && let Some(addresses) = self.own.get(name)
        {
            self.counters.own += 1;
            let addresses_with_time = addresses.iter().map(|addr| (*addr, DNS_OWN_TTL)).collect();
            let resolved = Resolved { names: vec![name.clone()], addresses: addresses_with_time };
            let answer = query.lead_to(message, addresses);
            self.names().learn(now, &resolved);
            if !self.keep_denials(&resolved) {
                return self.deny(&query, message);
            }
            return Decision::Answer(answer);
        }
        let may = match query.judged_name() {
            Some(name) => match self.rules.refusal_of_name(&name) {
                Some(Reason::NotPermitted) => self.resolves_open,
                refusal => refusal.is_none(),
            },
            // No rule can judge a name that it cannot read.
            None => !self.rules.has_names(),
        };
        match may {
            true => {}
            false if self.rules.is_audit() => self.note_denied(&query),
            false => return self.deny(&query, message),
        }
        if self.memory.invents() {
            let Some(name) = query.name.as_ref().filter(|name| name.is_host_name()) else {
                return self.deny(&query, message);
            };
            let address = query.asks_for_ipv4().then(|| self.memory.invent(name)).flatten();
            self.counters.own += 1;
            return Decision::Answer(query.lead_to(message, address.as_slice()));
        }
        self.resolvers.refresh(now);
        if self.resolvers.is_none() {
            self.note_denied(&query);
            return Decision::Answer(query.answer(message, Code::Refused));
        }
        Decision::Forward(query)
    }

    /// The answer about a name that a rule forbids.
    fn deny(&mut self, query: &Query, message: &[u8]) -> Decision {
        self.note_denied(query);
        let code = match self.denied {
            DeniedName::Refused => Code::Refused,
            DeniedName::NxDomain => Code::NxDomain,
        };
        Decision::Answer(query.answer(message, code))
    }

    fn note_denied(&mut self, query: &Query) {
        self.counters.denied += 1;
        if self.refused.len() < DNS_DENIED {
            self.refused.push_back(query.judged_name().map(Cow::into_owned));
        } else {
            self.more_refused += 1;
        }
    }

    /// The names that were refused since the last call, none for a query that has no readable one;
    /// and how many more there were.
    pub(crate) fn take_refused(&mut self) -> (VecDeque<Option<Name>>, u64) {
        (std::mem::take(&mut self.refused), std::mem::take(&mut self.more_refused))
    }

    /// Remembers for good where the names lead that denials have. `false`: there is no room.
    fn keep_denials(&mut self, resolved: &Resolved) -> bool {
        let (rules, mut names) = (&self.rules, self.memory.names());
        let kept = resolved.names.iter().filter(|name| rules.denies_name(name)).all(|name| {
            let addresses = resolved.addresses.iter().map(|(address, _)| *address);
            let stands_for = |other: &Name| rules.denies_as_much(other, name);
            names.deny(name, addresses, stands_for).is_ok()
        });
        drop(names);
        if !kept {
            if self.counters.denials_full == 0 {
                tracing::warn!(
                    "there is no room to remember where denied names lead: a name that a denial has \
                     for some ports only is not resolved any more unless its addresses are known"
                );
            }
            self.counters.denials_full += 1;
        }
        kept
    }

    /// Remembers the contents of an answer. `false`: the guest must not see it, because a denial has one of
    /// its names, or may have, and not all of its addresses can be remembered.
    fn learn(&mut self, now: Instant, query: &Query, answer: &[u8]) -> bool {
        let AnsweredAddresses { names, addresses, more_names, more_addresses } =
            query.resolved(answer);
        let denied = match more_names {
            true => self.rules.denies_names(),
            false => {
                let judged = query.judged_name();
                names.iter().chain(judged.as_deref()).any(|name| self.rules.denies_name(name))
            }
        };
        let resolved = Resolved { names, addresses };
        if !resolved.addresses.is_empty() {
            self.names().learn(now, &resolved);
        }
        !denied || (!more_names && !more_addresses && self.keep_denials(&resolved))
    }

    /// Notes how much of the guest's limits this resolver has.
    pub(crate) fn note_in_use(&self) {
        self.tally.note(Item::Queries, self.upstream.len());
        self.tally.note(Item::DnsClients, self.clients.len());
    }

    /// Queries that wait for resolvers, each with a descriptor.
    pub(crate) fn descriptors(&self) -> usize {
        self.upstream.len()
    }

    fn deliver(&mut self, now: Instant, stack: &mut Stack, done: FinishedQuery<Asker>) {
        let FinishedQuery { asked, answer } = done;
        let reply = match answer {
            Some(answer) => {
                self.counters.answered += 1;
                if self.learn(now, &asked.query, &answer) {
                    match self.resolves_open || self.rules.ask_for_names() {
                        true => asked.query.without_keys(&asked.message, answer),
                        false => answer,
                    }
                } else {
                    // Without hints for a service, the addresses of the name are still answered.
                    if !asked.query.is_about_service() {
                        self.note_denied(&asked.query);
                    }
                    asked.query.withhold(&asked.message, &answer)
                }
            }
            None => {
                self.counters.failed += 1;
                asked.query.answer(&asked.message, Code::ServFail)
            }
        };
        self.reply(now, stack, asked.asker, &reply);
    }

    fn reply(&mut self, now: Instant, stack: &mut Stack, asker: Asker, message: &[u8]) {
        let sent = match asker {
            Asker::Udp { socket, from } => stack
                .udp(socket)
                .and_then(|mut udp| udp.send(now, message, Some(from)))
                .map(drop)
                .is_ok(),
            Asker::Tcp(client) => self.clients.answer(now, stack, client, message),
        };
        if !sent {
            self.counters.unsent += 1;
        }
    }
}
