//! Events of beginnings and ends of connections, for tools that report them.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::socket::SocketFlags;
use crate::TcpInfo;
use crate::limits::LIFECYCLE_EVENTS;
use crate::sockets::Context;
use crate::stack::view::ends;

/// A connection was established, or has ended; see [`Stack::poll_lifecycle`](crate::Stack::poll_lifecycle).
#[derive(Clone, Debug)]
pub struct LifecycleEvent {
    /// Whether the connection began or ended.
    pub kind: LifecycleKind,
    /// This side.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// State and counts: of a connection that ended, the last.
    pub info: TcpInfo,
}

/// A turning point in the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifecycleKind {
    /// The handshake is complete.
    Established,
    /// Both sides are closed and everything is acknowledged, or it was reset or failed. TIME-WAIT is no
    /// part of a connection's life.
    Ended,
}

/// Events since the last [`Stack::poll_lifecycle`](crate::Stack::poll_lifecycle).
#[derive(Default)]
pub(crate) struct Lifecycle {
    queue: VecDeque<LifecycleEvent>,
    /// Number of events that found no room.
    unrecorded: u64,
}

impl Lifecycle {
    /// The next event.
    pub(crate) fn poll(&mut self) -> Option<LifecycleEvent> {
        let next = self.queue.pop_front();
        if self.queue.is_empty() {
            self.queue = VecDeque::new();
        }
        next
    }

    /// Number of events that found no room.
    pub(crate) fn unrecorded(&self) -> u64 {
        self.unrecorded
    }
}

impl Context {
    /// Records that the connection at `index` was established and, if so, has ended: each once.
    #[inline]
    pub(crate) fn note_lifecycle(&mut self, index: u32, has_ended: bool) {
        if self.lifecycle.is_some() {
            self.record(index, has_ended);
        }
    }

    #[cold]
    fn record(&mut self, index: u32, has_ended: bool) {
        let (Some(lifecycle), Some(socket)) = (&mut self.lifecycle, self.table.tcp_mut(index))
        else {
            return;
        };
        if !socket.was_established() {
            return;
        }
        let happened = [
            (SocketFlags::ESTABLISHED, LifecycleKind::Established, true),
            (SocketFlags::ENDED, LifecycleKind::Ended, has_ended),
        ];
        for (recorded, kind, has_happened) in happened {
            if !has_happened || socket.flags.contains(recorded) {
                continue;
            }
            socket.flags.insert(recorded);
            if lifecycle.queue.len() >= LIFECYCLE_EVENTS {
                lifecycle.unrecorded += 1;
                continue;
            }
            let (local, remote, _) = ends(&self.net, &socket.tuple);
            let info = socket.conn.info();
            lifecycle.queue.push_back(LifecycleEvent { kind, local, remote, info });
        }
    }
}
