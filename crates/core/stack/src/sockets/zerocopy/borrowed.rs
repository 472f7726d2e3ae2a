//! Borrowed memory: received memory that belongs to its sender, which gets it back after a deadline.
//!
//! On a link that passes payload by reference (the pair link), a receive queue has the sender's own
//! memory, and the sender's completion waits for it. After a deadline private copies replace it.
//! There is one entry for each socket with such data, cheap enough to make for every burst.

use core::time::Duration;
use std::collections::VecDeque;

use pagewire_mem::{Frag, Held, Holdings, Instant, PAGE_SIZE};

use crate::limits::UDP_RECEIVE_BYTES;
use crate::net::Mem;
use crate::sockets::ids::SocketId;
use crate::sockets::pages::waiters::reserve;
use crate::sockets::table::Socket;
use crate::sockets::tcp::socket::SocketFlags;
use crate::sockets::{Context, Tcp};

/// Sockets with borrowed memory in their receive queues, in the order of their deadlines.
pub(crate) struct BorrowedMemory {
    /// How long such memory may wait; `None`: for ever.
    limit: Option<Duration>,
    waiting: VecDeque<BorrowDeadline>,
}

#[derive(Clone, Copy)]
struct BorrowDeadline {
    until: Instant,
    socket: SocketId,
    /// Payload bytes of the stream read before, and after reading everything that was queued.
    read: u64,
    mark: u64,
}

impl BorrowedMemory {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, waiting: VecDeque::new() }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|next| next.until)
    }

    /// Whether payload has borrowed memory with a deadline.
    #[inline]
    pub(crate) fn concerns(&self, payload: &[Frag]) -> bool {
        self.limit.is_some() && payload.iter().any(|frag| frag.completion().is_some())
    }
}

/// Whether there is room to copy `pinned` bytes. Copies may take of the pages that are left to data which
/// can leave at once, but not the last half of them. The receive budget counts the borrowed memory already.
fn has_room(mem: &Mem, pinned: usize) -> bool {
    mem.pool.stats().free >= pinned.div_ceil(PAGE_SIZE) + reserve(&mem.pool) / 2
}

impl Context {
    /// The socket at `index` has received borrowed memory.
    pub(crate) fn watch_borrowed(&mut self, now: Instant, index: u32) {
        let Some(limit) = self.borrowed.limit else { return };
        let Some(socket) = self.table.id_of(index) else { return };
        let (waits, read, mark) = match self.table.at_mut(index) {
            Some(Socket::Tcp(socket)) => {
                let (read, queued) = (socket.conn.bytes_read(), socket.conn.queued_receive());
                let waits = socket.flags.contains(SocketFlags::BORROWED);
                socket.flags.insert(SocketFlags::BORROWED);
                (waits, read, read + queued as u64)
            }
            // Each datagram has its time of arrival.
            Some(Socket::Udp(socket)) => (core::mem::replace(&mut socket.has_borrowed, true), 0, 0),
            _ => return,
        };
        if !waits {
            let deadline = BorrowDeadline { until: now + limit, socket, read, mark };
            self.borrowed.waiting.push_back(deadline);
        }
    }

    /// Replaces borrowed memory that has waited too long.
    pub(crate) fn copy_borrowed(&mut self, now: Instant) {
        let Some(limit) = self.borrowed.limit else { return };
        while let Some(due) = self.borrowed.waiting.pop_front_if(|next| next.until <= now) {
            // Later data, and data without a page to copy to, gets another deadline.
            let left = match self.table.get_mut(due.socket) {
                Ok(Socket::Tcp(socket)) => {
                    socket.flags.remove(SocketFlags::BORROWED);
                    let read = socket.conn.bytes_read();
                    // If nothing was read, there is only data beyond a gap.
                    let is_old = read < due.mark || read == due.read;
                    if is_old && has_room(&self.net.mem, socket.conn.pinned_receive()) {
                        socket
                            .work(&mut self.net.mem, now, |conn, env| conn.give_back_received(env));
                    }
                    socket.conn.pinned_receive() > 0
                }
                Ok(Socket::Udp(socket)) => {
                    socket.has_borrowed = false;
                    !has_room(&self.net.mem, UDP_RECEIVE_BYTES)
                        || socket.give_back(&mut self.net.mem, now, limit)
                }
                _ => false,
            };
            if left {
                self.watch_borrowed(now, due.socket.index());
            }
        }
    }
}

impl Tcp<'_> {
    /// Counts `bytes` of kept memory for the connection until the [`Held`] is dropped. Call it
    /// right after the operation that took the memory, before any output.
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

impl Context {
    /// Opens the windows of connections that waited for released memory.
    pub(crate) fn drain_returns(&mut self, now: Instant) {
        if !self.work.returns.is_pending() {
            return;
        }
        for owner in self.work.returns.drain() {
            let id = SocketId::from_token(owner);
            // A closed connection has no window to open.
            let Ok(Socket::Tcp(socket)) = self.table.get_mut(id) else { continue };
            socket.work(&mut self.net.mem, now, |conn, env| conn.after_return(env));
            self.touch(id.index());
        }
    }
}
