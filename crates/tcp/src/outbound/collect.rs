//! Byte path, step S1: sends that only add to a segment which waits to be full.
//!
//! While Nagle's algorithm holds a small segment back, a further small send changes nothing but the
//! queue: no segment leaves, no timer is set, nobody's readiness changes. Whoever knows that beforehand
//! needs neither a clock nor a look at what follows, and most calls of an application that sends small
//! pieces are such: fifteen of sixteen, if they are pages and a segment has fifteen.

use pagewire_mem::{CopyLedger, CopyReason, Frag, Instant, PagePool, PageWriter};

use crate::connection::Connection;
use crate::io_flags::SendFlags;
use crate::limits::{MAX_SEND_BUFFER, MAX_SUPER_SEGMENTS};
use crate::options::MAX_OPTIONS_LEN;
use crate::outbound::account::Limit;
use crate::outbound::loss::CaState;
use crate::outbound::{OutFlags, Outbound, Transfer};
use crate::path::Path;
use crate::seq::Seq;

/// What `poll_transmit` has to be asked for, or what makes it ask for more than Nagle's algorithm.
const DUE: OutFlags = OutFlags::FIN_QUEUED
    .union(OutFlags::FLUSH_DUE)
    .union(OutFlags::PROBE_DUE)
    .union(OutFlags::CORK)
    .union(OutFlags::MORE)
    .union(OutFlags::WAITS_FOR_ROOM);

impl Connection {
    /// Whether all that was queued last is for the segment that Nagle's algorithm holds back, which
    /// is not full yet: [`poll_transmit`](Self::poll_transmit) would have nothing new to say.
    #[inline]
    pub fn is_collecting(&self) -> bool {
        let mss = self.out.transfer.send_mss(&self.path);
        let blocks = || self.inbound.tells_blocks(&self.path);
        !self.life.owes_reset()
            && self.out.collects(
                &self.path,
                0,
                mss,
                self.out.transfer.piece(&self.path, mss),
                blocks,
            )
    }

    /// Adds `len` bytes to the fragment that was queued last, if that is all that comes of it, and if
    /// `grow`, which is given that fragment, says so: then it has added them. Needs no clock, and
    /// [`poll_transmit`](Self::poll_transmit) need not be asked afterwards.
    pub fn collect<T>(
        &mut self,
        len: usize,
        grow: impl FnOnce(&mut Frag) -> Option<T>,
    ) -> Option<T> {
        let piece = collecting_piece(self, len)?;
        let before = self.out.queue.end();
        let longest = self.path.longest_frag();
        let grown = self.out.queue.grow_last(longest, grow)??;
        debug_assert_eq!(self.out.queue.end(), before + len as u32, "it has grown by as much");
        self.out.piece = piece;
        self.out.pushed = self.out.queue.end();
        Some(grown)
    }

    /// Adds `len` bytes to the fragment that was queued last, if some of that was never sent, there is
    /// room for all of them, and `grow`, which is given that fragment, says so: then it has added
    /// them. Otherwise they have to be [sent](Self::send) as any other.
    pub fn send_behind<T>(
        &mut self,
        now: Instant,
        len: usize,
        grow: impl FnOnce(&mut Frag) -> Option<T>,
    ) -> Option<T> {
        let wanted = u32::try_from(len).ok().filter(|&len| len > 0 && len <= MAX_SEND_BUFFER)?;
        let ready = self.path.state().can_send()
            && self.life.error().is_none()
            && !self.out.flags.contains(OutFlags::FIN_QUEUED)
            && self.out.queue.has_entry_room();
        if !ready || self.out.unsent(&self.path) == 0 {
            return None;
        }
        let (room, piece) = self.out.admit(&self.path, wanted);
        if room < wanted {
            return None;
        }
        let before = self.out.queue.end();
        let longest = self.path.longest_frag();
        let grown = self.out.queue.grow_last(longest, grow)??;
        debug_assert_eq!(self.out.queue.end(), before + wanted, "it has grown by as much");
        self.out.piece = piece;
        self.out.after_queueing(now, len, len, SendFlags::empty());
        Some(grown)
    }

    /// Queues a copy of all of `data`, if that is all that comes of it; see
    /// [`collect`](Self::collect). `false`: it has to be [written](Self::write) as any other.
    pub fn collect_copy(
        &mut self,
        pool: &mut PagePool,
        writer: &mut PageWriter,
        ledger: &mut CopyLedger,
        data: &[u8],
    ) -> bool {
        let Some(piece) = collecting_piece(self, data.len()) else { return false };
        if !writer.has_room(pool, data.len()) {
            return false;
        }
        let (frags, _) = writer.write(pool, data, ledger, CopyReason::AppWrite);
        let longest = self.path.longest_frag();
        for frag in frags {
            self.out.queue.push(frag, longest);
        }
        self.out.piece = piece;
        self.out.pushed = self.out.queue.end();
        true
    }
}

