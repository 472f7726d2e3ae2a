//! The lives of connections, for tools that report when each begins and ends.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::socket::Lists;
use crate::TcpInfo;
use crate::limits::LIFECYCLE_EVENTS;
use crate::net::Net;
use crate::sockets::Sockets;
use crate::stack::Stack;
use crate::stack::view::ends;

/// A connection was established, or has ended; see [`Stack::poll_lifecycle`].
#[derive(Clone, Debug)]
pub struct LifecycleEvent {
    /// Which of the two.
    pub kind: LifecycleKind,
    /// This side.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// State and counts: of a connection that ended, the last.
    pub info: TcpInfo,
}

/// What happens once in the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecycleKind {
    /// Its handshake is complete.
    Established,
    /// Both sides are closed and everything is acknowledged, or it was reset or failed. TIME-WAIT is no
    /// part of a connection's life.
    Ended,
}

/// What happened since the last [`Stack::poll_lifecycle`].
#[derive(Default)]
pub(crate) struct Lifecycle {
    queue: VecDeque<LifecycleEvent>,
    /// Number of events that found no room.
    unrecorded: u64,
}

impl Stack {
    /// Begins to record when connections are established and end, or stops, and forgets what nobody has
    /// polled. Nothing is recorded by default.
    pub fn record_lifecycle(&mut self, record: bool) {
        self.core.sockets.lifecycle = record.then(Box::default);
    }

    /// The next connection that was established or has ended, in the order in which that happened. An
    /// established connection ends once. A connection whose handshake fails is not there.
    ///
    /// At most [`LIFECYCLE_EVENTS`] wait to be polled; further ones are only counted
    /// ([`unrecorded_lifecycle`](Self::unrecorded_lifecycle)).
    pub fn poll_lifecycle(&mut self) -> Option<LifecycleEvent> {
        let queue = &mut self.core.sockets.lifecycle.as_mut()?.queue;
        let next = queue.pop_front();
        if queue.is_empty() {
            *queue = VecDeque::new();
        }
        next
    }

    /// Number of events that were not recorded, because too many waited to be polled.
    pub fn unrecorded_lifecycle(&self) -> u64 {
        self.core.sockets.lifecycle.as_ref().map_or(0, |lifecycle| lifecycle.unrecorded)
    }
}

impl Sockets {
    /// Takes the connection at `index` out of the demux: this is its end, if it had none.
    pub(crate) fn leave_demux(&mut self, net: &Net, index: u32) {
        self.note_lifecycle(net, index, true);
        self.demux.remove(&mut self.table, index);
    }

    /// Records that the connection at `index` was established and, if so, has ended: each once.
    #[inline]
    pub(crate) fn note_lifecycle(&mut self, net: &Net, index: u32, has_ended: bool) {
        if self.lifecycle.is_some() {
            self.record(net, index, has_ended);
        }
    }

    #[cold]
    fn record(&mut self, net: &Net, index: u32, has_ended: bool) {
        let (Some(lifecycle), Some(socket)) = (&mut self.lifecycle, self.table.tcp_mut(index))
        else {
            return;
        };
        if !socket.was_established() {
            return;
        }
        let happened = [
            (Lists::ESTABLISHED, LifecycleKind::Established, true),
            (Lists::ENDED, LifecycleKind::Ended, has_ended),
        ];
        for (recorded, kind, has_happened) in happened {
            if !has_happened || socket.lists.contains(recorded) {
                continue;
            }
            socket.lists.insert(recorded);
            if lifecycle.queue.len() >= LIFECYCLE_EVENTS {
                lifecycle.unrecorded += 1;
                continue;
            }
            let (local, remote, _) = ends(net, &socket.tuple);
            let info = socket.conn.info();
            lifecycle.queue.push_back(LifecycleEvent { kind, local, remote, info });
        }
    }
}
