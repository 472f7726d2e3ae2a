//! Variant of steps S6 and R1, over the pair link: two ends in one process, frames pass by value
//! and payload by reference. Read `spsc` (the queue) and `wake_word` (the wake-ups) beside it.
//!
//! ```text
//!   left end                                     right end
//!   transmit --> [ ring of PacketBuf ] --------> receive
//!   receive  <-------- [ ring of PacketBuf ] <-- transmit
//!   eventfd  <- rung by right                    eventfd  <- rung by left
//! ```
//!
//! By default a segment has 15 whole pages: one of 64 KiB less its headers would end in the middle of a
//! page. A super-frame has up to 34 such segments, half of a default send buffer, so that one half is
//! filled while the other is in flight. Wrappers for faults and captures ask for at most 65,535 bytes, so
//! behind a wrapper and with the default MTU there are no super-frames.
//!
//! Each end belongs to one thread at a time. If a ring is full, frames stay with the sender, so
//! nothing is lost on a pair. An end whose peer is dropped receives what that had sent, and then
//! the error [`DeviceError::Closed`], for good. What it sends is dropped and counted.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use pagewire_mem::{CopyLedger, Instant, MAX_FRAGS, PacketBuf, RxChecksum, TxChecksum};

use crate::device::{Device, DeviceCounters, DeviceError};
use crate::limits::{
    MAX_LINK_HEADER, MAX_MTU, MAX_SUPER_FRAME, MIN_MTU, PAIR_MAX_QUEUE_FRAMES, PAIR_MTU,
    PAIR_QUEUE_FRAMES,
};
use crate::wake_event::WakeEvent;
use pagewire_mem::link::{Capabilities, HeaderSplit, Medium};

use spsc::{Consumer, Producer};
use wake_word::{FRAMES, GONE, ROOM, WakeWord};

mod spsc;
#[cfg(test)]
mod spsc_tests;
mod sync;
#[cfg(test)]
mod tests;
mod wake_word;

/// Settings of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairConfig {
    /// Largest IP packet, in bytes: 576 to 65,535, at least 1,280 for IPv6. The default, 61,512,
    /// carries 15 whole pages of TCP payload with timestamps over either IP version.
    pub mtu: usize,
    /// Frames that each direction holds, rounded up to a power of two: 1 to 65,536.
    pub queue_frames: usize,
    /// Link addresses of the left and of the right end.
    pub macs: [[u8; 6]; 2],
    /// Checksums are left out (frames never leave the process) and super-frames pass uncut.
    /// `false`: the pair offers neither, so that a stack on it works as on a plain network card.
    pub offload: bool,
    /// Longest super-frame, as an IP packet, in bytes: twice the `mtu` (less: there are none) to
    /// 2,097,120, which is the default. A longer one than 65,535 has 0 in the length field of its
    /// IP header, as in Linux (`gso_max_size`): the frame knows its length. Beyond 65,535, TCP also
    /// assumes that the peer is in the same machine, and collects output until an acknowledgement.
    pub max_super_frame: usize,
}

impl Default for PairConfig {
    fn default() -> Self {
        Self {
            mtu: PAIR_MTU,
            queue_frames: PAIR_QUEUE_FRAMES,
            // Locally administered, unicast: the second bit of the first byte.
            macs: [[0x02, 0x50, 0x57, 0, 0, 1], [0x02, 0x50, 0x57, 0, 0, 2]],
            offload: true,
            max_super_frame: MAX_SUPER_FRAME,
        }
    }
}

/// Makes two joined devices: each receives what the other sends, by reference; see [`PairConfig`].
#[derive(Debug)]
pub struct Pair;

impl Pair {
    /// Two ends of a new link, left and right.
    ///
    /// # Errors
    /// [`DeviceError::System`] if the process has no descriptor left.
    // Not `Self`: only the two ends are values.
    #[allow(clippy::new_ret_no_self)]
    pub fn new() -> Result<(PairEnd, PairEnd), DeviceError> {
        Self::with(PairConfig::default())
    }

    /// As [`new`](Self::new), with settings.
    ///
    /// # Errors
    /// The errors of `new`, and [`DeviceError::Config`] if a setting is out of its range.
    pub fn with(config: PairConfig) -> Result<(PairEnd, PairEnd), DeviceError> {
        config.check()?;
        let (left_tx, right_rx) = spsc::ring(config.queue_frames);
        let (right_tx, left_rx) = spsc::ring(config.queue_frames);
        let (left, right) = (Arc::new(Waiter::new()?), Arc::new(Waiter::new()?));
        let [left_mac, right_mac] = config.macs;
        Ok((
            PairEnd::new(config.capabilities(left_mac), left_tx, left_rx, &left, &right),
            PairEnd::new(config.capabilities(right_mac), right_tx, right_rx, &right, &left),
        ))
    }
}

