//! Exchanges with resolvers over UDP and TCP, by sockets of this machine's kernel.
//!
//! Each attempt has a socket of its own, connected to its resolver: nobody else's answer gets in,
//! its port is one that strangers have to guess (RFC 5452 section 9.2), and a resolver that is down
//! is known at once. All are watched by one epoll descriptor, which the host's driver waits for.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use pagewire::services::Instant;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{connect, recv, send, socket_with};
use slab::Slab;

use super::query::{self, Query};
use super::resolvers::Resolvers;
use crate::limits::{DNS_MESSAGE, DNS_TIME, DNS_TRY_TIME};

/// Events taken by one system call.
const EVENTS: usize = 64;

/// The transport of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Udp,
    Tcp,
}

/// A query on its way; `A` identifies the receiver of the answer.
#[derive(Debug)]
pub(super) struct PendingQuery<A> {
    pub(super) asker: A,
    /// The query as the guest sent it.
    pub(super) message: Vec<u8>,
    pub(super) query: Query,
    pub(super) transport: Transport,
}

/// The end of an exchange: the answer with the guest's identifier, or none.
#[derive(Debug)]
pub(super) struct FinishedQuery<A> {
    pub(super) asked: PendingQuery<A>,
    pub(super) answer: Option<Vec<u8>>,
}

/// Counts of exchanges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Attempts that failed or took too long.
    pub(super) failed: u64,
    /// Messages that answer no question of ours.
    pub(super) strange: u64,
}

#[derive(Debug)]
struct Exchange<A> {
    asked: PendingQuery<A>,
    /// The number of the current attempt, which tells events of an earlier one apart.
    number: u32,
    attempts: usize,
    give_up: Instant,
    current: Option<Attempt>,
}

#[derive(Debug)]
struct Attempt {
    socket: OwnedFd,
    resolver: SocketAddr,
    until: Instant,
    /// Bytes to be sent; with TCP the length comes first.
    sent: Vec<u8>,
    written: usize,
    /// Bytes received by TCP so far.
    read: Vec<u8>,
}

enum Progress {
    Waits,
    Answered(Vec<u8>),
    Failed,
}

pub(super) struct Upstream<A> {
    epoll: OwnedFd,
    exchanges: Slab<Exchange<A>>,
    next: u32,
    /// A lower bound of the first deadline.
    due: Instant,
    buffer: Box<[u8]>,
    pub(super) counts: Counts,
}

impl<A> Upstream<A> {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            exchanges: Slab::new(),
            next: 0,
            due: Instant::FAR,
            buffer: vec![0; DNS_MESSAGE].into(),
            counts: Counts::default(),
        })
    }

    /// Readable when [`poll`](Self::poll) has something to do.
    pub(super) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        (self.due < Instant::FAR).then_some(self.due)
    }

    pub(super) fn len(&self) -> usize {
        self.exchanges.len()
    }

    /// Sends a query. `None`: the query is on its way; a query that fails at once is returned.
    pub(super) fn ask(
        &mut self,
        now: Instant,
        resolvers: &mut Resolvers,
        asked: PendingQuery<A>,
    ) -> Option<FinishedQuery<A>> {
        let give_up = now + DNS_TIME;
        let exchange = Exchange { asked, number: 0, attempts: 0, give_up, current: None };
        let index = self.exchanges.insert(exchange);
        self.attempt(now, resolvers, index)
    }

    /// Makes the next attempt; after the last one, removes the exchange.
    fn attempt(
        &mut self,
        now: Instant,
        resolvers: &Resolvers,
        index: usize,
    ) -> Option<FinishedQuery<A>> {
        let exchange = self.exchanges.get_mut(index)?;
        exchange.current = None;
        while exchange.attempts < 2 * resolvers.len() && now < exchange.give_up {
            let resolver = resolvers.get(exchange.attempts);
            exchange.attempts += 1;
            self.next = self.next.wrapping_add(1);
            exchange.number = self.next;
            let token = u64::from(self.next) << 32 | index as u64;
            let Some(resolver) = resolver else { break };
            match Attempt::begin(&self.epoll, token, now, resolver, &exchange.asked) {
                Ok(attempt) => {
                    self.due = self.due.min(attempt.until);
                    exchange.current = Some(attempt);
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%resolver, %error, "a resolver cannot be asked");
                    self.counts.failed += 1;
                }
            }
        }
        Some(FinishedQuery { asked: self.exchanges.remove(index).asked, answer: None })
    }

    /// Takes the answers of resolvers, and gives up attempts that take too long.
    pub(super) fn poll(
        &mut self,
        now: Instant,
        resolvers: &mut Resolvers,
        done: &mut Vec<FinishedQuery<A>>,
    ) {
        if self.exchanges.is_empty() {
            self.due = Instant::FAR;
            return;
        }
        let nothing = Timespec { tv_sec: 0, tv_nsec: 0 };
        let empty =
            epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) };
        let mut events = [empty; EVENTS];
        loop {
            let found = match epoll::wait(&self.epoll, &mut events[..], Some(&nothing)) {
                Ok(found) => found,
                Err(Errno::INTR) => continue,
                Err(_) => 0,
            };
            for event in events.iter().take(found) {
                done.extend(self.ready(now, resolvers, event.data.u64()));
            }
            if found < EVENTS {
                break;
            }
        }
        if now >= self.due || self.exchanges.is_empty() {
            self.expire(now, resolvers, done);
        }
    }

    fn ready(
        &mut self,
        now: Instant,
        resolvers: &mut Resolvers,
        token: u64,
    ) -> Option<FinishedQuery<A>> {
        let index = (token & u64::from(u32::MAX)) as usize;
        let exchange = self.exchanges.get_mut(index)?;
        if exchange.number != (token >> 32) as u32 {
            return None;
        }
        let Exchange { asked, current, attempts, .. } = exchange;
        let attempt = current.as_mut()?;
        let progress = match asked.transport {
            Transport::Udp => attempt.udp(&asked.query, &mut self.buffer, &mut self.counts.strange),
            Transport::Tcp => attempt.tcp(&asked.query, &mut self.buffer, &mut self.counts.strange),
        };
        match progress {
            Progress::Waits => None,
            Progress::Failed => {
                self.counts.failed += 1;
                self.attempt(now, resolvers, index)
            }
            // Another resolver may have an answer, as with the C library's.
            Progress::Answered(answer) if query::has_failed(&answer) => {
                if *attempts < resolvers.len() {
                    self.counts.failed += 1;
                    return self.attempt(now, resolvers, index);
                }
                Some(self.finish(index, answer))
            }
            Progress::Answered(answer) => {
                resolvers.prefer(attempt.resolver);
                Some(self.finish(index, answer))
            }
        }
    }

    fn finish(&mut self, index: usize, mut answer: Vec<u8>) -> FinishedQuery<A> {
        let asked = self.exchanges.remove(index).asked;
        query::set_id(&mut answer, query::id(&asked.message));
        FinishedQuery { asked, answer: Some(answer) }
    }

    fn expire(&mut self, now: Instant, resolvers: &Resolvers, done: &mut Vec<FinishedQuery<A>>) {
        self.due = Instant::FAR;
        let indices: Vec<usize> = self.exchanges.iter().map(|(index, _)| index).collect();
        for index in indices {
            let current = self.exchanges.get(index).and_then(|exchange| exchange.current.as_ref());
            let Some(until) = current.map(|attempt| attempt.until) else { continue };
            if until > now {
                self.due = self.due.min(until);
                continue;
            }
            self.counts.failed += 1;
            // Sets `due`, if there is another attempt.
            done.extend(self.attempt(now, resolvers, index));
        }
    }
}

