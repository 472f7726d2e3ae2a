//! [`Inbound`], the receiving part of a connection: the receive queue, the window, the acknowledgements.

pub(crate) mod ack;
pub(crate) mod receive_queue;
pub(crate) mod tuning;
pub(crate) mod urgent;
pub(crate) mod window;

use pagewire_mem::{FragVec, Instant};

use crate::config::{Config, LinkLimits};
use crate::error::DropReason;
use crate::header::TcpHeader;
use crate::inbound::ack::AckState;
use crate::inbound::receive_queue::{Inserted, ReceiveQueue};
use crate::inbound::tuning::BufferTuning;
use crate::inbound::urgent::UrgentIn;
use crate::limits::{DEFAULT_MSS, MIN_SEND_MSS};
use crate::path::Path;
use crate::seq::Seq;
use crate::shared::Env;

/// The part of a connection that receives.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    pub(crate) flags: InFlags,
    /// The receive queue; its `next` is RCV.NXT, less the FIN.
    pub(crate) queue: ReceiveQueue,
    /// The right edge of the window, which never moves back.
    pub(crate) edge: Seq,
    /// The acknowledgement number sent last.
    pub(crate) acked: Seq,
    /// Bytes of memory that the host allowed to pin in the last call.
    pub(crate) allowance: u32,
    /// The size that the buffer has grown to, and the bound of the window (`tuning.rs`).
    pub(crate) buffer: u32,
    pub(crate) ssthresh: u32,
    /// Measurements for the receive buffer, once data has arrived.
    pub(crate) tuning: Option<Box<BufferTuning>>,
    pub(crate) data_at: Instant,
    /// Payload of the peer's full wire segments, by estimate.
    pub(crate) mss: u16,
    /// Shift of the windows that we announce.
    pub(crate) scale: u8,
    pub(crate) ack: AckState,
    /// Payload bytes that arrived in order.
    pub(crate) bytes_received: u64,
    /// Segments received, and those of them with payload.
    pub(crate) segments_in: u32,
    pub(crate) data_segments_in: u32,
    pub(crate) rare: Option<Box<RareInbound>>,
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct InFlags: u8 {
        const READ_SHUT = 1 << 0;
        /// The peer's FIN is in order and counted.
        const FIN_RECEIVED = 1 << 1;
        /// The peer has announced an urgent byte.
        const URGENT_IN = 1 << 2;
        /// The peer's FIN arrived, perhaps beyond a gap.
        const FIN_KNOWN = 1 << 3;
        /// The next data in order was refused for want of the host's memory: the next window is 0.
        const OUT_OF_MEMORY = 1 << 4;
        /// The application has asked for data as whole pages.
        const MAPS = 1 << 5;
    }
}

/// State that few connections need. Boxed to keep the others small.
#[derive(Debug, Default)]
pub(crate) struct RareInbound {
    /// Bytes of memory that the application took by reference and has not returned.
    pub(crate) kept: u32,
    /// The number of the peer's FIN, if the FIN arrived beyond a gap.
    pub(crate) fin: Option<Seq>,
    /// The urgent byte that the peer has announced.
    pub(crate) urgent_in: Option<UrgentIn>,
    /// A range that arrived twice, to report (RFC 2883).
    pub(crate) dsack: Option<(Seq, Seq)>,
    /// The right edge in the last segment, if it lies before [`Inbound::edge`].
    pub(crate) shrunk: Option<Seq>,
    /// No challenge ACK before this.
    pub(crate) challenge_after: Instant,
}

impl Inbound {
    #[inline]
    pub(crate) fn has_fin(&self) -> bool {
        self.flags.contains(InFlags::FIN_RECEIVED)
    }

    /// The number of the peer's FIN, if one arrived.
    #[inline]
    pub(crate) fn fin(&self) -> Option<Seq> {
        if !self.flags.contains(InFlags::FIN_KNOWN) {
            return None;
        }
        // Nothing is received after a FIN.
        Some(self.rare.as_ref().and_then(|rare| rare.fin).unwrap_or(self.queue.next()))
    }

    /// Remembers the number of the peer's FIN. Of two different ones, the first stays.
    pub(crate) fn note_fin(&mut self, fin: Seq) {
        if !self.flags.contains(InFlags::FIN_KNOWN) {
            self.flags.insert(InFlags::FIN_KNOWN);
            if fin != self.queue.next() {
                self.rare().fin = Some(fin);
            }
        }
    }

    /// The number of the peer's SYN.
    pub(crate) fn irs(&self) -> Seq {
        self.queue.next() - 1 - self.bytes_received as u32
    }

    pub(crate) fn widen_buffer(&mut self, bytes: u32) {
        self.buffer = self.buffer.max(bytes);
    }

