//! A socket: its state, its readiness, how it is disconnected and closed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pagewire_stack::{
    ListenerId, PortReservation, Readiness, SocketId, SocketOption, Stack, TcpId, UdpId, option,
};

use crate::Errno;
use crate::address::Domain;
use crate::backend::Backend;
use crate::events::Events;
use crate::options::Options;
use crate::runtime::Runtime;
use crate::watch::Watch;

#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) domain: Domain,
    pub(crate) kind: Kind,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Stream,
    Datagram,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) stage: Stage,
    /// Where `bind` put it.
    pub(crate) bound: Option<SocketAddr>,
    /// The listener's address, which an accepted connection keeps when it is dissolved.
    pub(crate) address: Option<IpAddr>,
    /// The reservation of a stream's port.
    pub(crate) reservation: Option<PortReservation>,
    pub(crate) options: Options,
    /// Directions that are shut down without a connection: reading, writing.
    pub(crate) shut: [bool; 2],
    /// The error that the next call reports: the connection was dissolved from this side.
    pub(crate) error: Option<Errno>,
}

/// Where a socket is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// No peer, and not listening.
    Closed,
    Listening(ListenerId),
    /// `connect` began, and has not reported the outcome.
    Connecting(TcpId),
    Connected(TcpId),
    Datagram(UdpId),
}

impl State {
    /// The address that it is bound to, unless that is any address.
    pub(crate) fn bound_address(&self) -> Option<IpAddr> {
        self.bound.map(|bound| bound.ip()).filter(|ip| !ip.is_unspecified())
    }
}

impl Stage {
    pub(crate) fn id(self) -> Option<SocketId> {
        match self {
            Self::Closed => None,
            Self::Listening(id) => Some(id.into()),
            Self::Connecting(id) | Self::Connected(id) => Some(id.into()),
            Self::Datagram(id) => Some(id.into()),
        }
    }

    pub(crate) fn datagram(self) -> Option<UdpId> {
        match self {
            Self::Datagram(id) => Some(id),
            _ => None,
        }
    }

    pub(crate) fn connection(self) -> Option<TcpId> {
        match self {
            Self::Connecting(id) | Self::Connected(id) => Some(id),
            _ => None,
        }
    }
}

impl Socket {
    pub(crate) fn new(domain: Domain, kind: Kind, stage: Stage, options: Options) -> Self {
        let shut = [false; 2];
        let state = State {
            stage,
            bound: None,
            address: None,
            reservation: None,
            options,
            shut,
            error: None,
        };
        Self { domain, kind, state: Mutex::new(state) }
    }