impl Attempt {
    fn begin<A>(
        epoll: &OwnedFd,
        token: u64,
        now: Instant,
        resolver: SocketAddr,
        asked: &PendingQuery<A>,
    ) -> io::Result<Self> {
        let family = if resolver.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let (kind, watched) = match asked.transport {
            Transport::Udp => (SocketType::DGRAM, epoll::EventFlags::IN),
            Transport::Tcp => (SocketType::STREAM, epoll::EventFlags::IN | epoll::EventFlags::OUT),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, kind, flags, None)?;
        match connect(&socket, &resolver) {
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let flags = watched | epoll::EventFlags::ET;
        epoll::add(epoll, &socket, epoll::EventData::new_u64(token), flags)?;
        let mut message = asked.message.clone();
        query::set_id(&mut message, rand::random());
        let until = now + DNS_TRY_TIME;
        let sent = match asked.transport {
            Transport::Udp => {
                send(&socket, &message, SendFlags::empty())?;
                message
            }
            Transport::Tcp => framed(&message),
        };
        Ok(Self { socket, resolver, until, sent, written: 0, read: Vec::new() })
    }

    /// Takes messages until one is the answer, or there are no more.
    fn udp(&mut self, query: &Query, buffer: &mut [u8], strange: &mut u64) -> Progress {
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, n)) => {
                    let message = buffer.get(..n).unwrap_or_default();
                    if query.is_answered_by(&self.sent, message) {
                        return Progress::Answered(message.to_vec());
                    }
                    *strange += 1;
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Progress::Waits,
                // The network reports that the resolver cannot be reached.
                Err(_) => return Progress::Failed,
            }
        }
    }

    fn tcp(&mut self, query: &Query, buffer: &mut [u8], strange: &mut u64) -> Progress {
        while let Some(rest) = self.sent.get(self.written..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(n) => self.written += n,
                Err(Errno::INTR) => {}
                // The socket is not connected yet, or has no room.
                Err(Errno::AGAIN | Errno::NOTCONN) => return Progress::Waits,
                Err(_) => return Progress::Failed,
            }
        }
        loop {
            match recv(&self.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, 0)) => return Progress::Failed,
                Ok((_, n)) => self.read.extend_from_slice(buffer.get(..n).unwrap_or_default()),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Progress::Waits,
                Err(_) => return Progress::Failed,
            }
            let Some(message) = unframed(&self.read) else { continue };
            let sent = self.sent.get(2..).unwrap_or_default();
            if query.is_answered_by(sent, message) {
                return Progress::Answered(message.to_vec());
            }
            *strange += 1;
            return Progress::Failed;
        }
    }
}

/// A message as TCP carries it: behind its length (RFC 1035 section 4.2.2).
pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    let len = u16::try_from(message.len()).unwrap_or(u16::MAX);
    let mut bytes = Vec::with_capacity(2 + message.len());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(message.get(..usize::from(len)).unwrap_or_default());
    bytes
}

/// The first message of a stream, once it is complete.
pub(super) fn unframed(stream: &[u8]) -> Option<&[u8]> {
    let (len, rest) = stream.split_first_chunk()?;
    rest.get(..usize::from(u16::from_be_bytes(*len)))
}