    /// Before the peer's SYN.
    pub(crate) fn new(now: Instant, config: &Config, link: LinkLimits) -> Self {
        let mss = link.recv_mss.min(config.max_mss.unwrap_or(u16::MAX));
        Self {
            queue: ReceiveQueue::new(Seq(0)),
            allowance: u32::MAX,
            ssthresh: window::initial(config, mss),
            data_at: now,
            mss: DEFAULT_MSS.min(link.recv_mss),
            scale: if config.window_scaling { window::scale_for(config) } else { 0 },
            ..Self::default()
        }
    }

    /// The connection is closed: nothing is acknowledged any more. Received data stays readable.
    pub(crate) fn end(&mut self) {
        self.tuning = None;
        self.ack = AckState::default();
        self.forget_dsack();
    }

    /// Reads the peer's SYN.
    pub(crate) fn take_syn(&mut self, path: &Path, syn: &TcpHeader) {
        let first = syn.seq + 1;
        self.queue = ReceiveQueue::new(first);
        self.acked = first;
        // Before the peer's numbers are known, the edge counts from 0: the window of our SYN. A SYN,ACK
        // announces one when it leaves.
        if self.edge == Seq(0) {
            self.ssthresh = self.first_window(path);
        }
        self.edge = first + self.edge.0;
        if !path.scaling_ok {
            self.scale = 0;
        }
        // An estimate until the peer sends data.
        let theirs = syn.options.mss.unwrap_or(DEFAULT_MSS).max(MIN_SEND_MSS);
        self.mss = theirs.min(path.announced_mss());
    }

    /// The range to report as received twice (RFC 2883).
    #[inline]
    pub(crate) fn dsack(&self) -> Option<(Seq, Seq)> {
        self.rare.as_ref()?.dsack
    }

    #[inline]
    pub(crate) fn forget_dsack(&mut self) {
        if let Some(rare) = self.rare.as_deref_mut() {
            rare.dsack = None;
        }
    }

    pub(crate) fn shrink(&mut self) {
        self.queue.shrink();
        self.tuning = None;
        let needless = |r: &RareInbound| {
            let limits_challenges = r.challenge_after != Instant::default();
            let waits = r.urgent_in.is_some() || r.dsack.is_some() || r.shrunk.is_some();
            let waits = waits || r.fin.is_some();
            r.kept == 0 && !waits && !limits_challenges
        };
        if self.rare.as_deref().is_some_and(needless) {
            self.rare = None;
        }
    }

    pub(crate) fn rare(&mut self) -> &mut RareInbound {
        self.rare.get_or_insert_default()
    }

    /// Whether as much is queued as the application waits for, or as can arrive, in line.
    #[inline]
    pub(crate) fn is_readable(&self, path: &Path) -> bool {
        let urgent = usize::from(self.is_at_mark() && !path.config().oob_inline);
        let Some(queued) = self.queue.queued().checked_sub(urgent).filter(|&n| n > 0) else {
            return false;
        };
        queued >= path.config().recv_lowat as usize
            || self.flags.contains(InFlags::FIN_RECEIVED)
            || self.recv_window() <= u32::from(self.mss)
    }

    /// Notes how much memory the host allows, which bounds the window.
    pub(crate) fn note_allowance(&mut self, env: &Env<'_>) {
        self.allowance = u32::try_from(env.shared.memory.allowance()).unwrap_or(u32::MAX);
    }

    /// RCV.NXT: the next number expected, after the peer's FIN.
    #[inline]
    pub(crate) fn rcv_nxt(&self) -> Seq {
        self.queue.next() + u32::from(self.flags.contains(InFlags::FIN_RECEIVED))
    }

    pub(crate) fn drop_received(&mut self) {
        // The announced window stays; only the memory goes.
        self.drop_queued(usize::MAX);
        self.queue.shrink();
    }

    /// Whether `len` bytes from `seq` on are the next, with no gap, FIN or urgent byte.
    #[inline]
    pub(crate) fn is_next(&self, seq: Seq, len: u32) -> bool {
        seq == self.queue.next()
            && !self.queue.has_gaps()
            && self.fin().is_none()
            && !self.flags.contains(InFlags::URGENT_IN)
            && len <= self.edge.saturating_since(seq)
    }

    /// Queues the payload of a segment that was cut to the window, and counts it.
    #[inline]
    pub(crate) fn insert(&mut self, env: &mut Env<'_>, seq: Seq, payload: FragVec) -> Inserted {
        let inserted = self.queue.insert(env, seq, payload);
        self.bytes_received += u64::from(inserted.advanced);
        // As Linux: whoever has something to read opens the window again by reading.
        if inserted.dropped == Some(DropReason::HostMemory)
            && !inserted.out_of_order
            && self.queue.queued() > 0
        {
            self.flags.insert(InFlags::OUT_OF_MEMORY);
        }
        inserted
    }
}
