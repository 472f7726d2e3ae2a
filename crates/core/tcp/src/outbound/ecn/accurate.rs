//! Accurate feedback (RFC 9768): each side counts the marked packets and bytes that it receives,
//! and sends the counts. Three header flags have the low bits of the packet count, the *ACE field*:
//!
//! ```text
//!     AE CWR ECE      r.cep: packets marked CE, from 5 on     in every segment but a SYN
//!     option          bytes marked ECT(1), CE, ECT(0)         as the setting says (`options/accurate_ecn.rs`)
//! ```
//!
//! During the handshake the flags say how the other side's SYN arrived instead (`handshake_code`).
//! The receiver uses `take_accurate` and `of_segment`, the sender `take_ace_feedback`.

use pagewire_mem::Instant;

use crate::config::EcnOption;
use crate::header::{Flags, TcpHeader};
use crate::life::state::State;
use crate::options::{AccurateEcnOption, TcpOptions};
use crate::outbound::Transfer;
use crate::outbound::ecn::{CE, ECT0, ECT1, EcnFlags, NOT_ECT};
use crate::outbound::recovery::{AckFlags, AckInfo};
use crate::outbound::rtt::RttEstimator;
use crate::path::Path;
use crate::segment::Arrival;
use crate::seq::Seq;

/// > RFC 9768 section 3.2.1: it initializes its counters to r.cep = 5, r.e0b = r.e1b = 1 and r.ceb = 0
const FIRST_PACKETS: u32 = 5;

const FIRST_BYTES: [u32; 3] = [1, 0, 1];

/// Values of the ACE field.
const CYCLE: u32 = 8;

/// Values of a field of the option.
const BYTES_MASK: u32 = (1 << 24) - 1;

/// A field that has moved by more than this has moved back.
const BYTES_BACK: u32 = 1 << 23;

/// The position of the bytes marked CE among the byte counters.
const CEB: usize = 1;

/// > RFC 9768 section 3.2.2.5.1: an AccECN receiver of a packet MUST emit an ACK if 'n' CE marks have
/// > arrived since the previous ACK. If there is unacknowledged data at the receiver, 'n' SHOULD be 2.
/// > If there is no unacknowledged data at the receiver, 'n' SHOULD be 3
const MARKS_WITH_DATA: u32 = 2;

const MARKS_WITHOUT_DATA: u32 = 3;

/// Options that follow a change of the mark, as in Linux: of two acknowledgements, the second
/// separates the new mark from the old.
const OPTIONS_AFTER_CHANGE: u8 = 2;

/// Without a change, options in a round trip (Linux's `tcp_ecn_option_beacon`).
const OPTIONS_IN_ROUND_TRIP: u32 = 3;

/// A counter that passes a multiple of this is reported: its field has 24 bits.
const BYTES_REPORTED: u32 = 1 << 22;

bitflags::bitflags! {
    /// Facts about the path and the peer, most of them reasons to do without a part of the protocol.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct PathFacts: u8 {
        /// Nothing that we send may be marked any more.
        const NOT_CAPABLE = 1;
        /// The peer's counts are invalid.
        const COUNTS_BROKEN = 2;
        /// We no longer send the option: the path seems to drop segments with it.
        const NO_OPTION = 4;
        /// The peer's options are invalid.
        const OPTIONS_BROKEN = 8;
        /// The peer has sent its count since the handshake.
        const COUNT_SEEN = 16;
        /// The first data that we sent had the option.
        const OPTION_SENT = 32;
        /// The peer's SYN,ACK was marked; it counts once.
        const SYN_ACK_MARKED = 64;
        /// The peer has sent the option: as in Linux, it gets none before.
        const OPTION_SEEN = 128;
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Accurate {
    /// r.cep, and r.e0b, r.ceb, r.e1b: what we received.
    packets: u32,
    bytes: [u32; 3],
    /// s.cep, and s.e0b, s.ceb, s.e1b: what the peer reported.
    peer_packets: u32,
    peer_bytes: [u32; 3],
    /// Marked packets that came since our last segment.
    unreported: u32,
    /// ECN bits of the last packet, and of the peer's last SYN or SYN,ACK.
    pub(crate) last: u8,
    pub(crate) syn: u8,
    known: PathFacts,
    /// SYN,ACKs that have left.
    syn_acks: u8,
    /// Options that are due, and the fields that they need.
    demanded: u8,
    needed: u8,
    /// When the last option left.
    option_sent_at: Instant,
}

/// Counts of both sides with accurate feedback (RFC 9768 section 3.2), from 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EcnCounts {
    /// Packets received with the mark CE.
    pub received_ce: u32,
    /// Payload bytes received in packets marked ECT(0), CE and ECT(1).
    pub received_bytes: [u32; 3],
    /// Payload bytes that the peer has reported as received, marked ECT(0), CE and ECT(1).
    pub delivered_bytes: [u32; 3],
}

