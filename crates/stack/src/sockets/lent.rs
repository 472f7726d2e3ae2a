//! Byte path, step R6: received memory that belongs to its sender, and must not be kept for ever.
//!
//! Where payload passes by reference (the pair link), what waits in a receive queue is the sender's
//! own memory, and if it wants to hear of the release, that waits too. After a deadline it is replaced by private copies. One
//! entry for each socket that has such data: cheap enough to be made for every burst.

use std::collections::VecDeque;

use core::time::Duration;
use pagewire_mem::{Frag, Instant, PAGE_SIZE};

use super::ids::SocketId;
use super::socket::Socket;
use crate::limits::UDP_RECEIVE_BYTES;
use crate::net::Mem;
use crate::stack::Core;

/// Sockets that had memory of senders in their receive queue, in the order of their deadlines.
pub(crate) struct LentMemory {
    /// How long such memory may wait; `None`: for ever.
    limit: Option<Duration>,
    waiting: VecDeque<Lent>,
}

#[derive(Clone, Copy)]
struct Lent {
    until: Instant,
    socket: SocketId,
    /// Payload bytes of the stream that it had read, and what that will be when it has read what
    /// was there.
    read: u64,
    mark: u64,
}

impl LentMemory {
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self { limit, waiting: VecDeque::new() }
    }

    /// When the next deadline is.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.waiting.front().map(|lent| lent.until)
    }

    /// Whether payload is to be watched.
    #[inline]
    pub(crate) fn concerns(&self, payload: &[Frag]) -> bool {
        self.limit.is_some() && payload.iter().any(|frag| frag.completion().is_some())
    }
}

/// Whether there is room to copy `pinned` bytes of what was received: half of the pool stays for
/// others, and what all connections have received stays within its budget.
fn has_room(mem: &Mem, pinned: usize) -> bool {
    let pool = mem.pool.stats();
    let receive = &mem.shared.receive;
    let free = (pool.free * PAGE_SIZE).saturating_sub(2 * pinned);
    free >= pool.total * PAGE_SIZE / 2 && receive.used() + pinned <= receive.limit()
}

impl Core {
    /// The socket at `index` took memory of its sender.
    pub(crate) fn watch_guest(&mut self, now: Instant, index: u32) {
        let Some(limit) = self.sockets.guests.limit else { return };
        let Some(socket) = self.sockets.table.id_of(index) else { return };
        let (has_guests, read, mark) = match self.sockets.table.at_mut(index) {
            Some(Socket::Tcp(socket)) => {
                let (read, queued) = (socket.conn.bytes_read(), socket.conn.queued_receive());
                (&mut socket.has_guests, read, read + queued as u64)
            }
            // Datagrams know when they came.
            Some(Socket::Udp(socket)) => (&mut socket.has_guests, 0, 0),
            _ => return,
        };
        if !core::mem::replace(has_guests, true) {
            let guest = Lent { until: now + limit, socket, read, mark };
            self.sockets.guests.waiting.push_back(guest);
        }
    }

    /// Replaces what has waited too long.
    pub(crate) fn copy_guests(&mut self, now: Instant) {
        let Some(limit) = self.sockets.guests.limit else { return };
        while let Some(guest) = self.sockets.guests.waiting.pop_front_if(|lent| lent.until <= now) {
            // What came later, and what there was no page for, has another deadline.
            let left = match self.sockets.table.get_mut(guest.socket) {
                Ok(Socket::Tcp(socket)) => {
                    socket.has_guests = false;
                    let read = socket.conn.bytes_read();
                    // Equal: there was only data beyond a gap, and there still is.
                    let due = read < guest.mark || read == guest.read;
                    if due && has_room(&self.mem, socket.conn.pinned_receive()) {
                        socket.work(&mut self.mem, now, |conn, env| conn.give_back_received(env));
                    }
                    socket.conn.pinned_receive() > 0
                }
                Ok(Socket::Udp(socket)) => {
                    socket.has_guests = false;
                    !has_room(&self.mem, UDP_RECEIVE_BYTES)
                        || socket.give_back(&mut self.mem, now, limit)
                }
                _ => false,
            };
            if left {
                self.watch_guest(now, guest.socket.index());
            }
        }
    }
}
