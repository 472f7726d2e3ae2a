//! Explicit congestion notification (RFC 3168): marks instead of drops.
//!
//! ```text
//!   sender  --ECT(0)-->  router  --CE-->  receiver  --ECE until CWR-->  sender: window reduced,
//!                                                                       CWR on its next new data
//! ```

use crate::connection::Connection;
use crate::header::{Flags, TcpHeader};
use crate::limits::QUICK_ACKS_AFTER_MARK;

/// Whether connections use explicit congestion notification; Linux's `tcp_ecn`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EcnMode {
    /// Never (0).
    Off,
    /// Asked for when we open, agreed to when the peer asks (1).
    Request,
    /// Agreed to when the peer asks (2).
    #[default]
    Accept,
}

bitflags::bitflags! {
    /// What is true of a connection.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct EcnFlags: u8 {
        /// Both sides do it.
        const ON = 1;
        /// Our window was reduced: the peer is to be told, with the next new data.
        const QUEUE_CWR = 2;
        /// Something of the peer's was marked: it is told until it says that it has reacted.
        const ECHO = 4;
        /// The peer sends packets that may be marked.
        const SEEN = 8;
    }
}

/// The ECN bits of an IP header (RFC 3168 section 5).
pub(crate) const ECT0: u8 = 0b10;
const NOT_ECT: u8 = 0b00;
const CE: u8 = 0b11;

impl Connection {
    /// The flags of a SYN, or of the SYN,ACK that answers one.
    ///
    /// > RFC 3168 section 6.1.1: a host [...] sends a SYN with both ECE and CWR set [...] If the
    /// > responding host is willing it sets the ECE flag in the SYN-ACK; the CWR flag is cleared.
    ///
    /// > section 6.1.1.1: a host that receives no reply to an ECN-setup SYN within the normal SYN
    /// > retransmission timeout interval MAY resend the SYN and any subsequent SYN retransmissions with
    /// > CWR and ECE cleared.
    pub(crate) fn ecn_of_syn(&self, answers: bool, again: bool) -> Flags {
        if answers {
            let on = self.loss.ecn.contains(EcnFlags::ON);
            if on { Flags::ECE } else { Flags::empty() }
        } else if self.config.ecn == EcnMode::Request && !again {
            Flags::ECE | Flags::CWR
        } else {
            Flags::empty()
        }
    }

    /// A SYN, or a SYN,ACK, says whether the peer takes part.
    pub(crate) fn negotiate_ecn(&mut self, syn: &TcpHeader) {
        let both = Flags::ECE | Flags::CWR;
        let on = if syn.flags.contains(Flags::ACK) {
            // A SYN,ACK that echoes both flags comes from a host that reflects what it does not
            // know (RFC 3168 section 6.1.1).
            self.config.ecn == EcnMode::Request && syn.flags & both == Flags::ECE
        } else {
            self.config.ecn != EcnMode::Off && syn.flags & both == both
        };
        self.loss.ecn.set(EcnFlags::ON, on);
    }

    /// A segment came in a packet with these bits; `payload` bytes are in it.
    ///
    /// > RFC 3168 section 6.1.3: When TCP receives a CE data packet at the destination end-system, the
    /// > TCP data receiver sets the ECN-Echo flag in the TCP header of the subsequent ACK packet. [...]
    /// > To provide robustness against the possibility of a dropped ACK packet [...] the TCP receiver
    /// > sets the ECN-Echo flag in a series of ACK packets [...] until it receives a CWR
    pub(crate) fn take_ecn(&mut self, header: &TcpHeader, payload: u32, bits: u8) {
        if !self.loss.ecn.contains(EcnFlags::ON) {
            return;
        }
        if header.flags.contains(Flags::CWR) {
            self.loss.ecn.remove(EcnFlags::ECHO);
            // As Linux: its window may be down to one segment, which waits for this.
            if payload > 0 {
                self.ack_now();
            }
        }
        if payload == 0 {
            return;
        }
        match bits {
            CE => {
                if !self.loss.ecn.contains(EcnFlags::ECHO) {
                    self.quicken(QUICK_ACKS_AFTER_MARK);
                }
                self.loss.ecn.insert(EcnFlags::ECHO | EcnFlags::SEEN);
            }
            // As Linux: from a peer that marks its packets, one without is a retransmission.
            NOT_ECT if self.loss.ecn.contains(EcnFlags::SEEN) => {
                self.quicken(QUICK_ACKS_AFTER_MARK);
            }
            NOT_ECT => {}
            _ => self.loss.ecn.insert(EcnFlags::SEEN),
        }
    }

    /// Whether the acknowledgement echoes a mark.
    pub(crate) fn echoes_mark(&self, header: &TcpHeader) -> bool {
        self.loss.ecn.contains(EcnFlags::ON)
            && header.flags & (Flags::ECE | Flags::SYN) == Flags::ECE
    }

    /// The flags and the ECN bits of a segment; `fresh`: it carries data that was never sent.
    ///
    /// > RFC 3168 section 6.1.5: ECN-capable TCP implementations MUST NOT set either ECT codepoint
    /// > (ECT(0) or ECT(1)) in the IP header for retransmitted data packets
    ///
    /// > section 6.1.2: When an ECN-Capable TCP sender reduces its congestion window for any reason
    /// > [...] the TCP sender sets the CWR flag in the TCP header of the first new data packet sent
    /// > after the window reduction.
    pub(crate) fn ecn_of_segment(&mut self, fresh: bool) -> (Flags, u8) {
        let ecn = &mut self.loss.ecn;
        if !ecn.contains(EcnFlags::ON) {
            return (Flags::empty(), NOT_ECT);
        }
        let mut flags = Flags::empty();
        flags.set(Flags::ECE, ecn.contains(EcnFlags::ECHO));
        if !fresh {
            return (flags, NOT_ECT);
        }
        flags.set(Flags::CWR, ecn.contains(EcnFlags::QUEUE_CWR));
        ecn.remove(EcnFlags::QUEUE_CWR);
        (flags, ECT0)
    }

    /// The window is being reduced.
    pub(crate) fn queue_cwr(&mut self) {
        let on = self.loss.ecn.contains(EcnFlags::ON);
        self.loss.ecn.set(EcnFlags::QUEUE_CWR, on);
    }

    /// The reduction was taken back.
    pub(crate) fn withdraw_cwr(&mut self) {
        self.loss.ecn.remove(EcnFlags::QUEUE_CWR);
    }

    /// Counts what was delivered, and under how much congestion.
    pub(crate) fn count_delivered(&mut self, packets: u32, echo: bool) {
        self.loss.delivered = self.loss.delivered.wrapping_add(packets);
        if echo {
            self.loss.delivered_ce = self.loss.delivered_ce.wrapping_add(packets);
        }
    }
}
