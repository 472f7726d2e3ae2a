//! Variant of step R1, the guess: the length of the next frame's headers and the place of its
//! payload, so that a bulk flow's bytes follow each other in memory as they do in the stream.
//!
//! The driver calls it before each read and reports after it. A wrong guess costs alignment only.
//!
//! - **Header length**: that of the last frame with more than a little payload; without such frames,
//!   the length that a connection's acknowledgements predict for its data.
//! - **Place**: right behind the last payload while one flow runs; a fresh page when another came
//!   between, when a connection began or ended, or when the last guess was wrong.

use pagewire_mem::PAGE_SIZE;

use super::limits::{IDLE_FRAMES, RECENT_FRAMES, SMALL_PAYLOAD, TRUST};
use pagewire_mem::link::headers::{Layout, TCP_FIN, TCP_SYN, Transport};

/// Ethernet, IPv4, TCP with time stamps.
const FIRST_GUESS: usize = 14 + 20 + 32;

/// Range of header bytes of one read: an Ethernet header, and the head's capacity.
const HEADER_RANGE: (usize, usize) = (14, pagewire_mem::HEAD_CAPACITY);

/// Addresses and ports of a TCP flow, as they are in the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FlowKey {
    bytes: [u8; 36],
}

/// The flow of the last bulk frame, and where its next byte is expected.
#[derive(Clone, Copy, Debug)]
struct Flow {
    key: FlowKey,
    next_seq: u32,
    /// Address right behind its last payload byte.
    end: usize,
}

/// A received frame, as the predictor sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    /// The frame's first bytes, at least the headers.
    pub(super) head: &'a [u8],
    pub(super) layout: Layout,
    pub(super) payload: usize,
    /// Address of the first payload byte, if the headers are as long as they are.
    pub(super) at: usize,
    /// Address behind the last payload byte.
    pub(super) end: usize,
}

/// The decision about a frame's payload, by the place where it landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Too little to pin a page: copied elsewhere, the next frame overwrites it.
    Small,
    /// Stays where it is; `aligned` as `DeviceCounters::rx_aligned_bytes` counts it.
    Keep { aligned: bool },
}

#[derive(Debug)]
pub(super) struct Predictor {
    header: usize,
    flow: Option<Flow>,
    /// Frames in a row that continued the flow, counted up to `TRUST`.
    streak: u8,
    /// Frames since the last with bulk payload, counted up to `IDLE_FRAMES`.
    idle: u8,
    fresh: bool,
    /// The flow of the last bulk frame, also if that was long ago.
    last: Option<FlowKey>,
    /// Rises by `RECENT_FRAMES` when a bulk frame is another flow's than the last, falls by one otherwise.
    turns: u8,
}

impl Predictor {
    pub(super) fn new() -> Self {
        Self {
            header: FIRST_GUESS,
            flow: None,
            streak: TRUST,
            idle: IDLE_FRAMES,
            fresh: false,
            last: None,
            turns: 0,
        }
    }

    /// A predictor for a queue of one flow, whose headers have `len` bytes.
    pub(super) fn for_headers(len: usize) -> Self {
        Self { header: len.clamp(HEADER_RANGE.0, HEADER_RANGE.1), ..Self::new() }
    }

    /// Bytes of the next frame that are expected to be headers.
    pub(super) fn header_len(&self) -> usize {
        self.header
    }

    /// Whether the next payload should start a page instead of following the last.
    pub(super) fn wants_fresh_page(&self) -> bool {
        self.fresh
    }

    /// Whether bulk flows take turns: one that begins after another has ended is no turn.
    #[inline]
    pub(super) fn is_mixed(&self) -> bool {
        self.turns > RECENT_FRAMES
    }

    pub(super) fn forget_turns(&mut self) {
        self.turns = 0;
    }

