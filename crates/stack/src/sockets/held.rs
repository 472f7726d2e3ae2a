//! Byte path, step R7 and after: memory that applications took by reference and keep.
//!
//! It is charged to its connection and to the host's receive budget until it comes back, on whatever
//! thread: a program that keeps everything closes its own window and nobody else's.

use std::sync::Arc;

use pagewire_mem::{Held, Holdings, Instant, Returned, Returns};

use super::handles::Tcp;
use super::ids::SocketId;
use crate::stack::{Core, Stack};

impl Tcp<'_> {
    /// Counts `bytes` of memory for the connection until the answer is dropped: whoever takes
    /// received memory by reference keeps it with that. A call that comes with the verb that took
    /// the memory, before anything is sent.
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

    /// Bytes of memory that the connection's application took by reference and keeps.
    pub fn held(&self) -> usize {
        self.socket.holdings.as_ref().map_or(0, |holdings| holdings.bytes())
    }
}

impl Stack {
    /// What other threads gave back: whoever drives the stack wakes up for it
    /// ([`Returns::set_waker`]).
    pub fn returns(&self) -> &Arc<Returns> {
        &self.core.sockets.work.returns
    }
}

impl Core {
    /// Opens the windows of those who waited for memory that came back.
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
