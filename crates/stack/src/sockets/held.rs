//! Byte path, step R7 and after: memory that applications took by reference and keep.
//!
//! It is charged to its connection and to the host's receive budget until it comes back, on whatever
//! thread: a program that keeps everything closes its own window and nobody else's.

use std::sync::Arc;

use pagewire_mem::{Held, Holdings, Instant, Returned, Returns};

use super::table::SocketId;
use crate::error::Error;
use crate::stack::Stack;

impl Stack {
    /// Counts `bytes` of memory for the connection until the answer is dropped: whoever takes
    /// received memory by reference keeps it with that. A call that comes with the verb that took
    /// the memory, before anything is sent.
    pub fn tcp_count_held(
        &mut self,
        now: Instant,
        id: SocketId,
        bytes: usize,
    ) -> Result<Held, Error> {
        if bytes == 0 {
            return Ok(Held::default());
        }
        let returns = &self.sockets.returns;
        let socket = super::application::connection_mut(self.sockets.table.get_mut(id)?)?;
        let holdings = socket.holdings.get_or_insert_with(|| Holdings::new(returns, id.token()));
        let held = holdings.hold(bytes);
        socket.work(&mut self.mem, now, |_, _| ());
        Ok(held)
    }

    /// Bytes of memory that the connection's application took by reference and keeps.
    pub fn tcp_held(&self, id: SocketId) -> Result<usize, Error> {
        Ok(self.connection(id)?.holdings.as_ref().map_or(0, |holdings| holdings.bytes()))
    }

    /// What other threads gave back: whoever drives the stack wakes up for it
    /// ([`Returns::set_waker`]).
    pub fn returns(&self) -> &Arc<Returns> {
        &self.sockets.returns
    }

    /// Opens the windows of those who waited for memory that came back.
    pub(crate) fn drain_returns(&mut self, now: Instant) {
        if !self.sockets.returns.is_pending() {
            return;
        }
        for returned in self.sockets.returns.drain() {
            match returned {
                Returned::Rest(charged) => self.mem.shared.receive.charge(charged, 0),
                Returned::Some(owner) => {
                    let id = SocketId::from_token(owner);
                    let Some(socket) = self.sockets.table.tcp_mut(id.index()) else { continue };
                    socket.work(&mut self.mem, now, |conn, env| conn.after_return(env));
                    self.sockets.touch(id.index());
                }
            }
        }
    }
}
