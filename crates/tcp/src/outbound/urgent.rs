//! The urgent byte that we send (`inbound/urgent.rs` explains).

use crate::outbound::{OutFlags, Outbound};
use crate::seq::Seq;

impl Outbound {
    /// > RFC 9293 section 3.8.5: the urgent pointer [...] communicates the current value of the
    /// > urgent pointer as a positive offset from the sequence number in this segment
    ///
    /// The urgent pointer of a segment that begins at `seq`, if it fits, as in Linux.
    #[inline]
    pub(crate) fn urgent_pointer(&self, seq: Seq) -> Option<u16> {
        if !self.flags.contains(OutFlags::URGENT_OUT) {
            return None;
        }
        let up = self.transfer.rare.as_ref()?.urgent_out?;
        if !seq.lt(up) {
            return None;
        }
        match u16::try_from(up.since(seq)) {
            Ok(pointer) => Some(pointer),
            Err(_) if (seq + 0xffff).gt(self.transfer.snd.nxt) => Some(u16::MAX),
            Err(_) => None,
        }
    }

    /// Whether urgent data is unacknowledged: it is not held back, nor sent in super-frames.
    #[inline]
    pub(crate) fn sends_urgent(&self) -> bool {
        self.flags.contains(OutFlags::URGENT_OUT)
    }

    /// Forgets the urgent byte once it is acknowledged.
    #[inline]
    pub(crate) fn settle_urgent(&mut self) {
        if !self.flags.contains(OutFlags::URGENT_OUT) {
            return;
        }
        let una = self.transfer.snd.una;
        if self.transfer.rare.as_ref().and_then(|r| r.urgent_out).is_none_or(|up| up.le(una)) {
            self.transfer.rare().urgent_out = None;
            self.flags.remove(OutFlags::URGENT_OUT);
        }
    }
}
