//! The packets that wait for a shard ([`Inbox`]).

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use pagewire_stack::Stray;
use pagewire_stack::limits::{STRAY_BACKLOG, STRAY_BACKLOG_BYTES};

use crate::shared::DriverWaker;

/// The packets that wait for one shard, in a lane for each sender: no sender takes the room of another.
pub(super) struct Inbox {
    lanes: Box<[Mutex<Lane>]>,
    /// The senders whose lanes have packets, a bit for each.
    pending: AtomicU32,
    waker: OnceLock<DriverWaker>,
}

/// The packets of one sender, as far as there is room. As many more may be with the receiver already.
struct Lane {
    room: Room,
    queue: VecDeque<Stray>,
    /// Bytes of memory that the packets pin.
    bytes: usize,
}

/// The room of a lane, and of those that belong to one receiver together.
#[derive(Clone, Copy)]
struct Room {
    packets: usize,
    bytes: usize,
}

/// The least room of a lane: some bursts, with some super-frames.
const LEAST_ROOM: Room = Room { packets: 256, bytes: 512 << 10 };

/// News that a lane takes beyond its packets: a flood is not to keep neighbours from being known.
const NEWS_BEYOND: usize = 64;

impl Room {
    /// All lanes of a receiver together have [`STRAY_BACKLOG`] and [`STRAY_BACKLOG_BYTES`], unless there are many.
    fn of_each(senders: usize) -> Self {
        let others = senders.saturating_sub(1).max(1);
        Self {
            packets: (STRAY_BACKLOG / others).max(LEAST_ROOM.packets),
            bytes: (STRAY_BACKLOG_BYTES / others).max(LEAST_ROOM.bytes),
        }
    }
}

impl Inbox {
    pub(super) fn new(senders: usize) -> Self {
        let room = Room::of_each(senders);
        let lane = |_| Mutex::new(Lane { room, queue: VecDeque::new(), bytes: 0 });
        Self {
            lanes: (0..senders).map(lane).collect(),
            pending: AtomicU32::new(0),
            waker: OnceLock::new(),
        }
    }

    pub(super) fn set_waker(&self, waker: DriverWaker) {
        let _ = self.waker.set(waker);
    }

    /// Moves packets of a sender into its lane, as far as there is room, and wakes the receiver if it sleeps.
    pub(super) fn push(&self, sender: usize, packets: &mut VecDeque<Stray>) {
        let Some(lane) = self.lanes.get(sender) else { return };
        let pushed = lane.lock().unwrap_or_else(PoisonError::into_inner).push(packets);
        let bit = 1 << sender;
        // SeqCst, as in `Shared::prepare_sleep`: a receiver that falls asleep either sees the packets, or is seen
        // asleep here. One that had packets of this sender has been woken for them.
        if pushed && self.pending.fetch_or(bit, Ordering::SeqCst) & bit == 0 {
            self.waker.get().inspect(|waker| waker.wake());
        }
    }

    /// The senders whose lanes have packets, a bit for each.
    #[inline]
    pub(super) fn pending(&self) -> u32 {
        self.pending.load(Ordering::SeqCst)
    }

    /// Takes all packets of a sender. `into` is empty, and its memory stays with the lane.
    pub(super) fn take(&self, sender: usize, into: &mut VecDeque<Stray>) {
        let Some(lane) = self.lanes.get(sender) else { return };
        // Before the packets: those that come later set the bit again.
        self.pending.fetch_and(!(1 << sender), Ordering::SeqCst);
        let mut lane = lane.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::swap(&mut lane.queue, into);
        lane.bytes = 0;
    }
}

impl Lane {
    /// Moves packets in as far as there is room; returns whether any was.
    fn push(&mut self, packets: &mut VecDeque<Stray>) -> bool {
        if self.queue.is_empty() && packets.len() <= self.room.packets {
            let bytes = packets.iter().map(Stray::pinned).sum();
            if bytes <= self.room.bytes {
                // A stray is some cache lines long: they change hands without being moved.
                std::mem::swap(&mut self.queue, packets);
                self.bytes = bytes;
                return !self.queue.is_empty();
            }
        }
        let mut pushed = false;
        while let Some(packet) = packets.front() {
            let bytes = self.bytes + packet.pinned();
            let has_room = match packet.is_news() {
                true => self.queue.len() < self.room.packets + NEWS_BEYOND,
                false => self.queue.len() < self.room.packets && bytes <= self.room.bytes,
            };
            if !has_room {
                break;
            }
            self.bytes = bytes;
            self.queue.extend(packets.pop_front());
            pushed = true;
        }
        pushed
    }
}
