//! The sending side's counters for [`Info`](crate::Info): segments, and the times that sending waits.

use core::time::Duration;

use pagewire_mem::{Frag, Instant};

use crate::outbound::{OutFlags, Outbound};
use crate::path::Path;
use crate::segment::SegmentOut;

/// The limit that sending waits for; each has a sum of times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SendLimit {
    /// Nothing is queued.
    #[default]
    Idle,
    /// The network.
    Busy,
    /// The peer's window.
    Window,
    /// The application, which waits for room in the send buffer.
    Buffer,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyTimes {
    pub(crate) since: Instant,
    /// Nanoseconds.
    pub(crate) busy: u64,
    pub(crate) segments_out: u32,
    pub(crate) data_segments_out: u32,
}

impl Outbound {
    #[inline]
    pub(crate) fn count_out(&mut self, segment: &SegmentOut) {
        let len: usize = segment.payload.iter().map(Frag::len).sum();
        let segments = segment.gso_size.map_or(1, |size| len.div_ceil(usize::from(size)) as u32);
        let account = &mut self.account;
        account.segments_out = account.segments_out.wrapping_add(segments);
        if len > 0 {
            account.data_segments_out = account.data_segments_out.wrapping_add(segments);
        }
    }

    /// Data was queued.
    #[inline]
    pub(crate) fn note_busy(&mut self, now: Instant) {
        if self.limit == SendLimit::Idle {
            self.set_limit(now, SendLimit::Busy);
        }
    }

    /// Everything that can leave has left: notes what sending waits for.
    pub(crate) fn note_limit(&mut self, path: &Path, now: Instant) {
        if self.limit == SendLimit::Idle && self.queue.len() == 0 {
            return;
        }
        let unsent = self.unsent(path);
        let limit = if self.queue.len() == 0 {
            SendLimit::Idle
        } else if unsent == 0 {
            let waits = self.flags.contains(OutFlags::WAITS_FOR_ROOM) && path.state().can_send();
            if waits { SendLimit::Buffer } else { SendLimit::Busy }
        } else {
            let allowed = self.transfer.send_edge().saturating_since(self.transfer.snd.nxt);
            let by_peer = self.transfer.packets_in_flight() < self.transfer.congestion.cwnd()
                && allowed < unsent.min(self.transfer.send_mss(path));
            if by_peer { SendLimit::Window } else { SendLimit::Busy }
        };
        if limit != self.limit {
            self.set_limit(now, limit);
        }
    }

    #[inline]
    fn set_limit(&mut self, now: Instant, limit: SendLimit) {
        let passed = now.saturating_since(self.account.since);
        match self.limit {
            SendLimit::Idle => {}
            SendLimit::Busy => self.account.busy += passed.as_nanos() as u64,
            SendLimit::Window => self.transfer.rare().window_limited += passed,
            SendLimit::Buffer => self.transfer.rare().buffer_limited += passed,
        }
        self.account.since = now;
        self.limit = limit;
    }

    /// Time with data in the send queue; of this, limited by the peer's window, and by the buffer.
    pub(crate) fn busy_times(&self, now: Option<Instant>) -> [Duration; 3] {
        let running = now.map_or(Duration::ZERO, |now| now.saturating_since(self.account.since));
        let mut times = [Duration::from_nanos(self.account.busy), Duration::ZERO, Duration::ZERO];
        if let Some(rare) = &self.transfer.rare {
            (times[1], times[2]) = (rare.window_limited, rare.buffer_limited);
        }
        match self.limit {
            SendLimit::Idle => {}
            SendLimit::Busy => times[0] += running,
            SendLimit::Window => times[1] += running,
            SendLimit::Buffer => times[2] += running,
        }
        times[0] += times[1] + times[2];
        times
    }
}