fn collecting_piece(conn: &Connection, len: usize) -> Option<Seq> {
    let quiet = conn.life.error().is_none() && !conn.life.owes_reset();
    if quiet {
        conn.out.begun_piece(&conn.path, len, || conn.inbound.tells_blocks(&conn.path))
    } else {
        None
    }
}

impl Outbound {
    /// Whether all that was queued is under way or has arrived, and nothing else is to be said.
    pub(crate) fn has_sent_all(&self, path: &Path) -> bool {
        self.unsent(path) == 0
            && (!self.transfer.flight.is_empty() || !self.persist.is_set())
            && !self.transfer.flight.has_lost()
            && !self.flags.intersects(DUE)
            && path.state().may_transmit()
            && path.config().mtu_probing.is_none()
    }

    /// Whether that holds now, and after `more` bytes.
    ///
    /// `blocks`: SACK blocks are to be told.
    pub(crate) fn collects(
        &self,
        path: &Path,
        more: u32,
        mss: u32,
        piece: u32,
        blocks: impl Fn() -> bool,
    ) -> bool {
        let unsent = self.unsent(path);
        let waiting = unsent.saturating_add(more);
        !self.flags.intersects(DUE)
            && path.state().may_transmit()
            && !self.transfer.flight.is_empty()
            && unsent > 0
            && (self.gathers(path, waiting, mss, piece)
                || self.fills_segment(waiting, mss, piece, blocks))
    }

    /// Whether `waiting` bytes are less than a segment, for which Nagle's algorithm waits.
    fn fills_segment(&self, waiting: u32, mss: u32, piece: u32, blocks: impl Fn() -> bool) -> bool {
        // Blocks make a segment shorter, and more of them may be told than now.
        let spare = || {
            if blocks() || self.transfer.tells_bytes(true) { MAX_OPTIONS_LEN as u32 } else { 0 }
        };
        waiting < mss
            && waiting.saturating_add(spare()) < mss
            && self.holds_back_small()
            && self.left_of_piece(waiting, piece) == waiting
    }

    /// Whether `unsent` bytes wait to become a full super-frame.
    ///
    /// Where the peer is in the same machine, what is sent while it has not looked yet is not any
    /// sooner there for being a frame of its own, and each frame costs both sides. So less than a full
    /// super-frame waits while more is under way than the peer delays an acknowledgement for: that is
    /// owed at once, and lets go of all that was sent meanwhile. Linux's `tcp_autocorking` waits in the
    /// same way for the device.
    ///
    /// Who asked for no delay is not made to wait, but for connections that send what was received
    /// elsewhere: that is asked for there because of what comes alone, and that leaves at once.
    pub(crate) fn gathers(&self, path: &Path, unsent: u32, mss: u32, piece: u32) -> bool {
        path.link().stays_in_memory()
            // The peer delays for a segment of those that it takes, which may be longer than ours.
            && self.transfer.in_flight() > u32::from(path.link().mss.max(self.transfer.snd.peer_mss))
            && !self.flags.intersects(DUE)
            && (!self.flags.contains(OutFlags::NODELAY) || path.forwards())
            && self.transfer.loss.state < CaState::Recovery
            && self.queue.end() != self.flush_to
            && !self.sends_urgent()
            && self.transfer.rtt.is_near()
            // A full one waits for nothing.
            && unsent < longest_now(&self.transfer, path, mss)
            && self.left_of_piece(unsent.saturating_add(1), piece) > unsent
    }

    /// Where the piece begins to which `len` more bytes are added, if that is all that comes of it: it
    /// was begun, so it is filled whatever else there is room for (see `room.rs`).
    pub(crate) fn begun_piece(
        &self,
        path: &Path,
        len: usize,
        blocks: impl Fn() -> bool,
    ) -> Option<Seq> {
        let len = u32::try_from(len).ok().filter(|&len| len > 0)?;
        let end = self.queue.end();
        let begun = self.piece.max(self.transfer.snd.nxt).min(end);
        let filled = end.saturating_since(begun);
        let ready = filled > 0
            && path.state().can_send()
            && self.limit != Limit::Idle
            && self.queue.has_entry_room();
        if !ready {
            return None;
        }
        let mss = self.transfer.send_mss(path);
        let piece = self.transfer.piece(path, mss);
        let adds = filled.saturating_add(len) <= piece;
        (adds && self.collects(path, len, mss, piece, blocks)).then_some(begun)
    }
}

/// Payload of the longest super-frame that can leave now. Who waits for more than the congestion
/// window lets go waits in vain, and does not use it up, so that it never grows.
fn longest_now(transfer: &Transfer, path: &Path, mss: u32) -> u32 {
    let segments = mss.saturating_mul(MAX_SUPER_SEGMENTS);
    let longest = path.link().max_super_payload.min(segments).min(transfer.cwnd_room(mss));
    // Who wants little to wait unsent counts what can leave at once as sent.
    longest.min(path.config().notsent_lowat)
}
