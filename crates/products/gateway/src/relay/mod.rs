//! The relay of one guest: a service inside the guest's host, which owns the kernel's sockets of the
//! guest's connections and moves payload between them and the stack.
//!
//! Read [`Relay`] here first; then `dial.rs` (from a SYN to a connection), `pair.rs` (a connection
//! and how it ends), `pump.rs` (its payload).
//!
//! All of it runs on the thread that drives the guest's host. The kernel's sockets are watched by
//! one epoll descriptor, edge-triggered: each is added once, after `connect`, and never changed. The
//! driver sleeps on that descriptor beside the device's.

mod dial;
mod dialler;
mod inward;
mod pair;
mod pump;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use pagewire::services::{Event, Instant, ListenerId, Readiness, SocketId, Stack, TcpId};
use rustix::event::epoll::EventFlags;
use slab::Slab;

use crate::ask::{Direction, How, Record};
use crate::context::Context;
use crate::counters::Counters;
use crate::denials::Denied;
use crate::dns::DnsCounters;
use crate::echo::Echo;
use crate::limits::{
    DELIVERIES_SOON, DELIVERY, DELIVERY_LOOK, SWEEP, SWEEP_DELIVERIES, TURN_BYTES,
};
use crate::udp::Udp;
use crate::watch::{Kind, Token};
use dial::{Dialling, Dials};
pub(crate) use dialler::Kernel;
pub use dialler::{Dial, Dialled};
use inward::Published;
use pair::{Flags, Pair, Step, reset_on_drop};

/// What a relay is told when it begins.
pub(crate) struct Setup {
    /// Takes the SYNs to every address.
    pub(crate) listener: ListenerId,
    pub(crate) dialler: Arc<dyn Dial>,
    /// Connections at once.
    pub(crate) connections: usize,
    /// Silence that ends a connection; `None`: none does.
    pub(crate) idle: Option<Duration>,
    /// The guest's own addresses, for clients of published ports.
    pub(crate) addresses: Vec<IpAddr>,
}

/// The relay of one guest.
pub(crate) struct Relay {
    context: Context,
    setup: Setup,
    udp: Udp,
    echo: Echo,
    /// Dials and pairs, each with a number that tells it from earlier ones at its place.
    flows: Slab<(u32, Flow)>,
    /// The places of the guest's connections.
    places: HashMap<SocketId, u32>,
    /// Pairs to be worked on; entries may be stale.
    listed: VecDeque<u32>,
    /// Connections that are reset once the guest has what was received.
    deliveries: Vec<Delivery>,
    deliver_at: Option<Instant>,
    dials: Dials,
    published: Slab<Published>,
    /// Clients may wait: when to look.
    accept_at: Option<Instant>,
    sweep_at: Option<Instant>,
}

/// A kernel's socket, and what it is for.
enum Flow {
    Dialling(Dialling),
    Pair(Pair),
    /// On its way from one to the other.
    Moving,
}

struct Delivery {
    tcp: TcpId,
    until: Instant,
}

impl Relay {
    pub(crate) fn new(context: Context, setup: Setup, udp: Udp, echo: Echo) -> Self {
        Self {
            context,
            setup,
            udp,
            echo,
            flows: Slab::new(),
            places: HashMap::new(),
            listed: VecDeque::new(),
            deliveries: Vec::new(),
            deliver_at: None,
            dials: Dials::new(),
            published: Slab::new(),
            accept_at: None,
            sweep_at: None,
        }
    }

    /// Readable when a socket of the kernel has something for [`turn`](Self::turn).
    pub(crate) fn epoll(&self) -> Arc<OwnedFd> {
        self.context.watch.epoll()
    }

    /// Looks at the kernel's sockets. Returns whether a turn is due.
    pub(crate) fn poll(&mut self) -> bool {
        self.context.watch.poll()
    }

