//! SYNs that wait for the application's answer.
//!
//! A listener of a transparent link (`every.rs`) shows each SYN before it is answered,
//! because only the application knows whether the connection can be made:
//!
//! ```text
//!   SYN --> New --> Accept ---> connection in SYN-RECEIVED, the application's from the start
//!    |        |---> Refuse ---> RST
//!    |        |---> Unreachable ---> ICMP error
//!    |        \---> Silence ---> nothing, and repetitions ask nobody
//!    |---> the same again: absorbed
//!    |---> with another number: Cancelled(Reset), then New
//!   RST, or no SYN any more: Cancelled
//! ```
//!
//! Linux sends nothing when a program gives up a `connect`, so a request lapses when its SYNs stop.
//! The timer of a listener in the wheel is that of its requests.

pub(crate) mod table;

use std::sync::Arc;

use pagewire_mem::{FragVec, Instant};
use pagewire_tcp::{Arrival, Disposition, Flags, Seq, State, TcpHeader, TimeWaitStep};

use crate::counters::DropReason;
use crate::error::Error;
use crate::event::Readiness;
use crate::limits::{MAX_SOCKETS, REQUEST_HALF_OPEN, REQUEST_LOOK};
use crate::net::{Flow, Unreachable};
use crate::sockets::Sockets;
use crate::sockets::handles::Listener;
use crate::sockets::ids::{SocketId, TcpId};
use crate::sockets::listen::{Old, ToListener, passive};
use crate::sockets::table::Socket;
use crate::sockets::tcp::socket::{Owner, TcpSocket};
use crate::stack::Core;
use table::{Cancel, Request, RequestId, Requests, SynEvent};

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
    /// [connected](Readiness::CONNECTED) once the sender acknowledges, or ends without that. Other
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
        let core = &mut *self.core;
        core.sockets.forget_request(index, &request);
        match answer {
            Answer::Accept => accept_request(core, now, index, &request).map(Some),
            Answer::Refuse => refuse_request(core, now, &request).map(|()| None),
            Answer::Unreachable(why) => {
                let Request { tuple, syn, .. } = &request;
                let about = Flow::tcp(tuple.remote_addr(), tuple.local_addr(), syn.seq.0);
                core.send_unreachable(now, &about, why, None).map(|()| None)
            }
            Answer::Silence | Answer::Forget => Ok(None),
        }
    }
}

impl Sockets {
    /// Takes a request that was removed out of the hash table.
    fn forget_request(&mut self, listener: u32, request: &Request) {
        let hash = self.demux.hash(&request.tuple);
        if let Some(requests) = self.requests(listener) {
            requests.forget(hash);
        }
    }

    fn requests(&mut self, listener: u32) -> Option<&mut Requests> {
        self.table.listener_mut(listener)?.requests.as_deref_mut()
    }

    fn cancel_request(&mut self, listener: u32, index: u32, why: Cancel) {
        let Some(request) = self.requests(listener).and_then(|r| r.cancel(index, why)) else {
            return;
        };
        self.forget_request(listener, &request);
        self.check_later(listener);
    }
}

/// Processes a segment to a listener that shows SYNs before it answers.
///
/// As Linux, options of congestion notification in a SYN change nothing here: a SYN is what has
/// SYN, and neither ACK, RST nor FIN. Data in a SYN is left to its repetition.
pub(crate) fn request_input(
    core: &mut Core,
    now: Instant,
    listener: u32,
    segment: ToListener<'_>,
    payload_len: usize,
) {
    let ToListener { tuple, header, ecn, hop_limit } = segment;
    let hash = core.sockets.demux.hash(&tuple);
    let Some(requests) = core.sockets.requests(listener) else { return };
    let known = requests.find(hash, &tuple);
    let flags = header.flags & (Flags::RST | Flags::ACK | Flags::SYN | Flags::FIN);
    if flags != Flags::SYN {
        if let Some(index) = known
            && flags.contains(Flags::RST)
            && requests.at(index).is_some_and(|r| header.seq == r.syn.seq + 1)
        {
            return core.sockets.cancel_request(listener, index, Cancel::Reset);
        }
        core.net.counters.drop_one(DropReason::TcpListenNotSyn);
        if flags.contains(Flags::ACK) {
            core.send_reset(now, &tuple, header, payload_len);
        }
        return;
    }
    if let Some(index) = known {
        let Some(request) = requests.at_mut(index) else { return };
        if request.syn.seq == header.seq {
            request.repeat(now, header, ecn);
            return core.net.counters.drop_one(DropReason::TcpRequestRepeated);
        }
        // The sender has used the port for another attempt.
        core.sockets.cancel_request(listener, index, Cancel::Reset);
    }
    let new = Request::new(now, tuple, header, (ecn, hop_limit));
    let lapses_at = new.lapses_at();
    let Sockets { table, demux, wheel, .. } = &mut core.sockets;
    let Some(socket) = table.listener_mut(listener) else { return };
    let Some(requests) = socket.requests.as_mut() else { return };
    if !requests.insert(new, |tuple| demux.hash(tuple)) {
        return core.net.counters.drop_one(DropReason::TcpRequestLimit);
    }
    core.net.counters.tcp_requests += 1;
    if socket.reporting.every_arrival {
        socket.reporting.reported &= !Readiness::READABLE;
    }
    if !wheel.covers(listener, lapses_at) {
        wheel.schedule(listener, lapses_at);
    }
    core.sockets.check_later(listener);
}