/// An end of a pair.
pub struct PairEnd {
    capabilities: Capabilities,
    tx: Producer<PacketBuf>,
    rx: Consumer<PacketBuf>,
    /// Behind the queues: a peer that this drop wakes must find the queues closed.
    peer: Peer,
    ours: Arc<Waiter>,
    /// The last `transmit` left frames behind.
    blocked: bool,
    armed: bool,
    /// Wake-ups by the peer that were not read from the eventfd yet.
    unread_rings: u64,
    counters: DeviceCounters,
}

/// The part of the other end that wakes it.
struct Peer(Arc<Waiter>);

/// How an end sleeps: the word it sets, and the descriptor that its peer then writes to.
struct Waiter {
    wake_word: WakeWord,
    event: WakeEvent,
}

impl PairConfig {
    fn check(&self) -> Result<(), DeviceError> {
        let refuse = |what: String| Err(DeviceError::Config(what));
        if !(MIN_MTU..=MAX_MTU).contains(&self.mtu) {
            return refuse(format!(
                "pair: mtu {} is not between {MIN_MTU} and {MAX_MTU} bytes",
                self.mtu
            ));
        }
        if !(1..=PAIR_MAX_QUEUE_FRAMES).contains(&self.queue_frames) {
            return refuse(format!(
                "pair: queue_frames {} is not between 1 and {PAIR_MAX_QUEUE_FRAMES}",
                self.queue_frames
            ));
        }
        if self.max_super_frame > MAX_SUPER_FRAME {
            return refuse(format!(
                "pair: max_super_frame {} is more than {MAX_SUPER_FRAME} bytes",
                self.max_super_frame
            ));
        }
        let [left, right] = self.macs;
        if left == right || self.macs.iter().any(|mac| mac[0] & 1 != 0) {
            return refuse("pair: the two link addresses must be different and unicast".into());
        }
        Ok(())
    }

    fn capabilities(&self, mac: [u8; 6]) -> Capabilities {
        Capabilities {
            medium: Medium::Ethernet,
            mac,
            mtu: self.mtu,
            // Without room for two segments, a small segment would follow every large one.
            max_super_frame: if self.offload && self.mtu <= self.max_super_frame / 2 {
                self.max_super_frame
            } else {
                self.mtu
            },
            rx_checksum: self.offload,
            tx_checksum: self.offload,
            tso_v4: self.offload,
            tso_v6: self.offload,
            uso: self.offload,
            max_frags: MAX_FRAGS,
            header_split: HeaderSplit::Native,
            queues: 1,
            by_reference: true,
        }
    }
}

impl PairEnd {
    fn new(
        capabilities: Capabilities,
        tx: Producer<PacketBuf>,
        rx: Consumer<PacketBuf>,
        ours: &Arc<Waiter>,
        theirs: &Arc<Waiter>,
    ) -> Self {
        Self {
            capabilities,
            tx,
            rx,
            peer: Peer(Arc::clone(theirs)),
            ours: Arc::clone(ours),
            blocked: false,
            armed: false,
            unread_rings: 0,
            counters: DeviceCounters::default(),
        }
    }

    /// Whether the other end was dropped. Frames that it sent before may still be there.
    pub fn is_peer_gone(&self) -> bool {
        self.tx.is_closed()
    }

    /// Whether the frame can cross this link at all.
    fn can_send(&self, frame: &PacketBuf) -> bool {
        let caps = &self.capabilities;
        let limit = match frame.gso {
            Some(_) if !caps.tso_v4 => return false,
            Some(_) => caps.max_super_frame,
            None => caps.mtu,
        };
        let partial = matches!(frame.tx_checksum, TxChecksum::Partial { .. });
        frame.len() <= limit + MAX_LINK_HEADER && (caps.tx_checksum || !partial)
    }

    /// Drops, and counts, frames that a dropped peer did not take, so that their pages are free.
    fn reclaim(&mut self) {
        if self.tx.is_closed() {
            self.counters.tx_dropped_closed += self.tx.reclaim() as u64;
        }
    }
}