    /// Handles events of the guest's connections and of the kernel's sockets, and what is due.
    pub(crate) fn turn(&mut self, now: Instant, stack: &mut Stack, events: &[Event]) {
        let mut names = self.context.dns.poll_timeout().is_some_and(|at| at <= now);
        for event in events {
            if event.socket == self.setup.listener {
                self.handle_requests(now, stack);
            } else if self.udp.owns(event.socket) {
                self.udp.note_guest();
            } else if self.echo.owns(event.socket) {
                self.echo.note_guest();
            } else if let Some(&at) = self.places.get(&event.socket) {
                self.handle_guest(at, event.readiness);
            } else {
                names = true;
            }
        }
        let news = self.context.watch.take();
        for &(token, ready) in &news {
            match token.kind {
                Kind::Flow => self.handle_host(now, stack, token, ready),
                Kind::Endpoint => self.udp.note_host(token, ready),
                Kind::Echo => self.echo.note_host(token, ready),
                Kind::Published => self.note_clients(token),
                Kind::Bell => names = true,
            }
        }
        self.context.watch.give_back(news);
        if names {
            self.context.dns.turn(now, stack, events);
            self.context.note_refused_names(now);
        }
        self.pump(now, stack);
        self.deliver(now, stack);
        self.sweep(now, stack);
        // Behind what makes room.
        self.accept(now, stack);
        self.admit(now, stack);
        self.context.descriptors = self.flows.len() + self.context.dns.descriptors();
        self.udp.turn(now, stack, &mut self.context);
        self.echo.turn(now, stack, &mut self.context);
        self.context.sum_up(now, false);
    }