impl Accurate {
    fn new(syn: u8) -> Self {
        Self {
            packets: FIRST_PACKETS,
            bytes: FIRST_BYTES,
            peer_packets: FIRST_PACKETS,
            peer_bytes: FIRST_BYTES,
            unreported: 0,
            last: NOT_ECT,
            syn,
            known: PathFacts::empty(),
            syn_acks: 0,
            demanded: 0,
            needed: 0,
            option_sent_at: Instant::default(),
        }
    }

    pub(crate) fn counts(&self) -> EcnCounts {
        let since = |counters: [u32; 3]| {
            let mut counts = counters;
            for (count, first) in counts.iter_mut().zip(FIRST_BYTES) {
                *count = count.wrapping_sub(first);
            }
            counts
        };
        EcnCounts {
            received_ce: self.packets.wrapping_sub(FIRST_PACKETS),
            received_bytes: since(self.bytes),
            delivered_bytes: since(self.peer_bytes),
        }
    }

    /// Counts payload bytes, and notes what an option must report of them. The fields are in the order
    /// ECT(1), CE, ECT(0).
    fn count_bytes(&mut self, bits: u8, len: u32) {
        let [e0, ce, e1] = &mut self.bytes;
        let (counter, fields) = match bits {
            ECT1 => (e1, 1),
            CE => (ce, 2),
            ECT0 => (e0, 3),
            _ => return,
        };
        if len == 0 {
            return;
        }
        let before = core::mem::replace(counter, counter.wrapping_add(len));
        if (before ^ *counter) >= BYTES_REPORTED {
            self.demanded = self.demanded.max(1);
        }
        self.needed = self.needed.max(fields);
    }

    /// The option with all fields in Linux's order.
    fn option(&self) -> AccurateEcnOption {
        let [e0, ce, e1] = self.bytes;
        AccurateEcnOption::new([e1, ce, e0], 3, true)
    }

    /// Whether a segment that is no SYN has the option.
    fn has_option(&self, path: &Path, rtt: &RttEstimator, now: Instant) -> bool {
        if path.config().ecn_option != EcnOption::Sparing {
            return self.always_has_option(path);
        }
        let since = now.saturating_since(self.option_sent_at) * OPTIONS_IN_ROUND_TRIP;
        let due = self.demanded > 0 || since >= rtt.srtt().unwrap_or_default();
        due && self.known & (PathFacts::OPTION_SEEN | PathFacts::NO_OPTION)
            == PathFacts::OPTION_SEEN
    }

    /// Whether all segments have it.
    fn always_has_option(&self, path: &Path) -> bool {
        let seen = self.known.contains(PathFacts::OPTION_SEEN);
        match path.config().ecn_option {
            EcnOption::Off | EcnOption::Sparing => false,
            EcnOption::Always => seen && !self.known.contains(PathFacts::NO_OPTION),
            EcnOption::Persistent => seen,
        }
    }

