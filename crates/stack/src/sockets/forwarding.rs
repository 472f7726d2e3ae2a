//! What a connection needs whose data was received on another.

use super::table::SocketId;
use crate::error::Error;
use crate::limits::FORWARD_LEAST;
use crate::stack::Stack;

impl Stack {
    /// From now on, memory that the connection sends is charged to the budget of receive memory
    /// ([`StackConfig::receive_memory`](crate::StackConfig::receive_memory)) until it is
    /// acknowledged: for owners who send what they received, whose pages are missing for what comes
    /// in meanwhile.
    pub fn tcp_charge_sends(&mut self, id: SocketId) -> Result<(), Error> {
        self.connection_mut(id)?.forwards = true;
        Ok(())
    }

    /// How many of `wanted` bytes a send would take now; 0 also where it would fail.
    pub fn tcp_send_room(&self, id: SocketId, wanted: usize) -> Result<usize, Error> {
        Ok(self.connection(id)?.conn.room_for(wanted))
    }

    /// How much more the connection may hold of what others sent: its share of the receive memory
    /// that is free, less what it holds. Where it holds nothing, something may always follow.
    pub(crate) fn forward_share(&self, id: SocketId) -> Result<usize, Error> {
        let held = self.connection(id)?.conn.send_charge();
        let share = self.mem.shared.receive.allowance();
        Ok(if held == 0 { share.max(FORWARD_LEAST) } else { share.saturating_sub(held) })
    }
}
