//! Forwarding: received data moves from one connection's receive queue to another's send queue. The
//! stack's splice calls it.

use crate::connection::Connection;
use crate::inbound::InFlags;
use crate::inbound::ack::AckDue;
use crate::inbound::receive_queue::Each;
use crate::io_flags::SendFlags;
use crate::life::state::State;
use crate::outbound::OutFlags;
use crate::shared::Env;

impl Connection {
    /// Whether it may be forwarded from: it can receive, and has no end, urgent byte or error.
    pub fn gives(&self) -> bool {
        let ends = InFlags::FIN_RECEIVED | InFlags::READ_SHUT | InFlags::URGENT_IN;
        self.path.state().can_receive()
            && self.life.error.is_none()
            && !self.inbound.flags.intersects(ends)
    }

    /// Whether an acknowledgement is to leave now.
    pub fn ack_due(&self) -> bool {
        self.inbound.ack.due == AckDue::Now
    }

    /// Marks it as a sender of forwarded data: autocorking applies even without delay.
    pub fn set_forwards(&mut self) {
        self.path.forwards = true;
    }

    /// Whether it may be forwarded to: it can send, has no error, and no send waits for room.
    pub fn takes(&self) -> bool {
        matches!(self.path.state(), State::Established | State::CloseWait)
            && self.life.error.is_none()
            && !self.out.flags.intersects(OutFlags::FIN_QUEUED | OutFlags::WAITS_FOR_ROOM)
    }

    /// Moves up to `most` received bytes to the send queue of `to` by reference; returns how many.
    /// Equals [`recv_chunks`](Self::recv_chunks) up to [`room_for`](Self::room_for) and a
    /// [`send`](Self::send), for a connection that [`gives`](Self::gives) to one that
    /// [`takes`](Self::takes). Bytes without room stay, and `to` does not wait for room.
    pub fn forward(&mut self, env: &mut Env<'_>, to: &mut Self, most: usize) -> usize {
        debug_assert!(self.gives() && to.takes(), "{} to {}", self.path.state(), to.path.state());
        // Every fragment needs an entry in the send queue.
        if !to.out.queue.has_room_for(self.inbound.queue.in_order.frags().len()) {
            return 0;
        }
        let room = to.take_room(self.inbound.queue.queued().min(most));
        if room == 0 {
            return 0;
        }
        let longest = to.path.longest_frag();
        let queue = &mut to.out.queue;
        let moved = self.inbound.queue.take(room, &mut Each(|frag| queue.push(frag, longest)));
        to.out.after_queueing(env.now, moved, moved, SendFlags::empty());
        self.after_reading(env);
        moved
    }
}

#[cfg(test)]
#[path = "tests/forward.rs"]
mod tests;