    /// Processes an option. Returns the increase of bytes marked CE.
    fn take_option(&mut self, option: &AccurateEcnOption) -> Option<u32> {
        let mut marked = None;
        for (at, field) in option.counters().into_iter().enumerate() {
            let (Some(field), Some(known)) = (field, self.peer_bytes.get_mut(at)) else { continue };
            let more = field.wrapping_sub(*known) & BYTES_MASK;
            if more >= BYTES_BACK {
                continue;
            }
            *known = known.wrapping_add(more);
            if at == CEB {
                marked = Some(more);
            }
        }
        // A field that is left out has not changed.
        marked.or(Some(0))
    }

    /// > RFC 9768 section 3.2.2.2: If a TCP Client in AccECN mode receives a CE mark in the IP-ECN field
    /// > of a SYN/ACK, it MUST increment r.cep, but no more than once no matter how many CE-marked
    /// > SYN/ACKs it receives
    fn note_syn_ack(&mut self, bits: u8) {
        self.syn = bits;
        if bits == CE && !self.known.contains(PathFacts::SYN_ACK_MARKED) {
            self.known.insert(PathFacts::SYN_ACK_MARKED);
            self.packets += 1;
        }
    }
}

/// The bits of the ACE field as flags.
fn flags_of(code: u32) -> Flags {
    let mut flags = Flags::empty();
    flags.set(Flags::AE, code & 4 != 0);
    flags.set(Flags::CWR, code & 2 != 0);
    flags.set(Flags::ECE, code & 1 != 0);
    flags
}

fn code_of(flags: Flags) -> u32 {
    let bit = |flag, value| if flags.contains(flag) { value } else { 0 };
    bit(Flags::AE, 4) | bit(Flags::CWR, 2) | bit(Flags::ECE, 1)
}

/// The handshake's code for the ECN bits of a SYN or SYN,ACK (RFC 9768, tables 2 and 3).
fn handshake_code(bits: u8) -> u32 {
    match bits {
        ECT1 => 0b011,
        ECT0 => 0b100,
        CE => 0b110,
        _ => 0b010,
    }
}

/// How many packets were marked, where the ACE field has `least` or a multiple of 8 more,
/// `delivered` were acknowledged, and the option has `bytes` more.
///
/// > RFC 9768 section 3.2.2.5.2: If the Data Sender has not received AccECN TCP Options to give it more
/// > dependable information, and it detects that the ACE field could have cycled, it SHOULD deem whether
/// > it cycled by taking the safest likely case under the prevailing conditions.
///
/// With the option, the bytes bound the packets from below.
fn marked_packets(least: u32, delivered: u32, bytes: Option<u32>, mss: u32) -> u32 {
    if delivered < CYCLE {
        return least;
    }
    let most = delivered - (delivered - least) % CYCLE;
    let Some(bytes) = bytes else { return most };
    let packets = bytes.div_ceil(mss.max(1));
    let cycles = packets.saturating_sub(least).div_ceil(CYCLE);
    (least + cycles * CYCLE).min(most)
}

impl Transfer {
    pub(crate) fn accurate_mut(&mut self) -> Option<&mut Accurate> {
        self.rare.as_deref_mut()?.accurate.as_mut()
    }

    #[inline]
    pub(crate) fn accurate(&self) -> Option<&Accurate> {
        self.rare.as_deref()?.accurate.as_ref()
    }