    pub(super) fn observe(&mut self, seen: &Seen<'_>) -> Verdict {
        let Seen { head, layout, payload, at, end } = *seen;
        let tcp = layout.transport == Transport::Tcp;
        let flags = if tcp { layout.tcp_flags(head).unwrap_or(0) } else { 0 };
        let key = tcp.then(|| FlowKey::of(head, &layout)).flatten();
        let seq = if tcp { layout.tcp_seq(head) } else { None };
        let flow = self.flow.filter(|f| key == Some(f.key) && seq == Some(f.next_seq));
        let follows = flow.is_some_and(|f| f.end == at) && layout.payload == self.header;

        if payload <= SMALL_PAYLOAD && !(follows && payload > 0) {
            self.quiet_frame(seen, tcp, flags);
            return Verdict::Small;
        }
        let missed = layout.payload != self.header;
        let aligned = !missed && (follows || at.is_multiple_of(PAGE_SIZE));
        self.streak = match (flow, self.flow) {
            (Some(_), _) => (self.streak + 1).min(TRUST),
            // The first flow after a quiet time is trusted at once.
            (None, None) => TRUST,
            (None, Some(_)) => 0,
        };
        self.turns = match self.last {
            Some(last) if key != Some(last) => (self.turns + RECENT_FRAMES).min(2 * RECENT_FRAMES),
            _ => self.turns.saturating_sub(1),
        };
        self.last = key;
        self.idle = 0;
        self.header = layout.payload.clamp(HEADER_RANGE.0, HEADER_RANGE.1);
        let last = flags & TCP_FIN != 0;
        self.flow = match (key, seq) {
            (Some(key), Some(seq)) if !last => {
                Some(Flow { key, next_seq: seq.wrapping_add(payload as u32), end })
            }
            _ => None,
        };
        // Datagrams share pages unless two hardly would, and so do segments of flows that take turns.
        let roomy = (!tcp || self.is_mixed()) && payload < PAGE_SIZE / 2;
        self.fresh = missed || last || !(roomy || self.streak == TRUST && self.flow.is_some());
        Verdict::Keep { aligned }
    }

    /// Notes a frame whose headers are unknown, with `payload` bytes beyond the head.
    pub(super) fn observe_other(&mut self, payload: usize) -> Verdict {
        self.idle = (self.idle + 1).min(IDLE_FRAMES);
        if payload <= SMALL_PAYLOAD {
            return Verdict::Small;
        }
        self.flow = None;
        self.fresh = true;
        Verdict::Keep { aligned: false }
    }

    fn quiet_frame(&mut self, seen: &Seen<'_>, tcp: bool, flags: u8) {
        self.idle = (self.idle + 1).min(IDLE_FRAMES);
        // A connection begins or ends: the next frame is hardly the old flow's.
        let edge = flags & (TCP_FIN | TCP_SYN) != 0;
        if edge || self.idle == IDLE_FRAMES {
            self.flow = None;
            self.fresh = true;
        }
        if tcp && self.flow.is_none() {
            let header = seen.layout.tcp_data_header(seen.head);
            self.header = header.clamp(HEADER_RANGE.0, HEADER_RANGE.1);
        }
    }
}

impl FlowKey {
    /// The flow that a frame belongs to.
    pub(super) fn of(head: &[u8], layout: &Layout) -> Option<Self> {
        let ports = head.get(layout.transport_at..layout.transport_at + 4)?;
        Some(Self::joined(layout.addresses(head)?.iter().chain(ports)))
    }

    /// The flow in the other direction: of a frame to be sent, the flow of its answers.
    pub(super) fn of_answer(head: &[u8], layout: &Layout) -> Option<Self> {
        let ports = head.get(layout.transport_at..layout.transport_at + 4)?;
        let (from, to) = ports.split_at_checked(2)?;
        let addresses = layout.addresses(head)?;
        let (source, target) = addresses.split_at_checked(addresses.len() / 2)?;
        Some(Self::joined(target.iter().chain(source).chain(to).chain(from)))
    }

    fn joined<'a>(parts: impl Iterator<Item = &'a u8>) -> Self {
        let mut bytes = [0; 36];
        for (to, from) in bytes.iter_mut().zip(parts) {
            *to = *from;
        }
        Self { bytes }
    }
}
