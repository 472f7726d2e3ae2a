//! A [`Pair`]: a connection of the guest joined with a socket of the kernel, its readiness, and how it ends.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use pagewire::services::{Error, Instant, Readiness, Stack, TcpId};
use pagewire::{KeepAlive, SocketOption};
use rustix::event::epoll::EventFlags;
use rustix::net::sockopt;

use crate::context::{FlowRecord, Rates};
use crate::counters::Counters;
use crate::limits::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, SETTLED};
use crate::request::{Demand, How, Shown};
use crate::shown::{Gate, Next};

bitflags::bitflags! {
    /// The readiness of a pair's sides, and which of its parts have ended. Readiness stays until a call would block:
    /// both sides report changes only.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) struct Flags: u32 {
        /// The guest's connection may have data.
        const GUEST_IN = 1 << 0;
        /// The guest's connection may have room.
        const GUEST_OUT = 1 << 1;
        /// The guest's handshake is complete.
        const CONNECTED = 1 << 2;
        /// The guest's connection has failed, or ended before it was established.
        const GUEST_OVER = 1 << 3;
        /// The kernel's socket may have data.
        const HOST_IN = 1 << 4;
        /// The kernel's socket may have room.
        const HOST_OUT = 1 << 5;
        /// The far side's stream has ended, perhaps behind data.
        const HOST_ENDS = 1 << 6;
        /// The far side has sent an urgent byte, perhaps behind data.
        const HOST_URGENT = 1 << 7;
        /// The kernel's socket has failed; a call returns the error.
        const HOST_ERROR = 1 << 14;
        /// The kernel's socket takes no more data; the data that it has received is still passed on.
        const HOST_BROKEN = 1 << 8;
        /// The guest's stream was passed on with its end.
        const OUT_ENDED = 1 << 9;
        /// The far side's stream was passed on with its end.
        const IN_ENDED = 1 << 10;
        /// The next read of the guest's data skips the urgent byte.
        const PASS_MARK = 1 << 11;
        /// The pair is on the list of those to be worked on.
        const LISTED = 1 << 12;
        /// The guest's stream ended before the far side's: the kernel's socket has a minute to wait.
        const CLOSED_FIRST = 1 << 15;
        /// The pair has its keep-alive settings.
        const SETTLED = 1 << 13;
        /// The pair waits for the rate of its rule.
        const PACED = 1 << 16;
        /// The pair waits for bytes that tell the protocol.
        const AMBIGUOUS = 1 << 17;
    }
}

/// A connection of the guest and the kernel's socket that it is joined with.
pub(super) struct Pair {
    pub(super) tcp: TcpId,
    pub(super) socket: OwnedFd,
    pub(super) flags: Flags,
    /// An urgent byte that was read from the guest, and not taken by the kernel's socket.
    pub(super) urgent_out: Option<u8>,
    /// An urgent byte that was read from the kernel's socket, and not taken by the guest's connection.
    pub(super) urgent_in: Option<u8>,
    /// Holds the guest's bytes back until rules have judged the name that they show.
    pub(super) gate: Option<Box<Gate>>,
    pub(super) record: FlowRecord,
    /// The far side's address, as the kernel has it.
    pub(super) peer: SocketAddr,
    /// The number of the last turn in which bytes moved at the rate of a rule.
    pub(super) paced_turn: u64,
    /// The time when a byte was last moved.
    pub(super) active_at: Instant,
    /// The reason why the kernel's socket is broken.
    how: How,
}

/// The next step for a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    /// The pair has more data to move.
    Again,
    /// Rules are to judge what the guest's bytes show, and [`Pair::note_judged`] goes on.
    Judge(Shown),
    /// The guest's bytes show no name that permits the connection.
    Mismatch(Shown),
    Finished,
    /// The guest's side is gone: the kernel's socket is to be reset.
    ResetHost(How),
    /// The far side is gone: the guest is to be reset, once it has what was received.
    ResetGuest(How),
}

/// The side of a connection that is broken, and the reason.
#[derive(Debug)]
pub(super) enum Broken {
    Guest(Error),
    Host(io::Error),
}

impl From<Error> for Broken {
    fn from(error: Error) -> Self {
        Self::Guest(error)
    }
}

impl Pair {
    /// The connection of a flow, with this peer.
    pub(super) fn new(tcp: TcpId, socket: OwnedFd, record: FlowRecord, peer: SocketAddr) -> Self {
        let active_at = record.began;
        Self {
            tcp,
            socket,
            flags: Flags::HOST_OUT | Flags::GUEST_IN | Flags::GUEST_OUT,
            urgent_out: None,
            urgent_in: None,
            gate: None,
            paced_turn: 0,
            record,
            peer,
            active_at,
            how: How::PeerReset,
        }
    }