    /// A SYN came again, in a packet with these bits. Returns whether it contradicts the first.
    ///
    /// > RFC 9768 section 3.1.5: [Any implementation that supports AccECN] MUST reset the connection
    /// > with a RST packet, if it receives a 'Classic' ECN-setup SYN with (AE,CWR,ECE) = (0,1,1) and a
    /// > SYN requesting AccECN feedback during the same handshake
    pub(crate) fn take_syn_again(&mut self, path: &Path, syn: &TcpHeader, bits: u8) -> bool {
        let code = code_of(syn.flags);
        let Some(accurate) = self.accurate_mut() else {
            let classic = self.loss.ecn.contains(EcnFlags::CLASSIC);
            return classic && path.config().ecn.accepts_accurate() && code == 0b111;
        };
        // > MUST feed back the IP-ECN field on the latest valid SYN
        accurate.syn = bits;
        if code == 0 {
            accurate.known.insert(PathFacts::NOT_CAPABLE);
        }
        code == 0b011
    }

    /// The peer's SYN,ACK came again, with these bits: its acknowledgement reports the mark.
    ///
    /// > RFC 9768 section 3.2.2.1: The TCP Client MUST also use the handshake encoding for the pure ACK
    /// > of any retransmitted SYN/ACK that confirms that the TCP Server supports AccECN.
    pub(crate) fn take_syn_ack_again(&mut self, syn: &TcpHeader, bits: u8) {
        let code = code_of(syn.flags);
        let Some(accurate) = self.accurate_mut() else { return };
        if code == 0 || code == 0b001 || code == 0b111 {
            return;
        }
        accurate.note_syn_ack(bits);
        self.loss.ecn.insert(EcnFlags::REPORT_SYN);
    }

    /// An acceptable segment with `payload` bytes arrived.
    ///
    /// > RFC 9768 section 3.2: The Data Receiver MUST increment the CE packet counter (r.cep), for every
    /// > Acceptable packet that it receives with the CE code point in the IP ECN field
    ///
    /// > section 3.2.2.5.1: An AccECN Data Receiver SHOULD emit an ACK whenever a data packet marked CE
    /// > arrives after the previous packet was not CE.
    ///
    /// `waiting`: received data is not acknowledged yet. Returns whether an acknowledgement is due.
    pub(crate) fn take_accurate(&mut self, payload: u32, arrival: Arrival, waiting: bool) -> bool {
        let bits = arrival.ecn;
        let Some(accurate) = self.accurate_mut() else { return false };
        let before = core::mem::replace(&mut accurate.last, bits);
        if bits != before || bits == CE {
            accurate.demanded = OPTIONS_AFTER_CHANGE;
        }
        if bits == NOT_ECT {
            return false;
        }
        accurate.count_bytes(bits, payload);
        let mut due = false;
        if bits == CE {
            let packets = arrival.segments(payload);
            accurate.packets = accurate.packets.wrapping_add(packets);
            accurate.unreported = accurate.unreported.saturating_add(packets);
            let most = if waiting || payload > 0 { MARKS_WITH_DATA } else { MARKS_WITHOUT_DATA };
            due = (payload > 0 && before != CE) || accurate.unreported >= most;
        }
        if payload > 0 {
            self.loss.ecn.insert(EcnFlags::SEEN);
        }
        due
    }

    /// The count in the header of a segment.
    pub(crate) fn ace_flags(&self) -> Flags {
        self.accurate().map_or(Flags::empty(), |accurate| flags_of(accurate.packets % CYCLE))
    }

    /// Whether the next segment, which is no SYN, has the option, if that fits.
    #[inline]
    pub(crate) fn has_accurate_option(&self, path: &Path, now: Instant) -> bool {
        self.loss.ecn.contains(EcnFlags::ACCURATE)
            && self.accurate().is_some_and(|accurate| accurate.has_option(path, &self.rtt, now))
    }

    /// Bytes of the option, if all segments have it.
    #[inline]
    pub(crate) fn steady_ecn_bytes(&self, path: &Path) -> u32 {
        if !self.loss.ecn.contains(EcnFlags::ACCURATE) {
            return 0;
        }
        let steady = self.accurate().is_some_and(|accurate| accurate.always_has_option(path));
        if steady { AccurateEcnOption::added_len(3, 0) as u32 } else { 0 }
    }