/// The timer of a listener has fired: its senders that went silent have given up.
pub(crate) fn requests_timeout(core: &mut Core, now: Instant, listener: u32) {
    let Some(requests) = core.sockets.requests(listener) else { return };
    let slots = requests.slots();
    let mut next: Option<Instant> = None;
    for index in 0..slots {
        let requests = core.sockets.requests(listener);
        let Some(at) = requests.and_then(|requests| requests.lapses_at(index)) else {
            continue;
        };
        if at <= now {
            core.net.counters.tcp_requests_given_up += 1;
            core.sockets.cancel_request(listener, index, Cancel::GaveUp);
        } else {
            next = Some(next.map_or(at, |next| next.min(at)));
        }
    }
    if let Some(at) = next {
        // Looking costs as much as there are requests: they lapse in groups.
        core.sockets.wheel.schedule(listener, at.max(now + REQUEST_LOOK));
    }
}

/// Ends the requests of a listener whose link is gone; no others will come.
pub(crate) fn close_requests(core: &mut Core, listener: u32) {
    let Some(socket) = core.sockets.table.listener_mut(listener) else { return };
    if let Some(requests) = &mut socket.requests {
        requests.cancel_all(Cancel::LinkLost);
        socket.down = true;
    }
    core.sockets.wheel.cancel(listener);
    core.sockets.check_later(listener);
}

fn accept_request(
    core: &mut Core,
    now: Instant,
    listener: u32,
    request: &Request,
) -> Result<TcpId, Error> {
    let Request { tuple, syn, ecn, hop_limit, .. } = request;
    let segment = ToListener { tuple: *tuple, header: syn, ecn: *ecn, hop_limit: *hop_limit };
    let old = match core.sockets.demux.find(&core.sockets.table, tuple) {
        Some(index) => Some(reopenable(core, now, index, syn).ok_or(Error::AddressInUse)?),
        None => None,
    };
    if core.sockets.table.len() >= MAX_SOCKETS {
        return Err(Error::TooManySockets);
    }
    let socket = core.sockets.table.listener(listener).ok_or(Error::NoSuchSocket)?;
    let (config, zerocopy) = (Arc::clone(&socket.config), socket.reporting.zerocopy);
    let conn = passive(core, now, config, None, segment, old);
    let mut socket = TcpSocket::new(now, conn, *tuple, Owner::App);
    socket.reporting.zerocopy = zerocopy;
    if let Some(old) = old {
        core.make_way(old.index);
    }
    let id = core.insert_connection(socket).ok_or(Error::TooManySockets)?;
    core.net.counters.tcp_passive_opens += 1;
    note_half_open(core, listener, id);
    Ok(TcpId(id))
}

/// The connection at `index` if it is in TIME-WAIT and this SYN may replace it.
fn reopenable(core: &mut Core, now: Instant, index: u32, syn: &TcpHeader) -> Option<Old> {
    let last: Option<Seq> = match core.sockets.table.at_mut(index)? {
        Socket::TimeWait(remains) => match remains.tcp.handle_segment(now, syn, 0) {
            TimeWaitStep::Reopens { iss_above } => Some(iss_above),
            _ => None,
        },
        Socket::Tcp(socket) if socket.conn.state() == State::TimeWait => {
            let arrival = Arrival { ecn: 0, gso_size: None };
            let step = socket.work(&mut core.mem, now, |conn, env| {
                conn.handle_segment(env, syn, FragVec::new(), arrival)
            });
            match step {
                Disposition::SynInTimeWait { iss_above } => Some(iss_above),
                _ => None,
            }
        }
        _ => None,
    };
    Some(Old { index, last: last? })
}

/// Bounds the accepted connections whose handshakes are incomplete: the oldest are reset.
fn note_half_open(core: &mut Core, listener: u32, id: SocketId) {
    let Some(requests) = core.sockets.requests(listener) else { return };
    requests.half_open.push_back(id);
    if requests.half_open.len() <= REQUEST_HALF_OPEN {
        return;
    }
    let mut all = core::mem::take(&mut requests.half_open);
    let table = &core.sockets.table;
    let waits = |id: &SocketId| {
        let Some(socket) = table.tcp(id.index()) else { return false };
        // One that its owner has closed has the next id.
        let is_it = match socket.owner {
            Owner::App => table.id_of(id.index()) == Some(*id),
            Owner::Closed => table.id_of(id.index()).is_some_and(|now| now.follows(*id)),
            Owner::HalfOpen { .. } | Owner::Queued { .. } => false,
        };
        is_it && socket.conn.state() == State::SynReceived
    };
    all.retain(waits);
    // Some more than one: the next look is not due at once.
    let most = REQUEST_HALF_OPEN - REQUEST_HALF_OPEN / 4;
    let excess = all.len().saturating_sub(most);
    for id in all.drain(..excess) {
        core.net.counters.tcp_requests_evicted += 1;
        core.tcp_abort(id.index());
    }
    if let Some(requests) = core.sockets.requests(listener) {
        requests.half_open = all;
    }
}

fn refuse_request(core: &mut Core, now: Instant, request: &Request) -> Result<(), Error> {
    core.take_answer(now)?;
    core.reset_for(now, &request.tuple, &request.syn, 0);
    Ok(())
}

impl Core {
    /// Takes a permit for an answer that the application asks for.
    pub(crate) fn take_answer(&mut self, now: Instant) -> Result<(), Error> {
        if self.sockets.answers.take(now) {
            return Ok(());
        }
        self.net.counters.drop_one(DropReason::AnswerRateLimited);
        Err(Error::WouldBlock)
    }
}