    /// Notes what the guest's connection is ready for. `true`: it is connected from now on.
    pub(super) fn note_guest(&mut self, ready: Readiness) -> bool {
        let is_new = ready.contains(Readiness::CONNECTED) && !self.flags.contains(Flags::CONNECTED);
        let closed = Readiness::READ_CLOSED | Readiness::WRITE_CLOSED;
        if ready.intersects(Readiness::FOR_READ | Readiness::URGENT) {
            self.flags.insert(Flags::GUEST_IN);
        }
        if ready.intersects(Readiness::WRITABLE | Readiness::WRITE_CLOSED) {
            self.flags.insert(Flags::GUEST_OUT);
        }
        if is_new {
            self.flags.insert(Flags::CONNECTED);
        }
        if ready.contains(Readiness::ERROR)
            || (ready.contains(closed) && !ready.contains(Readiness::CONNECTED))
        {
            self.flags.insert(Flags::GUEST_OVER);
        }
        is_new
    }

    pub(super) fn note_host(&mut self, ready: EventFlags) {
        let ends = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        if ready.intersects(EventFlags::IN | EventFlags::PRI | ends) {
            self.flags.insert(Flags::HOST_IN);
        }
        if ready.intersects(EventFlags::OUT | EventFlags::HUP | EventFlags::ERR) {
            self.flags.insert(Flags::HOST_OUT);
        }
        if ready.intersects(ends) {
            self.flags.insert(Flags::HOST_ENDS);
        }
        if ready.contains(EventFlags::PRI) {
            self.flags.insert(Flags::HOST_URGENT);
        }
        if ready.contains(EventFlags::ERR) {
            self.flags.insert(Flags::HOST_ERROR);
        }
    }

    /// Moves what can be moved: `outward` bytes at most from the guest, `inward` bytes at most to it.
    pub(super) fn work(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        (outward, inward): (usize, usize),
        counters: &mut Counters,
    ) -> Step {
        if self.flags.contains(Flags::GUEST_OVER) {
            return Step::ResetHost(self.guest_end(stack.take_error(self.tcp)));
        }
        if !self.flags.contains(Flags::CONNECTED) {
            return Step::Wait;
        }
        // After the end of the far side's stream no read would return the error.
        if self.flags.contains(Flags::HOST_ERROR | Flags::IN_ENDED)
            && let Ok(Err(error)) = sockopt::socket_error(&self.socket)
            && let Err(error) = self.note_broken(Broken::Host(error.into()))
        {
            return Step::ResetHost(self.guest_end(Some(error)));
        }
        let before = self.record.bytes();
        let out = self.pump_out(now, stack, outward, counters);
        let out = out.or_else(|broken| self.note_broken(broken));
        let pumped = out.and_then(|()| {
            let done = self.pump_in(now, stack, inward, counters);
            done.or_else(|broken| self.end_in(broken))
        });
        if self.record.bytes() > before {
            self.active_at = now;
        }
        let ended = Flags::OUT_ENDED | Flags::IN_ENDED;
        match pumped {
            Err(error) => Step::ResetHost(self.guest_end(Some(error))),
            Ok(()) if self.flags.contains(Flags::HOST_BROKEN | Flags::IN_ENDED) => {
                Step::ResetGuest(self.how)
            }
            Ok(()) if self.flags.contains(ended) => Step::Finished,
            Ok(()) => match self.ask_gate() {
                Some(step) => step,
                None if self.has_more() => Step::Again,
                None => Step::Wait,
            },
        }
    }

    /// Whether a pump stopped only because it had moved as much as it may.
    fn has_more(&self) -> bool {
        self.has_more_out() || self.has_more_in()
    }

    /// The same for the pump of the far side's data.
    pub(super) fn has_more_in(&self) -> bool {
        let inward = Flags::HOST_IN | Flags::GUEST_OUT;
        self.flags.contains(inward) && !self.flags.contains(Flags::IN_ENDED)
    }

    /// The same for the pump of the guest's data.
    pub(super) fn has_more_out(&self) -> bool {
        self.flags.contains(Flags::GUEST_IN | Flags::HOST_OUT)
            && !self.flags.contains(Flags::OUT_ENDED)
            && !self.awaits_answer()
    }

    /// The time when the rate of the pair's rule has room again for what there is to move; `None`: there is room.
    pub(super) fn paced_until(&self, now: Instant, rates: &Rates) -> Option<Instant> {
        let [out, inward] = rates.room(now, &self.record.ask)?;
        let ways = [(self.has_more_out(), out), (self.has_more_in(), inward)];
        let wanted = || ways.iter().filter(|(has_more, _)| *has_more).map(|(_, room)| *room);
        match wanted().any(|room| room.is_ok()) {
            true => None,
            false => wanted().filter_map(Result::err).min(),
        }
    }

    /// The step that the gate asks for, while bytes of the guest can still go out.
    fn ask_gate(&mut self) -> Option<Step> {
        if self.flags.contains(Flags::OUT_ENDED) {
            return None;
        }
        match self.gate.as_mut()?.next() {
            Next::Judge(shown) => Some(Step::Judge(shown)),
            Next::Refuse(shown) => Some(Step::Mismatch(shown)),
            _ => None,
        }
    }