    /// Adds the option. SACK blocks give way to it but for two.
    ///
    /// > RFC 9768 section 3.2.3.3: If SACK has been negotiated [RFC2018], and the smallest recommended
    /// > AccECN Option would leave insufficient space for two SACK blocks on a particular ACK, the Data
    /// > Receiver MUST give precedence to the SACK option
    #[cold]
    pub(crate) fn add_accurate_option(&self, options: &mut TcpOptions) {
        let Some(accurate) = self.accurate() else { return };
        options.add_accurate_ecn(accurate.option(), accurate.needed.into());
    }

    /// Adds the option to a SYN,ACK that leaves for the first time.
    ///
    /// > RFC 9768 section 3.2.3.2.1: a TCP Server that confirms its support for AccECN [...] SHOULD
    /// > include an AccECN TCP Option on the SYN/ACK
    #[cold]
    pub(crate) fn add_option_to_syn_ack(&self, path: &Path, options: &mut TcpOptions) {
        let Some(accurate) = self.accurate() else { return };
        let off = path.config().ecn_option == EcnOption::Off;
        if !off && !accurate.known.contains(PathFacts::NO_OPTION) {
            options.add_accurate_ecn(accurate.option(), 0);
        }
    }

    /// The first data is retransmitted: it may have been dropped for its option.
    ///
    /// > RFC 9768 section 3.2.3.2.2: If the TCP Client detects that the first data segment it sent with
    /// > an AccECN Option was lost, [...] it SHOULD fall back to no AccECN Option on the retransmission.
    pub(crate) fn suspect_option(&mut self, start: Seq) {
        if !self.loss.ecn.contains(EcnFlags::ACCURATE) || start != self.snd.iss + 1 {
            return;
        }
        let Some(accurate) = self.accurate_mut() else { return };
        if accurate.known.contains(PathFacts::OPTION_SENT) {
            accurate.known.insert(PathFacts::NO_OPTION);
        }
    }

    /// Whether the count sets CWR. Segmentation offload keeps CWR on the first segment only (RFC
    /// 3168), so such a segment is not sent in a super-frame.
    ///
    /// > RFC 9768 section 3.3.4: Another way could be to allow TSO only as long as the CWR flag in the
    /// > TCP header is not set
    #[inline]
    pub(crate) fn forbids_super_frames(&self) -> bool {
        self.loss.ecn.contains(EcnFlags::ACCURATE)
            && self.accurate().is_some_and(|accurate| accurate.packets & 2 != 0)
    }

    /// Notes that the peer sends the option, and checks the first.
    ///
    /// > RFC 9768 section 3.2.3.2.4: If it runs a test and either initial value is zero, [it] will
    /// > switch into a mode that ignores AccECN Options for this half connection.
    #[inline]
    pub(crate) fn note_accurate_option(&mut self, header: &TcpHeader) {
        let Some(option) = header.options.accurate_ecn else { return };
        let Some(accurate) = self.accurate_mut() else { return };
        if accurate.known.contains(PathFacts::OPTION_SEEN) {
            return;
        }
        accurate.known.insert(PathFacts::OPTION_SEEN);
        let [e0, _, e1] = option.counters();
        if e0 == Some(0) || e1 == Some(0) {
            accurate.known.insert(PathFacts::OPTIONS_BROKEN);
        }
    }

