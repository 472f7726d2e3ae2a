//! Explicit congestion notification: marks instead of drops.
//!
//! ```text
//!   sender  --ECT(0)-->  router  --CE-->  receiver  --feedback-->  sender: window reduced
//! ```
//!
//! Two kinds of feedback, which the handshake chooses (`ecn_of_syn`, `negotiate_ecn`):
//!
//! - classic (RFC 3168, `classic.rs`): the receiver sets ECE until the sender sets CWR;
//! - accurate (RFC 9768, `accurate.rs`): every segment has the receiver's count.

mod accurate;
mod classic;

use pagewire_mem::Instant;

pub(crate) use accurate::Accurate;
pub use accurate::EcnCounts;

use crate::config::EcnMode;
use crate::header::{Flags, TcpHeader};
use crate::options::TcpOptions;
use crate::outbound::Transfer;
use crate::path::Path;

bitflags::bitflags! {
    /// State of ECN. Empty without ECN.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct EcnFlags: u8 {
        /// Both sides do classic feedback.
        const CLASSIC = 1;
        /// Classic: our window was reduced; the next new data has CWR.
        const QUEUE_CWR = 2;
        /// Classic: a segment of the peer was marked; segments have ECE until it sends CWR.
        const ECHO = 4;
        /// The peer sends packets that may be marked.
        const SEEN = 8;
        /// Both sides do accurate feedback; the counters are in [`Accurate`].
        const ACCURATE = 16;
        /// Accurate: the next pure acknowledgement reports the mark of the peer's SYN,ACK.
        const REPORT_SYN = 32;
        /// Accurate, of the active side: no data was sent yet.
        const FIRST_DATA = 64;
    }
}

/// The ECN bits of an IP header (RFC 3168 section 5).
pub(crate) const NOT_ECT: u8 = 0b00;

pub(crate) const ECT1: u8 = 0b01;

pub(crate) const ECT0: u8 = 0b10;

pub(crate) const CE: u8 = 0b11;

/// The flags that a handshake negotiates with.
const ALL: Flags = Flags::AE.union(Flags::CWR).union(Flags::ECE);

impl Transfer {
    /// The flags of a SYN, or of the SYN,ACK that answers one. `sent`: how often it has left.
    ///
    /// > RFC 3168 section 6.1.1: a host [...] sends a SYN with both ECE and CWR set [...] If the
    /// > responding host is willing it sets the ECE flag in the SYN-ACK; the CWR flag is cleared.
    ///
    /// > section 6.1.1.1: a host that receives no reply to an ECN-setup SYN within the normal SYN
    /// > retransmission timeout interval MAY resend the SYN and any subsequent SYN retransmissions with
    /// > CWR and ECE cleared.
    ///
    /// > RFC 9768 section 3.1.4.1: it SHOULD attempt to negotiate the use of AccECN at least one more
    /// > time by continuing to set all three TCP ECN flags [...] on the first retransmitted SYN [...]
    /// > If this first retransmission also fails to be acknowledged, [...] the TCP Client SHOULD send
    /// > subsequent retransmissions of the SYN with the three TCP-ECN flags cleared
    pub(crate) fn ecn_of_syn(&mut self, path: &Path, answers: bool, sent: u32) -> Flags {
        let ecn = self.loss.ecn;
        if answers && ecn.contains(EcnFlags::ACCURATE) {
            self.accurate_ecn_of_syn_ack()
        } else if answers {
            if ecn.contains(EcnFlags::CLASSIC) { Flags::ECE } else { Flags::empty() }
        } else if path.config().ecn == EcnMode::Accurate && sent <= 1 {
            ALL
        } else if path.config().ecn.requests_classic() && sent == 0 {
            Flags::ECE | Flags::CWR
        } else {
            Flags::empty()
        }
    }

    /// Reads the ECN support from a SYN or SYN,ACK with the ECN `bits` (RFC 9768, table 2).
    pub(crate) fn negotiate_ecn(&mut self, path: &Path, syn: &TcpHeader, bits: u8) {
        let (mode, flags) = (path.config().ecn, syn.flags & ALL);
        let classic = Flags::ECE | Flags::CWR;
        self.loss.ecn = EcnFlags::empty();
        if syn.flags.contains(Flags::ACK) {
            // A host that reflects unknown bits (RFC 3168 section 6.1.1) echoes all flags.
            let none = flags.is_empty() || flags == ALL;
            if mode == EcnMode::Accurate && !none && flags != Flags::ECE {
                self.begin_accurate_ecn(bits);
                self.loss.ecn.insert(EcnFlags::REPORT_SYN | EcnFlags::FIRST_DATA);
                self.take_syn_feedback(flags, syn.options.accurate_ecn.is_some());
            } else {
                let asked = mode.requests_classic() || mode == EcnMode::Accurate;
                let agrees = flags & classic == Flags::ECE;
                self.loss.ecn.set(EcnFlags::CLASSIC, asked && agrees);
            }
            return;
        }
        // > RFC 9768 section 3.1.3: If a TCP Server that implements AccECN receives a SYN with the
        // > three TCP header flags (AE,CWR,ECE) set to any combination other than (0,0,0), (0,1,1) or
        // > (1,1,1) [...] the Server MUST negotiate the use of AccECN as if the three flags had been
        // > set to (1,1,1).
        if mode.accepts_accurate() && !flags.is_empty() && flags != classic {
            self.begin_accurate_ecn(bits);
        } else {
            let on = mode != EcnMode::Off && flags.contains(classic);
            self.loss.ecn.set(EcnFlags::CLASSIC, on);
        }
    }

    /// The flags and the ECN bits of a segment. `fresh`: has new data, `pure`: only acknowledges.
    pub(crate) fn ecn_of_segment(
        &mut self,
        now: Instant,
        fresh: bool,
        pure: bool,
        options: &TcpOptions,
    ) -> (Flags, u8) {
        if self.loss.ecn.is_empty() {
            (Flags::empty(), NOT_ECT)
        } else if self.loss.ecn.contains(EcnFlags::ACCURATE) {
            self.accurate_ecn_of_segment(now, fresh, pure && options.sack.is_empty(), options)
        } else {
            self.classic_ecn_of_segment(fresh)
        }
    }

    #[inline]
    pub(crate) fn count_delivered(&mut self, packets: u32, marked: u32) {
        self.loss.delivered = self.loss.delivered.wrapping_add(packets);
        if marked > 0 {
            let losses = &mut self.rare().losses;
            losses.delivered_ce = losses.delivered_ce.wrapping_add(marked);
        }
    }
}
