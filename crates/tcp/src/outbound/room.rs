//! Byte path, step S1: how much a send may queue, and when there is room again.
//!
//! The send buffer is charged as Linux charges it, so that programs made for its buffers meet the
//! same limits: data is queued in pieces of up to a super-frame, a piece costs its payload and a
//! fixed overhead, and one is begun while the buffer is not used up (and not too much waits unsent)
//! and then filled. What can leave at once has left as far as this is concerned.

use pagewire_mem::Instant;

use crate::connection::Connection;
use crate::io_flags::SendFlags;
use crate::limits::{
    DEFAULT_MSS, MAX_SEND_BUFFER, MAX_SEND_PIECE, SEGMENT_OVERHEAD, SEND_PIECE_OVERHEAD,
};
use crate::outbound::{OutFlags, Outbound, Transfer};
use crate::path::Path;
use crate::seq::Seq;

/// Segments of the initial window, for which there is always room.
const INITIAL_SEGMENTS: u32 = 10;

impl Connection {
    /// `wanted` bytes are about to be queued: how many may be, and notes where the last piece begins.
    pub(crate) fn take_room(&mut self, wanted: usize) -> usize {
        if !self.life.takes_data(&self.path) || !self.out.queue.has_entry_room() {
            return 0;
        }
        if self.life.waits_for_data(&self.path) {
            let room = self.room_for(wanted);
            self.out.begin_pieces(&self.path, room);
            return room;
        }
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX).min(MAX_SEND_BUFFER);
        match self.out.admit(&self.path, wanted) {
            (room, piece) if room == wanted => {
                self.out.piece = piece;
                room as usize
            }
            (0, _) => 0,
            (room, _) => {
                self.out.begin_pieces(&self.path, room as usize);
                room as usize
            }
        }
    }

    /// How many of `wanted` bytes may be queued now.
    pub fn room_for(&self, wanted: usize) -> usize {
        if !self.life.takes_data(&self.path) || !self.out.queue.has_entry_room() {
            return 0;
        }
        if self.life.waits_for_data(&self.path) {
            let room = self.life.syn_data_room(&self.path).saturating_sub(self.out.queue.len());
            return wanted.min(room as usize);
        }
        let (room, _) = self
            .out
            .admit(&self.path, u32::try_from(wanted).unwrap_or(u32::MAX).min(MAX_SEND_BUFFER));
        room as usize
    }
}

impl Outbound {
    /// How many of the `unsent` bytes belong to the piece that is sent next: a super-frame does not
    /// go beyond it, as in Linux. Pieces lie side by side, the last begins at `piece`.
    #[inline]
    pub(crate) fn left_of_piece(&self, unsent: u32, piece: u32) -> u32 {
        let next = self.transfer.snd.nxt;
        // Divided only where it has to be: a division is slow.
        let beyond = |n: u32| if n < piece { n } else { n % piece };
        let left = if self.piece.gt(next) {
            match beyond(self.piece.since(next)) {
                0 => piece,
                left => left,
            }
        } else {
            piece - beyond(next.since(self.piece))
        };
        unsent.min(left)
    }

    /// The send buffer as it is now, within its limit.
    #[inline]
    pub(crate) fn send_buffer(&self, path: &Path) -> u32 {
        let max = path.config().send_buffer;
        path.config().send_buffer_initial.max(self.buffer).min(max).min(MAX_SEND_BUFFER)
    }

    /// What `bytes` in the queue are charged.
    #[inline]
    fn charge(&self, bytes: u32, piece: u32) -> u64 {
        let pieces = if bytes <= piece { u32::from(bytes > 0) } else { bytes.div_ceil(piece) };
        u64::from(bytes) + u64::from(pieces) * u64::from(SEND_PIECE_OVERHEAD)
    }

    /// How many of `wanted` bytes may be queued now, and where the piece begins that they end in.
    pub(crate) fn admit(&self, path: &Path, wanted: u32) -> (u32, Seq) {
        let mss = self.transfer.send_mss(path);
        let piece = self.transfer.piece(path, mss);
        // A piece that is begun is filled whatever else there is room for.
        let mut known = None;
        let mut soon = || *known.get_or_insert_with(|| sent_soon(&self.transfer, path, mss));
        let buffer = u64::from(self.send_buffer(path));
        let (mut end, mut taken) = (self.queue.end(), 0);
        let mut begun = self.piece.max(self.transfer.snd.nxt).min(end);
        while taken < wanted {
            let mut filled = end.saturating_since(begun);
            if filled >= piece {
                // It leaves as far as it can, and what stays is filled again.
                begun = begun.max(soon()).min(end);
                filled = end.saturating_since(begun);
            }
            if filled == 0 || filled >= piece {
                let used = self.charge(self.queue.len() + taken, piece);
                if used >= buffer || waits_unsent(&self.transfer, path, end, 1, mss) {
                    break;
                }
                (begun, filled) = (end, 0);
            }
            let n = (piece - filled).min(wanted - taken);
            taken += n;
            end += n;
        }
        (taken, begun)
    }

