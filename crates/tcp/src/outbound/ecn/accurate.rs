//! Accurate feedback (RFC 9768): each side counts the marked packets and bytes that it receives,
//! and sends the counts. Three header flags have the low bits of the packet count, the *ACE field*:
//!
//! ```text
//!     AE CWR ECE      r.cep: packets marked CE, from 5 on     in every segment but a SYN
//!     option          bytes marked ECT(0), CE, ECT(1)         when one has changed (`options/accurate_ecn.rs`)
//! ```
//!
//! During the handshake the flags say how the other side's SYN arrived instead (`handshake_code`).
//! The receiver uses `take_accurate` and `of_segment`, the sender `take_accurate_feedback`.

use super::{CE, ECT0, ECT1, EcnFlags, NOT_ECT};
use crate::connection::Connection;
use crate::header::{Flags, TcpHeader};
use crate::life::state::State;
use crate::options::{AccurateEcnOption, MAX_OPTIONS_LEN, TcpOptions};
use crate::outbound::Transfer;
use crate::outbound::recovery::{Heard, News};
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

/// Positions of the byte counters.
const E0: usize = 0;
const CEB: usize = 1;
const E1: usize = 2;

/// > RFC 9768 section 3.2.2.5.1: an AccECN receiver of a packet MUST emit an ACK if 'n' CE marks have
/// > arrived since the previous ACK. If there is unacknowledged data at the receiver, 'n' SHOULD be 2.
/// > If there is no unacknowledged data at the receiver, 'n' SHOULD be 3
const MARKS_WITH_DATA: u32 = 2;
const MARKS_WITHOUT_DATA: u32 = 3;

/// Blocks of selective acknowledgements that go before the option.
const SACKS_FIRST: usize = 2;

bitflags::bitflags! {
    /// What is known of the path and the peer.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Known: u8 {
        /// Nothing that we send may be marked any more.
        const NOT_CAPABLE = 1;
        /// The peer's counts are invalid.
        const DEAF = 2;
        /// We no longer send the option: the path seems to drop segments with it.
        const NO_OPTION = 4;
        /// The peer's options are invalid.
        const OPTIONS_BROKEN = 8;
        /// The peer has sent its count since the handshake.
        const HEARD = 16;
        /// The first data that we sent had the option.
        const OPTION_SENT = 32;
        /// The peer's SYN,ACK was marked; it counts once.
        const SYN_ACK_MARKED = 64;
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
    untold: u32,
    /// ECN bits of the last packet, and of the peer's last SYN or SYN,ACK.
    last: u8,
    syn: u8,
    known: Known,
}

/// What both sides have counted with accurate feedback (RFC 9768 section 3.2), from 0 on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EcnCounts {
    /// Packets received with the mark CE.
    pub received_ce: u32,
    /// Payload bytes received in packets marked ECT(0), CE and ECT(1).
    pub received_bytes: [u32; 3],
    /// Payload bytes that the peer has told us it received, marked ECT(0), CE and ECT(1).
    pub delivered_bytes: [u32; 3],
}