impl Device for PairEnd {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn transmit(
        &mut self,
        _now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        _ledger: &mut CopyLedger,
    ) -> Result<(), DeviceError> {
        if self.tx.is_closed() {
            self.counters.tx_dropped_closed += frames.len() as u64;
            frames.clear();
            self.reclaim();
        }
        // A frame is changed in place and moved once: it is four cache lines long.
        while !self.tx.is_full()
            && let Some(frame) = frames.front_mut()
        {
            let fits = self.can_send(frame);
            let bytes = frame.len() as u64;
            hand_over(frame);
            let Some(frame) = frames.pop_front() else { break };
            if fits && self.tx.push(frame).is_ok() {
                self.counters.tx_frames += 1;
                self.counters.tx_bytes += bytes;
            } else {
                self.counters.tx_dropped_error += 1;
            }
        }
        self.blocked = !frames.is_empty();
        if self.tx.publish() && self.peer.wake(FRAMES) {
            self.counters.syscalls += 1;
        }
        Ok(())
    }

    fn receive(
        &mut self,
        _now: Instant,
        frames: &mut VecDeque<PacketBuf>,
        max: usize,
        _ledger: &mut CopyLedger,
    ) -> Result<usize, DeviceError> {
        let mut count = 0;
        while count < max {
            let Some(frame) = self.rx.pop() else { break };
            count += 1;
            self.counters.rx_bytes += frame.len() as u64;
            self.counters.rx_payload_bytes += frame.frag_len() as u64;
            let aligned = frame.frags().iter().filter(|frag| frag.is_page_aligned());
            self.counters.rx_aligned_bytes += aligned.map(|frag| frag.len() as u64).sum::<u64>();
            frames.push_back(frame);
        }
        self.counters.rx_frames += count as u64;
        if self.rx.release() {
            let (left, capacity) = (self.rx.available(), self.rx.capacity());
            if is_roomy(capacity.saturating_sub(left), capacity) && self.peer.wake(ROOM) {
                self.counters.syscalls += 1;
            }
        }
        self.reclaim();
        // The peer closes its two queues before it reports that: everything it has sent is visible here.
        if count == 0 && self.tx.is_closed() && self.rx.available() == 0 {
            return Err(DeviceError::Closed);
        }
        Ok(count)
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ours.event.fd())
    }

    fn arm(&mut self) -> bool {
        if self.armed {
            self.disarm();
        }
        self.armed = true;
        self.ours.wake_word.set(if self.blocked { FRAMES | ROOM } else { FRAMES });
        // Check again, after the fence in `set`: the peer's earlier changes are visible. A peer that
        // went before that has rung nobody.
        let room = self.blocked && is_roomy(self.tx.free(), self.tx.capacity());
        self.reclaim();
        room || self.tx.is_closed() || self.rx.available() > 0
    }

    fn disarm(&mut self) {
        if !std::mem::take(&mut self.armed) && self.unread_rings == 0 {
            return;
        }
        // Only a peer that took the word writes, and once; so polling costs no system call.
        if self.ours.wake_word.clear() {
            self.unread_rings += 1;
        }
        if self.unread_rings > 0 {
            self.unread_rings = self.unread_rings.saturating_sub(self.ours.event.take());
            self.counters.syscalls += 1;
        }
    }

    fn counters(&self) -> DeviceCounters {
        self.counters
    }
}

/// Turns the sender's checksum state of a frame into the receiver's, for links that stay in memory.
pub fn hand_over(frame: &mut PacketBuf) {
    frame.rx_checksum = match std::mem::take(&mut frame.tx_checksum) {
        // Never computed, because memory that stays in place cannot be damaged.
        TxChecksum::Partial { .. } => RxChecksum::Valid,
        // Computed by a stack without offload, or to damage the frame on purpose: verify.
        TxChecksum::Done => RxChecksum::Unknown,
    };
}

/// Whether a sender without room should be woken, or need not sleep: half of the ring is free.
fn is_roomy(free: usize, capacity: usize) -> bool {
    free >= capacity.div_ceil(2)
}

impl Peer {
    /// Wakes the peer if it sleeps and waits for this; `true` if that took a system call.
    fn wake(&self, what: u32) -> bool {
        let rings = self.0.wake_word.claim(what);
        if rings {
            self.0.event.wake();
        }
        rings
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.wake(GONE);
    }
}

impl Waiter {
    fn new() -> Result<Self, DeviceError> {
        let event = WakeEvent::new().map_err(|source| DeviceError::System {
            what: "pair: eventfd (is the limit on open files reached?)".into(),
            source,
        })?;
        Ok(Self { wake_word: WakeWord::default(), event })
    }
}