    /// Ends the wait for more of a message, if the connection needs no name. `true`: there is work.
    pub(super) fn stop_waiting(&mut self) -> bool {
        self.gate.as_mut().is_some_and(|gate| gate.stop_waiting())
    }

    /// Whether the guest's bytes are held because they do not tell the protocol.
    pub(super) fn is_ambiguous(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.is_ambiguous())
    }

    /// Whether the guest's bytes wait for the far side's answer.
    pub(super) fn awaits_answer(&self) -> bool {
        self.gate.as_ref().is_some_and(|gate| gate.awaits_answer())
    }

    /// Notes whether rules permit what [`Step::Judge`] had.
    pub(super) fn note_judged(&mut self, permits: bool) {
        let Some(gate) = &mut self.gate else { return };
        if permits { gate.permit() } else { gate.refuse() }
    }

    /// Whether both sides are connected.
    pub(super) fn is_open(&self) -> bool {
        self.flags.contains(Flags::CONNECTED)
    }

    /// Changes the demand on what the guest's bytes show next. Returns whether there is a gate for that.
    pub(super) fn set_demand(&mut self, demand: Demand) -> bool {
        self.gate.iter_mut().for_each(|gate| gate.set_demand(demand));
        self.gate.is_some()
    }

    /// Notes that the kernel's socket takes no more. Data that it has received comes first, then the end.
    fn note_broken(&mut self, broken: Broken) -> Result<(), Error> {
        match broken {
            Broken::Guest(error) => return Err(error),
            Broken::Host(error) => {
                self.how = how_of(&error);
                // The socket itself is intact, and would never report an end.
                if matches!(self.how, How::Removed | How::Prohibited) {
                    self.flags.insert(Flags::IN_ENDED);
                }
            }
        }
        self.flags.insert(Flags::HOST_BROKEN | Flags::HOST_IN | Flags::OUT_ENDED);
        Ok(())
    }

    /// Notes that the kernel's socket has no more data, either.
    fn end_in(&mut self, broken: Broken) -> Result<(), Error> {
        if !self.flags.contains(Flags::HOST_BROKEN) {
            self.note_broken(broken)?;
        } else if let Broken::Guest(error) = broken {
            return Err(error);
        }
        self.flags.insert(Flags::IN_ENDED);
        Ok(())
    }

    /// The reason why the guest's side ended.
    fn guest_end(&self, error: Option<Error>) -> How {
        match error {
            Some(Error::ConnectionRefused) => How::Refused,
            Some(Error::TimedOut) => How::GuestTimedOut,
            Some(Error::HostUnreachable) => How::HostUnreachable,
            Some(Error::NetworkDown | Error::NoSuchSocket) => How::Removed,
            None if !self.flags.contains(Flags::CONNECTED) => How::GaveUp,
            _ => How::GuestReset,
        }
    }

    /// Gives an old connection its keep-alive settings. `true`: the pair has been idle for too long.
    pub(super) fn check_age(
        &mut self,
        now: Instant,
        stack: &mut Stack,
        idle: Option<Duration>,
    ) -> bool {
        if !self.flags.contains(Flags::SETTLED) && self.record.began + SETTLED <= now {
            self.flags.insert(Flags::SETTLED);
            self.settle(now, stack);
        }
        idle.is_some_and(|limit| self.active_at + limit <= now)
    }

    fn settle(&self, now: Instant, stack: &mut Stack) {
        let keepalive = KeepAlive {
            idle: KEEPALIVE_IDLE,
            interval: KEEPALIVE_INTERVAL,
            probes: KEEPALIVE_PROBES,
        };
        if let Ok(mut tcp) = stack.tcp(self.tcp) {
            let _ = tcp.set_option(now, SocketOption::KeepAlive(Some(keepalive)));
        }
        // A socket that is not TCP's has no such options.
        let socket = &self.socket;
        let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE);
        let _ = sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL);
        let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES.into());
        let _ = sockopt::set_socket_keepalive(socket, true);
    }

    /// Whether the guest has acknowledged all data that was received for it.
    pub(super) fn is_delivered(tcp: TcpId, stack: &mut Stack) -> bool {
        stack.tcp(tcp).map_or(true, |tcp| tcp.queued_send().0 == 0)
    }
}

/// Has the kernel reset the far side when the socket is dropped, which is the next step.
pub(super) fn reset_on_drop(socket: &OwnedFd) {
    // A socket that is not TCP's cannot be reset, only closed.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

fn how_of(error: &io::Error) -> How {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::TimedOut => How::PeerTimedOut,
        Kind::HostUnreachable => How::HostUnreachable,
        Kind::NetworkUnreachable | Kind::NetworkDown => How::NetUnreachable,
        Kind::PermissionDenied => How::Prohibited,
        _ if error.raw_os_error() == Some(libc::EFAULT) => How::Removed,
        _ => How::PeerReset,
    }
}