    /// Reads the marks from an acknowledgement, after its delivered segments are counted.
    pub(crate) fn take_ace_feedback(&mut self, path: &Path, header: &TcpHeader, ack: &mut AckInfo) {
        // > RFC 9768 section 3.2.2: A host MUST NOT interpret the 3 flags as a 3-bit ACE field on any
        // > segment with SYN=1
        self.note_accurate_option(header);
        if header.flags.contains(Flags::SYN) {
            return;
        }
        let mss = self.send_mss(path);
        let handshake = path.state() == State::SynReceived;
        let code = code_of(header.flags);
        if handshake {
            let pure = !ack.flags.contains(AckFlags::DATA) && header.options.sack.is_empty();
            if pure {
                return self.take_handshake_code(code);
            }
        }
        // > section 3.2.2.2: it first checks whether it has already been superseded (defined in
        // > Appendix A.1) by another ACK in which case it ignores the ECN feedback.
        if ack.delivered == 0
            && !ack.flags.intersects(AckFlags::UNA_ADVANCED | AckFlags::DATA_SACKED)
        {
            return;
        }
        let Some(accurate) = self.accurate_mut() else { return };
        // > section 3.2.2.4: If the value of this ACE field is found to be zero (0b000), for the
        // > remainder of the half-connection the Data Sender ought to send non-ECN-capable packets and
        // > it is advised not to respond to any feedback of CE markings.
        if !accurate.known.contains(PathFacts::COUNT_SEEN) {
            accurate.known.insert(PathFacts::COUNT_SEEN);
            if code == 0 {
                accurate.known.insert(PathFacts::NOT_CAPABLE | PathFacts::COUNTS_BROKEN);
            }
        }
        let option = header.options.accurate_ecn.as_ref();
        let bytes = option
            .filter(|_| !accurate.known.contains(PathFacts::OPTIONS_BROKEN))
            .and_then(|option| accurate.take_option(option));
        let least = code.wrapping_sub(accurate.peer_packets) % CYCLE;
        let marked = marked_packets(least, ack.delivered, bytes, mss);
        accurate.peer_packets = accurate.peer_packets.wrapping_add(marked);
        // > section 3.2.3.2.5: If either endpoint detects that the s.ceb counter has increased but the
        // > s.cep has not [...] the Data Sender MUST disable sending ECN-capable packets
        if marked == 0 && ack.delivered < CYCLE && bytes.is_some_and(|bytes| bytes > 0) {
            accurate.known.insert(PathFacts::NOT_CAPABLE);
        }
        if marked > 0 && !accurate.known.contains(PathFacts::COUNTS_BROKEN) {
            ack.marked = marked;
            ack.flags.insert(AckFlags::ECE);
        }
    }

    /// > RFC 9768 section 3.1.1: it MUST set both its half connections into AccECN mode.
    pub(super) fn begin_accurate_ecn(&mut self, syn_bits: u8) {
        self.loss.ecn = EcnFlags::ACCURATE;
        // As Linux: the first segment of the passive side has the option, that of the active side if the
        // SYN,ACK had it.
        let accurate = Accurate { demanded: 1, last: syn_bits, ..Accurate::new(syn_bits) };
        self.rare().accurate = Some(accurate);
    }

    /// The flags of a SYN,ACK, which leaves now.
    ///
    /// > RFC 9768 section 3.2.3.2.2: the TCP Server SHOULD retransmit the SYN/ACK, but with no AccECN
    /// > Option. If this retransmission times out, [...] the TCP Server SHOULD retransmit the SYN/ACK
    /// > with (AE,CWR,ECE) = (0,0,0) and no AccECN Option, but it remains in AccECN feedback mode
    ///
    /// > section 3.1.5: [A TCP Server] MUST NOT set ECT on any packet for the rest of the connection,
    /// > if it has received or sent at least one valid SYN or Acceptable SYN/ACK with (AE,CWR,ECE) =
    /// > (0,0,0) during the handshake.
    pub(super) fn accurate_ecn_of_syn_ack(&mut self) -> Flags {
        let Some(accurate) = self.accurate_mut() else { return Flags::empty() };
        let sent = accurate.syn_acks;
        accurate.syn_acks = sent.saturating_add(1);
        if sent > 0 {
            accurate.known.insert(PathFacts::NO_OPTION);
        }
        let code = if sent > 1 {
            accurate.known.insert(PathFacts::NOT_CAPABLE);
            0
        } else {
            handshake_code(accurate.syn)
        };
        flags_of(code)
    }

