//! Connections that ended, for tools that report each.

use std::collections::VecDeque;
use std::net::SocketAddr;

use super::Sockets;
use super::tcp::Lists;
use super::view::ends;
use crate::TcpInfo;
use crate::limits::ENDED_CONNECTIONS;
use crate::net::Net;
use crate::stack::Stack;

/// A connection that was established and has ended, see [`Stack::poll_ended`].
#[derive(Clone, Debug)]
pub struct EndedConnection {
    /// This side.
    pub local: SocketAddr,
    /// The other side.
    pub remote: SocketAddr,
    /// Its last state and counts.
    pub info: TcpInfo,
}

/// Connections that ended since the last [`Stack::poll_ended`]; none before
/// [`Stack::record_ended`].
#[derive(Default)]
pub(crate) struct EndedConnections {
    is_recording: bool,
    queue: VecDeque<EndedConnection>,
}

impl Stack {
    /// Records each established connection that ends from now on.
    pub fn record_ended(&mut self) {
        self.core.sockets.ended.is_recording = true;
    }

    /// The next connection that ended, in the order in which they ended. A connection ends when both
    /// sides are closed and everything is acknowledged, or by a reset or an error; its TIME-WAIT is no
    /// part of it once the application has closed it. Between two calls at most
    /// [`ENDED_CONNECTIONS`] are recorded, further ones are not.
    pub fn poll_ended(&mut self) -> Option<EndedConnection> {
        self.core.sockets.ended.queue.pop_front()
    }
}

impl Sockets {
    /// Takes the connection at `index` out of the demux: this is its end.
    pub(super) fn leave_demux(&mut self, net: &Net, index: u32) {
        self.note_end(net, index);
        self.demux.remove(&mut self.table, index);
    }

    /// Records the end of the connection at `index`, if it was established and has not ended before.
    pub(super) fn note_end(&mut self, net: &Net, index: u32) {
        let EndedConnections { is_recording, queue } = &mut self.ended;
        if !*is_recording || queue.len() >= ENDED_CONNECTIONS {
            return;
        }
        let Some(socket) = self.table.tcp(index) else { return };
        if socket.lists.contains(Lists::DEMUX) && socket.was_established() {
            let (local, remote, _) = ends(net, &socket.tuple);
            queue.push_back(EndedConnection { local, remote, info: socket.conn.info() });
        }
    }
}
