//! Received memory that applications keep by reference.
//!
//! It is charged to its connection and to the host's receive budget until any thread releases it:
//! an application that keeps everything closes its own window and no other.

use std::sync::Arc;

use pagewire_mem::{Held, Holdings, Instant, Returned, Returns};

use super::handles::Tcp;
use super::ids::SocketId;
use crate::stack::{Core, Stack};

impl Tcp<'_> {
    /// Counts `bytes` of kept memory for the connection until the [`Held`] is dropped. Call it
    /// right after the verb that took the memory, before any output.
    pub fn count_held(&mut self, now: Instant, bytes: usize) -> Held {
        if bytes == 0 {
            return Held::default();
        }
        let returns = &self.work.returns;
        let socket = &mut *self.socket;
        let holdings =
            socket.holdings.get_or_insert_with(|| Holdings::new(returns, self.id.token()));
        let held = holdings.hold(bytes);
        socket.work(self.mem, now, |_, _| ());
        held
    }

    /// Bytes of received memory that the application keeps.
    pub fn held(&self) -> usize {
        self.socket.holdings.as_ref().map_or(0, |holdings| holdings.bytes())
    }
}

impl Stack {
    /// The queue of kept memory that was released. It wakes the driver ([`Returns::set_waker`]).
    pub fn returns(&self) -> &Arc<Returns> {
        &self.core.sockets.work.returns
    }
}

impl Core {
    /// Opens the windows of connections that waited for released memory.
    pub(crate) fn drain_returns(&mut self, now: Instant) {
        if !self.sockets.work.returns.is_pending() {
            return;
        }
        for returned in self.sockets.work.returns.drain() {
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
