//! What a connection needs whose data was received on another.

use super::table::SocketId;
use crate::error::Error;
use crate::limits::{FORWARD_LEAST, FORWARD_RESERVE};
use crate::stack::Stack;

impl Stack {
    /// From now on, what either of two connections sends is memory that the other received: it is
    /// charged to the budget of receive memory
    /// ([`StackConfig::receive_memory`](crate::StackConfig::receive_memory)) until it is
    /// acknowledged, because its pages are missing for what comes in; and it counts as unread for the
    /// connection that it came by, whose window opens only as far as its share.
    pub fn tcp_forwards(&mut self, a: SocketId, b: SocketId) -> Result<(), Error> {
        self.connection(b)?;
        self.connection_mut(a)?.forwards = Some(b);
        self.connection_mut(b)?.forwards = Some(a);
        Ok(())
    }

    /// Tells the connection at `index` what is still to be sent of what it received.
    pub(super) fn note_held(&mut self, index: u32) {
        let Some(other) = self.sockets.table.tcp(index).and_then(|socket| socket.forwards) else {
            return;
        };
        // After the end of the other, nothing is held.
        let held = self.connection(other).map_or(0, |other| other.conn.send_charge());
        if let Some(socket) = self.sockets.table.tcp_mut(index) {
            socket.conn.set_held(held);
        }
    }

    /// How many of `wanted` bytes a send would take now; 0 also where it would fail.
    pub fn tcp_send_room(&self, id: SocketId, wanted: usize) -> Result<usize, Error> {
        Ok(self.connection(id)?.conn.room_for(wanted))
    }

    /// Whether fewer than so many reserves are left of the receive memory.
    pub(crate) fn is_receive_memory_short(&self, reserves: usize) -> bool {
        let receive = &self.mem.shared.receive;
        let reserve = receive.limit() / FORWARD_RESERVE;
        receive.used() > receive.limit().saturating_sub(reserves * reserve)
    }

    /// Bytes of receive memory that are charged for the connection.
    pub(crate) fn forward_charge(&self, id: SocketId) -> usize {
        self.connection(id).map_or(0, |socket| socket.charged())
    }

    /// How much more the connection may hold of what others sent: its share of the receive memory
    /// that is free, less what it holds. Where it holds nothing, something may always follow.
    pub(crate) fn forward_share(&self, id: SocketId) -> Result<usize, Error> {
        let held = self.connection(id)?.conn.send_charge();
        let share = self.mem.shared.receive.allowance();
        Ok(if held == 0 { share.max(FORWARD_LEAST) } else { share.saturating_sub(held) })
    }
}
