//! Room in the send buffer: how much a send may queue, and when the connection is writable again.
//!
//! The send buffer is charged as Linux charges it, so that applications meet the same limits. Data
//! is queued in super-segments, of at most a super-frame each. A super-segment costs its payload
//! and a fixed overhead. A new one begins while the buffer has room (and not too much is unsent);
//! one that has begun is always filled. Data that can leave at once counts as sent.

use pagewire_mem::Instant;

use crate::io_flags::SendFlags;
use crate::limits::{
    DEFAULT_MSS, MAX_SEND_BUFFER, MAX_SUPER_SEGMENT, SEGMENT_OVERHEAD, SUPER_SEGMENT_OVERHEAD,
};
use crate::outbound::{OutFlags, Outbound, Transfer};
use crate::path::Path;
use crate::seq::Seq;

/// Segments of the initial window, for which there is always room.
const INITIAL_SEGMENTS: u32 = 10;

impl Outbound {
    /// How many of the `unsent` bytes belong to the super-segment, and so to the frame, sent next.
    #[inline]
    pub(crate) fn left_of_super_segment(&self, unsent: u32, super_len: u32) -> u32 {
        let next = self.transfer.snd.nxt;
        // Avoids the division where it can: it is slow.
        let beyond = |n: u32| if n < super_len { n } else { n % super_len };
        let left = if self.super_segment.gt(next) {
            match beyond(self.super_segment.since(next)) {
                0 => super_len,
                left => left,
            }
        } else {
            super_len - beyond(next.since(self.super_segment))
        };
        unsent.min(left)
    }

    /// The send buffer as it is now, within its limit.
    #[inline]
    pub(crate) fn send_buffer(&self, path: &Path) -> u32 {
        let max = path.config().send_buffer;
        path.config().send_buffer_initial.max(self.buffer).min(max).min(MAX_SEND_BUFFER)
    }

    /// The charge of `bytes` in the queue.
    #[inline]
    fn charge(&self, bytes: u32, super_len: u32) -> u64 {
        let count =
            if bytes <= super_len { u32::from(bytes > 0) } else { bytes.div_ceil(super_len) };
        u64::from(bytes) + u64::from(count) * u64::from(SUPER_SEGMENT_OVERHEAD)
    }

    /// How many of `wanted` bytes may be queued now, and where their last super-segment begins.
    pub(crate) fn admit(&self, path: &Path, wanted: u32) -> (u32, Seq) {
        let mss = self.transfer.send_mss(path);
        let super_len = self.transfer.super_segment_len(path, mss);
        let mut known = None;
        let mut soon = || *known.get_or_insert_with(|| self.transfer.sent_soon(path, mss));
        let buffer = u64::from(self.send_buffer(path));
        let (mut end, mut taken) = (self.queue.end(), 0);
        let mut begun = self.super_segment.max(self.transfer.snd.nxt).min(end);
        while taken < wanted {
            let mut filled = end.saturating_since(begun);
            if filled >= super_len {
                // The super-segment leaves as far as the windows allow, and the rest is filled again.
                begun = begun.max(soon()).min(end);
                filled = end.saturating_since(begun);
            }
            if filled == 0 || filled >= super_len {
                let used = self.charge(self.queue.len() + taken, super_len);
                if used >= buffer || self.transfer.waits_unsent(path, end, 1, mss) {
                    break;
                }
                (begun, filled) = (end, 0);
            }
            let n = (super_len - filled).min(wanted - taken);
            taken += n;
            end += n;
        }
        (taken, begun)
    }

    /// `taken` bytes are about to be queued: notes where the last super-segment begins.
    pub(crate) fn begin_super_segment(&mut self, path: &Path, taken: usize) {
        self.super_segment = self.admit(path, u32::try_from(taken).unwrap_or(u32::MAX)).1;
    }

