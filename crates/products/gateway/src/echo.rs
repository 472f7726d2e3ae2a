//! Echo requests ("ping"): each identifier of the guest has an unprivileged ping socket of the
//! kernel, which needs a group within `net.ipv4.ping_group_range`.
//!
//! The stack and the kernel cut a message differently:
//!
//! ```text
//!   | type | code | checksum | identifier | sequence number | data ...
//!   |<------ the kernel's socket: all of it ------------------->
//!                                         |<-- the stack's --->   identifier: a port
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};

use pagewire::memory::CopyReason;
use pagewire::services::{
    Error, Flow, Instant, Message, RecvFlags, SocketId, Stack, UdpId, UdpMessage, Unreachable,
};
use pagewire::udp::UdpTarget;
use rustix::event::epoll::EventFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use slab::Slab;

use crate::asking::{Held, QuestionId};
use crate::context::{Context, Decide, FlowRecord, Judged, JudgedFlow};
use crate::epoll::{SourceKind, Token};
use crate::limits::{ECHO_IDLE, ECHO_PEERS, ECHOES, UDP_BURST, UDP_LONGEST, UDP_SWEEP};
use crate::request::{FlowState, How, Protocol};
use crate::sys::datagrams::{self, Sending};
use crate::tally::{Item, Tally};
use crate::udp::errors;

/// Bytes before the sequence number.
const HEAD: usize = 6;

/// Types of echo requests (RFC 792, RFC 4443).
const REQUEST_V4: u8 = 8;
const REQUEST_V6: u8 = 128;

/// The guest's echo requests.
pub(crate) struct Echo {
    /// The guest-side socket, which takes echo requests to every address.
    socket: UdpId,
    pingers: Slab<Pinger>,
    by_guest: HashMap<SocketAddr, u32>,
    readable: bool,
    /// Kernel sockets that may have replies or errors.
    listed: Vec<u32>,
    sweep_at: Option<Instant>,
    /// Requests of flows that a policy is asked about.
    held: Held,
}

/// The state of one identifier of the guest.
struct Pinger {
    /// The guest's address, with the identifier as the port.
    guest: SocketAddr,
    socket: OwnedFd,
    serial: u32,
    /// Destinations, the latest last.
    peers: Vec<Peer>,
    active_at: Instant,
}

struct Peer {
    record: FlowRecord,
    at: IpAddr,
}

impl Echo {
    pub(crate) fn new(socket: UdpId, tally: &Tally) -> Self {
        let (pingers, by_guest) = (Slab::new(), HashMap::new());
        let (listed, held) = (Vec::new(), Held::new(tally));
        Self { socket, pingers, by_guest, readable: false, listed, sweep_at: None, held }
    }

    /// Whether events of this socket are for [`note_guest`](Self::note_guest).
    pub(crate) fn owns(&self, socket: SocketId) -> bool {
        self.socket == socket
    }

    /// Notes that the guest has sent a request.
    pub(crate) fn note_guest(&mut self) {
        self.readable = true;
    }

    /// Notes that a kernel socket is readable.
    pub(crate) fn note_host(&mut self, token: Token, _: EventFlags) {
        let known = self.pingers.get(token.at as usize).is_some_and(|p| p.serial == token.serial);
        if known && !self.listed.contains(&token.at) {
            self.listed.push(token.at);
        }
    }