impl Accurate {
    fn new(syn: u8) -> Self {
        Self {
            packets: FIRST_PACKETS,
            bytes: FIRST_BYTES,
            peer_packets: FIRST_PACKETS,
            peer_bytes: FIRST_BYTES,
            untold: 0,
            last: NOT_ECT,
            syn,
            known: Known::empty(),
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

    fn count_bytes(&mut self, bits: u8, len: u32) {
        let [e0, ce, e1] = &mut self.bytes;
        match bits {
            ECT0 => *e0 = e0.wrapping_add(len),
            CE => *ce = ce.wrapping_add(len),
            ECT1 => *e1 = e1.wrapping_add(len),
            _ => {}
        }
    }

    /// The option with as many fields as have changed at some time, if it fits `room`.
    ///
    /// > RFC 9768 section 3.2.3.3: it SHOULD include a field for every byte counter that has changed at
    /// > some time during the connection
    fn option(&self, room: usize) -> Option<AccurateEcnOption> {
        let [e0, ce, e1] = self.bytes;
        let [first0, first_ce, first1] = FIRST_BYTES;
        let changed = [e0 != first0, ce != first_ce, e1 != first1];
        let ect1_first = changed[E1] && !changed[E0];
        let told = if ect1_first {
            if changed[CEB] { 2 } else { 1 }
        } else {
            changed.iter().rposition(|&changed| changed).map_or(1, |last| last + 1)
        };
        let fields = if ect1_first { [e1, ce, e0] } else { [e0, ce, e1] };
        (AccurateEcnOption::len_of(told) <= room)
            .then(|| AccurateEcnOption::new(fields, told, ect1_first))
    }

    /// Processes an option. Returns the increase of bytes marked CE.
    fn take_option(&mut self, option: &AccurateEcnOption) -> Option<u32> {
        let mut marked = None;
        for (at, told) in option.counters().into_iter().enumerate() {
            let (Some(told), Some(known)) = (told, self.peer_bytes.get_mut(at)) else { continue };
            let more = told.wrapping_sub(*known) & BYTES_MASK;
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
        if bits == CE && !self.known.contains(Known::SYN_ACK_MARKED) {
            self.known.insert(Known::SYN_ACK_MARKED);
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

impl Connection {
    /// Sets the ECN bits of the IP header of the SYN of an [accepted](Self::accept) connection.
    pub fn note_syn_mark(&mut self, bits: u8) {
        if let Some(accurate) = self.out.transfer.accurate_mut() {
            accurate.syn = bits;
        }
    }
}

/// How many packets were marked, where the ACE field says `least` or a multiple of 8 more,
/// `delivered` were acknowledged, and the option says so many `bytes` more.
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
            accurate.known.insert(Known::NOT_CAPABLE);
        }
        code == 0b011
    }

    /// The peer's SYN,ACK came again, with these bits: its acknowledgement tells the mark.
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
        self.loss.ecn.insert(EcnFlags::TELL_SYN);
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
        if bits == NOT_ECT {
            return false;
        }
        accurate.count_bytes(bits, payload);
        let mut due = false;
        if bits == CE {
            let packets = arrival.segments(payload);
            accurate.packets = accurate.packets.wrapping_add(packets);
            accurate.untold = accurate.untold.saturating_add(packets);
            let most = if waiting || payload > 0 { MARKS_WITH_DATA } else { MARKS_WITHOUT_DATA };
            due = (payload > 0 && before != CE) || accurate.untold >= most;
        }
        if payload > 0 {
            self.loss.ecn.insert(EcnFlags::SEEN | EcnFlags::TELL_BYTES);
        }
        due
    }

    /// A SYN,ACK leaves with these options.
    pub(crate) fn note_told(&mut self, options: &TcpOptions) {
        if options.accurate_ecn.is_some() {
            self.loss.ecn.remove(EcnFlags::TELL_BYTES);
        }
    }

    /// The count in the header of a segment.
    pub(crate) fn told_marks(&self) -> Flags {
        self.accurate().map_or(Flags::empty(), |accurate| flags_of(accurate.packets % CYCLE))
    }

    /// Whether a pure acknowledgement leaves before any other segment.
    ///
    /// > RFC 9768 section 3.2.2.1: If an AccECN TCP Client intends to acknowledge the SYN/ACK with a
    /// > packet that does not satisfy these conditions (e.g., it has data to include on the ACK), it
    /// > SHOULD first send a pure ACK that does satisfy these conditions
    #[inline]
    pub(crate) fn tells_syn(&self) -> bool {
        self.loss.ecn.contains(EcnFlags::TELL_SYN)
    }

    /// Whether the next segment has the option; `data`: it carries some.
    #[inline]
    pub(crate) fn tells_bytes(&self, data: bool) -> bool {
        let ecn = self.loss.ecn;
        ecn.contains(EcnFlags::TELL_BYTES) || (data && ecn.contains(EcnFlags::TELL_WITH_DATA))
    }

    /// Adds the option, if it fits beside two SACK blocks.
    ///
    /// > RFC 9768 section 3.2.3.3: If SACK has been negotiated [RFC2018], and the smallest recommended
    /// > AccECN Option would leave insufficient space for two SACK blocks on a particular ACK, the Data
    /// > Receiver MUST give precedence to the SACK option
    pub(crate) fn add_accurate_option(&self, options: &mut TcpOptions) {
        let Some(accurate) = self.accurate() else { return };
        if accurate.known.contains(Known::NO_OPTION) {
            return;
        }
        let blocks = options.sack.len().min(SACKS_FIRST);
        let sack = if blocks > 0 { 4 + 8 * blocks } else { 0 };
        let taken = options.len_without_sack() + sack;
        options.accurate_ecn = accurate.option(MAX_OPTIONS_LEN.saturating_sub(taken));
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
        if accurate.known.contains(Known::OPTION_SENT) {
            accurate.known.insert(Known::NO_OPTION);
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

    /// Reads the marks from an acknowledgement, after its delivered segments are counted.
    pub(crate) fn take_accurate_feedback(
        &mut self,
        path: &Path,
        header: &TcpHeader,
        heard: &mut Heard,
    ) {
        // > RFC 9768 section 3.2.2: A host MUST NOT interpret the 3 flags as a 3-bit ACE field on any
        // > segment with SYN=1
        if header.flags.contains(Flags::SYN) {
            note_first_option(self, header);
            return;
        }
        let mss = self.send_mss(path);
        let handshake = path.state() == State::SynReceived;
        let code = code_of(header.flags);
        if handshake {
            note_first_option(self, header);
            let pure = !heard.news.contains(News::DATA) && header.options.sack.is_empty();
            if pure {
                return take_handshake_code(self, code);
            }
        }
        // > section 3.2.2.2: it first checks whether it has already been superseded (defined in
        // > Appendix A.1) by another ACK in which case it ignores the ECN feedback.
        if heard.delivered == 0 && !heard.news.intersects(News::ADVANCED | News::SACKED) {
            return;
        }
        let Some(accurate) = self.accurate_mut() else { return };
        // > section 3.2.2.4: If the value of this ACE field is found to be zero (0b000), for the
        // > remainder of the half-connection the Data Sender ought to send non-ECN-capable packets and
        // > it is advised not to respond to any feedback of CE markings.
        if !accurate.known.contains(Known::HEARD) {
            accurate.known.insert(Known::HEARD);
            if code == 0 {
                accurate.known.insert(Known::NOT_CAPABLE | Known::DEAF);
            }
        }
        let option = header.options.accurate_ecn.as_ref();
        let bytes = option
            .filter(|_| !accurate.known.contains(Known::OPTIONS_BROKEN))
            .and_then(|option| accurate.take_option(option));
        let least = code.wrapping_sub(accurate.peer_packets) % CYCLE;
        let marked = marked_packets(least, heard.delivered, bytes, mss);
        accurate.peer_packets = accurate.peer_packets.wrapping_add(marked);
        // > section 3.2.3.2.5: If either endpoint detects that the s.ceb counter has increased but the
        // > s.cep has not [...] the Data Sender MUST disable sending ECN-capable packets
        if marked == 0 && heard.delivered < CYCLE && bytes.is_some_and(|bytes| bytes > 0) {
            accurate.known.insert(Known::NOT_CAPABLE);
        }
        if marked > 0 && !accurate.known.contains(Known::DEAF) {
            heard.marked = marked;
            heard.news.insert(News::ECHO);
        }
    }
}

/// > RFC 9768 section 3.1.1: it MUST set both its half connections into AccECN mode.
pub(super) fn begin(transfer: &mut Transfer, syn_bits: u8) {
    transfer.loss.ecn = EcnFlags::ACCURATE | EcnFlags::TELL_BYTES;
    transfer.rare().accurate = Some(Accurate::new(syn_bits));
}

/// The flags of a SYN,ACK that was sent `sent` times before.
///
/// > RFC 9768 section 3.2.3.2.2: the TCP Server SHOULD retransmit the SYN/ACK, but with no AccECN
/// > Option. If this retransmission times out, [...] the TCP Server SHOULD retransmit the SYN/ACK
/// > with (AE,CWR,ECE) = (0,0,0) and no AccECN Option, but it remains in AccECN feedback mode
///
/// > section 3.1.5: [A TCP Server] MUST NOT set ECT on any packet for the rest of the connection,
/// > if it has received or sent at least one valid SYN or Acceptable SYN/ACK with (AE,CWR,ECE) =
/// > (0,0,0) during the handshake.
pub(super) fn of_syn_ack(transfer: &mut Transfer, sent: u32) -> Flags {
    let Some(accurate) = transfer.accurate_mut() else { return Flags::empty() };
    if sent > 0 {
        accurate.known.insert(Known::NO_OPTION);
    }
    let code = if sent > 1 {
        accurate.known.insert(Known::NOT_CAPABLE);
        0
    } else {
        handshake_code(accurate.syn)
    };
    flags_of(code)
}

/// The SYN,ACK says how our SYN arrived, which left as Not-ECT.
///
/// > RFC 9768 section 3.2.2.3: If this comparison implies an invalid transition [...] of the IP-ECN
/// > field, for the remainder of the half-connection the Client is advised to send non-ECN-capable
/// > packets
///
/// > section 3.1.3: with the currently reserved combination (AE,CWR,ECE) = (1,0,1) [...] the Client
/// > MUST enable AccECN mode as if the SYN/ACK [...] fed back that the IP-ECN field on the SYN had
/// > arrived unchanged.
pub(super) fn take_syn_feedback(transfer: &mut Transfer, said: Flags) {
    let code = code_of(said);
    let Some(accurate) = transfer.accurate_mut() else { return };
    let bits = accurate.syn;
    accurate.note_syn_ack(bits);
    if code != 0b010 && code != 0b101 {
        accurate.known.insert(Known::NOT_CAPABLE);
    }
    if code == 0b110 {
        transfer.congestion.on_syn_lost();
    }
}

/// The flags and the ECN bits of a segment with these options, which is no SYN.
pub(super) fn of_segment(
    transfer: &mut Transfer,
    fresh: bool,
    pure: bool,
    options: &TcpOptions,
) -> (Flags, u8) {
    let ecn = transfer.loss.ecn;
    let handshake = pure && ecn.contains(EcnFlags::TELL_SYN);
    let Some(accurate) = transfer.accurate_mut() else { return (Flags::empty(), NOT_ECT) };
    accurate.untold = 0;
    let code = if handshake { handshake_code(accurate.syn) } else { accurate.packets % CYCLE };
    let told = options.accurate_ecn.is_some();
    let silent = accurate.known.contains(Known::NO_OPTION);
    let bits = if fresh && !accurate.known.contains(Known::NOT_CAPABLE) { ECT0 } else { NOT_ECT };
    // After any other segment, the peer reads the flags as the count.
    let mut done = EcnFlags::TELL_SYN;
    if fresh && ecn.contains(EcnFlags::TELL_WITH_DATA) {
        accurate.known.set(Known::OPTION_SENT, told);
        done |= EcnFlags::TELL_WITH_DATA;
    }
    if told || silent {
        done |= EcnFlags::TELL_BYTES;
    }
    transfer.loss.ecn.remove(done);
    (flags_of(code), bits)
}

/// Reads the pure acknowledgement of our Not-ECT SYN,ACK (RFC 9768 section 3.2.2.1, table 4).
///
/// > if it receives a value of zero [...], for the rest of the connection the Server MUST NOT set
/// > ECT on outgoing packets and MUST NOT respond to AccECN feedback.
fn take_handshake_code(transfer: &mut Transfer, code: u32) {
    let Some(accurate) = transfer.accurate_mut() else { return };
    match code {
        0b000 => accurate.known.insert(Known::NOT_CAPABLE | Known::DEAF),
        0b011 | 0b100 => accurate.known.insert(Known::NOT_CAPABLE),
        0b110 => {
            accurate.peer_packets += 1;
            accurate.known.insert(Known::NOT_CAPABLE);
            transfer.congestion.on_syn_lost();
        }
        _ => {}
    }
}

/// Checks the first segment that may have the peer's option.
///
/// > RFC 9768 section 3.2.3.2.4: If it runs a test and either initial value is zero, [it] will
/// > switch into a mode that ignores AccECN Options for this half connection.
fn note_first_option(transfer: &mut Transfer, header: &TcpHeader) {
    let (Some(option), Some(accurate)) = (header.options.accurate_ecn, transfer.accurate_mut())
    else {
        return;
    };
    let [e0, _, e1] = option.counters();
    if e0 == Some(0) || e1 == Some(0) {
        accurate.known.insert(Known::OPTIONS_BROKEN);
    }
}