    /// A send has queued `taken` of the `wanted` bytes.
    #[inline]
    pub(crate) fn after_queueing(
        &mut self,
        now: Instant,
        taken: usize,
        wanted: usize,
        flags: SendFlags,
    ) {
        if taken < wanted {
            self.flags.insert(OutFlags::WAITS_FOR_ROOM);
        }
        if taken == 0 {
            return;
        }
        let end = self.queue.end();
        // As in Linux: data of a send that did not fit as a whole is not held back for more.
        let whole = taken == wanted;
        let more = whole && flags.contains(SendFlags::MORE);
        self.flags.set(OutFlags::MORE, more);
        // A push for each half of the peer's window, for a receiver that waits for one.
        if !more || end.saturating_since(self.pushed) > self.transfer.snd.max_window / 2 {
            self.pushed = end;
        }
        if whole && flags.contains(SendFlags::END_OF_RECORD) {
            self.queue.end_record();
            self.super_segment = end;
        }
        if whole && flags.contains(SendFlags::URGENT) {
            self.transfer.rare().urgent_out = Some(end);
            self.flags.insert(OutFlags::URGENT_OUT);
        }
        self.note_busy(now);
    }

    /// Writable again: a third of the buffer is free, and less than half of the limit is unsent.
    pub(crate) fn is_writable(&self, path: &Path) -> bool {
        let queued = self.queue.len();
        let is_third_free = |used: u64| used + used / 2 <= u64::from(self.send_buffer(path));
        // Mostly the bytes alone decide it, without the division for the overhead.
        if !is_third_free(u64::from(queued)) {
            return false;
        }
        let mss = self.transfer.send_mss(path);
        let used = || self.charge(queued, self.transfer.super_segment_len(path, mss));
        (queued == 0 || is_third_free(used()))
            && self.queue.has_room_for(1)
            && !self.transfer.waits_unsent(path, self.queue.end(), 2, mss)
    }

    /// Lets the send buffer follow the congestion window: room for two, at Linux's frame sizes.
    pub(crate) fn grow_send_buffer(&mut self, path: &Path) {
        let mss = self.transfer.snd.peer_mss.min(path.path_mss());
        let frame =
            (u32::from(mss) + SEGMENT_OVERHEAD).next_power_of_two() + SEGMENT_OVERHEAD / 5 * 2;
        let segments = (self.transfer.congestion.cwnd()).max(INITIAL_SEGMENTS);
        self.buffer = self.buffer.max(frame.saturating_mul(2).saturating_mul(segments));
    }

    /// Nothing more can leave: grows the buffer unless the window is full; ends the wait for room.
    #[inline]
    pub(crate) fn check_room(&mut self, path: &Path) {
        if !self.flags.contains(OutFlags::ACKED | OutFlags::WAITS_FOR_ROOM) {
            return;
        }
        self.flags.remove(OutFlags::ACKED);
        if self.transfer.packets_in_flight() < self.transfer.congestion.cwnd() {
            self.grow_send_buffer(path);
        }
        if self.is_writable(path) {
            self.flags.remove(OutFlags::WAITS_FOR_ROOM);
        }
    }
}

impl Transfer {
    /// Payload of a full super-segment: whole segments of `mss`, at most half of the peer's window.
    #[inline]
    pub(crate) fn super_segment_len(&self, path: &Path, mss: u32) -> u32 {
        let window = self.snd.max_window;
        let half = if window > u32::from(DEFAULT_MSS) { window / 2 } else { window };
        // Longer than Linux's only in a buffer that has room for two.
        let most = match path.link.stays_in_memory() {
            true => path
                .link
                .max_super_payload
                .min((path.config().send_buffer / 2).max(MAX_SUPER_SEGMENT)),
            false => MAX_SUPER_SEGMENT,
        };
        let super_len = most.min(half.max(mss));
        // With a large MTU one segment fills it; this avoids the division.
        if super_len < 2 * mss { mss } else { super_len - super_len % mss }
    }

    /// The first byte that stays unsent after everything the windows allow has left.
    fn sent_soon(&self, path: &Path, mss: u32) -> Seq {
        let next = self.next_data(path);
        if !path.state().may_transmit() {
            return next;
        }
        let allowed = self.send_edge().saturating_since(next);
        let usable = self.window_room(mss).min(allowed);
        next + (usable - usable % mss)
    }

    /// Whether `times` the unsent bytes before `end` reach the limit.
    #[inline]
    fn waits_unsent(&self, path: &Path, end: Seq, times: u64, mss: u32) -> bool {
        let lowat = path.config().notsent_lowat;
        lowat != u32::MAX
            && u64::from(end.saturating_since(self.sent_soon(path, mss))) * times
                >= u64::from(lowat)
    }
}