    /// The time when [`turn`](Self::turn) is due without an event.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let now = (self.readable || !self.listed.is_empty()).then_some(Instant::ZERO);
        now.or(self.sweep_at)
    }

    /// Passes requests and replies on, a burst at most.
    pub(crate) fn turn(&mut self, now: Instant, stack: &mut Stack, context: &mut Context) {
        for _ in 0..UDP_BURST {
            if !self.readable {
                break;
            }
            let Ok(mut socket) = stack.udp(self.socket) else { return self.readable = false };
            match socket.recv(Message(UDP_LONGEST), RecvFlags::empty()) {
                Ok(message) => self.send(now, stack, context, &message),
                Err(Error::WouldBlock | Error::NetworkDown) => self.readable = false,
                Err(_) => {}
            }
        }
        for at in std::mem::take(&mut self.listed) {
            self.receive(now, stack, context, at);
        }
        self.sweep(now, context);
    }

    fn send(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        context: &mut Context,
        message: &UdpMessage,
    ) {
        let seq = sequence_of(message);
        let flow = Flow::echo(message.from, message.to.ip(), seq);
        if message.hop_limit <= 1 {
            return errors::send_error(now, stack, &flow, (Unreachable::TimeExceeded, None));
        }
        let (at, to) = match self.route(now, context, message) {
            Ok(Some(found)) => found,
            Ok(None) => {
                let asked = SocketAddr::new(message.to.ip(), 0);
                let is_held = self.held.add(message.from, asked, message);
                context.counters.datagrams_lost += u64::from(!is_held);
                return;
            }
            Err(None) => return,
            Err(Some(why)) => return errors::send_error(now, stack, &flow, (why, None)),
        };
        let Some(pinger) = self.pingers.get_mut(at as usize) else { return };
        let mut head = [0; HEAD];
        head[0] = if to.is_ipv4() { REQUEST_V4 } else { REQUEST_V6 };
        let to = SocketAddr::new(to, 0);
        let how = Sending { to, segment: None, hop_limit: Some(message.hop_limit - 1) };
        let send = || datagrams::send(pinger.socket.as_fd(), &head, message.payload.iter(), how);
        // A pending error of an earlier request fails one call.
        match send().or_else(|_| send()) {
            Ok(n) => {
                pinger.active_at = now;
                if let Some(peer) = pinger.peers.iter_mut().rfind(|p| p.at == to.ip()) {
                    peer.record.bytes_out += n as u64;
                }
                context.counters.echoes_out += 1;
                stack.ledger_mut().note(CopyReason::SocketTx, n.saturating_sub(HEAD));
            }
            Err(error) => {
                context.counters.datagrams_lost += 1;
                if let Some(why) = errors::unreachable_of(&error, to.is_ipv6()) {
                    errors::send_error(now, stack, &flow, (why, None));
                }
                // The error queue has details: the MTU of this path.
                self.pass_errors(now, stack, context, at);
            }
        }
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
            let route = match context.judge_waiting(now, waiting.flow, waiting.ask) {
                Judged::Flow(judged) => self.admit(now, context, judged).map(drop),
                Judged::Waits(waiting) => {
                    self.held.wait(waiting);
                    Ok(())
                }
            };
            for message in &messages {
                let flow = Flow::echo(message.from, message.to.ip(), sequence_of(message));
                match route {
                    Ok(()) => self.send(now, stack, context, message),
                    Err(None) => {}
                    Err(Some(why)) => errors::send_error(now, stack, &flow, (why, None)),
                }
            }
        }
    }

    /// The slot of a request's identifier, and the destination; `None`: the flow waits for a policy. Or the ICMP error
    /// for a guest that may not send.
    fn route(
        &mut self,
        now: Instant,
        context: &mut Context,
        message: &UdpMessage,
    ) -> Result<Option<(u32, IpAddr)>, Option<Unreachable>> {
        let known = self.by_guest.get(&message.from).copied();
        let asked = SocketAddr::new(message.to.ip(), 0);
        if let Some(at) = known
            && let Some(pinger) = self.pingers.get(at as usize)
            && let Some(peer) = pinger.peers.iter().rfind(|peer| peer.record.ask.to == asked)
        {
            return Ok(Some((at, peer.at)));
        }
        if self.held.has(message.from, asked) {
            return Ok(None);
        }
        // The rate is checked before the verdict, which may be written down.
        if !context.may_add_destination(now) {
            return Err(None);
        }
        match context.judge(now, Protocol::Echo, message.from, asked) {
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

    /// Adds the destination of a judged flow to those of its identifier. Returns the identifier's slot, and the
    /// destination; or the ICMP error for a guest that may not send.
    fn admit(
        &mut self,
        now: Instant,
        context: &mut Context,
        judged: JudgedFlow,
    ) -> Result<(u32, IpAddr), Option<Unreachable>> {
        let from = judged.ask.from;
        let to = judged.to.map_err(errors::unreachable_of_denial)?.ip();
        if to.is_ipv4() != from.is_ipv4() {
            return Err(Some(Unreachable::Net));
        }
        context.count_destination(now);
        let at = match self.by_guest.get(&from).copied() {
            Some(at) => at,
            None => self.open(now, context, from).ok_or(None)?,
        };
        let Some(pinger) = self.pingers.get_mut(at as usize) else { return Err(None) };
        if pinger.peers.len() >= ECHO_PEERS {
            pinger.peers.remove(0).record.close(now, How::Finished, context);
        }
        let JudgedFlow { flow, ask, .. } = judged;
        pinger.peers.push(Peer { record: FlowRecord::new(now, flow, ask), at: to });
        Ok((at, to))
    }

    fn open(&mut self, now: Instant, context: &mut Context, guest: SocketAddr) -> Option<u32> {
        let (own, tally) = (self.pingers.len(), &context.tally);
        let descriptors = own + context.descriptors + tally.others(Item::Descriptors);
        let is_full = descriptors >= context.share.per_guest();
        if is_full || tally.is_full(Item::Echoes, own, ECHOES) {
            context.counters.endpoints_refused += 1;
            return None;
        }
        let mut open = || -> io::Result<u32> {
            let (family, protocol) = match guest {
                SocketAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
                SocketAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
            };
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(family, SocketType::DGRAM, flags, Some(protocol))?;
            context.source.bind_datagrams(&socket, guest.is_ipv4())?;
            datagrams::queue_errors(socket.as_fd(), guest.is_ipv6())?;
            let slot = self.pingers.vacant_entry();
            let at = slot.key() as u32;
            let serial = context.watch.add_source(&socket, SourceKind::Echo, at)?;
            slot.insert(Pinger { guest, socket, serial, peers: Vec::new(), active_at: now });
            Ok(at)
        };
        let Ok(at) = open() else {
            // Mostly the process's group is outside of `net.ipv4.ping_group_range`.
            context.counters.echoes_refused += 1;
            return None;
        };
        self.by_guest.insert(guest, at);
        self.sweep_at.get_or_insert(now + UDP_SWEEP);
        context.tally.add(Item::Descriptors);
        Some(at)
    }

    fn receive(&mut self, now: Instant, stack: &mut Stack, context: &mut Context, at: u32) {
        self.pass_errors(now, stack, context, at);
        let Some(pinger) = self.pingers.get_mut(at as usize) else { return };
        for _ in 0..UDP_BURST {
            let (mut head, mut got) = ([0; HEAD], None);
            let Ok(mut socket) = stack.udp(self.socket) else { return };
            let filled = socket.fill(now, UDP_LONGEST, |spare| {
                let result = datagrams::receive(pinger.socket.as_fd(), &mut head, spare);
                let received = got.insert(result).as_ref().ok().filter(|r| !r.cut)?;
                let peer = pinger.peers.iter_mut().rfind(|p| p.at == received.from.ip())?;
                peer.record.bytes_in += received.len as u64;
                let source = Some(SocketAddr::new(peer.record.ask.to.ip(), pinger.guest.port()));
                let remote = Some(pinger.guest);
                Some((received.len, UdpTarget { remote, source, ..UdpTarget::default() }))
            });
            match (got, filled) {
                (Some(Ok(received)), Ok(_)) => {
                    pinger.active_at = now;
                    context.counters.echoes_in += 1;
                    stack.ledger_mut().note(CopyReason::SocketRx, received.len);
                }
                (Some(Ok(_)), Err(_)) => context.counters.datagrams_lost += 1,
                (Some(Err(error)), _) if error.kind() == io::ErrorKind::Interrupted => {}
                // No reply is there, or no page is free: a program that pings tries again.
                _ => return,
            }
        }
        self.listed.push(at);
    }

    fn pass_errors(&self, now: Instant, stack: &mut Stack, context: &mut Context, at: u32) {
        let Some(pinger) = self.pingers.get(at as usize) else { return };
        for _ in 0..UDP_BURST {
            let Some(reported) = datagrams::take_error(pinger.socket.as_fd()) else { return };
            let to = reported.to.ip();
            let Some(peer) = pinger.peers.iter().rfind(|peer| peer.at == to) else { continue };
            let asked = peer.record.ask.to.ip();
            let Some(why) = errors::icmp_of(&reported, asked) else { continue };
            // The packet's own header, as this machine sent it.
            let (quoted, n) = reported.quoted;
            let [.., high, low] = quoted;
            let seq = if n == quoted.len() { u16::from_be_bytes([high, low]) } else { 0 };
            context.counters.errors_in += 1;
            errors::send_error(now, stack, &Flow::echo(pinger.guest, asked, seq), why);
        }
    }

    fn sweep(&mut self, now: Instant, context: &Context) {
        if self.sweep_at.is_none_or(|at| at > now) {
            return;
        }
        let over = |pinger: &Pinger| now.saturating_since(pinger.active_at) >= ECHO_IDLE;
        let those = self.pingers.iter().filter(|(_, pinger)| over(pinger)).map(|(at, _)| at);
        let those: Vec<usize> = those.collect();
        those.into_iter().for_each(|at| self.close(now, context, at, How::Finished));
        self.sweep_at = (!self.pingers.is_empty()).then_some(now + UDP_SWEEP);
    }

    fn close(&mut self, now: Instant, context: &Context, at: usize, how: How) {
        let Some(pinger) = self.pingers.try_remove(at) else { return };
        self.by_guest.remove(&pinger.guest);
        pinger.peers.into_iter().for_each(|peer| peer.record.close(now, how, context));
    }

    /// The flows.
    pub(crate) fn flows(&self, now: Instant) -> impl Iterator<Item = FlowState> {
        let peers = self.pingers.iter().flat_map(|(_, pinger)| &pinger.peers);
        peers.map(move |peer| peer.record.state(now, SocketAddr::new(peer.at, 0), true))
    }

    /// Ends the flows that `decide` ends. Returns their number.
    pub(crate) fn end_flows(
        &mut self,
        now: Instant,
        context: &mut Context,
        decide: &mut Decide<'_>,
    ) -> usize {
        let mut ended = 0;
        for (_, pinger) in &mut self.pingers {
            for mut peer in std::mem::take(&mut pinger.peers) {
                match decide(context, &mut peer.record, SocketAddr::new(peer.at, 0)) {
                    Err(how) => {
                        ended += 1;
                        peer.record.close(now, how, context);
                    }
                    Ok(_) => pinger.peers.push(peer),
                }
            }
        }
        ended
    }

    pub(crate) fn len(&self) -> usize {
        self.pingers.len()
    }

    /// Notes how much this relay has of the guest's limits.
    pub(crate) fn note_in_use(&self, tally: &Tally) {
        tally.note(Item::Echoes, self.pingers.len());
    }

    /// Closes everything: the guest is removed.
    pub(crate) fn end_all(&mut self, now: Instant, stack: &mut Stack, context: &Context) {
        let all: Vec<usize> = self.pingers.iter().map(|(at, _)| at).collect();
        all.into_iter().for_each(|at| self.close(now, context, at, How::Removed));
        self.held.clear();
        stack.close(now, self.socket);
        (self.readable, self.sweep_at) = (false, None);
    }
}

/// The sequence number at the beginning of the payload, for an ICMP error that quotes it.
fn sequence_of(message: &UdpMessage) -> u16 {
    let mut bytes = [0; 2];
    let mut ledger = pagewire::memory::CopyLedger::new();
    let reason = CopyReason::Icmp;
    if let Some(first) = message.payload.first() {
        first.copy_to(0, &mut bytes, &mut ledger, reason);
    }
    u16::from_be_bytes(bytes)
}
