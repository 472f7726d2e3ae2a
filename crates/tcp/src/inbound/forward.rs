//! Forwarding: received data moves from one connection's receive queue to another's send queue.

use pagewire_mem::Frag;

use crate::connection::Connection;
use crate::inbound::{AckDue, Inbound};
use crate::io_flags::SendFlags;
use crate::life::state::State;
use crate::limits::MIN_RECV_BUFFER;
use crate::outbound::room::take_room;
use crate::outbound::rtt::RttEstimator;
use crate::outbound::send_queue::SendQueue;
use crate::path::Path;
use crate::shared::Env;

struct SendTail<'a> {
    queue: &'a mut SendQueue,
    longest: usize,
}

impl Extend<Frag> for SendTail<'_> {
    fn extend<T: IntoIterator<Item = Frag>>(&mut self, frags: T) {
        for frag in frags {
            self.queue.push(frag, self.longest);
        }
    }
}

impl Connection {
    /// Whether it may be forwarded from: it can receive, and has no end, urgent byte or error.
    pub fn gives(&self) -> bool {
        self.path.state().can_receive() && self.life.error().is_none() && self.inbound.is_plain()
    }

    /// Whether an acknowledgement is to leave now.
    pub fn owes_ack(&self) -> bool {
        self.inbound.ack.due() == AckDue::Now
    }

    /// Marks it as a sender of forwarded data: autocorking applies even without delay.
    pub fn set_forwards(&mut self) {
        self.path.set_forwards();
    }

    /// Whether it may be forwarded to: it can send, has no error, and no send waits for room.
    pub fn takes(&self) -> bool {
        matches!(self.path.state(), State::Established | State::CloseWait)
            && self.life.error().is_none()
            && self.out.is_open()
    }

    /// Moves up to `most` received bytes to the send queue of `to` by reference; returns how many.
    /// Equals [`recv_chunks`](Self::recv_chunks) up to [`room_for`](Self::room_for) and a
    /// [`send`](Self::send), for a connection that [`gives`](Self::gives) to one that
    /// [`takes`](Self::takes). Bytes without room stay, and `to` does not wait for room.
    pub fn forward(&mut self, env: &mut Env<'_>, to: &mut Self, most: usize) -> usize {
        debug_assert!(self.gives() && to.takes(), "{} to {}", self.path.state(), to.path.state());
        // Every fragment needs an entry in the send queue.
        if self.inbound.queue.frags() > to.out.queue.entry_room() {
            return 0;
        }
        let room = take_room(to, self.inbound.queue.queued().min(most));
        if room == 0 {
            return 0;
        }
        let longest = to.path.longest_frag();
        let moved =
            self.inbound.queue.take(room, &mut SendTail { queue: &mut to.out.queue, longest });
        to.out.after_queueing(env.now, moved, moved, SendFlags::empty());
        self.inbound.note_allowance(env);
        self.after_reading(env.now);
        moved
    }
}

impl Inbound {
    /// The largest window of a forwarding connection whose sender is in the same machine.
    ///
    /// More than the next send buffer would only wait here. It is a segment less than that buffer:
    /// a sender that the window limits, not its own buffer, coalesces its data to longer segments.
    /// It is at least two segments: a sender that knows of larger windows waits until a segment
    /// fits (RFC 9293 section 3.8.6.2.1), which would take its timer.
    pub(crate) fn forward_limit(&self, path: &Path, rtt: &RttEstimator) -> u32 {
        if !path.link().stays_in_memory() || !rtt.is_near() {
            return u32::MAX;
        }
        let (buffer, segment) = (path.config().send_buffer, u32::from(path.announced_mss()));
        buffer.saturating_sub(segment).max(2 * segment).max(MIN_RECV_BUFFER)
    }
}

#[cfg(test)]
#[path = "tests/forward.rs"]
mod tests;
