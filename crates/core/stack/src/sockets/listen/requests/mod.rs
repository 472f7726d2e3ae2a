//! SYNs that wait for the application's answer.
//!
//! A listener of a transparent link ([`Stack::listen_every`](crate::Stack::listen_every)) shows each SYN before it is answered,
//! because only the application knows whether the connection can be made:
//!
//! ```text
//!   SYN --> New --> Accept ---> connection in SYN-RECEIVED, the application's from the start
//!    |        |---> Refuse ---> RST
//!    |        |---> Unreachable ---> ICMP error
//!    |        \---> Silence ---> nothing, and repetitions are absorbed
//!    |---> the same again: absorbed
//!    |---> with another number: Cancelled(Reset), then New
//!   RST, or no SYN any more: Cancelled
//! ```
//!
//! Linux sends nothing when a program gives up a `connect`, so a request lapses when its SYNs stop.
//! The timer of a listener in the wheel is that of its requests.

pub(crate) mod table;

use std::net::IpAddr;

use pagewire_mem::Instant;
use pagewire_tcp::State;

use crate::error::Error;
use crate::limits::{REQUEST_CHECK_INTERVAL, REQUEST_HALF_OPEN};
use crate::net::{Flow, Unreachable};
use crate::sockets::ids::{SocketId, TcpId};
use crate::sockets::tcp::socket::Owner;
use crate::sockets::{Context, Listener};
use table::{Cancel, PendingSyn, RequestId, Requests, SynEvent};

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A connection.
    Accept,
    /// A reset.
    Refuse,
    /// An ICMP error, see [`Stack::send_unreachable`](crate::Stack::send_unreachable).
    Unreachable(Unreachable),
    /// Nothing; further SYNs of this attempt are ignored.
    Silence,
    /// Nothing; a further SYN is a new request.
    Forget,
}

impl Listener<'_> {
    /// The next new request, or the end of one that was shown, of a listener of
    /// [`Stack::listen_every`](crate::Stack::listen_every). The listener is readable while there is one.
    pub fn poll_request(&mut self) -> Option<SynEvent> {
        let listener = self.socket_mut().ok()?;
        let event = listener.requests.as_mut()?.poll();
        listener.reporting.reported &= listener.readiness();
        event
    }

    /// Answers a request. `Accept` returns the connection, in SYN-RECEIVED: it is
    /// [connected](crate::Readiness::CONNECTED) once the sender acknowledges, or ends without that. Other
    /// answers return `None`.
    ///
    /// # Errors
    /// `NoSuchSocket` if the request was answered or cancelled, `InvalidInput` if the listener has no
    /// requests, `TooManySockets`, `AddressInUse` if there is a connection between the same ends;
    /// then the request is forgotten. With `Unreachable` those of
    /// [`Stack::send_unreachable`](crate::Stack::send_unreachable), for `Refuse` and `Unreachable`
    /// `WouldBlock` beyond their rate.
    pub fn answer(
        &mut self,
        now: Instant,
        id: RequestId,
        answer: Answer,
    ) -> Result<Option<TcpId>, Error> {
        let index = self.id.index();
        let requests = self.socket_mut()?.requests.as_mut().ok_or(Error::InvalidInput)?;
        if answer == Answer::Silence {
            return requests.silence(id).map(|()| None);
        }
        let request = requests.take_shown(id)?;
        let Self { tcp, cx, .. } = self;
        match answer {
            Answer::Accept => tcp.accept_request(cx, now, index, &request).map(Some),
            Answer::Refuse => {
                cx.take_answer(now)?;
                cx.reset_for(now, &request.tuple, &request.syn, 0);
                Ok(None)
            }
            Answer::Unreachable(why) => {
                let PendingSyn { tuple, syn, .. } = &request;
                let about = Flow::tcp(tuple.remote_addr(), tuple.local_addr(), syn.seq.0);
                cx.send_unreachable(now, &about, why, None).map(|()| None)
            }
            Answer::Silence | Answer::Forget => Ok(None),
        }
    }
}

impl Context {
    pub(crate) fn requests(&mut self, listener: u32) -> Option<&mut Requests> {
        self.table.listener_mut(listener)?.requests.as_deref_mut()
    }

    pub(crate) fn cancel_request(&mut self, listener: u32, index: u32, why: Cancel) {
        if self.requests(listener).is_some_and(|requests| requests.cancel(index, why)) {
            self.check_later(listener);
        }
    }

    /// The timer of a listener has fired: its senders that went silent have given up.
    pub(crate) fn requests_timeout(&mut self, now: Instant, listener: u32) {
        let Some(requests) = self.requests(listener) else { return };
        let slots = requests.slots();
        let mut next: Option<Instant> = None;
        for index in 0..slots {
            let requests = self.requests(listener);
            let Some(at) = requests.and_then(|requests| requests.lapses_at(index)) else {
                continue;
            };
            if at <= now {
                self.net.counters.tcp_requests_given_up += 1;
                self.cancel_request(listener, index, Cancel::GaveUp);
            } else {
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        if let Some(at) = next {
            // A check costs as much as there are requests: they lapse in groups.
            self.wheel.schedule(listener, at.max(now + REQUEST_CHECK_INTERVAL));
        }
    }

    /// Ends the requests of a listener whose link is gone; no others will come.
    pub(crate) fn close_requests(&mut self, listener: u32) {
        let Some(socket) = self.table.listener_mut(listener) else { return };
        if let Some(requests) = &mut socket.requests {
            requests.cancel_all(Cancel::LinkLost);
            socket.down = true;
        }
        self.wheel.cancel(listener);
        self.check_later(listener);
    }

    /// Bounds the accepted connections whose handshakes are incomplete: the oldest are reset.
    pub(crate) fn note_half_open(&mut self, listener: u32, id: SocketId) {
        let Some(requests) = self.requests(listener) else { return };
        requests.half_open.push_back(id);
        if requests.half_open.len() <= REQUEST_HALF_OPEN {
            return;
        }
        let mut all = core::mem::take(&mut requests.half_open);
        let table = &self.table;
        let waits = |id: &SocketId| {
            let Some(socket) = table.tcp(id.index()) else { return false };
            // A connection that its owner has closed has the next id.
            let is_it = match socket.owner {
                Owner::App => table.id_of(id.index()) == Some(*id),
                Owner::Closed => table.id_of(id.index()).is_some_and(|now| now.follows(*id)),
                Owner::HalfOpen { .. } | Owner::Queued { .. } => false,
            };
            is_it && socket.conn.state() == State::SynReceived
        };
        all.retain(waits);
        // Some more than one: the next check is not due at once.
        let most = REQUEST_HALF_OPEN - REQUEST_HALF_OPEN / 4;
        let excess = all.len().saturating_sub(most);
        for id in all.drain(..excess) {
            self.net.counters.tcp_requests_evicted += 1;
            self.abort(id.index());
        }
        if let Some(requests) = self.requests(listener) {
            requests.half_open = all;
        }
    }

    /// See [`Stack::send_unreachable`](crate::Stack::send_unreachable).
    pub(crate) fn send_unreachable(
        &mut self,
        now: Instant,
        about: &Flow,
        why: Unreachable,
        from: Option<IpAddr>,
    ) -> Result<(), Error> {
        self.take_answer(now)?;
        self.net.send_unreachable(now, about, why, from)
    }
}
