//! Byte path, from R6 of one connection to S2 of another: what was received is queued to be sent, as
//! one step, for hosts that pass on what comes.

use pagewire_mem::Frag;

use crate::connection::Connection;
use crate::inbound::{AckDue, Inbound};
use crate::io_flags::SendFlags;
use crate::life::state::State;
use crate::limits::MIN_RECV_BUFFER;
use crate::outbound::rtt::RttEstimator;
use crate::outbound::send_queue::SendQueue;
use crate::path::Path;
use crate::shared::Env;

/// A send queue that what is taken from a receive queue goes to.
struct Behind<'a> {
    queue: &'a mut SendQueue,
    longest: usize,
}

impl Extend<Frag> for Behind<'_> {
    fn extend<T: IntoIterator<Item = Frag>>(&mut self, frags: T) {
        for frag in frags {
            self.queue.push(frag, self.longest);
        }
    }
}

impl Connection {
    /// Whether what was received is nothing but data, with more of it to come: no end of the stream, no
    /// urgent byte, no error that the application is to be told first.
    pub fn gives(&self) -> bool {
        self.path.state().can_receive() && self.life.error().is_none() && self.inbound.is_plain()
    }

    /// Whether an acknowledgement is to leave now.
    pub fn owes_ack(&self) -> bool {
        self.inbound.ack.due() == AckDue::Now
    }

    /// What is sent from now on was received elsewhere, and sent on as it came: it waits for company
    /// only where that takes no time.
    pub fn set_forwards(&mut self) {
        self.path.set_forwards();
    }

    /// Whether a send would be welcome: the stream is not ended, there is no error that the application
    /// is to be told first, and no send waits for room.
    pub fn takes(&self) -> bool {
        matches!(self.path.state(), State::Established | State::CloseWait)
            && self.life.error().is_none()
            && self.out.is_open()
    }

    /// Moves up to `most` received bytes to the send queue of `to`, by reference; returns how many.
    /// The same as [`recv_chunks`](Self::recv_chunks) of what [`room_for`](Self::room_for) has room
    /// for, and a [`send`](Self::send) of that, for a connection that [`gives`](Self::gives) to one
    /// that [`takes`](Self::takes). What there is no room for stays, and is not waited for.
    pub fn forward(&mut self, env: &mut Env<'_>, to: &mut Self, most: usize) -> usize {
        debug_assert!(self.gives() && to.takes(), "{} to {}", self.path.state(), to.path.state());
        // What is received counts its fragments when it is read: here they need places.
        if self.inbound.queue.frags() > to.out.queue.entry_room() {
            return 0;
        }
        let room = to.take_room(self.inbound.queue.queued().min(most));
        if room == 0 {
            return 0;
        }
        let longest = to.path.longest_frag();
        let moved =
            self.inbound.queue.take(room, &mut Behind { queue: &mut to.out.queue, longest });
        to.out.after_queueing(env.now, moved, moved, SendFlags::empty());
        self.inbound.note_allowance(env);
        self.after_reading(env.now);
        moved
    }
}

impl Inbound {
    /// What the window may be where what comes is sent on.
    ///
    /// From a sender in the same machine, more than the send buffer takes that it goes to would come no
    /// sooner, and only wait here. And a sender that is held up by the window, not by its own buffer,
    /// joins what it is given meanwhile to longer segments: so it is a segment less, for those whose
    /// buffers are as long as ours. It is never less than two segments: a sender that has heard of more
    /// waits until the window takes one (RFC 9293 section 3.8.6.2.1), which would be for its timer.
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