    /// When [`turn`](Self::turn) is due without an event.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let listed = (!self.listed.is_empty()).then_some(Instant::ZERO);
        let datagrams = [self.udp.poll_timeout(), self.echo.poll_timeout()];
        let due = [listed, self.dials.poll_timeout(), self.deliver_at, self.sweep_at];
        let names = self.context.dns.poll_timeout();
        let denials = self.context.denials.poll_timeout();
        due.into_iter().chain([self.accept_at, names, denials]).chain(datagrams).flatten().min()
    }

    fn handle_guest(&mut self, at: u32, ready: Readiness) {
        let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize) else { return };
        if pair.note_guest(ready) {
            self.context.counters.opened += 1;
            if let Some(journal) = &self.context.journal {
                let (flow, ask, peer) = (pair.flow, pair.ask.clone(), pair.peer);
                journal.note(Record::Opened { flow, ask, peer });
            }
        }
        self.list(at);
    }

    fn handle_host(&mut self, now: Instant, stack: &mut Stack, token: Token, ready: EventFlags) {
        match self.flows.get_mut(token.at as usize) {
            // Of an earlier socket at this place.
            Some((serial, _)) if *serial != token.serial => {}
            Some((_, Flow::Dialling(_))) => self.handle_dialled(now, stack, token.at, ready),
            Some((_, Flow::Pair(pair))) => {
                pair.note_host(ready);
                self.list(token.at);
            }
            Some((_, Flow::Moving)) | None => {}
        }
    }

    /// Puts a pair on the list of those to be worked on.
    fn list(&mut self, at: u32) {
        if let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize)
            && !pair.flags.contains(Flags::LISTED)
        {
            pair.flags.insert(Flags::LISTED);
            self.listed.push_back(at);
        }
    }

    /// Works on each listed pair once, as far as the turn's bytes reach.
    fn pump(&mut self, now: Instant, stack: &mut Stack) {
        let before = self.context.counters.bytes_out + self.context.counters.bytes_in;
        for _ in 0..self.listed.len() {
            let Some(at) = self.listed.pop_front() else { break };
            let Some((_, Flow::Pair(pair))) = self.flows.get_mut(at as usize) else { continue };
            pair.flags.remove(Flags::LISTED);
            match pair.work(now, stack, &mut self.context.counters) {
                Step::Wait => {}
                Step::Again => self.list(at),
                step => self.end(now, stack, at, step),
            }
            let moved = self.context.counters.bytes_out + self.context.counters.bytes_in - before;
            if moved >= TURN_BYTES as u64 {
                break;
            }
        }
    }

    /// Removes a pair.
    fn end(&mut self, now: Instant, stack: &mut Stack, at: u32, step: Step) {
        let Some((_, Flow::Pair(pair))) = self.flows.try_remove(at as usize) else { return };
        let Pair { tcp, socket, flags, flow, ask, peer, bytes_out, bytes_in, began, .. } = pair;
        self.places.remove(&tcp.into());
        let how = match step {
            Step::Finished | Step::Wait | Step::Again => {
                self.context.counters.finished += 1;
                if flags.contains(Flags::LEFT_FIRST) && ask.direction == Direction::Out {
                    self.dials.note_left(now, peer);
                }
                stack.close(now, tcp);
                How::Finished
            }
            Step::ResetHost(how) => {
                self.note_end(how);
                // The kernel goes on to deliver a stream that the guest has ended.
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
        let duration = now.saturating_since(began);
        self.context.note(|| Record::Closed { flow, ask, bytes_out, bytes_in, duration, how });
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
        let look =
            if self.deliveries.len() > DELIVERIES_SOON { SWEEP_DELIVERIES } else { DELIVERY_LOOK };
        self.deliver_at = (!self.deliveries.is_empty()).then_some(now + look);
    }

    /// Looks at the age of all pairs.
    fn sweep(&mut self, now: Instant, stack: &mut Stack) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        let (mut over, mut pairs) = (Vec::new(), 0);
        for (at, (_, flow)) in &mut self.flows {
            if let Flow::Pair(pair) = flow {
                pairs += 1;
                if pair.look(now, stack, self.setup.idle) {
                    over.push(at as u32);
                }
            }
        }
        for at in over {
            self.end(now, stack, at, Step::ResetHost(How::Idle));
        }
        self.sweep_at = (pairs > 0).then_some(now + SWEEP);
    }

    /// Puts a flow into a place, and its socket under watch.
    fn insert(&mut self, flow: Flow) -> io::Result<u32> {
        let place = self.flows.vacant_entry();
        let at = place.key() as u32;
        let socket = match &flow {
            Flow::Dialling(dialling) => &dialling.socket,
            Flow::Pair(pair) => &pair.socket,
            Flow::Moving => return Err(io::ErrorKind::InvalidInput.into()),
        };
        let serial = self.context.watch.add_stream(socket, Kind::Flow, at)?;
        place.insert((serial, flow));
        Ok(at)
    }

    /// The pair at this place has begun.
    fn joined(&mut self, now: Instant, tcp: TcpId, at: u32) {
        self.places.insert(tcp.into(), at);
        self.sweep_at.get_or_insert(now + SWEEP);
        let pairs = self.flows.len() - self.dials.in_flight();
        self.context.counters.most_at_once = self.context.counters.most_at_once.max(pairs as u64);
    }

    /// Connections and dials at the moment.
    pub(crate) fn connections(&self) -> usize {
        self.flows.len() + self.deliveries.len()
    }

    /// Whether everything that the guest has sent on its connections was passed on, with the ends of
    /// its streams.
    pub(crate) fn is_finished(&self) -> bool {
        self.flows.iter().all(|(_, (_, flow))| match flow {
            Flow::Pair(pair) => pair.flags.contains(Flags::OUT_ENDED),
            Flow::Dialling(_) | Flow::Moving => false,
        }) && self.dials.are_none()
    }

    /// Whether this guest may have another descriptor.
    fn may_open(&self) -> bool {
        let connections = self.flows.len() + self.context.dns.descriptors();
        let used = connections + self.udp.len() + self.echo.len();
        used < self.context.share.of_one()
    }

    /// The counts of the guest's resolver.
    pub(crate) fn dns_counters(&self) -> DnsCounters {
        self.context.dns.counters()
    }

    pub(crate) fn counters(&self) -> Counters {
        let dns = self.context.dns.counters();
        let (names_denied, denials_full) = (dns.denied, dns.denials_full);
        Counters { names_denied, denials_full, ..self.context.counters }
    }

    /// What the guest was refused.
    pub(crate) fn denied(&self) -> Denied {
        self.context.denials.so_far()
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
        self.published.clear();
        (self.deliver_at, self.sweep_at, self.accept_at) = (None, None, None);
        self.context.dns.close(now, stack);
        self.udp.end_all(now, stack, &self.context);
        self.echo.end_all(now, stack, &self.context);
        self.context.note_refused_names(now);
        self.context.sum_up(now, true);
    }
}

fn reset(now: Instant, stack: &mut Stack, tcp: TcpId) {
    stack.abort(now, tcp);
    stack.close(now, tcp);
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