    /// `wanted` bytes are about to be queued, of which `room_for` had room for
    /// `taken`: notes where the last piece begins.
    pub(crate) fn begin_pieces(&mut self, path: &Path, taken: usize) {
        self.piece = self.admit(path, u32::try_from(taken).unwrap_or(u32::MAX)).1;
    }

    /// A send has queued `taken` of the `wanted` bytes.
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
        // As in Linux: what could not be queued as a whole is not held back for more.
        let whole = taken == wanted;
        let more = whole && flags.contains(SendFlags::MORE);
        self.flags.set(OutFlags::MORE, more);
        // A receiver that waits for a push gets one for each half of its window.
        if !more || end.saturating_since(self.pushed) > self.transfer.snd.max_window / 2 {
            self.pushed = end;
        }
        if whole && flags.contains(SendFlags::END_OF_RECORD) {
            self.queue.end_record();
            self.piece = end;
        }
        if whole && flags.contains(SendFlags::URGENT) {
            self.transfer.rare().urgent_out = Some(end);
            self.flags.insert(OutFlags::URGENT_OUT);
        }
        self.note_busy(now);
    }

    /// A sender that was told to wait is called back when a third of the buffer is free, not for
    /// every byte, and when less than half of what may wait unsent does.
    pub(crate) fn is_writable(&self, path: &Path) -> bool {
        let queued = self.queue.len();
        let is_third_free = |used: u64| used + used / 2 <= u64::from(self.send_buffer(path));
        // The bytes alone decide it, mostly: what their pieces are takes a division.
        if !is_third_free(u64::from(queued)) {
            return false;
        }
        let mss = self.transfer.send_mss(path);
        let used = || self.charge(queued, self.transfer.piece(path, mss));
        (queued == 0 || is_third_free(used()))
            && self.queue.has_entry_room()
            && !waits_unsent(&self.transfer, path, self.queue.end(), 2, mss)
    }

    /// Has the send buffer follow the congestion window: room for two of them, one under way and
    /// one to follow, at what Linux's frames take in memory.
    pub(crate) fn grow_send_buffer(&mut self, path: &Path) {
        let mss = self.transfer.snd.peer_mss.min(path.path_mss());
        let frame =
            (u32::from(mss) + SEGMENT_OVERHEAD).next_power_of_two() + SEGMENT_OVERHEAD / 5 * 2;
        let segments = (self.transfer.congestion.cwnd()).max(INITIAL_SEGMENTS);
        self.buffer = self.buffer.max(frame.saturating_mul(2).saturating_mul(segments));
    }

    /// An acknowledgement came, and what it lets go has left: whoever waits for room may have it.
    /// A sender that fills its congestion window needs no more of it.
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
    /// Payload of a full piece: whole segments (of `mss`, which is [`send_mss`](Self::send_mss)), at
    /// most half of the peer's largest window.
    #[inline]
    pub(crate) fn piece(&self, path: &Path, mss: u32) -> u32 {
        let window = self.snd.max_window;
        let half = if window > u32::from(DEFAULT_MSS) { window / 2 } else { window };
        // One longer than Linux's is for buffers that have room for two: a small one is a bound that
        // somebody set.
        let most = match path.link().stays_in_memory() {
            true => path
                .link()
                .max_super_payload
                .min((path.config().send_buffer / 2).max(MAX_SEND_PIECE)),
            false => MAX_SEND_PIECE,
        };
        let piece = most.min(half.max(mss));
        // One segment that fills a piece is what large MTUs make of it; a division is slow.
        if piece < 2 * mss { mss } else { piece - piece % mss }
    }
}

/// What will be the first byte unsent once all has left that the windows let go.
fn sent_soon(transfer: &Transfer, path: &Path, mss: u32) -> Seq {
    let next = transfer.next_data(path);
    if !path.state().may_transmit() {
        return next;
    }
    let allowed = transfer.send_edge().saturating_since(next);
    let usable = transfer.window_room(mss).min(allowed);
    next + (usable - usable % mss)
}

/// Whether `times` what waits unsent in front of `end` is more than may.
#[inline]
fn waits_unsent(transfer: &Transfer, path: &Path, end: Seq, times: u64, mss: u32) -> bool {
    let lowat = path.config().notsent_lowat;
    // No limit, which is the default, is not worth the arithmetic.
    lowat != u32::MAX
        && u64::from(end.saturating_since(sent_soon(transfer, path, mss))) * times
            >= u64::from(lowat)
}
