//! Variant of step R1, for several bulk flows of a tap: each is received by a queue of its own.
//!
//! Payload fills pages without holes only if the driver knows its flow before it reads. The order
//! of frames does not tell, and a wrong guess is expensive: a super-frame's length is no multiple
//! of the page, so it would have to be copied to its flow's pages.
//!
//! But the kernel delivers a flow to the queue of a tap that last sent for it. So a tap that was
//! made here has spare queues, detached until they are needed. A bulk flow that runs beside another
//! one gets a spare queue: from then on its acknowledgements leave there, its data arrives there,
//! and that queue's [`TapQueue`](super::TapQueue) reads it behind its last payload.
//!
//! ```text
//!   queue 0  everything: the first bulk flow, small frames, new flows        --> pages of queue 0
//!   queue 1  one bulk flow                                                   --> pages of queue 1
//!   …
//! ```
//!
//! With one bulk flow nothing of this happens. Frames that the kernel puts elsewhere (it forgets
//! flows after three seconds of silence) cost alignment, never correctness.

use pagewire_mem::PacketBuf;

use super::limits::{FLOW_IDLE, RECENT_FLOWS, RECENT_FRAMES, SMALL_PAYLOAD, TRUST};
use super::predict::FlowKey;
use pagewire_mem::link::headers::{self, Transport};

/// The flows that have spare queues.
#[derive(Debug)]
pub(super) struct BulkFlows {
    /// Slot `i` is queue `i + 1`'s.
    slots: Vec<Slot>,
    /// Slots that were ever given: their queues are in use.
    given: usize,
    /// Recent bulk flows on queue 0.
    recent: Vec<Candidate>,
    frames: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    key: Option<FlowKey>,
    /// The number of its last bulk frame.
    last: u64,
    /// Reserved for flows with rules.
    reserved: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Candidate {
    key: Option<FlowKey>,
    last: u64,
    count: u8,
}

impl BulkFlows {
    pub(super) fn new(spare: usize) -> Self {
        let slots = vec![Slot::default(); spare];
        Self { slots, given: 0, recent: vec![Candidate::default(); RECENT_FLOWS], frames: 0 }
    }

    #[cfg(test)]
    pub(super) fn queues(&self) -> usize {
        1 + self.given
    }

    /// Reserves a queue for flows with rules: a flow that has it goes back to queue 0.
    pub(super) fn reserve(&mut self, queue: usize) {
        if let Some(slot) = queue.checked_sub(1).and_then(|slot| self.slots.get_mut(slot)) {
            *slot = Slot { reserved: true, ..Slot::default() };
        }
    }

    pub(super) fn release(&mut self, queue: usize) {
        if let Some(slot) = queue.checked_sub(1).and_then(|slot| self.slots.get_mut(slot)) {
            *slot = Slot::default();
        }
    }

    /// Queues from this one on are not available any more; flows keep lower ones.
    pub(super) fn give_up_from(&mut self, queue: usize) {
        self.slots.truncate(queue.saturating_sub(1));
        self.given = self.given.min(self.slots.len());
    }

    /// Notes a frame that came by `queue`; returns the queue that its flow has just got, if any.
    pub(super) fn note(&mut self, queue: usize, packet: &PacketBuf) -> Option<usize> {
        if self.slots.is_empty() || packet.frag_len() <= SMALL_PAYLOAD {
            return None;
        }
        let layout = headers::parse(packet.head()).ok()?;
        if layout.transport != Transport::Tcp {
            return None;
        }
        let key = FlowKey::of(packet.head(), &layout)?;
        self.frames += 1;
        let now = self.frames;
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.key == Some(key)) {
            slot.last = now;
            return None;
        }
        // A stray frame on another flow's queue does not compete for one.
        if queue > 0 {
            return None;
        }
        let runs = |other: &Candidate| now - other.last <= RECENT_FRAMES;
        let others = self.recent.iter().any(|c| c.key.is_some_and(|k| k != key) && runs(c));
        let same = self.recent.iter().position(|c| c.key == Some(key));
        let oldest = self.recent.iter().enumerate().min_by_key(|(_, c)| c.last).map(|(i, _)| i);
        let candidate = self.recent.get_mut(same.or(oldest)?)?;
        if candidate.key != Some(key) {
            *candidate = Candidate { key: Some(key), last: now, count: 0 };
        }
        candidate.last = now;
        candidate.count = candidate.count.saturating_add(1);
        if candidate.count < TRUST || !others {
            return None;
        }
        let free =
            |slot: &Slot| !slot.reserved && (slot.key.is_none() || now - slot.last > FLOW_IDLE);
        let slot = self.slots.iter().position(free)?;
        *candidate = Candidate::default();
        *self.slots.get_mut(slot)? = Slot { key: Some(key), last: now, reserved: false };
        self.given = self.given.max(slot + 1);
        Some(slot + 1)
    }

    /// The queue by which a frame is to leave, so that its flow's data arrives there.
    pub(super) fn queue_of(&self, packet: &PacketBuf) -> usize {
        if self.given == 0 {
            return 0;
        }
        let key = headers::parse(packet.head()).ok().and_then(|layout| {
            let tcp = layout.transport == Transport::Tcp;
            FlowKey::of_answer(packet.head(), &layout).filter(|_| tcp)
        });
        let slot = key.and_then(|key| self.slots.iter().position(|slot| slot.key == Some(key)));
        slot.map_or(0, |slot| slot + 1)
    }
}

#[cfg(test)]
#[path = "bulk_flows_tests.rs"]
mod tests;
