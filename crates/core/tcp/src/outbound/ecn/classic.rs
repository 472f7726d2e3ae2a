//! Classic feedback (RFC 3168 section 6.1): an echo that lasts until the sender has reacted.

use crate::header::{Flags, TcpHeader};
use crate::limits::QUICK_ACKS_AFTER_MARK;
use crate::outbound::Transfer;
use crate::outbound::ecn::{CE, ECT0, EcnFlags, NOT_ECT};

impl Transfer {
    /// A segment came in a packet with these bits; `len` bytes are in it.
    ///
    /// > RFC 3168 section 6.1.3: When TCP receives a CE data packet at the destination end-system, the
    /// > TCP data receiver sets the ECN-Echo flag in the TCP header of the subsequent ACK packet. [...]
    /// > To provide robustness against the possibility of a dropped ACK packet [...] the TCP receiver
    /// > sets the ECN-Echo flag in a series of ACK packets [...] until it receives a CWR
    ///
    /// Returns whether an acknowledgement is due, and how many after it leave without delay.
    pub(crate) fn take_classic(&mut self, header: &TcpHeader, len: u32, bits: u8) -> (bool, u8) {
        let (mut due, mut quick) = (false, 0);
        if len == 0 || !self.loss.ecn.contains(EcnFlags::CLASSIC) {
            return (due, quick);
        }
        if header.flags.contains(Flags::CWR) {
            self.loss.ecn.remove(EcnFlags::ECHO);
            // As Linux: the peer's window may be one segment, which waits for this.
            due = true;
        }
        match bits {
            CE => {
                if !self.loss.ecn.contains(EcnFlags::ECHO) {
                    quick = QUICK_ACKS_AFTER_MARK;
                }
                self.loss.ecn.insert(EcnFlags::ECHO | EcnFlags::SEEN);
            }
            // As Linux: from a peer that marks its packets, one without is a retransmission.
            NOT_ECT if self.loss.ecn.contains(EcnFlags::SEEN) => {
                quick = QUICK_ACKS_AFTER_MARK;
            }
            NOT_ECT => {}
            _ => self.loss.ecn.insert(EcnFlags::SEEN),
        }
        (due, quick)
    }

    #[inline]
    pub(crate) fn echoes_mark(&self, header: &TcpHeader) -> bool {
        self.loss.ecn.contains(EcnFlags::CLASSIC)
            && header.flags & (Flags::ECE | Flags::SYN) == Flags::ECE
    }

    /// The window is reduced: the next new data has CWR.
    pub(crate) fn queue_cwr(&mut self) {
        let on = self.loss.ecn.contains(EcnFlags::CLASSIC);
        self.loss.ecn.set(EcnFlags::QUEUE_CWR, on);
    }

    /// The flags and the ECN bits of a segment; `fresh`: it carries data that was never sent.
    ///
    /// > RFC 3168 section 6.1.5: ECN-capable TCP implementations MUST NOT set either ECT codepoint
    /// > (ECT(0) or ECT(1)) in the IP header for retransmitted data packets
    ///
    /// > section 6.1.2: When an ECN-Capable TCP sender reduces its congestion window for any reason
    /// > [...] the TCP sender sets the CWR flag in the TCP header of the first new data packet sent
    /// > after the window reduction.
    pub(super) fn classic_ecn_of_segment(&mut self, fresh: bool) -> (Flags, u8) {
        let ecn = &mut self.loss.ecn;
        let mut flags = Flags::empty();
        flags.set(Flags::ECE, ecn.contains(EcnFlags::ECHO));
        if !fresh {
            return (flags, NOT_ECT);
        }
        flags.set(Flags::CWR, ecn.contains(EcnFlags::QUEUE_CWR));
        ecn.remove(EcnFlags::QUEUE_CWR);
        (flags, ECT0)
    }
}
