//! Urgent data (RFC 9293 section 3.8.5, RFC 6093), as in Linux: one byte, in line on request.
//!
//! > RFC 6093 section 6.1: new applications SHOULD NOT employ the TCP urgent mechanism. However,
//! > TCP implementations MUST still include support for the urgent mechanism
//!
//! > RFC 6093 section 3.1: virtually all TCP implementations process TCP urgent indications in this
//! > way: the Urgent Pointer points to the byte of data following the last byte of "urgent data"
//!
//! ```text
//!    read so far          next to be read    urgent byte
//!   -----------------|-----------------------|u|---------------
//!                    copied                   ^ urgent pointer, less 1
//!                    \__ one read ends here __/
//! ```

use pagewire_mem::CopyReason;

use crate::header::{Flags, TcpHeader};
use crate::inbound::receive_queue::Each;
use crate::inbound::{InFlags, Inbound};
use crate::io_flags::RecvFlags;
use crate::path::Path;
use crate::segment::Segment;
use crate::seq::Seq;
use crate::shared::Env;

/// The urgent byte that the peer has announced last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UrgentIn {
    pub(crate) seq: Seq,
    pub(crate) what: Urgent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgent {
    /// The byte has not arrived.
    Announced,
    /// The byte has arrived.
    Byte(u8),
    Read,
}

pub(crate) struct ReadBounds {
    /// Bytes to skip first.
    pub(crate) skip: usize,
    /// Bytes to read at most.
    pub(crate) max: usize,
}

impl Inbound {
    /// The number of the first byte that the application has not read.
    #[inline]
    pub(crate) fn copied(&self) -> Seq {
        let queued = u32::try_from(self.queue.queued()).unwrap_or(u32::MAX);
        Seq(self.queue.next().0.wrapping_sub(queued))
    }

    #[inline]
    pub(crate) fn urgent_in(&self) -> Option<UrgentIn> {
        self.rare.as_ref()?.urgent_in
    }

    pub(crate) fn set_urgent_in(&mut self, urgent: Option<UrgentIn>) {
        self.flags.set(InFlags::URGENT_IN, urgent.is_some());
        if urgent.is_some() || self.rare.is_some() {
            self.rare().urgent_in = urgent;
        }
    }

    /// > RFC 9293 section 3.10.7.4: Sixth, check the URG bit: [...] If the URG bit is set, RCV.UP <-
    /// > max(RCV.UP,SEG.UP), and signal the user that the remote side has urgent data if the urgent
    /// > pointer (RCV.UP) is in advance of the data consumed.
    pub(crate) fn sixth_urgent(&mut self, path: &Path, env: &mut Env<'_>, segment: &Segment<'_>) {
        if segment.has(Flags::URG) {
            self.note_urgent(path, segment.header, segment.seq);
        }
        if !self.flags.contains(InFlags::URGENT_IN) {
            return;
        }
        let Some(urgent) = self.urgent_in().filter(|u| u.what == Urgent::Announced) else { return };
        let mut at = urgent.seq.saturating_since(segment.seq) as usize;
        if urgent.seq.lt(segment.seq) || at >= segment.len as usize {
            return;
        }
        for frag in &segment.payload {
            if at < frag.len() {
                let mut byte = [0];
                frag.copy_to(at, &mut byte, env.ledger, CopyReason::AppRead);
                self.set_urgent_in(Some(UrgentIn { what: Urgent::Byte(byte[0]), ..urgent }));
                return;
            }
            at -= frag.len();
        }
    }

    fn note_urgent(&mut self, path: &Path, header: &TcpHeader, seq: Seq) {
        let seq = seq + u32::from(header.urgent.saturating_sub(1));
        let copied = self.copied();
        let known = self.urgent_in();
        // The byte is not new: read, received without the announcement, or announced before.
        if copied.gt(seq) || seq.lt(self.rcv_nxt()) || known.is_some_and(|k| seq.le(k.seq)) {
            return;
        }
        // A second urgent byte: the first is lost if it is the next unread byte.
        if known.is_some_and(|k| k.seq == copied)
            && !path.config().oob_inline
            && self.queue.queued() > 0
        {
            self.drop_queued(1);
        }
        self.set_urgent_in(Some(UrgentIn { seq, what: Urgent::Announced }));
    }

    /// Drops bytes from the front of the queue.
    pub(crate) fn drop_queued(&mut self, n: usize) {
        self.queue.take(n, &mut Each(drop));
    }

    /// The bounds of a read: it stops at the mark; one that begins there skips the urgent byte.
    pub(crate) fn bounds(&self, path: &Path, max: usize, flags: RecvFlags) -> ReadBounds {
        let Some(urgent) = self.urgent_in() else { return ReadBounds { skip: 0, max } };
        match urgent.seq.saturating_since(self.copied()) as usize {
            0 if path.config().oob_inline || self.queue.queued() == 0 => {
                ReadBounds { skip: 0, max }
            }
            0 if flags.contains(RecvFlags::STOP_AT_URGENT) => ReadBounds { skip: 0, max: 0 },
            0 => ReadBounds { skip: 1, max },
            ahead => ReadBounds { skip: 0, max: max.min(ahead) },
        }
    }

    /// The distance to the urgent byte, read or not.
    pub(crate) fn urgent_ahead(&self) -> Option<usize> {
        let urgent = self.urgent_in()?;
        Some(urgent.seq.saturating_since(self.copied()) as usize)
    }

    /// Forgets an urgent byte before the next byte to read.
    pub(crate) fn forget_urgent(&mut self) {
        if self.flags.contains(InFlags::URGENT_IN)
            && self.urgent_in().is_none_or(|u| self.copied().gt(u.seq))
        {
            self.set_urgent_in(None);
        }
    }

    /// Whether an urgent byte waits (`POLLPRI`).
    #[inline]
    pub(crate) fn has_urgent(&self) -> bool {
        self.flags.contains(InFlags::URGENT_IN)
            && self.urgent_in().is_some_and(|u| matches!(u.what, Urgent::Byte(_)))
    }

    #[inline]
    pub(crate) fn is_at_mark(&self) -> bool {
        self.urgent_in().is_some_and(|u| u.seq == self.copied())
    }
}