    /// Locked over calls into the stack that must not mix with others; never while a thread waits.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stage(&self) -> Stage {
        self.lock().stage
    }

    /// The socket's address before it is bound: any port of any address, or of the one that it keeps.
    pub(crate) fn unbound(&self, state: &State) -> SocketAddr {
        let any = match self.domain {
            Domain::Inet => Ipv4Addr::UNSPECIFIED.into(),
            Domain::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        };
        SocketAddr::new(state.address.unwrap_or(any), 0)
    }

    pub(crate) fn events<B: Backend>(&self, runtime: &Runtime<B>) -> Events {
        let state = self.lock();
        let ready = match state.stage.id() {
            Some(id) => runtime.with(|stack, _| stack.readiness(id)).unwrap_or_default(),
            // A datagram socket that is not bound yet.
            None => Readiness::WRITABLE,
        };
        let mut events = match (self.kind, state.stage) {
            (_, Stage::Listening(_)) => Events::READ.when(ready.contains(Readiness::READABLE)),
            (Kind::Stream, Stage::Connecting(_) | Stage::Connected(_)) => connection_events(ready),
            // A stream without a peer: there is room to send, and the line is down.
            (Kind::Stream, _) => {
                let read = (Events::READ | Events::RDHUP).when(state.shut[0]);
                Events::HUP | Events::WRITE | read
            }
            (Kind::Datagram, _) => datagram_events(ready, state.shut),
        };
        events |= Events::ERR.when(state.error.is_some());
        events
    }

    /// Goes back to a socket without a peer. What was under way is reset, and as in Linux
    /// (`tcp_disconnect`), the next call reports it.
    pub(crate) fn disconnect<B: Backend>(&self, runtime: &Runtime<B>, state: &mut State) {
        state.error = None;
        if let Some(id) = state.stage.id() {
            let cut = runtime.with(|stack, now| {
                let name = stack.as_tcp(id).map_or("", |tcp| tcp.info().state.name());
                if matches!(state.stage, Stage::Connected(_)) {
                    stack.abort(now, id);
                }
                RESET_WHEN_CUT.contains(&name) && state.stage.connection().is_some()
            });
            runtime.backend.close(id);
            state.error = cut.then_some(Errno::CONNRESET);
        }
        // A port that was chosen for the connection goes with it.
        if state.bound.is_none()
            && let Some(reservation) = state.reservation.take()
        {
            runtime.with(|stack, _| stack.reservations().release(reservation));
        }
        state.stage = Stage::Closed;
        state.shut = [false; 2];
    }

    /// Reports every arrival from now on to `watch`: an epoll instance is there.
    pub(crate) fn report_edges<B: Backend>(&self, runtime: &Runtime<B>, watch: &Arc<Watch>) {
        let mut state = self.lock();
        let option = SocketOption::EveryArrival(true);
        state.options.set(option);
        if let Some(id) = state.stage.id() {
            runtime.with_waiters(|stack, _, waiters| {
                watch.follow(waiters, id);
                let _ = stack.set_option(id, option);
            });
        }
    }

    /// With `SO_LINGER`, waits until the peer has acknowledged everything, the FIN included, or the
    /// time is over: also where the file does not block, as in Linux.
    fn linger<B: Backend>(&self, runtime: &Runtime<B>) {
        let (id, time) = {
            let state = self.lock();
            match (state.stage, state.options.value(option::Linger)) {
                (Stage::Connected(id), Some(time)) if !time.is_zero() => (id, time),
                _ => return,
            }
        };
        let deadline = runtime.now() + time;
        let shut = runtime.with(|stack, now| {
            let Ok(mut tcp) = stack.tcp(id) else { return false };
            // Data that was not read makes this a reset.
            tcp.queued() == 0 && tcp.shutdown(now, Shutdown::Write).is_ok()
        });
        let is_waiting = |stack: &mut Stack, _| {
            let waits = |name| matches!(name, "FIN-WAIT-1" | "CLOSING" | "LAST-ACK");
            stack.tcp(id).is_ok_and(|tcp| waits(tcp.info().state.name()))
        };
        while shut && runtime.with(is_waiting) {
            let left = deadline.saturating_since(runtime.now());
            if left.is_zero() || runtime.pause(left.min(LINGER_LOOK)).is_err() {
                return;
            }
        }
    }

    /// Closes the socket: the last reference is gone.
    pub(crate) fn close<B: Backend>(&self, runtime: &Runtime<B>) {
        self.linger(runtime);
        let mut state = self.lock();
        let (id, reservation) = (state.stage.id(), state.reservation.take());
        if let Some(id) = id {
            // > SO_LINGER with a time of 0: the connection is reset.
            if state.options.value(option::Linger).is_some_and(|time| time.is_zero()) {
                runtime.with(|stack, now| stack.abort(now, id));
            }
            runtime.backend.close(id);
        }
        if let Some(reservation) = reservation {
            runtime.with(|stack, _| stack.reservations().release(reservation));
        }
        state.stage = Stage::Closed;
    }
}

/// States in which dissolving a connection is an error for the next call.
const RESET_WHEN_CUT: [&str; 6] =
    ["SYN-SENT", "SYN-RECEIVED", "ESTABLISHED", "FIN-WAIT-1", "FIN-WAIT-2", "CLOSE-WAIT"];

/// Time between two checks of a close that lingers: no readiness reports the acknowledgement of a FIN.
const LINGER_LOOK: Duration = Duration::from_millis(10);

/// As `tcp_poll` in Linux.
fn connection_events(ready: Readiness) -> Events {
    let both = ready.contains(Readiness::READ_CLOSED | Readiness::WRITE_CLOSED);
    // A handshake that waits for its first data, or was accepted with Fast Open, is writable.
    let handshake = !ready.contains(Readiness::CONNECTED) && !both;
    let closed = !handshake && ready.contains(Readiness::WRITE_CLOSED);
    Events::HUP.when(both)
        | (Events::READ | Events::RDHUP).when(ready.contains(Readiness::READ_CLOSED))
        | Events::READ.when(ready.contains(Readiness::READABLE))
        | Events::PRI.when(ready.contains(Readiness::URGENT))
        | Events::WRITE.when(closed || ready.contains(Readiness::WRITABLE))
        | Events::ERR.when(ready.intersects(Readiness::ERROR | Readiness::ERROR_QUEUE))
}

/// As `datagram_poll` in Linux.
fn datagram_events(ready: Readiness, shut: [bool; 2]) -> Events {
    Events::ERR.when(ready.intersects(Readiness::ERROR | Readiness::ERROR_QUEUE))
        | (Events::READ | Events::RDHUP).when(shut[0])
        | Events::HUP.when(shut == [true; 2])
        | Events::READ.when(ready.contains(Readiness::READABLE))
        | (Events::WRITE | Events::WRBAND).when(ready.contains(Readiness::WRITABLE))
}