    /// The SYN,ACK reports how our SYN arrived, which left as Not-ECT.
    ///
    /// > RFC 9768 section 3.2.2.3: If this comparison implies an invalid transition [...] of the IP-ECN
    /// > field, for the remainder of the half-connection the Client is advised to send non-ECN-capable
    /// > packets
    ///
    /// > section 3.1.3: with the currently reserved combination (AE,CWR,ECE) = (1,0,1) [...] the Client
    /// > MUST enable AccECN mode as if the SYN/ACK [...] fed back that the IP-ECN field on the SYN had
    /// > arrived unchanged.
    ///
    /// `flags`: those of the SYN,ACK; `with_option`: it has the option.
    pub(super) fn take_syn_feedback(&mut self, flags: Flags, with_option: bool) {
        let code = code_of(flags);
        let Some(accurate) = self.accurate_mut() else { return };
        let bits = accurate.syn;
        // > RFC 9768 section 3.2.3.2.1: A TCP Client that has successfully negotiated AccECN SHOULD
        // > include an AccECN Option in the first ACK at the end of the three-way handshake. However, this
        // > first ACK is not delivered reliably, so the TCP Client SHOULD also include an AccECN Option on
        // > the first data segment it sends
        accurate.demanded = if with_option { 2 } else { 0 };
        accurate.last = NOT_ECT;
        accurate.note_syn_ack(bits);
        if code != 0b010 && code != 0b101 {
            accurate.known.insert(PathFacts::NOT_CAPABLE);
        }
        if code == 0b110 {
            self.congestion.on_syn_lost();
        }
    }

    /// The flags and the ECN bits of a segment with these options, which is no SYN.
    pub(super) fn accurate_ecn_of_segment(
        &mut self,
        now: Instant,
        fresh: bool,
        pure: bool,
        options: &TcpOptions,
    ) -> (Flags, u8) {
        let ecn = self.loss.ecn;
        let handshake = pure && ecn.contains(EcnFlags::REPORT_SYN);
        let Some(accurate) = self.accurate_mut() else { return (Flags::empty(), NOT_ECT) };
        accurate.unreported = 0;
        let code = if handshake { handshake_code(accurate.syn) } else { accurate.packets % CYCLE };
        let with_option = options.accurate_ecn.is_some();
        if with_option {
            (accurate.needed, accurate.option_sent_at) = (0, now);
            accurate.demanded = accurate.demanded.saturating_sub(1);
        }
        let bits =
            if fresh && !accurate.known.contains(PathFacts::NOT_CAPABLE) { ECT0 } else { NOT_ECT };
        // After any other segment, the peer reads the flags as the count.
        let mut done = EcnFlags::REPORT_SYN;
        if fresh && ecn.contains(EcnFlags::FIRST_DATA) {
            accurate.known.set(PathFacts::OPTION_SENT, with_option);
            done |= EcnFlags::FIRST_DATA;
        }
        self.loss.ecn.remove(done);
        (flags_of(code), bits)
    }

    /// Reads the pure acknowledgement of our Not-ECT SYN,ACK (RFC 9768 section 3.2.2.1, table 4).
    ///
    /// > if it receives a value of zero [...], for the rest of the connection the Server MUST NOT set
    /// > ECT on outgoing packets and MUST NOT respond to AccECN feedback.
    fn take_handshake_code(&mut self, code: u32) {
        let Some(accurate) = self.accurate_mut() else { return };
        match code {
            0b000 => accurate.known.insert(PathFacts::NOT_CAPABLE | PathFacts::COUNTS_BROKEN),
            0b011 | 0b100 => accurate.known.insert(PathFacts::NOT_CAPABLE),
            0b110 => {
                accurate.peer_packets += 1;
                accurate.known.insert(PathFacts::NOT_CAPABLE);
                self.congestion.on_syn_lost();
            }
            _ => {}
        }
    }
}
